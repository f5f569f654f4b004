"""What travels: an assignment and ν to a site, an update and one risk back. Everything that comes in is looked at.

An upload is believed only if it is exactly what was asked for: the same names, shapes and type as ν, finite, of a norm
that can be true, and nothing besides. What is wrong with it is said in words, for the record.
"""

import dataclasses
import json
import math
from typing import Any

import numpy
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from perinvfl.algorithms.base import Upload
from perinvfl.flower import privacy
from perinvfl.flower.site import Assignment
from perinvfl.tree import Params

MODEL, TASK, UPDATE, TOLD = "model", "task", "update", "told"
RAW = "float32"  # how the numbers of an array are stored: as they are in memory, little-endian
SITE_FAILED = 100  # the code of an error that a site reports about itself


class Rejected(Exception):
    """A message that is not what it should be; says why."""


def encode_params(params: Params) -> ArrayRecord:
    return ArrayRecord({name: _encode(leaf) for name, leaf in params.items()})


def decode_params(record: ArrayRecord, like: Params | None = None) -> Params:
    """The model in a record, which must have the names and shapes of `like`, if that is given."""
    if like is not None and list(record.keys()) != list(like):
        raise Rejected(f"has the parts {_few(record.keys())} instead of {_few(like)}")
    return {name: _decode(name, array, None if like is None else like[name]) for name, array in record.items()}


def encode_assignment(assignment: Assignment, nu: Params | None, extra: dict[str, Any] | None = None) -> RecordDict:
    asked = json.dumps(dataclasses.asdict(assignment))
    content = RecordDict({TASK: ConfigRecord({"assignment": asked, **(extra or {})})})
    if nu is not None:
        content[MODEL] = encode_params(nu)
    return content


def decode_assignment(content: RecordDict) -> tuple[Assignment, Params, ConfigRecord]:
    """What a site is asked; {} where no model came along."""
    try:
        task = content.config_records[TASK]
        fields = json.loads(str(task["assignment"]))
        fields["noise"] = None if fields["noise"] is None else tuple(fields["noise"])
        assignment = Assignment(**fields)
    except (KeyError, TypeError, ValueError) as error:
        raise Rejected(f"is not an assignment ({error})") from None
    if MODEL not in content.array_records:
        return assignment, {}, task
    nu = decode_params(content.array_records[MODEL])
    _check_finite(nu)
    return assignment, nu, task


def encode_upload(upload: Upload, tell_risk: bool, samples: int | None) -> RecordDict:
    told: dict[str, Any] = {}
    if tell_risk:
        told["risk"] = float(upload.risk)
    if samples is not None:
        told["samples"] = samples
    return RecordDict({UPDATE: encode_params(upload.update), TOLD: MetricRecord(told)})


def decode_upload(content: RecordDict, nu: Params, largest: float, told: set[str]) -> tuple[Upload, dict[str, Any]]:
    """The upload of one site, or `Rejected`; told: the numbers that were asked for besides."""
    if set(content.keys()) != {UPDATE, TOLD} or UPDATE not in content.array_records:
        raise Rejected(f"has the parts {_few(content.keys())} instead of {UPDATE}, {TOLD}")
    if TOLD not in content.metric_records or set(content.metric_records[TOLD].keys()) != told:
        raise Rejected("does not tell what was asked for")
    numbers: dict[str, Any] = dict(content.metric_records[TOLD])
    update = decode_params(content.array_records[UPDATE], nu)
    _check_finite(update)
    length = privacy.norm(update)
    if length > largest:
        raise Rejected(f"has the norm {length:.3g}, more than {largest:g}")
    risk = numbers.pop("risk", math.nan)
    if "risk" in told and not (isinstance(risk, float | int) and math.isfinite(risk)):
        raise Rejected("has a risk that is not a finite number")
    samples = numbers.get("samples", 1)
    if not isinstance(samples, int) or samples < 1:
        raise Rejected(f"says that it stands for {samples} samples")
    return Upload(update, torch.tensor(float(risk))), numbers


def encode_table(table: dict[str, Any]) -> RecordDict:
    """Plain numbers and names that a site tells about itself."""
    return RecordDict({TOLD: ConfigRecord({"table": json.dumps(table)})})


def decode_table(content: RecordDict) -> dict[str, Any]:
    try:
        table = json.loads(str(content.config_records[TOLD]["table"]))
    except (KeyError, ValueError):
        raise Rejected("is not a table of numbers") from None
    if not isinstance(table, dict):
        raise Rejected("is not a table of numbers")
    return table


def decode_scores(content: RecordDict, kinds: list[str], cases: list[str]) -> dict[str, dict[str, float]]:
    """Accuracies (errors, for regression) by model and test case."""
    table = decode_table(content)
    shaped = set(table) == set(kinds) and all(
        isinstance(table[kind], dict) and set(table[kind]) == set(cases) for kind in kinds
    )
    if not shaped:
        raise Rejected("does not have one number for each model and test case")
    for kind in kinds:
        for case, score in table[kind].items():
            if isinstance(score, bool) or not isinstance(score, float | int) or score < 0:  # NaN is told
                raise Rejected(f"has {score!r} as the score of {case}")
    return table


def failure(message: Message, why: Exception) -> Message:
    """A site's answer when it cannot do what it is asked: what went wrong, and nothing of its data."""
    return Message(Error(SITE_FAILED, f"{type(why).__name__}: {why}"[:500]), reply_to=message)


def size(content: RecordDict) -> int:
    """Bytes of the arrays of a message; the rest is a few hundred."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


def _encode(leaf: torch.Tensor) -> Array:
    plain = leaf.detach().cpu().contiguous().numpy().astype("<f4", copy=False)
    return Array(dtype="float32", shape=tuple(plain.shape), stype=RAW, data=plain.tobytes())


def _decode(name: str, array: Array, like: torch.Tensor | None) -> torch.Tensor:
    shape = tuple(array.shape)
    if array.stype != RAW or array.dtype != "float32":
        raise Rejected(f"has numbers of type {array.dtype} ({array.stype}) in {name}")
    if like is not None and shape != tuple(like.shape):
        raise Rejected(f"has the shape {list(shape)} instead of {list(like.shape)} in {name}")
    if any(side < 0 for side in shape) or len(array.data) != 4 * math.prod(shape):
        raise Rejected(f"has {len(array.data)} bytes in {name}, which is {list(shape)}")
    numbers = numpy.frombuffer(array.data, dtype="<f4").reshape(shape)
    return torch.from_numpy(numbers.copy())


def _check_finite(params: Params) -> None:
    for name, leaf in params.items():
        if not bool(torch.isfinite(leaf).all()):
            what = "NaN" if bool(torch.isnan(leaf).any()) else "infinite numbers"
            raise Rejected(f"has {what} in {name}")


def _few(names: Any) -> str:
    listed = list(names)
    return ", ".join(map(str, listed[:4])) + (", ..." if len(listed) > 4 else "") or "none"
