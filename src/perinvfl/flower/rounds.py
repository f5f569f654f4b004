"""What happens at the server: rounds of one trial over sites that may be slow, gone, or not to be believed.

The checkpoint after a round holds the server's state and, for each site, the last round of it that was used; it is on
disk before the next round is asked for. A server killed at any moment goes on from its last checkpoint: a round that
was under way is asked again, and the sites do it again from where they were.
"""

import dataclasses
import json
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perinvfl.algorithms.base import ServerState, Upload
from perinvfl.core import checkpoint, tree
from perinvfl.core.files import only_one, write_atomically
from perinvfl.core.seeding import generator
from perinvfl.core.tree import Params
from perinvfl.engine.environment import environment
from perinvfl.engine.executors import threads
from perinvfl.engine.simulation import round_half_up
from perinvfl.errors import UserError
from perinvfl.flower import codec, privacy, secagg
from perinvfl.flower.adapter.messages import MessageType, RecordDict
from perinvfl.flower.codec import Rejected
from perinvfl.flower.settings import FederationSettings, needs_risks
from perinvfl.flower.site import NEVER, Assignment
from perinvfl.flower.transport import Answer, Transport
from perinvfl.flower.watch import Progress, Watch
from perinvfl.models import build_model
from perinvfl.runs.records import Writer, read_events, read_run, run_id
from perinvfl.runs.trial import Trial

CHECKPOINT = "server.pt"
BEGUN = "federation.json"


@dataclass(frozen=True)
class RunAgreement:
    """What was agreed on when a run began, and holds until it ends."""

    run: str  # names the run at the sites
    shape: tuple[int, ...]
    task: str
    outputs: int
    contexts: int
    tests: tuple[str, ...]
    spectrum: tuple[str, ...]

    def dump(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode()

    @staticmethod
    def load(content: bytes) -> "RunAgreement":
        fields = json.loads(content)
        lists = {key: tuple(fields[key]) for key in ("shape", "tests", "spectrum")}
        return RunAgreement(**(fields | lists))


@dataclass(frozen=True)
class Gathered:
    """What a round's answers come to."""

    update: Params
    risks: dict[int, float]  # by client; NaN where it stays unseen
    used: list[int]
    bytes_up: int


def run_asked(trial: Trial, settings: FederationSettings) -> dict[str, Any]:
    decides = settings.decides()
    return trial.asked() | ({"federation": decides} if decides else {})


def run_folder(trial: Trial, settings: FederationSettings) -> str:
    name, _, _ = trial.folder.rpartition("-")
    return f"{name}-{run_id(run_asked(trial, settings))}"


class Rounds:
    """One trial, from its first round or its last checkpoint to its end."""

    def __init__(
        self,
        trial: Trial,
        settings: FederationSettings,
        sites: list[str],
        post: Transport,
        out: Path,
        watch: Watch,
        experiment: str = "experiment",
        order: int = 0,
    ) -> None:
        self.trial, self.settings, self.sites, self.post, self.watch = trial, settings, sites, post, watch
        self.experiment, self.order = experiment, order
        self.asked = run_asked(trial, settings)
        self.folder = out / run_folder(trial, settings)
        self.writer = Writer(self.folder)
        self.algorithm, self.training = trial.algorithm, trial.training
        self.clients = len(sites)
        self.used = [NEVER] * self.clients
        self.uploads = [0] * self.clients  # how often each was asked for one: what differential privacy counts
        self.risks = [math.nan] * self.clients  # of the last round
        self.evaluated: set[int] = set()  # rounds whose evaluation is on record
        self.left_out: dict[str, int] = {}
        self.bytes_up = self.bytes_down = 0
        self.seconds_before = 0.0
        self.server: ServerState
        self.begun: RunAgreement

    # From beginning to end -----------------------------------------------------------------------------------------

    @threads(1)
    def run(self, resume: bool) -> None:
        busy = f"Another process is at work on {self.folder}; let it finish, or stop it first."
        with only_one(self.folder / "server.lock", busy):
            self._run(resume)

    def _run(self, resume: bool) -> None:
        past = read_run(self.folder)
        if past is not None and past.finished:
            self.watch.skipped(self.trial, self.folder)
            return
        began_before = (self.folder / CHECKPOINT).exists()
        if began_before and not resume:
            raise UserError(
                f"{self.folder} holds a run that did not end; add --resume to go on with it, or delete the folder."
            )
        if began_before:
            self._restore()
        else:
            self._begin()
        self.watch.started(self.trial, self.done)
        began = time.perf_counter() - self.seconds_before
        self._evaluate_if_due(began)  # where the server was killed between a round and its evaluation
        while self.done < self.training.rounds:
            before = time.perf_counter()
            gathered = self._round()
            if gathered is None:
                return  # no longer finite
            self._advance(gathered)
            if len(gathered.used) < len(self._participants(self.done - 1)):
                used = [self.sites[client] for client in gathered.used]
                self.writer.write("partial", round=self.done, used=used)
            seen = [risk for risk in gathered.risks.values() if math.isfinite(risk)]
            risk = sum(seen) / len(seen) if seen else None
            self._save(time.perf_counter() - began)
            self.watch.round(
                Progress(
                    self.trial,
                    self.done,
                    len(gathered.used),
                    len(self._participants(self.done - 1)),
                    risk,
                    time.perf_counter() - before,
                    gathered.bytes_up,
                    self._model_bytes(),
                )
            )
            self._evaluate_if_due(began)
        if not self._evaluates:
            self._commit_last_round()
        seconds = time.perf_counter() - began
        self.writer.write("end", round=self.done, seconds=round(seconds, 3), gpu_bytes=0, **self._totals())
        self.watch.finished(self.trial, seconds, self._spent_in_words())

    @property
    def done(self) -> int:
        return int(self.server.round)

    def _over(self) -> bool:
        return self.done == self.training.rounds

    def _begin(self) -> None:
        told = self._introductions()
        first = told[0]
        for key in ("shape", "task", "outputs", "tests"):
            for client, other in enumerate(told):
                if other[key] != first[key]:
                    raise UserError(
                        f"The sites do not fit together: {key} is {first[key]} at {self.sites[0]} and {other[key]} at "
                        f"{self.sites[client]}."
                    )
        run = f"{self.folder.name}-{secrets.token_hex(4)}"
        contexts = max(site["contexts"] for site in told)
        self.begun = RunAgreement(
            run, tuple(first["shape"]), first["task"], first["outputs"], contexts, tuple(first["tests"]),
            tuple(first["spectrum"]),
        )  # fmt: skip
        self.server = self.algorithm.init_server(self._initial(), self.clients)
        constant = {case: [site["constant"][case] for site in told] for case in first.get("constant", {})}
        self.writer.path.unlink(missing_ok=True)  # what a run killed before its first checkpoint left
        self.writer.write(
            "start",
            id=run_id(self.asked),
            experiment=self.experiment,
            order=self.order,
            asked=self.asked,
            spectrum=list(self.begun.spectrum),
            task=self.begun.task,
            clients=self.clients,
            notes={"constant": constant, "contexts": [site["contexts"] for site in told]},
            environment=environment(torch.device("cpu")),
            began=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            sites=self.sites,
            federation=dataclasses.asdict(self.settings),
        )
        write_atomically(self.folder / BEGUN, self.begun.dump())
        self._save(0.0)

    def _introductions(self) -> list[dict[str, Any]]:
        """What every site tells about its data; the run begins when all have been heard."""
        told: dict[int, dict[str, Any]] = {}
        ends = time.monotonic() + self.settings.patience
        while len(told) < self.clients:
            missing = [client for client in range(self.clients) if client not in told]
            online = [client for client in self.post.online() if client in missing]
            if not online:
                self._wait_or_give_up(ends, missing)
                continue
            asked = {client: self._assignment("none", client, 0, 1.0, contexts=0) for client in online}
            questions = codec.encode_assignments(asked, None, {"scores": self.settings.evaluate})
            answers = self.post.ask(MessageType.QUERY, questions, 0, self.settings.round_timeout)
            for client, answer in answers.items():
                try:
                    if isinstance(answer, Rejected):
                        raise answer
                    told[client] = codec.decode_introduction(answer, self.settings.evaluate)
                except Rejected as rejected:
                    raise UserError(f"{self.sites[client]} {rejected}") from None
        return [told[client] for client in range(self.clients)]

    def _wait_or_give_up(self, ends: float, missing: list[int], tries: int = 0) -> None:
        names = [self.sites[client] for client in missing]
        if time.monotonic() >= ends:
            raise UserError(
                f"After {self.settings.patience:g} s there was still no word from {', '.join(names)}; start them with "
                "`perinvfl federation join`, or raise federation.patience."
            )
        self.watch.waiting(names)
        time.sleep(min(0.2 * 2**tries, 10.0))

    # One round -----------------------------------------------------------------------------------------------------

    def _round(self) -> Gathered | None:
        """Ask until enough have answered; None if no number that came back is finite any more."""
        t = self.done
        ends, tries = time.monotonic() + self.settings.patience, 0
        while True:
            taking_part, online = self._participants(t), self.post.online()
            asked = [client for client in taking_part if client in online]
            enough = min(self.settings.minimum_replies, len(taking_part))
            if len(asked) < enough:
                self._wait_or_give_up(ends, [client for client in taking_part if client not in asked])
                continue
            for client in taking_part:
                if client not in online:
                    self._leave_out(client, t, "offline")
            for client in asked:
                self.uploads[client] += 1
            self._save_spending()
            gathered, why = self._gather(t, asked)
            if gathered is not None and len(gathered.used) >= enough:
                return gathered
            if len(why) == len(asked) and all("NaN" in str(w) or "infinite" in str(w) for w in why.values()):
                sentence = (
                    f"{self.trial.label}, seed {self.trial.seed}: no site's update is finite in round {t + 1}, stopped"
                )
                self.writer.write("broken", round=t + 1, why=sentence)
                self.watch.broke(self.trial, sentence)
                return None
            used = [] if gathered is None else gathered.used
            self._wait_or_give_up(ends, [client for client in asked if client not in used], tries)
            tries += 1

    def _gather(self, t: int, asked: list[int]) -> tuple[Gathered | None, dict[int, Rejected]]:
        replies = 0

        def heard(client: int) -> None:
            nonlocal replies
            replies += 1
            self.watch.heard(replies, len(asked))

        questions = self._questions(t, asked)
        self.bytes_down += self._model_bytes() * len(asked)
        if self.settings.secure_aggregation:
            gathered, why = self._gather_secretly(t, questions, heard)
        else:
            gathered, why = self._gather_openly(t, questions, heard)
        if gathered is not None:
            self.bytes_up += gathered.bytes_up
        for client in asked:
            if client in why:
                self._leave_out(client, t, str(why[client]))
            elif gathered is None or client not in gathered.used:
                self._leave_out(client, t, "no answer in time")
        return gathered, why

    def _gather_openly(
        self, t: int, questions: dict[int, RecordDict], heard: Callable[[int], None]
    ) -> tuple[Gathered | None, dict[int, Rejected]]:
        answers = self.post.ask(MessageType.TRAIN, questions, t, self.settings.round_timeout, heard)
        uploads: dict[int, Upload] = {}
        samples: dict[int, int] = {}
        why: dict[int, Rejected] = {}
        up = 0
        told = {"risk"} if self._tells_risk else set()
        told |= {"samples"} if self.training.weights == "samples" else set()
        for client, answer in sorted(answers.items()):
            try:
                if isinstance(answer, Rejected):
                    raise answer
                up += codec.size(answer)
                upload, rest = codec.decode_upload(answer, self.server.params, self.settings.largest_update, told)
                uploads[client], samples[client] = upload, rest.get("samples", 1)
            except Rejected as rejected:
                why[client] = rejected
        if not uploads:
            return None, why
        shares = _shares([samples[client] for client in uploads], self.training.weights == "uniform")
        update: Params = {}
        for share, upload in zip(shares, uploads.values(), strict=True):  # summed in the order of the clients
            part = upload.update
            update = (
                tree.map(lambda leaf, w=share: leaf * w, part)
                if not update
                else tree.map(lambda total, leaf, w=share: total.add_(leaf, alpha=w), update, part)
            )
        risks = {client: float(upload.risk) for client, upload in uploads.items()}
        return Gathered(update, risks, list(uploads), up), why

    def _gather_secretly(
        self, t: int, questions: dict[int, RecordDict], heard: Callable[[int], None]
    ) -> tuple[Gathered | None, dict[int, Rejected]]:
        size = sum(leaf.numel() for leaf in self.server.params.values()) + 1
        try:
            mean, told, why = secagg.collect(
                self.post, questions, t, self.settings.round_timeout, self.settings.clipping_range, size, heard
            )
        except secagg.TooFew as few:
            self.writer.write("undone", round=t + 1, why=str(few))
            return None, few.left_out
        update, risk = secagg.unflatten(mean, self.server.params)
        risks = {client: float(rest.get("risk", risk)) for client, rest in told.items()}
        return Gathered(update, risks, sorted(told), 4 * size * len(told)), why

    def _advance(self, gathered: Gathered) -> None:
        t = self.done
        ids = torch.tensor(gathered.used)
        risks = torch.tensor([gathered.risks[client] for client in gathered.used])
        with torch.no_grad():
            self.server = self.algorithm.server(self.server, gathered.update, torch.nan_to_num(risks), ids)
        for client in gathered.used:
            self.used[client] = t
        self.risks = [gathered.risks.get(client, math.nan) for client in range(self.clients)]

    # Evaluation ----------------------------------------------------------------------------------------------------

    @property
    def _evaluates(self) -> bool:
        return self.settings.evaluate and bool(self.begun.tests)

    def _evaluate_if_due(self, began: float) -> None:
        due = self.done > 0 and (self.done % self.training.evaluate_every == 0 or self._over())
        if self._evaluates and due and self.done not in self.evaluated:
            self._evaluate(time.perf_counter() - began)
            self.evaluated.add(self.done)

    def _evaluate(self, seconds: float) -> None:
        kinds = [kind for kind in ("personal", "global") if getattr(self.algorithm, f"has_{kind}")]
        cases = list(self.begun.tests)
        scores: dict[int, dict[str, dict[str, float]]] = {}
        # The last evaluation waits for every site, as the table needs them all.
        for client, answer in self._ask_everyone(MessageType.EVALUATE, wait=self._over()).items():
            try:
                if isinstance(answer, Rejected):
                    raise answer
                scores[client] = codec.decode_scores(answer, kinds, cases)
            except Rejected as rejected:
                self._leave_out(client, self.done - 1, f"evaluation {rejected}")
        if not scores:
            return
        missing = [client for client in range(self.clients) if client not in scores]
        present = sorted(scores)
        absent = {"absent": [self.sites[client] for client in missing]} if missing else {}
        measured = {
            kind: {case: [_rounded(scores[client][kind][case]) for client in present] for case in cases}
            for kind in kinds
        }
        self.writer.write(
            "evaluation",
            round=self.done,
            seconds=round(seconds, 3),
            risks=[_rounded(self.risks[client]) for client in self._participants(self.done - 1)],
            **measured,
            **absent,
            **self._totals(),
        )
        lead = measured.get("personal") or measured["global"]
        shown = [score for case in self.begun.spectrum for score in lead[case] if score is not None]
        self.watch.evaluated(self.trial, self.done, sum(shown) / len(shown) if shown else None)

    def _commit_last_round(self) -> None:
        """Tell the sites that the last round counted, where no evaluation did."""
        self._ask_everyone("query.commit", wait=True)

    def _ask_everyone(self, kind: str, wait: bool) -> dict[int, Answer]:
        """What all sites answer; with patience for those that are away, if we wait."""
        answers: dict[int, Answer] = {}
        ends = time.monotonic() + (self.settings.patience if wait else 0)
        while True:
            asked = [client for client in self.post.online() if client not in answers]
            questions = self._questions(self.done, asked)
            answers |= self.post.ask(kind, questions, self.done, self.settings.round_timeout)
            missing = [self.sites[client] for client in range(self.clients) if client not in answers]
            if not missing or time.monotonic() >= ends:
                return answers
            self.watch.waiting(missing)
            time.sleep(0.2)

    # Pieces --------------------------------------------------------------------------------------------------------

    def _participants(self, t: int) -> list[int]:
        """As the simulator draws them."""
        count = max(1, round_half_up(self.training.fraction * self.clients))
        if count == self.clients:
            return list(range(self.clients))
        drawn = torch.randperm(self.clients, generator=generator(self.trial.seed, "participants", t))
        return drawn[:count].sort().values.tolist()

    @property
    def _tells_risk(self) -> bool:
        return not self.settings.private

    def _questions(self, t: int, asked: list[int]) -> dict[int, RecordDict]:
        if not asked:
            return {}
        sent = self.algorithm.broadcast(self.server, torch.tensor(asked))
        extra = {"tell_samples": self.training.weights == "samples", "risks_seen": needs_risks(self.algorithm)}
        assignments = {
            client: self._assignment(self.begun.run, client, t, float(weight), self.begun.contexts)
            for client, weight in zip(asked, sent.weight, strict=True)
        }
        return codec.encode_assignments(assignments, sent.params, extra)

    def _assignment(self, run: str, client: int, t: int, weight: float, contexts: int) -> Assignment:
        noise = (self.settings.noise_multiplier, self.settings.noise_clip) if self.settings.private else None
        return Assignment(
            run=run,
            asked=self.trial.asked(),
            client=client,
            clients=self.clients,
            contexts=contexts,
            round=t,
            used=self.used[client],
            weight=weight,
            noise=noise,
            tell_risk=self._tells_risk,
        )

    def _initial(self) -> Params:
        begun, training = self.begun, self.training
        model = build_model(self.trial.model, begun.shape, begun.outputs, training.precision)
        return model.init(generator(self.trial.seed, "weights"))

    def _leave_out(self, client: int, t: int, why: str) -> None:
        name = self.sites[client]
        self.left_out[name] = self.left_out.get(name, 0) + 1
        self.writer.write("left out", round=t + 1, site=name, why=why)  # the first round is round 1, as in evaluations
        self.watch.left_out(name, t + 1, why)

    def _model_bytes(self) -> int:
        return sum(4 * leaf.numel() for leaf in self.server.params.values())

    def _totals(self) -> dict[str, Any]:
        told: dict[str, Any] = {"bytes_up": self.bytes_up, "bytes_down": self.bytes_down}
        if self.left_out:
            told["left_out"] = dict(self.left_out)
        if self.settings.private:
            told["privacy"] = {
                "epsilon": round(self._epsilon(), 6),
                "delta": self.settings.noise_delta,
                "uploads": max(self.uploads),
            }
        return told

    def _epsilon(self) -> float:
        """Of the site that was asked most often."""
        return privacy.spent(self.settings.noise_multiplier, max(self.uploads), self.settings.noise_delta)

    def _spent_in_words(self) -> str:
        if not self.settings.private:
            return ""
        return f"ε = {self._epsilon():.3g} at δ = {self.settings.noise_delta:g} was spent on updates"

    # On disk -------------------------------------------------------------------------------------------------------

    def _save(self, seconds: float) -> None:
        counts = {
            "used": torch.tensor(self.used),
            "uploads": torch.tensor(self.uploads),
            "risks": torch.tensor(self.risks, dtype=torch.float64),
            "bytes": torch.tensor([self.bytes_up, self.bytes_down]),
            "seconds": torch.tensor(seconds, dtype=torch.float64),
        }
        checkpoint.save(self.folder / CHECKPOINT, tree.named_leaves(self.server, "server") | counts)

    def _save_spending(self) -> None:
        """An upload that was asked for counts as spent, even if the server is killed before it comes."""
        if self.settings.private:
            write_atomically(self.folder / "spent.json", json.dumps(self.uploads).encode())

    def _restore(self) -> None:
        try:
            self.begun = RunAgreement.load((self.folder / BEGUN).read_bytes())
            saved: dict[str, Tensor] = checkpoint.load(self.folder / CHECKPOINT)
            self.server = tree.fill(self.algorithm.init_server(self._initial(), self.clients), saved, "server")
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise UserError(
                f"The checkpoint in {self.folder} does not fit this run ({type(error).__name__}); delete the folder to "
                "start the run again."
            ) from None
        self.used, self.uploads = saved["used"].tolist(), saved["uploads"].tolist()
        self.bytes_up, self.bytes_down = saved["bytes"].tolist()
        self.risks, self.seconds_before = saved["risks"].tolist(), float(saved["seconds"])
        if (self.folder / "spent.json").exists():
            self.uploads = json.loads((self.folder / "spent.json").read_bytes())
        self.writer.rewind(self.done)
        events = read_events(self.writer.path)
        self.evaluated = {event["round"] for event in events if event["event"] == "evaluation"}
        for event in events:
            if event["event"] == "left out":
                self.left_out[event["site"]] = self.left_out.get(event["site"], 0) + 1


def _rounded(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def _shares(samples: list[int], uniform: bool) -> list[float]:
    """The weight of each upload in the mean, to the same rounding as the simulator's."""
    if uniform:
        return torch.full((len(samples),), 1 / len(samples)).tolist()
    sizes = torch.tensor(samples).float()
    return (sizes / sizes.sum()).tolist()
