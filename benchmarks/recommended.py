"""What `recommended` costs beside FedAvg with as many rounds, with all that it does before its first round."""

from benchmarks.common import rival_seconds, show
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


def whole_run(algorithm: Algorithm, federation: Federation) -> None:
    program = program_of(algorithm, Training(rounds=ROUNDS), ContextSettings())
    run = ProgramRun(program, [algorithm], {0: federation}, [0], ModelSettings())
    while run.rounds_done < ROUNDS:
        run.round()


def main() -> None:
    digits = DigitSettings(p_train=((0.95, 0.8),) * 4, train_per_client=1000, test_per_client=10)
    tables = PlantedSettings(rows=1000, test_rows=10)
    worlds = {
        "digits, 4 x 1000": digit_federation("rc_mnist", digits, 0),
        "tables, 4 x 1000 rows": planted_federation(tables, 0),
    }
    rows = []
    for name, federation in worlds.items():
        seconds = rival_seconds(
            {
                "recommended": lambda federation=federation: whole_run(Recommended(), federation),  # type: ignore[misc]
                "fedavg": lambda federation=federation: whole_run(FedAvg(), federation),  # type: ignore[misc]
            },
            repeats=3,
        )
        times = seconds["recommended"] / seconds["fedavg"]
        print(f"{name}: {ROUNDS} rounds of recommended take {times:.2f} times as long as of FedAvg", flush=True)
        rows.append((f"{name}: {MOST} over times FedAvg", MOST / times, 1.0, ""))
    show(rows)


if __name__ == "__main__":
    main()
