"""A run under way, as the server knows it: where it stands, whom it asks and how, and what is kept on disk."""

import time
from pathlib import Path
from typing import Any

import torch

from perinvfl.algorithms.messages import ServerState
from perinvfl.core import tree
from perinvfl.core.files import remove_temporary
from perinvfl.core.naming import name_of
from perinvfl.core.sealed import digest, read_about
from perinvfl.core.seeding import generator
from perinvfl.core.tree import Params
from perinvfl.data.own.sites import SitesSettings
from perinvfl.engine import draws
from perinvfl.errors import UserError
from perinvfl.flower import privacy
from perinvfl.flower.adapter.messages import RecordDict
from perinvfl.flower.agreement import RunAgreement
from perinvfl.flower.assignment import Assignment
from perinvfl.flower.codec import encode_assignments
from perinvfl.flower.patience import Patience
from perinvfl.flower.server_state import CHECKPOINT, REMEDY, Bookkeeping
from perinvfl.flower.settings import DeploymentSettings
from perinvfl.flower.transport import Answer, Transport
from perinvfl.models import Model, ModelSettings, build_model
from perinvfl.preparation.phases import Phase
from perinvfl.runs import events
from perinvfl.runs.event_log import Writer
from perinvfl.runs.progress import Progress
from perinvfl.runs.records import records_about, tally_in
from perinvfl.runs.trial import Trial

AGREEMENT = "federation.json"


def run_asked(trial: Trial, settings: DeploymentSettings) -> dict[str, Any]:
    decides = settings.decides()
    return trial.asked() | ({"federation": decides} if decides else {})


def run_name(trial: Trial, settings: DeploymentSettings) -> str:
    """Its id: the simulator's, unless the deployment changes the result."""
    decides = settings.decides()
    return trial.id_with({"federation": decides} if decides else {})


def run_folder(trial: Trial, settings: DeploymentSettings) -> str:
    name, _, _ = trial.folder.rpartition("-")
    return f"{name}-{run_name(trial, settings)}"


class ServerRun:
    def __init__(
        self,
        trial: Trial,
        settings: DeploymentSettings,
        sites: list[str],
        transport: Transport,
        out: Path,
        progress: Progress,
        experiment: str = "experiment",
        order: int = 0,
    ) -> None:
        self.trial, self.settings, self.sites, self.transport = trial, settings, sites, transport
        self.progress, self.experiment, self.order = progress, experiment, order
        self.program = trial.program()
        self.folder = out / run_folder(trial, settings)
        self.writer = Writer(self.folder)
        self.clients = len(sites)
        self.books = Bookkeeping(self.clients)
        self.patience = Patience(settings.patience, progress)
        self.evaluated: set[int] = set()  # rounds whose evaluation is on record
        self.left_out: dict[str, int] = {}
        self.far: set[str] = set()  # sites whose update was far from the others', and that were named for it
        self.began = 0.0  # when the run would have begun, had it never been interrupted
        self.server: ServerState
        self.agreement: RunAgreement

    @property
    def phase(self) -> Phase:
        return self.program.phases[self.books.phase]

    @property
    def class_names(self) -> list[str]:
        """Where the data are at the sites, as the experiment file calls them."""
        return [name_of(name) for name in self.trial.data.classes] if isinstance(self.trial.data, SitesSettings) else []

    @property
    def in_main(self) -> bool:
        return self.books.phase == len(self.program.preparation)

    @property
    def done(self) -> int:
        """Rounds of the phase under way."""
        return int(self.server.round)

    def step(self, notes: bool = False) -> int:
        """The number of the next step at the sites: notes come before the round of the same number."""
        before = sum(phase.rounds for phase in self.program.phases[: self.books.phase])
        return 2 * (before + self.done) + (0 if notes else 1)

    # Whom it asks, and what ---------------------------------------------------------------------------------------

    def participants(self, t: int) -> list[int]:
        """As the simulator draws them."""
        if self.phase.first_alone:
            return [0]
        return draws.participants(self.trial.seed, t, self.clients, self.phase.training.fraction).tolist()

    def questions(self, asked: list[int], nu: Params, taking_notes: bool = False) -> dict[int, RecordDict]:
        """One message per site: what to do, with which model."""
        if not asked:
            return {}
        sent = self.phase.algorithm.broadcast(self.server, torch.tensor(asked))
        extra = {
            "tell_samples": self.phase.training.weights == "samples",
            "risks_seen": self.phase.algorithm.sees_risks(),
        }
        assignments = {
            client: self.assignment(client, float(weight), taking_notes)
            for client, weight in zip(asked, sent.weight, strict=True)
        }
        return encode_assignments(assignments, nu, extra, sent.control)

    def assignment(self, client: int, weight: float = 1.0, taking_notes: bool = False) -> Assignment:
        noise = (self.settings.noise_multiplier, self.settings.noise_clip) if self.settings.private else None
        return Assignment(
            run=self.agreement.run,
            asked=self.trial.asked(),
            client=client,
            clients=self.clients,
            contexts=self.agreement.contexts,
            phase=self.books.phase,
            round=self.done,
            step=self.step(taking_notes),
            used=self.books.used[client],
            weight=weight,
            noise=noise,
            tell_risk=not self.settings.private,
            tell_facts=not (self.settings.private or self.settings.secure_aggregation),
            sources=self.trial.sources,
            fitted=self.agreement.fitted,
        )

    def ask_everyone(
        self, kind: str, wait: float, nu: Params | None = None, taking_notes: bool = False
    ) -> dict[int, Answer]:
        """wait: so many seconds for sites that are away."""
        return self._ask(list(range(self.clients)), kind, wait, nu, taking_notes)

    def ask_participants(self, kind: str, wait: float, nu: Params) -> dict[int, Answer]:
        """All who have a part in this phase, whether they take part in a round or not."""
        clients = [0] if self.phase.first_alone else list(range(self.clients))
        return self._ask(clients, kind, wait, nu, taking_notes=False)

    def _ask(
        self, clients: list[int], kind: str, wait: float, nu: Params | None, taking_notes: bool
    ) -> dict[int, Answer]:
        answers: dict[int, Answer] = {}
        ends = time.monotonic() + wait
        while True:
            asked = [client for client in self.transport.online() if client in clients and client not in answers]
            questions = self.questions(asked, self.server.params if nu is None else nu, taking_notes)
            self.books.bytes_down += self.model_bytes() * len(asked)
            answers |= self.transport.ask(kind, questions, self.done, self.settings.round_timeout)
            missing = [self.sites[client] for client in clients if client not in answers]
            if not missing or time.monotonic() >= ends:
                return answers
            self.progress.waiting(missing)
            time.sleep(0.2)

    def model(self) -> Model:
        """What is trained in the phase under way."""
        agreement = self.agreement
        model = self.phase.model_for(agreement, self.trial.model)
        if isinstance(model, ModelSettings):
            return build_model(model, agreement.shape, agreement.outputs, self.trial.training.precision)
        return model

    def first_state(self) -> ServerState:
        algorithm, model = self.phase.algorithm, self.model()
        params = model.init(generator(self.trial.seed, "weights"))
        return algorithm.init_server(algorithm.shared_part(model, params), self.clients)

    def leave_out(self, client: int, t: int, why: str) -> None:
        name = self.sites[client]
        self.left_out[name] = self.left_out.get(name, 0) + 1
        # The first round is round 1, as in evaluations.
        self.writer.write(**events.left_out_event(t + 1, name, why, self.phase.name))
        self.progress.left_out(name, t + 1, why)

    def note_far(self, client: int, t: int, how: str) -> None:
        """An update that is far from the others', for the record; said the first time."""
        name = self.sites[client]
        if name not in self.far:
            self.progress.far(name, t + 1, how)
        self.far.add(name)
        self.writer.write(**events.far_event(t + 1, name, how, self.phase.name))

    def model_bytes(self) -> int:
        """What is sent to one site."""
        sent = self.phase.algorithm.broadcast(self.server, torch.tensor([0]))
        return sum(4 * leaf.numel() for leaf in (*sent.params.values(), *sent.control.values()))

    def totals(self) -> dict[str, Any]:
        """Traffic and privacy so far, for the record."""
        totals: dict[str, Any] = {"bytes_up": self.books.bytes_up, "bytes_down": self.books.bytes_down}
        if self.left_out:
            totals["left_out"] = dict(self.left_out)
        if self.settings.private:
            totals["privacy"] = {
                "epsilon": round(self.epsilon(), 6),
                "delta": self.settings.noise_delta,
                "uploads": max(self.books.uploads),
            }
        return totals

    def epsilon(self) -> float:
        """Of the site that was asked most often."""
        return privacy.spent(self.settings.noise_multiplier, max(self.books.uploads), self.settings.noise_delta)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def save(self) -> None:
        self.books.seconds = self.seconds
        # Lines first, then the checkpoint that counts on them.
        agreement = {"agreement": digest((self.folder / AGREEMENT).read_bytes())}
        self.books.save(self.folder, self.server, records_about([self.writer]) | agreement)

    def restore(self) -> None:
        remove_temporary(self.folder)
        try:
            agreed, about = (self.folder / AGREEMENT).read_bytes(), read_about(self.folder / CHECKPOINT) or {}
            if about.get("agreement") not in (None, digest(agreed)):
                raise UserError(f"{self.folder / AGREEMENT} is damaged (its checksum differs); {REMEDY}.")
            self.agreement = RunAgreement.load(agreed)
            saved = self.books.restore(self.folder, self.settings.private)
            self.server = tree.fill(self.first_state(), saved, "server")
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise UserError(
                f"The checkpoint in {self.folder} does not fit this run ({type(error).__name__}); delete the folder to "
                "start the run again."
            ) from None
        self.began -= self.books.seconds
        counted = tally_in(self.folder / CHECKPOINT, self.folder)
        past = self.writer.rewind(counted, self.done if self.in_main else None)
        self.evaluated = {event["round"] for event in past if event["event"] == "evaluation"}
        for event in past:
            if event["event"] == "left out":
                self.left_out[event["site"]] = self.left_out.get(event["site"], 0) + 1
