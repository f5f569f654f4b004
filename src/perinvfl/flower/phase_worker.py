"""One site's part in one phase of a program: the simulator's own client, on the site's own data."""

from typing import Any

import torch
from torch import Tensor

from perinvfl.algorithms.messages import Broadcast, ClientState, Upload
from perinvfl.core import tree
from perinvfl.core.seeding import generator
from perinvfl.core.tree import Params
from perinvfl.data.federation import Federation, Split, real_length
from perinvfl.engine import draws
from perinvfl.engine.devices import pick_device
from perinvfl.engine.local_client import LocalClient, for_client, measure, predict, without_padding
from perinvfl.engine.problems import build_problem, place_split
from perinvfl.engine.program_run import predicting_with
from perinvfl.preparation.phases import Notes, Phase
from perinvfl.runs.trial import Trial


class PhaseWorker:
    def __init__(self, trial: Trial, number: int, given: Federation, notes: Notes, client: int) -> None:
        self.phase: Phase = trial.program().phases[number]
        self.given, self.notes, self.client, self.seed = given, notes, client, trial.seed
        self.seen = self.phase.sees(given, notes)
        self.training = self.phase.training_with(int(self.seen.sizes.max()))
        self.device = pick_device(self.training.device)
        self.problem = build_problem(self.seen, self.training, self.phase.model_for(given, trial.model))
        self.algorithm = for_client(self.phase.algorithm, client)
        data = self._placed(self.seen.train)
        self.local = LocalClient(self.algorithm, self.problem, data)
        start = self._here(self.problem.model.init(generator(trial.seed, "weights")))
        sent = self.algorithm.shared_part(self.problem.model, start)
        self.shapes = {name: tuple(leaf.shape) for name, leaf in sent.items()}
        self.initial = self.algorithm.init_client(start, self.seen.contexts)

    def fits(self, nu: Params) -> bool:
        """Whether what was sent is what is trained here together; a model may bring statistics along."""
        statistics = [name for name in nu if name not in self.shapes]
        known = all(name.endswith(("running_mean", "running_var")) for name in statistics)
        trained = {name: tuple(leaf.shape) for name, leaf in nu.items() if name in self.shapes}
        return known and trained == self.shapes and (not statistics or self.problem.model.statistics is not None)

    def broadcast(self, nu: Params, weight: float, round: int, control: Params) -> Broadcast:
        """What came from the server, where it is used."""
        return Broadcast(self._here(nu), torch.tensor(weight, device=self.device), round, self._here(control))

    def train(self, sent: Broadcast, state: ClientState) -> tuple[Upload, ClientState]:
        indices = self._indices("batches", int(sent.round), self.algorithm.batches_per_round())
        with torch.no_grad():
            upload, state = self.local.round(sent, state, indices)
        return tree.over(lambda leaf: leaf.cpu(), upload), state

    def statistics(self, nu: Params) -> Params:
        """Of the global model on this site's data."""
        with torch.no_grad():
            return tree.map(lambda leaf: leaf.cpu(), self.local.statistics(self._here(nu)))

    def take_notes(self, nu: Params) -> Notes:
        """What the site notes for itself, alone, from the model it has just received."""
        assert self.phase.note is not None
        predict = predicting_with(self.problem, self._here(nu), self.device, self.training)
        return self.phase.note(self.given, self.notes, self.client, predict)

    def evaluate(self, sent: Broadcast, state: ClientState) -> dict[str, dict[str, Any]]:
        """Scores by kind of model and test case, as the simulator measures them."""
        models = self._models(sent, state)
        tests = self._tests()
        scores: dict[str, dict[str, Any]] = {}
        with torch.no_grad():
            for kind, params in models.items():
                measured = measure(self.problem, params, list(tests.values())).cpu()  # [tests, 1 + groups]
                rows = dict(zip(tests, measured, strict=True))
                scores[kind] = {
                    case: float(row[0]) if real_length(tests[case].context) else float("nan")
                    for case, row in rows.items()
                }
                if self.seen.groups:
                    scores[f"{kind} groups"] = {case: rows[case][1:].tolist() for case in self.seen.tests}
        return scores

    def _models(self, sent: Broadcast, state: ClientState) -> dict[str, Params]:
        """What this site predicts with, by kind."""
        models = {}
        if self.algorithm.has_personal:
            models["personal"] = self.personal(sent, state)
        if self.algorithm.has_global:
            models["global"] = sent.params
        return models

    def predictions(self, sent: Broadcast, state: ClientState) -> dict[str, dict[str, tuple[Tensor, Tensor]]]:
        """Labels and outputs by kind of model, test case and for what is held out; they do not leave the site."""
        wanted = [*self.seen.tests, *([] if self.seen.validation is None else ["validation"])]
        tests = {case: without_padding(split) for case, split in self._tests().items() if case in wanted}
        found: dict[str, dict[str, tuple[Tensor, Tensor]]] = {}
        with torch.no_grad():
            for kind, params in self._models(sent, state).items():
                found[kind] = {
                    case: (test.y.cpu(), predict(self.problem, params, test.x).cpu()) for case, test in tests.items()
                }
        return found

    def personal(self, sent: Broadcast, state: ClientState) -> Params:
        """What this site predicts with."""
        indices = self._indices("fine-tuning", int(sent.round), self.algorithm.batches_at_end())
        trained = {name: leaf for name, leaf in sent.params.items() if name in self.shapes}
        with torch.no_grad():
            params = self.local.personal(sent._replace(params=trained), state, indices)
            return params if self.problem.model.statistics is None else params | self.local.statistics(params)

    def _tests(self) -> dict[str, Split]:
        held_out = {} if self.seen.validation is None else {"validation": self.seen.validation}
        splits = {**self.seen.tests, **held_out, **self.seen.inferred}
        placed: dict[int, Tensor] = {}  # tests that share their inputs go on doing so
        for split in splits.values():
            if id(split.x) not in placed:
                placed[id(split.x)] = self._placed(split).x
        return {
            name: Split(placed[id(split.x)], split.y[0].to(self.device), split.context[0].to(self.device))
            for name, split in splits.items()
        }

    def _placed(self, split: Split) -> Split:
        return Split(*(part[0] for part in place_split(split, self.device, self.training)))

    def _here(self, params: Params) -> Params:
        return tree.map(lambda leaf: leaf.to(self.device), params)

    def _indices(self, purpose: str, round: int, steps: int) -> Tensor | None:
        """Drawn exactly as the simulator draws them."""
        shape, samples = draws.batches_shape(self.training, steps), self.local.data.y.shape[0]
        if shape is None:
            return None
        views = self.seen.augmentation
        drawn = draws.sample_indices(self.seed, self.client, round, purpose, samples, shape, views, samples)
        return drawn.to(self.device)
