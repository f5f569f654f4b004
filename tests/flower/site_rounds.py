"""Rounds that a site is asked for without a server, and what it keeps of them."""

import torch

from perinvfl.core.seeding import generator
from perinvfl.core.tree import Params
from perinvfl.flower.assignment import NEVER, Assignment
from perinvfl.flower.site import Site
from perinvfl.models import build_model
from tests.flower.deployed import trial_of


def assignment(round: int, used: int, run: str = "run") -> Assignment:
    """Of a run with one phase: its round t is step 2t + 1, and a round that was used is known by its step."""
    step, last = 2 * round + 1, NEVER if used < 0 else 2 * used + 1
    return Assignment(run, trial_of("perinvfl").asked(), 1, 4, 2, 0, round, step, last)


def model(seed: int) -> Params:
    trial = trial_of("perinvfl")
    federation = trial.federation()
    built = build_model(trial.model, federation.shape, federation.outputs, "float32")
    return built.init(generator(seed, "weights"))


def kept(site: Site, used: int, run: str = "run") -> dict[str, torch.Tensor]:
    """What the site has of the last round that counts; {} before the first."""
    return site.store.settle(run, NEVER if used < 0 else 2 * used + 1).client
