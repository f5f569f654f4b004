"""How a run across machines is carried out: the `[federation]` part of an experiment file."""

from dataclasses import dataclass
from typing import Any

from perinvfl.algorithms.base import Algorithm
from perinvfl.algorithms.groupdro import GroupDRO
from perinvfl.algorithms.vrex import VREx
from perinvfl.core import config
from perinvfl.core.hyper import hyper
from perinvfl.errors import UserError
from perinvfl.runs.trial import Trial


@dataclass(frozen=True)
class FederationSettings:
    round_timeout: float = hyper(600.0, "seconds after which a round goes on without the sites still missing", above=0)
    minimum_replies: int = hyper(1, "replies without which a round is not used but asked again", least=1)
    patience: float = hyper(
        3600.0, "seconds to wait for enough sites, at the start or later, before giving up", above=0
    )
    poll: float = hyper(0.1, "seconds between two looks for replies", above=0)
    largest_update: float = hyper(1e6, "norm above which an update is not believed", above=0)
    evaluate: bool = hyper(True, "ask sites how well the models do on their own test cases; only numbers are sent")
    secure_aggregation: bool = hyper(False, "SecAgg+: the server sees only the sum of the updates")
    clipping_range: float = hyper(8.0, "secure aggregation: entries of an update are cut to ± this", above=0)
    risks_may_be_seen: bool = hyper(False, "secure aggregation: let GroupDRO see the risk of each site")
    noise_multiplier: float = hyper(
        0.0, "differential privacy: noise of each update over noise_clip; 0 is none", symbol="z", least=0
    )
    noise_clip: float = hyper(1.0, "differential privacy: an update is scaled down to this norm", symbol="C", above=0)
    noise_delta: float = hyper(1e-5, "differential privacy: δ at which ε is told", symbol="δ", above=0, most=0.5)

    @property
    def private(self) -> bool:
        return self.noise_multiplier > 0

    def decides(self) -> dict[str, Any]:
        """What changes the result, and so belongs to the run's id: nothing, for the plain mean."""
        chosen: dict[str, Any] = {}
        if self.secure_aggregation:
            chosen |= {"secure_aggregation": True, "clipping_range": self.clipping_range}
        if self.private:
            chosen |= {"noise_multiplier": self.noise_multiplier, "noise_clip": self.noise_clip}
        return chosen


def read_settings(table: dict[str, Any]) -> FederationSettings:
    """From the whole table of an experiment file."""
    return config.build(FederationSettings, table.get("federation", {}), "federation")


def needs_risks(algorithm: Algorithm) -> bool:
    """Whether the server must see the risk of each client, and not only their mean."""
    return isinstance(algorithm, GroupDRO | VREx) or getattr(algorithm, "invariance", "") == "groupdro"


def check_together(settings: FederationSettings, trial: Trial, sites: int) -> None:
    """Refuse what cannot be had at once."""
    if trial.contexts.infer != "given":
        raise UserError(
            f'contexts.infer = "{trial.contexts.infer}" works on one machine only; leave [contexts] out here.'
        )
    if getattr(trial.data, "crop", 0) or getattr(trial.data, "flip", False):
        raise UserError("data.crop and data.flip work on one machine only; leave them out here.")
    for name in ("agreement", "matching"):
        if getattr(trial.algorithm, name):
            raise UserError(f"algorithm.{name} works on one machine only; leave it out here.")
    if trial.data.clients != sites:
        raise UserError(
            f"The experiment has {trial.data.clients} clients and the federation {sites} sites; they must be as many."
        )
    if settings.minimum_replies > sites:
        raise UserError(f"federation.minimum_replies = {settings.minimum_replies}: there are only {sites} sites.")
    if settings.secure_aggregation and needs_risks(trial.algorithm) and not settings.risks_may_be_seen:
        raise UserError(
            f"federation.secure_aggregation = true: {trial.label} needs each site's risk, which a sum does not give; "
            "set federation.risks_may_be_seen = true to let the server see the risks, or use another algorithm."
        )
    if settings.secure_aggregation and trial.training.weights != "uniform":
        raise UserError('federation.secure_aggregation = true goes with training.weights = "uniform".')
    if settings.secure_aggregation and max(1, int(trial.training.fraction * sites + 0.5)) < 3:
        raise UserError(
            "federation.secure_aggregation = true needs at least 3 sites in a round: of two, each knows all."
        )
    if settings.private and needs_risks(trial.algorithm):
        raise UserError(
            f"federation.noise_multiplier = {settings.noise_multiplier:g}: {trial.label} needs the risk of each site, "
            "which would leave it without noise; use another algorithm."
        )
