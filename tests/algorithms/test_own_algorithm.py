"""An algorithm of one's own gets what the built-in ones get: every executor, compilation, resuming, opening, export,
and the same refusals across machines."""

import ast
import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from perinvfl.algorithms import ALGORITHMS, Algorithm, Params, ServerState, tree
from perinvfl.errors import UserError
from perinvfl.flower.settings import DeploymentSettings, check_deployment
from perinvfl.runs.experiment import build_experiment
from perinvfl.runs.group import forget_prepared
from perinvfl.runs.progress import Progress
from perinvfl.runs.records import read_run
from perinvfl.runs.train import train
from tests.algorithms.small_runs import EXECUTORS, final, same_bits, simulate
from tests.commands import ROOT, called, check_refusal, untimed
from tests.flower.deployed import trial_of
from tests.stops import StopAt

EXAMPLE = ROOT / "examples/new_algorithm.py"


@pytest.fixture
def example() -> Iterator[type[Algorithm]]:
    """The example, registered as fadingprox for as long as a test lasts."""
    before = dict(ALGORITHMS)
    import examples.new_algorithm as own

    ALGORITHMS["fadingprox"] = own.FadingProx
    yield own.FadingProx
    ALGORITHMS.clear()
    ALGORITHMS.update({name: known for name, known in before.items() if name != "fadingprox"})


def fadingprox(cls: type[Algorithm]) -> Algorithm:
    settings: dict[str, Any] = {"mu": 0.5, "learning_rate": 0.2, "local_steps": 3, "optimizer": "adam"}
    return cls(**settings)


def test_the_example_imports_from_one_place_alone() -> None:
    modules = set()
    for node in ast.walk(ast.parse(EXAMPLE.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module or "")
    assert modules == {"dataclasses", "typing", "perinvfl.algorithms"}


@pytest.mark.parametrize("training", [{}, {"batch_size": 6, "fraction": 0.67}], ids=["full", "mini"])
def test_batched_as_one_by_one(example: type[Algorithm], training: dict[str, Any]) -> None:
    looped, batched = (
        simulate(fadingprox(example), 4, executor, **training).server.params for executor in ("loop", "vmap")
    )
    for name, leaf in looped.items():
        torch.testing.assert_close(batched[name], leaf, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_as_not_compiled(example: type[Algorithm]) -> None:
    if not any(map(shutil.which, ("g++", "clang++"))):
        with pytest.raises(UserError, match="needs a C"):
            simulate(fadingprox(example), compile=True)
        return
    compiled, plain = (
        simulate(fadingprox(example), 3, "loop", compile=compile).server.params for compile in (True, False)
    )
    for name, leaf in plain.items():
        torch.testing.assert_close(compiled[name], leaf, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_resumed_to_the_same_bits(example: type[Algorithm], executor: str) -> None:
    training: dict[str, Any] = {"batch_size": 6, "fraction": 0.67}
    whole, first = (simulate(fadingprox(example), rounds, executor, **training) for rounds in (5, 2))
    second = simulate(fadingprox(example), 0, executor, **training)
    second.restore({name: leaf.clone() for name, leaf in first.state().items()})
    for _ in range(3):
        second.round()
    assert same_bits(final(second, 0), final(whole, 0))


@pytest.mark.usefixtures("example")
def test_a_run_stopped_at_a_round_ends_as_one_that_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perinvfl.runs.group.CHECKPOINT_SHARE", 0.0)  # a checkpoint after every round
    table = {
        "data": {"benchmark": "random"},
        "model": {"hidden": [5]},
        "training": {"rounds": 6, "batch_size": 8, "evaluate_every": 2, "executor": "loop"},
        "algorithm": {"name": "fadingprox", "mu": 0.5, "optimizer": "adam"},
    }
    experiment = build_experiment(table)
    (whole,) = train(experiment, tmp_path / "whole", Progress())
    forget_prepared()
    with pytest.raises(KeyboardInterrupt):
        train(experiment, tmp_path / "stopped", StopAt(4))
    (stopped,) = train(experiment, tmp_path / "stopped", Progress())
    assert untimed(stopped / "events.jsonl") == untimed(whole / "events.jsonl")


def test_its_run_opens_and_is_exported(tmp_path: Path) -> None:
    """By name from an experiment file, the code beside it."""
    from safetensors.torch import load_file

    shutil.copy(EXAMPLE, tmp_path)
    file = tmp_path / "own.toml"
    file.write_text(
        '[data]\nbenchmark = "random"\n[model]\nhidden = [4]\n[training]\nrounds = 2\n'
        '[[algorithm]]\nname = "new_algorithm:FadingProx"\nmu = 0.3\n'
    )
    before = dict(ALGORITHMS)
    try:
        done = called("run", file, "--out", tmp_path / "runs", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        run = next((tmp_path / "runs").rglob("events.jsonl")).parent
        made = called(
            "export", run, "--client", 1, "--format", "safetensors", "-o", tmp_path / "m.safetensors", cwd=tmp_path
        )
        assert made.returncode == 0, made.stderr
    finally:
        ALGORITHMS.clear()
        ALGORITHMS.update(before)
    record = read_run(run)
    assert record is not None and record.asked["algorithm"]["name"] == "new_algorithm:FadingProx"
    assert {tuple(leaf.shape) for leaf in load_file(tmp_path / "m.safetensors").values()} >= {(4, 6), (1, 4)}


# What its server may see -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Undeclared(Algorithm):
    """Steps further where the risk is large, and does not say that it looks at the risks."""

    title: ClassVar[str] = "Undeclared"
    paper: ClassVar[str] = "none"

    def factor(self, risks: Tensor) -> Tensor:
        return risks.max()

    def server(self, server: ServerState, update: Params, risks: Tensor, clients: Tensor) -> ServerState:
        factor = self.factor(risks)
        return super().server(server, tree.map(lambda leaf: leaf * (1 + factor), update), risks, clients)


@dataclasses.dataclass(frozen=True)
class Declared(Undeclared):
    title: ClassVar[str] = "Declared"
    needs_risks: ClassVar[bool] = True


LOOKS: dict[str, Callable[[Any], Any]] = {
    "a method": lambda risks: risks.max(),
    "a function of torch": lambda risks: torch.softmax(risks, 0)[0],
    "an operand": lambda risks: (torch.ones(4) * risks).sum(),
    "the first operand": lambda risks: (risks * 2).sum(),
    "a comparison": lambda risks: (risks > 0.5).float().sum(),
    "an entry": lambda risks: risks[0],
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_risks_that_were_not_declared_are_refused(executor: str, look: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Undeclared, "factor", lambda self, risks: LOOKS[look](risks))
    with pytest.raises(UserError) as refused:
        simulate(Undeclared(), 1, executor)
    sentence = str(refused.value)
    assert sentence.startswith("Undeclared looks at the risks of single clients") and "needs_risks" in sentence
    assert "\n" not in sentence and sentence.count(". ") == 0
    simulate(Declared(), 1, executor)


SECRET = DeploymentSettings(secure_aggregation=True)


def test_declared_risks_are_refused_under_secure_aggregation_unless_they_may_be_seen() -> None:
    trial = dataclasses.replace(trial_of("fedavg"), algorithm=Declared())
    check_deployment(DeploymentSettings(), trial, 4)
    with pytest.raises(UserError, match=r"needs each site's risk.*risks_may_be_seen = true"):
        check_deployment(SECRET, trial, 4)
    check_deployment(dataclasses.replace(SECRET, risks_may_be_seen=True), trial, 4)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"agreement": 0.5}, r"algorithm\.agreement needs"),
        ({"matching": 0.5}, r"algorithm\.matching needs"),
        ({"agreement": 0.5, "matching": 0.5}, r"algorithm\.agreement and algorithm\.matching needs"),
    ],
)
@pytest.mark.parametrize("risks_may_be_seen", [False, True])
def test_aggregations_of_single_updates_are_refused_under_secure_aggregation(
    settings: dict[str, Any], named: str, risks_may_be_seen: bool
) -> None:
    plain = trial_of("fedavg")
    trial = dataclasses.replace(plain, algorithm=dataclasses.replace(plain.algorithm, **settings))
    check_deployment(DeploymentSettings(), trial, 4)
    check_deployment(SECRET, plain, 4)
    with pytest.raises(UserError, match=named):
        check_deployment(dataclasses.replace(SECRET, risks_may_be_seen=risks_may_be_seen), trial, 4)


MISTAKEN = """
from dataclasses import dataclass
from typing import ClassVar
from perinvfl.algorithms import FedAvg

@dataclass(frozen=True)
class Forgetful(FedAvg):
    title: ClassVar[str] = "Forgetful"

    def {forgotten}:
        pass
"""


@pytest.mark.parametrize(
    ("forgotten", "said"),
    [
        (
            "local_step(self, problem, broadcast, steps, batches, batch)",
            "Forgetful.local_step returned None; it must return LocalSteps.",
        ),
        (
            "global_objective(self, problem, broadcast)",
            "Forgetful.global_objective returned None; it must return an objective.",
        ),
    ],
    ids=["step", "objective"],
)
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_forgotten_return_is_one_sentence(forgotten: str, said: str, executor: str, tmp_path: Path) -> None:
    (tmp_path / "forgetful.py").write_text(MISTAKEN.format(forgotten=forgotten))
    file = tmp_path / "own.toml"
    file.write_text('name = "own"\n[data]\nbenchmark = "random"\n[[algorithm]]\nname = "forgetful:Forgetful"\n')
    done = called("run", file, "--set", f"training.executor={executor}", cwd=tmp_path)
    check_refusal(done.returncode, done.stdout, done.stderr, said)
