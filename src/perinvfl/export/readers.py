"""Model files read back without trusting them: plain numbers and a description, from which the model is built anew.

A PT2 archive may carry pickles and a graph that calls any Python function, so torch never opens one here: the weights
and the description are taken from it, which are raw numbers and JSON. An ONNX file is data for a runtime; what could
reach outside the file or run without end is refused, and the runtime's memory and time are bounded: a small graph can
multiply large matrices for years.
"""

import functools
import math
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perinvfl.core.memory import free_memory
from perinvfl.core.patience import within
from perinvfl.core.tree import Params
from perinvfl.core.unpacking import parse_json
from perinvfl.errors import UserError
from perinvfl.export.libraries import extra
from perinvfl.export.module import Description, answer_names, read_description, rebuild
from perinvfl.export.predictor import Predictor

KEY = "perinvfl"  # under which the description lies
FLOAT32 = 7  # the number of float32 in the weights' table of a PT2 archive
LONGEST_STEP = 60.0  # seconds to open a graph, and to answer for one sample
SLACK = 10.0  # times as long as one sample took, for each of many
SUBGRAPHS = ("Loop", "Scan", "If", "SequenceMap")  # ONNX operators that run other graphs, perhaps without end


def read_safetensors(path: Path, build: str = "") -> Predictor:
    safetensors = extra("safetensors")
    with _sound(path, "safetensors"), safetensors.safe_open(path, framework="pt") as file:
        text = (file.metadata() or {}).get(KEY, "")
        described = read_description(text, str(path), build)
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no mapping
        return Predictor(described, _rebuilt(described, tensors, path))


def read_pt2(path: Path, build: str = "") -> Predictor:
    with _sound(path, "PT2"), zipfile.ZipFile(path) as archive:
        members = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        budget = [path.stat().st_size]

        def content(name: str) -> bytes:
            """A member as it lies in the file: torch does not compress, so nothing can grow."""
            info = members[name]
            budget[0] -= info.file_size
            if info.compress_type != zipfile.ZIP_STORED or budget[0] < 0:
                raise ValueError("a member is compressed or read twice")
            return archive.read(info)

        if content("byteorder") != b"little":
            raise ValueError("it is not little-endian")
        described = read_description(content(f"extra/{KEY}").decode(), str(path), build)
        table = parse_json(content("data/weights/model_weights_config.json"))["config"]
        tensors = {name: _raw_tensor(entry, content) for name, entry in table.items()}
        return Predictor(described, _rebuilt(described, tensors, path))


def _raw_tensor(entry: dict[str, Any], content: Any) -> Tensor:
    meta = entry["tensor_meta"]
    sizes, strides = ([int(part["as_int"]) for part in meta[key]] for key in ("sizes", "strides"))
    offset = int(meta["storage_offset"]["as_int"])
    if entry["use_pickle"] or meta["dtype"] != FLOAT32:
        raise ValueError("a weight is not stored as plain float32 numbers")
    flat = torch.frombuffer(bytearray(content(f"data/weights/{entry['path_name']}")), dtype=torch.float32)
    reach = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if min([offset, *(size - 1 for size in sizes), *strides]) < 0 or reach >= len(flat) or math.prod(sizes) > len(flat):
        raise ValueError("a weight reaches beyond its numbers")
    return flat.as_strided(sizes, strides, offset).clone()


def _rebuilt(described: Description, tensors: Params, path: Path) -> Any:
    params = {name.removeprefix("weights."): t for name, t in tensors.items() if name.startswith("weights.")}
    steps = {name: t for name, t in tensors.items() if not name.startswith("weights.")}
    try:
        return rebuild(described, params, steps)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def read_onnx(path: Path, build: str = "") -> Predictor:
    onnx, runtime = extra("onnx"), extra("onnxruntime")
    content = path.read_bytes()
    with _sound(path, "ONNX"):
        proto = onnx.load_model_from_string(content)
        _check_onnx(proto)
        props = {prop.key: prop.value for prop in proto.metadata_props}
        described = read_description(props.get(KEY, ""), str(path), None)
        options = _session_options(runtime)
        session = within(LONGEST_STEP, lambda: _session(runtime, content, options))
    return Predictor(described, _Bounded(path, session, answer_names(described.task)))


def _session(runtime: Any, content: bytes, options: Any) -> Any:
    return runtime.InferenceSession(
        content, options, providers=["CPUExecutionProvider"],
        enable_fallback=0,  # it would print what it tries, on the standard output
    )  # fmt: skip


class _Bounded:
    """A graph as a function that ends: one sample within a time, and many within some times what they should take."""

    def __init__(self, path: Path, session: Any, names: list[str]) -> None:
        self.path, self.session, self.names = path, session, names
        self.pace: float | None = None  # seconds that one sample took

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        try:
            if self.pace is None and len(x):
                began = time.monotonic()
                self._answers(x[:1], LONGEST_STEP)
                self.pace = time.monotonic() - began
            return self._answers(x, max(LONGEST_STEP, SLACK * len(x) * (self.pace or 0.0)))
        except Exception as error:  # the runtime's own errors have no common base
            raise UserError(f"{self.path} cannot be run: {str(error).splitlines()[0][:300]}.") from None

    def _answers(self, x: Tensor, seconds: float) -> tuple[Tensor, ...]:
        found = within(seconds, lambda: self.session.run(self.names, {"x": x.numpy()}))
        return tuple(torch.from_numpy(part) for part in found)


def _check_onnx(proto: Any) -> None:
    """Refuse what reaches outside the file, and what may never end."""
    if any(tensor.data_location or tensor.external_data for tensor in proto.graph.initializer):
        raise ValueError("it names other files")
    if proto.functions or proto.training_info or proto.graph.sparse_initializer:
        raise ValueError("it holds more than a graph")
    for node in proto.graph.node:
        if node.domain not in ("", "ai.onnx") or node.op_type in SUBGRAPHS:
            raise ValueError(f"it holds the operator {node.domain}{node.op_type}")
        for attribute in node.attribute:
            if attribute.HasField("g") or attribute.graphs or attribute.t.external_data:
                raise ValueError("it holds a graph in a graph, or names other files")


def _session_options(runtime: Any) -> Any:
    _bound_memory()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # errors come as exceptions
    options.add_session_config_entry("session.use_env_allocators", "1")
    return options


@functools.cache
def _bound_memory() -> None:
    """The runtime's memory, once for the process: half of what is free."""
    runtime = extra("onnxruntime")
    kind = runtime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    place = runtime.OrtMemoryInfo("Cpu", kind, 0, runtime.OrtMemType.DEFAULT)
    most = int(min(free_memory() / 2, 2**62))
    runtime.create_and_register_allocator(place, runtime.OrtArenaCfg({"max_mem": most}))


@contextmanager
def _sound(path: Path, form: str) -> Iterator[None]:
    """Whatever a library stumbles over is a damaged file."""
    try:
        yield
    except UserError:
        raise
    except TimeoutError as error:
        raise UserError(f"{path} cannot be opened: {error}.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or 'it is damaged'}.") from None
    except Exception as error:
        why = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}" if str(error) else type(error).__name__
        raise UserError(f"{path} is damaged or no {form} file of `perinvfl export` ({why}).") from None
