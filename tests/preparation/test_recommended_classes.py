"""`recommended` on images of three classes: what the reference reads is discounted class by class."""

from typing import Any, Literal

import pytest
import torch

from perinvfl.algorithms import FedAvg
from perinvfl.algorithms.base import Algorithm
from perinvfl.algorithms.recommended import Recommended
from perinvfl.core.seeding import generator
from perinvfl.data.benchmarks.planted import PlantedSettings, planted_federation
from perinvfl.data.federation import Federation, Split
from perinvfl.engine.program_run import ProgramRun
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings
from perinvfl.preparation.program import program_of
from perinvfl.preparation.settings import ContextSettings

ROUNDS = 60
EXECUTORS: tuple[Literal["loop", "vmap"], ...] = ("loop", "vmap")


def pictures(agree: tuple[float, ...], purpose: str, clients: int = 3, samples: int = 600) -> Split:
    """One of three shapes under noise, and one of three places that is bright: of the shape's class so often.

    A mean over the image tells nothing of the place. Samples go round the contexts, one for each entry of `agree`.
    """
    source = generator(0, "pictures", purpose)
    shapes = torch.randn(3, 1, 8, 8, generator=generator(0, "shapes"))
    y = torch.randint(3, (clients, samples), generator=source)
    context = torch.arange(samples).expand(clients, -1) % len(agree)
    same = torch.rand(y.shape, generator=source) < torch.tensor(agree)[context]
    bright = torch.where(same, y, (y + torch.randint(1, 3, y.shape, generator=source)) % 3)
    x = 0.25 * shapes[y] + torch.randn(clients, samples, 1, 8, 8, generator=source)
    for place in range(3):
        x[..., 0, 0, 2 * place : 2 * place + 2] += 4 * (bright == place)[..., None]
    return Split(x, y, context)


def trained(algorithm: Algorithm, agree: tuple[float, ...]) -> tuple[float, dict[str, Any]]:
    """Accuracy of ν where the place misleads, and what was found."""
    tests = {"reversed": pictures((0.05,), "reversed")}
    train = pictures(agree, "train")
    federation = Federation("pictures", "multiclass", 3, len(agree), train, tests, ("reversed",))
    program = program_of(algorithm, Training(rounds=ROUNDS, executor="loop", device="cpu"), ContextSettings())
    run = ProgramRun(program, [algorithm], {0: federation}, [0], ModelSettings(hidden=(16,)))
    while run.rounds_done < ROUNDS:
        run.round()
    return float(run.evaluate()["global"]["reversed"][0].mean()), run.facts(0)


def test_a_place_that_changes_its_meaning_is_discounted() -> None:
    plain = FedAvg(learning_rate=1.0, server_optimizer="adam", server_learning_rate=0.003)
    (before, _), (after, found) = trained(plain, (0.95, 0.7)), trained(Recommended(), (0.95, 0.7))
    assert found["shortcut"]["reference"]["chosen"] >= 0
    for first, second in found["right"]:  # at each client, in each context
        assert abs(first - 0.95) < 0.06 and abs(second - 0.7) < 0.2 and first > second
    assert after > before + 0.1 and after > 0.7


@pytest.mark.parametrize("agree", [(0.9, 0.9), (1 / 3, 1 / 3)])
def test_what_is_the_same_everywhere_is_left_alone(agree: tuple[float, ...]) -> None:
    _, found = trained(Recommended(), agree)
    assert found["shortcut"]["reference"]["chosen"] == -1 and "right" not in found


def test_executors_agree_on_what_is_left_out_of_a_table() -> None:
    federation = planted_federation(PlantedSettings(classes=4, rows=300, test_rows=10, p_train=((0.95, 0.6),) * 3), 0)
    models, facts = [], []
    for executor in EXECUTORS:
        program = program_of(Recommended(), Training(rounds=4, executor=executor, device="cpu"), ContextSettings())
        run = ProgramRun(program, [Recommended()], {0: federation}, [0], ModelSettings(hidden=(8,)))
        while run.rounds_done < 4:
            run.round()
        models.append(run.simulation.shared_model())
        facts.append(run.facts(0))
    assert facts[0] == facts[1] and facts[0]["shortcut"]["left_out"] == [6, 7, 8, 9]
    for name, leaf in models[0].items():
        torch.testing.assert_close(models[1][name], leaf, rtol=1e-4, atol=1e-5)
