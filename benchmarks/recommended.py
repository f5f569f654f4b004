"""What `recommended` costs beside FedAvg with as many rounds, with all that it does before its first round.

In seconds of the processor, one thread.
"""

import itertools
import sys
from collections.abc import Callable
from functools import partial
from typing import Literal

from benchmarks.common import Row, show
from benchmarks.turns import least_seconds
from perinvfl.algorithms import Algorithm, FedAvg, Recommended
from perinvfl.data.benchmarks.digits import DigitSettings, digit_federation
from perinvfl.data.benchmarks.planted import PlantedSettings, planted_federation
from perinvfl.data.federation import Federation
from perinvfl.engine.program_run import ProgramRun
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings
from perinvfl.preparation.program import program_of
from perinvfl.preparation.settings import ContextSettings

MOST = 2.5  # times FedAvg
ROUNDS = 30
DIGITS, TABLES = "digits, 4 x 1000", "tables, 4 x 1000 rows"
ExecutorKind = Literal["loop", "vmap"]
EXECUTORS: tuple[ExecutorKind, ...] = ("loop", "vmap")


def whole_run(algorithm: Algorithm, federation: Federation, executor: ExecutorKind) -> None:
    program = program_of(algorithm, Training(rounds=ROUNDS, executor=executor), ContextSettings())
    run = ProgramRun(program, [algorithm], {0: federation}, [0], ModelSettings())
    while run.rounds_done < ROUNDS:
        run.round()


def runs_of(algorithm: Algorithm, world: str, executor: ExecutorKind) -> Callable[[], None]:
    digits = DigitSettings(p_train=((0.95, 0.8),) * 4, train_per_client=1000, test_per_client=10)
    tables = PlantedSettings(rows=1000, test_rows=10)
    federation = digit_federation("rc_mnist", digits, 0) if world == DIGITS else planted_federation(tables, 0)
    return partial(whole_run, algorithm, federation, executor)


def main() -> None:
    rows = []
    # `loop` is what a CPU and a site do; `vmap`, all clients as one program, is what a GPU does with small networks.
    for world, executor in itertools.product((DIGITS, TABLES), EXECUTORS):
        rivals = {
            "recommended": partial(runs_of, Recommended(), world, executor),
            "fedavg": partial(runs_of, FedAvg(), world, executor),
        }
        seconds = least_seconds(rivals, turns=2 if "--short" in sys.argv else 4)
        times = seconds["recommended"].processor / seconds["fedavg"].processor
        name = f"{world}, {executor}"
        print(f"{name}: {ROUNDS} rounds of recommended take {times:.2f} times as long as of FedAvg", flush=True)
        rows.append(Row(f"recommended, {name}: times FedAvg", times, MOST, at_most=True))
    show(rows)


if __name__ == "__main__":
    main()
