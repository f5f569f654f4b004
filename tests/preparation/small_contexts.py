"""Small federations whose contexts are inferred, and the plain reference model they are inferred by."""

import dataclasses
from functools import partial
from typing import Any

from perinvfl.algorithms import FedAvg
from perinvfl.data.benchmarks.random import random_federation
from perinvfl.data.federation import Federation
from perinvfl.engine.simulation import Simulation
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings
from perinvfl.preparation.settings import ContextSettings
from tests import reference
from tests.prepared import prepared

MODEL = ModelSettings(hidden=(5, 4))
EXECUTORS = ("vmap", "loop")
HARD = ContextSettings(infer="hard", reference_rounds=4, reference_rate=0.01)
SOFT = dataclasses.replace(HARD, infer="soft")
LOOP = Training(executor="loop", device="cpu")

small = partial(random_federation, clients=3, contexts=2, samples=20, shape=(3,), seed=4, holdout=12)


def infer(federation: Federation, how: ContextSettings = HARD, training: Training = LOOP) -> Federation:
    return prepared(federation, 7, how, MODEL, training)


def using(use: Any, **settings: Any) -> ContextSettings:
    return dataclasses.replace(HARD, use=use, **settings)


def slow_reference(federation: Federation, how: ContextSettings = HARD) -> reference.FedAvg:
    """FedAvg of the plain reference, as the stage is described: local steps of size 1, Adam at the server."""
    algorithm = FedAvg(
        learning_rate=1.0,
        server_optimizer="adam",
        server_learning_rate=how.reference_rate,
        cooling=how.reference_rounds if how.reference_cooling else 0,
    )
    drawn = Simulation([algorithm], [federation], [7], LOOP, MODEL)
    start = {name: leaf[0] for name, leaf in drawn.model.strip(drawn.server.params).items()}
    kind = reference.CooledFedAvg if how.reference_cooling else reference.FedAvg
    run = kind(algorithm, federation, start, by_size=False, paired=False)
    everyone = list(range(federation.clients))
    for _ in range(how.reference_rounds):
        run.round(everyone, [None] * len(everyone))
    return run


def errs(task: str, logits: list[float], y: float) -> bool:
    """Of one sample: the largest logit is not the label's, or the one logit is on the wrong side of 0."""
    if task == "multiclass":
        return max(range(len(logits)), key=lambda c: logits[c]) != int(y)
    return (logits[0] > 0) != (y == 1)
