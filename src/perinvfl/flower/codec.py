"""What travels: an assignment and ν to a site, an update and one risk back, and what else a method declares
(SCAFFOLD's control variates). Everything that comes in is looked at.

An upload is believed only if it is exactly what was asked for: as many numbers as ν has, of the same type, finite, of a
norm that can be true, and nothing besides. What is wrong with it is said in words, for the record.
"""

import dataclasses
import json
import math
import operator
from typing import Any

import numpy
import torch

from perinvfl.algorithms.messages import Upload
from perinvfl.core.tree import EMPTY, Params
from perinvfl.errors import UserError
from perinvfl.flower import limits, privacy
from perinvfl.flower.adapter.messages import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from perinvfl.flower.assignment import Assignment
from perinvfl.preparation.facts import are_facts

MODEL, TASK, UPDATE, NUMBERS, FLAT = "model", "task", "update", "numbers", "flat"
CONTROL = "control"  # what a method sends beside the model, either way
RAW = "float32"  # how the numbers of an array are stored: as they are in memory, little-endian
SITE_FAILED = 100  # the code of an error that a site reports about itself
AGREED = ("shape", "task", "outputs", "tests", "cases")  # what of a site's description must be alike at all


class Rejected(Exception):
    """A message that is not what it should be; says why."""


def encode_params(params: Params) -> ArrayRecord:
    """A model as one array: Flower sends every array, and every piece of it, in a request of its own."""
    flat = torch.cat([leaf.detach().float().flatten().cpu() for leaf in params.values()])
    data = flat.numpy().astype("<f4", copy=False).tobytes()
    return ArrayRecord({FLAT: Array(dtype="float32", shape=(flat.numel(),), stype=RAW, data=data)})


def decode_params(record: ArrayRecord, like: Params) -> Params:
    """The model in a record, which must be exactly as large as `like`."""
    if list(record.keys()) != [FLAT]:
        raise Rejected(f"has the arrays {_few(record.keys())} instead of {FLAT}")
    array = record[FLAT]
    count = sum(leaf.numel() for leaf in like.values())
    if array.stype != RAW or array.dtype != "float32":
        raise Rejected(f"has numbers of type {_short(array.dtype)} ({_short(array.stype)})")
    if tuple(array.shape) != (count,):
        raise Rejected(f"has the shape {_short(list(array.shape))} instead of {[count]}")
    if len(array.data) != 4 * count:
        raise Rejected(f"has {len(array.data)} bytes for {count} numbers")
    flat = torch.from_numpy(numpy.frombuffer(array.data, dtype="<f4").copy())
    if not bool(torch.isfinite(flat).all()):
        raise Rejected("has NaN in it" if bool(torch.isnan(flat).any()) else "has infinite numbers in it")
    parts = flat.split([leaf.numel() for leaf in like.values()])
    # Each in memory of its own: how a product rounds may depend on where its numbers begin.
    return {name: part.view(leaf.shape).clone() for (name, leaf), part in zip(like.items(), parts, strict=True)}


def encode_assignments(
    assignments: dict[int, Assignment], nu: Params | None, extra: dict[str, Any], control: Params = EMPTY
) -> dict[int, RecordDict]:
    """One message a site; the model is put into bytes, and named by Flower, once for all."""
    layout = _layout(nu or {})
    model = None if nu is None else encode_params(nu)
    beside = encode_params(control) if control else None
    if control:
        extra = {**extra, CONTROL: _layout(control)}
    contents = {}
    for client, assignment in assignments.items():
        asked = json.dumps(dataclasses.asdict(assignment))
        contents[client] = RecordDict({TASK: ConfigRecord({"assignment": asked, "layout": layout, **extra})})
        if model is not None:
            contents[client][MODEL] = model
        if beside is not None:
            contents[client][CONTROL] = beside
    return contents


def _layout(params: Params) -> str:
    return json.dumps({name: list(leaf.shape) for name, leaf in params.items()})


def _like(layout: Any) -> Params:
    return {name: torch.empty(shape, device="meta") for name, shape in limits.read_json(layout).items()}


def decode_assignment(content: RecordDict) -> tuple[Assignment, Params, ConfigRecord]:
    """What a site is asked; {} where no model came along."""
    try:
        task = content.config_records[TASK]
        fields = limits.read_json(task["assignment"])
        fields["noise"] = None if fields["noise"] is None else tuple(fields["noise"])
        assignment = Assignment(**fields)
        like = _like(task["layout"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
        raise Rejected(f"is not an assignment ({limits.readable(error)})") from None
    if MODEL not in content.array_records:
        return assignment, {}, task
    return assignment, decode_params(content.array_records[MODEL], like), task


def decode_control(content: RecordDict) -> Params:
    """What came beside the model; {} where nothing did."""
    if CONTROL not in content.array_records:
        return {}
    try:
        like = _like(content.config_records[TASK][CONTROL])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
        raise Rejected(f"is not an assignment ({limits.readable(error)})") from None
    return decode_params(content.array_records[CONTROL], like)


def encode_upload(upload: Upload, tell_risk: bool, samples: int | None) -> RecordDict:
    numbers: dict[str, Any] = {}
    if tell_risk:
        numbers["risk"] = float(upload.risk)
    if samples is not None:
        numbers["samples"] = samples
    beside = {CONTROL: encode_params(upload.control)} if upload.control else {}
    return RecordDict({UPDATE: encode_params(upload.update), **beside, NUMBERS: MetricRecord(numbers)})


def decode_upload(
    content: RecordDict, nu: Params, largest: float, asked_for: set[str], control: Params = EMPTY
) -> tuple[Upload, dict[str, Any]]:
    """The upload of one site, or `Rejected`; asked_for: the names of the numbers that come with it; control: the shapes
    of what the method sends beside the update."""
    arrays = [UPDATE, CONTROL] if control else [UPDATE]
    parts = [*arrays, NUMBERS]
    if set(content.keys()) != set(parts) or not all(part in content.array_records for part in arrays):
        raise Rejected(f"has the parts {_few(content.keys())} instead of {', '.join(parts)}")
    if NUMBERS not in content.metric_records or set(content.metric_records[NUMBERS].keys()) != asked_for:
        raise Rejected("does not report what was asked for")
    numbers: dict[str, Any] = dict(content.metric_records[NUMBERS])
    update = decode_params(content.array_records[UPDATE], nu)
    beside = decode_params(content.array_records[CONTROL], control) if control else {}
    length = max(privacy.norm(update), privacy.norm(beside))
    if length > largest:
        raise Rejected(f"has the norm {length:.3g}, more than {largest:g}")
    risk = numbers.pop("risk", math.nan)
    if "risk" in asked_for:
        check_risk(risk)
    check_samples(numbers.get("samples", 1))
    return Upload(update, torch.tensor(float(risk)), beside), numbers


def check_risk(risk: Any) -> None:
    if not limits.is_number(risk):
        known = isinstance(risk, float | int) and math.isfinite(risk)
        raise Rejected(f"has the risk {risk:.3g}" if known else "has a risk that is NaN or infinite")


def check_samples(samples: Any) -> None:
    if not limits.is_whole(samples, 1, limits.MOST_SAMPLES):
        raise Rejected(f"says that it stands for {_short(samples)} samples")


def encode_statistics(statistics: Params, samples: int | None) -> RecordDict:
    """What a model's batch norms measured at a site."""
    return RecordDict(
        {UPDATE: encode_params(statistics), NUMBERS: MetricRecord({} if samples is None else {"samples": samples})}
    )


def decode_statistics(content: RecordDict, like: Params, samples: bool) -> tuple[Params, int]:
    if UPDATE not in content.array_records or NUMBERS not in content.metric_records:
        raise Rejected("does not report its statistics")
    statistics = decode_params(content.array_records[UPDATE], like)
    if any(name.endswith("running_var") and bool((leaf < 0).any()) for name, leaf in statistics.items()):
        raise Rejected("has a variance below zero")
    if any(bool((leaf.abs() > limits.LARGEST_NUMBER).any()) for leaf in statistics.values()):
        raise Rejected(f"has a statistic larger than {limits.LARGEST_NUMBER:g}")
    count: Any = content.metric_records[NUMBERS].get("samples", 1 if not samples else None)
    check_samples(count)
    return statistics, count


def encode_table(table: dict[str, Any]) -> RecordDict:
    """Plain numbers and names that a site tells about itself."""
    return RecordDict({NUMBERS: ConfigRecord({"table": json.dumps(table)})})


def decode_table(content: RecordDict) -> dict[str, Any]:
    try:
        table = limits.read_json(content.config_records[NUMBERS]["table"])
    except (KeyError, ValueError):
        raise Rejected("is not a table of numbers") from None
    if not isinstance(table, dict):
        raise Rejected("is not a table of numbers")
    return table


def decode_facts(content: RecordDict) -> dict[str, Any]:
    """What a site found in preparing, and may tell."""
    table = decode_table(content)
    if not are_facts(table):
        raise Rejected("does not report what it found")
    return table


def decode_introduction(content: RecordDict, scores: bool) -> dict[str, Any]:
    """What a site tells about its data when a run begins."""
    table = decode_table(content)
    sound = (
        limits.is_shape(table.get("shape"))
        and all(limits.are_texts(table.get(key), limits.MOST_CASES) for key in ("tests", "cases", "spectrum"))
        and table.get("task") in ("binary", "multiclass", "regression")
        and limits.is_whole(table.get("outputs"), 1, limits.MOST_OUTPUTS)
        and limits.is_whole(table.get("contexts"), 1, limits.MOST_CONTEXTS)
        and isinstance(table.get("batch_fits"), bool)
        and set(table["spectrum"]) <= set(table["tests"]) <= set(table["cases"])
        and (not scores or _sound_constant(table.get("constant"), table))
        and ("groups" not in table or _sound_groups(table["groups"], table["tests"]))
        and set(table) <= {*AGREED, "contexts", "spectrum", "batch_fits", "constant", "groups"}
    )
    if not sound:
        raise Rejected("does not describe its data")
    return table


def _sound_constant(constant: Any, table: dict[str, Any]) -> bool:
    """The score of a constant answer on every test case, and perhaps on what is held out."""
    most = largest_score(table["task"])
    return (
        isinstance(constant, dict)
        and set(table["tests"]) <= set(constant) <= {*table["cases"], "validation"}
        and all(limits.is_score(score, most) for score in constant.values())
    )


def largest_score(task: str) -> float:
    """Accuracies are shares; a squared error may be large."""
    return limits.LARGEST_NUMBER if task == "regression" else 1.0


def _sound_groups(groups: Any, tests: list[str]) -> bool:
    """{"counts": {test: [number, ...]}, "majority": number}"""
    if not isinstance(groups, dict) or set(groups) != {"counts", "majority"}:
        return False
    counts, most = groups["counts"], limits.MOST_GROUPS
    return (
        limits.is_whole(groups["majority"], 0, most)
        and isinstance(counts, dict)
        and set(counts) <= set(tests)
        and all(limits.are_counts(row) and len(row) % 2 == 0 and sum(row) > 0 for row in counts.values())
    )


def decode_scores(
    content: RecordDict, kinds: list[str], cases: list[str], grouped: dict[str, list[float]], largest: float
) -> dict[str, Any]:
    """Accuracies (errors, for regression) by model and test case; of tests with groups, right answers by group.

    grouped: how many samples each group of those tests has at this site; largest: of a score.
    """
    table = decode_table(content)
    expected = {kind: set(cases) for kind in kinds}
    if grouped:
        expected |= {f"{kind} groups": set(grouped) for kind in kinds}
    shaped = set(table) == set(expected) and all(
        isinstance(table[kind], dict) and set(table[kind]) == names for kind, names in expected.items()
    )
    if not shaped:
        raise Rejected("does not have one number for each model and test case")
    for kind in kinds if grouped else ():
        for case, row in table[f"{kind} groups"].items():
            there = grouped[case]
            if not limits.are_counts(row) or len(row) != len(there) or any(map(operator.gt, row, there)):
                raise Rejected("has counts of right answers that cannot be")
    for kind in kinds:
        for case, score in table[kind].items():
            if not limits.is_score(score, largest):
                raise Rejected(f"has {_short(repr(score))} as the score of {case}")
    return table


def failure(message: Message, why: Exception) -> Message:
    """A site's answer when it cannot do what it is asked: what went wrong, and nothing of its data."""
    words = str(why) if isinstance(why, UserError) else f"{type(why).__name__}: {why}"
    return Message(Error(SITE_FAILED, limits.readable(words)), reply_to=message)


def size(content: RecordDict) -> int:
    """Bytes of the arrays of a message; the rest is a few hundred."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


def _few(names: Any) -> str:
    listed = list(names)
    return ", ".join(map(_short, listed[:4])) + (", ..." if len(listed) > 4 else "") or "none"


def _short(value: Any) -> str:
    return limits.readable(value, 60)
