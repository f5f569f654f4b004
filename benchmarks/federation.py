"""What a round across processes costs: an empty Flower app beside perinvfl, the same model, the same sites, one run.

Four sites and a server on this machine; the paper's network, 318 000 numbers. Three of them, one after another:

- Flower as it comes, and an app that does nothing: the server sends the model, a site sends it back.
- `perinvfl federation`, and sites that do nothing: how much is the transport.
- `perinvfl federation` with PerInvFL on next to no data: the checks, the states on disk and the checkpoint come on top.

Seconds are those of a round, CPU seconds those of all processes of one side in a round; the first round is left out.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

SITES = ("a", "b", "c", "d")
ROUNDS = 6
BIN = Path(sys.executable).parent
LIMIT = 1.1  # ours over the empty app

APP = """
import json, sys, time
import numpy
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.train()
def train(message, context):
    return Message(RecordDict({"update": message.content["model"]}), reply_to=message)

@server.main()
def main(grid, context):
    shapes = [(400, 392), (400,), (400, 400), (400,), (1, 400), (1,)]
    model = [numpy.zeros(shape, dtype=numpy.float32) for shape in shapes]
    nodes = []
    while len(nodes) < SITES:
        nodes = list(grid.get_node_ids())
        time.sleep(0.5)
    for number in range(ROUNDS):
        began = time.perf_counter()
        content = RecordDict({"model": ArrayRecord(model)})
        replies = list(grid.send_and_receive([Message(content, node, "train") for node in nodes]))
        assert len(replies) == SITES and not any(reply.has_error() for reply in replies)
        with open(LOG, "a") as file:
            file.write(json.dumps(time.perf_counter() - began) + "\\n")
"""

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "empty"
version = "0.1.0"
license = "MIT"
dependencies = []
[tool.flwr.app]
publisher = "nobody"
[tool.flwr.app.components]
serverapp = "empty:server"
clientapp = "empty:client"
"""

EXPERIMENT = f"""
name = "cost"
[data]
benchmark = "random"
clients = {len(SITES)}
shape = [392]
samples = 8
[model]
hidden = [390, 390]
[training]
rounds = {ROUNDS}
batch_size = 4
evaluate_every = 1000
[[algorithm]]
name = "perinvfl"
"""


@dataclass(frozen=True)
class Cost:
    seconds: float
    server: float  # CPU seconds
    site: float


def environment(root: Path) -> dict[str, str]:
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **quiet, "FLWR_HOME": str(root / "home"), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


@contextmanager
def process(root: Path, *line: object) -> Iterator[int]:
    with open(root / "processes.log", "a") as log:
        started = subprocess.Popen([*map(str, line)], stdout=log, stderr=log, env=environment(root), cwd=root)
    try:
        yield started.pid
    finally:
        started.terminate()
        started.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def cpu_seconds(roots: list[int]) -> float:
    """Of these processes and all that they started, those that have ended included."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    total = 0
    for pid in ticks:
        above: int | None = pid
        while above is not None and above not in roots:
            above = parents.get(above)
        total += ticks[pid] if above is not None else 0
    return total / os.sysconf("SC_CLK_TCK")


def measure(log: Path, server: list[int], sites: list[int], alive: Callable[[], bool]) -> Cost:
    """Wait for the rounds to be written down, one line each; the first is for warming up."""
    first: tuple[float, float] | None = None
    while True:
        lines = log.read_text().splitlines() if log.exists() else []
        if lines and first is None:
            first = cpu_seconds(server), cpu_seconds(sites)
        if len(lines) >= ROUNDS and first is not None:
            last = cpu_seconds(server), cpu_seconds(sites)
            break
        if not alive():
            sys.exit("A process ended before the last round.")
        time.sleep(0.02)
    rounds = ROUNDS - 1
    return Cost(
        statistics.median(json.loads(line) for line in lines[1:]),
        (last[0] - first[0]) / rounds,
        (last[1] - first[1]) / rounds / len(SITES),
    )


def flower_as_it_comes() -> Cost:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        (root / "app").mkdir()
        (root / "home").mkdir()
        log, port = root / "rounds", free_port()
        constants = f"SITES, ROUNDS, LOG = {len(SITES)}, {ROUNDS}, {str(log)!r}\n"
        (root / "app" / "empty.py").write_text(constants + APP)
        (root / "app" / "pyproject.toml").write_text(PYPROJECT)
        here = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        (root / "home" / "config.toml").write_text(here)
        link = ("--insecure", "--port", port, "--disable-runtime-dependency-installation")
        server = stack.enter_context(process(root, BIN / "flower-superlink", *link))
        wait_for_port(port)
        node = (BIN / "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--port")
        sites = [stack.enter_context(process(root, *node, free_port())) for _ in SITES]
        line = [str(BIN / "flwr"), "run", str(root / "app"), "here"]
        subprocess.run(line, check=True, env=environment(root), cwd=root, stdout=subprocess.DEVNULL)
        return measure(log, [server], sites, lambda: True)


def perinvfl(empty: bool) -> Cost:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        fed, log = root / "fed", root / "rounds"
        command = (sys.executable, "-m", "perinvfl", "federation")
        init = (*command, "init", fed, "--sites", ",".join(SITES), "--host", "localhost", "--port", free_port())
        subprocess.run([*map(str, init)], check=True, env=environment(root), stdout=subprocess.DEVNULL)
        (root / "cost.toml").write_text(EXPERIMENT)
        link = stack.enter_context(process(root, *command, "up", fed, "--bind", "127.0.0.1"))
        while not (fed / "server" / "control.key").exists():
            time.sleep(0.1)
        here = (sys.executable, Path(__file__).resolve())
        join = (*here, "site") if empty else (*command, "join")
        sites = [stack.enter_context(process(root, *join, fed / f"site-{site}")) for site in SITES]
        kind = "empty" if empty else "full"
        run = stack.enter_context(process(root, *here, kind, fed, root / "cost.toml", log))
        return measure(log, [link, run], sites, lambda: Path(f"/proc/{run}").exists())


def wait_for_port(port: int) -> None:
    while True:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)


# Processes of their own ----------------------------------------------------------------------------------------------


def empty_site(folder: Path) -> None:
    from perinvfl.flower import layout, site_process
    from perinvfl.flower.adapter.messages import Context, Message, RecordDict

    def answer(message: Message, context: Context) -> Message:
        return Message(RecordDict({"update": message.content["model"]}), reply_to=message)

    site_process.Node(layout.open_site(folder), {}, answer, print).serve()


def server(folder: Path, file: Path, log: Path, empty: bool) -> None:
    """A run, with the seconds of each round written down."""
    import torch

    from perinvfl.flower import codec, layout, run_process
    from perinvfl.flower.adapter.messages import RecordDict
    from perinvfl.flower.rounds import Rounds
    from perinvfl.flower.settings import DeploymentSettings
    from perinvfl.flower.transport import GridTransport
    from perinvfl.runs.experiment import read_experiment
    from perinvfl.runs.progress import Exchange, Progress
    from perinvfl.runs.trial import Trial

    def note(seconds: float) -> None:
        with open(log, "a") as written:
            written.write(json.dumps(seconds) + "\n")

    class Noting(Progress):
        def round(
            self, trials: list[Trial], rounds_done: int, risk: float | None, exchange: Exchange | None = None
        ) -> None:
            assert exchange is not None  # across processes there is one
            note(exchange.seconds)

    place = layout.open_server(folder)
    by_key = {place.public_key(site): client for client, site in enumerate(place.sites)}
    with run_process.running(run_process.connect(place)) as grid:

        def whereabouts() -> dict[int, int]:
            return {by_key[node.public_key]: node.node_id for node in grid.get_nodes()}

        post = GridTransport(grid, whereabouts, DeploymentSettings().poll)
        if not empty:
            (trial,) = read_experiment(file).trials
            settings = DeploymentSettings(evaluate=False)
            Rounds(trial, settings, list(place.sites), post, folder / "runs", Noting()).run(resume=False)
            return
        model = {"0": torch.zeros(400 * 392 + 400 * 400 + 3 * 400 + 1)}
        while len(post.online()) < len(SITES):
            time.sleep(0.2)
        for number in range(ROUNDS):
            began = time.perf_counter()
            post.online()
            sent = codec.encode_params(model)
            questions = {client: RecordDict({"model": sent}) for client in range(len(SITES))}
            assert len(post.ask("train", questions, number, 60.0)) == len(SITES)
            note(time.perf_counter() - began)


def main() -> None:
    costs = {
        "Flower as it comes, empty app": flower_as_it_comes(),
        "perinvfl federation, empty sites": perinvfl(empty=True),
        "perinvfl federation, PerInvFL": perinvfl(empty=False),
    }
    print(f"{'':34}{'round, s':>10}{'server CPU, s':>16}{'site CPU, s':>14}")
    for name, cost in costs.items():
        print(f"{name:34}{cost.seconds:10.2f}{cost.server:16.3f}{cost.site:14.3f}")
    base, transport, ours = costs.values()
    print(f"\n{'PerInvFL over the empty Flower app':38}{'ratio':>8}{'at most':>10}")
    for what in ("seconds", "server", "site"):
        ratio = getattr(ours, what) / getattr(base, what)
        print(f"{what:38}{ratio:8.2f}{LIMIT:10.2f}{'' if ratio <= LIMIT else '  above'}")
    print("PerInvFL over the same transport, empty")
    for what in ("seconds", "server", "site"):
        print(f"{what:38}{getattr(ours, what) / getattr(transport, what):8.2f}")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "site":
        empty_site(Path(sys.argv[2]))
    elif len(sys.argv) > 1:
        server(Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]), empty=sys.argv[1] == "empty")
    else:
        main()
