"""`python -m perinvfl.reproduce again`: the settings of one table, run with other data or another model."""

import subprocess
import sys
from pathlib import Path

import pytest

from perinvfl.reproduce.again_command import main
from perinvfl.results.search_records import CHOSEN, LEFT_OUT, LONGER, SEARCH, SearchRecords, read_published
from perinvfl.runs.records import Run, read_packed
from tests.commands import call
from tests.reproduce.tables import RESULTS, Made

LARGER = ["--set", "model.hidden=[12]", "--set", "data.test_per_client=50"]


def settings_of(found: SearchRecords) -> dict[tuple[str, int | None], dict[str, Run]]:
    """By method and setting, its fresh runs by seed."""
    runs: dict[tuple[str, int | None], dict[str, Run]] = {}
    for run in found.chosen:
        runs.setdefault((run.method, run.setting), {})[str(run.seed)] = run
    return runs


@pytest.fixture(scope="module")
def larger(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("again") / "larger"
    assert main([str(made.folder / "out"), *LARGER, "--out", str(out)]) == 0
    return out


def test_what_every_rule_chose_is_run_with_the_change_and_nothing_else(made: Made, larger: Path) -> None:
    found, before = read_published(larger), settings_of(made.records)
    wanted = {
        (method, number)
        for rule in made.records.rules()
        for method, choice in made.records.choices(rule).items()
        for number in (choice.setting, choice.last_setting)
    }
    runs = settings_of(found)
    assert set(runs) == wanted
    for key, own in runs.items():
        assert sorted(own) == ["101", "102"]
        for seed, run in own.items():
            asked, old = run.asked, before[key][seed].asked
            assert (asked["model"]["hidden"], asked["data"]["test_per_client"]) == ([12], 50)
            assert asked["model"] | {"hidden": [8]} == old["model"]
            assert asked["data"] | {"test_per_client": 40} == old["data"]
            assert {name: asked[name] for name in asked.keys() - {"model", "data"}} == {
                name: old[name] for name in old.keys() - {"model", "data"}
            }


def test_rules_without_the_new_runs_choose_as_before(made: Made, larger: Path) -> None:
    found = read_published(larger)
    for rule in ("source", "leave-one-client-out"):
        assert found.choices(rule) == made.records.choices(rule)
    for name in (SEARCH, LEFT_OUT):
        old, new = (read_packed(folder / name) for folder in (made.folder / "out", larger))
        assert [run.events for run in old] == [run.events for run in new]
    assert not (larger / LONGER).exists()  # the oracle's longer settings are among the chosen, where it chose one


def test_the_table_says_what_differs(larger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["table", str(larger), "--rule", "source"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(method in shown for method in ("FedAvg", "PerInvFL", "Shape only"))
    assert "Settings were searched with data.test_per_client = 40 and model.hidden = [8]; " in shown
    assert "the runs shown have data.test_per_client = 50 and model.hidden = [12]." in shown
    assert call(["table", str(larger), "--rule", "oracle"]) == 0


def test_no_published_table_has_another_search_without_saying_so() -> None:
    for name in ("rc_mnist", "waterbird", "more/rc_mnist"):
        assert read_published(RESULTS / name).changed == {}


def test_what_is_there_is_not_made_again(made: Made, larger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {path: path.read_bytes() for path in larger.glob("*.xz")}
    runs = len(read_packed(larger / CHOSEN))
    assert main([str(made.folder / "out"), *LARGER, "--out", str(larger)]) == 0
    assert f"{runs} runs, {runs} of them there already" in capsys.readouterr().out
    assert files == {path: path.read_bytes() for path in larger.glob("*.xz")}


def test_row_by_row_is_the_same_as_all_at_once(made: Made, larger: Path, tmp_path: Path) -> None:
    def untimed(folder: Path) -> dict[str, list[dict[str, object]]]:
        runs = read_packed(folder / CHOSEN)
        return {run.id: [event | {"seconds": 0} for event in run.evaluations] for run in runs}

    for method in made.records.methods():
        asked = [str(made.folder / "out"), *LARGER, "--out", str(tmp_path), "--only", method]
        assert main(asked) == 0
        assert method in read_published(tmp_path).methods()
    assert untimed(tmp_path) == untimed(larger)


def test_one_rule_alone(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(made.folder / "out"), *LARGER, "--out", str(tmp_path), "--rule", "source", "--seeds", "7"]) == 0
    choices = made.records.choices("source").items()
    wanted = {(method, number) for method, choice in choices for number in (choice.setting, choice.last_setting)}
    assert {(run.method, run.setting, run.seed) for run in read_packed(tmp_path / CHOSEN)} == {
        (*setting, 7) for setting in wanted
    }
    assert call(["table", str(tmp_path), "--rule", "source"]) == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "--set: name what differs from the table, such as data.size=224."),
        (["--set", "training.rounds=9"], "training.rounds: must stay "),
        (["--set", "model.hiden=3"], "model.hiden"),
        (["--set", "model.hidden=[4]", "--seeds", "a"], "--seeds a: must be whole numbers with commas between them."),
        (
            ["--set", "model.hidden=[4]", "--rule", "luck"],
            '--rule "luck": out has "source", "leave-one-client-out", "oracle".',
        ),
        (
            ["--set", "model.hidden=[4]", "--only", "Fedavg"],
            '--only "Fedavg": out has "FedAvg", "PerInvFL", "Shape only".',
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(
    made: Made, tmp_path: Path, given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(made.folder / "out"), *given, "--out", str(tmp_path / "new")]) == 2
    captured = capsys.readouterr().err
    assert said in captured and captured.count("\n") == 1
    assert not list(tmp_path.glob("new/*.xz"))


def test_the_table_itself_is_not_written_over(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(made.folder / "out")
    assert main([out, *LARGER, "--out", out]) == 2
    assert "is the table itself; name another folder." in capsys.readouterr().err


def test_it_is_a_command(made: Made, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "perinvfl.reproduce",
        "again",
        str(tmp_path),
        *LARGER,
        "--out",
        str(tmp_path / "a"),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and ended.stderr.startswith(f"error: {tmp_path} holds no search.jsonl.xz;")
