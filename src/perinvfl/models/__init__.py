"""Models as pure functions: `init` draws the parameters of one model, `apply` predicts with them."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from perinvfl.core.hyper import asked, hyper
from perinvfl.core.memory import check_fits
from perinvfl.errors import UserError
from perinvfl.models.base import Model, Precision, mix_statistics
from perinvfl.models.mlp import mlp
from perinvfl.models.resnet import Convolution, Norm, Stem, resnet18
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
RESNET = ("norm", "width", "stem", "convolution", "weights")


@dataclass(frozen=True)
class ModelSettings:
    kind: Literal["mlp", "linear", "resnet18", "module"] = hyper(
        "mlp",
        "multi-layer perceptron, one linear layer without bias, ResNet-18 for images of three colours, or your own",
    )
    hidden: tuple[int, ...] = hyper((390, 390), "widths of the hidden layers of an mlp", least=1, most=10**6)
    norm: Norm = hyper("group", "what a resnet18 normalises by: groups of channels of one image, or its batch")
    width: int = hyper(
        64, "channels of a resnet18's first layers; its features are 8 times as many", least=1, most=10**4
    )
    stem: Stem = hyper("imagenet", "a resnet18's entry: 7x7, stride 2 and pooling, or 3x3 and nothing else")
    convolution: Convolution = hyper(
        "library", "how a resnet18 computes: the library's convolutions, or as matrix products (faster under vmap)"
    )
    weights: str = hyper("", "file of a resnet18's first weights, torchvision's names (.pth, .safetensors)")
    blind_to: Symmetry = hyper(
        "nothing", "average the logits over turns by right angles or mirrorings, so that they cannot matter", later=True
    )
    build: str = hyper("", "module:function that makes your own, called with shape and outputs or with nothing")

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
            weights=settings.weights,
            precision=precision,
        )
    if settings.kind == "module":
        return module(settings.build, shape, outputs, precision)
    inputs = math.prod(shape)
    if settings.kind == "linear":
        return mlp((inputs, outputs), bias=False, precision=precision)
    return mlp((inputs, *settings.hidden, outputs), bias=True, precision=precision)
