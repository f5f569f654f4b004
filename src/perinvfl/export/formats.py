"""One file a model: safetensors (weights), ONNX and PT2 (the whole graph). Each holds the description too.

`readers` reads them back.
"""

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
from perinvfl.export.libraries import extra
from perinvfl.export.module import Deployed, Description, answer_names
from perinvfl.export.predictor import Predictor
from perinvfl.export.readers import KEY, read_onnx, read_pt2, read_safetensors

__all__ = ["FORMATS", "Predictor", "read_model", "write_model"]


def write_model(module: Deployed, description: Description, form: str, path: Path) -> None:
    write_atomically(path, FORMATS[form].write(module, description))


def read_model(path: Path, build: str = "") -> Predictor:
    """build: the own code, as `module:function`, that may be run to build the model; no other is."""
    if not path.is_file():
        raise UserError(f"{path} does not exist; `perinvfl export` makes such a file.")
    form = FORMATS.get(path.suffix.removeprefix("."))
    if form is None:
        raise UserError(
            f"{path}: the name must end in {', '.join('.' + name for name in FORMATS)}, or be a run folder."
        )
    return form.read(path, build)


# safetensors -----------------------------------------------------------------------------------------------------


def _write_safetensors(module: Deployed, description: Description) -> bytes:
    safetensors = extra("safetensors.torch")
    tensors = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
    return safetensors.save(tensors, metadata={KEY: description.as_json()})


# ONNX ------------------------------------------------------------------------------------------------------------


def _write_onnx(module: Deployed, description: Description) -> bytes:
    extra("onnxscript")
    onnx = extra("onnx")
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


# PT2 -------------------------------------------------------------------------------------------------------------


def _write_pt2(module: Deployed, description: Description) -> bytes:
    buffer = io.BytesIO()
    program = torch.export.export(module, (_example(description),), dynamic_shapes=_any_batch())
    torch.export.save(program, buffer, extra_files={KEY: description.as_json()})
    return buffer.getvalue()


@dataclass(frozen=True)
class Format:
    write: Callable[[Deployed, Description], bytes]
    read: Callable[[Path, str], Predictor]


FORMATS = {
    "safetensors": Format(_write_safetensors, read_safetensors),
    "onnx": Format(_write_onnx, read_onnx),
    "pt2": Format(_write_pt2, read_pt2),
}


def _example(description: Description) -> Tensor:
    return torch.zeros(2, *description.shape, dtype=getattr(torch, description.dtype))


def _any_batch() -> Any:
    return ({0: torch.export.Dim("batch")},)
