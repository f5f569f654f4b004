"""A run, opened again from its folder: the data it saw, the models it ended with. Nothing is trained but fine-tuning
that belongs to the method's prediction (FTFA, IRM-FT), and a reference model where contexts were inferred."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from perinvfl.core import checkpoint, tree
from perinvfl.core.naming import client_names
from perinvfl.core.tree import Params
from perinvfl.data.federation import Federation
from perinvfl.engine.simulation import Simulation
from perinvfl.errors import UserError
from perinvfl.models import Model, build_model
from perinvfl.preparation.alignment import in_views
from perinvfl.runs.experiment import build_experiment
from perinvfl.runs.records import CHECKPOINT, Run, find_runs, read_run
from perinvfl.runs.trial import GIVEN, Trial


@dataclass(frozen=True)
class LoadedRun:
    run: Run
    trial: Trial
    federation: Federation  # contexts as the data give them, whatever was inferred for training; images as trained on
    model: Model  # in float32, whatever it was trained in; takes the stripped parameters below
    personal: list[Params] | None  # one a client, where the method has personal models
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


def single_run(place: Path) -> Run:
    """The run in this folder, or the only one below it."""
    run = read_run(place)
    if run is not None:
        return run
    found = find_runs(place)
    if not found:
        raise UserError(f"{place} holds no run; give the folder of one, such as runs/demo/perinvfl-seed0-....")
    if len(found) > 1:
        names = ", ".join(run.folder.name for run in found[:6]) + (", ..." if len(found) > 6 else "")
        raise UserError(f"{place} holds {len(found)} runs; give the folder of one of them: {names}.")
    return found[0]


def trial_of(run: Run) -> Trial:
    """The trial a run was, from its record."""
    asked = dict(run.start["asked"])
    seed, algorithm = asked.pop("seed"), asked.pop("algorithm")
    return build_experiment({**asked, "algorithm": [algorithm], "seeds": [seed]}).trials[0]


def open_run(place: Path) -> LoadedRun:
    run = single_run(place)
    path = run.folder / CHECKPOINT
    if run.broken is not None:
        raise UserError(f"{run.folder} became infinite after round {run.broken['round']}; it left no model to use.")
    if not run.finished:
        raise UserError(f"{run.folder} is not finished; the command that began it goes on with it.")
    if not path.exists() and "sites" in run.start:
        raise UserError(f"{run.folder} is a run of a federation; its models are at the sites, in state/ of each.")
    if not path.exists():
        raise UserError(
            f"{run.folder} has no {CHECKPOINT}, so its models are gone; `perinvfl run` keeps them, "
            "a search that runs many trials as one program does not."
        )
    saved = checkpoint.load(path)
    trial = trial_of(run)
    views, before = list(trial.federation().views), run.start["notes"].get("views", [])
    if views != before:
        raise UserError(
            f"{run.folder}: in training the clients took the views {before} of their images, here it would be {views}; "
            "open the run on the machine that made it."
        )
    given = in_views(dataclasses.replace(trial, contexts=GIVEN).federation(), tuple(views))
    simulation = _restored(trial, saved, run.folder)
    # Of weights that a model began with, nothing is left to read.
    plain = build_model(dataclasses.replace(trial.model, weights=""), given.shape, given.outputs, "float32")
    shared, personal = None, None
    if trial.algorithm.has_global:
        shared = plain.strip(_pick(simulation._global_for(simulation.everyone), 0))
    if trial.algorithm.has_personal:
        models = simulation._personal_for(simulation.everyone)  # [1, N, ...]
        personal = [plain.strip(_pick(models, client)) for client in range(given.clients)]
    return LoadedRun(run, trial, given, plain, personal, shared)


def _restored(trial: Trial, saved: dict[str, Tensor], folder: Path) -> Simulation:
    """On this machine's CPU, with the executor whose states the checkpoint holds."""
    rows = "places" in saved
    training = dataclasses.replace(
        trial.training, device="cpu", compile=False, executor="loop" if rows else "vmap",
        precision="float32" if trial.training.precision == "tf32" else trial.training.precision,
    )  # fmt: skip
    simulation = Simulation(
        [trial.algorithm], [trial.federation()], [trial.seed], training, trial.model, folder=folder / "at_rest"
    )
    try:
        simulation.restore(saved)
    except (KeyError, RuntimeError, ValueError) as error:
        raise UserError(
            f"The checkpoint {folder / CHECKPOINT} does not fit this version of perinvfl ({type(error).__name__}); "
            "train the run again to use its models."
        ) from error
    return simulation


def _pick(models: Params, client: int) -> Params:
    return tree.map(lambda leaf: leaf[0, client].clone(), models)
