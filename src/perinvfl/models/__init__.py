"""Models as pure functions: `init` draws the parameters of one model, `apply` predicts with them."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from perinvfl.core.hyper import asked, hyper
from perinvfl.core.memory import check_fits
from perinvfl.errors import UserError
from perinvfl.models.base import Model, Precision, mix_statistics
from perinvfl.models.image_operations import Convolution, Kernels
from perinvfl.models.mlp import mlp
from perinvfl.models.resnet import Norm, Stem, resnet18
from perinvfl.models.symmetry import Symmetry, blinded
from perinvfl.models.torch_module import module

__all__ = [
    "AT_ONCE",
    "FLOAT",
    "Model",
    "ModelSettings",
    "Precision",
    "build_model",
    "mix_statistics",
    "mlp",
    "module",
    "resnet18",
]

FLOAT, AT_ONCE = 4, 3  # bytes of a number; copies of a model that training has at once
PERCEPTRON = ("hidden",)
OWN = ("build",)
RESNET = ("norm", "width", "stem", "convolution", "kernels", "weights")


@dataclass(frozen=True)
class ModelSettings:
    kind: Literal["mlp", "linear", "resnet18", "module"] = hyper(
        "mlp",
        "which model to train: mlp, a multi-layer perceptron, suits tables and small images; linear is one "
        "layer without bias; resnet18 is for colour images; module is a torch.nn.Module of your own",
    )
    hidden: tuple[int, ...] = hyper(
        (390, 390),
        "mlp: number of units in each hidden layer; more fit more and overfit sooner; the default is the "
        "paper's, [] makes the model linear",
        least=1,
        most=10**6,
    )
    norm: Norm = hyper(
        "group",
        "resnet18: normalise over groups of channels of one image (group, the default), which does not depend "
        "on what other images a client has, or over the batch (batch), as the usual network does",
    )
    width: int = hyper(
        64,
        "resnet18: number of channels of the first layers, the last having 8 times as many; fewer train "
        "faster and fit less; 64 is the usual network",
        least=1,
        most=10**4,
    )
    stem: Stem = hyper(
        "imagenet",
        "resnet18: first layer; imagenet, the default, is 7x7 with stride 2 and pooling, for large images; "
        "small is 3x3 alone, which keeps what small images show",
    )
    convolution: Convolution = hyper(
        "library",
        "resnet18: how convolutions are computed where `kernels` computes none; library, the default, by PyTorch's; "
        "products as matrix products, which is faster for many clients at once and differs by rounding only",
    )
    kernels: Kernels = hyper(
        "auto",
        "resnet18: auto, the default, computes norms, pooling and, in bfloat16 or tf32, convolutions by kernels of "
        "this project on GPUs with Triton, for all clients at once, which is several times as fast; none uses "
        "PyTorch's operations alone, which differ by rounding only and which an algorithm of your own needs that takes "
        "gradients of gradients",
        later=True,
    )
    weights: str = hyper(
        "",
        "resnet18: file of pre-trained weights with torchvision's names (.pth, .safetensors) to start from, "
        "which helps where images are few; empty starts from random weights",
    )
    blind_to: Symmetry = hyper(
        "nothing",
        "average the model's answers over rotations by right angles or mirrorings of the image, so that it "
        'cannot tell by which an image was turned; with "nothing" it sees images as they are',
        later=True,
    )
    build: str = hyper(
        "",
        "module: function that makes your own torch.nn.Module, as module:function; it is called with shape "
        "and outputs, or without arguments; empty for the other kinds",
    )

    def asked(self) -> dict[str, Any]:
        """The settings that mean something to this kind: they name a run."""
        idle = {"resnet18": PERCEPTRON + OWN, "module": PERCEPTRON + RESNET}.get(self.kind, RESNET + OWN)
        return {key: value for key, value in asked(self).items() if key not in idle}

    def check(self, where: str) -> None:
        if (self.kind == "module") != bool(self.build):
            raise UserError(f'{where}.kind = "module" and {where}.build = "module:function" go together.')
        changed = [key for key in RESNET if getattr(self, key) != getattr(ModelSettings(), key)]
        if changed and self.kind != "resnet18":
            raise UserError(f'{where}.{changed[0]} means nothing to kind = "{self.kind}"; leave it out.')


def build_model(settings: ModelSettings, shape: tuple[int, ...], outputs: int, precision: Precision) -> Model:
    """The model for inputs of the given shape. bfloat16: products in bfloat16, parameters and logits in float32."""
    model = _build(settings, shape, outputs, precision)
    check_fits(FLOAT * AT_ONCE * model.size, f"A model of {model.size:,} parameters, with its gradient and its update,")
    return blinded(model, settings.blind_to, shape)


def _build(settings: ModelSettings, shape: tuple[int, ...], outputs: int, precision: Precision) -> Model:
    if settings.kind == "resnet18":
        if len(shape) != 3 or shape[0] != 3:
            raise UserError(f'model.kind = "resnet18" takes images of three colours, and these data are {shape}.')
        return resnet18(
            outputs,
            norm=settings.norm,
            width=settings.width,
            stem=settings.stem,
            convolution=settings.convolution,
            kernels=settings.kernels,
            weights=settings.weights,
            precision=precision,
        )
    if settings.kind == "module":
        return module(settings.build, shape, outputs, precision)
    inputs = math.prod(shape)
    if settings.kind == "linear":
        return mlp((inputs, outputs), bias=False, precision=precision)
    return mlp((inputs, *settings.hidden, outputs), bias=True, precision=precision)
