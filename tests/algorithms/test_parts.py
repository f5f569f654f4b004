"""Which part of a model is personal: FedBN against a plain second writing, and models that cannot be split."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perinvfl.algorithms import FedBN, FedPer, LGFedAvg, PerInvFL
from perinvfl.algorithms.base import Algorithm
from perinvfl.engine.simulation import Simulation
from perinvfl.errors import UserError
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings, resnet18
from tests import reference
from tests.algorithms.small_runs import EXECUTORS, everyone, small_federation


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Linear(3, 6), nn.GroupNorm(2, 6), nn.ReLU(), nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 1)
        )


def build(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return Normed()


MODEL = ModelSettings(kind="module", build=f"{__name__}:build")


def slow_fedbn(simulation: Simulation, start: dict[str, Tensor], rounds: int) -> list[Normed]:
    """FedBN by hand: the personal models after so many rounds on all data."""
    settings: Any = simulation.algorithms[0]
    nu = Normed().double()
    nu.load_state_dict(start)
    samples = reference.samples_of(simulation.federation)
    norms = [name for name, _ in nu.named_parameters() if name.startswith(("1.", "4."))]
    own = [copy.deepcopy(nu) for _ in samples]
    for _ in range(rounds):
        for model, share in zip(own, samples, strict=True):
            state = {name: leaf for name, leaf in nu.state_dict().items() if name not in norms}
            model.load_state_dict(state, strict=False)
            optimizer = torch.optim.SGD(model.parameters(), lr=settings.learning_rate)
            for _ in range(settings.local_steps):
                loss = reference.risk("binary", model, share) + settings.l2 * reference.norm_squared(model)
                reference.descend(optimizer, loss)
        for name, leaf in nu.named_parameters():
            if name not in norms:
                rows = [dict(model.named_parameters())[name].detach() for model in own]
                leaf.data = torch.stack(rows).mean(0)
    for model in own:
        model.load_state_dict({n: leaf for n, leaf in nu.state_dict().items() if n not in norms}, strict=False)
    return own


def simulate(algorithm: Algorithm, model: ModelSettings, executor: Any, rounds: int) -> Simulation:
    training = Training(executor=executor, device="cpu")
    simulation = Simulation([algorithm], [small_federation()], [0], training, model)
    for _ in range(rounds):
        simulation.round()
    return simulation


@pytest.mark.parametrize("executor", EXECUTORS)
def test_fedbn_equals_the_reference(executor: Any) -> None:
    algorithm = FedBN(learning_rate=0.2, local_steps=2, l2=0.01)
    begun = simulate(algorithm, MODEL, executor, 0)
    start = {n: leaf[0, 0] for n, leaf in begun.personal_models(everyone(begun)).items()}
    simulation = simulate(algorithm, MODEL, executor, 4)
    models = simulation.personal_models(everyone(simulation))
    for i, expected in enumerate(slow_fedbn(simulation, start, 4)):
        for name, leaf in expected.named_parameters():
            torch.testing.assert_close(models[name][0, i].double(), leaf.detach(), rtol=1e-4, atol=1e-6)
    assert (models["1.weight"][0, 0] - models["1.weight"][0, 1]).abs().max() > 1e-3
    assert torch.equal(models["0.weight"][0, 0], models["0.weight"][0, 1])


def test_a_resnet_names_its_norms() -> None:
    for norm in ("group", "batch"):
        model = resnet18(2, norm=norm, width=2, stem="small")
        params = model.init(torch.Generator())
        assert {name.rpartition(".")[0] for name in params if name not in model.norms} == {
            name.rpartition(".")[0] for name, leaf in params.items() if leaf.ndim > 1
        }
        assert {"bn1.weight", "bn1.bias", "layer2.0.downsample.1.bias"} < set(model.norms) < set(params)
        assert not set(model.norms) & set(model.head)


@pytest.mark.parametrize(
    ("algorithm", "model", "says"),
    [
        (FedBN(), ModelSettings(hidden=(4,)), "this model has none"),
        (FedPer(), MODEL, "does not say which layer is its last"),
        (LGFedAvg(), ModelSettings(kind="linear"), "cannot be split in two parts"),
        (PerInvFL(personal_part="head"), MODEL, "does not say which layer is its last"),
    ],
)
def test_a_model_without_the_part_is_refused(algorithm: Algorithm, model: ModelSettings, says: str) -> None:
    with pytest.raises(UserError, match=says):
        simulate(algorithm, model, "loop", 1)
