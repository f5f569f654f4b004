"""`python -m tests.fuzz --seconds 600`: every fuzzer in turn for its share of the time, with a fresh seed."""

import argparse
import faulthandler
import secrets
import sys

from tests.fuzz import core
from tests.fuzz.registry import FUZZERS

PART = 500  # inputs after which the next fuzzer has its turn


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=None, help="for how long, all fuzzers together")
    parser.add_argument("--inputs", type=int, default=None, help="how many inputs for each fuzzer, instead")
    parser.add_argument(
        "--only", choices=list(FUZZERS), action="append", help="one of them; may be given several times"
    )
    parser.add_argument("--seed", default="", help="a seed of an earlier run; by default a fresh one")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    given = parser.parse_args()
    seed = given.seed or secrets.token_hex(4)
    print(f"seed {seed}", flush=True)  # before anything that could end the process
    faulthandler.enable()
    names = given.only or list(FUZZERS)
    seconds = None if given.inputs is not None else (given.seconds or 60.0) / len(names)
    outcomes = []
    for name in names:
        outcomes.append(core.run(FUZZERS[name](), seed, given.inputs, seconds, given.first))
        print(outcomes[-1].report(), flush=True)
    total = sum(outcome.inputs for outcome in outcomes)
    failed = sum(sum(outcome.counts.values()) for outcome in outcomes)
    print(f"{total} inputs, {failed} failed; seed {seed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
