"""Which commands there are; a user's mistake becomes one sentence, and Ctrl-C prints how to resume."""

import io
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import click
import typer

import perinvfl
from perinvfl.cli import data, federation
from perinvfl.cli.audit import audit
from perinvfl.cli.init import init
from perinvfl.cli.list import show_catalogue
from perinvfl.cli.models import diagnose, export, predict
from perinvfl.cli.plot import plot
from perinvfl.cli.report import report
from perinvfl.cli.run import demo, run, sweep
from perinvfl.cli.table import table
from perinvfl.cli.verify import verify
from perinvfl.core.commands import guarded
from perinvfl.core.saying import say
from perinvfl.core.stopping import STOPPED, end_process

PROGRAM = "perinvfl"
app = typer.Typer(
    help="Federated learning that is personal to each client and still works when the world shifts.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (demo, init, audit, run, sweep, table, plot, export, predict, diagnose, report, verify):
    app.command()(command)
app.command("list")(show_catalogue)
app.add_typer(data.app, name="data")
app.add_typer(federation.app, name="federation")


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        say(perinvfl.__version__)
        raise typer.Exit


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file's name need not be text
    try:
        code = call(sys.argv[1:])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    end_process(code)


def call(arguments: list[str]) -> int:
    """The command line with these arguments; its exit code."""
    return guarded(lambda: _call(arguments), _resume_command(arguments))


def _call(arguments: list[str]) -> int:
    try:
        code = app(arguments, prog_name=PROGRAM, standalone_mode=False)
    except click.ClickException as error:  # an unknown command or option
        error.show()
        return error.exit_code
    if code == STOPPED:
        raise KeyboardInterrupt  # typer has turned it into a code
    return code if isinstance(code, int) else 0


def _resume_command(arguments: list[str]) -> str:
    """The command line that resumes what these arguments began; empty where nothing can be resumed."""
    if not arguments or arguments[0] not in ("demo", "run", "sweep"):
        return ""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        begin = [sys.executable, "-m", "perinvfl"]
    else:
        begin = [program.name if shutil.which(program.name) == str(program) else str(program)]
    return shlex.join([*begin, *arguments])
