"""What happens at the server: a program's phases over sites that may be slow, gone, or not to be believed."""

import dataclasses
import math
import secrets
import time
from typing import Any

import torch

from perinvfl.algorithms.messages import Combined
from perinvfl.core import tree
from perinvfl.core.files import only_one, write_atomically
from perinvfl.core.tree import Params
from perinvfl.data.encoding import feature_names
from perinvfl.data.own.fitted import read_fitted
from perinvfl.engine.environment import environment
from perinvfl.engine.loop import threads
from perinvfl.errors import UserError
from perinvfl.flower import evaluation, notes
from perinvfl.flower.agreement import agree
from perinvfl.flower.codec import Rejected
from perinvfl.flower.columns import fit_columns
from perinvfl.flower.gathering import Gathered, Gatherer
from perinvfl.flower.introductions import introductions
from perinvfl.flower.secagg import TooFew
from perinvfl.flower.server_run import AGREEMENT, ServerRun, run_asked, run_name
from perinvfl.flower.server_state import CHECKPOINT
from perinvfl.learning.slopes import are_sums
from perinvfl.preparation.program import check_preparation
from perinvfl.preparation.summing import Sums
from perinvfl.runs import events
from perinvfl.runs.found_words import Names, found_in_words
from perinvfl.runs.progress import Exchange
from perinvfl.runs.records import read_run
from perinvfl.runs.tidying import mark_if_unmarked


class Rounds(ServerRun):
    """One trial, from its first round or its last checkpoint to its end."""

    # From beginning to end -----------------------------------------------------------------------------------------

    @threads(1)
    def run(self, resume: bool) -> None:
        busy = f"Another process is at work on {self.folder}; let it finish, or stop it first."
        with only_one(self.folder / "server.lock", busy):
            self._run(resume)

    def _run(self, resume: bool) -> None:
        past = read_run(self.folder)
        if past is not None and past.finished:
            mark_if_unmarked(past)
            self.progress.skipped(self.trial, self.folder)
            return
        began_before = (self.folder / CHECKPOINT).exists()
        if began_before and not resume:
            raise UserError(
                f"{self.folder} holds a run that did not finish; add --resume to resume it, or delete the folder."
            )
        self.began = time.perf_counter()
        if began_before:
            self.restore()
        else:
            self.books.recall_spending(self.folder)
            self._begin()
        self.progress.started([self.trial], self.done if self.in_main else 0)
        while not self.in_main:
            if not self._rounds_of_phase():
                return
            self._next_phase()
        if self._rounds_of_phase():
            self._end()

    def _begin(self) -> None:
        fitted, encoded = fit_columns(self) or (None, {})
        fields = None if fitted is None else fitted.as_fields()
        descriptions = introductions(self, fields)
        run = f"{self.folder.name}-{secrets.token_hex(4)}"
        self.agreement = agree(run, descriptions, self.sites, self.trial.training, fields)
        check_preparation(self.trial.contexts, self.agreement, self.trial.model)
        self.server = self.first_state()
        first = descriptions[0]
        notes: dict[str, object] = {"contexts": [site["contexts"] for site in descriptions]}
        notes["constant"] = {
            case: [site["constant"][case] for site in descriptions] for case in first.get("constant", {})
        }
        if self.agreement.groups:
            notes["groups"] = self.agreement.groups
        if encoded:
            notes["encoding"] = encoded
        asked = run_asked(self.trial, self.settings)
        start = events.start_event(
            self.trial,
            asked=asked,
            id=run_name(self.trial, self.settings),
            experiment=self.experiment,
            order=self.order,
            spectrum=self.agreement.spectrum,
            task=self.agreement.task,
            clients=self.clients,
            notes=notes,
            environment=environment(torch.device("cpu")),
            sites=self.sites,
            federation=dataclasses.asdict(self.settings),
            schema=self._names(fitted is not None),
        )
        self.writer.begin(**start)
        write_atomically(self.folder / AGREEMENT, self.agreement.dump())
        self.save()

    def _rounds_of_phase(self) -> bool:
        """All rounds that are left of a phase; whether they came to an end."""
        self._evaluate_if_due()  # where the server was killed between a round and its evaluation
        while self.done < self.phase.rounds:
            if self.phase.notes_due(self.done) and self.books.noted != self.step(notes=True):
                notes.take_notes(self, needed=not self.in_main)
            before = time.perf_counter()
            down = self.books.bytes_down
            gathered = self._round()
            if gathered is None:
                return False  # no longer finite
            self._advance(gathered)
            self._report(gathered, time.perf_counter() - before, self.books.bytes_down - down)
            self._evaluate_if_due()
        return True

    def _next_phase(self) -> None:
        """Every site takes its notes, then the next phase begins."""
        notes.take_notes(self, needed=True)
        self.books.phase += 1
        self.server = self.first_state()
        if self.in_main and self.books.facts:
            self.writer.write(**events.prepared_event(self.books.facts, self.seconds))
            words = found_in_words(self.books.facts, Names(self._features(), self.sites))
            if words:
                self.progress.remark([self.trial], words)
        self.save()

    def _features(self) -> tuple[str, ...]:
        """What the columns of x are called, where that is known."""
        fitted = self.agreement.fitted
        if fitted is not None:
            return feature_names(read_fitted(fitted).encodings)
        return getattr(self.trial.data, "features", ())

    def _names(self, features: bool) -> dict[str, Any]:
        """What sites, classes and, of tables, columns are called."""
        names = {"clients": self.sites, "classes": self.class_names, "features": self._features() if features else ()}
        return {key: list(value) for key, value in names.items() if value}

    def _end(self) -> None:
        if evaluation.is_asked_for(self):
            evaluation.collect_scores(self)
        else:  # the last round counted, and no evaluation said so
            self.ask_everyone("query.commit", self.settings.last_patience)
        self.writer.write(**events.end_event(self.done, self.seconds, **self.totals()))
        self.writer.finish()
        spent = ""
        if self.settings.private:
            spent = f"ε = {self.epsilon():.3g} at δ = {self.settings.noise_delta:g} was spent on updates"
        self.progress.finished([self.trial], self.seconds, spent)

    # One round -----------------------------------------------------------------------------------------------------

    def _round(self) -> Gathered | None:
        """Ask until enough have answered; None if no number that came back is finite any more."""
        t = self.done
        wait = self.patience.begin()
        while True:
            taking_part, online = self.participants(t), self.transport.online()
            asked = [client for client in taking_part if client in online]
            enough = min(self.settings.minimum_replies, len(taking_part))
            if len(asked) < enough:
                wait.for_sites([self.sites[client] for client in taking_part if client not in asked])
                continue
            for client in taking_part:
                if client not in online:
                    self.leave_out(client, t, "offline")
            for client in asked:
                self.books.uploads[client] += 1
            if self.settings.private:
                self.books.save_spending(self.folder)
            gathered, why = self._gather(t, asked)
            if gathered is not None and len(gathered.used) >= enough:
                return gathered
            if len(why) == len(asked) and all("NaN" in str(w) or "infinite" in str(w) for w in why.values()):
                if self.phase.algorithm.recovers:
                    lost = tree.map(lambda leaf: torch.full_like(leaf, math.nan), self.server.params)
                    return Gathered(Combined(lost, self.server.control), {}, [], 0)
                self._broke(t)
                return None
            used = [] if gathered is None else gathered.used
            wait.for_sites([self.sites[client] for client in asked if client not in used], again=True)

    def _gather(self, t: int, asked: list[int]) -> tuple[Gathered | None, dict[int, Rejected]]:
        replies = 0

        def heard(client: int) -> None:
            nonlocal replies
            replies += 1
            self.progress.heard(replies, len(asked))

        training, algorithm = self.phase.training, self.phase.algorithm
        nu, control = self.server.params, self.server.control
        check = _check_sums if isinstance(algorithm, Sums) else _believe
        gatherer = Gatherer(
            self.transport, self.settings, training.weights, algorithm.aggregation(), nu, control, check
        )
        questions = self.questions(asked, nu)
        self.books.bytes_down += self.model_bytes() * len(asked)
        gathered: Gathered | None = None
        try:
            gathered, why = gatherer.gather(t, questions, heard)
        except TooFew as few:
            self.writer.write(**events.undone_event(t + 1, str(few), self.phase.name))
            why = few.left_out
        if gathered is not None:
            self.books.bytes_up += gathered.bytes_up
            for client, how in gathered.far.items() if not isinstance(algorithm, Sums) else ():  # sites differ in size
                self.note_far(client, t, how)
        for client in asked:
            if client in why:
                self.leave_out(client, t, str(why[client]))
            elif gathered is None or client not in gathered.used:
                self.leave_out(client, t, "no answer in time")
        return gathered, why

    def _advance(self, gathered: Gathered) -> None:
        step, t = self.step(), self.done
        ids = torch.tensor(gathered.used)
        risks = torch.tensor([gathered.risks[client] for client in gathered.used])
        with torch.no_grad():
            self.server = self.phase.algorithm.server_round(
                self.server, gathered.combined, torch.nan_to_num(risks), ids
            )
        for client in gathered.used:
            self.books.used[client] = step
        self.books.risks = [gathered.risks.get(client, math.nan) for client in range(self.clients)]
        if len(gathered.used) < len(self.participants(t)):
            used = [self.sites[client] for client in gathered.used]
            self.writer.write(**events.partial_event(self.done, used, self.phase.name))
        self.save()

    def _report(self, gathered: Gathered, seconds: float, bytes_down: int) -> None:
        seen = [risk for risk in gathered.risks.values() if math.isfinite(risk)]
        risk = sum(seen) / len(seen) if seen else None
        asked = len(self.participants(self.done - 1))
        if self.in_main:
            exchange = Exchange(len(gathered.used), asked, seconds, gathered.bytes_up, bytes_down)
            self.progress.round([self.trial], self.done, risk, exchange)
        else:
            self.progress.preparing([self.trial], self.phase.name, self.done, self.phase.rounds)

    def _broke(self, t: int) -> None:
        why = f"{self.trial.label}, seed {self.trial.seed}: no site's update is finite in round {t + 1}, stopped"
        self.writer.write(**events.broken_event(t + 1, why))
        self.writer.finish()
        self.progress.broke(self.trial, t + 1, why)

    def _evaluate_if_due(self) -> None:
        due = self.in_main and self.done > 0 and self.phase.training.evaluates_after(self.done)
        if due and evaluation.is_asked_for(self) and self.done not in self.evaluated:
            evaluation.evaluate(self, last=self.done == self.phase.rounds)
            self.writer.sync()  # sites that answered may be gone when they are asked again
            self.evaluated.add(self.done)


def _check_sums(update: Params) -> None:
    if not are_sums(update):
        raise Rejected("sends sums that cannot be")


def _believe(update: Params) -> None:
    """Any finite numbers can be the update of a model."""
