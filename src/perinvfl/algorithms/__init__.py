"""The algorithms, one paper per file. A new one is one file and one entry here, or a call of `register`.

All that an algorithm of your own needs can be imported from here.
"""

import dataclasses
from typing import Any

from perinvfl.algorithms.alone import Alone
from perinvfl.algorithms.apfl import APFL
from perinvfl.algorithms.base import ADAM_RATES, Algorithm, by_optimizer, erm
from perinvfl.algorithms.ditto import Ditto
from perinvfl.algorithms.fedadam import FedAdam
from perinvfl.algorithms.fedala import FedALA
from perinvfl.algorithms.fedavg import FedAvg
from perinvfl.algorithms.fedbn import FedBN
from perinvfl.algorithms.feddg_ga import FedDGGA
from perinvfl.algorithms.fediir import FedIIR
from perinvfl.algorithms.fednova import FedNova
from perinvfl.algorithms.fedper import FedPer
from perinvfl.algorithms.fedprox import FedProx
from perinvfl.algorithms.fedrep import FedRep
from perinvfl.algorithms.fedsr import FedSR
from perinvfl.algorithms.fedyogi import FedYogi
from perinvfl.algorithms.ftfa import FTFA
from perinvfl.algorithms.groupdro import GroupDRO
from perinvfl.algorithms.irm import IRM
from perinvfl.algorithms.irm_ft import IRMFT
from perinvfl.algorithms.irm_l2 import IRML2
from perinvfl.algorithms.lg_fedavg import LGFedAvg
from perinvfl.algorithms.local_steps import LocalSteps
from perinvfl.algorithms.messages import Broadcast, ClientState, ServerState, Upload
from perinvfl.algorithms.parts import PartlyPersonal
from perinvfl.algorithms.per_fedavg import PerFedAvg
from perinvfl.algorithms.perinvfl_options import PerInvFL
from perinvfl.algorithms.personal import FineTuned, Personal
from perinvfl.algorithms.pfedme import PFedMe
from perinvfl.algorithms.pooled import Pooled
from perinvfl.algorithms.pooled_erm import PooledERM
from perinvfl.algorithms.pooled_fishr import PooledFishr
from perinvfl.algorithms.pooled_groupdro import PooledGroupDRO
from perinvfl.algorithms.pooled_irm import PooledIRM
from perinvfl.algorithms.recommended import Recommended
from perinvfl.algorithms.scaffold import SCAFFOLD
from perinvfl.algorithms.vrex import VREx
from perinvfl.core import optimizers, tree
from perinvfl.core.hyper import By, LogUniform, OneOf, hyper
from perinvfl.core.tree import Params
from perinvfl.learning import risks
from perinvfl.learning.problem import Batch, Batches, Descent, FeatureObjective, Number, Objective, Problem

__all__ = [
    "ADAM_RATES",
    "ALGORITHMS",
    "APFL",
    "FTFA",
    "IRM",
    "IRMFT",
    "IRML2",
    "SCAFFOLD",
    "Algorithm",
    "Alone",
    "Batch",
    "Batches",
    "Broadcast",
    "By",
    "ClientState",
    "Descent",
    "Ditto",
    "FeatureObjective",
    "FedALA",
    "FedAdam",
    "FedAvg",
    "FedBN",
    "FedDGGA",
    "FedIIR",
    "FedNova",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedSR",
    "FedYogi",
    "FineTuned",
    "GroupDRO",
    "LGFedAvg",
    "LocalSteps",
    "LogUniform",
    "Number",
    "Objective",
    "OneOf",
    "PFedMe",
    "Params",
    "PartlyPersonal",
    "PerFedAvg",
    "PerInvFL",
    "Personal",
    "Pooled",
    "PooledERM",
    "PooledFishr",
    "PooledGroupDRO",
    "PooledIRM",
    "Problem",
    "Recommended",
    "ServerState",
    "Upload",
    "VREx",
    "by_optimizer",
    "erm",
    "hyper",
    "optimizers",
    "register",
    "risks",
    "settings_of",
    "tree",
]  # fmt: skip

ALGORITHMS: dict[str, type[Algorithm]] = {
    "recommended": Recommended,
    "alone": Alone,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": SCAFFOLD,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "fednova": FedNova,
    "ditto": Ditto,
    "ftfa": FTFA,
    "pfedme": PFedMe,
    "fedper": FedPer,
    "fedrep": FedRep,
    "lg_fedavg": LGFedAvg,
    "fedbn": FedBN,
    "apfl": APFL,
    "per_fedavg": PerFedAvg,
    "fedala": FedALA,
    "groupdro": GroupDRO,
    "irm": IRM,
    "irm_l2": IRML2,
    "irm_ft": IRMFT,
    "perinvfl": PerInvFL,
    "vrex": VREx,
    "fedsr": FedSR,
    "fediir": FedIIR,
    "feddg_ga": FedDGGA,
    "pooled_erm": PooledERM,
    "pooled_irm": PooledIRM,
    "pooled_groupdro": PooledGroupDRO,
    "pooled_fishr": PooledFishr,
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
