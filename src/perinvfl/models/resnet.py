"""ResNet-18 (He et al., 2016) as a pure function, with the parameter names of torchvision.

Images come as [B, 3, H, W], uint8 ones are scaled by ImageNet's mean and deviation. Inside, channels come last.

norm = "batch" normalises by the batch in training. Batch statistics for prediction are not gathered on the way: they
are measured on a client's own data for the very model that is used (`statistics`), and they sit among the parameters
under torchvision's names, where `apply` finds them. So nothing but parameters is ever trained, pulled or averaged, and
the statistics of a global model are mixed from those of its clients in one place (`mix_statistics`).
"""

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from perinvfl.core.files import read_file
from perinvfl.core.plugins import in_words
from perinvfl.core.tensor_files import load_tensors
from perinvfl.core.tree import Params
from perinvfl.errors import UserError
from perinvfl.models.base import Model, Precision, arithmetic
from perinvfl.models.fused import EPSILON
from perinvfl.models.image_operations import Convolution, ImageOperations, Kernels, add_and_cut

Norm = Literal["group", "batch"]
Stem = Literal["imagenet", "small"]

BLOCKS = 2  # in each of the four layers
IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def resnet18(
    outputs: int,
    norm: Norm = "group",
    width: int = 64,
    stem: Stem = "imagenet",
    convolution: Convolution = "library",
    kernels: Kernels = "auto",
    weights: str = "",
    precision: Precision = "float32",
) -> Model:
    shapes = parameter_shapes(outputs, width, stem)
    dtype = arithmetic(precision)
    images = ImageOperations(convolution, kernels, dtype)
    given = read_weights(Path(weights), shapes) if weights else {}

    def init(generator: Generator) -> Params:
        return {name: given.get(name, leaf) for name, leaf in _draw(shapes, generator).items()}

    def forward(params: Params, x: Tensor, measured: Params | None) -> Tensor:
        def normalise(name: str, h: Tensor, relu: bool = True, around: Tensor | None = None) -> Tensor:
            if norm == "group":
                return images.group_norm(h, params[f"{name}.weight"], params[f"{name}.bias"], relu, around)
            return add_and_cut(_batch_norm(name, h, params, measured), relu, around)

        def convolved(name: str, h: Tensor, stride: int) -> Tensor:
            return images.convolve(h, params[f"{name}.weight"], stride)

        def block(name: str, h: Tensor, stride: int) -> Tensor:
            around = h
            if f"{name}.downsample.0.weight" in params:
                around = normalise(f"{name}.downsample.1", convolved(f"{name}.downsample.0", h, stride), relu=False)
            h = normalise(f"{name}.bn1", convolved(f"{name}.conv1", h, stride))
            return normalise(f"{name}.bn2", convolved(f"{name}.conv2", h, 1), around=around)

        h = normalise("bn1", convolved("conv1", channels_last(x, dtype), 2 if stem == "imagenet" else 1))
        if stem == "imagenet":
            h = images.pool(h)
        for layer in range(1, 5):
            for number in range(BLOCKS):
                h = block(f"layer{layer}.{number}", h, 2 if layer > 1 and number == 0 else 1)
        return h.float().mean((1, 2))  # [B, 8 * width]

    def features(params: Params, x: Tensor) -> Tensor:
        return forward(params, x, None)

    def classify(params: Params, h: Tensor) -> Tensor:
        return F.linear(h, params["fc.weight"], params["fc.bias"])

    def apply(params: Params, x: Tensor) -> Tensor:
        return classify(params, features(params, x))

    def statistics(params: Params, x: Tensor) -> Params:
        measured: Params = {}
        forward(params, x, measured)
        return measured

    measured, size = statistics if norm == "batch" else None, sum(map(math.prod, shapes.values()))
    last = ("fc.weight", "fc.bias")
    norms = tuple(name for name, shape in shapes.items() if len(shape) == 1 and name not in last)
    return Model(init, apply, lambda params: params, features, classify, measured, head=last, norms=norms, size=size)


def parameter_shapes(outputs: int, width: int = 64, stem: Stem = "imagenet") -> dict[str, tuple[int, ...]]:
    """Every parameter by torchvision's name, in torchvision's order."""
    shapes: dict[str, tuple[int, ...]] = {}

    def add(convolution: str, norm: str, outs: int, ins: int, kernel: int) -> None:
        shapes[f"{convolution}.weight"] = (outs, ins, kernel, kernel)
        shapes[f"{norm}.weight"] = shapes[f"{norm}.bias"] = (outs,)

    add("conv1", "bn1", width, 3, 7 if stem == "imagenet" else 3)
    ins = width
    for layer in range(1, 5):
        outs = width * 2 ** (layer - 1)
        for number in range(BLOCKS):
            name = f"layer{layer}.{number}"
            add(f"{name}.conv1", f"{name}.bn1", outs, ins, 3)
            add(f"{name}.conv2", f"{name}.bn2", outs, outs, 3)
            if ins != outs:
                add(f"{name}.downsample.0", f"{name}.downsample.1", outs, ins, 1)
            ins = outs
    shapes["fc.weight"], shapes["fc.bias"] = (outputs, ins), (outputs,)
    return shapes


def _draw(shapes: dict[str, tuple[int, ...]], generator: Generator) -> Params:
    """He's normal law for convolutions, ones and zeros for norms, and a linear layer's usual uniform law."""
    params = {}
    for name, shape in shapes.items():
        leaf = torch.empty(shape)
        if len(shape) == 4:
            torch.nn.init.kaiming_normal_(leaf, mode="fan_out", nonlinearity="relu", generator=generator)
        elif name.startswith("fc."):
            bound = 1 / math.sqrt(shapes["fc.weight"][1])
            leaf.uniform_(-bound, bound, generator=generator)
        else:
            leaf.fill_(1.0 if name.endswith("weight") else 0.0)
        params[name] = leaf
    return params


def channels_last(x: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, H, W, 3]; uint8 images as numbers around 0, other numbers as they are."""
    if x.dtype != torch.uint8:
        return x.to(dtype).permute(0, 2, 3, 1).contiguous()
    colours = zip(x.unbind(1), IMAGENET_MEAN, IMAGENET_DEVIATION, strict=True)
    # Plain numbers, no tensor of them: a captured program may not copy from the host.
    return torch.stack([((colour / 255 - mean) / deviation).to(dtype) for colour, mean, deviation in colours], -1)


def _batch_norm(name: str, h: Tensor, params: Params, measured: Params | None) -> Tensor:
    if f"{name}.running_mean" in params:
        mean, variance = params[f"{name}.running_mean"], params[f"{name}.running_var"]
    else:
        variance, mean = torch.var_mean(h.float(), (0, 1, 2), correction=0)
    if measured is not None:
        measured[f"{name}.running_mean"], measured[f"{name}.running_var"] = mean, variance
    scale = params[f"{name}.weight"] * torch.rsqrt(variance + EPSILON)
    return h * scale.to(h.dtype) + (params[f"{name}.bias"] - mean * scale).to(h.dtype)


def read_weights(path: Path, shapes: dict[str, tuple[int, ...]]) -> Params:
    """Parameters from a file with torchvision's names; a last layer for other classes is left out."""
    readers: dict[str, Callable[[Path], Params]] = {".safetensors": _read_safetensors, ".pth": _read_pickle}
    if path.suffix not in readers:
        raise UserError(f"model.weights = {path}: must be a .pth or .safetensors file.")
    try:
        found = readers[path.suffix](path)
    except OSError as error:
        raise UserError(f"model.weights = {path}: cannot be read: {error.strerror}.") from None
    except Exception as error:  # whatever a reader finds wrong with a file that is none
        raise UserError(f"model.weights = {path}: holds no weights ({in_words(error)}).") from None
    taken = {}
    for name, shape in shapes.items():
        fits = name in found and tuple(found[name].shape) == shape
        if not fits and not name.startswith("fc."):
            instead = f"of shape {tuple(found[name].shape)}" if name in found else "not there"
            raise UserError(f"model.weights = {path}: {name} is {instead}, and must be of shape {shape}.")
        if fits:
            taken[name] = found[name].float()
    return taken


def _read_pickle(path: Path) -> Params:
    """Files of torch before 1.6 are no archives and are refused: nothing bounds what they unpack to."""
    return _named_tensors(load_tensors(read_file(path)))


def _named_tensors(found: Any) -> Params:
    if not isinstance(found, dict) or not all(isinstance(leaf, Tensor) for leaf in found.values()):
        raise ValueError("it holds no tensors by name")
    return found


def _read_safetensors(path: Path) -> Params:
    """The format is plain: the length of a JSON header, the header, the numbers."""
    types = {
        "F64": torch.float64,
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "I64": torch.int64,
    }
    content = read_file(path)
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    body = bytearray(content[8 + length :])
    places = [entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"]
    if sum(end - start for start, end in places) > len(body) or any(not 0 <= start <= end for start, end in places):
        raise ValueError("its tensors are larger than the file")
    return {
        name: torch.frombuffer(body[slice(*entry["data_offsets"])], dtype=types[entry["dtype"]]).view(entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__"
    }
