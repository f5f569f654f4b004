"""Train experiments/heart_disease.toml, within hospitals and with each left out, and pack the records with their
scores into results/heart_disease: python scripts/make_heart_disease.py [--runs FOLDER]. About five minutes on one core.
"""

import argparse
import sys
from pathlib import Path

from perinvfl.runs.experiment import read_experiment
from perinvfl.runs.progress import Lines
from perinvfl.runs.records import PACKED, pack, read_run
from perinvfl.runs.train import train
from perinvfl.scoring.run_scores import with_scores

ROOT = Path(__file__).parents[1]
FILE, RESULTS = ROOT / "experiments/heart_disease.toml", ROOT / "results/heart_disease"
TABLES = {"each_hospital_left_out": ["data.leave_out=each"], "within_hospitals": []}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="folder of the runs; finished ones are kept")
    given = parser.parse_args(arguments)
    for name, overrides in TABLES.items():
        folders = train(read_experiment(FILE, overrides), given.runs / f"heart_disease_{name}", Lines())
        runs = [run for run in map(read_run, folders) if run is not None]
        pack([with_scores(run) for run in runs], RESULTS / f"{name}{PACKED}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
