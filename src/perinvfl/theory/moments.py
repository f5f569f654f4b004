"""Structural-equation data as second moments: exact full-batch training at a few samples a context.

For a linear model and the squared loss, the risk of a context and its IRMv1 penalty are functions of the mean products
E[x xᵀ], E[x y], E[y²] alone. So a context may be replaced by d + 1 samples with the same mean products, and every
full-batch step stays the same. The mean products may come from samples, or from the structural equations themselves:
then training sees the population, which is what Theorem 3 is about.
"""

import dataclasses

import torch
from torch import Tensor

from perinvfl.core.seeding import generator
from perinvfl.data.benchmarks.structural import (
    Contexts,
    Mechanism,
    StructuralSettings,
    draw_contexts,
    draw_mechanism,
    sample,
    structural_federation,
)
from perinvfl.data.federation import Federation, Split


def population(mechanism: Mechanism, contexts: Contexts) -> Tensor:
    """[N, K, d + 1, d + 1] E[(x, y)(x, y)ᵀ] in each context, from the structural equations."""
    owned = mechanism.owned[:, None]  # [N, 1, d]
    variance = contexts.spread.square() * owned  # [N, K, d] of H
    h_y = mechanism.rho[:, None] * variance  # E[H Y]
    y_y = (mechanism.rho[:, None] * h_y).sum(-1) + contexts.noise.square()  # [N, K]
    a = contexts.a * ~owned
    h_z = h_y[..., :, None] * a[..., None, :]  # E[H Zᵀ] = E[H Y] aᵀ
    latent = torch.diag_embed(variance + (~owned).double()) + h_z + h_z.mT
    latent = latent + y_y[..., None, None] * a[..., :, None] * a[..., None, :]
    latent_y = h_y + a * y_y[..., None]
    x_x, x_y = mechanism.mixing @ latent @ mechanism.mixing.T, latent_y @ mechanism.mixing.T
    top = torch.cat([x_x, x_y[..., None]], -1)
    return torch.cat([top, torch.cat([x_y, y_y[..., None]], -1)[..., None, :]], -2)


def products(x: Tensor, y: Tensor) -> Tensor:
    """[..., d + 1, d + 1] mean of (x, y)(x, y)ᵀ over samples x [..., M, d], y [..., M]."""
    both = torch.cat([x, y[..., None]], -1).double()
    return both.mT @ both / both.shape[-2]


def stand_ins(moments: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., d + 1, d] and y [..., d + 1] whose mean products are the given ones."""
    size = moments.shape[-1]
    both = (torch.linalg.cholesky(moments) * size**0.5).mT  # [..., d + 1, d + 1], one row a sample
    return both[..., :-1].float(), both[..., -1].float()


def moments_federation(settings: StructuralSettings, seed: int, exact: bool) -> Federation:
    """`structural_federation` with each context replaced by its stand-ins; exact: by those of the population.

    Unseen contexts are always those of the population, so a test error has no sampling noise.
    """
    mechanism = draw_mechanism(settings, seed)
    seen, unseen = (draw_contexts(settings, seed, unseen) for unseen in (False, True))
    if exact:
        moments = population(mechanism, seen)
    else:
        source = generator(seed, "structural", "training samples")
        moments = products(*sample(mechanism, seen, settings.samples, source))
    x, y = stand_ins(moments)  # [N, K, d + 1, ...]
    number = torch.arange(x.shape[1])
    has = number < torch.tensor(settings.contexts_per_client)[:, None]  # [N, K]
    context = torch.where(has, number, -1)[..., None].expand(y.shape)
    real = context >= 0
    train = Split((x * real[..., None]).flatten(1, 2), (y * real).flatten(1), context.flatten(1))
    x, y = stand_ins(population(mechanism, unseen))
    tests = {
        f"unseen-{case}": Split(x[:, case], y[:, case], torch.zeros_like(y[:, case], dtype=torch.int64))
        for case in range(settings.test_contexts)
    }
    facts = structural_federation(dataclasses.replace(settings, samples=1, holdout=0), seed)
    return dataclasses.replace(facts, train=train, tests=tests, validation=None)
