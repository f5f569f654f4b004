"""Differential privacy of what a site uploads: the Gaussian mechanism, and exactly what it spends.

What is protected is a site's whole data: one upload is its update, scaled down to norm C, plus normal noise of standard
deviation z C in every entry. With or without the site's data the noise-free update differs by at most C, so one upload
is 1/z-GDP, and T of them, however each depends on those before, are √T/z-GDP (Dong, Roth & Su, Gaussian Differential
Privacy, 2022). A μ-GDP mechanism is (ε, δ)-DP with δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) (Balle & Wang, 2018), which is
exact: no bound is lost on the way.

Not covered: accuracies that sites tell at evaluations, and attacks on floating-point noise (Mironov, 2012).
"""

import math
import secrets

import torch

from perinvfl.core import tree
from perinvfl.core.tree import Params

SECRET_BYTES = 32


def norm(update: Params) -> float:
    return math.sqrt(sum(float(leaf.double().square().sum()) for leaf in update.values()))


def clip(update: Params, most: float) -> Params:
    """The update, scaled down to norm `most` if it is longer."""
    length = norm(update)
    return tree.map(lambda leaf: leaf * (most / length), update) if length > most else update


def add_noise(update: Params, deviation: float, source: torch.Generator) -> Params:
    return tree.map(lambda leaf: leaf + deviation * torch.randn(leaf.shape, generator=source), update)


def fresh_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


def spent(multiplier: float, uploads: int, delta: float) -> float:
    """ε of so many uploads at this δ.

    >>> round(spent(multiplier=1.0, uploads=1, delta=1e-5), 3)
    4.377
    """
    if uploads == 0:
        return 0.0
    mu = math.sqrt(uploads) / multiplier
    low, high = 0.0, 1.0
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    while delta_of(mu, high) > delta:
        high *= 2
    for _ in range(200):  # δ falls as ε grows
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(mu, middle) > delta else (low, middle)
        if high - low < 1e-12 * high:
            break
    return high


def delta_of(mu: float, epsilon: float) -> float:
    """δ of a μ-GDP mechanism at ε."""
    return math.exp(_log_phi(mu / 2 - epsilon / mu)) - math.exp(epsilon + _log_phi(-mu / 2 - epsilon / mu))


def _log_phi(x: float) -> float:
    """log Φ(x), also far out where Φ itself is too small for a float."""
    if x > -30:
        return math.log(0.5 * math.erfc(-x / math.sqrt(2)))
    return -x * x / 2 - math.log(-x * math.sqrt(2 * math.pi)) + math.log1p(-1 / x**2 + 3 / x**4)
