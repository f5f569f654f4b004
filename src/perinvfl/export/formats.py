"""One file a model: safetensors (weights), ONNX and PT2 (the whole graph). Each holds the description too."""

import io
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perinvfl.core.files import write_atomically
from perinvfl.errors import UserError
from perinvfl.export.module import Deployed, Description, answer_names, read_description, rebuild

KEY = "perinvfl"  # under which the description lies


@dataclass(frozen=True)
class Predictor:
    """A model read back: x [B, ...] in, answers by name out."""

    description: Description
    apply: Callable[[Tensor], tuple[Tensor, ...]]

    def __call__(self, x: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            return dict(zip(answer_names(self.description.task), self.apply(x), strict=True))


def write_model(module: Deployed, description: Description, form: str, path: Path) -> None:
    write_atomically(path, FORMATS[form].write(module, description))


def read_model(path: Path) -> Predictor:
    if not path.is_file():
        raise UserError(f"{path} does not exist; `perinvfl export` makes such a file.")
    form = FORMATS.get(path.suffix.removeprefix("."))
    if form is None:
        raise UserError(
            f"{path}: the name must end in {', '.join('.' + name for name in FORMATS)}, or be a run folder."
        )
    return form.read(path)


# safetensors -----------------------------------------------------------------------------------------------------


def _write_safetensors(module: Deployed, description: Description) -> bytes:
    safetensors = _extra("safetensors.torch")
    tensors = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
    return safetensors.save(tensors, metadata={KEY: description.as_json()})


def _read_safetensors(path: Path) -> Predictor:
    safetensors = _extra("safetensors")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            described = read_description((file.metadata() or {}).get(KEY, ""), str(path))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no mapping
    except safetensors.SafetensorError as error:
        raise UserError(f"{path} is damaged or no safetensors file ({error}).") from None
    params = {name.removeprefix("weights."): t for name, t in tensors.items() if name.startswith("weights.")}
    steps = {name: t for name, t in tensors.items() if not name.startswith("weights.")}
    return Predictor(described, rebuild(described, params, steps))


# ONNX ------------------------------------------------------------------------------------------------------------


def _write_onnx(module: Deployed, description: Description) -> bytes:
    _extra("onnxscript")
    onnx = _extra("onnx")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it would list operators of packages not installed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside the exporter, which a user can do nothing about
        program = torch.onnx.export(
            module, (_example(description),), dynamo=True, verbose=False, dynamic_shapes=_any_batch(),
            input_names=["x"], output_names=answer_names(description.task),
        )  # fmt: skip
    assert program is not None
    proto = program.model_proto
    onnx.helper.set_model_props(proto, {KEY: description.as_json()})
    onnx.checker.check_model(proto)
    return proto.SerializeToString()


def _read_onnx(path: Path) -> Predictor:
    runtime = _extra("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    try:
        session = runtime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's own errors have no common base
        raise UserError(f"{path} is damaged or no ONNX file ({type(error).__name__}).") from None
    described = read_description(session.get_modelmeta().custom_metadata_map.get(KEY, ""), str(path))

    def apply(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.from_numpy(part) for part in session.run(None, {"x": x.numpy()}))

    return Predictor(described, apply)


# PT2 -------------------------------------------------------------------------------------------------------------


def _write_pt2(module: Deployed, description: Description) -> bytes:
    buffer = io.BytesIO()
    program = torch.export.export(module, (_example(description),), dynamic_shapes=_any_batch())
    torch.export.save(program, buffer, extra_files={KEY: description.as_json()})
    return buffer.getvalue()


def _read_pt2(path: Path) -> Predictor:
    extra: dict[str, Any] = {KEY: ""}
    try:
        program = torch.export.load(path, extra_files=extra)
    except Exception as error:  # whatever the archive's reader stumbles over
        raise UserError(f"{path} is damaged or no PT2 file ({type(error).__name__}).") from None
    return Predictor(read_description(extra[KEY], str(path)), program.module())


@dataclass(frozen=True)
class Format:
    write: Callable[[Deployed, Description], bytes]
    read: Callable[[Path], Predictor]


FORMATS = {
    "safetensors": Format(_write_safetensors, _read_safetensors),
    "onnx": Format(_write_onnx, _read_onnx),
    "pt2": Format(_write_pt2, _read_pt2),
}


def _example(description: Description) -> Tensor:
    return torch.zeros(2, *description.shape, dtype=getattr(torch, description.dtype))


def _any_batch() -> Any:
    return ({0: torch.export.Dim("batch")},)


def _extra(name: str) -> Any:
    """A module of the `export` extra."""
    import importlib

    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name != name.partition(".")[0]:
            raise
        raise UserError(f"This format needs {missing.name}: pip install 'perinvfl[export]'.") from None
