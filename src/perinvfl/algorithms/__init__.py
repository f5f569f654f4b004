"""The algorithms, one paper a file. A new one is one file and one entry here, or a call of `register`."""

import dataclasses
from typing import Any

from perinvfl.algorithms.alone import Alone
from perinvfl.algorithms.base import Algorithm
from perinvfl.algorithms.ditto import Ditto
from perinvfl.algorithms.fedavg import FedAvg
from perinvfl.algorithms.ftfa import FTFA
from perinvfl.algorithms.groupdro import GroupDRO
from perinvfl.algorithms.irm import IRM
from perinvfl.algorithms.irm_ft import IRMFT
from perinvfl.algorithms.irm_l2 import IRML2
from perinvfl.algorithms.perinvfl import PerInvFL
from perinvfl.algorithms.pfedme import PFedMe
from perinvfl.algorithms.vrex import VREx

ALGORITHMS: dict[str, type[Algorithm]] = {
    "alone": Alone,
    "fedavg": FedAvg,
    "ditto": Ditto,
    "ftfa": FTFA,
    "pfedme": PFedMe,
    "groupdro": GroupDRO,
    "irm": IRM,
    "irm_l2": IRML2,
    "irm_ft": IRMFT,
    "perinvfl": PerInvFL,
    "vrex": VREx,
}


def register(name: str, algorithm: type[Algorithm]) -> None:
    """Make an algorithm known under a name, for experiment files and the command line.

    The same class may come again, as when a file is imported anew; another class under the name may not.
    """
    known = ALGORITHMS.get(name)
    if known is not None and known.__qualname__ != algorithm.__qualname__:
        raise ValueError(f"an algorithm named {name} is registered already")
    ALGORITHMS[name] = algorithm


def settings_of(algorithm: type[Algorithm]) -> list["dataclasses.Field[Any]"]:
    """The fields a user may set."""
    return [field for field in dataclasses.fields(algorithm) if field.name not in algorithm.unused]
