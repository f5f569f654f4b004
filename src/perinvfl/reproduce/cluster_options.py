"""`--on` and `--cores`: where the runs of a published table are made."""

import argparse
from contextlib import AbstractContextManager

from perinvfl.cluster.dispatcher import dispatcher_on
from perinvfl.errors import UserError
from perinvfl.runs.batches import Dispatcher


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    where = "ray: the Ray cluster at RAY_ADDRESS, or else this machine; ray://HOST:PORT: the cluster at that address"
    parser.add_argument("--on", default="", metavar="CLUSTER", help=where)
    parser.add_argument("--cores", type=int, default=1, help="cores of each task, with --on")


def dispatcher_of(given: argparse.Namespace, processes: int = 1) -> AbstractContextManager[Dispatcher]:
    if given.cores < 1:
        raise UserError(f"--cores {given.cores}: must be at least 1.")
    if given.on and processes > 1:
        raise UserError("--jobs is for this machine alone; leave it out with --on.")
    return dispatcher_on(given.on, given.cores, processes)
