"""A search on a real cluster of a head and two nodes: the driver is killed, then a node, and the records are those of
one machine."""

import importlib.util
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perinvfl.runs.records import ARRIVING, find_runs
from tests.commands import ROOT, called, command, environment, free_port, untimed

TASKS = 8
PATIENCE = 180.0  # seconds
FILE = """
name = "search"
[data]
benchmark = "file"
path = "sites.csv"
label = "ill"
client = "hospital"
context = "year"
test_contexts = ["2023"]
[model]
hidden = [8]
[training]
rounds = 300
evaluate_every = 100
[[algorithm]]
name = "fedavg"
[[algorithm]]
name = "mine:Mine"
"""
OWN = """
import time
from dataclasses import dataclass

from beside import HOLD, TITLE
from perinvfl.algorithms import FedAvg


@dataclass(frozen=True)
class Mine(FedAvg):
    title = TITLE

    def broadcast(self, server, clients):
        while HOLD.exists():  # a node that is at work when it is killed, however slow or fast the machine is
            time.sleep(0.05)
        return super().broadcast(server, clients)
"""
BESIDE = """
from pathlib import Path

HOLD, TITLE = Path({hold!r}), "Mine"
"""


class Cluster:
    """A head and two nodes, in processes of their own."""

    def __init__(self) -> None:
        port = free_port()
        self.from_outside = f"ray://127.0.0.1:{port}"
        line = [sys.executable, str(Path(__file__).with_name("nodes.py")), "2", str(port)]
        self.process = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.asked, self.told = self.process.stdin, self.process.stdout
        self.address = self.told.readline().strip()
        assert self.address, self.process.communicate()[1]

    def kill(self, node: int) -> None:
        self.asked.write(f"{node}\n")
        self.asked.flush()
        assert self.told.readline() == "killed\n"

    def command(self, *arguments: object, on: str = "ray") -> "subprocess.Popen[str]":
        variables = {**environment(), "RAY_ADDRESS": self.address if on == "ray" else ""}
        line = command(*arguments, "--on", on)
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=variables)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.process.communicate(timeout=60)
    assert made.process.returncode == 0


@dataclass(frozen=True)
class Searched:
    folder: Path
    killed: str  # what the killed driver said
    said: list[dict[str, Any]]  # what the second one said, line by line


def lines_until(process: "subprocess.Popen[str]", *words: str) -> str:
    """What a process prints up to a line with all of these words; a process that never says them is ended."""
    assert process.stdout is not None
    said = ""
    too_late = threading.Timer(PATIENCE, process.kill)
    too_late.start()
    try:
        for line in process.stdout:
            said += line
            if all(word in line for word in words):
                return said
    finally:
        too_late.cancel()
    raise AssertionError(f"it ended without {words}:\n{said}")


@pytest.fixture(scope="module")
def searched(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Searched:
    folder = tmp_path_factory.mktemp("searched")
    subprocess.run([sys.executable, ROOT / "examples/make_sites.py", folder / "sites.csv"], check=True)
    hold = folder / "hold"
    for name, text in {"search.toml": FILE, "mine.py": OWN, "beside.py": BESIDE.format(hold=str(hold))}.items():
        (folder / name).write_text(text)
    asked = "sweep", folder / "search.toml", "--trials", TASKS // 2
    alone = called(*asked, "--quiet", "--out", folder / "alone")
    assert alone.returncode == 0, alone.stderr

    first = cluster.command(*asked, "--out", folder / "many")
    killed = lines_until(first, "2 of 8 tasks done")
    first.send_signal(signal.SIGKILL)
    killed += first.communicate(timeout=60)[0]

    hold.touch()
    second = cluster.command(*asked, "--json", "--out", folder / "many")
    said = lines_until(second, '"event":"tasks"')
    (folder / "sites.csv").rename(folder / "elsewhere.csv")  # the nodes have no such file
    (folder / "beside.py").rename(folder / "elsewhere.py")
    for _node in range(2):
        said += lines_until(second, '"event":"start"', '"label":"Mine')
    cluster.kill(0)
    hold.unlink()
    said += second.communicate(timeout=120)[0]
    assert second.returncode == 0, said
    return Searched(folder, killed, [json.loads(line) for line in said.splitlines()])


def test_records_are_those_of_one_machine(searched: Searched) -> None:
    alone, many = searched.folder / "alone/search-sweep", searched.folder / "many/search-sweep"
    names = [path.relative_to(alone) for path in sorted(alone.rglob("events.jsonl"))]
    assert len(names) == TASKS == len(find_runs(many))
    for name in names:
        assert untimed(alone / name) == untimed(many / name)
        for file in ("predictions.json.gz", "finished.json", "checkpoint.pt"):
            assert (many / name).with_name(file).exists() == (alone / name).with_name(file).exists()
    assert (many / "best.toml").read_text() == (alone / "best.toml").read_text()
    assert not (many / ARRIVING).exists()


def test_what_a_killed_driver_had_gathered_is_not_made_again(searched: Searched) -> None:
    gathered = searched.killed.count("done in")
    assert gathered >= 2
    assert sum(line["event"] == "skipped" for line in searched.said) >= gathered


def test_a_lost_node_is_one_sentence_and_its_task_begins_again(searched: Searched) -> None:
    told = [line["words"] for line in searched.said if line["event"] == "remark" and "lost" in line["words"]]
    assert len(told) == 1 and told[0].endswith("it begins again on another")
    begun = [line["run"] for line in searched.said if line["event"] == "start"]
    assert len(begun) == len(set(begun)) + 1


def test_progress_is_told_over_all_tasks(searched: Searched) -> None:
    counts = [line for line in searched.said if line["event"] == "tasks"]
    left = TASKS - sum(line["event"] == "skipped" for line in searched.said)
    assert counts[0] == {"event": "tasks", "done": 0, "at_work": 0, "waiting": left, "nodes": 2}
    nodes = counts[-1]["nodes"]
    assert counts[-1] == {"event": "tasks", "done": left, "at_work": 0, "waiting": 0, "nodes": nodes}
    assert nodes in (1, 2)  # tasks may be done before Ray learns that a node is lost
    assert "2 of 8 tasks done, " in searched.killed


def test_optuna_searches_from_outside_on_the_nodes_that_are_left(searched: Searched, cluster: Cluster) -> None:
    for name in ("sites.csv", "beside.py"):
        (searched.folder / f"elsewhere{Path(name).suffix}").rename(searched.folder / name)
    asked = ["sweep", str(searched.folder / "search.toml"), "--trials", "3", "--sampler", "optuna", "--quiet"]
    asked += ["--set", "training.rounds=4", "--set", "seeds=[0, 1]", "--set", "training.evaluate_every=2"]
    process = cluster.command(*asked, "--out", searched.folder / "many", on=cluster.from_outside)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 0 and not said, said
    assert called(*asked, "--out", searched.folder / "alone").returncode == 0
    alone, many = searched.folder / "alone/search-optuna", searched.folder / "many/search-optuna"
    names = {path.relative_to(alone) for path in alone.rglob("events.jsonl")}
    assert len(names) == 2 * 3 * 2  # methods, settings, seeds; there is one node, and so the same order
    assert names == {path.relative_to(many) for path in many.rglob("events.jsonl")}
    assert all(untimed(alone / name) == untimed(many / name) for name in names)


def test_ray_is_imported_only_when_it_is_asked_for() -> None:
    assert importlib.util.find_spec("ray") is not None
    code = "import sys, perinvfl.cluster.dispatcher, perinvfl.cli.run; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
