"""Data as the last phase of a program sees them, for tests that look at what was prepared."""

import dataclasses

from perinvfl.algorithms import FedAvg
from perinvfl.data.federation import Federation
from perinvfl.engine.program_run import ProgramRun
from perinvfl.learning.training import Training
from perinvfl.models import Model, ModelSettings
from perinvfl.preparation.program import check_preparation, program_of
from perinvfl.preparation.settings import ContextSettings


def prepared(
    federation: Federation, seed: int, how: ContextSettings, model: ModelSettings | Model, training: Training
) -> Federation:
    """With what was found among its notes."""
    check_preparation(how, federation, model)
    run = ProgramRun(program_of(FedAvg(), training, how), [FedAvg()], {seed: federation}, [seed], model)
    run.prepare()
    seen = run.seen(seed)
    return dataclasses.replace(seen, notes={**seen.notes, **run.facts(seed)})
