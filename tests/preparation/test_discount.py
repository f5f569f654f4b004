"""Inferred contexts: the discount of the shortcut and even classes, against numbers counted by hand."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from perinvfl.algorithms import FedAvg
from perinvfl.core.seeding import generator
from perinvfl.data.federation import Federation, Split
from perinvfl.engine.simulation import Simulation
from perinvfl.learning import risks
from perinvfl.learning.shortcut import error, known, reference_answer, shortcut_log_odds, split_context
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings
from tests import reference
from tests.preparation.small_contexts import (
    EXECUTORS,
    LOOP,
    MODEL,
    infer,
    small,
    using,
)
from tests.prepared import prepared


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(-1, 3)), min_size=1, max_size=30),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_log_odds_of_the_shortcut_are_counted(samples: list[tuple[int, int]]) -> None:
    y, context = (torch.tensor(column) for column in zip(*samples, strict=True))
    real = [(float(label), number) for label, number in samples if number >= 0]
    expected = reference.log_odds_of_answers([label for label, _ in real], [number for _, number in real])
    got = shortcut_log_odds(y.double(), context)
    assert got[:, 0].tolist() == pytest.approx([expected[0], expected[1]], abs=1e-9)
    for label, number, said in zip(y.tolist(), context.tolist(), reference_answer(y, context).tolist(), strict=True):
        assert number < 0 or said == (label if number % 2 == 0 else 1 - label)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 5)), min_size=1, max_size=30))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_log_odds_of_several_classes_are_counted(samples: list[tuple[int, int]]) -> None:
    y, context = (torch.tensor(column) for column in zip(*samples, strict=True))
    real = [(label, (label + number) % 3) for label, number in samples if number >= 0]
    got = shortcut_log_odds(y, context, 3).double().log_softmax(1)
    for said in range(3):
        counts = [1 + sum(pair == (label, said) for pair in real) for label in range(3)]
        priors = [1 + sum(label == own for own, _ in real) for label in range(3)]
        shares = [count / prior for count, prior in zip(counts, priors, strict=True)]
        expected = [math.log(share / sum(shares)) for share in shares]
        assert got[said].tolist() == pytest.approx(expected, abs=1e-5)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 7)), min_size=1, max_size=30))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_log_odds_of_more_answers_than_classes_are_counted(samples: list[tuple[int, int]]) -> None:
    y, said = (torch.tensor(column) for column in zip(*samples, strict=True))
    context = split_context(torch.zeros_like(y), error(said, y, 8), 8)
    assert torch.equal(reference_answer(y, context, 8), said)
    got = shortcut_log_odds(y.double(), context, answers=8)
    share = (int(y.sum()) + 1) / (len(samples) + 2)
    for answer in range(8):
        ones, zeros = (sum(pair == (label, answer) for pair in samples) for label in (1, 0))
        odds = (ones + 2 * share) / (zeros + 2 * (1 - share))
        before = (int(y.sum()) + 2 * share) / (len(samples) - int(y.sum()) + 2 * (1 - share))
        assert float(got[answer]) == pytest.approx(math.log(odds / before), abs=1e-9)


@pytest.mark.parametrize("answers", [2, 8])
def test_answers_that_are_all_alike_say_nothing_to_the_last_bit(answers: int) -> None:
    y = (torch.rand(50, generator=generator(0, "labels")) < 0.2).float()
    context = split_context(torch.zeros(50, dtype=torch.long), error(torch.zeros(50).long(), y, answers), answers)
    offset = known(y, context, True, False, 2, answers).offset(y, context)
    assert offset is not None and offset.abs().max() == 0


def test_several_classes_of_which_there_are_two_are_as_a_binary_label() -> None:
    source = generator(0, "two classes")
    y, said = torch.randint(2, (2, 40), generator=source)
    z = torch.randn(40, 1, generator=source)
    context = split_context(torch.zeros_like(y), error(said, y, 2))
    offset = known(y.float(), context, True, True).offset(y.float(), context)
    assert offset is not None
    binary = risks.losses("binary", z + offset, y.float())
    counts = [[1.0 + int(((y == c) & (said == a)).sum()) for c in (0, 1)] for a in (0, 1)]
    table = torch.tensor(counts).log()
    both = torch.cat([torch.zeros_like(z), z], 1) + table[said]
    torch.testing.assert_close(binary, risks.losses("multiclass", both, y))


def planted(agree: list[float], samples: int, purpose: str) -> Split:
    """y in four weak features, and in a strong one that agrees with y so often; independent of each other given y."""
    source = generator(0, "planted", purpose)
    clients = len(agree)
    y = (torch.rand(clients, samples, generator=source) < 0.5).float()
    weak = 0.2 * torch.randn(clients, samples, 4, generator=source) + 0.1 * (2 * y - 1)[..., None]
    same = torch.rand(clients, samples, generator=source) < torch.tensor(agree)[:, None]
    strong = 4 * (2 * torch.where(same, y, 1 - y) - 1)
    return Split(torch.cat([weak, strong[..., None]], -1), y, torch.zeros(clients, samples, dtype=torch.int64))


def three(agree: list[float], samples: int, purpose: str) -> Split:
    """One of three classes in six weak features, and in three strong ones that agree with it so often."""
    source = generator(0, "three", purpose)
    y = torch.randint(3, (len(agree), samples), generator=source)
    weak = 0.2 * torch.randn(len(agree), samples, 6, generator=source)
    weak = weak + 0.2 * torch.nn.functional.one_hot(y, 3).repeat(1, 1, 2)
    same = torch.rand(y.shape, generator=source) < torch.tensor(agree)[:, None]
    said = torch.where(same, y, (y + torch.randint(1, 3, y.shape, generator=source)) % 3)
    strong = 4 * torch.nn.functional.one_hot(said, 3).float()
    return Split(torch.cat([weak, strong], -1), y, torch.zeros_like(y))


def test_the_discount_of_several_classes() -> None:
    tests = {"reversed": three([0.05] * 3, 600, "reversed")}
    federation = Federation("three", "multiclass", 3, 1, three([0.95] * 3, 600, "train"), tests, ("reversed",))
    wide = ModelSettings(hidden=(8,))
    discounted = prepared(federation, 0, using("discount", reference_rounds=25), wide, LOOP)
    scores = {}
    for executor in EXECUTORS:
        training = Training(executor=executor, device="cpu")  # type: ignore[arg-type]
        for name, data in (("plain", federation), ("discounted", discounted)):
            algorithm = FedAvg(learning_rate=1.0, server_optimizer="adam", server_learning_rate=0.01)
            simulation = Simulation([algorithm], [data], [0], training, wide)
            for _ in range(100):
                simulation.round()
            scores[name] = simulation.evaluate()["global"]["reversed"][0]
        assert (scores["plain"] < 0.3).all()
        assert (scores["discounted"] > 0.5).all()


def test_the_discount_leaves_what_the_shortcut_does_not_tell() -> None:
    tests = {"reversed": planted([0.1, 0.1, 0.1], 500, "reversed"), "as trained": planted([0.9, 0.9, 0.5], 500, "same")}
    train_on = planted([0.95, 0.95, 0.5], 400, "train")  # the last client has no shortcut
    federation = Federation("planted", "binary", 1, 1, train_on, tests, ("reversed",))
    wide = ModelSettings(hidden=(8,))
    how = using("discount", reference_rounds=25)
    discounted = prepared(federation, 0, how, wide, LOOP)
    odds = torch.stack([shortcut_log_odds(y, c) for _, y, c in zip(*discounted.train, strict=True)])
    assert odds[2].abs().max() < 0.2  # nothing to take off there
    assert (odds[:2, 0] < -1.5).all() and (odds[:2, 1] > 1.5).all()
    scores = {}
    for name, data in (("plain", federation), ("discounted", discounted)):
        algorithm = FedAvg(learning_rate=1.0, server_optimizer="adam", server_learning_rate=0.01)
        simulation = Simulation([algorithm], [data], [0], LOOP, wide)
        for _ in range(100):
            simulation.round()
        scores[name] = {case: row[0] for case, row in simulation.evaluate()["global"].items()}
    assert (scores["plain"]["reversed"] < 0.5).all()
    assert (scores["discounted"]["reversed"] > 0.75).all()
    assert scores["discounted"]["as trained"][2] >= scores["plain"]["as trained"][2]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("use", ["judge", "balance", "discount"])
def test_even_classes_take_the_class_shares_off(use: Any, executor: str) -> None:
    """What the objective sees is the logit plus the log-odds of the classes at this client, counted by hand."""
    federation = infer(small(), using(use, even_classes=True))
    simulation = Simulation([FedAvg()], [federation], [7], Training(executor=executor, device="cpu"), MODEL)  # type: ignore[arg-type]
    for i in range(federation.clients):
        data = Split(*(part[i] for part in federation.train))
        y = [label for label, number in zip(data.y.tolist(), data.context.tolist(), strict=True) if number >= 0]
        shares = math.log((sum(y) + 1) / (len(y) - sum(y) + 1))
        plain = dataclasses.replace(simulation.problem, even_classes=False).batches(data, None)[0].offset
        offset = simulation.problem.batches(data, None)[0].offset
        assert offset is not None and (plain is not None) == (use == "discount")
        expected = shares + (torch.zeros(len(offset), 1) if plain is None else plain)
        torch.testing.assert_close(offset, expected)


def test_a_rare_class_counts_with_even_classes() -> None:
    """One informative feature and one class in ten: a plain model says "common" of all that is unclear."""
    source = generator(0, "rare")
    y = (torch.rand(3, 2000, generator=source) < 0.1).float()
    x = torch.randn(3, 2000, 1, generator=source) + (2 * y - 1)[..., None] / 2
    train_on = Split(x, y, torch.zeros(3, 2000, dtype=torch.int64))
    federation = Federation("rare", "binary", 1, 1, train_on, {"same": train_on}, ("same",))
    found = {}
    for even in (False, True):
        data = prepared(federation, 0, using("judge", even_classes=even), ModelSettings(hidden=()), LOOP)
        algorithm = FedAvg(learning_rate=1.0, server_optimizer="adam", server_learning_rate=0.05)
        simulation = Simulation([algorithm], [data], [0], LOOP, ModelSettings(hidden=()))
        for _ in range(200):
            simulation.round()
        logits = simulation.executor.predict(simulation.models_of("global", simulation.everyone), x[None])[0, ..., 0]
        found[even] = float((logits[y > 0.5] > 0).float().mean())
    assert found[False] < 0.2 and found[True] == pytest.approx(0.69, abs=0.05)  # P(N(1/2, 1) > 0)


def test_held_out_data_is_sorted_by_class_too_where_classes_count_alike() -> None:
    plain, even = (infer(small(), using("judge", even_classes=even)).inferred for even in (False, True))
    assert list(even) == [f"validation {side}, class {c}" for side in ("right", "wrong") for c in (0, 1)]
    for data in (plain, even):
        there = torch.stack([split.context >= 0 for split in data.values()])
        held_out = small().validation
        assert held_out is not None
        assert torch.equal(there.sum(0), (held_out.context >= 0).long())  # each sample once, padding never
    for name, split in even.items():
        assert set(split.y[split.context >= 0].tolist()) <= {float(name[-1])}
    assert any((split.context >= 0).any() for name, split in even.items() if "wrong" in name)
