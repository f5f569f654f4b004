"""What happens at a site: its data, its states on its own disk, and its part in a run. No network here."""

import dataclasses
import hmac
import json
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from perinvfl.algorithms.messages import ClientState, Upload
from perinvfl.core import tree
from perinvfl.core.plugins import NotAllowed, allowing_only, importing_from
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
from perinvfl.flower.site_data import UnusableData, describe, load_site_data, load_training_rows
from perinvfl.flower.state_store import CLIENT, SiteState, StateStore
from perinvfl.flower.words import encode_sums
from perinvfl.preparation.program import check_preparation
from perinvfl.runs.asked import trial_of
from perinvfl.runs.trial import Trial
from perinvfl.scoring.sample_scores import sample_of
from perinvfl.scoring.site_scores import site_scores


class OwnCode(NamedTuple):
    """What a site runs beside the package itself."""

    folder: Path | None = None  # where it is looked for, beside what is installed
    allowed: frozenset[str] | None = frozenset()  # by name; None is anything, where the server's code runs here anyway


class Site:
    """A site that takes part: where its states are, where its data come from, and which own code it allows."""

    def __init__(self, folder: Path, data: Path | None = None, code: OwnCode = OwnCode()) -> None:
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
            upload = upload._replace(update=self._noised(assignment, {"nu": nu, "control": control}, upload.update))
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

    def _noised(self, assignment: Assignment, sent: dict[str, Params], update: Params) -> Params:
        """The same question twice has the same answer, noise included: two draws would tell more than one. Another
        question of the same step, or other data, has noise of its own: the difference of two answers would have none.
        """
        assert assignment.noise is not None
        multiplier, clip = assignment.noise
        clipped = privacy.clip(update, clip)
        purpose = hmac.new(
            self._secret(), json.dumps(dataclasses.asdict(assignment), sort_keys=True).encode(), "sha256"
        )
        for name, leaf in sorted(tree.named_leaves({**sent, "update": clipped}, "").items()):
            purpose.update(f"{name} {tuple(leaf.shape)}".encode() + leaf.contiguous().numpy().tobytes())
        source = torch.Generator().manual_seed(int.from_bytes(purpose.digest()[:8], "big") >> 1)
        return privacy.add_noise(clipped, multiplier * clip, source)

    def _secret(self) -> bytes:
        """Known to this site alone, so that nobody else can subtract its noise."""
        path = self.folder / "noise.key"
        if not path.exists():
            from perinvfl.flower.credentials import write_secret

            self.folder.mkdir(parents=True, exist_ok=True)
            write_secret(path, privacy.fresh_secret())
        secret = path.read_bytes()
        if len(secret) != privacy.SECRET_BYTES:  # noise of a secret that anyone can guess would hide nothing
            raise UserError(
                f"{path.name} of this site is damaged, and its noise would hide nothing; restore it from a copy, or "
                "delete it to make a new one."
            )
        return secret


@lru_cache(maxsize=4)
def open_trial(text: str, code: OwnCode) -> Trial:
    """The trial that a server asks for. Own code that it names must be allowed by the site, lie there, and be the
    server's to the letter: no code is ever fetched."""
    asked, _, _, sources, _ = json.loads(text)
    only = nullcontext() if code.allowed is None else allowing_only(code.allowed)
    with only, importing_from(*([] if code.folder is None else [code.folder])):
        try:
            trial = trial_of(asked)
        except NotAllowed:
            raise
        except UserError as error:
            # Of a file whose path the server names, nothing is told to it, not even in a refusal.
            raise (UnusableData(str(error)) if _names_file(asked) else error) from None
        here = trial.sources
    for name in {**here, **sources}:  # code that the server does not vouch for is not called either
        if here.get(name) != sources.get(name):
            raise UserError(f"{name} at this site is not the server's: the content of its file differs.")
    return trial


def _names_file(asked: Any) -> bool:
    data = asked.get("data") if isinstance(asked, dict) else None
    return isinstance(data, dict) and data.get("benchmark") == "file"


@lru_cache(maxsize=4)
def load_own(data: Path | None, text: str, code: OwnCode) -> Federation:
    """The site's data as given."""
    _, client, _, _, fitted = json.loads(text)
    return load_site_data(data, open_trial(text, code), client, None if fitted is None else read_fitted(fitted))
