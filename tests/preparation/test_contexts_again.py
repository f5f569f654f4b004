"""Contexts inferred again, and runs that are stopped and resumed with them."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from perinvfl.algorithms import IRM, Alone, FedPer, PerInvFL
from perinvfl.core import checkpoint
from perinvfl.engine.program_run import ProgramRun
from perinvfl.errors import UserError
from perinvfl.learning.training import Training
from perinvfl.preparation.program import program_of
from perinvfl.runs.experiment import read_experiment
from perinvfl.runs.group import forget_prepared
from perinvfl.runs.progress import Progress
from perinvfl.runs.records import read_run
from perinvfl.runs.train import train
from tests import reference
from tests.commands import untimed
from tests.preparation.small_contexts import (
    EXECUTORS,
    MODEL,
    errs,
    small,
    using,
)
from tests.stops import StopAt


@pytest.mark.parametrize("executor", EXECUTORS)
def test_contexts_are_inferred_again_from_the_global_model_of_the_time(executor: str) -> None:
    plain = small()
    training = Training(executor=executor, device="cpu")  # type: ignore[arg-type]
    algorithms = [IRM(learning_rate=rate, penalty_weight=1.0) for rate in (0.5, 0.2)]
    program = program_of(algorithms[0], training, using("balance", every=2))
    run = ProgramRun(program, algorithms, {0: plain, 1: plain}, [0, 1], MODEL)
    simulation = run.simulation
    begun = simulation.data.context.clone()
    for t in range(5):
        before = simulation.model.strip(simulation.server.params)
        run.round()
        if t not in (2, 4):
            continue
        for trial in range(2):
            model = reference.network({name: leaf[trial] for name, leaf in before.items()})
            for i in range(plain.clients):
                x, y, context = (part[i] for part in plain.train)
                for place, row in enumerate(model(x.double()).tolist()):
                    given = int(context[place])
                    expected = -1 if given < 0 else 2 * given + errs("binary", row, float(y[place]))
                    assert int(simulation.data.context[trial, i, place]) == expected
    assert not torch.equal(simulation.data.context, begun)  # else nothing was inferred again
    assert not torch.equal(simulation.data.context[0], simulation.data.context[1])  # each trial has its own
    assert torch.equal(plain.train.context, small().train.context)  # untouched


def test_no_contexts_by_a_global_model_that_is_not_there() -> None:
    for algorithm in (FedPer(), Alone()):
        with pytest.raises(UserError, match=f"{algorithm.title} has none"):
            program_of(algorithm, Training(), using("discount", every=3))


@pytest.mark.parametrize("use", ["balance", "discount"])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_simulation_goes_on_with_the_contexts_of_the_time(executor: str, use: Any) -> None:
    training = Training(executor=executor, device="cpu", batch_size=8, fraction=0.67)  # type: ignore[arg-type]
    algorithm = PerInvFL(invariance="groupdro", group_step=0.3, learning_rate=0.5)
    program = program_of(algorithm, training, using(use, every=3))

    def fresh() -> ProgramRun:
        return ProgramRun(program, [algorithm], {0: small()}, [0], MODEL)

    whole = fresh()
    for _ in range(9):
        whole.round()
    for stop in (2, 3, 4, 7):
        first, second = fresh(), fresh()
        for _ in range(stop):
            first.round()
        saved = {name: leaf.clone() for name, leaf in first.state().items()}
        later = saved.get("later notes.0.errors")
        assert (later is None) == (stop < 4)
        assert stop < 7 or not torch.equal(saved["later notes.0.errors"], saved["notes.0.errors"])
        second.restore(saved)
        for _ in range(9 - stop):
            second.round()
        ended, expected = second.state(), whole.state()
        assert ended.keys() == expected.keys()
        assert all(torch.equal(ended[name], expected[name]) for name in expected), stop


AGAIN = """
name = "again"
seeds = [0, 1]
[data]
benchmark = "random"
samples = 20
holdout = 10
[contexts]
infer = "hard"
every = 4
reference_rounds = 3
reference_rate = 0.02
[model]
hidden = [5]
[training]
rounds = 11
batch_size = 8
evaluate_every = 2
executor = "loop"
device = "cpu"
[[algorithm]]
name = "perinvfl"
learning_rate = 0.3
penalty_weight = 2.0
"""


@pytest.mark.parametrize("together", [1, 8])
def test_a_run_that_was_stopped_ends_with_the_same_bits(
    together: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perinvfl.runs.group.CHECKPOINT_SHARE", 0.0)  # a checkpoint after every round
    file = tmp_path / "again.toml"
    file.write_text(AGAIN)

    def asked() -> Any:
        forget_prepared()  # another process would have nothing in memory
        return read_experiment(file)

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(asked(), whole, Progress(), together)
    for _ in range(1 if together > 1 else 2):  # alone, each of the two runs is stopped once
        with pytest.raises(KeyboardInterrupt):
            train(asked(), broken, StopAt(6), together)
        if together == 1:
            train(dataclasses.replace(asked(), trials=asked().trials[:1]), broken, Progress(), together)
    train(asked(), broken, Progress(), together)
    for trial in asked().trials:
        run = read_run(broken / trial.folder)
        assert run is not None and run.finished and run.start["asked"]["contexts"]["every"] == 4
        assert "validation wrong" in run.evaluations[-1]["personal"]
        assert untimed(whole / trial.folder / "events.jsonl") == untimed(broken / trial.folder / "events.jsonl")
    for path in whole.rglob("checkpoint.pt"):
        left, right = (checkpoint.load(p) for p in (path, broken / path.relative_to(whole)))
        assert left.keys() == right.keys() and "later notes.0.errors" in left
        assert all(torch.equal(left[key], right[key]) for key in left.keys() - {"seconds"})
    assert together > 1 or len(list(whole.rglob("checkpoint.pt"))) == 2
