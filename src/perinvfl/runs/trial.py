"""One run: everything that decides its result, and what it is made for."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from perinvfl.algorithms.base import Algorithm
from perinvfl.core import hyper
from perinvfl.core.plugins import load, source_of
from perinvfl.data.federation import Federation
from perinvfl.data.registry import build_federation
from perinvfl.engine.simulation import Training
from perinvfl.errors import UserError
from perinvfl.learning.shortcut import ContextSettings
from perinvfl.models import ModelSettings
from perinvfl.preparation.alignment import prepared
from perinvfl.runs.records import run_id

GIVEN = ContextSettings()
Stage = Literal["search", "left out", "chosen", "longer"]


@dataclass(frozen=True)
class Effort:
    """How much a published table spends, on each method alike (`python -m perinvfl.reproduce`)."""

    trials: int = hyper.hyper(48, "settings of each method in the search", least=1)
    finalists: int = hyper.hyper(10, "best settings of each method that are looked at further", least=1)
    leave_out: bool = hyper.hyper(True, "train the finalists by `source` with each client left out")
    seeds: tuple[int, ...] = hyper.hyper((101, 102, 103, 104, 105), "fresh seeds, none of them used in the search")
    longer: int = hyper.hyper(0, "rounds of runs that go on longer, for the oracle; 0 for none", least=0)
    longer_settings: int = hyper.hyper(2, "settings of each method that go on longer, the oracle's best", least=1)


@dataclass(frozen=True)
class Purpose:
    """What a run of a published table is made for; on record beside its result, not part of its name."""

    stage: Stage
    effort: Effort
    rules: tuple[str, ...] = ()  # the selection rules that asked for a run with a fresh seed


@dataclass(frozen=True)
class Trial:
    """One run: everything that decides its result, and nothing else."""

    benchmark: str
    data: Any  # the benchmark's settings
    model: ModelSettings
    training: Training
    algorithm_name: str
    label: str  # how tables call it
    algorithm: Algorithm
    seed: int
    held: frozenset[str] = frozenset()  # settings named in the file: a search leaves them alone
    contexts: ContextSettings = GIVEN
    ranges: tuple[tuple[str, hyper.Range], ...] = ()  # where a search is to look, instead of the declared ranges
    # Facts for the record that the label puts into words: they do not enter the run's id, the label does.
    method: str = ""  # the label without the number of a setting and the fold; empty: the label
    setting: int | None = None  # its place in a search
    purpose: Purpose | None = None

    def asked(self) -> dict[str, Any]:
        """The full configuration as plain values; its hash is the run's id."""
        settings = hyper.asked(self.algorithm)
        for name in self.algorithm.unused:
            settings.pop(name, None)
        inferred = {} if self.contexts.infer == "given" else {"contexts": hyper.asked(self.contexts)}
        return {
            "data": {"benchmark": self.benchmark, **hyper.asked(self.data)},
            **inferred,
            "model": self.model.asked(),
            "training": hyper.asked(self.training),
            "algorithm": {"name": self.algorithm_name, "label": self.label, **settings},
            "seed": self.seed,
        }

    @property
    def id(self) -> str:
        asked: dict[str, Any] = self.asked()
        for name in getattr(self.data, "unnamed", ()):
            asked["data"].pop(name)
        own = [self.algorithm_name] if ":" in self.algorithm_name else []
        own += [self.model.build] if self.model.build else []
        if own:  # a run of changed code is another run
            asked["sources"] = {name: _source(name) for name in own}
        return run_id(asked)

    @property
    def fold(self) -> str:
        """What was held out from training in turn: a context, or a client; empty where nothing was."""
        client = getattr(self.data, "leave_out", -1)
        return getattr(self.data, "fold", "") or (f"client {client}" if client >= 0 else "")

    @property
    def title(self) -> str:
        """The label, and in leave-one-context-out the context held out."""
        fold = getattr(self.data, "fold", "")
        return f"{self.label} without {fold}" if fold else self.label

    @property
    def folder(self) -> str:
        words = re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")
        return f"{words}-seed{self.seed}-{self.id}"

    def federation(self) -> Federation:
        if self.contexts.infer == "given":
            return _federation(self.benchmark, self.data, self.seed)
        return _inferred(self.benchmark, self.data, self.seed, self.contexts, self.model, self.training)


def _source(name: str) -> str:
    try:
        return source_of(load(name, "name"))
    except UserError:  # made in a session of Python, where it has no name to be found by
        return ""


@lru_cache(maxsize=16)  # some 200 MB each at full size
def _federation(benchmark: str, settings: Any, seed: int) -> Federation:
    return build_federation(benchmark, settings, seed)


@lru_cache(maxsize=16)
def _inferred(
    benchmark: str, settings: Any, seed: int, contexts: ContextSettings, model: ModelSettings, training: Training
) -> Federation:
    return prepared(_federation(benchmark, settings, seed), seed, contexts, model, training)
