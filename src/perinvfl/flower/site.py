"""What happens at a site: its data, its states on its own disk, and its part in a run. No network here."""

import dataclasses
import hashlib
import hmac
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from perinvfl.algorithms.messages import ClientState, Upload
from perinvfl.core import tree
from perinvfl.core.plugins import importing_from
from perinvfl.core.tree import EMPTY, Params
from perinvfl.data.federation import Federation
from perinvfl.data.own.fitted import read_fitted
from perinvfl.data.own.rows import Rows
from perinvfl.data.own.sums import client_sums, offer, read_plan
from perinvfl.engine.problems import build_problem
from perinvfl.errors import UserError
from perinvfl.flower import privacy
from perinvfl.flower.assignment import Assignment
from perinvfl.flower.phase_worker import PhaseWorker
from perinvfl.flower.site_data import describe, load_site_data, load_training_rows
from perinvfl.flower.state_store import CLIENT, SiteState, StateStore
from perinvfl.flower.words import encode_sums
from perinvfl.preparation.program import check_preparation
from perinvfl.runs.asked import trial_of
from perinvfl.runs.trial import Trial
from perinvfl.scoring.sample_scores import sample_of
from perinvfl.scoring.site_scores import site_scores


class Site:
    """A site that takes part: where its states are, where its data come from, and where its own code lies."""

    def __init__(self, folder: Path, data: Path | None = None, code: Path | None = None) -> None:
        self.folder, self.data, self.code = folder, data, code
        self.store = StateStore(folder / "state")
        self._worker: tuple[tuple[object, ...], PhaseWorker] | None = None  # of the last question

    def describe(self, assignment: Assignment, scores: bool) -> dict[str, Any]:
        trial = open_trial(assignment.trial, self.code)
        own = load_own(self.data, assignment.trial, self.code)
        check_preparation(trial.contexts, own, trial.model)
        build_problem(own, trial.training, trial.model)  # what cannot work is said before the run begins
        return describe(own, trial, scores)

    def columns(self, assignment: Assignment) -> list[dict[str, Any]]:
        """Before a run: the columns of the site's table, where sites are to fit together what becomes of them."""
        rows = self._training_rows(assignment)
        return [] if rows is None else [dataclasses.asdict(one) for one in offer(rows)]

    def column_sums(self, assignment: Assignment) -> Upload:
        rows = self._training_rows(assignment)
        if rows is None or assignment.plan is None:
            raise UserError("this site has no table to sum up")
        return Upload(encode_sums(client_sums(rows, read_plan(assignment.plan))), torch.tensor(0.0))

    def _training_rows(self, assignment: Assignment) -> Rows | None:
        return load_training_rows(self.data, open_trial(assignment.trial, self.code))

    def train(self, assignment: Assignment, nu: Params, control: Params = EMPTY) -> Upload:
        worker, state, own = self._ready(assignment, nu)
        upload, own = worker.train(worker.broadcast(nu, assignment.weight, assignment.round, control), own)
        if assignment.noise is not None:
            upload = upload._replace(update=self._noised(assignment, upload.update))
        made = dataclasses.replace(
            state, step=assignment.step, phase=assignment.phase, client=tree.named_leaves(own, CLIENT)
        )
        self.store.hold(assignment.run, made)  # on disk before anybody hears of the step
        return upload

    def take_notes(self, assignment: Assignment, nu: Params) -> dict[str, Any]:
        """Notes taken in this phase, kept here; what of them may be told."""
        worker, state, _ = self._ready(assignment, nu)
        notes = worker.take_notes(nu)
        kept = state.client if worker.phase.note_every else {}  # else the phase is over, and the next begins anew
        made = dataclasses.replace(state, step=assignment.step, client=kept, notes=notes, noted=assignment.step)
        self.store.hold(assignment.run, made)
        trial = open_trial(assignment.trial, self.code)
        return trial.program().facts(notes) if assignment.tell_facts else {}

    def statistics(self, assignment: Assignment, nu: Params) -> Params:
        """Of the global model on this site's data, where the model normalises by its batch."""
        worker, _, _ = self._ready(assignment, nu)
        return worker.statistics(nu)

    def evaluate(self, assignment: Assignment, nu: Params, control: Params = EMPTY) -> dict[str, dict[str, Any]]:
        worker, _, own = self._ready(assignment, nu)
        return worker.evaluate(worker.broadcast(nu, assignment.weight, assignment.round, control), own)

    def scores(self, assignment: Assignment, nu: Params, control: Params = EMPTY) -> dict[str, Any]:
        """Of each kind of model, what may be told of how good it is here."""
        worker, _, own = self._ready(assignment, nu)
        schema, found = worker.given.schema, {}
        sent = worker.broadcast(nu, assignment.weight, assignment.round, control)
        for kind, cases in worker.predictions(sent, own).items():
            samples = {
                case: sample_of(worker.given.task, y.numpy(), z.numpy(), schema.label_mean, schema.label_scale)
                for case, (y, z) in cases.items()
            }
            held_out = samples.pop("validation", None)
            found[kind] = site_scores(samples, held_out)
        return found

    def commit(self, assignment: Assignment) -> None:
        """Take note of the last step that was used."""
        self.store.settle(assignment.run, assignment.used)

    def samples(self, assignment: Assignment) -> int:
        return int(load_own(self.data, assignment.trial, self.code).train.y.shape[1])

    def _ready(self, assignment: Assignment, nu: Params) -> tuple[PhaseWorker, SiteState, ClientState]:
        state = self.store.settle(assignment.run, assignment.used)
        key = (assignment.trial, assignment.run, assignment.phase, state.noted)
        if self._worker is None or self._worker[0] != key:
            given = load_own(self.data, assignment.trial, self.code)
            if given.contexts > assignment.contexts:
                raise ValueError(
                    f"this site has {given.contexts} contexts, and the run began with at most {assignment.contexts}"
                )
            given = dataclasses.replace(given, contexts=assignment.contexts)
            trial = open_trial(assignment.trial, self.code)
            self._worker = key, PhaseWorker(trial, assignment.phase, given, state.notes, assignment.client)
        worker = self._worker[1]
        if not worker.fits(nu):
            raise ValueError("the model does not fit this site's data")
        return worker, state, state.client_state(assignment.phase, worker.initial)

    def _noised(self, assignment: Assignment, update: Params) -> Params:
        """Asked twice for the same step, a site gives the same noise: two draws would tell more than one."""
        assert assignment.noise is not None
        multiplier, clip = assignment.noise
        purpose = f"{assignment.run} {assignment.step}".encode()
        digest = hmac.digest(self._secret(), purpose, hashlib.sha256)
        source = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        return privacy.add_noise(privacy.clip(update, clip), multiplier * clip, source)

    def _secret(self) -> bytes:
        """Known to this site alone, so that nobody else can subtract its noise."""
        path = self.folder / "noise.key"
        if not path.exists():
            from perinvfl.flower.credentials import write_secret

            self.folder.mkdir(parents=True, exist_ok=True)
            write_secret(path, privacy.fresh_secret())
        return path.read_bytes()


@lru_cache(maxsize=4)
def open_trial(text: str, code: Path | None) -> Trial:
    """The trial that a server asks for. Own code that it names must lie at the site, and be the server's to the letter:
    no code is ever fetched."""
    asked, _, _, sources, _ = json.loads(text)
    with importing_from(*([] if code is None else [code])):
        trial = trial_of(asked)
        here = trial.sources
    for name in {**here, **sources}:  # code that the server does not vouch for is not called either
        if here.get(name) != sources.get(name):
            raise UserError(f"{name} at this site is not the server's: the content of its file differs.")
    return trial


@lru_cache(maxsize=4)
def load_own(data: Path | None, text: str, code: Path | None) -> Federation:
    """The site's data as given."""
    _, client, _, _, fitted = json.loads(text)
    return load_site_data(data, open_trial(text, code), client, None if fitted is None else read_fitted(fitted))
