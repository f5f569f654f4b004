"""The gradient without a tape: every method gets the same numbers, to the last bit, as with autograd."""

import dataclasses

import pytest
import torch

from perinvfl.algorithms import ALGORITHMS, IRM, FedAvg
from perinvfl.algorithms.base import LocalSteps, erm
from perinvfl.core import tree
from perinvfl.core.optimizers import Moments
from perinvfl.data.benchmarks.random import random_federation
from perinvfl.data.federation import Split
from perinvfl.engine.simulation import Simulation
from perinvfl.learning import risks
from perinvfl.learning.direct import direct_gradient
from perinvfl.learning.problem import Descent, autograd_gradient
from perinvfl.learning.risks import binary_risk
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings, build_model
from perinvfl.models.lens import seeing_through
from perinvfl.models.symmetry import seeing

METHODS = sorted(ALGORITHMS.keys() - {"fedbn"})  # it needs norm layers
IN_PARTS = {"fedala", "fedper", "fedrep", "lg_fedavg"}  # they need a second layer
CASES = {
    "full batch": ("binary", Training(executor="loop", device="cpu"), ModelSettings(hidden=(5,))),
    "mini-batches": ("binary", Training(batch_size=6, executor="loop", device="cpu"), ModelSettings(hidden=(20, 7))),
    "bfloat16": (
        "binary",
        Training(batch_size=6, executor="loop", device="cpu", precision="bfloat16"),
        ModelSettings(hidden=(5,)),
    ),
    "linear": ("regression", Training(executor="loop", device="cpu"), ModelSettings(kind="linear")),
    "multiclass": ("multiclass", Training(batch_size=6, executor="loop", device="cpu"), ModelSettings(hidden=(5,))),
}


@pytest.mark.parametrize(
    ("case", "name"), [(case, name) for case in CASES for name in METHODS if case != "linear" or name not in IN_PARTS]
)
def test_the_same_bits_as_autograd(case: str, name: str) -> None:
    task, training, model = CASES[case]
    outputs = 3 if task == "multiclass" else 1
    federation = random_federation(task=task, outputs=outputs, clients=3, contexts=2, samples=20, shape=(4,))  # type: ignore[arg-type]
    direct, taped = (Simulation([ALGORITHMS[name]()], [federation], [0], training, model) for _ in range(2))
    assert direct.problem.gradient_of is direct_gradient and direct.model.direct is not None
    by_autograd = dataclasses.replace(taped.problem, gradient_of=autograd_gradient, overwrites=False)
    taped.executor.problem = by_autograd  # type: ignore[attr-defined]
    for _ in range(2):
        assert torch.equal(direct.round().nan_to_num(7.0), taped.round().nan_to_num(7.0))
    mine, theirs = direct.state(), taped.state()
    assert any(
        not torch.equal(leaf, fresh) for leaf, fresh in zip(tree.leaves(direct.server), _start(direct), strict=True)
    )
    for key in mine:
        assert torch.equal(mine[key].nan_to_num(7.0), theirs[key].nan_to_num(7.0)), key


def _start(simulation: Simulation) -> list[torch.Tensor]:
    fresh = Simulation(
        simulation.algorithms, [simulation.federation], simulation.seeds, simulation.training, simulation.model
    )
    return tree.leaves(fresh.server)


def test_a_model_that_sees_its_inputs_differently_goes_by_autograd() -> None:
    """Its backward pass is another one than that of the network inside."""
    model = build_model(ModelSettings(hidden=(5,)), (1, 4, 4), 1, "float32")
    assert model.direct is not None and seeing(model, 3).direct is None
    assert seeing_through(model, torch.ones(2, 1), (1, 4, 4)).direct is None
    assert build_model(ModelSettings(hidden=(5,), blind_to="flips"), (1, 4, 4), 1, "float32").direct is None


def test_steps_that_go_on_leave_what_was_before_as_it_was() -> None:
    """A step writes where its gradient was, and nowhere else: an algorithm may keep the steps before."""
    simulation = Simulation([FedAvg()], [random_federation()], [0], Training(batch_size=6, executor="loop"))
    problem, params = simulation.problem, tree.map(lambda leaf: leaf[0], simulation.server.params)
    assert problem.overwrites
    batches = problem.batches(Split(*(part[0, 0] for part in simulation.data)), torch.arange(12).view(2, 6))
    begun = LocalSteps.begin(problem, params, Moments({}, {}, {}))
    how = Descent("sgd", 0.1)
    first = begun.descend(problem, erm(problem), batches[0], how)
    kept = tree.map(torch.clone, first.params)
    second = first.descend(problem, erm(problem), batches[1], how)
    assert all(torch.equal(first.params[name], leaf) for name, leaf in kept.items())
    assert any(not torch.equal(second.params[name], leaf) for name, leaf in kept.items())
    again = first.descend(problem, erm(problem), batches[1], how)
    assert all(torch.equal(again.params[name], leaf) for name, leaf in second.params.items())


def test_a_risk_that_is_known_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(logits: torch.Tensor, y: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        asked.append(len(y))
        return binary_risk(logits, y, context)

    monkeypatch.setattr(risks, "binary_risk", counted)
    for algorithm in (FedAvg(local_steps=4), IRM(local_steps=4)):
        asked.clear()
        simulation = Simulation([algorithm], [random_federation(clients=3)], [0], Training(executor="loop"))
        simulation.round()
        assert len(asked) == 3  # once for each client, not at each step
