"""What travels: an assignment and ν to a site, an update and one risk back. Everything that comes in is looked at.

An upload is believed only if it is exactly what was asked for: as many numbers as ν has, of the same type, finite, of a
norm that can be true, and nothing besides. What is wrong with it is said in words, for the record.
"""

import dataclasses
import json
import math
from typing import Any

import numpy
import torch

from perinvfl.algorithms.base import Upload
from perinvfl.core.tree import Params
from perinvfl.errors import UserError
from perinvfl.flower import privacy
from perinvfl.flower.adapter.messages import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from perinvfl.flower.site import Assignment

MODEL, TASK, UPDATE, TOLD, FLAT = "model", "task", "update", "told", "flat"
RAW = "float32"  # how the numbers of an array are stored: as they are in memory, little-endian
SITE_FAILED = 100  # the code of an error that a site reports about itself


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
        raise Rejected(f"has numbers of type {array.dtype} ({array.stype})")
    if tuple(array.shape) != (count,):
        raise Rejected(f"has the shape {list(array.shape)} instead of {[count]}")
    if len(array.data) != 4 * count:
        raise Rejected(f"has {len(array.data)} bytes for {count} numbers")
    flat = torch.from_numpy(numpy.frombuffer(array.data, dtype="<f4").copy())
    if not bool(torch.isfinite(flat).all()):
        raise Rejected("has NaN in it" if bool(torch.isnan(flat).any()) else "has infinite numbers in it")
    parts = flat.split([leaf.numel() for leaf in like.values()])
    return {name: part.view(leaf.shape) for (name, leaf), part in zip(like.items(), parts, strict=True)}


def encode_assignments(
    assignments: dict[int, Assignment], nu: Params | None, extra: dict[str, Any]
) -> dict[int, RecordDict]:
    """One message a site; the model is put into bytes, and named by Flower, once for all."""
    layout = json.dumps({name: list(leaf.shape) for name, leaf in (nu or {}).items()})
    model = None if nu is None else encode_params(nu)
    contents = {}
    for client, assignment in assignments.items():
        asked = json.dumps(dataclasses.asdict(assignment))
        contents[client] = RecordDict({TASK: ConfigRecord({"assignment": asked, "layout": layout, **extra})})
        if model is not None:
            contents[client][MODEL] = model
    return contents


def decode_assignment(content: RecordDict) -> tuple[Assignment, Params, ConfigRecord]:
    """What a site is asked; {} where no model came along."""
    try:
        task = content.config_records[TASK]
        fields = json.loads(str(task["assignment"]))
        fields["noise"] = None if fields["noise"] is None else tuple(fields["noise"])
        assignment = Assignment(**fields)
        layout = json.loads(str(task["layout"]))
        like = {name: torch.empty(shape, device="meta") for name, shape in layout.items()}
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise Rejected(f"is not an assignment ({error})") from None
    if MODEL not in content.array_records:
        return assignment, {}, task
    return assignment, decode_params(content.array_records[MODEL], like), task


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


def decode_introduction(content: RecordDict, scores: bool) -> dict[str, Any]:
    """What a site tells about its data when a run begins."""
    table = decode_table(content)
    lists = {"shape": int, "tests": str, "spectrum": str}
    sound = (
        all(isinstance(table.get(key), list) for key in lists)
        and all(isinstance(item, kind) for key, kind in lists.items() for item in table[key])
        and table.get("task") in ("binary", "multiclass", "regression")
        and all(type(table.get(key)) is int and table[key] >= 1 for key in ("outputs", "contexts"))
        and set(table["spectrum"]) <= set(table["tests"])
        and (not scores or (isinstance(table.get("constant"), dict) and set(table["constant"]) == set(table["tests"])))
    )
    if not sound:
        raise Rejected("does not tell what its data are like")
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
    told = str(why) if isinstance(why, UserError) else f"{type(why).__name__}: {why}"
    return Message(Error(SITE_FAILED, told[:500]), reply_to=message)


def size(content: RecordDict) -> int:
    """Bytes of the arrays of a message; the rest is a few hundred."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


def _few(names: Any) -> str:
    listed = list(names)
    return ", ".join(map(str, listed[:4])) + (", ..." if len(listed) > 4 else "") or "none"
