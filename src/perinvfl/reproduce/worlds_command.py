"""Measure methods in many worlds: choose one setting of each on half of them, report it on the other half.

`python -m perinvfl.reproduce worlds --jobs 4`, then `perinvfl table worlds`

Stopped at any moment, the same command resumes. Torch and the standard library only.
"""

import argparse
import shlex
import sys
from pathlib import Path

from perinvfl.core.commands import guarded
from perinvfl.core.saying import say
from perinvfl.errors import UserError
from perinvfl.reproduce.cluster_options import add_cluster_options, dispatcher_of
from perinvfl.reproduce.world_runs import WorldRuns
from perinvfl.reproduce.worlds import read_plan, reduced


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m perinvfl.reproduce worlds", description=__doc__)
    parser.add_argument("--worlds", type=Path, default=Path("experiments/worlds"), help="folder of worlds and methods")
    parser.add_argument("--out", type=Path, help="folder for the records; by default results/worlds")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each of them on one thread")
    parser.add_argument("--only", action="append", default=[], metavar="WORLD", help="this world alone")
    parser.add_argument("--method", action="append", default=[], metavar="METHOD", help="this method alone")
    parser.add_argument(
        "--stage", choices=["choose", "report", "all"], default="all", help="choose settings, report them, or both"
    )
    parser.add_argument("--reduced", action="store_true", help="tiny worlds, to see that all runs; a folder of its own")
    parser.add_argument("--together", type=int, default=64, help="most runs in one program")
    add_cluster_options(parser)
    given = parser.parse_args(arguments)

    def work() -> int:
        for key in ("jobs", "together"):
            if getattr(given, key) < 1:
                raise UserError(f"--{key} {getattr(given, key)}: must be at least 1.")
        plan = read_plan(given.worlds)
        part = plan.only(given.only, given.method)
        if given.reduced:
            plan = part = reduced(part)  # what is left out is not waited for
        out = given.out or Path("build/worlds-reduced" if given.reduced else "results/worlds")
        with dispatcher_of(given, given.jobs) as dispatcher:
            runs = WorldRuns(plan, out, dispatcher, given.together, say)
            if given.stage != "report":
                runs.choose(part)
            if given.stage != "choose":
                runs.report(part)
        return 0

    return guarded(work, shlex.join([sys.executable, "-m", "perinvfl.reproduce", "worlds", *arguments]))
