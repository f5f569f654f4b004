"""A server and four sites as real processes on loopback, with TLS and authentication: what holds, what goes wrong."""

import json
import signal
import ssl
from base64 import b64encode
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from commands import perinvfl
from flower.inprocess import InProcess
from flower.processes import ODD, SITES, Processes, until

from perinvfl.algorithms import ALGORITHMS
from perinvfl.core import checkpoint, tree
from perinvfl.engine.simulation import Simulation
from perinvfl.flower.codec import Rejected
from perinvfl.flower.rounds import Rounds
from perinvfl.flower.settings import FederationSettings
from perinvfl.flower.transport import Answer
from perinvfl.flower.watch import Watch
from perinvfl.models import build_model
from perinvfl.runs.experiment import read_experiment
from perinvfl.runs.records import read_events
from perinvfl.runs.trial import Trial

pytestmark = pytest.mark.xdist_group("federation")
CLOSE = {"rtol": 1e-6, "atol": 1e-6}


def simulate(trial: Trial) -> Simulation:
    simulation = Simulation([trial.algorithm], [trial.federation()], [trial.seed], trial.training, trial.model)
    for _ in range(trial.training.rounds):
        simulation.round()
    return simulation


def server_state(folder: Path) -> dict[str, torch.Tensor]:
    saved = checkpoint.load(folder / "server.pt")
    return {key: value for key, value in saved.items() if key.startswith("server")}


def site_state(federation: Processes, site: str, folder: Path) -> dict[str, torch.Tensor]:
    run = json.loads((folder / "federation.json").read_text())["run"]
    return checkpoint.load(federation.site(site) / "state" / run / "committed.pt")


def assert_as_simulated(federation: Processes, folder: Path, trial: Trial) -> None:
    """ν, q, the server's optimizer, and everything that each site keeps."""
    simulation = simulate(trial)
    expected = tree.named_leaves(tree.over(lambda leaf: leaf[0], simulation.server), "server")
    found = server_state(folder)
    assert found.keys() == expected.keys()
    for key in expected:
        torch.testing.assert_close(found[key], expected[key], **CLOSE)
    states = simulation.store.take(simulation.everyone)[0]  # type: ignore[index]
    for client, site in enumerate(SITES):
        kept = site_state(federation, site, folder)
        assert int(kept.pop("round")) == trial.training.rounds - 1
        expected = tree.named_leaves(states[client], "client")  # type: ignore[index]
        assert kept.keys() == expected.keys()
        for key in expected:
            torch.testing.assert_close(kept[key], expected[key], **CLOSE)


def folder_of(federation: Processes, file: Path, trial: Trial) -> Path:
    (found,) = [folder for folder in federation.records(file) if folder.name == trial.folder]
    return found


def left_out(folder: Path, site: str) -> list[tuple[int, str]]:
    events = [event for event in read_events(folder / "events.jsonl") if event["event"] == "left out"]
    return [(event["round"] - 1, event["why"]) for event in events if event["site"] == site]


def lost_rounds(folder: Path) -> dict[int, list[int]]:
    """By client, the rounds that went on without it."""
    partial = [event for event in read_events(folder / "events.jsonl") if event["event"] == "partial"]
    return {
        client: [event["round"] - 1 for event in partial if site not in event["used"]]
        for client, site in enumerate(SITES)
    }


def rounds_done(federation: Processes, file: Path) -> int:
    """Of the only run of an experiment, from its checkpoint."""
    found = list((federation.folder / "server" / "runs" / file.stem).glob("*/server.pt"))
    return int(checkpoint.load(found[0])["server.round"]) if found else -1


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


def test_every_algorithm_deployed_is_the_simulators(federation: Processes) -> None:
    """4 sites, 5 rounds, every algorithm, in one run; then the table of the records."""
    blocks = []
    for name in ALGORITHMS:
        own = "personal_optimizer = 'adam'\nwarmup_rounds = 2\n" if name in ("perinvfl", "irm_l2") else ""
        own += "group_step = 0.5\n" if name == "groupdro" else ""
        own += "server_optimizer = 'adam'\nserver_learning_rate = 0.01\n" if name == "fedavg" else ""
        blocks.append(f"[[algorithm]]\nname = '{name}'\nlocal_steps = 2\nlearning_rate = 0.05\n{own}")
    file = federation.experiment("parity", rounds=5, algorithms="\n".join(blocks))
    printed = federation.run(file)
    assert "4/4 replies, risk" in printed and "PerInvFL" in printed
    experiment = read_experiment(file)
    assert len(experiment.trials) == len(ALGORITHMS)
    for trial in experiment.trials:
        folder = folder_of(federation, file, trial)
        assert_as_simulated(federation, folder, trial)
        events = read_events(folder / "events.jsonl")
        assert [event["event"] for event in events] == ["start", "evaluation", "end"]
    table = perinvfl("table", federation.folder / "server" / "runs" / "parity", "--format", "md")
    assert table.returncode == 0 and all(trial.label in table.stdout for trial in experiment.trials)
    again = federation.run(file)
    assert again.count("already done, nothing to do") == len(ALGORITHMS)


def test_nothing_but_updates_and_numbers_leaves_a_site(federation: Processes) -> None:
    """Everything that one site sent is looked through, byte by byte, for its data and its personal model."""
    for old in federation.sent.glob("*"):
        old.unlink()
    wide = "[[algorithm]]\nname = 'perinvfl'\nlearning_rate = 0.05\npersonal_learning_rate = 0.05\n"
    file = federation.experiment("wide", rounds=2, algorithms=wide)
    file.write_text(file.read_text().replace("hidden = [5]", "hidden = [400, 390]"))
    federation.run(file)
    (trial,) = read_experiment(file).trials
    client = SITES.index(ODD)
    folder = folder_of(federation, file, trial)
    bodies = {path.name: path.read_bytes() for path in sorted(federation.sent.iterdir())}
    everything = b"".join(bodies.values())
    share = trial.federation().train
    real = share.context[client] >= 0
    for sample in share.x[client][real]:
        assert sample.numpy().tobytes() not in everything
    for part in (share.y[client][real], share.y[client][real].long(), share.context[client][real]):
        assert part.numpy().tobytes() not in everything
    theta = site_state(federation, ODD, folder)
    leaves = {key: leaf for key, leaf in theta.items() if "personal" in key and leaf.numel() >= 8}
    assert leaves
    for leaf in leaves.values():
        for row in leaf.flatten().split(8):
            assert len(row) < 8 or bool((row == 0).any()) or row.numpy().tobytes() not in everything
    # Bytes up: all that is sent from one train message to the next, headers of HTTP aside.
    nu = sum(4 * leaf.numel() for leaf in build_model(trial.model, (6,), 1, "float32").init(torch.Generator()).values())
    sent = sum(len(body) for name, body in bodies.items() if "push" in name)
    numbers = 3000  # what the introduction and the evaluation say, in all
    assert 2 * nu < sent <= 2 * 1.1 * nu + numbers


def test_strangers_are_refused(federation: Processes, tmp_path: Path) -> None:
    """A key that is not registered, a server of another federation, a plain-text connection, a stranger's request."""
    other = tmp_path / "other"
    made = perinvfl("federation", "init", other, "--sites", "a", "--host", "localhost", "--port", federation.port)
    assert made.returncode == 0
    foreign = perinvfl("federation", "join", other / "site-a")
    assert foreign.returncode == 2 and "does not show a certificate of this federation" in foreign.stderr
    (other / "site-a" / "ca.crt").write_bytes((federation.site("a") / "ca.crt").read_bytes())
    unregistered = perinvfl("federation", "join", other / "site-a")
    assert unregistered.returncode == 2 and "its key is not registered" in unregistered.stderr
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
    until(lambda: all("takes part" in federation.log(site) for site in SITES), 60, "all sites have joined")
    shown = perinvfl("federation", "status", federation.folder)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("online") == 4


def test_secure_aggregation_between_processes(federation: Processes) -> None:
    file = federation.experiment("secret", rounds=3, settings="secure_aggregation = true")
    federation.run(file)
    plain = simulate(read_experiment(file).trials[0])
    (folder,) = federation.records(file)
    expected = tree.named_leaves(tree.over(lambda leaf: leaf[0], plain.server.params), "server.params")
    found = server_state(folder)
    for key, leaf in expected.items():
        torch.testing.assert_close(found[key], leaf, rtol=0, atol=1e-5)


# What goes wrong -----------------------------------------------------------------------------------------------------


def without(trial: Trial, folder: Path, gone: dict[int, list[int]]) -> Rounds:
    """The same run in this process, with clients whose answers of some rounds are lost."""

    def meddle(kind: str, client: int, round: int, answer: Answer) -> Answer | None:
        lost = kind == "train" and round in gone.get(client, [])
        return Rejected("lost") if lost else answer

    post = InProcess(folder, trial.data.clients, meddle)
    rounds = Rounds(trial, FederationSettings(), list(SITES), post, folder / "runs", Watch())
    rounds.run(resume=False)
    return rounds


def assert_same_server(folder: Path, rounds: Rounds) -> None:
    expected = tree.named_leaves(rounds.server, "server")
    for key, leaf in server_state(folder).items():
        torch.testing.assert_close(leaf, expected[key], **CLOSE)


def test_uploads_that_cannot_be_true_never_enter(federation: Processes, tmp_path: Path) -> None:
    kinds = ["nan", "infinite", "large", "shape", "malformed", "bytes", "risk", ""]
    federation.behave(spoil=kinds)
    file = federation.experiment("spoiled", rounds=len(kinds))
    printed = federation.run(file)
    (folder,) = federation.records(file)
    why = dict(left_out(folder, ODD))
    assert sorted(why) == list(range(7))
    assert "NaN" in why[0] and "infinite" in why[1] and "norm" in why[2] and "shape" in why[3]
    assert "parts something" in why[4] and "bytes" in why[5] and "risk" in why[6]
    assert printed.count(f"goes on without {ODD}") == 7
    assert lost_rounds(folder) == {0: [], 1: [], 2: [], 3: list(range(7))}
    end = read_events(folder / "events.jsonl")[-1]
    assert end["left_out"] == {ODD: 7}
    (trial,) = read_experiment(file).trials
    rounds = without(trial, tmp_path, {3: list(range(7))})
    assert_same_server(folder, rounds)
    # θ of the spoiled rounds did not advance: the site's only committed round is the last.
    kept = site_state(federation, ODD, folder)
    run = rounds.begun.run
    expected = checkpoint.load(tmp_path / "site-3" / "state" / run / "committed.pt")
    assert int(kept["round"]) == int(expected["round"]) == 7
    for key in expected:
        torch.testing.assert_close(kept[key], expected[key], **CLOSE)


def assert_left_behind_and_back(federation: Processes, file: Path, tmp_path: Path) -> None:
    """Some rounds went on without the odd site, a later one had it, and the result is what those rounds make."""
    (folder,) = federation.records(file)
    (trial,) = read_experiment(file).trials
    lost = lost_rounds(folder)
    odd = SITES.index(ODD)
    assert lost[odd] and any(round not in lost[odd] for round in range(lost[odd][0], trial.training.rounds))
    assert {round for round, _ in left_out(folder, ODD)} >= set(lost[odd])
    assert_same_server(folder, without(trial, tmp_path, lost))


def test_a_site_killed_in_the_middle_of_a_round_is_left_behind_and_comes_back(
    federation: Processes, tmp_path: Path
) -> None:
    file = federation.experiment("killed", rounds=12, settings="round_timeout = 4\nminimum_replies = 2")
    federation.behave(hang=True)
    run = federation.begin(file)
    until(lambda: federation.behaviour.with_name("hanging").exists(), 60, "the site hangs")
    federation.kill(ODD, signal.SIGKILL)
    federation.behave()
    federation.start(ODD)
    until(lambda: rounds_done(federation, file) >= 1, 60, "the run goes on without it")
    printed, _ = run.communicate(timeout=200)
    assert run.returncode == 0, printed
    assert_left_behind_and_back(federation, file, tmp_path)


def test_a_slow_site_is_left_behind_and_catches_up(federation: Processes, tmp_path: Path) -> None:
    file = federation.experiment("slow", rounds=10, settings="round_timeout = 2.5\nminimum_replies = 2")
    federation.behave(delay=6)
    run = federation.begin(file)
    until(lambda: rounds_done(federation, file) >= 1, 60, "rounds go on without it")
    federation.behave()
    printed, _ = run.communicate(timeout=200)
    assert run.returncode == 0, printed
    assert_left_behind_and_back(federation, file, tmp_path)


def test_a_server_killed_goes_on_from_its_last_round(federation: Processes) -> None:
    file = federation.experiment("resumed", rounds=10)
    run = federation.begin(file)
    until(lambda: rounds_done(federation, file) >= 3, 60, "three rounds")
    run.kill()
    federation.kill("up", signal.SIGKILL)
    run.communicate()
    federation.start("up")
    until((federation.folder / "server" / "control.key").exists, 60, "the server runs again")
    refused = federation.begin(file)
    printed, _ = refused.communicate(timeout=60)
    assert refused.returncode == 2 and "add --resume" in printed
    again = federation.begin(file, "--resume")  # killed once more, this time the run alone
    until(lambda: rounds_done(federation, file) >= 6, 60, "three more rounds")
    again.kill()
    again.communicate()
    printed = federation.run(file, "--resume")
    assert "going on after round" in printed or "already done" not in printed
    (trial,) = read_experiment(file).trials
    (folder,) = federation.records(file)
    assert_as_simulated(federation, folder, trial)
    events = [event["event"] for event in read_events(folder / "events.jsonl")]
    assert events == ["start", "evaluation", "end"]


# Last: what all these processes did besides ------------------------------------------------------------------------


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
