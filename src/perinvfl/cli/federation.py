"""`perinvfl federation`: the same experiments across machines. Needs `pip install 'perinvfl[federation]'`."""

import importlib.util
import logging
import signal
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import TaskID, TimeElapsedColumn
from rich.table import Table as RichTable

from perinvfl.errors import UserError
from perinvfl.flower.watch import Plain, Watch, in_bytes
from perinvfl.flower.watch import Progress as RoundProgress
from perinvfl.results.table import make_table
from perinvfl.runs.experiment import build_experiment, read_table
from perinvfl.runs.records import EVENTS, read_run
from perinvfl.runs.trial import Trial
from perinvfl.terminal.display import bars, show_table

app = typer.Typer(help="The same experiments across machines: a server, and sites that keep their data.")

Folder = Annotated[Path, typer.Argument(help="Folder of the federation, as `init` wrote it.")]


@app.callback(no_args_is_help=True)
def group() -> None:
    for package in ("flwr", "cryptography"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"{package} is not installed; pip install 'perinvfl[federation]' brings it.")


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    sites: Annotated[str, typer.Option("--sites", help="Names of the sites, in the order of the clients: a,b,c.")],
    host: Annotated[list[str], typer.Option("--host", help="Name or address of the server; the first is used.")],
    port: Annotated[int, typer.Option("--port", help="The server's only port.")] = 9443,
) -> None:
    """Write certificates, keys and configuration for a server and its sites, and say what to do with them."""
    from perinvfl.flower import layout  # here and below: an extra, and slow to import

    names = [site.strip() for site in sites.split(",") if site.strip()]
    layout.make_federation(folder, names, host, port)
    print(
        f"Wrote {folder}. It holds the keys of everybody: give each machine its own part, then keep the rest offline.\n"
    )
    print(f"The server ({host[0]}, port {port} open to the sites):")
    print(f"  copy {folder}/server there, then")
    print("  perinvfl federation up server\n")
    for name in names:
        print(f"Site {name}:")
        print(f"  copy {folder}/site-{name} there and nowhere else, then")
        print(f"  perinvfl federation join site-{name} --data my.npz\n")
    print("Back on the server, once the sites have joined:")
    print("  perinvfl federation status server")
    print("  perinvfl federation run server experiment.toml")


@app.command()
def up(
    folder: Folder,
    bind: Annotated[str, typer.Option("--bind", help="Address to listen on; all, unless told otherwise.")] = "0.0.0.0",
) -> None:
    """Start the server side, and stay until stopped."""
    from perinvfl.flower import layout, server_process

    server = layout.open_server(folder)
    _quiet()
    told = f"The server listens on {bind}:{server.port} for {', '.join(server.sites)}. Ctrl-C stops it."
    server_process.serve(server, bind, server.port, started=lambda: print(told, flush=True))


@app.command()
def join(
    folder: Annotated[Path, typer.Argument(help="The site's folder, as `init` wrote it.")],
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", help="The site's data: arrays, a table or photographs; without it, its share of a benchmark."
        ),
    ] = None,
    server: Annotated[str | None, typer.Option("--server", help="HOST:PORT, if not the one written down.")] = None,
    poll: Annotated[float, typer.Option("--poll", min=0.01, help="Seconds between two questions for work.")] = 0.5,
) -> None:
    """Take part as a site, and stay until stopped. The data do not leave this machine."""
    from perinvfl.flower import client_app, layout, site_process

    site = layout.open_site(folder, server)
    if data is not None and not data.exists():
        raise UserError(f"{data} does not exist; give the site's arrays, its table or its folder of photographs.")
    _quiet()
    config = {} if data is None else {"data": str(data.resolve())}
    taking_part = site_process.Node(site, config, client_app.answer, lambda line: print(line, flush=True), poll)

    def stop(number: int, frame: FrameType | None) -> None:
        taking_part.stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    taking_part.serve()


@app.command()
def run(
    folder: Folder,
    file: Annotated[
        Path, typer.Argument(help="Experiment file (TOML); [federation] holds the settings of the federation.")
    ],
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Replace one setting, such as training.rounds=20."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that did not end.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the records; else runs/ at the server's.")
    ] = None,
) -> None:
    """Train what FILE asks for with the sites, then show the table. On the server's machine."""
    from perinvfl.flower import layout, rounds, run_process
    from perinvfl.flower.settings import check_together, read_settings
    from perinvfl.flower.transport import GridTransport

    server = layout.open_server(folder)
    table = read_table(file, set)
    experiment, settings = build_experiment(table, file.stem), read_settings(table)
    for trial in experiment.trials:
        check_together(settings, trial, len(server.sites))
    place = (out or server.runs) / experiment.name
    _quiet()
    connection = run_process.connect(server)
    by_key = {server.public_key(site): client for client, site in enumerate(server.sites)}
    console = _console()
    with run_process.running(connection) as grid, _Live(console) as live:

        def whereabouts() -> dict[int, int]:
            return {by_key[node.public_key]: node.node_id for node in grid.get_nodes() if node.public_key in by_key}

        post = GridTransport(grid, whereabouts, settings.poll)
        told: Watch = live if console.is_terminal else Plain(lambda line: print(line, flush=True))
        try:
            for order, trial in enumerate(experiment.trials):
                one = rounds.Rounds(trial, settings, list(server.sites), post, place, told, experiment.name, order)
                one.run(resume)
        except KeyboardInterrupt:  # by Ctrl-C, or by Flower where the server no longer knows of this run
            raise UserError(
                "Stopped, or the server was started anew; with --resume the same command goes on."
            ) from None
    _show(console, [place / rounds.run_folder(trial, settings) for trial in experiment.trials])
    console.print(f"Records: {place}", highlight=False)


@app.command()
def status(folder: Folder) -> None:
    """Which sites are there, and how far the runs have come."""
    from perinvfl.flower import layout, run_process

    server = layout.open_server(folder)
    known = run_process.list_sites(run_process.connect(server))
    shown = RichTable(title="sites", title_justify="left")
    for column in ("site", "status", "since"):
        shown.add_column(column)
    for site in server.sites:
        node = known[site]
        since = node.last_activated_at if node.status == "online" else node.last_deactivated_at
        shown.add_row(site, "never seen" if node.status == "registered" else node.status, since[:19].replace("T", " "))
    console = _console()
    console.print(shown)
    for path in sorted(server.runs.rglob(EVENTS)):
        past = read_run(path.parent)
        if past is not None:
            done = max((event.get("round", 0) for event in past.events), default=0)
            asked = past.start["asked"]
            name = f"{asked['algorithm']['label']}, seed {asked['seed']}"
            state = "broken" if past.broken else "done" if past.finished else "under way, or to be resumed"
            console.print(f"{name}: {done} of {asked['training']['rounds']} rounds, {state}", highlight=False)


def _show(console: Console, folders: list[Path]) -> None:
    runs = [run for run in map(read_run, folders) if run is not None]
    if runs and all(run.broken is not None for run in runs):
        raise UserError("Every run became infinite; smaller learning rates are the usual cure.")
    evaluated = [run for run in runs if run.evaluations]
    if evaluated:
        show_table(console, make_table(evaluated))


class _Live(Watch):
    """One bar a trial: rounds, replies, risk, time, bytes."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = bars(
            console,
            TimeElapsedColumn(),
            disable=not console.is_terminal,
        )
        self.task: TaskID | None = None
        self.told, self.last, self.mean = "", "", ""  # now; of the last round; of the last evaluation

    def __enter__(self) -> "_Live":
        self.progress.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.progress.stop()

    def waiting(self, missing: list[str]) -> None:
        self._update(f"waiting for {', '.join(missing)}")

    def skipped(self, trial: Trial, folder: Path) -> None:
        self.console.print(f"{trial.label}, seed {trial.seed}: already done, nothing to do", highlight=False)

    def started(self, trial: Trial, rounds_done: int) -> None:
        name = f"{trial.label}, seed {trial.seed}"
        if rounds_done:
            self.console.print(f"{name}: going on after round {rounds_done}", highlight=False)
        self.told, self.last, self.mean = "", "", ""
        self.task = self.progress.add_task(name, total=trial.training.rounds, completed=rounds_done, told="")

    def heard(self, replies: int, asked: int) -> None:
        self._update(f"{replies}/{asked} replies  {self.last}")

    def round(self, progress: RoundProgress) -> None:
        risk = "" if progress.risk is None else f"risk {progress.risk:.3f}  "
        size = in_bytes(progress.bytes_up)
        self.last = f"{risk}{progress.seconds:.1f} s a round  {size} up"
        self._update(f"{progress.replies}/{progress.asked} replies  {self.last}", completed=progress.round)

    def left_out(self, site: str, round: int, why: str) -> None:
        self.console.print(f"round {round} goes on without {site}: {why}", style="yellow", highlight=False)

    def evaluated(self, trial: Trial, round: int, mean: float | None) -> None:
        self.mean = "" if mean is None else f"  mean over the spectrum {mean:.3f}"
        self._update(self.told)

    def broke(self, trial: Trial, why: str) -> None:
        self.console.print(why, style="yellow", highlight=False)

    def finished(self, trial: Trial, seconds: float, told: str) -> None:
        if told:
            self.console.print(told, highlight=False)
        if self.task is not None:
            self.progress.stop_task(self.task)

    def _update(self, told: str, **fields: int) -> None:
        self.told = told
        if self.task is not None:
            self.progress.update(self.task, told=told + self.mean, **fields)  # type: ignore[arg-type]


def _quiet() -> None:
    """Flower's own log tells of every request; what matters is told here."""
    logging.getLogger("flwr").setLevel(logging.ERROR)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=160)
