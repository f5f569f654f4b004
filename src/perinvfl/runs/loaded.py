"""A run, opened again from its folder: the data it saw, the models it ended with. Nothing is trained but fine-tuning
that belongs to the method's prediction (FTFA, IRM-FT); what was prepared is in the checkpoint."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from perinvfl.core import checkpoint, tree
from perinvfl.core.naming import client_names
from perinvfl.core.tree import Params
from perinvfl.data.federation import Federation
from perinvfl.engine.program_run import ProgramRun
from perinvfl.errors import UserError
from perinvfl.models import Model, build_model
from perinvfl.preparation.alignment import in_views, views_noted
from perinvfl.preparation.lens import in_lens, lens_noted
from perinvfl.runs.asked import trial_of
from perinvfl.runs.picking import EVERY, Pick, single_run
from perinvfl.runs.records import CHECKPOINT, Run
from perinvfl.runs.trial import Trial

AGAIN = "if it is of another version of perinvfl, train the run again to use its models"


@dataclass(frozen=True)
class LoadedRun:
    run: Run
    trial: Trial
    federation: Federation  # contexts as the data give them, whatever was inferred for training; images as trained on
    model: Model  # in float32, whatever it was trained in; takes the stripped parameters below
    personal: list[Params] | None  # one per client, where the method has personal models
    shared: Params | None  # the global model, where the method trains one

    @property
    def clients(self) -> list[str]:
        return client_names(self.federation.schema.clients, self.federation.clients)

    def predict(self, params: Params, x: Tensor, chunk: int = 512) -> Tensor:
        """[B, outputs] logits, some samples at a time."""
        with torch.no_grad():
            return torch.cat([self.model.apply(params, part) for part in x.split(chunk)])

    def lead(self, client: int) -> Params:
        """What this client predicts with."""
        params = self.shared if self.personal is None else self.personal[client]
        assert params is not None  # every method has one or the other
        return params


def open_run(place: Path, pick: Pick = EVERY) -> LoadedRun:
    """The run in this folder, or the one below it that is meant."""
    run = single_run(place, pick)
    path = run.folder / CHECKPOINT
    if run.broken is not None:
        raise UserError(f"{run.folder} diverged after round {run.broken['round']}, so it has no model to use.")
    if not run.finished:
        raise UserError(f"{run.folder} is not finished; the command that started it resumes it.")
    if not path.exists() and "sites" in run.start:
        raise UserError(f"{run.folder} is a run of a federation; its models are in the state/ folders of its sites.")
    if not path.exists():
        raise UserError(
            f"{run.folder} has no {CHECKPOINT}, so its models are gone; `perinvfl run` keeps them, "
            "a search that runs many trials as one program does not keep them."
        )
    saved = checkpoint.load(path)
    trial = trial_of(run.asked)
    restored = _restored(trial, saved, run.folder)
    last = run.events[-1].get("round", restored.rounds_done)
    if restored.rounds_done != last:
        raise UserError(
            f"{path} is of round {restored.rounds_done}, and the record ends with round {last}: it is older than its "
            "record. Restore it from a copy, or delete the folder and train the run again."
        )
    views, before = views_noted(restored.notes.get(trial.seed, {})), tuple(run.found.get("views", ()))
    if views != before:
        raise UserError(
            f"{run.folder}: in training the clients took the views {list(before)} of their images, here it would be "
            f"{list(views)}; open the run on the machine that made it."
        )
    given = in_views(in_lens(trial.federation(), lens_noted(restored.notes.get(trial.seed, {}))), views)
    # Of weights that a model began with, nothing is left to read.
    plain = build_model(dataclasses.replace(trial.model, weights=""), given.shape, given.outputs, "float32")
    simulation = restored.simulation
    shared, personal = None, None
    try:
        if trial.algorithm.has_global:
            shared = plain.strip(_pick(simulation.models_of("global", simulation.everyone), 0))
        if trial.algorithm.has_personal:
            models = simulation.models_of("personal", simulation.everyone)  # [1, N, ...]
            personal = [plain.strip(_pick(models, client)) for client in range(given.clients)]
    except checkpoint.NOT_FITTING as error:
        raise checkpoint.unfit(path, error, AGAIN) from error
    return LoadedRun(run, trial, given, plain, personal, shared)


def _restored(trial: Trial, saved: dict[str, Tensor], folder: Path) -> ProgramRun:
    """On this machine's CPU, with the executor whose states the checkpoint holds."""
    rows = "places" in saved
    training = dataclasses.replace(
        trial.training, device="cpu", compile=False, executor="loop" if rows else "vmap",
        precision="float32" if trial.training.precision == "tf32" else trial.training.precision,
    )  # fmt: skip
    program = dataclasses.replace(trial, training=training).program()
    federations = {trial.seed: trial.federation()}
    run = ProgramRun(program, [trial.algorithm], federations, [trial.seed], trial.model, folder / "at_rest")
    try:
        run.restore(saved)
    except checkpoint.NOT_FITTING as error:
        raise checkpoint.unfit(folder / CHECKPOINT, error, AGAIN) from error
    return run


def _pick(models: Params, client: int) -> Params:
    return tree.map(lambda leaf: leaf[0, client].clone(), models)
