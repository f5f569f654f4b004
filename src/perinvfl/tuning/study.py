"""One method's study in Optuna: which settings to try next, and which to give up. Kept in a file of the run folder.

Every setting is sampled with a seed of its own, so that a search that was killed and resumed asks for the same settings
as one that was not, as long as one worker tries them one after another.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perinvfl.core.extras import how_to_install
from perinvfl.core.hyper import LogUniform, OneOf
from perinvfl.core.plugins import in_words
from perinvfl.errors import UserError

NEEDED = f"--sampler optuna needs Optuna, which is not installed: {how_to_install('optuna')}."
SETTING = "setting"  # the name under which a trial keeps its number
STARTUP = 5  # settings that are tried at random, and to their end, before the first is given up
Space = Mapping[str, LogUniform | OneOf]


class Study:
    def __init__(self, file: Path, label: str, asked: str, seed: int, prune: bool, parallel: bool) -> None:
        """label: of the method, which with the seed decides what is drawn; asked: stands for all else that was asked
        for, so that another search is another study."""
        try:
            import optuna
        except ModuleNotFoundError:
            raise UserError(NEEDED) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.optuna, self.label, self.seed, self.parallel = optuna, label, seed, parallel
        pruner = optuna.pruners.MedianPruner(STARTUP) if prune else optuna.pruners.NopPruner()
        try:
            self.study = optuna.create_study(
                storage=f"sqlite:///{file.absolute()}",
                study_name=f"{label} {asked}",
                load_if_exists=True,
                direction="maximize",
                pruner=pruner,
            )
        except Exception as error:  # of its database, of which there are many kinds
            raise UserError(
                f"{file} cannot be used ({in_words(error)}); it is Optuna's file: delete it to begin the search "
                "again, which finds runs that are finished."
            ) from error
        self._queue_interrupted()

    def _queue_interrupted(self) -> None:
        """Settings that were under way when the search was stopped come first, under their old numbers."""
        state = self.optuna.trial.TrialState
        queued = {trial.user_attrs.get(SETTING) for trial in self.study.get_trials(states=(state.WAITING,))}
        for trial in self.study.get_trials(states=(state.RUNNING,)):
            number = trial.user_attrs.get(SETTING)
            if number is not None and number not in queued:
                self.study.enqueue_trial(trial.params, user_attrs={SETTING: number})
            self.study.tell(trial.number, state=state.FAIL)

    @property
    def tried(self) -> set[int]:
        """Settings that are done with, or given up."""
        state = self.optuna.trial.TrialState
        over = self.study.get_trials(states=(state.COMPLETE, state.PRUNED))
        return {trial.user_attrs[SETTING] for trial in over if SETTING in trial.user_attrs}

    @property
    def waiting(self) -> list[int]:
        """Settings that were under way when the search was stopped."""
        waiting = self.study.get_trials(states=(self.optuna.trial.TrialState.WAITING,))
        return [trial.user_attrs[SETTING] for trial in waiting]

    def values_of(self, setting: int, space: Space) -> dict[str, Any]:
        """The values of a setting that was tried."""
        trial = next(trial for trial in self.study.get_trials() if trial.user_attrs.get(SETTING) == setting)
        fixed = self.optuna.trial.FixedTrial(trial.params)
        return {name: _suggest(fixed, name, range_) for name, range_ in space.items()}

    def ask(self, setting: int, space: Space, draw: int) -> tuple[Any, dict[str, Any]]:
        """Optuna's trial for a setting and the values to try. draw: how often it was refused before."""
        text = f"{self.seed} {self.label} {setting} {draw}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
        self.study.sampler = self.optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=STARTUP, constant_liar=self.parallel
        )
        trial = self.study.ask()
        values = {name: _suggest(trial, name, range_) for name, range_ in space.items()}
        trial.set_user_attr(SETTING, setting)
        return trial, values

    def refuse(self, trial: Any) -> None:
        """A setting that cannot work: it is asked for again."""
        trial.set_user_attr(SETTING, None)
        self.study.tell(trial, state=self.optuna.trial.TrialState.FAIL)

    def report(self, trial: Any, score: float, step: int) -> bool:
        """Whether to give the setting up: at this step it is below the median of the others."""
        trial.report(score, step)
        return bool(trial.should_prune())

    def tell(self, trial: Any, score: float | None) -> None:
        """score: None for a setting that was given up, or that diverged."""
        pruned = self.optuna.trial.TrialState.PRUNED
        if score is None:
            self.study.tell(trial, state=pruned)
        else:
            self.study.tell(trial, score)


def _suggest(trial: Any, name: str, range_: LogUniform | OneOf) -> Any:
    if isinstance(range_, LogUniform):
        return trial.suggest_float(name, range_.low, range_.high, log=True)
    shown = {str(option): option for option in range_.options}
    return shown[trial.suggest_categorical(name, list(shown))]
