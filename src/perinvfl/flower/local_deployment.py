"""A deployment on one machine: a server and one site per client as processes of their own, on loopback with TLS.

A table of your own is divided first: each site gets a file with the rows of one client alone, and the experiment says
`benchmark = "sites"` in place of the file, as it would across machines.
"""

import csv
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from perinvfl.core.files import writing
from perinvfl.core.naming import name_of
from perinvfl.core.plugins import importing_from
from perinvfl.core.stopping import exit_on_sigterm
from perinvfl.core.toml_text import toml_text
from perinvfl.data.own import readers
from perinvfl.data.own.files import FileSettings, read_rows
from perinvfl.data.own.sites import SitesSettings
from perinvfl.errors import UserError
from perinvfl.flower import layout
from perinvfl.runs.experiment import build_experiment, read_table

# Many processes share this machine: more threads each would only wait for one another.
ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}
LONGEST_END = 5.0  # seconds after which a process that was told to end is killed
POLL = 0.2  # seconds between two requests of a site for work


@dataclass(frozen=True)
class Parts:
    """What is deployed: an experiment file, the sites, the data file of each where it is their own, and own code."""

    file: Path
    sites: list[str]
    data: list[Path]
    code: list[str]  # as module:name


def deploy_here(file: Path, overrides: list[str], out: Path, tell: Callable[[str], None]) -> int:
    """Train what a file asks for between processes on this machine; every one of them is ended afterwards."""
    exit_on_sigterm()
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "federation"
        parts = prepare(file, overrides, Path(root))
        port = _free_port()
        layout.make_federation(folder, parts.sites, ["localhost"], port)
        started: list[subprocess.Popen[bytes]] = []

        def start(name: str, *arguments: object) -> None:
            with open(Path(root) / f"{name}.log", "w") as log:
                started.append(subprocess.Popen(_command(*arguments), stdout=log, stderr=log, env=ALONE))

        try:
            start("server", "up", folder, "--bind", "127.0.0.1")
            _wait_for(folder / "server" / "control.key", started[0])
            for number, site in enumerate(parts.sites):
                own = [*(["--data", parts.data[number]] if parts.data else []), "--code", file.absolute().parent]
                own += [part for name in parts.code for part in ("--allow", name)]
                start(f"site-{site}", "join", folder / f"site-{site}", "--poll", POLL, *own)
            tell(f"A server on localhost:{port}, with TLS, and the sites {', '.join(parts.sites)} are starting.")
            run = _command("run", folder, parts.file, "--out", out)
            return subprocess.run(run, env=ALONE, cwd=file.absolute().parent).returncode  # where own code is found
        finally:
            _end(started)


def prepare(file: Path, overrides: list[str], root: Path) -> Parts:
    """The experiment as it is deployed, written below `root`; own data divided by client."""
    table = read_table(file, overrides)
    with importing_from(file.parent):
        trials = build_experiment(table, file.stem).trials
        code = sorted({name for trial in trials for name in trial.sources})
    first = trials[0]
    table.setdefault("name", file.stem)
    sites, data = [f"site{number + 1}" for number in range(first.data.clients)], list[Path]()
    if isinstance(first.data, SitesSettings):
        raise UserError(f"{file}: its data are at sites already; `perinvfl federation join --data FILE` brings them.")
    if isinstance(first.data, FileSettings):
        table["data"] = sites_table(first.data, table["data"])
        sites, data = divide_table(first.data, root)
    deployed = root / file.name
    deployed.write_text(toml_text(table), encoding="utf-8")
    return Parts(deployed, sites, data, code)


def sites_table(settings: FileSettings, asked: dict[str, Any]) -> dict[str, Any]:
    """[data] of the same experiment where each site holds its own rows."""
    if settings.leave_one_context_out:
        raise UserError("data.leave_one_context_out works on one machine only; name test_contexts instead.")
    rows = read_rows(settings)
    known = {field.name for field in fields(SitesSettings)}
    kept = {key: value for key, value in asked.items() if key in known and key != "task"}
    outputs = len(rows.classes) if rows.task == "multiclass" else 1
    named = {"classes": list(rows.classes)} if rows.classes else {}
    counts = {"clients": len(rows.clients), "task": rows.task, "outputs": outputs}
    roles = {"label": settings.label, "client": settings.client, "context": settings.context}
    return {"benchmark": "sites", **roles, **kept, **counts, **named}


def divide_table(settings: FileSettings, root: Path) -> tuple[list[str], list[Path]]:
    """One CSV file per client: the names of the sites and their files. The column of clients stays, by whose names rows
    are drawn, so that sites draw as one machine does."""
    path = Path(settings.path)
    if path.suffix.lower() not in readers.TABLES:
        raise UserError(f"{path}: tables are divided ({', '.join(readers.TABLES)}); give other data to sites yourself.")
    if not settings.client:
        raise UserError("data.client is empty: name the column that says to which site a row belongs.")
    cells = readers.whole_table(path, names=(settings.client, settings.context))
    owners = [name_of(cell) for cell in readers.names_of(cells.columns[settings.client])]
    columns = [_texts(cells.columns[name]) for name in cells.header]
    sites, files = list[str](), list[Path]()
    for client in read_rows(settings).clients:
        sites.append(re.sub(r"[^a-z0-9-]+", "-", client.lower()).strip("-") or "site")
        files.append(root / f"{sites[-1]}.csv")
        with writing(files[-1]), open(files[-1], "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(cells.header)
            writer.writerows([column[row] for column in columns] for row, own in enumerate(owners) if own == client)
    if len(set(sites)) < len(sites):
        raise UserError(f'Two clients in column "{settings.client}" have names that are alike: {", ".join(sites)}.')
    return sites, files


def _texts(column: Any) -> list[str]:
    if isinstance(column, Tensor):
        return ["" if math.isnan(value) else name_of(value) for value in column.tolist()]
    return list(column)


def _end(started: list["subprocess.Popen[bytes]"]) -> None:
    """Every process, and soon: told again to stop, this one would leave some behind."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    for process in started:
        process.terminate()
    ends = time.monotonic() + LONGEST_END
    for process in started:
        try:
            process.wait(max(0.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _command(*arguments: object) -> list[str]:
    return [sys.executable, "-P", "-m", "perinvfl", "federation", *map(str, arguments)]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _wait_for(path: Path, process: "subprocess.Popen[bytes]") -> None:
    while not path.exists():
        if process.poll() is not None:
            raise UserError("The server did not start.")
        time.sleep(0.1)
