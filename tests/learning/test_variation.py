"""What changes its meaning between contexts: the sums against a slow count, the decision on worlds whose answer is
known."""

import dataclasses

import pytest
import torch
from torch import Tensor

from perinvfl.core.tree import Params
from perinvfl.data.benchmarks.digits import DigitSettings, digit_federation
from perinvfl.data.benchmarks.planted import PlantedSettings, planted_federation
from perinvfl.data.federation import Federation
from perinvfl.learning.colours import colour_numbers, colour_statistics, find_colours
from perinvfl.learning.ranks import ranks
from perinvfl.learning.slope_test import chance
from perinvfl.learning.slopes import SCALE, client_sums, unscaled, zero_sums
from perinvfl.learning.variation import Variation, find_answer, find_variation, one_by_one

TWO = ((0.95, 0.8),) * 5


def sums_of(federation: Federation, ranked: bool = False) -> Params:
    targets = federation.outputs if federation.task == "multiclass" else 1
    total = zero_sums(federation.shape, targets, federation.contexts)
    for client in range(federation.clients):
        x, y, context = (part[client] for part in federation.train)
        x = ranks(x, context >= 0) if ranked else x
        own = client_sums(federation.task, targets, federation.contexts, x, y, context)
        total = {name: total[name] + own[name] for name in total}
    return total


def found_in(federation: Federation) -> Variation:
    images = len(federation.shape) == 3
    return find_variation(sums_of(federation, ranked=not images), images)


def planted(seed: int = 0, **settings: object) -> Federation:
    return planted_federation(PlantedSettings(**{"p_train": TWO, "rows": 300, **settings}), seed)  # type: ignore[arg-type]


def slow_slope(x: Tensor, y: Tensor) -> Tensor:
    """Least squares of each column on the label, one column at a time."""
    line = torch.stack([torch.ones_like(y), y], 1).double()
    return torch.stack([torch.linalg.lstsq(line, column.double()[:, None]).solution[1, 0] for column in x.T])


@pytest.mark.parametrize("classes", [1, 2])
def test_sums_are_those_of_a_slow_count(classes: int) -> None:
    federation = planted(classes=classes, shortcut="soft", rows=(40, 60, 30, 20, 50))
    sums = {name: leaf.double() / SCALE for name, leaf in sums_of(federation).items()}
    within: Tensor | float = 0.0
    noise, clients, weights = torch.zeros(7, dtype=torch.float64), torch.zeros(7, dtype=torch.float64), 0.0
    for x, y, context in zip(*federation.train, strict=True):
        slopes, counts = [], []
        for k in (0, 1):
            own, label = x[context == k].double(), y[context == k].double()
            slopes.append(slow_slope(own, label))
            counts.append(float((label - label.mean()).square().sum()))
            left = own - own.mean(0) - (label - label.mean())[:, None] * slopes[-1]
            noise += left.square().sum(0)
        mean = sum(w * b for w, b in zip(counts, slopes, strict=True)) / sum(counts)
        within = within + sum(w * (b - mean).square() for w, b in zip(counts, slopes, strict=True))
        clients, weights = clients + sum(counts) * mean, weights + sum(counts)
    assert torch.allclose(sums["within"].diagonal(), torch.as_tensor(within), rtol=1e-4)
    assert torch.allclose(sums["noise"].diagonal(), noise, rtol=1e-4)
    assert torch.allclose(sums["slope"][0], clients, rtol=1e-3, atol=1e-2)
    assert float(sums["weight"]) == pytest.approx(weights, rel=1e-4)
    assert float(sums["within_freedom"]) == 5 and float(sums["samples"]) == 200


def slow_fit(x: Tensor, groups: list[Tensor]) -> Tensor:
    """[d] what is left of each column when each of these groups has a mean of its own."""
    line = torch.cat([torch.nn.functional.one_hot(group).double() for group in groups], 1)
    return (x - line @ torch.linalg.lstsq(line, x, driver="gelsd").solution).square().sum(0)


def test_of_several_classes_sums_are_those_of_an_analysis_of_variance() -> None:
    """Contexts and classes that only add up, against every context with classes of its own."""
    federation = planted(classes=4, rows=(60, 90, 50, 40, 70))
    sums = {name: leaf.double() / SCALE for name, leaf in sums_of(federation).items()}
    alone, added, pooled = (torch.zeros(federation.shape[0], dtype=torch.float64) for _ in range(3))
    rows = 0
    for x, y, context in zip(*federation.train, strict=True):
        real = context >= 0
        values, label, where = x[real].double(), y[real].long(), context[real].long()
        alone = alone + slow_fit(values, [label + 4 * where])
        added = added + slow_fit(values, [label, where])
        pooled = pooled + slow_fit(values, [where])
        rows += len(values)
    noise = sums["noise"].diagonal()
    torch.testing.assert_close(noise, alone, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(sums["within"].diagonal(), added - alone, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(sums["square"].diagonal(), pooled - added, rtol=1e-3, atol=1e-3)
    assert float(sums["within_freedom"]) == 5 * 3 and float(sums["freedom"]) == 5 * 3
    assert float(sums["rows"]) == rows - 5 * 2 * 4


@pytest.mark.parametrize("seed", range(3))
def test_colours_of_several_classes_are_found_among_few_images(seed: int) -> None:
    """Ten classes in ten colours of three channels, 600 images a client."""
    source = torch.Generator().manual_seed(seed)
    palette = torch.rand(10, 3, generator=torch.Generator().manual_seed(5))
    total = zero_sums((colour_numbers(3),), 10, 1)
    for agree in (0.95, 0.85, 0.75, 0.65):
        y = torch.randint(10, (600,), generator=source)
        colour = torch.where(torch.rand(600, generator=source) < agree, y, torch.randint(10, (600,), generator=source))
        images = torch.rand(600, 1, 8, 8, generator=source) * palette[colour][..., None, None]
        own = client_sums("multiclass", 10, 1, colour_statistics(images), y, torch.zeros(600).long())
        total = {name: total[name] + own[name] for name in total}
    found = find_colours(total, 3)
    assert found.variation.source == "clients" and found.variation.directions and found.evened
    # What is left of a palette, each colour at the same brightness, tells no classes apart.
    left = palette.double() @ found.variation.glass(3)
    left = left / left.norm(dim=1, keepdim=True)
    assert len(found.variation.directions) < 2 or float((left - left[0]).abs().max()) < 1e-6


def test_a_context_of_few_samples_has_no_part() -> None:
    x, y, context = (part[0] for part in planted(rows=40).train)
    few = context.clone()
    few[:33], few[33:] = 0, 1  # seven samples in the second
    alone = client_sums("binary", 1, 2, x[:33], y[:33], few[:33])
    for name, leaf in client_sums("binary", 1, 2, x, y, few).items():
        assert torch.allclose(leaf, alone[name], rtol=1e-5, atol=1e-7), name


def test_padding_has_no_part() -> None:
    federation = planted(rows=(40, 60, 30, 20, 50))
    x, y, context = (part[3] for part in federation.train)
    real = context >= 0
    padded = client_sums("binary", 1, 2, x, y, context)
    alone = client_sums("binary", 1, 2, x[real], y[real], context[real])
    for name, leaf in padded.items():
        assert torch.allclose(leaf, alone[name], rtol=1e-5, atol=1e-7), name


def test_ranks_are_those_of_a_slow_count() -> None:
    values = torch.randint(0, 5, (30, 3), generator=torch.Generator().manual_seed(1)).float()
    real = torch.arange(30) % 4 > 0
    found = ranks(values, real)
    for column in range(3):
        own = values[real, column].tolist()
        slow = [(sum(v < w for v in own) + sum(v <= w for v in own)) / (2 * len(own)) for w in own]
        assert found[real, column].tolist() == pytest.approx(slow)
    assert not bool(found[~real].any()) and ranks(values, real & False).shape == values.shape


@pytest.mark.parametrize("seed", range(6))
def test_values_with_long_tails_and_a_rare_class_do_not_look_like_shortcuts(seed: int) -> None:
    """As in laboratory values and incomes: the rare class has nearly all of the large values."""
    source = torch.Generator().manual_seed(seed)
    total = zero_sums((4,), 1, 2)
    for _ in range(4):
        x = torch.randn(800, 4, generator=source).exp()
        y = (x[:, 0] + x[:, 1] + torch.randn(800, generator=source) > 5.0).float()
        own = client_sums("binary", 1, 2, ranks(x, y >= 0), y, torch.arange(800) % 2)
        total = {name: total[name] + own[name] for name in total}
    assert find_variation(total, images=False).source is None


@pytest.mark.parametrize("seed", range(4))
def test_sites_that_measure_in_other_units_do_not_look_like_shortcuts(seed: int) -> None:
    federation = planted(seed, shortcut="none", p_train=(0.9,) * 5, rows=600, personal=0.0)
    units = torch.randn(5, 1, federation.shape[0], generator=torch.Generator().manual_seed(seed)).exp()
    train = federation.train._replace(x=federation.train.x * units)
    assert found_in(dataclasses.replace(federation, train=train)).source is None


@pytest.mark.parametrize("seed", [21, 22, 23])
@pytest.mark.parametrize(
    ("settings", "columns"),
    [
        ({}, (6,)),
        ({"shortcut": "soft"}, (6,)),
        ({"shortcut": "two"}, (6, 7)),
        ({"shortcut": "categorical", "rows": 500}, (6, 7, 8, 9, 10, 11)),
        ({"echoes": 2, "useless": 8, "correlation": 0.4}, (12, 13, 14)),
        ({"p_train": ((0.9, 0.3),) * 5}, (6,)),
        ({"classes": 3, "rows": 400}, (6, 7, 8)),
        ({"classes": 1, "shortcut": "soft", "p_train": ((0.95, 0.6),) * 5}, (6,)),
        ({"shortcut": "none"}, ()),
        ({"shortcut": "none", "p_train": (0.9,) * 5, "rows": 600}, ()),  # weights differ between clients: style
        ({"p_train": (0.97, 0.9, 0.8, 0.7), "rows": 800}, (6,)),
    ],
    ids=["sharp", "soft", "two", "levels", "echoes", "reversed", "three classes", "number", "none", "style",
         "one context each"],
)  # fmt: skip
def test_planted_columns_are_found_and_no_others(
    settings: dict[str, object], columns: tuple[int, ...], seed: int
) -> None:
    found = found_in(planted(seed, **settings))
    assert found.columns == columns and not found.directions and not found.kept
    assert (found.source is None) == (not columns)


@pytest.mark.parametrize("settings", [{"p_train": ((0.9, 0.9),) * 5}, {"shortcut": "none"}], ids=["equal", "none"])
def test_where_nothing_varies_little_is_found(settings: dict[str, object]) -> None:
    """A shortcut of the same strength everywhere cannot be told from data. Chance is allowed its share."""
    assert sum(found_in(planted(seed, **settings)).source is not None for seed in range(40)) <= 4


@pytest.mark.parametrize("seed", range(4))
def test_what_differs_between_clients_alone_stays_and_is_named(seed: int) -> None:
    each = (0.95, 0.9, 0.8, 0.7, 0.6)
    alike = found_in(planted(seed, p_train=tuple((p, p) for p in each), rows=400))  # in both contexts of a client
    assert (alike.source, alike.compared, alike.columns, alike.style) == (None, "contexts", (), (6,))
    assert found_in(planted(seed, p_train=((0.8, 0.8),) * 5, rows=400)).style == ()


def test_what_is_kept_since_nothing_else_is_left_is_called_no_style() -> None:
    p_train = ((0.99, 0.9), (0.95, 0.8), (0.9, 0.7), (0.8, 0.6), (0.7, 0.5))
    found = found_in(planted(informative=1, useless=0, strength=1e-6, personal=0.0, p_train=p_train, rows=600))
    assert found.kept and found.style == ()


def test_what_differs_between_clients_and_is_leaned_on_a_little_is_named() -> None:
    """Columns 0 and 2 weigh more at some clients: a style of the made-up data."""
    found = found_in(planted(1, shortcut="none", p_train=(0.8,) * 5, rows=400))
    assert (found.source, found.compared, found.columns, found.style) == (None, "clients", (), (0, 2))


def test_a_shortcut_that_is_all_there_is_is_kept_and_said_to_be() -> None:
    found = found_in(planted(informative=1, useless=0, strength=1e-6, personal=0.0))
    assert found.source == "contexts" and found.kept and not found.columns


@pytest.mark.parametrize("seed", [21, 22])
def test_the_colour_of_digits_is_found_and_nothing_in_gray_ones(seed: int) -> None:
    settings = {"p_train": ((0.95, 0.8),) * 3, "train_per_client": 600, "test_per_client": 10}
    found = found_in(digit_federation("rc_mnist", DigitSettings(**settings), seed))  # type: ignore[arg-type]
    assert found.source == "contexts" and len(found.directions) == 1
    first, second = found.directions[0]
    assert first * second < 0 and 0.5 < abs(first / second) < 2
    gray = digit_federation("rc_mnist", DigitSettings(**settings, grayscale=True), seed)  # type: ignore[arg-type]
    assert found_in(gray).source is None


def test_many_columns_are_looked_at_one_by_one() -> None:
    found = found_in(planted(useless=150, rows=600))
    assert found.columns == (154,)


def test_answers_that_vary_are_found_at_their_earliest() -> None:
    federation = planted(rows=600)
    shortcut, label = federation.train.x[..., 6] > 0, federation.train.y > 0.5
    guess = torch.rand(label.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    steady = torch.where(torch.rand(label.shape, generator=torch.Generator().manual_seed(1)) < 0.8, label, ~label)
    columns = torch.stack([guess, shortcut, shortcut, steady], -1).float()
    answers = federation.train._replace(x=columns)
    data = Federation("answers", "binary", 1, 2, answers, {}, ())
    found = find_answer(sums_of(data), images=False)
    assert found is not None and found.place == 1
    still = Federation("answers", "binary", 1, 2, answers._replace(x=columns[..., [0, 3]]), {}, ())
    assert find_answer(sums_of(still), images=False) is None


@pytest.mark.parametrize("classes", [3, 5, 10])
def test_answers_of_several_classes_that_are_right_equally_often_do_not_vary(classes: int) -> None:
    """Over repetitions, the statistic is about its degrees of freedom, or below."""
    source, each = torch.Generator().manual_seed(classes), []
    for _ in range(40):
        total = zero_sums((1,), 1, 1)
        for _ in range(4):
            y, other = (torch.randint(low, classes, (400,), generator=source) for low in (0, 1))
            said = torch.where(torch.rand(400, generator=source) < 0.15, (y + other) % classes, y)
            x = torch.cat([(said == c).float()[:, None] for c in range(classes)])
            label = torch.cat([(y == c).float() for c in range(classes)])
            own = client_sums("binary", 1, 1, x, label, torch.zeros(len(x)).long())
            total = {name: total[name] + own[name] for name in total}
        found, noise = unscaled(total)
        squares = float(found["square"] - found["slope"].square() / found["weight"]) / float(noise)
        each.append(squares / 3 / one_by_one(classes))
    assert 0.5 < sum(each) / len(each) < 1.4


def test_chance() -> None:
    assert chance(3.841, 1) == pytest.approx(0.05, rel=1e-3)
    assert chance(18.307, 10) == pytest.approx(0.05, rel=1e-3)
    assert chance(5.0, 0) == 1
