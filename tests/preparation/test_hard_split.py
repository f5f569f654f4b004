"""Inferred contexts: the hard split is where the plain reference model errs."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from perinvfl.learning.shortcut import (
    answers,
    given_context,
    split_context,
)
from perinvfl.preparation.inferred_contexts import RIGHT, WRONG
from tests.preparation.small_contexts import (
    HARD,
    errs,
    infer,
    slow_reference,
    small,
    using,
)


@pytest.mark.parametrize("cooling", [False, True])
@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_the_hard_split_is_where_the_reference_model_errs(task: Any, cooling: bool) -> None:
    federation = small(task=task, outputs=3 if task == "multiclass" else 1)
    how = dataclasses.replace(HARD, reference_cooling=cooling)
    inferred, run = infer(federation, how), slow_reference(federation, how)
    assert inferred.contexts == 4 and inferred.split == "balance"
    shares = []
    for i in range(federation.clients):
        x, y, before = (part[i] for part in federation.train)
        logits = run.nu(x.double()).tolist()
        expected, wrong = [], 0
        for row, label, own in zip(logits, y.tolist(), before.tolist(), strict=True):
            mistaken = errs(task, row, label)
            expected.append(-1 if own < 0 else 2 * own + mistaken)
            wrong += mistaken and own >= 0
        assert inferred.train.context[i].tolist() == expected
        shares.append(wrong / int(federation.sizes[i]))
    assert 0 < sum(shares) < len(shares)  # both kinds are there
    assert inferred.notes["reference"] == {"wrong": pytest.approx(shares, abs=1e-4)}


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_held_out_data_is_sorted_by_the_same_model_and_none_is_lost(task: Any) -> None:
    federation = small(task=task, outputs=3 if task == "multiclass" else 1)
    inferred, run = infer(federation, using("judge")), slow_reference(federation)
    assert federation.validation is not None
    right, wrong = inferred.inferred[RIGHT], inferred.inferred[WRONG]
    assert right.x is federation.validation.x and wrong.x is federation.validation.x
    for i in range(federation.clients):
        x, y, context = (part[i] for part in federation.validation)
        for place, row in enumerate(run.nu(x.double()).tolist()):
            mistaken, own = errs(task, row, float(y[place])), int(context[place])
            assert int(wrong.context[i, place]) == (own if mistaken else -1)
            assert int(right.context[i, place]) == (-1 if mistaken else own)


def test_answers_take_any_leading_axes() -> None:
    logits = torch.tensor([[[2.0], [-1.0]], [[0.0], [3.0]]])
    assert answers("binary", logits).tolist() == [[1, 0], [0, 1]]
    classes = torch.tensor([[[0.0, 2.0, 1.0]], [[5.0, 2.0, 1.0]]])
    assert answers("multiclass", classes).tolist() == [[1], [0]]


@given(st.lists(st.tuples(st.integers(-1, 5), st.booleans()), min_size=1, max_size=20))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_split_context_gives_back_what_it_was_split_from(samples: list[tuple[int, bool]]) -> None:
    before, wrong = (torch.tensor(column) for column in zip(*samples, strict=True))
    split = split_context(before, wrong)
    assert split.dtype == torch.int64
    assert given_context(split).tolist() == before.tolist()
    for now, (was, mistaken) in zip(split.tolist(), samples, strict=True):
        assert now == -1 if was < 0 else (now % 2 == 1) == mistaken
    assert split_context(given_context(split), wrong).tolist() == split.tolist()  # inferring again changes no number
