"""Tables with a planted shortcut: the shortcut is as strong as asked, and nothing else depends on it."""

import dataclasses
from math import sqrt
from typing import Any

import pytest
import torch
from torch import Tensor

from perinvfl.core.config import build
from perinvfl.data.benchmarks.planted import LEVELS, PlantedSettings, planted_federation
from perinvfl.data.federation import Federation, Split
from perinvfl.data.registry import BENCHMARKS, build_federation
from perinvfl.errors import UserError

MANY = PlantedSettings(p_train=((0.95, 0.7), 0.2), rows=6000, test_rows=3000, shift=0.0, p_test=(0.1, 0.5, 0.9))
FIRST = MANY.informative + MANY.useless  # the place of the shortcut's first column


def splits_of(federation: Federation) -> list[Split]:
    return [federation.train, *federation.tests.values(), *filter(None, [federation.validation])]


def assert_rate(hits: Tensor, p: float) -> None:
    """The share of hits is within 5 standard deviations of p."""
    assert abs(float(hits.double().mean()) - p) <= 5 * sqrt(p * (1 - p) / hits.numel())


def named_by(settings: PlantedSettings, x: Tensor, column: int = 0) -> Tensor:
    """The class that a shortcut column names."""
    if settings.shortcut == "categorical":
        return x[..., FIRST:].argmax(-1) // max(LEVELS // settings.classes, 1)
    if settings.classes > 2:
        return x[..., FIRST + column * settings.classes :][..., : settings.classes].argmax(-1)
    return (x[..., FIRST + column] > 0).long()


@pytest.mark.parametrize(
    ("shortcut", "classes", "columns"),
    [
        ("sharp", 2, 1),
        ("soft", 2, 1),
        ("two", 2, 2),
        ("categorical", 2, 1),
        ("sharp", 3, 1),
        ("two", 5, 2),
        ("categorical", 3, 1),
        ("categorical", 10, 1),
    ],
)
def test_the_shortcut_agrees_with_the_label_at_the_asked_rate(shortcut: Any, classes: int, columns: int) -> None:
    settings = dataclasses.replace(MANY, shortcut=shortcut, classes=classes)
    federation = planted_federation(settings, 3)
    train = federation.train
    for column in range(columns):
        hits = named_by(settings, train.x, column) == train.y.long()
        for client, rates in enumerate(settings.p_contexts):
            for context, p in enumerate(rates):
                assert_rate(hits[client][train.context[client] == context], p)
        for case, split in federation.tests.items():
            for client in range(settings.clients):
                assert_rate((named_by(settings, split.x, column) == split.y.long())[client], float(case))


def test_two_shortcuts_err_apart_from_each_other() -> None:
    settings = dataclasses.replace(MANY, shortcut="two", p_train=(0.8,))
    x, y = planted_federation(settings, 0).train[:2]
    one, two = (named_by(settings, x, column) == y.long() for column in (0, 1))
    assert_rate(two[one], 0.8)
    assert_rate(two[~one], 0.8)


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_the_shortcut_of_a_number_has_the_asked_correlation(correlation: float) -> None:
    settings = dataclasses.replace(MANY, shortcut="soft", classes=1, correlation=correlation)
    federation = planted_federation(settings, 1)
    for case, split in federation.tests.items():
        for x, y in zip(split.x, split.y, strict=True):
            found = torch.corrcoef(torch.stack([x[:, FIRST], y]))[0, 1]
            assert abs(float(found) - (2 * float(case) - 1)) < 0.08
            assert abs(float(y.std()) - 1) < 0.08 and abs(float(x[:, FIRST].std()) - 1) < 0.08


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_columns_are_of_one_scale(classes: int) -> None:
    shortcut: Any = "soft" if classes == 1 else "sharp"
    settings = dataclasses.replace(MANY, classes=classes, shortcut=shortcut, echoes=2, shift=0.5, correlation=0.3)
    x = planted_federation(settings, 0).train.x
    spread = x.std(1)
    assert bool((spread[:, :FIRST] > 0.9).all()) and bool((spread[:, :FIRST] < 1.1).all())
    assert bool((spread > 0.2).all()) and bool((spread < 1.5).all())
    assert float(x.mean(1).abs().amax()) < 3


def test_informative_columns_tell_the_label_and_useless_ones_do_not() -> None:
    x, y = planted_federation(dataclasses.replace(MANY, personal=0.0), 0).train[:2]
    tells = ((x - x.mean(1, keepdim=True)) * (y - y.mean(1, keepdim=True))[..., None]).mean(1).abs()
    assert float(tells[:, : MANY.informative].amax()) > 0.2
    assert float(tells[:, MANY.informative : FIRST].amax()) < 0.05


def test_correlated_columns_have_the_asked_correlation() -> None:
    x = planted_federation(dataclasses.replace(MANY, correlation=0.6), 0).train.x[0, :, :FIRST]
    found = torch.corrcoef(x.T)[torch.triu_indices(FIRST, FIRST, 1).unbind()]
    assert float((found - 0.6).abs().amax()) < 0.07


@pytest.mark.parametrize(
    "asked",
    [
        {"shortcut": "sharp", "echoes": 3},
        {"shortcut": "categorical", "classes": 3},
        {"shortcut": "soft", "classes": 1, "echoes": 1},
        {"shortcut": "two", "shift": 0.0},
    ],
)
def test_without_the_shortcut_the_rest_is_the_same_bit_by_bit(asked: dict[str, Any]) -> None:
    settings = PlantedSettings(rows=(50, 31, 40, 8), test_rows=20, holdout=0.2, **asked)
    whole, without = (
        planted_federation(dataclasses.replace(settings, without_shortcut=left_out), 5) for left_out in (False, True)
    )
    for seen, blind in zip(splits_of(whole), splits_of(without), strict=True):
        assert torch.equal(seen.x[..., :FIRST], blind.x[..., :FIRST])
        assert not bool(blind.x[..., FIRST:].any()) and bool(seen.x[..., FIRST:].any())
        assert seen.x.shape == blind.x.shape
        assert torch.equal(seen.y, blind.y) and torch.equal(seen.context, blind.context)


def test_test_contexts_differ_by_the_shortcut_alone() -> None:
    tests = list(planted_federation(dataclasses.replace(MANY, shortcut="soft"), 0).tests.values())
    for split in tests[1:]:
        assert torch.equal(split.x[..., :FIRST], tests[0].x[..., :FIRST])
        assert torch.equal(split.y, tests[0].y)
        assert not torch.equal(split.x, tests[0].x)


def test_unequal_rows_are_padded_and_held_out_rows_come_from_every_context() -> None:
    settings = PlantedSettings(rows=(40, 100, 20, 60), holdout=0.25, test_rows=10)
    federation = planted_federation(settings, 0)
    assert federation.sizes.tolist() == federation.notes["sizes"] == [30, 75, 15, 45]
    assert federation.contexts_per_client == federation.notes["contexts"] == [2] * 4
    validation = federation.validation
    assert validation is not None
    assert (validation.context >= 0).sum(1).tolist() == [10, 25, 5, 15]
    for split in (federation.train, validation):
        padding = split.context < 0
        assert not bool(split.x[padding].any()) and not bool(split.y[padding].any())
        assert bool((split.context.diff(dim=1)[padding[:, 1:]] <= 0).all())  # padding comes last
        for row in split.context:
            assert row[row >= 0].unique().tolist() == [0, 1]
    whole = planted_federation(dataclasses.replace(settings, holdout=0.0), 0)
    assert whole.validation is None and whole.sizes.tolist() == [40, 100, 20, 60]


@pytest.mark.parametrize(("classes", "task", "outputs"), [(1, "regression", 1), (2, "binary", 1), (4, "multiclass", 4)])
def test_every_task_is_a_sound_federation(classes: int, task: str, outputs: int) -> None:
    shortcut: Any = "soft" if classes == 1 else "sharp"
    federation = build_federation("planted", PlantedSettings(classes=classes, shortcut=shortcut, rows=80), 0)
    assert (federation.task, federation.outputs, federation.contexts) == (task, outputs, 2)
    assert federation.spectrum == ("0.1", "0.3", "0.5")
    for split in splits_of(federation):
        assert split.y.dtype == (torch.int64 if task == "multiclass" else torch.float32)
        assert split.context.dtype == torch.int64 and split.x.dtype == torch.float32
        if task != "regression":
            assert split.y.unique().tolist() == list(range(max(classes, 2)))


def test_the_same_seed_gives_the_same_data_and_another_seed_does_not() -> None:
    one, again, other = (planted_federation(PlantedSettings(holdout=0.1), seed) for seed in (1, 1, 2))
    for first, second, third in zip(splits_of(one), splits_of(again), splits_of(other), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        assert not torch.equal(first.x, third.x)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"p_train": []}, "data.p_train: must have at least one entry, and no empty one."),
        ({"p_train": [[], 0.5]}, "data.p_train: must have at least one entry, and no empty one."),
        ({"p_train": [1.5]}, "data.p_train = [1.5]: must be at most 1."),
        ({"p_test": [0.5, 0.5]}, "data.p_test = (0.5, 0.5): no two test contexts may be the same."),
        ({"rows": [10, 10]}, "data.rows = (10, 10): must have one entry for each of 4 clients."),
        (
            {"rows": 3},
            "data.rows = 3 with holdout = 0: too few for 2 contexts of two training rows each, and one row to hold out "
            "where any are asked for.",
        ),
        (
            {"classes": 1},
            'data.shortcut = "sharp": where the label is a number, "soft" or "none".',
        ),
        ({"classes": 3, "shortcut": "soft"}, 'data.shortcut = "soft" leans to one of two classes; there are 3.'),
        (
            {"echoes": 2, "shortcut": "none"},
            'data.echoes = 2: there is nothing to repeat with shortcut = "none".',
        ),
    ],
)
def test_mistakes_are_said_in_one_sentence(asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as mistake:
        build(BENCHMARKS["planted"].settings, asked, "data")
    assert str(mistake.value) == sentence
