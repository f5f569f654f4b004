"""Messages of a deployment: what a site may send to the server, and a server to a site."""

import dataclasses
import json
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch

from perinvfl.core.tree import Params
from perinvfl.data.own.sums import agree_columns, read_offers
from perinvfl.errors import UserError
from perinvfl.flower import codec
from perinvfl.flower.adapter.messages import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
    serialized_copy,
    set_task_identity,
)
from perinvfl.flower.agreement import agree
from perinvfl.flower.assignment import Assignment
from perinvfl.flower.client_app import answer
from perinvfl.flower.codec import Rejected
from perinvfl.flower.words import decode_sums
from perinvfl.learning.training import Training
from perinvfl.preparation.facts import join_facts
from perinvfl.runs.experiment import build_experiment
from tests.fuzz import odd
from tests.fuzz.core import Fuzzer

NU: Params = {"0.weight": torch.zeros(3, 4), "0.bias": torch.zeros(3)}
NUMBERS = sum(leaf.numel() for leaf in NU.values())
INTRODUCTION = {
    "shape": [6], "task": "binary", "outputs": 1, "contexts": 2, "tests": ["0.1", "0.5"], "cases": ["0.1", "0.5"],
    "spectrum": ["0.1"], "batch_fits": True, "constant": {"0.1": 0.5, "0.5": 0.5},
    "groups": {"counts": {"0.1": [1, 2, 3, 4]}, "majority": 0},
}  # fmt: skip
SCORES = {"personal": {"0.1": 0.5, "0.5": 0.25}, "personal groups": {"0.1": [1, 2, 3, 4]}}
OFFERS = [{"name": "age", "kind": "number", "levels": []}, {"name": "kind", "kind": "category", "levels": ["a", "b"]}]
FACTS = {"reference": {"wrong": [0.25]}, "views": [0]}
EXPERIMENT = {
    "data": {"benchmark": "random"}, "model": {"hidden": [4]}, "training": {"rounds": 2},
    "algorithm": [{"name": "fedavg"}],
}  # fmt: skip
KINDS = ("query", "query.columns", "query.commit", "query.notes", "query.statistics", "train", "evaluate")
Given = tuple[str, Any]


class Messages:
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        set_task_identity(run_id=1, node_id=1, task_id=1)
        self.trial = build_experiment(EXPERIMENT).trials[0]
        config: dict[str, bool | float | int | str] = {"client": 0, "folder": str(self.folder)}
        self.context = Context(run_id=1, node_id=100, node_config=config, state=RecordDict(), run_config={})

    def make(self, rng: random.Random) -> Given:
        kind = rng.choice(("upload", "statistics", "introduction", "facts", "scores", "offers", "sums", "site", "site"))
        if kind in ("upload", "statistics", "sums"):
            return kind, _update(rng)
        if kind == "site":
            return rng.choice(KINDS), self._question(rng)
        whole: Any = {
            "introduction": INTRODUCTION, "facts": FACTS, "scores": SCORES,
            "offers": {"columns": OFFERS},
        }[kind]  # fmt: skip
        return kind, _told(odd.mutate(whole, rng), rng)

    def _question(self, rng: random.Random) -> RecordDict:
        asked = Assignment(
            "run", self.trial.asked(), 0, 3, 2, 0, 0, 0, -1, plan=rng.choice((None, None, {"columns": OFFERS}))
        )
        nu = {"0.weight": torch.zeros(4, 6), "0.bias": torch.zeros(4), "1.weight": torch.zeros(1, 4)}
        layout = {name: list(leaf.shape) for name, leaf in {**nu, "1.bias": torch.zeros(1)}.items()}
        fields = odd.mutate(json.loads(json.dumps(dataclasses.asdict(asked))), rng)
        layout = odd.mutate(layout, rng) if rng.random() < 0.3 else layout
        task = {"assignment": odd.as_json(fields).decode("utf-8", "replace"), "layout": odd.as_json(layout).decode()}
        if rng.random() < 0.1:
            task[rng.choice(list(task))] = rng.choice(("", "[" * 5000, "9" * 5000, "null", "[]", "{}"))
        made = RecordDict({codec.TASK: ConfigRecord({**task, "tell_samples": rng.random() < 0.5, "scores": True})})
        if rng.random() < 0.7:
            made[codec.MODEL] = _array(rng, 4 * 6 + 4 + 4 + 1)
        return made

    def feed(self, given: Given) -> None:
        kind, content = given
        if kind in KINDS:
            reply = answer(Message(serialized_copy(content), 100, kind, group_id="0"), self.context)
            assert isinstance(reply, Message)
        else:
            READERS[kind](serialized_copy(content))

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _array(rng: random.Random, numbers: int) -> ArrayRecord:
    values = numpy.zeros(numbers, "<f4")
    if numbers and rng.random() < 0.3:
        values[rng.randrange(numbers)] = rng.choice((numpy.nan, numpy.inf, 1e30, -1e38, 1.0))
    data = values.tobytes()
    shape: tuple[int, ...] = (numbers,)
    if rng.random() < 0.4:
        data = rng.choice((data[:-1], b"", data + b"\0", data * 2, odd.mutate_bytes(data, rng)))
    if rng.random() < 0.3:
        shape = rng.choice(((), (0,), (1, numbers), (2**31 - 1,), (numbers + 1,)))
    dtype, stype = rng.choice(
        (("float32", codec.RAW),) * 6 + (("float64", codec.RAW), ("float32", "numpy.ndarray"), ("", ""))
    )
    record = ArrayRecord({rng.choice((codec.FLAT,) * 9 + ("x", "")): Array(dtype, shape, stype, data)})
    if rng.random() < 0.05:
        record["more"] = Array(dtype, shape, stype, data)
    return record


def _update(rng: random.Random) -> RecordDict:
    values: dict[str, Any] = {"risk": 0.5, "samples": 3}
    for _ in range(rng.choice((0, 1, 2))):
        whole: tuple[Any, ...] = (
            0,
            -1,
            1,
            2**63 - 1,
            -(2**63),
            10**15,
            0.0,
            1e300,
            numpy.inf,
            -numpy.inf,
            numpy.nan,
            5e-324,
            [1],
            [0.5],
            [],
        )
        values[rng.choice(("risk", "samples", "x"))] = rng.choice(whole)
    if rng.random() < 0.3:
        values.pop(rng.choice(list(values)))
    made = RecordDict({codec.UPDATE: _array(rng, NUMBERS), codec.NUMBERS: MetricRecord(values)})
    if rng.random() < 0.1:
        replaced = rng.choice((codec.UPDATE, codec.NUMBERS, "x"))
        made.pop(replaced, None)
        made[replaced] = ConfigRecord({"table": "{}"})
    if rng.random() < 0.1:
        del made[rng.choice(list(made))]
    return made


def _told(table: Any, rng: random.Random) -> RecordDict:
    text = odd.as_json(table).decode("utf-8", "replace")
    if rng.random() < 0.1:
        text = odd.mutate_bytes(text.encode(), rng).decode("utf-8", "replace")
    value: Any = rng.choice((text,) * 20 + (3, 0.5, b"\xff", [text], True))
    return RecordDict({rng.choice((codec.NUMBERS,) * 20 + ("x",)): ConfigRecord({"table": value})})


def _introduced(content: RecordDict) -> None:
    told = codec.decode_introduction(content, True)
    agreed = agree("run", [told, INTRODUCTION, told], ["a", "b", "c"], Training())
    assert type(agreed).load(agreed.dump()) == agreed


def _scored(content: RecordDict) -> None:
    scores = codec.decode_scores(content, ["personal"], ["0.1", "0.5"], {"0.1": [9.0, 9.0, 9.0, 9.0]}, 1.0)
    known = [score for score in scores["personal"].values() if score == score]
    float(sum(known))


def _offered(content: RecordDict) -> None:
    try:
        offers = read_offers(codec.decode_table(content)["columns"])
    except (KeyError, TypeError, ValueError):  # as the server does it
        raise Rejected("does not describe its columns") from None
    agree_columns([offers, read_offers(OFFERS)], ["a", "b"])


def _summed(content: RecordDict) -> None:
    words = {"words": torch.zeros(3, 5)}  # as many numbers as NU has
    upload, _ = codec.decode_upload(content, words, 1e6, {"risk", "samples"})
    decode_sums(upload.update, 3)


READERS: dict[str, Callable[[RecordDict], Any]] = {
    "upload": lambda content: codec.decode_upload(content, NU, 1e6, {"risk", "samples"}),
    "statistics": lambda content: codec.decode_statistics(content, NU, True),
    "introduction": _introduced,
    "facts": lambda content: join_facts([codec.decode_facts(content), FACTS]),
    "scores": _scored,
    "offers": _offered,
    "sums": _summed,
}


def fuzzer() -> Fuzzer:
    made = Messages()
    return Fuzzer("messages", made.make, made.feed, (Rejected, UserError))
