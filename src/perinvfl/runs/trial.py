"""One run: everything that decides its result, and what it is made for."""

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from perinvfl.algorithms.base import Algorithm
from perinvfl.core import hyper
from perinvfl.core.plugins import load, source_of
from perinvfl.data.federation import Federation
from perinvfl.data.registry import build_federation
from perinvfl.errors import UserError
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings
from perinvfl.preparation.phases import Program
from perinvfl.preparation.program import program_of
from perinvfl.preparation.settings import KNOWN_BY_USERS, ContextSettings
from perinvfl.runs.facts import Facts, Purpose, run_id

GIVEN = ContextSettings()


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
        contexts = self._asked_contexts()
        inferred = {"contexts": contexts} if contexts else {}
        return {
            "data": {"benchmark": self.benchmark, **hyper.asked(self.data)},
            **inferred,
            "model": self.model.asked(),
            "training": hyper.asked(self.training),
            "algorithm": {"name": self.algorithm_name, "label": self.label, **settings},
            "seed": self.seed,
        }

    def _asked_contexts(self) -> dict[str, Any]:
        if self.contexts.infer != "given":
            return hyper.asked(self.contexts)
        known = {key: getattr(self.contexts, key) for key in KNOWN_BY_USERS}  # of the rest nothing is asked
        return {key: value for key, value in known.items() if value != getattr(GIVEN, key)}

    @cached_property
    def id(self) -> str:
        return self.id_with({})

    def id_with(self, more: dict[str, Any]) -> str:
        """The id of a run that is also decided by something else than the trial."""
        asked: dict[str, Any] = {**self.asked(), **more}
        for name in getattr(self.data, "unnamed", ()):
            asked["data"].pop(name)
        if self.sources:  # a run of changed code is another run
            asked["sources"] = self.sources
        return run_id(asked)

    @property
    def sources(self) -> dict[str, str]:
        """Own code that the trial names, each by the content of its file."""
        own = [self.algorithm_name] if ":" in self.algorithm_name else []
        own += [self.model.build] if self.model.build else []
        return {name: _source(name) for name in own}

    @property
    def fold(self) -> str:
        """What was held out from training in turn: a context, or a client; empty where nothing was."""
        client = getattr(self.data, "leave_out", -1)
        numbered = isinstance(client, int) and client >= 0
        return getattr(self.data, "fold", "") or (f"client {client}" if numbered else "")

    @property
    def facts(self) -> Facts:
        """What its record says of it beside what was asked."""
        return Facts(self.method or self.label, self.setting, self.seed, self.fold, self.purpose)

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
        """The data as they are given, whatever is prepared from them."""
        given = _given.get((self.benchmark, self.data, self.seed))
        return _federation(self.benchmark, self.data, self.seed) if given is None else given

    def program(self) -> Program:
        """The phases of the run."""
        return program_of(self.algorithm, self.training, self.contexts)

    @property
    def preparation_key(self) -> tuple[object, ...]:
        """Trials with the same one prepare alike."""
        training = dataclasses.replace(self.training, rounds=1, evaluate_every=1, at_rest="memory", compile=False)
        own = self.algorithm_name if self.program().own_preparation else ""
        bounds = self.bounds_in_preparation
        return self.benchmark, self.data, self.seed, self.contexts, self.model, training, own, bounds

    @property
    def bounds_in_preparation(self) -> tuple[float, float]:
        """The settings of the algorithm by which a reference model too is trained."""
        return (0.0, 0.0) if self.contexts.infer == "given" else (self.algorithm.trimming, self.algorithm.clipping)


def _source(name: str) -> str:
    try:
        return source_of(load(name, "name"))
    except UserError:  # made in a session of Python, where it has no name to be found by
        return ""


_given: dict[tuple[str, Any, int], Federation] = {}


def give_federations(pairs: Iterable[tuple[Trial, Federation]]) -> None:
    """The data of trials, where the file they were read from is on another machine; those given before go."""
    _given.clear()
    _given.update({(trial.benchmark, trial.data, trial.seed): federation for trial, federation in pairs})


@lru_cache(maxsize=16)  # some 200 MB each at full size
def _federation(benchmark: str, settings: Any, seed: int) -> Federation:
    return build_federation(benchmark, settings, seed)
