"""`perinvfl federation`: the same experiments across machines. Needs `pip install 'perinvfl[federation]'`."""

import importlib.util
import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable

from perinvfl.cli.options import Set
from perinvfl.core.extras import how_to_install
from perinvfl.core.saying import say
from perinvfl.core.stopping import on_stop
from perinvfl.errors import UserError
from perinvfl.results.table import make_table
from perinvfl.runs.records import Run, read_run, run_folders
from perinvfl.terminal.console import wide_console
from perinvfl.terminal.tables import show_table

if TYPE_CHECKING:
    from perinvfl.flower.layout import ServerFolder
    from perinvfl.flower.settings import DeploymentSettings
    from perinvfl.runs.experiment import Experiment

app = typer.Typer(help="Run the same experiments across machines: a server, and sites that keep their data.")

Folder = Annotated[Path, typer.Argument(help="Folder of the federation, as `init` wrote it.")]


@app.callback(no_args_is_help=True)
def group() -> None:
    for package in ("flwr", "cryptography"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"Commands across machines need {package}: {how_to_install('federation')}.")


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    sites: Annotated[str, typer.Option("--sites", help="Names of the sites, in the order of the clients: a,b,c.")],
    host: Annotated[list[str], typer.Option("--host", help="Address of the server; sites use the first one given.")],
    port: Annotated[int, typer.Option("--port", help="The server's only port.")] = 9443,
) -> None:
    """Write certificates, keys and configuration for a server and its sites, and say what to do with them."""
    from perinvfl.flower import layout

    names = [site.strip() for site in sites.split(",") if site.strip()]
    layout.make_federation(folder, names, host, port)
    say(f"Wrote {folder}. It holds everybody's keys: give each machine its own part, then keep the rest offline.\n")
    say(f"The server ({host[0]}, port {port} open to the sites):")
    say(f"  copy {folder}/server there, then")
    say("  perinvfl federation up server\n")
    for name in names:
        say(f"Site {name}:")
        say(f"  copy {folder}/site-{name} there and nowhere else, then")
        say(f"  perinvfl federation join site-{name} --data my.npz\n")
    say("Back on the server, once the sites have joined:")
    say("  perinvfl federation status server")
    say("  perinvfl federation run server experiment.toml")


@app.command()
def up(
    folder: Folder,
    bind: Annotated[str, typer.Option("--bind", help="Address to listen on; by default all.")] = "0.0.0.0",
) -> None:
    """Start the server, which runs until it is stopped."""
    from perinvfl.flower import layout, server_process

    server = layout.open_server(folder)
    _silence_flower()
    line = f"The server listens on {bind}:{server.port} for {', '.join(server.sites)}. Ctrl-C stops it."
    number = server_process.serve(server, bind, server.port, started=lambda: say(line))
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    signal.signal(number, signal.SIG_DFL)  # ended by it, as whoever sent it expects
    signal.raise_signal(number)


@app.command()
def join(
    folder: Annotated[Path, typer.Argument(help="The site's folder, as `init` wrote it.")],
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", help="The site's data: arrays, a table or photographs; by default its part of a benchmark."
        ),
    ] = None,
    server: Annotated[
        str | None, typer.Option("--server", help="HOST:PORT, if not the one in the site's folder.")
    ] = None,
    code: Annotated[
        Path | None,
        typer.Option("--code", help="Folder of your own algorithms and models that an experiment may name."),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            help="Own code that an experiment may name, as module:name; may be given several times. Nothing else but "
            "the package itself is run.",
        ),
    ] = None,
    poll: Annotated[float, typer.Option("--poll", min=0.01, help="Seconds between two requests for work.")] = 0.5,
) -> None:
    """Take part as a site until stopped. The data do not leave this machine."""
    from perinvfl.flower import client_app, layout, site_process

    site = layout.open_site(folder, server, allow or [])
    if data is not None and not data.exists():
        raise UserError(f"{data} does not exist; give the site's arrays, its table or its folder of photographs.")
    _silence_flower()
    if code is not None and not code.is_dir():
        raise UserError(f"{code} is not a folder; give the one that holds your own algorithms and models.")
    given = {"data": data, "code": code}
    config = {name: str(path.resolve()) for name, path in given.items() if path is not None}
    config["allow"] = ",".join(site.allow)
    taking_part = site_process.Node(site, config, client_app.answer, say, poll)

    on_stop(lambda number: taking_part.stopping.set())
    taking_part.serve()


@app.command()
def run(
    folder: Folder,
    file: Annotated[
        Path,
        typer.Argument(help="Experiment file (TOML), with the deployment in its federation section."),
    ],
    set: Set = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume a run that did not finish.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the records; by default runs/ in the server's folder.")
    ] = None,
) -> None:
    """On the server's machine: train what FILE asks for with the sites, then show the table."""
    from perinvfl.core.plugins import importing_from
    from perinvfl.flower import layout, server_run
    from perinvfl.flower.settings import check_deployment, read_settings
    from perinvfl.runs.experiment import build_experiment, read_table

    server = layout.open_server(folder)
    table = read_table(file, set)
    with importing_from(file.parent):
        experiment, settings = build_experiment(table, file.stem), read_settings(table)
    for trial in experiment.trials:
        check_deployment(settings, trial, len(server.sites))
    records = (out or server.runs) / experiment.name
    console = wide_console()
    _train_at_sites(server, experiment, settings, records, resume, console)
    _show_runs(console, [records / server_run.run_folder(trial, settings) for trial in experiment.trials])
    console.print(f"Records: {records}")


@app.command()
def local(
    file: Annotated[Path, typer.Argument(help="Experiment file (TOML), as `perinvfl run` takes it.")],
    set: Set = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the records.")] = Path("runs/deployed"),
) -> None:
    """Deploy FILE on this machine: a server and one site per client as processes with TLS. A table of your own is
    divided by its clients. Trains, shows the table, and ends every process it started."""
    from perinvfl.flower.local_deployment import deploy_here

    code = deploy_here(file, set or [], out.absolute(), say)
    if code:
        raise typer.Exit(code)


@app.command()
def status(folder: Folder) -> None:
    """Show which sites are connected, and how far each run has got."""
    from perinvfl.flower import layout, run_process

    server = layout.open_server(folder)
    known = run_process.list_sites(run_process.connect(server))
    shown = RichTable(title="sites", title_justify="left")
    for column in ("site", "status", "since"):
        shown.add_column(column)
    for site in server.sites:
        node = known[site]
        since = node.last_activated_at if node.status == "online" else node.last_deactivated_at
        state = "never connected" if node.status == "registered" else node.status
        shown.add_row(site, state, since[:19].replace("T", " "))
    console = wide_console()
    console.print(shown)
    for run_folder in run_folders(server.runs):
        past = read_run(run_folder)
        if past is not None:
            console.print(_progress_of(past))


def _train_at_sites(
    server: "ServerFolder",
    experiment: "Experiment",
    settings: "DeploymentSettings",
    records: Path,
    resume: bool,
    console: Console,
) -> None:
    from perinvfl.flower import rounds, run_process
    from perinvfl.flower.transport import GridTransport
    from perinvfl.runs.progress import Lines, Progress
    from perinvfl.terminal.live_deployment import LiveDeployment

    _silence_flower()
    connection = run_process.connect(server)
    by_key = {server.public_key(site): client for client, site in enumerate(server.sites)}
    live = LiveDeployment(console)
    progress: Progress = live if console.is_terminal else Lines(say)
    with run_process.running(connection, settings.server_patience, progress.server_away) as grid, live:

        def whereabouts() -> dict[int, int]:
            return {by_key[node.public_key]: node.node_id for node in grid.get_nodes() if node.public_key in by_key}

        transport = GridTransport(grid, whereabouts, settings.poll)
        try:
            for order, trial in enumerate(experiment.trials):
                rounds.Rounds(
                    trial, settings, list(server.sites), transport, records, progress, experiment.name, order
                ).run(resume)
        except KeyboardInterrupt:  # by Ctrl-C, or by Flower where the server no longer knows of this run
            raise UserError(
                "Stopped, or the server was restarted; the same command with --resume resumes the run."
            ) from None


def _show_runs(console: Console, folders: list[Path]) -> None:
    runs = [run for run in map(read_run, folders) if run is not None]
    if runs and all(run.broken is not None for run in runs):
        raise UserError("Every run diverged; smaller learning rates usually help.")
    evaluated = [run for run in runs if run.evaluations]
    if evaluated:
        show_table(console, make_table(evaluated))


def _progress_of(run: Run) -> str:
    done = max((event.get("round", 0) for event in run.events), default=0)
    asked = run.start["asked"]
    state = "diverged" if run.broken else "done" if run.finished else "running, or waiting to be resumed"
    return (
        f"{asked['algorithm']['label']}, seed {asked['seed']}: {done} of {asked['training']['rounds']} rounds, {state}"
    )


def _silence_flower() -> None:
    """Flower's own log reports every request; what matters is printed here."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
