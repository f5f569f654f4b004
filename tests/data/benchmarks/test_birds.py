"""The law by which birds and backgrounds are dealt out, and the federation made of it."""

import dataclasses

import pytest
import torch
from torch import Tensor

from perinvfl.data.benchmarks.birds import LAND, WATER, BirdSettings, Flock, Plan, bird_federation, draw_plan, own_side
from perinvfl.data.benchmarks.drawn import DrawnSettings, drawn_federation, drawn_pictures
from perinvfl.errors import UserError

SETTINGS = BirdSettings(train_per_client=40, test_per_client=20)


def flock(birds: int = 100, backgrounds: tuple[int, int] = (300, 300), clients: int = 4) -> Flock:
    return Flock([torch.arange(birds).lt(30 - 5 * i).long() for i in range(clients)], backgrounds)


def test_exactly_the_share_of_each_class_stands_on_its_own_side() -> None:
    plan = draw_plan(SETTINGS, 0, flock(), "test")
    for client, p in enumerate(SETTINGS.p_train):
        assert_shares(plan, plan.train[client], p)
    for p in SETTINGS.p_test:
        for suffix, birds in (("", 20), (" left over", 40)):
            for client in range(4):
                rows = plan.tests[client][plan.cases[f"{p:g}{suffix}"][client]]
                assert len(plan.pictures[rows, 1].unique()) == len(rows) == birds
                assert_shares(plan, rows, p)


def assert_shares(plan: Plan, rows: Tensor, p: float) -> None:
    for y in (LAND, WATER):
        sides = plan.pictures[rows, 2][plan.y[rows] == y]
        assert int((sides == y).sum()) == own_side(p, len(sides))


def test_no_bird_and_no_background_is_where_it_must_not_be() -> None:
    plan = draw_plan(SETTINGS, 0, flock(), "test")
    trained = {tuple(row) for row in plan.pictures[plan.train.flatten()][:, 2:].tolist()}
    assert len(trained) == plan.train.numel()  # each background once in training, over all clients
    for client in range(4):
        own = plan.tests[client][plan.tests[client] >= 0]
        assert plan.pictures[own, 0].unique().tolist() == [client]
        tested = [tuple(row) for row in plan.pictures[own][:, 2:].tolist()]
        assert len(set(tested)) == len(tested) and not trained & set(tested)
        birds = set(plan.pictures[plan.train[client], 1].tolist())
        few = set(plan.pictures[plan.tests[client][plan.cases["0.1"][client]], 1].tolist())
        rest = set(plan.pictures[plan.tests[client][plan.cases["0.1 left over"][client]], 1].tolist())
        assert not birds & few and not birds & rest and not few & rest
        assert len(birds | few | rest) == 100


def test_test_contexts_differ_by_background_alone() -> None:
    plan = draw_plan(SETTINGS, 0, flock(), "test")
    for client in range(4):
        own = {
            p: {int(bird) for bird, side, y in zip(*pictures(plan, client, f"{p:g}"), strict=True) if side == y}
            for p in SETTINGS.p_test
        }
        for smaller, larger in zip(SETTINGS.p_test, SETTINGS.p_test[1:], strict=False):
            assert own[smaller] <= own[larger]
        birds = {frozenset(pictures(plan, client, f"{p:g}")[0].tolist()) for p in SETTINGS.p_test}
        assert len(birds) == 1


def pictures(plan: Plan, client: int, case: str) -> tuple[Tensor, Tensor, Tensor]:
    rows = plan.tests[client][plan.cases[case][client]]
    return plan.pictures[rows, 1], plan.pictures[rows, 2], plan.y[rows]


def test_seeds_change_the_draw_and_nothing_else_does() -> None:
    one, same, other = (draw_plan(SETTINGS, seed, flock(), "test") for seed in (0, 0, 1))
    assert torch.equal(one.pictures, same.pictures)
    assert not torch.equal(one.pictures, other.pictures)
    fewer = draw_plan(dataclasses.replace(SETTINGS, left_over=0), 0, flock(), "test")
    assert torch.equal(fewer.pictures[fewer.train], one.pictures[one.train])
    assert list(fewer.cases) == ["0.1", "0.2", "0.3", "0.4", "0.5"]
    for client in range(4):  # leaving birds out changes neither the test birds nor what they stand before
        rows, all_rows = fewer.tests[client], one.tests[client]
        assert torch.equal(
            fewer.pictures[rows[fewer.cases["0.3"][client]]], one.pictures[all_rows[one.cases["0.3"][client]]]
        )


def test_too_few_is_said_with_numbers() -> None:
    with pytest.raises(UserError, match=r"client 0 has 55 birds .* test_per_client = 60: 5 are missing"):
        draw_plan(SETTINGS, 0, flock(birds=55), "test")
    plan = draw_plan(SETTINGS, 0, flock(), "test")
    land, water = (int((plan.pictures[plan.train, 2] == side).sum()) for side in (LAND, WATER))
    sentence = f"training needs {land} photographs of land and {land - 5} are there: 5 are missing"
    with pytest.raises(UserError, match=sentence):
        draw_plan(SETTINGS, 0, flock(backgrounds=(land - 5, 300)), "test")
    first = [
        row
        for row in plan.tests[0].tolist()
        if any(plan.cases[f"{p:g}"][0][plan.tests[0] == row] for p in SETTINGS.p_test)
    ]
    needed = int((plan.pictures[first, 2] == WATER).sum())
    sentence = f"the test of client 0 needs {needed} photographs of water and 3 are there: {needed - 3} are missing"
    with pytest.raises(UserError, match=sentence):
        draw_plan(SETTINGS, 0, flock(backgrounds=(300, water + 3)), "test")


def test_birds_left_over_are_as_many_as_find_backgrounds() -> None:
    plan = draw_plan(SETTINGS, 0, flock(backgrounds=(300, 80)), "test")
    tested = plan.cases["0.1 left over"].sum(1).tolist()
    assert all(0 < count < 40 for count in tested)
    more = draw_plan(SETTINGS, 0, flock(backgrounds=(300, 84)), "test").cases["0.1 left over"].sum(1).tolist()
    assert all(a > b for a, b in zip(more, tested, strict=True))


def test_the_federation_shows_what_was_planned() -> None:
    settings = DrawnSettings(holdout=10)
    plan, images = drawn_pictures(settings, 3)
    federation = drawn_federation(settings, 3)
    assert federation.train.x.shape == (4, 50, 3, 32, 32) and federation.train.x.dtype == torch.uint8
    assert torch.equal(federation.train.x[1], images[plan.train[1, 10:]])
    assert federation.validation is not None
    assert torch.equal(federation.validation.x[2], images[plan.train[2, :10]])
    assert federation.spectrum == ("0.1", "0.2", "0.3", "0.4", "0.5")
    assert len({id(split.x) for split in federation.tests.values()}) == 1
    case = federation.tests["0.2 left over"]
    real = case.context[3] >= 0
    assert torch.equal(case.x[3][real], images[plan.tests[3][plan.cases["0.2 left over"][3]]])
    counts = federation.notes["groups"]["counts"]["0.2 left over"][3]  # type: ignore[index]
    assert sum(counts) == int(real.sum()) and counts[1] == int((real & (case.y[3] == 0) & (case.context[3] == 1)).sum())


def test_balanced_sampling_shows_both_classes_equally_often() -> None:
    natural, balanced = (drawn_federation(DrawnSettings(sampling=kind), 0) for kind in ("natural", "balanced"))
    assert natural.train.y.mean() < 0.4
    for client in range(4):
        real = balanced.train.context[client] >= 0
        assert balanced.train.y[client][real].mean() == 0.5
        shown = {image.numpy().tobytes() for image in balanced.train.x[client][real]}
        assert shown == {image.numpy().tobytes() for image in natural.train.x[client]}


def test_a_client_left_out_is_what_the_others_are_tested_on() -> None:
    whole, without = (drawn_federation(DrawnSettings(leave_out=out), 0) for out in (-1, 2))
    assert without.clients == 3 and without.spectrum == ("left-out",)
    assert torch.equal(without.train.x, whole.train.x[[0, 1, 3]])
    assert torch.equal(without.tests["left-out"].x[0], whole.train.x[2])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"p_test": (0.1, 0.1)}, "p_test"),
        ({"p_train": ()}, "p_train is empty"),
        ({"holdout": 40}, "holdout = 40"),
        ({"leave_out": 4}, "leave_out = 4"),
        ({"crop": 32}, "crop = 32"),
    ],
)
def test_settings_that_cannot_be(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        dataclasses.replace(SETTINGS, **change).check("data")  # type: ignore[arg-type]


def test_drawn_birds_can_be_told_apart_by_shape_and_not_by_plumage() -> None:
    """The same bird before two backgrounds differs where the background is, and not where the bird is."""
    plan, images = drawn_pictures(DrawnSettings(), 0)
    client, bird = 0, int(plan.pictures[plan.tests[0][0], 1])
    rows = [row for row in range(len(plan.pictures)) if plan.pictures[row, :2].tolist() == [client, bird]]
    pair = next(
        (a, b)
        for a in plan.tests[0].tolist()
        for b in plan.tests[0].tolist()
        if a < b and b >= 0 and plan.pictures[a, 1] == plan.pictures[b, 1]
    )
    same = (images[pair[0]] == images[pair[1]]).all(0)
    assert rows and 0.02 < same.float().mean() < 0.5


def test_federation_of_a_plan_needs_no_left_over_birds() -> None:
    settings = DrawnSettings(left_over=0)
    plan, images = drawn_pictures(settings, 0)
    federation = bird_federation("x", settings, plan, images, {})
    assert list(federation.tests) == list(federation.spectrum)
