"""A server and four sites as real processes on loopback, with TLS and authentication: what holds."""

import json
import shutil
import signal
import ssl
from base64 import b64encode
from pathlib import Path
from typing import Any

import httpx
import numpy
import pytest
import torch

from perinvfl.core import checkpoint, tree
from perinvfl.core.plugins import importing_from
from perinvfl.models import build_model
from perinvfl.runs.experiment import read_experiment
from perinvfl.runs.records import read_run
from tests.commands import ROOT, perinvfl, until
from tests.flower.deployed import (
    assert_equal,
    simulate,
    simulated_state,
    simulation_of,
)
from tests.flower.process_files import assert_as_simulated, folder_of, progress_of, server_state, site_state
from tests.flower.processes import ODD, SITES, Processes

# What holds ----------------------------------------------------------------------------------------------------------


def test_init_says_what_to_do_and_keeps_secrets_apart(federation: Processes) -> None:
    for line in ("federation up server", "federation join site-a --data my.npz", "federation run server"):
        assert line in federation.printed_by_init
    secret = [path for path in federation.folder.rglob("*.key")]
    assert {path.name for path in secret} >= {"ca.key", "server.key", "site.key"}
    for path in secret:
        assert path.stat().st_mode & 0o777 == 0o600, path
    keys = [path.read_bytes() for path in secret if path.parent.name != "server"]
    for path in (federation.folder / "server").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert path.name in ("server.key", "control.key") or b"PRIVATE" not in content, path
            assert not any(key in content for key in keys), path


def test_each_kind_of_data_deployed_is_the_simulators(federation: Processes, tmp_path: Path) -> None:
    """Digits, drawn birds, a table, arrays and structural equations; an own algorithm too with the first and last."""
    kinds = {
        "digits": "benchmark = 'rc_mnist'\ntrain_per_client = 30\ntest_per_client = 6\n",
        **own_files(tmp_path),
        "birds": "benchmark = 'drawn_birds'\ntrain_per_client = 12\ntest_per_client = 4\nsize = 12\nflip = true\n"
        "birds = 30\nbackgrounds = 60\nmiddle = [0.4, 0.8]\nleft_over = 0\n",
        "structural": "benchmark = 'structural'\nclients = 4\nsamples = 10\n",
    }
    shutil.copy(ROOT / "examples/new_algorithm.py", federation.root)  # beside the experiment; at the sites by --code
    for kind, data in kinds.items():
        own = "kind = 'resnet18'\nwidth = 2\nnorm = 'batch'\nstem = 'small'" if kind == "birds" else "hidden = [5]"
        methods = OURS + FADINGPROX if kind in ("digits", "structural") else OURS
        file = federation.experiment(f"kind-{kind}", rounds=2, algorithms=methods, data=data, model=own)
        printed = federation.run(file)
        assert "4/4 replies, risk" in printed and ("FadingProx" in printed) == (methods != OURS)
        with importing_from(ROOT / "examples"):
            trials = read_experiment(file).trials
        for trial in trials:
            assert_as_simulated(federation, folder_of(federation, file, trial), trial, tmp_path / kind)
    table = perinvfl("table", federation.folder / "server" / "runs" / "kind-digits", "--format", "md")
    assert table.returncode == 0 and all(trial.label in table.stdout for trial in trials)
    assert federation.run(file).count("already done, nothing to do") == len(trials)


OURS = """
[[algorithm]]
name = "perinvfl"
learning_rate = 0.005
personal_learning_rate = 0.005
"""
FADINGPROX = """
[[algorithm]]
name = "new_algorithm:FadingProx"
learning_rate = 0.005
"""


def own_files(folder: Path) -> dict[str, str]:
    """A table and arrays of four sites."""
    rng = numpy.random.default_rng(0)
    x = rng.normal(size=(160, 3))
    y = (x[:, 0] > 0).astype(int)
    rows = [f"h{i % 4},{2020 + i // 4 % 3},{a:.5f},{b:.5f},{c:.5f},{y[i]}" for i, (a, b, c) in enumerate(x)]
    (folder / "sites.csv").write_text("\n".join(["site,year,a,b,c,ill", *rows]) + "\n")
    numpy.savez(folder / "sites.npz", x=x, y=y, client=numpy.arange(160) % 4, context=numpy.arange(160) // 80)
    columns = "label = 'ill'\nclient = 'site'\ncontext = 'year'\ntest_contexts = [2022]\n"
    return {
        "table": f"benchmark = 'file'\npath = '{folder / 'sites.csv'}'\n{columns}",
        "arrays": f"benchmark = 'file'\npath = '{folder / 'sites.npz'}'\ntest_contexts = [1]\n",
    }


RECOMMENDED = """
[contexts]
infer = "hard"
use = "discount"
align = "rotations"
reference_rounds = 3
reference_rate = 0.02
"""
DIGITS = "benchmark = 'rc_mnist'\ntrain_per_client = 40\nholdout = 8\ntest_per_client = 8\n"


def test_the_recommended_method_deployed_with_kills_in_every_phase(federation: Processes, tmp_path: Path) -> None:
    """A site is killed while the reference model trains, the server in the pilot phase, both in the main one."""
    settings = "minimum_replies = 4\nround_timeout = 3\npilot_may_be_seen = true"
    file = federation.experiment("recommended", rounds=4, settings=settings, data=DIGITS, more=RECOMMENDED)
    (trial,) = read_experiment(file).trials
    federation.behave(hang=True)
    run = federation.begin(file)
    until(lambda: federation.behaviour.with_name("hanging").exists(), "the site is in the reference phase")
    federation.kill(ODD, signal.SIGKILL)
    federation.behave()
    federation.start(ODD)
    until(lambda: progress_of(federation, file) >= (1, 1), "the first site trains alone", seconds=90)
    run.kill()
    federation.kill("up", signal.SIGKILL)
    run.communicate()
    federation.start("up")
    until((federation.folder / "server" / "control.key").exists, "the server runs again")
    again = federation.begin(file, "--resume")
    until(lambda: progress_of(federation, file) >= (2, 2), "two rounds of the last phase", seconds=90)
    again.kill()
    federation.kill("b", signal.SIGKILL)
    again.communicate()
    federation.start("b")
    federation.run(file, "--resume")
    folder = folder_of(federation, file, trial)
    simulated = simulate(trial, tmp_path)
    ours, theirs = read_run(folder), read_run(simulated)
    assert ours is not None and theirs is not None and len(ours.found["views"]) == 4
    assert ours.found == theirs.found and ours.evaluations[-1]["personal"] == theirs.evaluations[-1]["personal"]
    server = server_state(folder)
    saved = checkpoint.load(simulated / "checkpoint.pt")
    assert_equal(server, {name: saved[name][0] for name in server})
    for client, site in enumerate(SITES):
        assert_equal(site_state(federation, site, folder), simulated_state(saved, trial, client))


@pytest.mark.parametrize("method", ["plain", "recommended"])
def test_nothing_but_updates_and_numbers_leaves_a_site(method: str, federation: Processes) -> None:
    """Everything that one site sent, in every phase, is looked through, byte by byte, for its samples, its labels, its
    split and its personal model."""
    for old in federation.sent.glob("*"):
        old.unlink()
    wide = "[[algorithm]]\nname = 'perinvfl'\nlearning_rate = 0.05\npersonal_learning_rate = 0.05\n"
    given: dict[str, Any] = {"model": "hidden = [200, 190]", "algorithms": wide}
    if method == "recommended":
        given |= {"data": DIGITS, "more": RECOMMENDED, "settings": "pilot_may_be_seen = true"}
    file = federation.experiment(f"wide-{method}", rounds=2, **given)
    federation.run(file)
    (trial,) = read_experiment(file).trials
    folder = folder_of(federation, file, trial)
    bodies = {path.name: path.read_bytes() for path in sorted(federation.sent.iterdir())}
    everything = b"".join(bodies.values())
    share, kept = trial.federation().share_of(SITES.index(ODD)), site_state(federation, ODD, folder)
    for sample in share.train.x[0]:
        for form in (sample, sample.float(), sample.float() / 255):
            assert form.numpy().tobytes() not in everything
    secret = [share.train.y[0], share.train.context[0]]
    if method == "recommended":
        assert share.validation is not None
        secret += [share.validation.y[0], kept["notes.errors"][0], kept["notes.held_out_wrong"][0]]
    for part in secret:
        for kind in (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8):
            assert part.to(kind).numpy().tobytes() not in everything
        assert json.dumps(part.tolist()).encode() not in everything
    leaves = {key: leaf for key, leaf in kept.items() if "personal" in key and leaf.numel() >= 32}
    assert leaves
    for leaf in leaves.values():
        rows = [row.numpy() for row in leaf.flatten().split(32)]
        assert not found_in(everything, [row for row in rows if len(row) == 32 and row.all()])
    # Bytes up: all that is sent from one train message to the next, headers of HTTP aside.
    model = build_model(trial.model, share.shape, 1, "float32")
    nu = sum(4 * leaf.numel() for leaf in model.init(torch.Generator()).values())
    sent = sum(len(body) for name, body in bodies.items() if "push" in name)
    uploads = 2 if method == "plain" else 2 + 3  # the pilot's are the first site's, and this is the last
    numbers = 6000  # what the introduction, the notes and the evaluation say, in all
    assert uploads * nu < sent <= uploads * 1.1 * nu + numbers


def found_in(sent: bytes, rows: list[Any]) -> list[Any]:
    """Which rows of float32 stand in these bytes, at any place: where its first number does, the rest is compared."""
    by_first: dict[int, list[bytes]] = {}
    for row in rows:
        by_first.setdefault(int(row.view("uint32")[0]), []).append(row.tobytes())
    firsts, found = numpy.array(list(by_first), dtype="uint32"), []
    for shift in range(4):
        numbers = numpy.frombuffer(sent[shift : shift + (len(sent) - shift) // 4 * 4], dtype="uint32")
        for place in numpy.flatnonzero(numpy.isin(numbers, firsts)):
            start = shift + 4 * int(place)
            found += [row for row in by_first[int(numbers[place])] if sent[start : start + len(row)] == row]
    return found


def test_strangers_are_refused(federation: Processes, tmp_path: Path) -> None:
    """A key that is not registered, a server of another federation, a plain-text connection, a stranger's request."""
    other = tmp_path / "other"
    made = perinvfl("federation", "init", other, "--sites", "a", "--host", "localhost", "--port", federation.port)
    assert made.returncode == 0
    foreign, printed = federation.command("join", other / "site-a")
    assert foreign == 2 and "does not show a certificate of this federation" in printed
    (other / "site-a" / "ca.crt").write_bytes((federation.site("a") / "ca.crt").read_bytes())
    unregistered, printed = federation.command("join", other / "site-a")
    assert unregistered == 2 and "its key is not registered" in printed
    with pytest.raises(httpx.HTTPError):
        httpx.post(f"http://127.0.0.1:{federation.port}/v1/fleet/pull-messages", content=b"")
    with httpx.Client(verify=_trusting(federation.site("a") / "ca.crt")) as client:
        base = f"https://127.0.0.1:{federation.port}"
        assert client.post(f"{base}/v1/control/list-runs", content=b"").status_code == 403
        assert client.post(f"{base}/v1/control/register-node", content=b"").status_code == 403
        assert client.get(f"{base}/docs").status_code == 403
        assert client.post(f"{base}/v1/runtime/acquire-task", content=b"").status_code in (400, 401, 403, 415, 422)
        assert client.post(f"{base}/v1/fleet/pull-messages", content=b"").status_code == 403
        # A key that is known, but not proven.
        public = b64encode((federation.folder / "server" / "sites" / "a.pub").read_bytes()).decode()
        claimed = {"flwr-public-key": public, "content-type": "application/x-protobuf"}
        for path in ("activate-node", "pull-messages", "push-object"):
            assert client.post(f"{base}/v1/fleet/{path}", content=b"", headers=claimed).status_code in (400, 401, 415)


def _trusting(authority: Path) -> Any:
    return ssl.create_default_context(cafile=str(authority))


def test_status_tells_who_is_there(federation: Processes) -> None:
    until(lambda: all("takes part" in federation.log(site) for site in SITES), "all sites have joined")
    code, printed = federation.command("status", federation.folder)
    assert code == 0 and printed.count("online") == 4, printed


def test_secure_aggregation_between_processes(federation: Processes) -> None:
    file = federation.experiment("secret", rounds=3, settings="secure_aggregation = true")
    federation.run(file)
    simulation = simulation_of(read_experiment(file).trials[0])
    (folder,) = federation.records(file)
    expected = tree.named_leaves(tree.over(lambda leaf: leaf[0], simulation.server.params), "server.params")
    found = server_state(folder)
    for key, leaf in expected.items():
        torch.testing.assert_close(found[key], leaf, rtol=0, atol=1e-5)


# Last: what all these processes did besides, and what needs none of them ---------------------------------------------


def test_no_process_spoke_to_anybody_else_or_installed_anything(federation: Processes) -> None:
    events = [json.loads(line) for line in federation.watched.read_text().splitlines()]
    connected = {event[3] for event in events if event[0] == "socket.connect"}
    assert connected and all(
        place in (f"('127.0.0.1', {federation.port})", f"('::1', {federation.port}, 0, 0)") for place in connected
    ), connected
    looked_up = {event[2] for event in events if event[0] == "socket.getaddrinfo"}
    assert looked_up <= {"'localhost'", "'127.0.0.1'", "b'localhost'", "b'127.0.0.1'", "None"}, looked_up
    started = [event for event in events if event[0] not in ("socket.connect", "socket.getaddrinfo")]
    assert not [event for event in started if "uv" in str(event[2:]) or "pip" in str(event[2:])], started


def test_bytes_are_found_wherever_they_stand() -> None:
    rows = [row.numpy() for row in torch.randn(5, 32)]
    for shift in range(4):
        sent = bytes(100 + shift) + rows[3].tobytes() + rows[1].tobytes()[:-1]
        assert found_in(sent, rows) == [rows[3].tobytes()]
