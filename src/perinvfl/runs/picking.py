"""Which runs are meant: by method and seed, as tables call them. Does not import torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perinvfl.errors import UserError
from perinvfl.runs.records import Run, find_runs, read_run

MOST_NAMED = 8


@dataclass(frozen=True)
class Pick:
    """Empty: all of them."""

    methods: tuple[str, ...] = ()  # as in tables or as in experiment files; capitals do not count
    seeds: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.methods or self.seeds)

    def among(self, runs: Sequence[Run]) -> list[Run]:
        """Those that are meant; a method or a seed that no run has is a mistake."""
        meant = [id(run) for method in self.methods for run in _called(runs, method)]
        for seed in self.seeds:
            if not any(run.seed == seed for run in runs):
                seeds = sorted({run.seed for run in runs})
                raise UserError(f"--seed {seed}: no run here has it; there are {_named(list(map(str, seeds)))}.")
        kept = [run for run in runs if not self.methods or id(run) in meant]
        kept = [run for run in kept if not self.seeds or run.seed in self.seeds]
        if runs and not kept:
            raise UserError(
                f"No run here has that method and that seed; there are {_named(list(map(title_of, runs)))}."
            )
        return kept


EVERY = Pick()


def title_of(run: Run) -> str:
    """The run as a person would ask for it."""
    fold = f" without {run.fold}" if run.fold else ""
    return f'"{run.label}"{fold} seed {run.seed}'


def single_run(place: Path, pick: Pick = EVERY) -> Run:
    """The run in this folder, or the only one below it that is meant."""
    run = read_run(place)
    if run is not None:
        return pick.among([run])[0]
    found = find_runs(place)
    if not found:
        raise UserError(f"{place} holds no run; give a folder that does, such as runs/demo.")
    kept = pick.among(found)
    if len(kept) == 1:
        return kept[0]
    titles = [title_of(run) for run in kept]
    if len(set(titles)) == len(titles):
        raise UserError(f"{place} holds {len(kept)} such runs; choose with --method and --seed: {_named(titles)}.")
    names = _named([run.folder.name for run in kept])
    raise UserError(f"{place} holds {len(kept)} such runs; give the folder of one of them: {names}.")


def _called(runs: Sequence[Run], name: str) -> list[Run]:
    """By what tables call it; where nothing is called so, by the name of the algorithm."""
    wanted = name.strip().lower()
    by_label = [run for run in runs if wanted in (run.label.lower(), run.method.lower())]
    found = by_label or [run for run in runs if wanted == run.asked["algorithm"]["name"].lower()]
    if not found:
        there = _named(list(dict.fromkeys(run.label for run in runs)))
        raise UserError(f'--method "{name}": no run here is of it; there are {there}.')
    return found


def _named(names: list[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
