"""Search with Optuna for the settings of each method, judged by a rule that looks at no test result.

A setting is tried with every seed and fold of the file, one run after another; its score is the mean over them. It is
given up (pruned) where it falls below the median of the settings before it, at the same round of the same run.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from perinvfl.core.files import make_folder
from perinvfl.core.hyper import search_space
from perinvfl.errors import UserError
from perinvfl.results.ranking import INFERRED, SOURCE, check_applies
from perinvfl.results.selection import ORACLE, RULES, Rule, rule_named, score_of
from perinvfl.runs.batches import Batch, Dispatcher
from perinvfl.runs.event_log import Event
from perinvfl.runs.experiment import Experiment
from perinvfl.runs.facts import run_id
from perinvfl.runs.progress import Progress, Pruned, Several
from perinvfl.runs.records import Run, read_run
from perinvfl.runs.tidying import mark_if_unmarked
from perinvfl.runs.trial import Trial
from perinvfl.tuning.study import Study

FILE = "optuna.db"
MOST_DRAWS = 1000


@dataclass(frozen=True)
class Search:
    trials: int  # settings of each method
    seed: int
    rule: Rule
    prune: bool = True


def rule_for(experiment: Experiment, name: str) -> Rule:
    """The rule that is named, else the first that applies; never one that looks at test results."""
    inferred = all(trial.contexts.infer != "given" for trial in experiment.trials)
    rule = rule_named(name) if name else RULES[INFERRED if inferred else SOURCE]
    if rule.name == ORACLE:
        raise UserError(f"--rule {ORACLE}: this search learns from its scores, and may not learn from test results.")
    check_applies(rule, experiment)
    if rule.name == INFERRED and not inferred:
        raise UserError(f"--rule {rule.name}: contexts are not inferred for every algorithm here; use {SOURCE}.")
    return rule


def tune(experiment: Experiment, asked: Search, out: Path, progress: Progress, dispatcher: Dispatcher) -> list[Path]:
    """Try settings of every method of the file; the folders of all runs."""
    make_folder(out)
    labels = list(dict.fromkeys(trial.label for trial in experiment.trials))
    folders: list[Path] = []
    for label in labels:
        same = [trial for trial in experiment.trials if trial.label == label]
        first = labels.index(label) * asked.trials * len(same)
        method = Method(same, asked, experiment.name, out, progress, first, parallel=dispatcher.slots > 1)
        watching = Several([progress, method])
        for batch, ended in dispatcher.finished(method, out, watching, at_once=dispatcher.slots):
            method.done(batch, ended)
        folders += [out / trial.folder for trial in method.all_runs]
    return folders


@dataclass
class Setting:
    """One setting that is being tried."""

    number: int
    asked: Any  # Optuna's trial
    runs: list[Trial]
    scores: list[float] = field(default_factory=list)  # of the runs that are done
    at_work: bool = False


class Method(Progress):
    """The settings of one method: an iterator over the runs to make next, which waits for those under way."""

    def __init__(
        self,
        same: list[Trial],  # the runs of one setting, over seeds and folds
        asked: Search,
        experiment: str,
        out: Path,
        progress: Progress,
        first: int,
        parallel: bool,
    ) -> None:
        self.same, self.asked, self.experiment, self.out, self.progress = same, asked, experiment, out, progress
        self.space = search_space(same[0].algorithm, same[0].held, dict(same[0].ranges))
        what = {"asked": [trial.asked() for trial in same], "rule": asked.rule.name, "seed": asked.seed}
        what["space"] = {name: str(range_) for name, range_ in self.space.items()}
        self.study = Study(out / FILE, same[0].label, run_id(what), asked.seed, asked.prune, parallel)
        self.wanted = asked.trials if self.space else 1
        self.under_way: dict[int, Setting] = {}
        self.all_runs: list[Trial] = []
        self.first = first
        self.events: dict[str, Event] = {}  # the last evaluation of each run
        tried = self.study.tried
        self.left = [number for number in range(self.wanted) if number not in tried]
        waiting = self.study.waiting
        self.left.sort(key=lambda number: (number not in waiting, number))
        for number in sorted(tried):
            self._see_tried(number)

    # Which run comes next ------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Raises StopIteration while there is nothing to do beside what is under way; later there may be."""
        while True:
            idle = next((s for s in self.under_way.values() if not s.at_work), None)
            if idle is None:
                if not self.left:
                    raise StopIteration
                idle = self._begin(self.left.pop(0))
            trial = idle.runs[len(idle.scores)]
            run = read_run(self.out / trial.folder)
            if run is None or not run.finished:
                idle.at_work = True
                return Batch([trial], self.experiment, {trial.id: self._place(idle)})
            mark_if_unmarked(run)
            self.progress.skipped(trial, run.folder)
            for event in run.evaluations:
                self._report(idle, event, run.task)
            self._take(idle, run)

    def _place(self, setting: Setting) -> int:
        """Of the run that comes next, in the order of tables."""
        return self.first + setting.number * len(self.same) + len(setting.scores)

    def _begin(self, number: int) -> Setting:
        for draw in range(MOST_DRAWS):
            asked, values = self.study.ask(number, self.space, draw)
            runs = self._runs(number, values)
            try:
                runs[0].algorithm.check(runs[0].algorithm_name)  # a setting that must diverge is not worth a trial
            except UserError as error:
                refused = error
                self.study.refuse(asked)
                continue
            self.under_way[number] = Setting(number, asked, runs)
            self.all_runs += runs
            return self.under_way[number]
        raise UserError(f"No setting of {self.same[0].label} within the search ranges can work: {refused}")

    def _runs(self, number: int, values: dict[str, Any]) -> list[Trial]:
        return [
            dataclasses.replace(
                trial,
                algorithm=dataclasses.replace(trial.algorithm, **values),
                label=f"{trial.label} #{number}",
                method=trial.label,
                setting=number,
            )
            for trial in self.same
        ]

    def _see_tried(self, number: int) -> None:
        """A setting of an earlier call: its runs are on record."""
        for trial in self._runs(number, self.study.values_of(number, self.space)):
            if read_run(self.out / trial.folder) is not None:
                self.all_runs.append(trial)
                self.progress.skipped(trial, self.out / trial.folder)

    # What became of it ---------------------------------------------------------------------------------------------

    def measured(self, trial: Trial, event: Event) -> None:
        self.events[trial.folder] = event

    def evaluated(self, trials: list[Trial], rounds_done: int, mean: float | None, task: str) -> None:
        trial = trials[0]
        setting = self.under_way.get(setting_number(trial))
        event = self.events.pop(trial.folder, None)
        if setting is not None and event is not None and self._report(setting, event, task):
            raise Pruned(f"pruned: by {self.asked.rule.name} it is below the median of the settings before it")

    def started(self, trials: list[Trial], rounds_done: int) -> None:
        """A run that resumes was measured before."""
        run = read_run(self.out / trials[0].folder) if rounds_done else None
        if run is None:
            return
        for event in run.evaluations:
            if event["round"] <= rounds_done:
                self._report(self.under_way[setting_number(trials[0])], event, run.task)

    def _report(self, setting: Setting, event: Event, task: str) -> bool:
        """Whether to give the setting up."""
        score = score_of(self.asked.rule, event, task, ())
        if score is None:
            raise UserError(f"The rule {self.asked.rule.name} finds nothing to look at in these runs.")
        step = len(setting.scores) * self.same[0].training.rounds + event["round"]
        return self.study.report(setting.asked, fmean([*setting.scores, score]), step)

    def done(self, batch: Batch, ended: bool) -> None:
        """The records of a run are there."""
        (trial,) = batch.trials
        run = read_run(self.out / trial.folder)
        assert run is not None
        self._take(self.under_way[setting_number(trial)], run, ended)

    def _take(self, setting: Setting, run: Run, ended: bool = True) -> None:
        setting.at_work = False
        if not ended or run.broken is not None:
            self._over(setting, None)
            return
        last = score_of(self.asked.rule, run.evaluations[-1], run.task, ())
        assert last is not None
        setting.scores.append(last)
        if len(setting.scores) == len(setting.runs):
            self._over(setting, fmean(setting.scores))

    def _over(self, setting: Setting, score: float | None) -> None:
        self.study.tell(setting.asked, score)
        del self.under_way[setting.number]


def setting_number(trial: Trial) -> int:
    assert trial.setting is not None  # all trials of a search have one
    return trial.setting
