"""`recommended` on images with a background: found by the border where it varies, left alone where it does not."""

import math
from typing import Any

import pytest
import torch

from perinvfl.algorithms.recommended import Recommended
from perinvfl.core.seeding import generator
from perinvfl.data.federation import Federation, Split
from perinvfl.engine.program_run import ProgramRun
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings
from perinvfl.preparation.border import borders_exchanged
from perinvfl.preparation.program import program_of
from perinvfl.preparation.settings import ContextSettings
from perinvfl.runs.found_words import found_in_words

SIDE, CLASSES = 12, 3
VARIES, EQUAL, ABSENT = (0.95, 0.85, 0.75, 0.65), (0.85,) * 4, (0.5,) * 4


def pictures(agree: tuple[float, ...], classes: int, samples: int = 300) -> Split:
    """Shapes in the middle before smooth or rough backgrounds, equally bright, which agree with the class so often."""
    source = generator(0, "pictures", *agree)
    shapes = torch.randn(classes, 3, 6, 6, generator=generator(0, "shapes"))
    y = torch.randint(classes, (len(agree), samples), generator=source)
    same = torch.rand(y.shape, generator=source) < torch.tensor(agree)[:, None]
    background = torch.where(same, y, (y + torch.randint(1, classes, y.shape, generator=source)) % classes)
    x = torch.randn(*y.shape, 3, SIDE, SIDE, generator=source)
    smooth = x.cumsum(-1).cumsum(-2) / SIDE
    x = torch.where((background == 1)[..., None, None, None], smooth, x)
    x = x + (background == 2)[..., None, None, None] * x.roll(1, -1)
    x[..., 3:9, 3:9] = shapes[y] + torch.randn(*y.shape, 3, 6, 6, generator=source)
    context = torch.zeros_like(y)
    return Split(x, y.float() if classes == 2 else y, context)


def federation_of(agree: tuple[float, ...], classes: int) -> Federation:
    task: Any = "binary" if classes == 2 else "multiclass"
    outputs = 1 if classes == 2 else classes
    tests = {"broken": pictures((1 / classes,) * len(agree), classes, samples=20)}
    return Federation("pictures", task, outputs, 1, pictures(agree, classes), tests, ("broken",))


def run_of(
    federations: dict[int, Federation], hide_middle: float = 0.0, executor: Any = "loop", rounds: int = 3
) -> ProgramRun:
    training = Training(rounds=rounds, executor=executor, device="cpu")
    program = program_of(Recommended(), training, ContextSettings(hide_middle=hide_middle))
    seeds = list(federations)
    run = ProgramRun(program, [Recommended()] * len(seeds), federations, seeds, ModelSettings(hidden=(4,)))
    for _ in range(rounds):
        run.round()
    return run


def found_in(agree: tuple[float, ...], classes: int = 2, hide_middle: float = 0.0) -> dict[str, Any]:
    return run_of({0: federation_of(agree, classes)}, hide_middle).facts(0)


@pytest.mark.parametrize("classes", [2, CLASSES])
def test_a_background_that_varies_between_clients_is_discounted(classes: int) -> None:
    found = found_in(VARIES, classes)
    assert found["shortcut"]["border"] == "discounted"
    right = [row[0] for row in found["right"]]
    assert right == sorted(right, reverse=True)
    assert all(abs(share - agree) < 0.08 for share, agree in zip(right, VARIES, strict=True))
    assert found_in_words(found).startswith("Answers by the border of the images alone change their meaning: they are")


@pytest.mark.parametrize("classes", [2, CLASSES])
def test_a_background_of_equal_strength_is_kept_and_told(classes: int) -> None:
    found = found_in(EQUAL, classes)
    assert found["shortcut"]["border"] == "kept" and "right" not in found
    assert "set contexts.hide_middle" in found_in_words(found)


@pytest.mark.parametrize("classes", [2, CLASSES])
def test_a_background_that_tells_nothing_is_left_alone(classes: int) -> None:
    found = found_in(ABSENT if classes == 2 else (1 / 3,) * 4, classes)
    assert "border" not in found["shortcut"] and found["shortcut"]["reference"]["chosen"] == -1


def test_a_user_can_say_that_the_border_is_a_shortcut() -> None:
    found = found_in(EQUAL, hide_middle=0.7)
    assert found["shortcut"]["border"] == "told" and "You said that the border" in found_in_words(found)
    assert all(abs(row[0] - 0.85) < 0.08 for row in found["right"])


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_seeds_that_discount_and_seeds_that_do_not_are_one_program(executor: str) -> None:
    given = {0: federation_of(VARIES, 2), 1: federation_of(ABSENT, 2), 2: federation_of(VARIES, 2)}
    together = run_of(given, executor=executor, rounds=6)
    assert ["right" in together.facts(seed) for seed in given] == [True, False, True]
    models = together.simulation.shared_model()
    for place, (seed, federation) in enumerate(given.items()):
        alone = run_of({seed: federation}, executor=executor, rounds=6).simulation.shared_model()
        for name, leaf in alone.items():
            torch.testing.assert_close(models[name][place], leaf[0], rtol=1e-4, atol=1e-5)


def test_a_border_that_is_discounted_is_exchanged_and_one_that_is_kept_stays() -> None:
    federation = federation_of(VARIES, 2)
    run = run_of({0: federation, 1: federation_of(EQUAL, 2)})
    kept = run.seen(1).train.x
    assert torch.equal(kept, run.federations[1].train.x)
    seen, x = run.seen(0).train.x, federation.train.x
    torch.testing.assert_close(seen[..., 4:8, 4:8], x[..., 4:8, 4:8], rtol=1e-4, atol=1e-4)  # of middles nothing goes
    assert float((seen[..., 0, 0] == x[..., 0, 0]).float().mean()) < 0.05
    for client in range(4):  # corners go from image to image, and none is lost
        torch.testing.assert_close(seen[client, :, 0, 0, 0].sort().values, x[client, :, 0, 0, 0].sort().values)
    assert torch.equal(run.seen(0).train.y, federation.train.y)
    assert torch.equal(run.seen(0).tests["broken"].x, federation.tests["broken"].x)


def test_borders_are_exchanged_among_the_samples_of_a_client_as_one_by_one() -> None:
    data = pictures(VARIES, 2, samples=7)
    padded = data._replace(context=torch.where(torch.arange(7) < 5, 0, -1).expand(4, 7).clone())
    exchanged = borders_exchanged(0.6, padded).x
    order = torch.randperm(5, generator=torch.Generator().manual_seed(0)).tolist()
    for client in range(4):
        assert torch.equal(exchanged[client, 5:], data.x[client, 5:])
        for sample in range(5):
            own, other = data.x[client, sample], data.x[client, order[sample]]
            for row in range(SIDE):
                for column in range(SIDE):
                    down, right = ((at + 0.5) * 2 / SIDE - 1 for at in (row, column))
                    share = 1 / (1 + math.exp(((down**2 + right**2) ** 0.5 - 0.6) / 0.03))
                    expected = share * own[:, row, column] + (1 - share) * other[:, row, column]
                    torch.testing.assert_close(exchanged[client, sample, :, row, column], expected)
    site = Split(*(part[1:2, :5] for part in padded))  # a site has no padding, and takes the same order
    assert torch.equal(borders_exchanged(0.6, site).x[0], exchanged[1, :5])
