"""The site's side as a Flower ClientApp: an assignment in, an upload, a table of numbers or an error out.

Works in any Flower SuperNode or simulation. `--node-config 'client=0 folder="/var/lib/site-a" data="my.npz"'` says who
the site is; a simulation numbers its nodes itself.
"""

import os
from functools import lru_cache
from pathlib import Path

from perinvfl.core.saying import say
from perinvfl.errors import UserError
from perinvfl.flower import codec
from perinvfl.flower.adapter.messages import ClientApp, Context, Message
from perinvfl.flower.secagg import masking
from perinvfl.flower.site import OwnCode, Site
from perinvfl.flower.site_data import UnusableData

app = ClientApp(mods=[masking])


@app.query()
def query(message: Message, context: Context) -> Message:
    """Who the site is, and what its data are like."""
    assignment, _, task = codec.decode_assignment(message.content)
    summary = _site(context).describe(assignment, bool(task.get("scores", False)))
    return Message(codec.encode_table(summary), reply_to=message)


@app.query("columns")
def columns(message: Message, context: Context) -> Message:
    """What columns the site's table has; none where it has no table that has to be fitted."""
    assignment, _, _ = codec.decode_assignment(message.content)
    return Message(codec.encode_table({"columns": _site(context).columns(assignment)}), reply_to=message)


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Which client of the federation the site is; for a Flower federation that does not know its sites by key."""
    return Message(codec.encode_table({"client": _client(context)}), reply_to=message)


@app.query("commit")
def commit(message: Message, context: Context) -> Message:
    """Take note of the last step that was used, when nothing else will be asked."""
    assignment, _, _ = codec.decode_assignment(message.content)
    _site(context).commit(assignment)
    return Message(codec.encode_table({}), reply_to=message)


@app.query("notes")
def take_notes(message: Message, context: Context) -> Message:
    """Take notes from the model that came along; they stay here."""
    assignment, nu, _ = codec.decode_assignment(message.content)
    return Message(codec.encode_table(_site(context).take_notes(assignment, nu)), reply_to=message)


@app.query("statistics")
def statistics(message: Message, context: Context) -> Message:
    """What the batch norms of the global model measure on the site's data."""
    assignment, nu, task = codec.decode_assignment(message.content)
    site = _site(context)
    samples = site.samples(assignment) if task.get("tell_samples", False) else None
    return Message(codec.encode_statistics(site.statistics(assignment, nu), samples), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    assignment, nu, task = codec.decode_assignment(message.content)
    site = _site(context)
    if assignment.plan is not None:
        return Message(codec.encode_upload(site.column_sums(assignment), True, None), reply_to=message)
    upload = site.train(assignment, nu, codec.decode_control(message.content))
    samples = site.samples(assignment) if task.get("tell_samples", False) else None
    return Message(codec.encode_upload(upload, assignment.tell_risk, samples), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    assignment, nu, _ = codec.decode_assignment(message.content)
    scores = _site(context).evaluate(assignment, nu, codec.decode_control(message.content))
    return Message(codec.encode_table(scores), reply_to=message)


@app.query("scores")
def scores(message: Message, context: Context) -> Message:
    """How good the last models are here, in a few numbers."""
    assignment, nu, _ = codec.decode_assignment(message.content)
    return Message(
        codec.encode_table(_site(context).scores(assignment, nu, codec.decode_control(message.content))),
        reply_to=message,
    )


def answer(message: Message, context: Context) -> Message:
    """The app's answer; what goes wrong is told to the server in words instead of ending the site."""
    try:
        return app(message, context)
    except UnusableData as error:
        say(f"error: {error}", stderr=True)  # may quote a row, so it stays here
        return codec.failure(message, UserError("its data cannot be used; the site's own output says why"))
    except Exception as error:  # whatever a question may cause: the site itself goes on
        return codec.failure(message, error)


def _client(context: Context) -> int:
    for key in ("client", "partition-id"):
        if key in context.node_config:
            return int(context.node_config[key])
    raise UserError("The node does not say which client it is; start it with --node-config 'client=0'.")


def _site(context: Context) -> Site:
    config = context.node_config
    if "folder" in config:
        folder = str(config["folder"])
    else:
        root = Path(str(context.run_config.get("sites", "") or os.environ.get("PERINVFL_SITES", "perinvfl-sites")))
        folder = str(root / f"client-{_client(context)}")
    # In Flower's own simulation sites are numbers, and the code is the server's.
    simulated = "partition-id" in config and "client" not in config
    allowed = None if simulated else frozenset(str(config.get("allow", "")).split(",")) - {""}
    return open_site(folder, str(config.get("data", "")), str(config.get("code", "")), allowed)


@lru_cache(maxsize=64)
def open_site(folder: str, data: str, code: str, allowed: frozenset[str] | None) -> Site:
    return Site(Path(folder), Path(data) if data else None, OwnCode(Path(code) if code else None, allowed))
