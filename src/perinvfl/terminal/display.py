"""What the terminal shows: live progress and tables."""

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table as RichTable

from perinvfl.diagnose import Diagnosis
from perinvfl.results.table import Table, cells
from perinvfl.runs.records import Run
from perinvfl.runs.train import Watch, broken_sentence
from perinvfl.runs.trial import Trial


def bars(console: Console, clock: ProgressColumn, disable: bool = False) -> Progress:
    """Bars that count rounds, with what is told about each."""
    return Progress(
        SpinnerColumn(finished_text="[green]✓"),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[told]}"),
        clock,
        console=console,
        disable=disable,
    )


class Live(Watch):
    """One bar a running group of trials: rounds, risk, accuracy, time left; of several runs, one more for them all."""

    def __init__(self, console: Console, rounds: list[int]) -> None:
        self.console, self.rounds = console, rounds
        self.done = 0  # rounds of runs that are finished
        self.progress = bars(console, TimeRemainingColumn(elapsed_when_finished=True))
        self.task: TaskID | None = None
        self.whole: TaskID | None = None
        self.risk, self.mean = "", ""

    def __enter__(self) -> "Live":
        self.progress.start()
        if len(self.rounds) > 1:
            self.whole = self.progress.add_task(f"all {len(self.rounds)} runs", total=sum(self.rounds), told="")
        return self

    def __exit__(self, *problem: object) -> None:
        self.progress.stop()

    def skipped(self, trial: Trial, run: Run) -> None:
        self.console.print(
            f"{trial.title}, seed {trial.seed}: already done, nothing to do ({run.folder})", highlight=False
        )
        self._add_up([trial])

    def started(self, trials: list[Trial], rounds_done: int) -> None:
        more = f" and {len(trials) - 1} more" if len(trials) > 1 else ""
        self.risk, self.mean = "", ""
        name = f"{trials[0].title}, seed {trials[0].seed}{more}"
        if rounds_done:
            self.console.print(f"{name}: going on after round {rounds_done}", highlight=False)
        self.task = self.progress.add_task(name, total=trials[0].training.rounds, completed=rounds_done, told="")

    def round(self, trials: list[Trial], rounds_done: int, risk: float | None) -> None:
        if risk is not None:
            self.risk = f"risk {risk:.3f}"
        self._update(completed=rounds_done)
        if self.whole is not None:
            self.progress.update(self.whole, completed=self.done + rounds_done * len(trials))

    def evaluated(self, trials: list[Trial], rounds_done: int, mean: float | None) -> None:
        if mean is not None:
            accuracy = trials[0].federation().task != "regression"
            self.mean = f"shifted accuracy {100 * mean:.1f}" if accuracy else f"shifted error {mean:.3g}"
        self._update()

    def broke(self, trial: Trial, round: int) -> None:
        self.console.print(broken_sentence(trial, round), style="yellow", highlight=False)

    def finished(self, trials: list[Trial], seconds: float) -> None:
        self._update()
        if self.task is not None:
            self.progress.stop_task(self.task)
        self._add_up(trials)

    def _add_up(self, trials: list[Trial]) -> None:
        self.done += sum(trial.training.rounds for trial in trials)
        if self.whole is not None:
            self.progress.update(self.whole, completed=self.done)

    def _update(self, **fields: int) -> None:
        if self.task is not None:
            self.progress.update(self.task, told=f"{self.risk}  {self.mean}", **fields)  # type: ignore[arg-type]


def show_table(console: Console, table: Table) -> None:
    """All columns where they fit; on a narrow terminal the paper's own, and a word on how to see the rest."""
    header, rows = cells(table)
    several = header[0] == "Data"
    data = [row[0] for _, row in rows] if several else []  # a line of its own above its rows, instead of a column
    if several:
        header, rows = header[1:], [(kind, row[1:]) for kind, row in rows]
    columns = len(header)
    widths = [max(len(line[column]) for line in [header, *(row for _, row in rows)]) + 3 for column in range(columns)]
    if sum(widths) + 1 > console.width:
        columns = (
            header.index("Worst case") + 1 + (2 if table.rows[0].by_group else 0)
        )  # to the worst case, the worst group
    shown = RichTable(title=table.title, title_justify="left", expand=False)
    for number, title in enumerate(header[:columns]):
        shown.add_column(title, justify="left" if number == 0 else "right", no_wrap=number > 0)
    for number, (kind, row) in enumerate(rows):
        if several and data[number] not in data[:number]:
            shown.add_section()
            shown.add_row(data[number], style="bold")
        shown.add_row(*row[:columns], style={"paper": "dim", "reference": "cyan"}.get(kind))
    console.print(shown)
    if columns < len(header):
        hidden = ", ".join(header[columns:])
        console.print(
            f"Not shown here: {hidden}; a wider terminal or --format md shows all.", style="dim", highlight=False
        )
    for note in table.notes:
        console.print(note, style="dim", highlight=False)


def show_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    """One table and the sentences for each client, and what stands out at the end."""
    error = diagnosis.task == "regression"
    for client in diagnosis.clients:
        shown = RichTable(title=client.client, title_justify="left", title_style="bold", expand=False)
        shown.add_column("context")
        for column in ("samples", "risk", "squared error" if error else "accuracy %", "calibration error", "penalty"):
            shown.add_column(column, justify="right")
        for context in client.contexts:
            name = context.name if context.seen else f"{context.name} (test)"
            score = f"{context.score:.4g}" if error else f"{100 * context.score:.1f}"
            numbers = (f"{context.risk:.3f}", score, f"{context.calibration:.3f}", f"{context.penalty:.4f}")
            shown.add_row(name, str(context.samples), *numbers)
        console.print(shown)
        for sentence in client.sentences.values():
            console.print(f"  {sentence}", highlight=False)
        console.print()
    for line in diagnosis.summary:
        console.print(line, style="bold", highlight=False)


def wide_console() -> Console:
    """A terminal's own width; where there is none, wide enough for a table."""
    console = Console()
    return console if console.is_terminal else Console(width=160)
