"""How columns relate to the label in every context, as sums over samples: all that a client gives away of it.

For each column of a table (for images: the mean of each colour channel) its slope on the label, by context. Slopes are
taken on the label, not the other way round: they do not change when classes are more or less common, and a shift of a
whole client cancels. Of several classes, slopes are those on all classes at once: how far each class lies from the
middle of all. `learning.variation` says what follows from the sums.
"""

import torch
from torch import Tensor

from perinvfl.core.tree import Params
from perinvfl.data.federation import Task
from perinvfl.learning import risks

JOINT_COLUMNS = 128  # of more columns than this, each is looked at by itself
SCALE = 2.0**-14  # sums are sent in this unit: secure aggregation counts in small numbers
COUNTED = "rows", "samples", "total_square", "within_freedom", "within_weight", "freedom"
SQUARES = "noise", "within", "square", "context_weight", "weight", "weight_square"
ROUNDED = 1e-4  # what float32 leaves of a difference of large numbers, as a share of them
LEAST_SAMPLES = 8  # a context of fewer has no part: what is sent must not tell of single samples


def summaries(x: Tensor) -> Tensor:
    """[M, d] what is looked at: a table's columns, or the mean of each channel of an image."""
    values = x.double() / 255 if x.dtype == torch.uint8 else x.double()
    return values.flatten(2).mean(2) if values.ndim == 4 else values.flatten(1)


def zero_sums(shape: tuple[int, ...], targets: int, contexts: int) -> Params:
    d = shape[0] if len(shape) == 3 else torch.Size(shape).numel()
    square = (d, d) if d <= JOINT_COLUMNS else (d,)
    shapes = {
        "noise": square,  # Σ r rᵀ of what neither context nor slope explains
        "rows": (1,),  # samples, less what was fitted to them
        "samples": (1,),
        "total": (d,),  # Σ x
        "total_square": (d,),  # Σ (x − x̄_i)²
        "within": square,  # Σ (b − b̄_i)ᵀ W (b − b̄_i) over the contexts of each client, b [C, d] being slopes
        "within_freedom": (1,),
        "within_weight": (1,),  # by which a variance of slopes counts in `within`
        "context_slope": (
            contexts,
            targets,
            d,
        ),  # Σ W b by the number of the context, which may mean the same everywhere
        "context_weight": (contexts, targets, targets),
        "square": square,  # Σ b̄_iᵀ W_i b̄_i over clients
        "slope": (targets, d),  # Σ W_i b̄_i
        "weight": (targets, targets),  # Σ W_i
        "weight_square": (targets, targets),
        "freedom": (1,),  # slopes that clients have, one less than classes
    }
    return {name: torch.zeros(size) for name, size in shapes.items()}


def client_sums(task: Task, outputs: int, contexts: int, x: Tensor, y: Tensor, context: Tensor) -> Params:
    """The sums of one client, from [M, ...] samples; padding has no part."""
    values = summaries(x)
    member = risks.membership(context, contexts).double()  # [M, K]
    member = member * (member.sum(0) >= LEAST_SAMPLES)
    targets = _targets(task, outputs, y)  # [M, C]
    count = member.sum(0)  # [K]
    real = member.sum(1)
    total = real @ values
    values = (values - total / count.sum().clamp(min=1)) * real[:, None]
    share = (member.T @ targets) / count.clamp(min=1)[:, None]  # [K, C]
    apart = (targets[:, None] - share[None]) * member[:, :, None]  # [M, K, C]
    weight = torch.einsum("mkc,mke->kce", apart, apart)  # [K, C, C]
    common = torch.einsum("mkc,md->kcd", apart, values)  # [K, C, d], W b
    slopes, free = inverse(weight) @ common, freedom(weight)  # [K, C, d], [K]
    own = weight.sum(0)  # [C, C]
    mean = inverse(own) @ common.sum(0)  # [C, d]
    centred = values - member @ ((member.T @ values) / count.clamp(min=1)[:, None])
    full = values.shape[1] <= JOINT_COLUMNS
    sums = {
        "noise": squared(centred, full) - weighed(slopes, weight, full),
        "rows": (count - 1 - free).clamp(min=0).sum(),
        "samples": count.sum(),
        "total": total,
        "total_square": values.square().sum(0),
        "within": weighed(slopes - mean, weight, full),
        "within_freedom": free.sum() - freedom(own),
        "within_weight": spread_weight(own, (weight @ weight).sum(0)),
        "context_slope": common,
        "context_weight": weight,
        "square": weighed(mean[None], own[None], full),
        "slope": common.sum(0),
        "weight": own,
        "weight_square": own @ own * SCALE,
        "freedom": freedom(own),
    }
    return {name: (SCALE * torch.atleast_1d(value)).float() for name, value in sums.items()}


def are_sums(sums: Params) -> bool:
    """Whether these can be sums over samples: nothing counted is below zero, and squares are those of real numbers.

    Sums of several clients can be what those of each can be, so both are looked at alike: one client's by who receives
    them, and the sums over all by every client.
    """
    return all(bool((sums[name] >= -ROUNDED).all()) for name in COUNTED) and all(
        _are_squares(sums[name].double()) for name in SQUARES
    )


def _are_squares(found: Tensor) -> bool:
    """[d], or [..., d, d]: then no mixture of columns has a sum of squares below zero."""
    if found.ndim == 3:
        return all(map(_are_squares, found))
    if found.ndim == 1:
        return bool((found >= -ROUNDED * (1 + found.abs().amax())).all())
    values = torch.linalg.eigvalsh((found + found.T) / 2)
    most = ROUNDED * (1 + values.abs().amax())
    return bool((found - found.T).abs().amax() <= most) and bool(values[0] >= -most)


def unscaled(sums: Params) -> tuple[Params, Tensor]:
    """The sums in their own unit, and how columns vary within a class."""
    found = {name: leaf.double().cpu() / SCALE for name, leaf in sums.items()}
    return found, found["noise"] / found["rows"].clamp(min=1)


def columns_of(sums: Params, places: slice | list[int]) -> Params:
    """The sums of some of the columns, where they were looked at together."""
    part = dict(sums)
    part |= {name: sums[name][places][:, places] for name in ("noise", "within", "square")}
    return part | {name: sums[name][..., places] for name in ("total", "total_square", "context_slope", "slope")}


def _targets(task: Task, outputs: int, y: Tensor) -> Tensor:
    if task == "multiclass":
        return (y[:, None] == torch.arange(outputs, device=y.device)).double()
    return y.double()[:, None]


def inverse(weight: Tensor) -> Tensor:
    """[..., C, C] of weights, of which those of several classes add up to zero: the pseudo-inverse."""
    if weight.shape[-1] == 1:
        return torch.where(weight > 1e-9, 1 / weight.clamp(min=1e-9), 0.0)
    return torch.linalg.pinv(weight, rtol=1e-5, hermitian=True)


def freedom(weight: Tensor) -> Tensor:
    """[...] how many slopes a weight [..., C, C] belongs to: of several classes, one less than there are."""
    known = (weight.diagonal(dim1=-2, dim2=-1) > 1e-9).sum(-1)
    return (known if weight.shape[-1] == 1 else (known - 1).clamp(min=0)).double()


def spread_weight(total: Tensor, squares: Tensor) -> Tensor:
    """By how much a variance of slopes counts: of the sum [C, C] of weights, and the sum of their squares."""
    return (total - inverse(total) @ squares).diagonal().sum()


def weighed(slopes: Tensor, weight: Tensor, full: bool) -> Tensor:
    """Σ bᵀ W b over slopes [..., C, d] with weights [..., C, C]: [d, d], or [d] where columns are not looked at
    together."""
    heavy = weight @ slopes
    if not full:
        return (slopes * heavy).flatten(0, 1).sum(0)
    return slopes.flatten(0, 1).T @ heavy.flatten(0, 1)


def class_slopes(found: Params) -> Tensor:
    """[C, d] over all clients, from sums in their own unit."""
    return inverse(found["weight"]) @ found["slope"]


def distance(slopes: Tensor) -> Tensor:
    """[...] how far one class lies from the middle of the others at most, from slopes [C, ...]: of two classes, there
    is one slope; of several, slopes are counted from the middle of all."""
    classes = len(slopes)
    return slopes.abs().amax(0) * (1.0 if classes == 1 else classes / (classes - 1))


def squared(rows: Tensor, full: bool) -> Tensor:
    return rows.T @ rows if full else rows.square().sum(0)
