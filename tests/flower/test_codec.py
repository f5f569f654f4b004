"""What travels comes out as it went in, and what cannot be true is refused by name."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from perinvfl.algorithms.base import Upload
from perinvfl.core.tree import EMPTY, Params
from perinvfl.flower import codec, limits
from perinvfl.flower.adapter.messages import (
    Array,
    ArrayRecord,
    ConfigRecord,
    MetricRecord,
    RecordDict,
    serialized_copy,
)
from perinvfl.flower.assignment import Assignment
from perinvfl.flower.codec import Rejected

NU: Params = {"0.weight": torch.randn(3, 4), "0.bias": torch.randn(3), "1.weight": torch.randn(1, 3)}
ASKED = Assignment("run", {"seed": 0, "data": {"p": [0.1, [0.2]]}}, 2, 4, 3, 1, 7, 15, 11, 0.1 + 0.2, (1.5, 2.0))


def upload() -> Upload:
    return Upload({name: torch.randn_like(leaf) for name, leaf in NU.items()}, torch.tensor(0.1))


def test_there_and_back() -> None:
    assignment, nu, task = codec.decode_assignment(
        serialized_copy(codec.encode_assignments({2: ASKED}, NU, {"tell_samples": True})[2])
    )
    assert assignment == ASKED and task["tell_samples"] is True
    assert list(nu) == list(NU) and all(torch.equal(nu[name], NU[name]) for name in NU)
    sent = upload()
    got, rest = codec.decode_upload(
        serialized_copy(codec.encode_upload(sent, True, 12)), NU, largest=1e6, asked_for={"risk", "samples"}
    )
    assert all(torch.equal(got.update[name], sent.update[name]) for name in NU)
    assert torch.equal(got.risk, sent.risk) and rest == {"samples": 12}
    quiet, _ = codec.decode_upload(codec.encode_upload(sent, False, None), NU, 1e6, set())
    assert math.isnan(quiet.risk)


CONTROL: Params = {"0.bias": torch.randn(3), "share": torch.tensor(0.5)}


def test_what_travels_beside_the_model_there_and_back() -> None:
    content = serialized_copy(codec.encode_assignments({2: ASKED}, NU, {}, CONTROL)[2])
    assert list(codec.decode_assignment(content)[1]) == list(NU)
    got = codec.decode_control(content)
    assert list(got) == list(CONTROL) and all(torch.equal(got[name], CONTROL[name]) for name in CONTROL)
    assert codec.decode_control(codec.encode_assignments({2: ASKED}, NU, {})[2]) == {}
    sent = codec.encode_upload(upload()._replace(control=CONTROL), True, None)
    assert codec.size(sent) == 4 * (18 + 4)
    back, _ = codec.decode_upload(serialized_copy(sent), NU, 1e6, {"risk"}, CONTROL)
    assert all(torch.equal(back.control[name], CONTROL[name]) for name in CONTROL)


@pytest.mark.parametrize(
    ("sent", "expected", "says"),
    [
        (CONTROL, EMPTY, "the parts update, control, numbers instead of update, numbers"),
        (EMPTY, CONTROL, "the parts update, numbers instead of update, control, numbers"),
        (CONTROL, {"share": torch.zeros(())}, r"shape \[4\] instead of \[1\]"),
        ({"share": torch.tensor(math.nan)}, {"share": torch.zeros(())}, "NaN"),
        ({"share": torch.tensor(1e30)}, {"share": torch.zeros(())}, "norm"),
    ],
)
def test_what_was_not_asked_for_beside_the_update_is_refused(sent: Params, expected: Params, says: str) -> None:
    content = codec.encode_upload(upload()._replace(control=sent), True, None)
    with pytest.raises(Rejected, match=says):
        codec.decode_upload(serialized_copy(content), NU, 1e6, {"risk"}, expected)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_every_finite_number_survives(numbers: list[float]) -> None:
    nu = {"w": torch.tensor(numbers)}
    assert torch.equal(codec.decode_params(codec.encode_params(nu), nu)["w"], nu["w"])


def test_an_upload_is_as_large_as_the_model() -> None:
    nu = {"w": torch.zeros(400, 400)}
    content = codec.encode_upload(Upload(nu, torch.tensor(0.0)), True, None)
    assert codec.size(content) == 4 * 400 * 400


def spoiled(flat: torch.Tensor, dtype: str = "float32", shape: tuple[int, ...] | None = None) -> RecordDict:
    content = codec.encode_upload(upload(), True, None)
    array = Array(dtype, shape or (flat.numel(),), codec.RAW, flat.numpy().tobytes())
    content[codec.UPDATE] = ArrayRecord({codec.FLAT: array})
    return content


def with_part(name: str, record: ArrayRecord | MetricRecord | ConfigRecord) -> RecordDict:
    content = codec.encode_upload(upload(), True, None)
    content[name] = record
    return content


FINE = torch.zeros(18)
BAD = {
    "NaN": spoiled(torch.full((18,), math.nan)),
    "infinite": spoiled(torch.full((18,), -math.inf)),
    "norm": spoiled(torch.full((18,), 1e30)),
    r"shape \[36\]": spoiled(torch.zeros(36)),
    r"shape \[3, 6\]": spoiled(FINE, shape=(3, 6)),
    "8 bytes for 18": spoiled(torch.zeros(2), shape=(18,)),
    "type float64": spoiled(FINE.double(), dtype="float64"),
    "the arrays other": with_part(codec.UPDATE, ArrayRecord({"other": Array("float32", (0,), codec.RAW, b"")})),
    "the parts update, numbers, more": with_part("more", MetricRecord({"x": 1})),
    "the parts none": RecordDict(),
    "does not report": with_part(codec.NUMBERS, MetricRecord({})),
    "NaN or infinite": with_part(codec.NUMBERS, MetricRecord({"risk": math.nan})),
    "a risk that is NaN": with_part(codec.NUMBERS, MetricRecord({"risk": [1.0, 2.0]})),
    "has the parts": with_part(codec.UPDATE, ConfigRecord({"x": "y"})),
}


@pytest.mark.parametrize("says", BAD)
def test_what_cannot_be_true_is_refused_by_name(says: str) -> None:
    with pytest.raises(Rejected, match=says):
        codec.decode_upload(serialized_copy(BAD[says]), NU, largest=1e6, asked_for={"risk"})


def test_samples_that_cannot_be() -> None:
    for samples in (0, -5, 2**63 - 1):
        with pytest.raises(Rejected, match="samples"):
            codec.decode_upload(codec.encode_upload(upload(), True, samples), NU, 1e6, {"risk", "samples"})


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({codec.TASK: ConfigRecord({"assignment": "{", "layout": "{}"})}),
        RecordDict({codec.TASK: ConfigRecord({"assignment": '{"run": 1}', "layout": "{}"})}),
        RecordDict({codec.TASK: ConfigRecord({"layout": "{}"})}),
    ],
)
def test_what_is_no_assignment(content: RecordDict) -> None:
    with pytest.raises(Rejected, match="is not an assignment"):
        codec.decode_assignment(content)


def test_a_site_refuses_a_model_that_is_not_finite() -> None:
    broken = NU | {"0.bias": torch.full((3,), math.nan)}
    with pytest.raises(Rejected, match="NaN"):
        codec.decode_assignment(codec.encode_assignments({2: replace(ASKED)}, broken, {})[2])


def test_scores() -> None:
    good = codec.encode_table({"personal": {"0.1": 0.5}, "global": {"0.1": 1}})
    assert codec.decode_scores(good, ["personal", "global"], ["0.1"], {}, 1.0)["personal"] == {"0.1": 0.5}
    bad: list[dict[str, Any]] = [{}, {"personal": 3}, {"personal": {"0.2": 1}}]
    for score in ("x", -1, True, None, math.inf, -math.inf, 1e15, 1.5, 10**400):
        bad.append({"personal": {"0.1": score}})
    for table in bad:
        with pytest.raises(Rejected):
            codec.decode_scores(codec.encode_table(table), ["personal"], ["0.1"], {}, 1.0)
    error = codec.encode_table({"global": {"a": 1e15}})
    with pytest.raises(Rejected, match=r"has 1000000000000000\.0 as the score of a"):
        codec.decode_scores(error, ["global"], ["a"], {}, codec.largest_score("regression"))
    grouped = {"personal": {"0.1": 0.5}, "personal groups": {"0.1": [3, 0, 2, 1]}}
    there: dict[str, list[float]] = {"0.1": [3, 1, 4, 1]}
    assert codec.decode_scores(codec.encode_table(grouped), ["personal"], ["0.1"], there, 1.0) == grouped
    for counts in ({}, {"0.1": 3}, {"0.1": ["x"]}, {"0.1": [-1]}, {"0.1": [math.inf]}, {"0.1": [4, 0, 0, 0]}):
        with pytest.raises(Rejected):
            spoiled_counts = codec.encode_table(grouped | {"personal groups": counts})
            codec.decode_scores(spoiled_counts, ["personal"], ["0.1"], there, 1.0)
    with pytest.raises(Rejected, match="not a table"):
        codec.decode_table(RecordDict())


def test_introductions() -> None:
    good: dict[str, Any] = {"shape": [6], "task": "binary", "outputs": 1, "contexts": 2, "tests": ["a"]}
    good |= {"cases": ["a", "validation"], "spectrum": ["a"], "batch_fits": True}
    assert codec.decode_introduction(codec.encode_table(good), scores=False) == good
    scored = good | {"constant": {"a": 0.5}}
    assert codec.decode_introduction(codec.encode_table(scored), scores=True) == scored
    changes: tuple[dict[str, Any], ...] = (
        {"shape": "x"},
        {"task": "x"},
        {"outputs": 0},
        {"contexts": "2"},
        {"tests": [1]},
        {"spectrum": ["b"]},
        {"cases": []},
        {"batch_fits": 1},
        {"groups": {"counts": {"a": [1, -1]}, "majority": 0}},
        {"groups": {"counts": {"b": [1]}, "majority": 0}},
        {"groups": {"counts": {"a": [0, 0]}, "majority": 0}},
        {"groups": {"counts": {"a": [1, 2**63]}, "majority": 0}},
        {"contexts": 10**9},
        {"contexts": True},
        {"outputs": 2**63 - 1},
        {"shape": [2**31, 2**31]},
        {"shape": [1] * 100},
        {"shape": [10**4000]},
        {"tests": ["a", "a"]},
        {"tests": ["a", "x" * 1000], "cases": ["a", "x" * 1000]},
        {"tests": ["a", "\x1b[2J"], "cases": ["a", "\x1b[2J"]},
        {"constant": {"a": math.inf}, "more": 1},
    )
    for change in changes:
        with pytest.raises(Rejected, match="does not describe its data"):
            codec.decode_introduction(codec.encode_table(good | change), scores=False)
    with pytest.raises(Rejected):
        codec.decode_introduction(codec.encode_table(good), scores=True)


def test_statistics_and_facts() -> None:
    like: Params = {"bn.running_mean": torch.zeros(3), "bn.running_var": torch.zeros(3)}
    sent = {"bn.running_mean": torch.randn(3), "bn.running_var": torch.rand(3)}
    found, samples = codec.decode_statistics(codec.encode_statistics(sent, 7), like, samples=True)
    assert samples == 7 and all(torch.equal(found[name], sent[name]) for name in sent)
    bad = {**sent, "bn.running_var": -torch.ones(3)}
    for content in (codec.encode_statistics(bad, 7), codec.encode_statistics(sent, None), RecordDict()):
        with pytest.raises(Rejected):
            codec.decode_statistics(content, like, samples=True)
    good: dict[str, Any] = {"reference": {"wrong": [0.25]}, "views": [6]}
    assert codec.decode_facts(codec.encode_table(good)) == good and codec.decode_facts(codec.encode_table({})) == {}
    wrong: list[dict[str, Any]] = [{"reference": {"wrong": [2.0]}}, {"reference": {}}, {"views": [9]}, {"more": 1}]
    for change in [*wrong, {"views": [0, 1]}]:
        with pytest.raises(Rejected, match="what it found"):
            codec.decode_facts(codec.encode_table(good | change))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 500 + "1" + "}" * 500,
        '{"a": ' + "1" * 5000 + "}",
        "{" + " " * 2**23 + "}",
        "[1]",
        "",
        "x",
    ],
)
def test_a_table_that_is_too_deep_or_too_long_or_none(text: str) -> None:
    content = RecordDict({codec.NUMBERS: ConfigRecord({"table": text})})
    for decode in (codec.decode_table, codec.decode_facts, lambda c: codec.decode_introduction(c, True)):
        with pytest.raises(Rejected):
            decode(content)
    task = RecordDict({codec.TASK: ConfigRecord({"assignment": text, "layout": text})})
    with pytest.raises(Rejected, match="is not an assignment"):
        codec.decode_assignment(task)


def test_scores_of_a_constant_that_cannot_be() -> None:
    good: dict[str, Any] = {"shape": [6], "task": "binary", "outputs": 1, "contexts": 2, "tests": ["a"]}
    good |= {"cases": ["a"], "spectrum": ["a"], "batch_fits": True}
    for constant in ({"a": math.inf}, {"a": 1e15}, {"a": -1}, {"a": [0.5]}, {"a": 0.5, "<b>": 0.5}, [0.5], {}):
        with pytest.raises(Rejected, match="does not describe its data"):
            codec.decode_introduction(codec.encode_table(good | {"constant": constant}), scores=True)


def test_a_reason_of_any_length_becomes_one_line() -> None:
    hostile = "\x1b[31m" + "a\nb" * 100_000
    line = limits.readable(hostile)
    assert len(line) == limits.LONGEST_REASON and line.isprintable() and line.endswith(" ...")
    assert limits.readable("glucose [mg/dl] [/b]") == "glucose [mg/dl] [/b]"
