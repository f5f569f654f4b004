"""The algorithms, one paper per file. A new one is one file and one entry here, or a call of `register`.

All that an algorithm of your own needs can be imported from here.
"""

import dataclasses
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from perinvfl.algorithms.base import ADAM_RATES, Algorithm, by_optimizer, erm
from perinvfl.algorithms.local_steps import LocalSteps
from perinvfl.algorithms.messages import Broadcast, ClientState, ServerState, Upload
from perinvfl.algorithms.parts import PartlyPersonal
from perinvfl.algorithms.personal import FineTuned, Personal
from perinvfl.algorithms.pooled import Pooled
from perinvfl.core import optimizers, tree
from perinvfl.core.hyper import By, LogUniform, OneOf, hyper
from perinvfl.core.tree import Params
from perinvfl.learning import risks
from perinvfl.learning.problem import Batch, Batches, Descent, FeatureObjective, Number, Objective, Problem

if TYPE_CHECKING:
    from perinvfl.algorithms.alone import Alone
    from perinvfl.algorithms.apfl import APFL
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
    from perinvfl.algorithms.per_fedavg import PerFedAvg
    from perinvfl.algorithms.perinvfl_options import PerInvFL
    from perinvfl.algorithms.pfedme import PFedMe
    from perinvfl.algorithms.pooled_erm import PooledERM
    from perinvfl.algorithms.pooled_fishr import PooledFishr
    from perinvfl.algorithms.pooled_groupdro import PooledGroupDRO
    from perinvfl.algorithms.pooled_irm import PooledIRM
    from perinvfl.algorithms.recommended import Recommended
    from perinvfl.algorithms.scaffold import SCAFFOLD
    from perinvfl.algorithms.vrex import VREx

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

# Where each algorithm lies: its file and its class.
_PLACES = {
    "recommended": ("recommended", "Recommended"),
    "alone": ("alone", "Alone"),
    "fedavg": ("fedavg", "FedAvg"),
    "fedprox": ("fedprox", "FedProx"),
    "scaffold": ("scaffold", "SCAFFOLD"),
    "fedadam": ("fedadam", "FedAdam"),
    "fedyogi": ("fedyogi", "FedYogi"),
    "fednova": ("fednova", "FedNova"),
    "ditto": ("ditto", "Ditto"),
    "ftfa": ("ftfa", "FTFA"),
    "pfedme": ("pfedme", "PFedMe"),
    "fedper": ("fedper", "FedPer"),
    "fedrep": ("fedrep", "FedRep"),
    "lg_fedavg": ("lg_fedavg", "LGFedAvg"),
    "fedbn": ("fedbn", "FedBN"),
    "apfl": ("apfl", "APFL"),
    "per_fedavg": ("per_fedavg", "PerFedAvg"),
    "fedala": ("fedala", "FedALA"),
    "groupdro": ("groupdro", "GroupDRO"),
    "irm": ("irm", "IRM"),
    "irm_l2": ("irm_l2", "IRML2"),
    "irm_ft": ("irm_ft", "IRMFT"),
    "perinvfl": ("perinvfl_options", "PerInvFL"),
    "vrex": ("vrex", "VREx"),
    "fedsr": ("fedsr", "FedSR"),
    "fediir": ("fediir", "FedIIR"),
    "feddg_ga": ("feddg_ga", "FedDGGA"),
    "pooled_erm": ("pooled_erm", "PooledERM"),
    "pooled_irm": ("pooled_irm", "PooledIRM"),
    "pooled_groupdro": ("pooled_groupdro", "PooledGroupDRO"),
    "pooled_fishr": ("pooled_fishr", "PooledFishr"),
}


class _Algorithms(MutableMapping[str, type[Algorithm]]):
    """Algorithms by name. The file of one is imported when it is first asked for: a run begins sooner that way."""

    def __init__(self) -> None:
        self._known: dict[str, type[Algorithm] | None] = dict.fromkeys(_PLACES)

    def __getitem__(self, name: str) -> type[Algorithm]:
        found = self._known[name]
        if found is None:
            file, kind = _PLACES[name]
            found = self._known[name] = getattr(import_module(f"perinvfl.algorithms.{file}"), kind)
        return found

    def __setitem__(self, name: str, algorithm: type[Algorithm]) -> None:
        self._known[name] = algorithm

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, name: object) -> bool:
        return name in self._known


ALGORITHMS = _Algorithms()


def __getattr__(kind: str) -> type[Algorithm]:
    """`from perinvfl.algorithms import FedAvg`, as if all of them had been imported."""
    for file, known in _PLACES.values():
        if known == kind:
            found: type[Algorithm] = getattr(import_module(f"perinvfl.algorithms.{file}"), kind)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {kind!r}")


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
