"""One algorithm under way on one federation."""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perinvfl.api.fitted import FittedModels
from perinvfl.core import checkpoint, config, files, tree
from perinvfl.core.naming import client_named, counted, listed
from perinvfl.data.federation import Federation
from perinvfl.engine.evaluation import predict_tests
from perinvfl.engine.program_run import ProgramRun
from perinvfl.errors import UserError
from perinvfl.models import Model, ModelSettings
from perinvfl.preparation.alignment import views_noted
from perinvfl.preparation.lens import lens_noted
from perinvfl.preparation.phases import Notes
from perinvfl.runs.event_log import Event, Writer, format_of
from perinvfl.runs.events import end_event, evaluation_event, prepared_event
from perinvfl.runs.facts import FORMAT
from perinvfl.runs.finishing import predictions_at
from perinvfl.runs.found_words import Facts, Names
from perinvfl.runs.group import start_of
from perinvfl.runs.predictions import Predictions, write_predictions
from perinvfl.runs.records import CHECKPOINT, read_run, records_about
from perinvfl.runs.trial import Trial
from perinvfl.scoring.run_scores import scores_of_predictions

Scores = dict[str, dict[str, float | None]]  # by test context and client; None: the client has no sample of it
POOLED = "all clients"  # whose risk it is, where all data are in one place


@dataclass(frozen=True)
class Round:
    """What is known after a round: its number, and the risk of each client that took part."""

    number: int  # from 1
    risks: dict[str, float]  # R(ν; D_i) at the start of the round, of the clients that took part

    @property
    def risk(self) -> float:
        """The mean over the clients that took part."""
        return sum(self.risks.values()) / len(self.risks)


class Session:
    """An algorithm that is being trained on a federation. `for round in session` trains the rounds that are left."""

    def __init__(self, federation: Federation, trial: Trial, model: ModelSettings | Model) -> None:
        self.federation, self.trial, self._given = federation, trial, model
        self._run = ProgramRun(trial.program(), [trial.algorithm], {trial.seed: federation}, [trial.seed], model)
        self._run.check()
        self._start: Event | None = None  # of the record, once there is one
        self._evaluations: list[Event] = []
        self._last: Round | None = None
        self._seconds = 0.0

    def __repr__(self) -> str:
        federation, rounds = self.federation, self.trial.training.rounds
        lines = [
            f"Session: {self.trial.label} on {federation.name}, seed {self.trial.seed}",
            f"  {counted(federation.clients, 'client')}, {int(federation.sizes.sum())} training samples, "
            f"{counted(federation.contexts, 'training context')}, {federation.task}",
            f"  round {self.rounds_done} of {rounds}" + (f", risk {self._last.risk:.4g}" if self._last else ""),
        ]
        if self._evaluations:
            lines.append(f"  {_last_scores(self._evaluations[-1], federation.task)}")
        return "\n".join(lines)

    @property
    def clients(self) -> tuple[str, ...]:
        return self.federation.client_names

    @property
    def rounds_done(self) -> int:
        return self._run.rounds_done

    @property
    def found(self) -> dict[str, Any]:
        """What was found before the first round, such as columns that were left out; printed, it is in words."""
        self._run.prepare()
        return Facts(self._run.facts(self.trial.seed), Names.of(self.federation.schema.names))

    def __iter__(self) -> Iterator[Round]:
        while self.rounds_done < self.trial.training.rounds:
            yield self.step()

    def step(self) -> Round:
        """Train one round, also beyond the number of rounds that `start` was given."""
        began = time.perf_counter()
        simulation = self._run.simulation
        ids = simulation.participants(self.rounds_done)[0].tolist()
        risks = self._run.round()[0].tolist()
        self._seconds += time.perf_counter() - began
        if int(simulation.broken[0]) >= 0:
            raise UserError(
                f"{self.trial.label}: no longer finite after round {self.rounds_done}; "
                "smaller learning rates are the usual cure."
            )
        names = (POOLED,) if self.trial.algorithm.pooled else self.clients
        self._last = Round(self.rounds_done, {names[i]: risk for i, risk in zip(ids, risks, strict=True)})
        return self._last

    def run(self) -> "Session":
        """Train all rounds that are left."""
        for _ in self:
            pass
        return self

    def evaluate(self, which: str = "") -> Scores:
        """Accuracy, for a regression the mean squared error: {test context: {client: score}}.

        which: the "personal" or the "global" models; without it, those that the clients predict with.
        """
        if not self._run.simulation.tests:
            raise UserError("Nothing was held out, so there is nothing to evaluate on; predict works.")
        measured = self._run.simulation.evaluate()
        kinds: dict[str, Scores] = {
            kind: {case: self._by_client(row[0]) for case, row in measured[kind].items()}
            for kind in ("personal", "global")
            if kind in measured
        }
        which = which or next(iter(kinds))
        if which not in kinds:
            raise UserError(f'evaluate("{which}"): {self.trial.label} has {" and ".join(kinds)} models only.')
        scores = {kind: {case: row[0].tolist() for case, row in cases.items()} for kind, cases in measured.items()}
        risks = list(self._last.risks.values()) if self._last else []
        self._evaluations = [event for event in self._evaluations if event["round"] < self.rounds_done]
        self._evaluations.append(evaluation_event(self.rounds_done, self._seconds, risks, scores))
        return kinds[which]

    def scores(self, which: str = "") -> dict[str, Any]:
        """Every score of the models as they are now, with 95 % intervals over samples, as plain values.

        By test context: `["cases"]["2023"]["mean"]` has the mean over clients, `["clients"]` each of them. The
        threshold of sensitivity and specificity is chosen on held-out data.
        """
        found = self._predictions()
        if which and which not in found.of:
            raise UserError(f'scores("{which}"): {self.trial.label} has {" and ".join(found.of)} models only.')
        return scores_of_predictions(found, self.clients, self.federation.schema.classes, which)

    def _predictions(self) -> Predictions:
        simulation = self._run.simulation
        if not simulation.tests:
            raise UserError("Nothing was held out, so there is nothing to score; predict works.")
        return predictions_at(simulation, self.federation, predict_tests(simulation), 0)

    def parameters(self, client: str | None = None) -> dict[str, Tensor]:
        """The tensors of the model that a client predicts with; without a client, of the shared model."""
        return self._run.simulation.model.strip(self._model_of(client).parameters(client))

    def outputs(self, x: Any, client: str | None = None) -> Tensor:
        """The raw outputs (logits, or a standardised number) of a client's model, [n, outputs].

        x: inputs as they are in the file. Without a client, the shared model's.
        """
        return self._model_of(client).outputs(x, client)

    def predict_proba(self, x: Any, client: str | None = None) -> Tensor:
        """The probability of each class, [n, classes]; without a client, by the shared model."""
        return self._model_of(client).predict_proba(x, client)

    def predict(self, x: Any, client: str | None = None) -> list[str] | Tensor:
        """The class of each row by name, or a number in the label's own unit; without a client, by the shared model."""
        return self._model_of(client).predict(x, client)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.fitted([], shared=False).classes

    def fitted(self, clients: Sequence[str] | None = None, shared: bool = True) -> FittedModels:
        """The models of these clients (None: of all) and the shared one, as they are now, without the data."""
        federation, simulation = self.federation, self._run.simulation
        names = self.clients if clients is None else tuple(client_named(name, self.clients) for name in clients)
        for name in names:
            if name not in self.clients:
                raise UserError(f'"{name}" is not a client{config.suggest(name, list(self.clients))}')
        views = views_noted(self._notes)
        places = {name: self.clients.index(name) for name in names}
        return FittedModels(
            label=self.trial.label,
            task=federation.task,
            shape=federation.shape,
            width=federation.outputs,
            schema=federation.schema,
            model=self._given if isinstance(self._given, ModelSettings) else simulation.model,
            precision=self.trial.training.precision,
            personal={name: self._params_of("personal", place) for name, place in places.items()},
            shared=self._params_of("global", 0) if shared and self.trial.algorithm.has_global else None,
            views={name: views[place] for name, place in places.items()} if views else {},
            lens=lens_noted(self._notes),
        )

    def save(self, folder: str | Path) -> Path:
        """Save everything that `resume` needs to continue, and a record that `perinvfl table` reads."""
        folder = Path(folder)
        there = read_run(folder)
        if there is not None and there.start["id"] != self.trial.id:
            raise UserError(f"{folder} holds another run; choose another folder.")
        files.make_folder(folder)
        events: list[Event] = [self._start_event(folder.name)]
        if self._run.program.preparation:
            events.append(prepared_event(self.found, 0.0))
        over = self.rounds_done >= self.trial.training.rounds
        evaluated = bool(self._evaluations) and self._evaluations[-1]["round"] == self.rounds_done
        if over and not evaluated and self._run.simulation.tests:
            self.evaluate()
            evaluated = True
        events += self._evaluations
        if over and evaluated:
            kept = write_predictions(folder, self._predictions())
            events.append(end_event(self.rounds_done, self._seconds, predictions=kept))
        writer = Writer(folder)
        writer.replace(events)
        spent = torch.tensor(self._seconds, dtype=torch.float64)
        checkpoint.save(folder / CHECKPOINT, self._run.state() | {"seconds": spent}, records_about([writer]))
        if over and evaluated:
            writer.finish()
        return folder

    def _start_event(self, experiment: str) -> Event:
        """The same whenever it is saved: a record that is saved again begins as it did."""
        if self._start is None:
            origin = self.federation.origin
            data_seed = origin.seed if origin else self.trial.seed
            model = self._run.simulation.model
            self._start = start_of(self.trial, self.federation, model, experiment, 0, data_seed=data_seed)
        return {**self._start, "experiment": experiment}

    def restore(self, folder: Path, events: list[Event]) -> None:
        """Take up what was saved; `resume` calls this."""
        saved = checkpoint.load(folder / CHECKPOINT)
        try:
            self._run.restore(saved)
            shapes = [leaf.shape for leaf in self._run.simulation.server.params.values()]
        except (KeyError, RuntimeError, ValueError) as error:
            raise UserError(f"{folder}: the saved models are not of this kind ({type(error).__name__}).") from error
        model = self._run.simulation.model
        fresh = self.trial.algorithm.shared_part(model, model.init(torch.Generator().manual_seed(0)))
        if shapes != [(1, *leaf.shape) for leaf in fresh.values()]:
            raise UserError(f"{folder}: the saved models have other shapes than the model now makes.")
        self._seconds = float(saved["seconds"])
        self._evaluations = [
            event for event in events if event["event"] == "evaluation" and event["round"] <= self.rounds_done
        ]
        same = events[0]["id"] == self.trial.id and format_of(events[0]) == FORMAT
        self._start = events[0] if same else None

    def _model_of(self, client: str | None) -> FittedModels:
        one = self.fitted([] if client is None else [client], shared=client is None)
        return dataclasses.replace(one, model=self._run.simulation.model)  # as it was built for training

    def _params_of(self, kind: str, client: int) -> dict[str, Tensor]:
        ids = torch.tensor([[client]], device=self._run.simulation.device)
        models = self._run.simulation.models_of(kind, ids)
        return tree.map(lambda leaf: leaf[0, 0].clone(), models)  # a view would be pickled with all it is a part of

    @property
    def _notes(self) -> Notes:
        return self._run.notes.get(self.trial.seed, {})

    def _by_client(self, scores: Tensor) -> dict[str, float | None]:
        known = torch.isfinite(scores).tolist()
        return {
            name: round(score, 6) if fine else None
            for name, score, fine in zip(self.clients, scores.tolist(), known, strict=True)
        }


def _last_scores(event: Event, task: str) -> str:
    """The mean over clients in each test context, of what the clients predict with."""
    kind = next(kind for kind in ("personal", "global") if kind in event)
    means = {
        case: sum(known) / len(known)
        for case, row in event[kind].items()
        if (known := [score for score in row if score is not None])
    }
    measure = "mean squared error" if task == "regression" else "accuracy"
    scores = [
        f"{case} {mean:.3g}" if task == "regression" else f"{case} {100 * mean:.1f} %" for case, mean in means.items()
    ]
    return f"{measure} after round {event['round']}: {listed(scores)}"
