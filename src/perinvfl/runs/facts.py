"""What a run is, as fields of its record: its method, its setting in a search, its seed, its fold and its purpose.

These are the fields that format 2 added to the first event of a record. Does not import torch.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

from perinvfl.core import config, hyper

FORMAT = 3  # of the records that this version writes; it reads all up to it. Since 3 every line has a check
Stage = Literal["search", "left out", "chosen", "longer"]


def run_id(asked: dict[str, Any]) -> str:
    """Sixteen hex digits that name a configuration."""
    canonical = json.dumps(asked, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Effort:
    """How much a published table spends, on each method alike (`python -m perinvfl.reproduce`)."""

    trials: int = hyper.hyper(48, "settings of each method in the search", least=1)
    finalists: int = hyper.hyper(10, "best settings of each method that are looked at further", least=1)
    leave_out: bool = hyper.hyper(True, "train the finalists by `source` with each client left out")
    seeds: tuple[int, ...] = hyper.hyper((101, 102, 103, 104, 105), "fresh seeds, none of them used in the search")
    longer: int = hyper.hyper(0, "rounds of longer runs, which only the oracle sees; 0 for none", least=0)
    longer_settings: int = hyper.hyper(2, "settings of each method that are run longer, the oracle's best", least=1)


@dataclass(frozen=True)
class Purpose:
    """What a run of a published table is made for; on record beside its result, not part of its name."""

    stage: Stage
    effort: Effort
    rules: tuple[str, ...] = ()  # the selection rules that asked for it; a run of the search is asked for by none


@dataclass(frozen=True)
class Facts:
    """What the label puts into words. They do not enter the run's id; the label does."""

    method: str  # how tables call it
    setting: int | None  # its place in a search; None where nothing was searched
    seed: int
    fold: str  # what was held out from training in turn: a context, or "client 2"; empty where nothing was
    purpose: Purpose | None  # None for a run that was made for no published table

    def as_fields(self) -> dict[str, Any]:
        """As the first event of a record holds them."""
        return {
            "format": FORMAT,
            "method": self.method,
            "setting": self.setting,
            "seed": self.seed,
            "fold": self.fold,
            "purpose": None if self.purpose is None else _plain(self.purpose),
        }

    @classmethod
    def read(cls, fields: dict[str, Any]) -> "Facts":
        """From the first event of a record of format 2."""
        purpose = fields["purpose"]
        return cls(
            fields["method"],
            fields["setting"],
            fields["seed"],
            fields["fold"],
            None if purpose is None else config.build(Purpose, purpose, "purpose"),
        )


def _plain(purpose: Purpose) -> dict[str, Any]:
    """As it is when read back from JSON, which knows lists only."""
    effort = dataclasses.asdict(purpose.effort)
    return {
        "stage": purpose.stage,
        "effort": {**effort, "seeds": list(purpose.effort.seeds)},
        "rules": list(purpose.rules),
    }
