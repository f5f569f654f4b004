"""Whether there is room for a simulation, before anything of it is made."""

from collections.abc import Sequence

from perinvfl.algorithms.base import Algorithm
from perinvfl.core.memory import check_fits
from perinvfl.learning.training import Training
from perinvfl.models import AT_ONCE, FLOAT, Model


def check_room(algorithms: Sequence[Algorithm], training: Training, model: Model, clients: int) -> None:
    """What is certain to be held at once: the models, and which samples make up the batches of a round."""
    personal = clients if algorithms[0].has_personal and training.at_rest == "memory" else 0
    models = len(algorithms) * (AT_ONCE + personal)
    check_fits(FLOAT * models * model.size, f"Training {models} models of {model.size:,} parameters")
    steps = max(max(a.batches_per_round(), a.batches_at_end()) for a in algorithms)
    taking_part = max(1, int(training.fraction * clients + 0.5))
    drawn = len(algorithms) * taking_part * steps * training.batch_size
    check_fits(8 * drawn, f"{steps:,} batches of {training.batch_size} samples for each of {taking_part} clients")
