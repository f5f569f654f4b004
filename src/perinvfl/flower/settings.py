"""How a run across machines is carried out: the `[federation]` part of an experiment file."""

from dataclasses import dataclass
from typing import Any

from perinvfl.core import config
from perinvfl.core.hyper import hyper
from perinvfl.errors import UserError
from perinvfl.runs.trial import Trial


@dataclass(frozen=True)
class DeploymentSettings:
    round_timeout: float = hyper(
        600.0,
        "seconds to wait for sites in a round, so that a slow one does not hold up the others; then the round "
        "ends without those that did not answer; the default is ten minutes",
        above=0,
    )
    minimum_replies: int = hyper(
        1,
        "number of replies that a round needs to count; more keep a few sites from steering the model alone; "
        "with fewer replies the round is repeated; 1 accepts any",
        least=1,
    )
    patience: float = hyper(
        3600.0,
        "seconds to wait for enough sites, at the start or later, before the run ends with an error, so that "
        "it does not wait for ever; the default is an hour",
        above=0,
    )
    last_patience: float = hyper(
        60.0,
        "seconds to wait for missing sites after the last round, so that they are evaluated too; those still "
        "missing then are left out of the last evaluation; the default is a minute",
        least=0,
    )
    server_patience: float = hyper(
        60.0,
        "seconds to wait for a server that does not answer, such as during a restart, before the run ends; "
        "--resume continues it; the default is a minute",
        above=0,
    )
    poll: float = hyper(
        0.1,
        "seconds between two checks for replies; smaller notices them sooner and keeps the server busier; the "
        "default is a tenth of a second",
        above=0,
    )
    largest_update: float = hyper(
        1e6,
        "refuse an update whose norm is larger than this, against broken or hostile sites; the default is far "
        "above real updates and stops only senseless ones",
        above=0,
    )
    evaluate: bool = hyper(
        True,
        "ask sites to score the models on their own tests, so that tables can be made; they send scores only; "
        "false asks for none",
    )
    secure_aggregation: bool = hyper(
        False,
        "use secure aggregation (SecAgg+), so that the server sees the sum of the updates and no single one; "
        "needs three sites; false shows the server each update",
    )
    clipping_range: float = hyper(
        8.0,
        "secure aggregation: clip each entry of an update to ± this, since sums are made of whole numbers in "
        "that range; smaller is more exact, but must not cut real updates; 8 is wide enough for most",
        above=0,
    )
    risks_may_be_seen: bool = hyper(
        False,
        "secure aggregation: let the server see each site's risk, one number per round, which GroupDRO and "
        "V-REx need; false refuses to run them",
    )
    pilot_may_be_seen: bool = hyper(
        False,
        "contexts.align: let the server and all sites see a model that the first site trained alone, by which "
        "images are aligned; false refuses to align",
    )
    noise_multiplier: float = hyper(
        0.0,
        "differential privacy: standard deviation of the noise on updates, in multiples of noise_clip; larger "
        "hides each site's data better and costs accuracy; 0 adds none",
        symbol="z",
        least=0,
    )
    noise_clip: float = hyper(
        1.0,
        "differential privacy: scale updates down to at most this norm, so that noise of that size can hide "
        "them; smaller needs less noise, but slows learning; 1 suits small models",
        symbol="C",
        above=0,
    )
    noise_delta: float = hyper(
        1e-5,
        "differential privacy: probability δ with which the reported ε may fail to hold; smaller makes ε "
        "larger; it should be well below 1 / number of sites' samples",
        symbol="δ",
        above=0,
        most=0.5,
    )

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


def read_settings(table: dict[str, Any]) -> DeploymentSettings:
    """From the whole table of an experiment file."""
    return config.build(DeploymentSettings, table.get("federation", {}), "federation")


def check_deployment(settings: DeploymentSettings, trial: Trial, sites: int) -> None:
    """Refuse what cannot be had at once."""
    if trial.algorithm.pooled:
        raise UserError(f"{trial.label} needs the data of all clients in one place; it cannot run across machines.")
    if trial.data.clients != sites:
        raise UserError(
            f"The experiment has {trial.data.clients} clients and the federation {sites} sites; the two must be equal."
        )
    if settings.minimum_replies > sites:
        raise UserError(f"federation.minimum_replies = {settings.minimum_replies}: there are only {sites} sites.")
    if trial.contexts.align != "nothing" and not settings.pilot_may_be_seen:
        raise UserError(
            "contexts.align shows the model that the first site trained alone to the server and to all other sites; "
            "set federation.pilot_may_be_seen = true to allow that, or leave align out."
        )
    if settings.secure_aggregation:
        _check_secure_aggregation(settings, trial, sites)
    if settings.private and trial.algorithm.sees_risks():
        raise UserError(
            f"federation.noise_multiplier = {settings.noise_multiplier:g}: {trial.label} needs the risk of each site, "
            "which would leave it without noise; use another algorithm."
        )
    if settings.private and trial.algorithm.sends_control():
        raise UserError(
            f"federation.noise_multiplier = {settings.noise_multiplier:g}: {trial.label} sends more than an update, "
            "which would leave a site without noise; use another algorithm."
        )
    if settings.private and trial.program().own_preparation:
        raise UserError(
            f"federation.noise_multiplier = {settings.noise_multiplier:g}: {trial.label} sums up how columns relate to "
            "the label, which noise on updates does not cover; use another algorithm."
        )
    if settings.private and trial.model.norm == "batch":
        raise UserError(
            f'federation.noise_multiplier = {settings.noise_multiplier:g}: model.norm = "batch" needs statistics of '
            'each site, which would leave it without noise; use model.norm = "group".'
        )


def _check_secure_aggregation(settings: DeploymentSettings, trial: Trial, sites: int) -> None:
    """The server then sees sums alone."""
    if trial.algorithm.sees_risks() and not settings.risks_may_be_seen:
        raise UserError(
            f"federation.secure_aggregation = true: {trial.label} needs each site's risk, which a sum does not give; "
            "set federation.risks_may_be_seen = true to let the server see the risks, or use another algorithm."
        )
    if trial.algorithm.sees_updates():
        single = ("agreement", "matching", "trimming", "clipping")
        named = " and ".join(f"algorithm.{key}" for key in single if getattr(trial.algorithm, key))
        raise UserError(
            f"federation.secure_aggregation = true: {named or trial.label} needs each site's update, which a sum does "
            "not give; leave one of the two out."
        )
    if trial.contexts.align != "nothing":
        raise UserError(
            "federation.secure_aggregation = true: contexts.align needs the update of the first site alone, which a "
            "sum does not give; leave one of the two out."
        )
    if trial.model.norm == "batch":
        raise UserError(
            'federation.secure_aggregation = true: model.norm = "batch" needs statistics of each site, which a sum '
            'does not give; use model.norm = "group".'
        )
    if trial.training.weights != "uniform":
        raise UserError('federation.secure_aggregation = true goes with training.weights = "uniform".')
    if max(1, int(trial.training.fraction * sites + 0.5)) < 3:
        raise UserError(
            "federation.secure_aggregation = true needs at least 3 sites in a round: with two, each could work out the "
            "other's update."
        )
