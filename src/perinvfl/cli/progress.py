"""Where the progress of a run is shown: bars in a terminal, lines in a log, JSON for scripts, and trackers besides."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from perinvfl.cli.options import ProgressOptions
from perinvfl.core.saying import hand_over, say
from perinvfl.results.render import as_json
from perinvfl.results.table import make_table
from perinvfl.runs.progress import Lines, Progress, Several
from perinvfl.runs.records import Run
from perinvfl.terminal.live import Live
from perinvfl.terminal.track import JsonLines, trackers

if TYPE_CHECKING:
    from perinvfl.runs.experiment import Experiment


@contextmanager
def showing_progress(
    options: ProgressOptions, experiment: "Experiment", out: Path, console: Console
) -> Iterator[Progress]:
    """What `train` reports its progress to."""
    with trackers(options.trackers, out, experiment.name) as tracking:
        if options.quiet:
            yield Several(tracking)
        elif options.json:
            yield Several([JsonLines(out, hand_over), *tracking])
        elif console.is_terminal:
            with Live(console, [trial.training.rounds for trial in experiment.trials]) as live:
                yield Several([live, *tracking])
        else:
            yield Several([Lines(say), *tracking])


def print_json_table(runs: list[Run], out: Path, **more: object) -> None:
    """The last of the JSON lines."""
    done = {"event": "done", "records": str(out), "table": as_json(make_table(runs)), **more}
    hand_over(json.dumps(done, ensure_ascii=False, separators=(",", ":")))
