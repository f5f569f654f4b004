"""What travels to a node and back, what a node answers, and what is refused; without a cluster."""

import pickle
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perinvfl.cluster.board import Message
from perinvfl.cluster.dispatcher import OnRay
from perinvfl.cluster.node import Answer, Call, carry_out, do_job, train_batch, versions
from perinvfl.cluster.parcels import Files, begun_files, install
from perinvfl.cluster.relay import Told
from perinvfl.errors import UserError
from perinvfl.runs.batches import Batch
from perinvfl.runs.event_log import Event
from perinvfl.runs.experiment import read_experiment
from perinvfl.runs.group import forget_prepared
from perinvfl.runs.progress import Progress
from perinvfl.runs.records import ARRIVING, find_runs
from perinvfl.runs.search import search
from perinvfl.runs.trial import Trial
from tests.commands import called, check_refusal, tiny_file, untimed
from tests.stops import StopAt


def batch_of(folder: Path, trials: int = 1, rounds: int = 10) -> Batch:
    found = list(search(read_experiment(tiny_file(folder, rounds)), trials, 0).trials)
    return Batch(found, "tiny", {trial.id: place for place, trial in enumerate(found)})


def on_a_node(batch: Batch, begun: Files, heard: list[Message] | None = None, given_up: str = "") -> Answer:
    """As a node does it, in this process."""

    def send(messages: list[Message]) -> str:
        if heard is not None:
            heard.extend(messages)
        return given_up

    call = Call(train_batch, pickle.dumps((batch, begun, [])), {}, cores=1, versions=versions())
    return carry_out(call, send, ())


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("trials", [1, 3])
def test_what_was_begun_here_resumes_on_a_node(tmp_path: Path, trials: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perinvfl.runs.group.CHECKPOINT_SHARE", 0.0)
    batch = batch_of(tmp_path, trials)
    assert batch.train(tmp_path / "whole", Progress())
    with pytest.raises(KeyboardInterrupt):
        batch.train(tmp_path / "out", StopAt(7))
    begun = begun_files(batch.trials, tmp_path / "out")
    assert any(name.endswith(".pt") for name in begun) and not any(name.endswith(".lock") for name in begun)
    forget_prepared()
    heard: list[Message] = []
    answer = on_a_node(batch, begun, heard)
    assert not answer.refused and heard[0][0] == "started" and heard[0][2][0] >= 6
    files, ended, (seconds, _) = answer.value
    assert ended and seconds > 0
    install(files, batch.trials, tmp_path / "out")
    runs = find_runs(tmp_path / "out")
    assert len(runs) == trials and not (tmp_path / "out" / ARRIVING).exists()
    assert not list((tmp_path / "out/.together").glob("*.pt")) if trials > 1 else True
    for run in runs:
        assert untimed(run.folder / "events.jsonl") == untimed(tmp_path / "whole" / run.folder.name / "events.jsonl")


def test_messages_tell_the_last_round_before_each_evaluation(tmp_path: Path) -> None:
    heard: list[Message] = []
    on_a_node(batch_of(tmp_path), {}, heard)
    told = [(method, arguments[0]) for method, _, arguments in heard if method in ("round", "evaluated")]
    for round in (5, 10):
        place = told.index(("evaluated", round))
        assert told[place - 1] == ("round", round)


def test_a_node_that_is_told_so_gives_a_run_up(tmp_path: Path) -> None:
    batch = batch_of(tmp_path)
    files, ended, (_, summary) = on_a_node(batch, {}, given_up="not worth it").value
    assert not ended and summary == "not worth it"
    install(files, batch.trials, tmp_path / "out")
    (run,) = find_runs(tmp_path / "out")
    assert run.pruned is not None and run.pruned["why"] == "not worth it" and not run.finished


def test_a_full_disk_of_a_node_is_one_sentence(tmp_path: Path) -> None:
    batch = batch_of(tmp_path, rounds=400)
    with files_of_at_most(2_000):
        answer = on_a_node(batch, {})
    assert answer.hindered and "cannot be written: File too large" in answer.refused


def test_a_run_that_arrives_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    batch, out = batch_of(tmp_path), tmp_path / "out"
    files, _, _ = on_a_node(batch, {}).value
    with files_of_at_most(2_000), pytest.raises(UserError, match="cannot be written: File too large"):
        install(files, batch.trials, out)
    assert not (out / batch.trials[0].folder).exists() and not find_runs(out)
    install(files, batch.trials, out)
    install(files, batch.trials, out)  # the same again takes its place
    assert [run.finished for run in find_runs(out)] == [True]


def test_a_node_with_other_versions_is_refused(tmp_path: Path) -> None:
    call = Call(do_job, b"", {}, 1, ("0.0.1", "2.13.0"))
    answer = carry_out(call, lambda messages: "", ())
    assert answer.hindered and "this machine perinvfl 0.0.1 and torch 2.13.0" in answer.refused


def test_tasks_on_a_gpu_take_one_each(tmp_path: Path) -> None:
    def asked(resources: dict[str, float], device: str) -> tuple[int, int]:
        ray: Any = SimpleNamespace(cluster_resources=lambda: resources)
        path = tiny_file(tmp_path, training=f'device = "{device}"')
        found = list(read_experiment(path).trials)
        on_ray = OnRay(ray, cores=3)
        return on_ray.waiting(Batch(found, "tiny", {}), tmp_path).gpus, on_ray.slots

    assert asked({"CPU": 16, "GPU": 4}, "auto") == (1, 4)
    assert asked({"CPU": 16, "GPU": 4}, "cpu") == (0, 4)
    assert asked({"CPU": 16}, "auto") == (0, 5)


@pytest.mark.parametrize(
    ("on", "address", "words"),
    [
        ("slurm", "", "--on slurm: must be ray, or ray://HOST:PORT"),
        ("ray://head", "", "--on ray://head: must be ray, or ray://HOST:PORT"),
        ("ray://127.0.0.1:9", "", "no Ray cluster answers at ray://127.0.0.1:9 (Connection refused)"),
        ("ray", "127.0.0.1:9", "no Ray cluster answers at 127.0.0.1:9 (Connection refused)"),
        ("ray", "head", "RAY_ADDRESS is head, and must be HOST:PORT"),
    ],
)
def test_what_is_no_cluster_is_one_sentence(
    on: str, address: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    done = called("sweep", tiny_file(tmp_path), "--trials", 2, "--on", on, "--out", tmp_path / "runs")
    check_refusal(done.returncode, done.stdout, done.stderr, words)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("option", "value"), [("--on", "ray"), ("--sampler", "optuna")])
def test_what_is_not_installed_is_named_with_its_command(
    option: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "")
    monkeypatch.setitem(sys.modules, value, None)  # an import fails
    file = tiny_file(tmp_path)
    file.write_text(file.read_text().replace('"random"', '"random"\nsamples = 40\nholdout = 10'))
    done = called("sweep", file, "--trials", 2, option, value, "--out", tmp_path / "runs")
    check_refusal(done.returncode, done.stdout, done.stderr, f'pip install "perinvfl[{value}]", or in the project')


def test_messages_that_were_lost_are_made_up_for_from_the_records(tmp_path: Path) -> None:
    batch = batch_of(tmp_path)
    heard: list[Message] = []
    files, _, _ = on_a_node(batch, {}, heard).value
    install(files, batch.trials, tmp_path / "out")

    class Watch(Progress):
        def __init__(self) -> None:
            self.told: list[tuple[str, int]] = []

        def started(self, trials: list[Trial], rounds_done: int) -> None:
            self.told.append(("started", rounds_done))

        def measured(self, trial: Trial, event: Event) -> None:
            self.told.append(("measured", event["round"]))

    everything = [("started", 0), ("measured", 5), ("measured", 10)]
    not_started = [message for message in heard if message[0] != "started"]
    not_measured = [message for message in heard if message[0] != "measured"]
    for kept in (heard, [], heard[:2], not_started, not_measured):
        watch = Watch()
        told = Told(batch.trials, watch)
        for message in kept:
            told.replay(message)
        told.catch_up(tmp_path / "out")
        assert watch.told == everything
