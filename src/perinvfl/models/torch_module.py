"""Any torch.nn.Module as a model of pure functions: `[model] kind = "module"`, `build = "my_module:build"`.

A client's step is a pure function of parameters and data, so a module may not change itself while it predicts (running
statistics) nor draw random numbers (dropout). Both are looked for at the start and answered with a sentence. A module
that cannot run for many clients at once (`vmap`) is noticed too and runs one client after another.
"""

import copy
import hashlib
import inspect
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor, nn

from perinvfl.core.plugins import in_words, load
from perinvfl.core.tree import Params
from perinvfl.errors import UserError
from perinvfl.models.base import Model, Precision, arithmetic

NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)  # instance norms are of the first
CHECKED = 4  # samples in the trial batch


def module(build: str | Callable[..., nn.Module], shape: tuple[int, ...], outputs: int, precision: Precision) -> Model:
    """What `build` makes, checked on a small batch. Its last layer is not known: its features are its logits."""
    dtype = arithmetic(precision)
    name = build if isinstance(build, str) else getattr(build, "__qualname__", type(build).__name__)
    where = f'model.build = "{name}"'
    function = load(build, "model.build") if isinstance(build, str) else build
    template = _build(function, shape, outputs, 0, where)
    _check_layers(template, where)
    _check_behaviour(template, shape, outputs, where)
    trained = {name for name, leaf in template.named_parameters() if leaf.requires_grad}
    fixed = {
        name: leaf.detach().to(dtype) if leaf.is_floating_point() else leaf.detach()
        for name, leaf in (*template.named_parameters(), *template.named_buffers())
        if name not in trained
    }
    # functional_call swaps tensors inside the module, and the loop executor runs clients on several threads.
    copies = threading.local()
    copies.module = copy.deepcopy(template)
    placed = _on_every_device(fixed)

    def init(generator: Generator) -> Params:
        made = _build(function, shape, outputs, generator.initial_seed(), where)
        return {name: leaf.detach().clone() for name, leaf in made.named_parameters() if name in trained}

    def apply(params: Params, x: Tensor) -> Tensor:
        if not hasattr(copies, "module"):
            copies.module = copy.deepcopy(template)
        given = {name: leaf.to(dtype) for name, leaf in params.items()} | placed[x.device.type]
        x = x.to(dtype) / 255 if x.dtype == torch.uint8 else x.to(dtype)  # images at rest are bytes
        out = torch.func.functional_call(copies.module, given, (x,))
        return (out[:, None] if out.ndim == 1 else out).float()

    return Model(
        init,
        apply,
        strip=lambda params: params,
        features=apply,
        classify=lambda params, logits: logits,
        norms=_norms(template),
        size=sum(leaf.numel() for name, leaf in template.named_parameters() if name in trained),
        unmapped=_why_unmapped(init, apply, shape),
    )


def _on_every_device(fixed: Params) -> dict[str, Params]:
    """By kind of device, placed beforehand: what is moved inside a transform, such as vmap, belongs to it alone."""
    kinds = ["cpu", "cuda"] if fixed and torch.cuda.is_available() else ["cpu"]
    placed = {kind: {name: leaf.to(kind) for name, leaf in fixed.items()} for kind in kinds}
    return placed if fixed else {"cpu": {}, "cuda": {}}


def _norms(template: nn.Module) -> tuple[str, ...]:
    """The trained scales and shifts of its norm layers."""
    return tuple(
        f"{layer}.{name}" if layer else name
        for layer, part in template.named_modules()
        if isinstance(part, NORMS)
        for name, leaf in part.named_parameters(recurse=False)
        if leaf.requires_grad
    )


def shapes_checksum(params: Params) -> str:
    """Eight hex digits of the names and shapes of a model's parameters."""
    shapes = repr([(name, tuple(leaf.shape)) for name, leaf in params.items()])
    return hashlib.sha256(shapes.encode()).hexdigest()[:8]


def _build(function: Any, shape: tuple[int, ...], outputs: int, seed: int, where: str) -> nn.Module:
    """Called with what it takes of shape and outputs, under a seed of its own."""
    if not callable(function):
        raise UserError(f"{where}: must be a function that makes a torch.nn.Module.")
    offered = {"shape": shape, "outputs": outputs}
    taken = inspect.signature(function).parameters.values()
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken)
    given = {key: value for key, value in offered.items() if anything or key in [p.name for p in taken]}
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    missing = [p.name for p in taken if p.default is p.empty and p.name not in given and p.kind not in variadic]
    if missing:
        raise UserError(f"{where}: is called with shape and outputs or with nothing, and asks for {missing[0]}.")
    with torch.random.fork_rng(devices=[]):
        _seed(seed)
        try:
            module = function(**given)
        except Exception as error:
            raise UserError(f"{where}: failed with {in_words(error)}.") from error
    if not isinstance(module, nn.Module):
        raise UserError(f"{where}: must return a torch.nn.Module, and returned {type(module).__name__}.")
    if not any(leaf.requires_grad for leaf in module.parameters()):
        raise UserError(f"{where}: the module has no parameter to train.")
    return module.eval()


def _seed(seed: int) -> None:
    """As torch.manual_seed, which without a GPU keeps three stack traces per call for the day that one appears."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def _check_layers(module: nn.Module, where: str) -> None:
    """The usual reasons, each with the usual cure."""
    for name, layer in module.named_modules():
        kind = type(layer).__name__
        if getattr(layer, "track_running_stats", False):
            raise UserError(
                f"{where}: layer {name} is a {kind}, whose running statistics a client's step cannot carry; use "
                f"torch.nn.GroupNorm, or {kind}(..., track_running_stats=False), which takes each batch's own."
            )
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
            raise UserError(
                f"{where}: layer {name} is a {kind}, and a client's step draws no random numbers; take it out or set "
                "p=0, and use the algorithm's l2 to hold the model back."
            )


def _check_behaviour(template: nn.Module, shape: tuple[int, ...], outputs: int, where: str) -> None:
    x = torch.randn(CHECKED, *shape, generator=torch.Generator().manual_seed(0))
    module = copy.deepcopy(template)
    first, again = _forward(module.eval(), x, 1, where), None
    if not isinstance(first, Tensor) or not first.is_floating_point():
        raise UserError(f"{where}: must put out one tensor of floats, not {type(first).__name__}.")
    if tuple(first.shape) not in ((CHECKED, outputs), *(((CHECKED,),) if outputs == 1 else ())):
        raise UserError(
            f"{where}: puts out shape {list(first.shape)} for {CHECKED} samples of shape {list(shape)}; "
            f"must be [{CHECKED}, {outputs}]."
        )
    before = {name: leaf.clone() for name, leaf in module.named_buffers()}
    module.train()
    first, again = _forward(module, x, 1, where), _forward(module, x, 2, where)
    changed = [name for name, leaf in module.named_buffers() if not torch.equal(leaf, before[name])]
    if changed:
        raise UserError(
            f"{where}: the buffer {changed[0]} changes while the module predicts, which a client's step cannot carry; "
            "make the module's output depend on its input and parameters alone."
        )
    if not torch.equal(first, again):
        raise UserError(f"{where}: draws random numbers while it predicts, and a client's step may not.")
    if not torch.allclose(first, _forward(module.eval(), x, 1, where), rtol=1e-4, atol=1e-5):
        raise UserError(f"{where}: behaves differently in training and in evaluation, and here both are the same.")


def _forward(module: nn.Module, x: Tensor, seed: int, where: str) -> Any:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        _seed(seed)
        try:
            return module(x)
        except Exception as error:
            raise UserError(
                f"{where}: fails on samples of shape {list(x.shape[1:])} with {in_words(error)}."
            ) from error


def _why_unmapped(init: Callable[[Generator], Params], apply: Callable[..., Tensor], shape: tuple[int, ...]) -> str:
    """Try what the batched executor does: the gradient of two models at once."""
    params = [init(torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    stacked = {name: torch.stack([one[name] for one in params]) for name in params[0]}
    x = torch.zeros(2, CHECKED, *shape)
    try:
        torch.vmap(torch.func.grad(lambda p, x: apply(p, x).sum()))(stacked, x)
    except Exception as error:
        return in_words(error).split(". ")[0]  # torch goes on with advice
    return ""
