"""The exact minimisers that Theorem 3 speaks of, for linear models and the squared loss.

Objective (per-irm) is a sum of squares, so Levenberg-Marquardt from many starts finds its minimiser to many digits.
Gradient steps need not: in these narrow curved valleys they stop at local minima (see `personalized`).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from perinvfl.core.seeding import generator


class Minimum(NamedTuple):
    params: Tensor  # [P, d] the best of all starts, for each of P problems
    value: Tensor  # [P]
    slope: Tensor  # [P] norm of the gradient there, over that at zero
    share: Tensor  # [P] share of all starts that ended at this value


def irm_value(moments: Tensor, w: Tensor, weight: float, pull: Tensor, anchor: Tensor) -> Tensor:
    """[P, Q] Σ_j R_j + λ ‖∇R_j‖² + β ‖w − ν‖² at w [P, Q, d], contexts j given by moments [P, K, d + 1, d + 1]."""
    _, gradient, risk = _parts(moments, w)
    near = (w - anchor[:, None]).square().sum(-1)
    return risk.sum(-1) + weight * gradient.square().sum(-1) + pull[:, None] * near


def minimise_irm(
    moments: Tensor, weight: float, pull: Tensor, anchor: Tensor, starts: Tensor, steps: int = 200
) -> Minimum:
    """P problems at once, Q starts each [P, Q, d]; β is pull [P] and ν is anchor [P, d]."""
    a, b = moments[..., :-1, :-1], moments[..., :-1, -1]
    w = starts.clone()
    value = irm_value(moments, w, weight, pull, anchor)
    damping = torch.full_like(value, 1e-2 * (1 + weight))
    eye = torch.eye(w.shape[-1], dtype=w.dtype)
    flat = 2 * a.sum(1)[:, None] + 2 * pull[:, None, None, None] * eye  # the risks' and the pull's Hessian

    def slopes(w: Tensor) -> tuple[Tensor, Tensor]:
        aw, gradient, _ = _parts(moments, w)
        inner = 2 * (2 * aw - b[:, None])  # [P, Q, K, d] derivative of each context's scale gradient
        first = 2 * (aw - b[:, None]).sum(2) + 2 * weight * (gradient[..., None] * inner).sum(2)
        return first + 2 * pull[:, None, None] * (w - anchor[:, None]), inner

    for _ in range(steps):
        first, inner = slopes(w)
        hessian = flat + 2 * weight * inner.mT @ inner + damping[..., None, None] * eye
        tried = w - torch.linalg.solve(hessian, first[..., None])[..., 0]
        reached = irm_value(moments, tried, weight, pull, anchor)
        better = reached < value
        w, value = torch.where(better[..., None], tried, w), torch.where(better, reached, value)
        damping = torch.where(better, damping * 0.3, damping * 4).clamp(1e-10, 1e12)

    best = value.argmin(1)
    rows = torch.arange(len(best))
    scale = slopes(torch.zeros_like(w[:, :1]))[0].norm(dim=-1)[:, 0]
    slope = slopes(w)[0].norm(dim=-1)[rows, best] / scale
    same = value <= value[rows, best][:, None] * (1 + 1e-6)
    return Minimum(w[rows, best], value[rows, best], slope, same.double().mean(1))


def least_squares(moments: Tensor) -> Tensor:
    """[..., d] minimiser of the mean risk over contexts [..., K, d + 1, d + 1]."""
    mean = moments.mean(-3)
    return torch.linalg.solve(mean[..., :-1, :-1], mean[..., :-1, -1])


def unseen_errors(moments: Tensor, w: Tensor) -> Tensor:
    """[N, cases] mean squared error of w [N, d] in each context of moments [N, cases, d + 1, d + 1]."""
    return _parts(moments, w[:, None])[2][:, 0]


def random_starts(problems: int, count: int, dimension: int) -> Tensor:
    source = generator(0, "theory", "starts")
    return torch.randn(problems, count, dimension, generator=source, dtype=torch.float64)


def _parts(moments: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[P, Q, K, d] A w, [P, Q, K] scale gradient 2 (wᵀA w − wᵀb), [P, Q, K] risk wᵀA w − 2 wᵀb + c."""
    a, b, c = moments[..., :-1, :-1], moments[..., :-1, -1], moments[..., -1, -1]
    aw = torch.einsum("pkij,pqj->pqki", a, w)
    waw, wb = (aw * w[:, :, None]).sum(-1), torch.einsum("pki,pqi->pqk", b, w)
    return aw, 2 * (waw - wb), waw - 2 * wb + c[:, None]
