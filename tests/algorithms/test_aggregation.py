"""Every aggregation: at once, one update after another, and against a plain slow reference in float64."""

import copy
import math
import statistics

import pytest
import torch
from torch import Tensor

from perinvfl.algorithms.aggregation import Aggregation, Clipped, Masked, Matched, Mean, Trimmed
from perinvfl.core.seeding import generator
from perinvfl.core.tree import Params

SHAPES = {"a.weight": (5, 4), "a.bias": (5,), "scale": (1,)}
KINDS: dict[str, Aggregation] = {
    "mean": Mean(),
    "masked": Masked(Mean(), 0.6),
    "matched": Matched(0.5),
    "masked and matched": Masked(Matched(0.5), 0.6),
    "with settings of a sweep": Masked(Matched(torch.tensor(0.3)), torch.tensor(0.8)),
    "trimmed": Trimmed(Mean(), 0.25),
    "median": Trimmed(Mean(), 0.5),
    "clipped": Clipped(Mean(), 0.9),
    "clipped, trimmed and masked": Clipped(Masked(Trimmed(Mean(), 0.3), 0.6), 0.9),
    "trimmed in a sweep": Clipped(Trimmed(Mean(), torch.tensor(0.2)), torch.tensor(0.8)),
    "off in a sweep": Clipped(Trimmed(Matched(0.5), torch.tensor(0.0)), torch.tensor(0.0)),
}


def drawn(clients: int, seed: int) -> tuple[Params, Tensor]:
    """Updates [n, ...] that agree in some coordinates, and the shares [n] they have in the mean."""
    source = generator(seed, "updates")
    updates = {name: torch.randn(clients, *shape, generator=source) + 0.5 for name, shape in SHAPES.items()}
    shares = torch.rand(clients, generator=source) + 0.1
    return updates, shares / shares.sum()


# The slow reference: one list of numbers a client --------------------------------------------------------------


def slow_mean(rows: list[list[float]], shares: list[float]) -> list[float]:
    return [sum(share * number for share, number in zip(shares, column, strict=True)) for column in zip(*rows)]  # noqa: B905


def dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def simplex(logs: list[float]) -> list[float]:
    largest = max(logs)
    powers = [math.exp(log - largest) for log in logs]
    return [power / sum(powers) for power in powers]


def slow_matched(rows: list[list[float]], shares: list[float], radius: float) -> list[float]:
    """FedOMG: ḡ + κ‖ḡ‖ g_w / ‖g_w‖, where 200 steps on the simplex make ⟨g_w, ḡ⟩ + κ‖ḡ‖‖g_w‖ small."""
    mean = slow_mean(rows, shares)
    length = math.sqrt(dot(mean, mean))
    ahead = [dot(row, mean) / length**2 for row in rows]
    longest = max(math.sqrt(dot(row, row)) for row in rows) / length
    step, logs = 1 / (max(map(abs, ahead)) + radius * longest), [0.0] * len(rows)
    for _ in range(200):
        towards = slow_mean(rows, simplex(logs))
        size = math.sqrt(dot(towards, towards))
        logs = [
            log - step * (ahead[i] + radius * dot(rows[i], towards) / (length * size)) for i, log in enumerate(logs)
        ]
    towards = slow_mean(rows, simplex(logs))
    factor = radius * length / math.sqrt(dot(towards, towards))
    return [a + factor * b for a, b in zip(mean, towards, strict=True)]


def slow_trimmed(rows: list[list[float]], shares: list[float], least: float) -> list[float]:
    """The sorted numbers of a coordinate side by side on [0, 1], cut off at κ and 1 − κ; the median where κ = 1/2."""
    found = []
    for column in zip(*rows):  # noqa: B905
        pairs = sorted(zip(column, shares, strict=True))
        if least == 0.5:
            halves = []
            for below in (pairs, pairs[::-1]):  # from either end, where half of the shares is reached
                reached = 0.0
                for number, share in below:
                    reached += share
                    if reached > 0.5 - 1e-6:
                        halves.append(number)
                        break
            found.append(sum(halves) / 2)
            continue
        place, total, counted = 0.0, 0.0, 0.0
        for number, share in pairs:
            inside = max(0.0, min(place + share, 1 - least) - max(place, least))
            total, counted, place = total + inside * number, counted + inside, place + share
        found.append(total / counted)
    return found


def slow_clipped(rows: list[list[float]], most: float) -> list[list[float]]:
    lengths = [math.sqrt(dot(row, row)) for row in rows]
    bound = most * statistics.median(lengths) if most else math.inf
    return [[min(1.0, bound / length) * number for number in row] for row, length in zip(rows, lengths, strict=True)]


def slow(kind: Aggregation, rows: list[list[float]], shares: list[float]) -> list[float]:
    if isinstance(kind, Mean):
        return slow_mean(rows, shares)
    if isinstance(kind, Matched):
        return slow_matched(rows, shares, float(kind.radius))
    if isinstance(kind, Trimmed):
        least = float(kind.share)
        return slow_trimmed(rows, shares, least) if least else slow(kind.of, rows, shares)
    if isinstance(kind, Clipped):
        return slow(kind.of, slow_clipped(rows, float(kind.most)), shares)
    assert isinstance(kind, Masked)
    signs = [[(number > 0) - (number < 0) for number in row] for row in rows]
    agreed = [abs(number) for number in slow_mean(signs, shares)]  # type: ignore[arg-type]
    inner = slow(kind.of, rows, shares)
    return [
        number if share >= float(kind.least) else share * number for number, share in zip(inner, agreed, strict=True)
    ]


@pytest.mark.parametrize("clients", [1, 2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_at_once_one_by_one_and_slowly(kind: str, clients: int) -> None:
    aggregation = KINDS[kind]
    updates, shares = drawn(clients, seed=clients)
    given = copy.deepcopy(updates)
    combined = aggregation.combine(updates, shares)
    gathering = aggregation.begin()
    for client in range(clients):
        gathering.add({name: leaf[client] for name, leaf in updates.items()}, float(shares[client]))
    gathered = gathering.result(shares)
    rows = [[float(x) for leaf in updates.values() for x in leaf[client].flatten()] for client in range(clients)]
    expected = torch.tensor(slow(aggregation, rows, shares.double().tolist()))
    assert combined.keys() == gathered.keys() == updates.keys()
    flat = torch.cat([leaf.flatten() for leaf in combined.values()])
    torch.testing.assert_close(flat, expected, rtol=1e-3, atol=1e-4)
    for name, shape in SHAPES.items():
        assert combined[name].shape == gathered[name].shape == shape
        torch.testing.assert_close(gathered[name], combined[name], rtol=1e-5, atol=1e-6)
        assert torch.equal(updates[name], given[name])  # what came in is as it was


@pytest.mark.parametrize("kind", KINDS)
def test_alike_under_vmap(kind: str) -> None:
    """The batched executor combines the updates of all trials at once."""
    trials = [drawn(4, seed) for seed in range(3)]
    stacked = {name: torch.stack([updates[name] for updates, _ in trials]) for name in SHAPES}
    shares = torch.stack([own for _, own in trials])
    together = torch.func.vmap(KINDS[kind].combine)(stacked, shares)
    for t, (updates, own) in enumerate(trials):
        for name, leaf in KINDS[kind].combine(updates, own).items():
            torch.testing.assert_close(together[name][t], leaf, rtol=1e-4, atol=1e-5)


def test_only_the_mean_hides_single_updates() -> None:
    assert {kind: aggregation.needs_updates for kind, aggregation in KINDS.items()} == {
        kind: kind != "mean" for kind in KINDS
    }


@pytest.mark.parametrize("clients", [3, 4, 7, 20])
def test_alike_shares_give_the_textbook_trimmed_mean_and_median(clients: int) -> None:
    updates = {"a": torch.randn(clients, 50, generator=generator(clients, "updates"))}
    shares = torch.full((clients,), 1 / clients)
    ordered = updates["a"].sort(0).values
    for cut in range(1, (clients + 1) // 2):
        plain = ordered[cut : clients - cut].mean(0)
        torch.testing.assert_close(Trimmed(Mean(), cut / clients).combine(updates, shares)["a"], plain)
    middle = (ordered[(clients - 1) // 2] + ordered[clients // 2]) / 2
    torch.testing.assert_close(Trimmed(Mean(), 0.5).combine(updates, shares)["a"], middle, rtol=0, atol=0)


@pytest.mark.parametrize("size", [1e3, 1e30])
def test_one_client_of_five_cannot_move_them_far(size: float) -> None:
    honest = torch.randn(4, 200, generator=generator(0, "updates")) + 1.0
    hostile = size * torch.randn(200, generator=generator(1, "updates"))
    updates, shares = {"a": torch.cat([honest, hostile[None]])}, torch.full((5,), 0.2)
    low, high = honest.amin(0), honest.amax(0)
    for share in (0.2, 0.4, 0.5):
        found = Trimmed(Mean(), share).combine(updates, shares)["a"]
        assert bool(((found >= low - 1e-5) & (found <= high + 1e-5)).all())
    moved = Clipped(Mean(), 1.0).combine(updates, shares)["a"] - honest.sum(0) / 5
    longest = honest.norm(dim=1).amax()
    assert float(moved.norm()) < 0.5 * float(longest) and torch.isfinite(moved).all()
    assert float((Mean().combine(updates, shares)["a"] - honest.sum(0) / 5).norm()) > 100 * float(longest)
