"""Train experiments/recommended/NAME.toml and pack the records into results/recommended:
python scripts/make_recommended.py [NAME ...] [--runs FOLDER]. WaterBird takes two hours on one core; the digits want a
GPU, on which the seeds of a method run as one program.
"""

import argparse
import sys
from pathlib import Path

import torch

from perinvfl.runs.experiment import read_experiment
from perinvfl.runs.progress import Lines
from perinvfl.runs.records import PACKED, pack, read_run
from perinvfl.runs.train import train

ROOT = Path(__file__).parents[1]
FILES, RESULTS = ROOT / "experiments/recommended", ROOT / "results/recommended"


def main(arguments: list[str] | None = None) -> int:
    there = sorted(file.stem for file in FILES.glob("*.toml"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"out of {', '.join(there)}; all, if none is named")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="folder of the runs; finished ones are kept")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in there]
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(there)}")
    together = 8 if torch.cuda.is_available() else 1
    for name in given.names or there:
        experiment = read_experiment(FILES / f"{name}.toml")
        folders = train(experiment, given.runs / f"recommended_{name}", Lines(), together)
        pack([run for run in map(read_run, folders) if run is not None], RESULTS / f"{name}{PACKED}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
