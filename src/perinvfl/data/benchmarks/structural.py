"""Data from the linear structural equations of the paper's "Proof of Theorem 3", where the right answer is known.

On client i, in context e:

    Y = H·ρ_i + ε        H independent of ε, E[ε] = 0
    Z = Y·a_e + noise    anti-causal: how Z follows Y changes from context to context
    X = S [H; Z]         one orthogonal S for everyone, so H is a linear function of X

The d coordinates behind X are: τ shared ones, in H on every client with the same coefficients; and d - τ others, dealt
to the clients in turn, q_i to client i. Those dealt to client i are in its H, with coefficients of its own; every
other coordinate is in its Z. So one and the same direction of X is invariant for its owner and spurious for the rest.

Assumption 1. Given H, Y is H·ρ_i plus noise of mean zero in every context of client i: H is an invariant
representation Φ_i. No coordinate beyond the shared ones is owned by all clients (`check` sees to it), so the personal
ones are outside the intersection of the Φ_i: heterogeneity. Each has |ρ| and standard deviation of at least 0.5 and is
independent of the rest of H, so it tells something about Y: informativeness. The shared ones alone are invariant too,
E[Y | shared] = shared·ρ, because the personal ones have mean zero and are independent of them: Φ_g has rank τ and
Φ_i has rank τ + q_i.

Theorem 3. It asks for d > max q_i + τ (`check`), more than d - τ + d/τ local data sets and d - (τ + q_i) + d/(τ + q_i)
contexts of client i in linear general position. The variances of H and of ε and the vector a_e are drawn anew, from a
density, for each context, and general position fails only on a set of measure zero. The defaults have enough of both;
`notes["needed"]` has the two counts, so that fewer can be asked for on purpose (conclusion 2 of the theorem).

Paper: gives the equations only. Here: the distributions are ours.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from perinvfl.core.hyper import check_bounds, hyper
from perinvfl.core.memory import check_fits, product
from perinvfl.core.seeding import generator
from perinvfl.data.constant import constant_scores
from perinvfl.data.federation import Federation, Split
from perinvfl.errors import UserError


@dataclass(frozen=True)
class StructuralSettings:
    clients: int = hyper(
        8,
        "number of clients; the shared model needs enough of them to tell what is invariant; 8 are enough for "
        "the other defaults",
        symbol="N",
        least=1,
        most=10**5,
    )
    contexts: int | tuple[int, ...] = hyper(
        4,
        "training contexts of each client, one number or one per client; personal models need enough of them "
        "to tell what is invariant; 4 are enough for the other defaults",
        symbol="K_i",
        least=1,
    )
    samples: int = hyper(
        500, "samples per context, including those held out; more make estimates more exact, and cost time", least=1
    )
    dimension: int = hyper(
        6,
        "number of columns of x: shared, personal and spurious ones together; more than shared + personal, so "
        "that something is spurious; 6 leaves 2 of them",
        symbol="d",
        least=2,
        most=10**4,
    )
    shared: int = hyper(
        2,
        "number of dimensions that are invariant for all clients, which the shared model can use; 2 of 6 by default",
        symbol="τ",
        least=1,
    )
    personal: int | tuple[int, ...] = hyper(
        2,
        "number of further dimensions that are invariant for one client only, which its personal model can "
        "use: one number, or one per client; 0 makes all clients alike",
        symbol="q_i",
        least=0,
    )
    noise: float = hyper(
        1.0,
        "standard deviation of the label's noise, times 0.5 to 1.5 from context to context; more makes the "
        "label harder to predict; 0 adds none",
        least=0,
    )
    spurious: float = hyper(
        1.0,
        "strength with which spurious columns follow the label, times 0.5 to 1.5 in training and 1.5 to 2.5 "
        "in test, so that whoever relies on them fails there; 0 makes them mere noise",
        least=0,
    )
    test_contexts: int = hyper(
        4,
        "number of unseen contexts to test on; spurious columns follow the label with opposite signs in every "
        "second one and with random signs in the rest, so that shortcuts show",
        least=1,
    )
    holdout: int = hyper(
        0,
        "samples per context that are kept out of training, so that settings can be chosen by them; 0 keeps none out",
        least=0,
    )

    @property
    def contexts_per_client(self) -> tuple[int, ...]:
        return self.contexts if isinstance(self.contexts, tuple) else (self.contexts,) * self.clients

    @property
    def personal_per_client(self) -> tuple[int, ...]:
        return self.personal if isinstance(self.personal, tuple) else (self.personal,) * self.clients

    def check(self, where: str) -> None:
        check_bounds(self, where)
        contexts = max(self.contexts if isinstance(self.contexts, tuple) else (self.contexts,), default=0)
        rows = self.clients * self.samples * (contexts + self.test_contexts)
        bytes_needed = 4 * product((rows, self.dimension)) + 8 * self.dimension**2
        check_fits(bytes_needed, f"{where}: {self.clients} clients with x of dimension {self.dimension}")
        for key, per_client in (("contexts", self.contexts_per_client), ("personal", self.personal_per_client)):
            if len(per_client) != self.clients:
                raise UserError(
                    f"{where}.{key} = {per_client}: must have one entry for each of {self.clients} clients."
                )
        if self.dimension <= self.shared + max(self.personal_per_client):
            raise UserError(
                f"{where}.dimension = {self.dimension}: must be greater than shared + personal = "
                f"{self.shared + max(self.personal_per_client)}, so that something spurious is left."
            )
        if bool(owned(self).all(0)[self.shared :].any()):
            raise UserError(
                f"{where}.personal = {self.personal}: some dimension would belong to every client; "
                f"raise dimension or clients, or lower personal."
            )
        if self.holdout >= self.samples:
            raise UserError(f"{where}.holdout = {self.holdout}: must be less than samples = {self.samples}.")


class Mechanism(NamedTuple):
    """What holds in every context."""

    mixing: Tensor  # [d, d] S, orthogonal
    owned: Tensor  # [N, d] bool: coordinates in the client's H; the others are its Z
    rho: Tensor  # [N, d] ρ_i, zero outside H


class Contexts(NamedTuple):
    """What changes from context to context."""

    spread: Tensor  # [N, K, d] standard deviation of H
    noise: Tensor  # [N, K] standard deviation of ε
    a: Tensor  # [N, K, d] how Z follows Y


def owned(settings: StructuralSettings) -> Tensor:
    """[N, d] bool: the shared coordinates, and the personal ones dealt to each client in turn."""
    mine = torch.zeros(settings.clients, settings.dimension, dtype=torch.bool)
    mine[:, : settings.shared] = True
    dealt, left = 0, settings.dimension - settings.shared
    for client, count in enumerate(settings.personal_per_client):
        mine[client, settings.shared + torch.arange(dealt, dealt + count) % left] = True
        dealt += count
    return mine


def draw_mechanism(settings: StructuralSettings, seed: int) -> Mechanism:
    source = generator(seed, "structural", "mechanism")
    d = settings.dimension
    mixing = torch.linalg.qr(torch.randn(d, d, generator=source, dtype=torch.float64)).Q
    rho = _signs((settings.clients, d), source) * _uniform((settings.clients, d), 0.5, 1.5, source)
    rho[:, : settings.shared] = rho[0, : settings.shared]
    mine = owned(settings)
    return Mechanism(mixing, mine, rho * mine)


def draw_contexts(settings: StructuralSettings, seed: int, unseen: bool) -> Contexts:
    source = generator(seed, "structural", "unseen contexts" if unseen else "training contexts")
    number = settings.test_contexts if unseen else max(settings.contexts_per_client)
    shape = (settings.clients, number, settings.dimension)
    # In training each entry of a_e keeps its sign, so that Z looks like a good predictor; unseen contexts break that.
    usual = _signs((settings.clients, 1, settings.dimension), generator(seed, "structural", "signs"))
    signs = usual
    if unseen:
        signs = _signs(shape, source)
        signs[:, ::2] = -usual
    low, high = (1.5, 2.5) if unseen else (0.5, 1.5)
    return Contexts(
        spread=_uniform(shape, 0.5, 1.5, source),
        noise=settings.noise * _uniform(shape[:2], 0.5, 1.5, source),
        a=settings.spurious * signs * _uniform(shape, low, high, source),
    )


def sample(mechanism: Mechanism, contexts: Contexts, samples: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """x [N, K, M, d] and y [N, K, M], M samples in each context."""
    clients, number, d = contexts.spread.shape
    draws = torch.randn(clients, number, samples, d + 1, generator=source, dtype=torch.float64)
    normal, epsilon = draws[..., :d], draws[..., d] * contexts.noise[..., None]
    h = normal * contexts.spread[:, :, None]
    y = torch.einsum("nkmd,nd->nkm", h, mechanism.rho) + epsilon
    z = y[..., None] * contexts.a[:, :, None] + normal
    latent = torch.where(mechanism.owned[:, None, None], h, z)
    return (latent @ mechanism.mixing.T).float(), y.float()


def structural_federation(settings: StructuralSettings, seed: int) -> Federation:
    settings.check("structural")
    mechanism = draw_mechanism(settings, seed)
    seen, unseen = (draw_contexts(settings, seed, unseen) for unseen in (False, True))

    x, y = sample(mechanism, seen, settings.samples, generator(seed, "structural", "training samples"))
    context = _context(settings, settings.samples)
    kept, held = slice(settings.holdout, None), slice(0, settings.holdout)
    train = _flat(x[:, :, kept], y[:, :, kept], context[:, :, kept])
    validation = _flat(x[:, :, held], y[:, :, held], context[:, :, held]) if settings.holdout else None

    x, y = sample(mechanism, unseen, settings.samples, generator(seed, "structural", "test samples"))
    tests = {
        f"unseen-{case}": Split(x[:, case], y[:, case], torch.zeros(y[:, case].shape, dtype=torch.int64))
        for case in range(settings.test_contexts)
    }

    shared_rho = mechanism.rho[0] * (torch.arange(settings.dimension) < settings.shared)
    d, tau = settings.dimension, settings.shared
    return Federation(
        name="structural",
        task="regression",
        outputs=1,
        contexts=max(settings.contexts_per_client),
        train=train,
        tests=tests,
        spectrum=tuple(tests),
        validation=validation,
        notes={
            "constant": constant_scores("regression", train, tests),
            "sizes": [k * (settings.samples - settings.holdout) for k in settings.contexts_per_client],
            "contexts": list(settings.contexts_per_client),
            "S": mechanism.mixing.tolist(),
            "rho": [rho[mine].tolist() for rho, mine in zip(mechanism.rho, mechanism.owned, strict=True)],
            "owned": [mine.nonzero().flatten().tolist() for mine in mechanism.owned],
            # x·(S ρ) = [H; Z]·ρ because S is orthogonal: what the best invariant model of each client would learn.
            "personal_invariant": (mechanism.rho @ mechanism.mixing.T).tolist(),
            "global_invariant": (mechanism.mixing @ shared_rho).tolist(),
            # Mean squared error of the personal invariant weights: no model invariant over all contexts does better.
            "noise_variance": {
                f"unseen-{case}": unseen.noise[:, case].square().tolist() for case in range(settings.test_contexts)
            },
            "needed": {
                "clients": d - tau + d / tau,
                "contexts": [d - (tau + q) + d / (tau + q) for q in settings.personal_per_client],
            },
        },
    )


def _context(settings: StructuralSettings, samples: int) -> Tensor:
    """[N, K, M]: the context's number, -1 for the contexts that a client lacks."""
    number = torch.arange(max(settings.contexts_per_client))
    has = number < torch.tensor(settings.contexts_per_client)[:, None]  # [N, K]
    return torch.where(has, number, -1)[..., None].expand(-1, -1, samples)


def _flat(x: Tensor, y: Tensor, context: Tensor) -> Split:
    """Join the contexts of a client, [N, K, M, ...] to [N, K·M, ...], with zeros where there is only padding."""
    real = context >= 0
    return Split((x * real[..., None]).flatten(1, 2), (y * real).flatten(1), context.flatten(1))


def _uniform(shape: tuple[int, ...], low: float, high: float, source: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=source, dtype=torch.float64)


def _signs(shape: tuple[int, ...], source: torch.Generator) -> Tensor:
    return torch.randint(2, shape, generator=source).double() * 2 - 1
