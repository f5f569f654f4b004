"""The same trial simulated and deployed, and everything that either left behind, to be compared to the bit."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perinvfl.core import checkpoint
from perinvfl.engine.program_run import ProgramRun
from perinvfl.engine.simulation import Simulation
from perinvfl.flower.rounds import Rounds
from perinvfl.flower.server_run import AGREEMENT
from perinvfl.flower.server_state import CHECKPOINT as SERVER
from perinvfl.flower.settings import DeploymentSettings
from perinvfl.flower.state_store import read_state
from perinvfl.preparation.phases import notes_of
from perinvfl.runs.experiment import Experiment, build_experiment
from perinvfl.runs.group import forget_prepared
from perinvfl.runs.progress import Progress
from perinvfl.runs.records import CHECKPOINT, Event, read_run
from perinvfl.runs.train import train
from perinvfl.runs.trial import Trial
from tests.flower.inprocess import InProcess

SETTINGS = DeploymentSettings(patience=1.0, round_timeout=1.0, pilot_may_be_seen=True)
OF_THE_DRIVER = {"seconds", "bytes_up", "bytes_down"}  # what may differ between records


def trial_of(name: str, rounds: int = 5, clients: int = 4, **training: object) -> Trial:
    own: dict[str, object] = {"name": name, "local_steps": 2, "learning_rate": 0.05}
    if name in ("perinvfl", "irm_l2"):
        own |= {"beta": [0.1, 0.2, 0.3, 0.4][:clients], "personal_optimizer": "adam", "warmup_rounds": 2}
    if name == "groupdro":
        own |= {"group_step": 0.5}
    if name == "fedavg":
        own |= {"server_optimizer": "adam", "server_learning_rate": 0.01, "optimizer": "adam"}
    table = {
        "data": {"benchmark": "random", "clients": clients, "samples": 20},
        "model": {"hidden": [5]},
        "training": {"rounds": rounds, "batch_size": 8, "evaluate_every": 2, "executor": "loop"} | training,
        "algorithm": own,
    }
    return build_experiment(table).trials[0]


def sites(trial: Trial) -> list[str]:
    return [f"site-{client}" for client in range(trial.data.clients)]


def deploy(
    trial: Trial, folder: Path, settings: DeploymentSettings = SETTINGS, transport: InProcess | None = None
) -> Rounds:
    transport = transport or InProcess(folder, trial.data.clients, allow=",".join(trial.sources))
    rounds = Rounds(trial, settings, sites(trial), transport, folder / "runs", Progress())
    rounds.run(resume=False)
    return rounds


def simulate(trial: Trial, folder: Path) -> Path:
    """The run's folder, with its records and its last checkpoint."""
    forget_prepared()
    (made,) = train(Experiment("simulated", (trial,)), folder / "simulated", Progress())
    return made


def simulation_of(trial: Trial) -> Simulation:
    """The simulator after the last round."""
    run = ProgramRun(trial.program(), [trial.algorithm], {trial.seed: trial.federation()}, [trial.seed], trial.model)
    for _ in range(trial.training.rounds):
        run.round()
    return run.simulation


def site_state(rounds: Rounds, folder: Path, client: int) -> dict[str, Tensor]:
    return state_at(folder / f"site-{client}", rounds.folder)


def state_at(site: Path, server: Path) -> dict[str, Tensor]:
    """What a site has on its disk of the last step of a run that counts: its state and its notes."""
    run = json.loads((server / AGREEMENT).read_text())["run"]
    state = read_state(site / "state" / run / "committed.pt")
    return state.client | {f"notes.{name}": leaf for name, leaf in state.notes.items()}


def simulated_state(saved: dict[str, Tensor], trial: Trial, client: int) -> dict[str, Tensor]:
    """The same client in a checkpoint of the simulator's."""
    took_part = saved["places"].tolist()  # a client that never did has no state of its own
    state = {
        f"client{name[7:]}": leaf[took_part.index(client)]
        for name, leaf in saved.items()
        if name.startswith("clients") and client in took_part
    }
    prefix = "later notes.0." if any(name.startswith("later notes.0.") for name in saved) else f"notes.{trial.seed}."
    notes = {name.removeprefix(prefix): leaf for name, leaf in saved.items() if name.startswith(prefix)}
    return state | {f"notes.{name}": leaf for name, leaf in notes_of(notes, client).items()}


def assert_equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name].cpu(), right[name].cpu()), name


def assert_same(trial: Trial, rounds: Rounds, folder: Path, simulated: Path) -> None:
    assert_same_files(trial, rounds.folder, [folder / name for name in sites(trial)], simulated)


def assert_same_files(trial: Trial, server_folder: Path, site_folders: list[Path], simulated: Path) -> None:
    """ν and all of the server's state, every θ_i and every note, and what is on record: the same bits."""
    ours, theirs = checkpoint.load(server_folder / SERVER), checkpoint.load(simulated / CHECKPOINT)
    server = {name: leaf for name, leaf in ours.items() if name.startswith("server")}
    assert_equal(server, {name: theirs[name][0] for name in server})
    for client, site in enumerate(site_folders):
        assert_equal(state_at(site, server_folder), simulated_state(theirs, trial, client))
    deployed, alone = read_run(server_folder), read_run(simulated)
    assert deployed is not None and alone is not None and deployed.finished and alone.finished
    assert plain(deployed.events) == plain(alone.events)
    assert deployed.facts == alone.facts and deployed.asked == alone.asked


def plain(events: list[Event]) -> list[Event]:
    """What was found and measured."""
    kept: list[dict[str, Any]] = [event for event in events if event["event"] in ("prepared", "evaluation", "end")]
    dropped = {*OF_THE_DRIVER, "gpu_bytes", "training", "predictions"}
    return [{key: value for key, value in event.items() if key not in dropped} for event in kept]
