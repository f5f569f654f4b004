"""Data and model files of every kind: mutated by content and by bytes, and read as the commands read them."""

import csv
import gzip
import hashlib
import io
import json
import lzma
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import safetensors.torch
import torch
from PIL import Image

from perinvfl.core import config
from perinvfl.data.benchmarks.album import Album, write_album
from perinvfl.data.benchmarks.birds import Plan
from perinvfl.export.formats import FORMATS, write_model
from perinvfl.export.module import Deployed
from perinvfl.models import ModelSettings, build_model
from perinvfl.models.resnet import parameter_shapes
from tests.fuzz import odd
from tests.fuzz.core import Fuzzer
from tests.fuzz.file_readers import READERS, TABLE

HEADER = ["client", "context", "label", "age", "dose [mg/dl]", "kind"]
Rows = list[list[Any]]


def rows(rng: random.Random) -> Rows:
    """A table that could be meant, small or not, with gaps, one class or several."""
    classes = rng.choice((1, 2, 2, 2, 3, 7))
    made: Rows = []
    for i in range(rng.choice((0, 1, 2, 8, 24, 60))):
        site, year = "ab"[i % 2], 2020 + i // 2 % 3
        dose = rng.choice((1.5, 2.5, -3.0, "", 7)) if rng.random() < 0.2 else rng.random()
        made.append([site, year, i % classes, rng.randrange(80), dose, "xyz"[i % 3]])
    return made


class Files:
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        self.whole = {name: self._model(name) for name in FORMATS}
        self.kinds: dict[str, Callable[[random.Random], tuple[str, bytes, Any]]] = {
            "table": self._table, "arrays": self._arrays, "photograph": self._photograph, "tensors": self._tensors,
            "model": self._model_file, "records": self._records, "idx": self._idx,
        }  # fmt: skip

    def make(self, rng: random.Random) -> tuple[str, bytes, Any]:
        kind = rng.choices(list(self.kinds), weights=(8, 6, 2, 3, 4, 2, 1))[0]
        return self.kinds[kind](rng)

    def feed(self, given: tuple[str, bytes, Any]) -> None:
        name, content, how = given
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.write_bytes(content)
            READERS[path.suffix if how is None else how[0]](path, how)
        finally:
            path.unlink(missing_ok=True)

    # What is made ---------------------------------------------------------------------------------------------------

    def _table(self, rng: random.Random) -> tuple[str, bytes, Any]:
        header, body = list(HEADER), rows(rng)
        if rng.random() < 0.6:
            header = odd.mutate(header, rng) if rng.random() < 0.3 else header
            body = odd.mutate(body, rng)
        kind = rng.choice((".csv", ".csv", ".tsv", ".parquet"))
        content = _parquet(header, body) if kind == ".parquet" else _text(header, body, "\t" if kind == ".tsv" else ",")
        if rng.random() < 0.4:
            content = odd.mutate_bytes(content, rng)
        asked = {
            "task": rng.choice(("auto", "auto", "binary", "multiclass", "regression")),
            "test_contexts": rng.choice(([], [], [2020], ["2021", "x"])),
            "missing": rng.choice(("impute", "refuse")),
            "categories": rng.choice(([], [], ["kind"], ["age"])),
            "context": rng.choice(("context", "context", "", "kind")),
        }
        return f"data{kind}", content, ("table", asked, rng.random())

    def _arrays(self, rng: random.Random) -> tuple[str, bytes, Any]:
        n = rng.choice((0, 1, 2, 12))
        arrays: dict[str, Any] = {
            "x": numpy.array(_numbers(rng, (n, *rng.choice(((), (2,), (3, 8, 8), (0,))))), dtype=rng.choice(TYPES)),
            "y": numpy.array([i % rng.choice((1, 2, 3)) for i in range(n)], dtype=rng.choice(TYPES)),
            "client": numpy.array([rng.choice(("a", "b", "")) for _ in range(n)]),
            "context": numpy.array([i % 2 for i in range(n)], dtype=rng.choice(TYPES)),
            "features": numpy.array(["age", "dose"]), "test/night/x": numpy.zeros((2, 2), "f"),
            "test/night/y": numpy.array([0, 1]),
        }  # fmt: skip
        for _ in range(rng.choice((0, 0, 1, 2))):
            arrays[rng.choice(list(arrays))] = rng.choice(ODD_ARRAYS)
        for name in rng.sample(list(arrays), rng.choice((0, 0, 1, 3))):
            del arrays[name]
        if rng.random() < 0.6:
            buffer = io.BytesIO()
            save = rng.choice((numpy.savez, numpy.savez_compressed))
            save(buffer, **arrays)
            name, content = "data.npz", buffer.getvalue()
        else:
            plain = {key: value for key, value in arrays.items() if value.dtype.str in PLAIN}
            tensors = {key: torch.from_numpy(value.copy()) for key, value in plain.items()}
            name, content = "data.safetensors", safetensors.torch.save(tensors)
        if rng.random() < 0.4:
            content = odd.mutate_bytes(content, rng)
        return name, content, ("arrays", rng.choice(("binary", "multiclass", "regression", "auto")), rng.random())

    def _photograph(self, rng: random.Random) -> tuple[str, bytes, Any]:
        buffer = io.BytesIO()
        mode = rng.choice(("RGB", "L", "P", "RGBA", "I;16", "CMYK", "1"))
        form = rng.choice(("png", "jpeg", "bmp", "gif", "tiff", "ppm", "webp"))
        picture = Image.frombytes("L", (9, 7), rng.randbytes(63)).convert(mode if mode != "I;16" else "I")
        try:
            picture.save(buffer, form)
        except (OSError, ValueError):
            picture.convert("RGB").save(buffer, form)
        content = buffer.getvalue()
        if rng.random() < 0.8:
            content = odd.mutate_bytes(content, rng)
        ending = rng.choice((form, form, "png", "txt"))
        return f"photos/a/2020/{rng.choice('xy')}/1.{ending}", content, ("photograph", None)

    def _tensors(self, rng: random.Random) -> tuple[str, bytes, Any]:
        buffer = io.BytesIO()
        shapes = parameter_shapes(1, 1, "small")
        saved: Any = {name: torch.zeros(shape) for name, shape in shapes.items()}
        album = rng.random() < 0.4
        if album:
            return "data.album", self._album(rng), ("album", None)
        for name in rng.sample(list(saved), rng.choice((0, 1, 3))):
            saved[name] = rng.choice((torch.zeros(()), torch.zeros(1).expand(10**9), "text", [torch.zeros(2)], 7, None))
        torch.save(rng.choice((saved, saved, saved, list(saved), 3)), buffer)
        content = buffer.getvalue()
        if rng.random() < 0.5:
            content = odd.mutate_bytes(content, rng)
        if rng.random() < 0.5:
            return "state.pt", hashlib.sha256(content).digest() + content, ("checkpoint", None)
        return "weights.pth", content, ("weights", None)

    def _album(self, rng: random.Random) -> bytes:
        plan = Plan(
            torch.zeros(4, 4, dtype=torch.int64), torch.tensor([0, 1, 0, 1]), torch.tensor([[0, 1]]),
            torch.tensor([[2, 3]]), {"0.5": torch.ones(1, 2, dtype=torch.bool)},
        )  # fmt: skip
        path = self.folder / "whole.album"
        write_album(path, Album(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), plan, {"photographs": "x"}))
        saved = torch.load(io.BytesIO(path.read_bytes()[32:]), weights_only=True)
        key = rng.choice(list(saved))
        saved[key] = rng.choice(
            (saved[key], 3, [], torch.tensor([10**9, 3, 8, 8]), torch.full((1, 2), 99), [torch.zeros(3)] * 5, "x", b"")
        )
        buffer = io.BytesIO()
        torch.save(saved, buffer)
        content = buffer.getvalue()
        if rng.random() < 0.5:
            content = odd.mutate_bytes(content, rng)
        return hashlib.sha256(content).digest() + content

    def _model(self, form: str) -> bytes:
        torch.manual_seed(0)
        settings = config.build(ModelSettings, TABLE.model, "model")
        model = build_model(settings, (2,), 1, "float32")
        params = model.strip(model.init(torch.Generator().manual_seed(0)))
        steps = {"mean": torch.zeros(2), "scale": torch.ones(2), "label": torch.tensor([0.0, 1.0])}
        path = self.folder / f"whole.{form}"
        write_model(Deployed(model, params, "binary", steps).eval(), TABLE, form, path)
        return path.read_bytes()

    def _model_file(self, rng: random.Random) -> tuple[str, bytes, Any]:
        form = rng.choice(list(self.whole))
        content = self.whole[form]
        described = TABLE.as_json().encode()
        if rng.random() < 0.5:  # the description, in as many bytes as before: checksums of zip are not looked at by all
            fields = odd.mutate(json.loads(described), rng)
            told = odd.as_json(fields)
            if form == "safetensors":
                tensors = safetensors.torch.load(content)
                content = safetensors.torch.save(tensors, {"perinvfl": told.decode("utf-8", "replace")})
            else:
                content = content.replace(described, told[: len(described)].ljust(len(described)))
        else:
            content = odd.mutate_bytes(content, rng)
        return f"model.{form}", content, ("model", None)

    def _records(self, rng: random.Random) -> tuple[str, bytes, Any]:
        start = {"event": "start", "format": 2, "asked": {"algorithm": {"label": "a"}, "seed": 0}, "order": 0}
        events = [start, {"event": "evaluation", "round": 1, "personal": {"0.5": [0.5]}, "risks": [0.1]}]
        events = odd.mutate(events, rng)
        lines = b"".join(odd.as_json(event) + b"\n" for event in (events if isinstance(events, list) else [events]))
        kind = rng.randrange(3)
        damaged = rng.random() < 0.5
        if kind == 0:
            return "run/events.jsonl", odd.mutate_bytes(lines, rng) if damaged else lines, ("runs", None)
        if kind == 1:
            whole = {"format": 1, "task": "binary", "round": 1, "outputs": 1, "labels": {"a": [""]}, "of": {}}
            fields = odd.mutate(whole, rng)
            content = gzip.compress(odd.as_json(fields))
            return "predictions.json.gz", odd.mutate_bytes(content, rng) if damaged else content, ("predictions", 0)
        content = lzma.compress(lines)
        return "a.jsonl.xz", odd.mutate_bytes(content, rng) if damaged else content, ("runs", None)

    def _idx(self, rng: random.Random) -> tuple[str, bytes, Any]:
        content = b"\0\0\x08\x03" + b"".join(size.to_bytes(4, "big") for size in (2, 3, 3)) + rng.randbytes(18)
        content = rng.choice((content, gzip.compress(content)))
        return "images.idx", odd.mutate_bytes(content, rng), ("idx", None)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


PLAIN = ("<f4", "<f8", "<i8", "|u1", "<i4", "|b1", "<f2", "<i2")
TYPES = ("f4", "f8", "i8", "u1", "i4", "?", "f2", "u8", "i2")
ODD_ARRAYS = (
    numpy.array(3.0), numpy.array("text"), numpy.array([]), numpy.zeros((0, 3)), numpy.zeros((2, 0)),
    numpy.array([[1, 2]]),
    numpy.array([b"\xff", b"a"]), numpy.array(["2020-01-01"], dtype="datetime64[D]"), numpy.array([1 + 2j]),
    numpy.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")]), numpy.array([2**63], dtype="u8"),
    numpy.array([2**53 + 1]),
    numpy.full((12, 2), numpy.nan), numpy.full((12, 2), numpy.inf), numpy.array(["\udcff"]), numpy.ones(12) * 1e300,
    numpy.array(["a"] * 12), numpy.array([numpy.timedelta64(1, "s")]), numpy.zeros((1,) * 30), numpy.array([-1] * 12),
    numpy.array([0x110000, 0xD800] * 6, "<u4").view("<U1"), numpy.array([0xFFFFFFFF] * 12, "<u4").view("<U1"),
    numpy.zeros(12, "V4"), numpy.zeros(12, ">f4"), numpy.zeros(12, "f2"), numpy.zeros(12, "longdouble"),
)  # fmt: skip


def _numbers(rng: random.Random, shape: tuple[int, ...]) -> Any:
    return numpy.random.default_rng(rng.randrange(99)).integers(0, 9, shape)


def _text(header: Any, body: Any, delimiter: str) -> bytes:
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=delimiter, lineterminator="\n")
    for row in [header if isinstance(header, list) else [header], *(body if isinstance(body, list) else [body])]:
        writer.writerow([_cell(cell) for cell in row] if isinstance(row, list) else [_cell(row)])
    return buffer.getvalue().encode("utf-8", "surrogatepass")


def _cell(value: Any) -> str:
    try:
        return str(value)
    except (ValueError, RecursionError):
        return "9" * 5000


def _parquet(header: Any, body: Any) -> bytes:
    """Columns as pyarrow takes them; those of mixed values as text."""
    body = [row if isinstance(row, list) else [row] for row in body] if isinstance(body, list) else []
    header = [_cell(name).encode("utf-8", "replace").decode() for name in header] if isinstance(header, list) else ["a"]
    columns, names = [], []
    for place, name in enumerate(header):
        values = [row[place] if place < len(row) else None for row in body]
        try:
            column = pyarrow.array(values)
        except (pyarrow.ArrowException, OverflowError, ValueError, TypeError, RecursionError):
            column = pyarrow.array([_cell(value).encode("utf-8", "replace").decode() for value in values])
        columns.append(column)
        names.append(name)
    buffer = io.BytesIO()
    try:
        pyarrow.parquet.write_table(pyarrow.Table.from_arrays(columns, names=names), buffer)
    except pyarrow.ArrowException:
        return b"PAR1"
    return buffer.getvalue()


def fuzzer() -> Fuzzer:
    made = Files()
    return Fuzzer("files", made.make, made.feed)
