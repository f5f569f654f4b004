"""A program on one machine: the phases in front for each seed, then rounds of the last one for all trials at once."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perinvfl.algorithms.base import Algorithm
from perinvfl.core.tree import Params
from perinvfl.data.federation import Federation
from perinvfl.engine.executors import row
from perinvfl.engine.local_client import predict
from perinvfl.engine.problems import build_problem, check_batch_size, place_inputs
from perinvfl.engine.simulation import Simulation
from perinvfl.learning.problem import Problem
from perinvfl.learning.training import Training
from perinvfl.models import Model, ModelSettings
from perinvfl.preparation.phases import Notes, Phase, Predict, Program, notes_of, stack_notes

PREPARING, NOTES, LATER = "preparing.", "notes.", "later notes."  # beginnings of names in checkpoints


class Preparation:
    """The phases in front of the last, for one seed: a round at a time."""

    def __init__(self, program: Program, federation: Federation, seed: int, model: ModelSettings | Model) -> None:
        self.program, self.federation, self.seed, self.model = program, federation, seed, model
        self.notes: Notes = {}
        self.number = 0
        self._simulation: Simulation | None = None

    @property
    def over(self) -> bool:
        return self.number == len(self.program.preparation)

    @property
    def phase(self) -> Phase:
        return self.program.preparation[self.number]

    @property
    def rounds_done(self) -> int:
        return 0 if self._simulation is None else self._simulation.rounds_done

    def round(self) -> Tensor:
        """One round of the phase under way, [1, n] risks; after its last, every client takes its notes."""
        simulation = self._simulation = self._simulation or self._begin()
        risks = simulation.round()
        over = simulation.rounds_done == self.phase.rounds
        if over or self.phase.notes_due(simulation.rounds_done):
            model = row(simulation.shared_model(), 0)
            each = take_notes(self.phase, self.federation, self.notes, simulation, model)
            self.notes = stack_notes(each, self.program.padding)
        if over:
            self.number, self._simulation = self.number + 1, None
        return risks

    def _begin(self) -> Simulation:
        given, notes = self.federation, self.notes
        if self.phase.first_alone:
            given, notes = given.share_of(0), notes_of(notes, 0)
        seen = self.phase.sees(given, notes)
        training = self.phase.training_with(int(seen.sizes.max()))
        model = self.phase.model_for(given, self.model)
        return Simulation([self.phase.algorithm], [seen], [self.seed], training, model)

    def state(self) -> dict[str, Tensor]:
        saved = {} if self._simulation is None else self._simulation.state()
        notes = {NOTES + name: leaf for name, leaf in self.notes.items()}
        return {
            "phase": torch.tensor(self.number),
            **notes,
            **{"simulation." + key: leaf for key, leaf in saved.items()},
        }

    def restore(self, saved: dict[str, Tensor]) -> None:
        self.number, self.notes = int(saved["phase"]), _below(saved, NOTES)
        under_way = _below(saved, "simulation.")
        if under_way:
            self._simulation = self._begin()
            self._simulation.restore(under_way)


def take_notes(phase: Phase, given: Federation, notes: Notes, simulation: Simulation, model: Params) -> list[Notes]:
    """What every client notes alone, one after another; the model is what they have just received."""
    assert phase.note is not None
    predicting = predicting_with(simulation.problem, model, simulation.device, simulation.training)
    return [
        phase.note(given.share_of(client), notes_of(notes, client), client, predicting)
        for client in range(given.clients)
    ]


def predicting_with(problem: Problem, model: Params, device: torch.device, training: Training) -> Predict:
    """How a client asks a model about its own samples."""

    def ask(x: Tensor) -> Tensor:
        placed = place_inputs(x, device, training)
        with torch.no_grad():
            return predict(problem, model, placed).cpu()

    return ask


class ProgramRun:
    """T trials of a program that differ in seeds and in settings of its last phase."""

    def __init__(
        self,
        program: Program,
        algorithms: Sequence[Algorithm],
        federations: dict[int, Federation],  # as given, by seed
        seeds: list[int],
        model: ModelSettings | Model,
        folder: Path | None = None,
        known: dict[int, Notes] | None = None,  # notes by seed, where they were taken before
        folds: Sequence[Federation] | None = None,  # of each trial, where trials of one seed differ in what is left out
    ) -> None:
        assert folds is None or not program.preparation  # notes are by seed
        self.program, self.federations, self.seeds, self.folds = program, federations, seeds, folds
        self.algorithms: Sequence[Algorithm] = [algorithm.over(program.main.rounds) for algorithm in algorithms]
        self.model, self.folder = model, folder
        self.notes: dict[int, Notes] = dict(known or {})
        self._later: dict[int, Notes] = {}  # by trial, where notes were taken anew in the last phase
        self._preparation: Preparation | None = None
        self._simulation: Simulation | None = None

    @property
    def training(self) -> Training:
        return self.program.main.training

    def check(self) -> None:
        """What cannot work is said at once, before anything is trained."""
        if not self.program.preparation:
            _ = self.simulation
            return
        for federation in self.federations.values():
            check_batch_size(self.training, self.training.batch_size <= int(federation.sizes.max()))
            build_problem(federation, self.training, self.model, batched=self.training.executor == "vmap")

    # Phases in front -----------------------------------------------------------------------------------------------

    @property
    def preparation(self) -> Preparation | None:
        """The phase in front that comes next, of the seed it is due for; None where all is prepared."""
        if not self.program.preparation:
            return None
        if self._preparation is None:
            missing = [seed for seed in self.federations if seed not in self.notes]
            if not missing:
                return None
            self._preparation = Preparation(self.program, self.federations[missing[0]], missing[0], self.model)
        return self._preparation

    def prepare_round(self) -> Tensor:
        """One round of preparation."""
        preparation = self.preparation
        assert preparation is not None
        risks = preparation.round()
        if preparation.over:
            self.notes[preparation.seed], self._preparation = preparation.notes, None
        return risks

    def prepare(self) -> None:
        """All that is left of it."""
        while self.preparation is not None:
            self.prepare_round()

    def facts(self, seed: int) -> dict[str, Any]:
        """What was found, for the record."""
        return self.program.facts(self.notes[seed]) if self.program.preparation else {}

    # The last phase ------------------------------------------------------------------------------------------------

    @property
    def simulation(self) -> Simulation:
        """Of the last phase, on data as prepared."""
        if self._simulation is None:
            self.prepare()
            self._simulation = Simulation(
                self.algorithms, self.all_seen(), self.seeds, self.training, self.model, folder=self.folder
            )
        return self._simulation

    def all_seen(self) -> list[Federation]:
        """What each trial sees, or what all of them see."""
        if self.folds is None:
            seen = {seed: self.seen(seed) for seed in self.federations}
            return [seen[seed] for seed in (self.seeds if len(seen) > 1 else self.seeds[:1])]
        by_fold = {id(given): self.program.main.sees(given, {}) for given in self.folds}
        return [by_fold[id(given)] for given in self.folds]

    def all_given(self) -> list[Federation]:
        """The same before anything is prepared."""
        return [self.federations[seed] for seed in (self.seeds if len(self.federations) > 1 else self.seeds[:1])]

    def seen(self, seed: int) -> Federation:
        """The data as the last phase sees them."""
        return self.program.main.sees(self.federations[seed], self.notes.get(seed, {}))

    @property
    def rounds_done(self) -> int:
        return 0 if self._simulation is None else self._simulation.rounds_done

    def round(self) -> Tensor:
        """One round of the last phase, [T, n] risks."""
        if self.program.main.notes_due(self.simulation.rounds_done):
            self._take_notes_again()
        return self.simulation.round()

    def evaluate(self) -> dict[str, dict[str, Tensor]]:
        return self.simulation.evaluate()

    def _take_notes_again(self) -> None:
        """Each client of each trial, from the global model it has just received."""
        simulation, main = self.simulation, self.program.main
        shared = simulation.shared_model()
        for t, seed in enumerate(self.seeds):
            notes = self._later.get(t, self.notes.get(seed, {}))
            each = take_notes(main, self.federations[seed], notes, simulation, row(shared, t))
            self._later[t] = stack_notes(each, self.program.padding)
        self._show_later_notes()

    def _show_later_notes(self) -> None:
        """Contexts as noted last; of all that a phase sees, only they may change on the way."""
        contexts = self.simulation.data.context.clone()  # [T, N, M]
        for t, notes in self._later.items():
            seen = self.program.main.sees(self.federations[self.seeds[t]], notes).train.context
            contexts[t, :, : seen.shape[1]] = seen.to(contexts.device)
        self.simulation.set_contexts(contexts)

    # On disk -------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Everything needed to resume from here, by name; what was prepared included."""
        saved = {f"{NOTES}{seed}.{name}": leaf for seed, notes in self.notes.items() for name, leaf in notes.items()}
        if self._preparation is not None:
            saved |= {PREPARING + name: leaf for name, leaf in self._preparation.state().items()}
            saved[PREPARING + "seed"] = torch.tensor(self._preparation.seed)
        if self._simulation is not None:
            saved |= self._simulation.state()
        for t, later in self._later.items():
            saved |= {f"{LATER}{t}.{name}": leaf for name, leaf in later.items()}
        return saved

    def restore(self, saved: dict[str, Tensor]) -> None:
        for seed in self.federations:
            notes = _below(saved, f"{NOTES}{seed}.")
            if notes:
                self.notes[seed] = notes
        under_way = _below(saved, PREPARING)
        if under_way:
            seed = int(under_way["seed"])
            self._preparation = Preparation(self.program, self.federations[seed], seed, self.model)
            self._preparation.restore(under_way)
        if "rounds_done" in saved:  # prepared; a checkpoint from before notes were kept is prepared again
            self.simulation.restore(saved)
            if "contexts" in saved:  # likewise
                self.simulation.set_contexts(saved["contexts"].to(self.simulation.device))
            self._later = {t: notes for t in range(len(self.seeds)) if (notes := _below(saved, f"{LATER}{t}."))}
            if self._later:
                self._show_later_notes()

    def with_executor(self, executor: Any) -> "ProgramRun":
        """The same run with another executor for the last phase."""
        main = dataclasses.replace(self.program.main, training=dataclasses.replace(self.training, executor=executor))
        program = dataclasses.replace(self.program, main=main)
        known = dict(self.notes)
        return ProgramRun(
            program, self.algorithms, self.federations, self.seeds, self.model, self.folder, known, self.folds
        )


def _below(saved: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): leaf for name, leaf in saved.items() if name.startswith(prefix)}
