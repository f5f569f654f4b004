"""`recommended` on images with a background: found by the border where it varies, left alone where it does not."""

import dataclasses
from typing import Any

import pytest
import torch

from perinvfl.algorithms.recommended import Recommended
from perinvfl.core.seeding import generator
from perinvfl.data.federation import Federation, Split
from perinvfl.data.images import AS_IT_IS, Augmentation
from perinvfl.engine.program_run import ProgramRun
from perinvfl.learning.border import RADIUS
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings
from perinvfl.models.lens import through
from perinvfl.preparation.facts import are_facts
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
    federations: dict[int, Federation],
    hide_middle: float = 0.0,
    executor: Any = "loop",
    rounds: int = 3,
    batch: int = 0,
) -> ProgramRun:
    training = Training(rounds=rounds, executor=executor, device="cpu", batch_size=batch)
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


@pytest.mark.parametrize("batch", [0, 16])
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_seeds_that_discount_and_seeds_that_do_not_are_one_program(executor: str, batch: int) -> None:
    given = {0: federation_of(ABSENT, 2), 1: federation_of(VARIES, 2), 2: federation_of(ABSENT, 2)}
    together = run_of(given, executor=executor, rounds=6, batch=batch)
    assert ["right" in together.facts(seed) for seed in given] == [False, True, False]
    models = together.simulation.shared_model()
    for place, (seed, federation) in enumerate(given.items()):
        alone = run_of({seed: federation}, executor=executor, rounds=6, batch=batch).simulation.shared_model()
        for name, leaf in alone.items():
            torch.testing.assert_close(models[name][place], leaf[0], rtol=1e-4, atol=1e-5)


def test_borders_that_are_discounted_are_exchanged_where_there_are_batches() -> None:
    federations = {0: federation_of(VARIES, 2), 1: federation_of(EQUAL, 2)}
    run, whole = run_of(federations, batch=16), run_of(federations)
    assert run.seen(0).augmentation == Augmentation(middle=(RADIUS, RADIUS), some_whole=True)
    assert run.seen(1).augmentation == whole.seen(0).augmentation == whole.seen(1).augmentation == AS_IT_IS
    assert run.facts(0)["shortcut"]["borders_exchanged"]
    assert "borders_exchanged" not in run.facts(1)["shortcut"] | whole.facts(0)["shortcut"]
    asked = dataclasses.replace(federations[0], augmentation=Augmentation(middle=(0.3, 0.5)))
    assert run_of({0: asked}, batch=16).seen(0).augmentation == asked.augmentation  # a user's own choice stays


def test_to_say_it_where_it_is_found_anyway_changes_nothing() -> None:
    """Told of a smaller middle, it would look nearer to the object and discount some of that."""
    federations = {0: federation_of(VARIES, 2)}
    told, alone = (run_of(federations, hidden, batch=16) for hidden in (0.4, 0.0))
    assert told.facts(0)["right"] == alone.facts(0)["right"]
    models = told.simulation.shared_model()
    assert all(torch.equal(models[name], leaf) for name, leaf in alone.simulation.shared_model().items())


TAG = (slice(10, 12), slice(5, 8))  # rows and columns of a picture


def marked(
    agree: tuple[float, ...], classes: int, rotated: bool = False, where: tuple[slice, slice] = TAG
) -> Federation:
    """Pictures whose background tells nothing, with a bright tag at the bottom that agrees with the class so often."""
    source, plain = generator(0, "tags", *agree), federation_of((1 / classes,) * len(agree), classes)
    x, y, context = plain.train
    same = torch.rand(y.shape, generator=source) < torch.tensor(agree)[:, None]
    tag = torch.where(same, y, (y + torch.randint(1, classes, y.shape, generator=source)) % classes)
    x = x.clone()
    x[..., where[0], where[1]] += tag[..., None, None, None]
    if rotated:
        x = torch.stack([torch.rot90(images, client, (-2, -1)) for client, images in enumerate(x)])
    return dataclasses.replace(plain, train=Split(x, y, context))


@pytest.mark.parametrize("classes", [2, CLASSES])
def test_a_mark_that_varies_between_clients_is_left_out_with_what_touches_it(classes: int) -> None:
    federation = marked(VARIES, classes)
    run = run_of({0: federation}, batch=16)
    shortcut = run.facts(0)["shortcut"]
    assert not {"border", "cells", "borders_exchanged"} & shortcut.keys()
    assert {44, 45} <= set(shortcut["hidden"]) <= set(range(28, 49))
    assert are_facts(run.facts(0))
    assert "A mark on the images (on a grid of 7 by 7, within row " in found_in_words(run.facts(0))
    # Whatever stands there, models see the same.
    x = federation.tests["broken"].x
    other = x.clone()
    other[..., TAG[0], TAG[1]] = 5.0
    lens = run.seen(0).lens
    assert lens is not None
    seen, same = (through(images, lens, federation.shape) for images in (x, other))
    assert torch.equal(seen, same) and not torch.equal(seen, x)


def test_a_mark_that_covers_much_is_discounted() -> None:
    run = run_of({0: marked(VARIES, 2, where=(slice(9, 12), slice(0, 12)))}, batch=16)
    shortcut = run.facts(0)["shortcut"]
    assert shortcut["border"] == "discounted" and not {"hidden", "borders_exchanged"} & shortcut.keys()
    assert shortcut["cells"] and set(shortcut["cells"]) <= set(range(35, 49))
    assert are_facts({**run.facts(0), "right": run.facts(0)["right"][:1]})
    assert "Answers by a few cells of the images alone (on a grid of 7 by 7: row " in found_in_words(run.facts(0))


def test_a_mark_of_equal_strength_is_none() -> None:
    assert not {"cells", "hidden"} & run_of({0: marked(EQUAL, 2)}).facts(0)["shortcut"].keys()


def test_what_differs_because_clients_are_rotated_is_no_mark() -> None:
    assert not {"cells", "hidden"} & run_of({0: marked(EQUAL, 2, rotated=True)}).facts(0)["shortcut"].keys()


def test_what_a_user_says_of_the_border_comes_before_a_mark() -> None:
    found = run_of({0: marked(VARIES, 2)}, hide_middle=0.7).facts(0)["shortcut"]
    assert not {"cells", "hidden"} & found.keys()


@pytest.mark.parametrize("change", ["brighter", "dimmer"])
@pytest.mark.parametrize("channels", [1, 3])
def test_brightness_that_changes_its_meaning_is_evened_out_and_the_image_stays(change: str, channels: int) -> None:
    """Gray images have one colour, brightness: without it nothing would be left to see."""
    plain = federation_of(ABSENT, 2)
    x, y, context = plain.train
    gray = x[:, :, :1].expand(-1, -1, channels, -1, -1) * 0.2 + 0.5
    same = torch.rand(y.shape, generator=generator(0, "bright")) < torch.tensor(VARIES)[:, None]
    strong = torch.where(same, y, 1 - y)[..., None, None, None]
    shown = gray + 0.4 * strong if change == "brighter" else gray * (1 - 0.4 * strong)
    tests = {
        name: test._replace(x=test.x[:, :, :1].expand_as(test.x[:, :, :channels])) for name, test in plain.tests.items()
    }
    run = run_of({0: dataclasses.replace(plain, train=Split(shown, y, context), tests=tests)}, batch=16)
    found = run.facts(0)
    assert found["shortcut"]["evened"] and not found["shortcut"]["directions"] and are_facts(found)
    assert "same brightness and contrast" in found_in_words(found)
    lens = run.seen(0).lens
    assert lens is not None
    seen = through(shown, lens, (channels, SIDE, SIDE))
    torch.testing.assert_close(seen, through(gray, lens, (channels, SIDE, SIDE)), atol=1e-4, rtol=1e-4)
    assert float(seen.std()) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("cells", [[49], [-1], ["1"], [True], [0] * 50, 3])
def test_cells_that_there_are_not_are_no_facts(cells: Any) -> None:
    shortcut: dict[str, Any] = {"varies_between": None, "left_out": [], "directions": [], "kept": False}
    shortcut["border"] = "discounted"
    assert are_facts({"shortcut": {**shortcut, "cells": [0, 48]}})
    assert not are_facts({"shortcut": {**shortcut, "cells": cells}})
    assert not are_facts({"shortcut": {**shortcut, "hidden": cells}})


@pytest.mark.parametrize("channels", [10, 11, 14])
def test_images_of_many_channels_are_trained_on_too(channels: int) -> None:
    plain = federation_of(ABSENT, 2)
    train = plain.train._replace(x=plain.train.x.repeat(1, 1, 5, 1, 1)[:, :, :channels])
    tests = {name: test._replace(x=test.x.repeat(1, 1, 5, 1, 1)[:, :, :channels]) for name, test in plain.tests.items()}
    assert run_of({0: dataclasses.replace(plain, train=train, tests=tests)}).facts(0)["shortcut"]
