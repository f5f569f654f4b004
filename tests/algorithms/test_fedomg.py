"""Gradient matching at the server against the problem it solves."""

import pytest
import torch

from perinvfl.algorithms.aggregation.fedomg import inner_products, matched_shares
from perinvfl.core.seeding import generator


@pytest.mark.parametrize("clients", [1, 2, 4, 12])
@pytest.mark.parametrize("radius", [0.0, 0.3, 0.9, 2.0])
def test_no_update_in_reach_suits_the_worst_client_better(clients: int, radius: float) -> None:
    source = generator(clients, "updates")
    updates = {"a": torch.randn(clients, 5, 4, generator=source) + 0.5, "b": torch.randn(clients, 7, generator=source)}
    whole = torch.cat([leaf.flatten(1) for leaf in updates.values()], 1)
    products = inner_products(updates)
    torch.testing.assert_close(products, whole @ whole.T)
    shares = torch.rand(clients, generator=source)
    shares = shares / shares.sum()
    mean = shares @ whole
    found = matched_shares(products, shares, radius) @ whole
    reach = radius * mean.norm()
    assert float((found - mean).norm()) == pytest.approx(float(reach), rel=1e-3, abs=1e-6)
    worst = (whole @ found).min()
    assert worst >= (whole @ mean).min() - 1e-4
    # Directions drawn at random, those towards single clients, and small changes of what was found.
    tried = torch.cat(
        [
            torch.randn(2000, whole.shape[1], generator=source),
            whole,
            (found - mean) + 0.1 * reach * torch.randn(2000, whole.shape[1], generator=source) / whole.shape[1] ** 0.5,
        ]
    )
    others = mean + reach * tried / tried.norm(dim=1, keepdim=True).clamp(min=1e-9)
    assert worst >= (whole @ others.T).amin(0).max() - 2e-3 * float(mean.norm()) ** 2


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e6])
def test_small_updates_are_matched_as_large_ones(scale: float) -> None:
    updates = torch.randn(4, 30, generator=generator(0, "updates"))
    shares = torch.tensor([0.4, 0.3, 0.2, 0.1])
    large, small = (matched_shares(inner_products({"a": size * updates}), shares, 0.5) for size in (1.0, scale))
    torch.testing.assert_close(small, large, rtol=1e-3, atol=1e-4)


def test_updates_of_nothing_stay_nothing() -> None:
    shares = matched_shares(torch.zeros(3, 3), torch.full((3,), 1 / 3), 0.5)
    assert torch.isfinite(shares).all()
