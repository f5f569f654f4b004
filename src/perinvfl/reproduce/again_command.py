"""A published table with other data or another model: the settings chosen there, with fresh seeds; nothing is searched.

`python -m perinvfl.reproduce again results/waterbird --set data.size=224 --set model.width=64 --out results/large`

Then `perinvfl table results/large`. Stopped at any moment, the same command resumes. Torch and the standard library
only.
"""

import argparse
import shlex
import sys
from pathlib import Path

from perinvfl.core.commands import guarded
from perinvfl.core.saying import say
from perinvfl.errors import UserError
from perinvfl.reproduce.cluster_options import add_cluster_options, dispatcher_of
from perinvfl.reproduce.command import numbers_of
from perinvfl.reproduce.stages import Maker, reproduce_with


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m perinvfl.reproduce again", description=__doc__)
    parser.add_argument("table", type=Path, help="folder of a published table, such as results/waterbird")
    parser.add_argument("--out", type=Path, required=True, help="folder for the packed files of the new one")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="what differs, such as data.size=224"
    )
    parser.add_argument("--seeds", default="", help="such as 101,102,103; by default those of the table")
    parser.add_argument("--only", action="append", default=[], metavar="METHOD", help="this row of the table alone")
    parser.add_argument(
        "--rule", action="append", default=[], metavar="RULE", help="what this rule chose alone; by default, all rules"
    )
    parser.add_argument("--together", type=int, default=64, help="most trials in one program")
    add_cluster_options(parser)
    given = parser.parse_args(arguments)

    def work() -> int:
        if not given.set:
            raise UserError("--set: name what differs from the table, such as data.size=224.")
        if given.out.absolute() == given.table.absolute():
            raise UserError(f"--out {given.out}: is the table itself; name another folder.")
        seeds = numbers_of(given.seeds) if given.seeds else ()
        with dispatcher_of(given) as dispatcher:
            maker = Maker(given.out.name, given.out, given.together, say, dispatcher)
            reproduce_with(given.set, given.table, maker, seeds, given.only, given.rule)
        return 0

    return guarded(work, shlex.join([sys.executable, "-m", "perinvfl.reproduce", "again", *arguments]))
