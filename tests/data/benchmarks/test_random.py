from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from perinvfl.core.config import build
from perinvfl.data.benchmarks.random import RandomSettings, random_federation
from perinvfl.data.federation import Split
from perinvfl.data.registry import BENCHMARKS, build_federation
from perinvfl.errors import UserError


@st.composite
def choices(draw: st.DrawFn) -> dict[str, Any]:
    task = draw(st.sampled_from(["binary", "multiclass", "regression"]))
    contexts = draw(st.integers(1, 4))
    return {
        "task": task,
        "outputs": draw(st.integers(2, 5)) if task == "multiclass" else 1,
        "clients": draw(st.integers(1, 6)),
        "contexts": contexts,
        "samples": draw(st.integers(2 * contexts, 20)),
        "shape": tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))),
        "tests": tuple(draw(st.lists(st.text(min_size=1), min_size=1, max_size=3, unique=True))),
        "uneven": draw(st.booleans()),
        "holdout": draw(st.integers(0, 5)),
        "seed": draw(st.integers(0, 2**40)),
    }


@settings(max_examples=100, deadline=None)
@given(choices())
def test_every_shape_is_a_sound_federation(asked: dict[str, Any]) -> None:
    federation = random_federation(**asked)
    n, m = asked["clients"], asked["samples"]
    assert federation.train.x.shape == (n, m, *asked["shape"])
    assert federation.shape == asked["shape"]
    assert federation.spectrum == tuple(federation.tests) == asked["tests"]
    assert max(federation.contexts_per_client) == federation.contexts == asked["contexts"]
    assert federation.notes["sizes"] == federation.sizes.tolist()
    assert federation.notes["contexts"] == federation.contexts_per_client
    assert int(federation.sizes.max()) == m
    assert int(federation.sizes.min()) * 2 >= m
    assert (federation.validation is not None) == (asked["holdout"] > 0)
    splits = [federation.train, *federation.tests.values(), *filter(None, [federation.validation])]
    for split in splits:
        padding = split.context < 0
        assert split.context.dtype == torch.int64
        assert split.y.dtype == (torch.int64 if asked["task"] == "multiclass" else torch.float32)
        assert split.y.shape == split.context.shape == split.x.shape[:2]
        assert not bool(split.x[padding].any())
        assert not bool(split.y[padding].any())
        assert bool((~padding).any(1).all())
        if asked["task"] == "multiclass":
            assert bool(((split.y >= 0) & (split.y < asked["outputs"])).all())
    if not asked["uneven"]:
        assert federation.sizes.tolist() == [m] * n
        assert federation.contexts_per_client == [asked["contexts"]] * n
    elif n > 1 and asked["contexts"] > 1:
        assert len(set(federation.contexts_per_client)) > 1


def test_uneven_sizes_are_padded() -> None:
    federation = random_federation(clients=3, contexts=2, samples=10, shape=(4,))
    assert federation.sizes.tolist() == [10, 9, 7]
    assert federation.contexts_per_client == [2, 1, 2]
    assert (federation.train.context < 0).sum(1).tolist() == [0, 1, 3]


def real(split: Split) -> tuple[torch.Tensor, torch.Tensor]:
    there = split.context >= 0
    return split.x.flatten(2)[there], split.y[there]


@pytest.mark.parametrize(("task", "outputs"), [("binary", 1), ("multiclass", 3), ("regression", 1)])
def test_a_linear_rule_learned_on_training_data_holds_in_the_tests(task: Any, outputs: int) -> None:
    federation = random_federation(samples=400, shape=(2, 3), task=task, outputs=outputs, seed=1)
    x, y = real(federation.train)
    target = torch.nn.functional.one_hot(y, outputs).float() if task == "multiclass" else y[:, None]
    centre = 0.5 if task == "binary" else 0.0
    weights = torch.linalg.lstsq(x, target - centre).solution
    x, y = real(federation.tests["0.5"])
    score = x @ weights
    if task == "regression":
        assert torch.allclose(score[:, 0], y, atol=1e-4)
        assert float(y.std()) > 0.1
    else:
        guess = score.argmax(1) if task == "multiclass" else (score[:, 0] > 0).float()
        assert float((guess == y).float().mean()) > 0.9
        assert float((y == y.mode().values).float().mean()) < 0.7  # both or all classes occur


def test_seed_and_purpose() -> None:
    one, same, other = (random_federation(seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.train.x, same.train.x)
    assert not torch.equal(one.train.x, other.train.x)
    assert not torch.equal(one.tests["0.1"].x, one.tests["0.5"].x)
    assert torch.equal(one.train.x, random_federation(tests=("a",), holdout=3).train.x)


def test_named_in_a_file() -> None:
    mapping = {"shape": [2, 8, 8], "task": "multiclass", "outputs": 3, "clients": 2}
    settings: Any = build(BENCHMARKS["random"].settings, mapping, "data")
    federation = build_federation("random", settings, 5)
    expected = random_federation(clients=2, shape=(2, 8, 8), task="multiclass", outputs=3, seed=5)
    assert torch.equal(federation.train.x, expected.train.x)
    assert torch.equal(federation.train.y, expected.train.y)


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        ({"task": "multiclass"}, "data.outputs = 1: must be at least 2"),
        ({"outputs": 2}, "data.outputs = 2: must be 1 for a binary task"),
        ({"task": "ranking"}, "data.task"),
        ({"shape": []}, "data.shape is empty"),
        ({"shape": [0]}, "data.shape"),
        ({"tests": []}, "data.tests"),
        ({"tests": ["a", "a"]}, "data.tests"),
        ({"samples": 3}, "data.samples = 3: must be at least twice contexts = 2"),
    ],
)
def test_mistakes_are_named(mapping: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        build(RandomSettings, mapping, "data")
