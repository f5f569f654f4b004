"""A site's process that can be told to misbehave, and that keeps a copy of all it sends.

python odd_site.py FOLDER BEHAVIOUR.json SENT_FOLDER. The behaviour file is read before every message. Of train
messages: {"hold": true} (the reply waits until the file says otherwise), {"hang": true} (it never comes; a file
`hanging` beside that file appears), {"spoil": [kind of each round]}, {"replay": true} (all that was sent before is sent
again, as it was, before each reply). Of all others: {"instead": {kind of message: [table or
reason of each round]}}, {"hang_at": kind}.
"""

import json
import math
import signal
import sys
import time
from functools import partial
from pathlib import Path

import httpx
import torch

from perinvfl.flower import client_app, codec, layout, site_process
from perinvfl.flower.adapter.messages import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from tests.commands import until

PUSHED: list[httpx.Request] = []  # every upload, as it was sent
CLIENTS: list[httpx.Client] = []


def record_into(sent: Path) -> None:
    sent.mkdir(exist_ok=True)
    send = httpx.Client.send

    def recorded(self: httpx.Client, request: httpx.Request, **options: object) -> httpx.Response:
        name = f"{time.monotonic_ns():020d}{request.url.path.replace('/', '_')}"
        (sent / name).write_bytes(request.read())
        if "push" in request.url.path.lower() and request not in PUSHED:
            CLIENTS.append(self)
            PUSHED.append(request)
        return send(self, request, **options)  # type: ignore[arg-type]

    httpx.Client.send = recorded  # type: ignore[method-assign]


def spoil(kind: str, content: RecordDict) -> RecordDict:
    array = content.array_records[codec.UPDATE][codec.FLAT]
    flat = torch.frombuffer(bytearray(array.data), dtype=torch.float32)
    if kind == "nan":
        flat[0] = math.nan
    elif kind == "infinite":
        flat[0] = math.inf
    elif kind == "far":
        flat = 1000.0 * torch.ones_like(flat)
    elif kind == "large":
        flat *= 1e30
    elif kind == "shape":
        flat = torch.cat([flat, flat])
    elif kind == "bytes":
        flat = torch.zeros(2**20)
    elif kind == "malformed":
        return RecordDict({"something": MetricRecord({"else": 1})})
    elif kind == "risk":
        content[codec.NUMBERS] = MetricRecord({"risk": math.nan})
    record = ArrayRecord({codec.FLAT: Array("float32", (flat.numel(),), codec.RAW, flat.numpy().tobytes())})
    content[codec.UPDATE] = record
    return content


def oddly(behaviour: Path, message: Message, context: Context) -> Message:
    asked, kind = json.loads(behaviour.read_text()), message.metadata.message_type
    if asked.get("hang_at") == kind:
        hang(behaviour, message)
    if kind in asked.get("instead", {}):
        tables = asked["instead"][kind]
        return tell_instead(tables[int(message.metadata.group_id) % len(tables)], message)
    reply = client_app.answer(message, context)
    if kind != "train":
        return reply
    if asked.get("hold"):
        until(lambda: not json.loads(behaviour.read_text()).get("hold"), "the reply is released")
    if asked.get("hang"):
        hang(behaviour, message)
    if asked.get("replay"):
        replay(behaviour)
    kinds = asked.get("spoil", [])
    number = int(message.metadata.group_id)
    if number < len(kinds) and kinds[number]:
        reply.content = spoil(kinds[number], reply.content)
    return reply


def hang(behaviour: Path, message: Message) -> None:
    behaviour.with_name("hanging").write_text(message.metadata.group_id)
    signal.pause()  # until it is killed


def tell_instead(what: str, message: Message) -> Message:
    """A table that is given as text, or an error whose reason that is."""
    if what.startswith("error "):
        return Message(Error(codec.SITE_FAILED, what.removeprefix("error ")), reply_to=message)
    return Message(RecordDict({codec.NUMBERS: ConfigRecord({"table": what})}), reply_to=message)


def replay(behaviour: Path) -> None:
    """Every upload of before once more, byte by byte, with the signature it had."""
    seen = []
    for request in list(PUSHED):
        answer = httpx.Client.send(CLIENTS[0], request)
        seen.append(answer.status_code)
    with open(behaviour.with_name("replayed.txt"), "a") as file:
        file.write("".join(f"{status}\n" for status in seen))


def main(folder: Path, behaviour: Path, sent: Path) -> None:
    torch.set_num_threads(1)
    record_into(sent)
    site = layout.open_site(folder)
    own_code = {"code": str(Path(__file__).parents[2] / "examples"), "allow": "new_algorithm:FadingProx"}
    site_process.Node(
        site, own_code, partial(oddly, behaviour), lambda line: print(line, flush=True), poll=0.15
    ).serve()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
