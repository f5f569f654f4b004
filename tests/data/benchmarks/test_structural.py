import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from perinvfl.core.config import build
from perinvfl.data.benchmarks.structural import (
    StructuralSettings,
    draw_contexts,
    draw_mechanism,
    owned,
    structural_federation,
)
from perinvfl.data.federation import Federation, Split
from perinvfl.data.registry import build_federation
from perinvfl.errors import UserError

SETTINGS = StructuralSettings(samples=4_000)


@pytest.fixture(scope="module")
def federation() -> Federation:
    return structural_federation(SETTINGS, 0)


def note(federation: Federation, key: str) -> Any:
    return federation.notes[key]


def latent(federation: Federation, x: Tensor) -> Tensor:
    """Undo S: the coordinates behind x."""
    return x.double() @ torch.tensor(note(federation, "S"), dtype=torch.float64)


def regress(x: Tensor, y: Tensor) -> Tensor:
    return torch.linalg.lstsq(x.double(), y.double()[:, None]).solution[:, 0]


def test_shapes(federation: Federation) -> None:
    assert federation.train.x.shape == (8, 16_000, 6)
    assert federation.train.x.dtype == federation.train.y.dtype == torch.float32
    assert (federation.task, federation.outputs, federation.contexts) == ("regression", 1, 4)
    assert federation.spectrum == tuple(federation.tests) == ("unseen-0", "unseen-1", "unseen-2", "unseen-3")
    assert federation.tests["unseen-0"].x.shape == (8, 4_000, 6)
    assert federation.contexts_per_client == [4] * 8


def test_mixing_is_orthogonal_and_the_shared_part_is_the_same_everywhere(federation: Federation) -> None:
    mixing = torch.tensor(note(federation, "S"), dtype=torch.float64)
    assert torch.allclose(mixing @ mixing.T, torch.eye(6, dtype=torch.float64), atol=1e-12)
    assert len({tuple(rho[:2]) for rho in note(federation, "rho")}) == 1
    assert len({tuple(rho[2:]) for rho in note(federation, "rho")}) == 8


def test_given_h_the_coefficients_are_the_same_in_every_context(federation: Federation) -> None:
    for client in range(8):
        mine, rho = note(federation, "owned")[client], torch.tensor(note(federation, "rho")[client]).double()
        splits = [(federation.train, context) for context in range(4)] + [(t, 0) for t in federation.tests.values()]
        for split, context in splits:
            there = split.context[client] == context
            h = latent(federation, split.x[client][there])
            assert torch.allclose(regress(h[:, mine], split.y[client][there]), rho, atol=0.25)
            shared = regress(h[:, :2], split.y[client][there])  # the global invariant is one too
            assert torch.allclose(shared, rho[:2], atol=0.4)


def test_what_is_invariant_for_its_owner_is_spurious_for_the_rest(federation: Federation) -> None:
    """The slope of y on a coordinate alone: constant over contexts iff the client owns it."""
    for client in range(8):
        h = latent(federation, federation.train.x[client])
        for coordinate in range(6):
            slopes = [
                float(regress(h[there, coordinate, None], federation.train.y[client][there]))
                for there in (federation.train.context[client] == context for context in range(4))
            ]
            flipped = federation.tests["unseen-0"]
            slopes.append(float(regress(latent(federation, flipped.x[client])[:, coordinate, None], flipped.y[client])))
            spread = max(slopes) - min(slopes)
            if coordinate in note(federation, "owned")[client]:
                assert spread < 0.5
                assert min(map(abs, slopes)) > 0.25  # informativeness
            else:
                assert slopes[-1] * slopes[0] < 0  # the sign flips in the unseen context
                assert spread > 0.5


def test_pooled_regression_falls_for_the_spurious_part(federation: Federation) -> None:
    for client in range(8):
        x, y = federation.train.x[client], federation.train.y[client]
        weights = latent(federation, regress(x, y)[None])[0]
        theirs = [c for c in range(6) if c not in note(federation, "owned")[client]]
        assert bool((weights[theirs].abs() > 0.05).all())
        flipped = federation.tests["unseen-0"]
        error = (flipped.x[client].double() @ regress(x, y) - flipped.y[client]).square().mean()
        assert error > 2 * note(federation, "noise_variance")["unseen-0"][client]


def mse(split: Split, client: int, weights: list[float]) -> float:
    return float((split.x[client].double() @ torch.tensor(weights).double() - split.y[client]).square().mean())


def test_invariant_weights_err_by_the_noise_alone_in_unseen_contexts(federation: Federation) -> None:
    for name, split in federation.tests.items():
        for client in range(8):
            personal = mse(split, client, note(federation, "personal_invariant")[client])
            shared = mse(split, client, note(federation, "global_invariant"))
            constant = note(federation, "constant")[name][client]
            # The mean of 4000 squared normals is within 5 sqrt(2/4000) = 11 % of its variance.
            assert personal == pytest.approx(note(federation, "noise_variance")[name][client], rel=0.12)
            assert personal < shared < constant  # Theorem 1: the personal invariant knows more


def test_unseen_contexts_are_stronger_and_flip_signs() -> None:
    seen, unseen = draw_contexts(SETTINGS, 0, False), draw_contexts(SETTINGS, 0, True)
    assert bool((seen.a.sign() == seen.a[:, :1].sign()).all())
    assert float(unseen.a.abs().min()) >= 1.5 >= float(seen.a.abs().max())
    assert bool((unseen.a[:, ::2].sign() == -seen.a[:, :1].sign()).all())
    assert len(seen.noise.unique()) == 32  # every context its own
    assert len(seen.spread.unique()) == 32 * 6


def test_training_contexts_lie_in_linear_general_position() -> None:
    """IRM's definition: for every x ≠ 0, E_e[XXᵀ]x − E_e[Xε] span more than d − (τ + q) dimensions."""
    mechanism, contexts = draw_mechanism(SETTINGS, 0), draw_contexts(SETTINGS, 0, False)
    source = torch.Generator().manual_seed(0)
    directions = torch.cat([torch.eye(6), torch.randn(50, 6, generator=source)]).double()
    for client in range(8):
        mine, rho = mechanism.owned[client], mechanism.rho[client]
        moments, cross = [], []
        for spread, noise, a in zip(contexts.spread[client], contexts.noise[client], contexts.a[client], strict=True):
            # latent = B·(h, ε, ζ) with ζ the noise of Z, all independent
            spurious = (~mine).double() * a
            to_h = torch.diag(mine.double()) + torch.outer(spurious, rho)
            variance_h = torch.diag(spread.square() * mine)
            moment = to_h @ variance_h @ to_h.T + noise**2 * torch.outer(spurious, spurious)
            moments.append(moment + torch.diag((~mine).double()))
            cross.append(noise**2 * spurious)
        vectors = torch.einsum("kij,xj->xki", torch.stack(moments), directions) - torch.stack(cross)
        assert bool((torch.linalg.matrix_rank(vectors, rtol=1e-6) > 6 - 4).all())
    assert SETTINGS.clients >= 6 - 2 + 6 / 2
    assert SETTINGS.contexts_per_client[0] >= 6 - 4 + 6 / 4


def test_uneven_contexts_are_padded_and_held_out_samples_leave_training() -> None:
    settings = StructuralSettings(clients=3, contexts=(3, 1, 2), samples=10, dimension=5, personal=(1, 0, 2), holdout=4)
    federation = structural_federation(settings, 0)
    assert federation.train.x.shape == (3, 18, 5)
    assert federation.sizes.tolist() == federation.notes["sizes"] == [18, 6, 12]
    assert federation.contexts_per_client == federation.notes["contexts"] == [3, 1, 2]
    padding = federation.train.context < 0
    assert float(federation.train.x[padding].abs().sum() + federation.train.y[padding].abs().sum()) == 0
    assert [len(mine) for mine in note(federation, "owned")] == [3, 2, 4]
    assert federation.validation is not None
    assert (federation.validation.context >= 0).sum(1).tolist() == [12, 4, 8]

    whole = structural_federation(dataclasses.replace(settings, holdout=0), 0)
    for client in range(3):
        parts = torch.cat([federation.train.y[client], federation.validation.y[client]])
        assert torch.equal(parts.sort().values, whole.train.y[client].sort().values)
    assert all(torch.equal(whole.tests[case].x, split.x) for case, split in federation.tests.items())


def test_no_coordinate_beyond_the_shared_belongs_to_all() -> None:
    mine = owned(StructuralSettings())
    assert mine.all(0).tolist() == [True, True, False, False, False, False]
    assert mine.sum(1).tolist() == [4] * 8


def test_same_seed_same_bits_and_tests_do_not_disturb_training() -> None:
    settings = StructuralSettings(samples=20)
    one, same, other = (build_federation("structural", settings, seed) for seed in (0, 0, 1))
    assert torch.equal(one.train.x, same.train.x)
    assert not torch.equal(one.train.x, other.train.x)
    more_tests = structural_federation(dataclasses.replace(settings, test_contexts=9), 0)
    assert torch.equal(one.train.x, more_tests.train.x)
    assert len(more_tests.tests) == 9


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        ({"dimension": 4}, "data.dimension = 4: must be greater than shared [+] personal = 4"),
        ({"clients": 1}, "belong to every client"),
        ({"clients": 2, "dimension": 5}, "belong to every client"),
        ({"contexts": [1, 2]}, "data.contexts = .*one entry for each of 8 clients"),
        ({"personal": [1, 2]}, "data.personal = .*one entry for each of 8 clients"),
        ({"holdout": 500}, "data.holdout = 500: must be less than samples = 500"),
        ({"shared": 0}, "data.shared = 0: must be at least 1"),
        ({"noise": -1.0}, "data.noise"),
    ],
)
def test_mistakes_are_named(mapping: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        build(StructuralSettings, mapping, "data")
