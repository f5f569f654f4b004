"""FedOMG: Nguyen et al., Federated Domain Generalization with Data-free On-server Matching Gradient, 2025;
`matching` of any method.

Of all updates d within κ‖ḡ‖ of the mean ḡ, take the one whose smallest inner product with a client's update is largest:
d = ḡ + κ‖ḡ‖ g_w / ‖g_w‖, where g_w = Σ w_i g_i and w on the simplex makes ⟨g_w, ḡ⟩ + κ‖ḡ‖‖g_w‖ smallest. So d is a
weighted sum of the updates, and the weights depend on their inner products alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from perinvfl.algorithms.aggregation.base import Aggregation
from perinvfl.core import tree
from perinvfl.core.tree import Params

STEPS = 200  # of exponentiated gradient descent on the simplex
TINY = 1e-12


@dataclass(frozen=True)
class Matched(Aggregation):
    radius: float | Tensor  # κ

    def combine(self, updates: Params, shares: Tensor) -> Params:
        counts = matched_shares(inner_products(updates), shares, self.radius)
        return tree.map(lambda leaf: torch.einsum("n,n...->...", counts.to(leaf.dtype), leaf), updates)


def inner_products(updates: Params) -> Tensor:
    """[n, n] of updates that carry a client axis [n, ...]."""
    flat = [leaf.reshape(leaf.shape[0], -1).float() for leaf in updates.values()]
    return torch.stack([leaf @ leaf.T for leaf in flat]).sum(0)


def matched_shares(products: Tensor, shares: Tensor, radius: float | Tensor) -> Tensor:
    """[n] what each update counts in d, from inner products [n, n] and the shares [n] it has in the mean."""
    products = products / products.diagonal().amax().clamp(min=torch.finfo(products.dtype).tiny)
    size = (shares @ products @ shares).clamp(min=TINY)  # ‖ḡ‖²
    scaled = products / size
    towards = scaled @ shares
    step = 1 / (towards.abs().amax() + radius * scaled.diagonal().amax().sqrt() + TINY)
    log_w = torch.zeros_like(shares)
    for _ in range(STEPS):
        w = torch.softmax(log_w, 0)
        slope = towards + radius * (scaled @ w) / (w @ scaled @ w).clamp(min=TINY).sqrt()
        log_w = log_w - step * slope
    w = torch.softmax(log_w, 0)
    return shares + radius * w / (w @ scaled @ w).clamp(min=TINY).sqrt()
