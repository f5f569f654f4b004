"""A record that lost something is refused in a sentence that names it, or is harmless: never fewer or other results."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from perinvfl.cli import call
from perinvfl.core import checkpoint
from perinvfl.errors import UserError
from perinvfl.results.render import as_json
from perinvfl.results.table import make_table
from perinvfl.runs.experiment import Experiment, read_experiment
from perinvfl.runs.picking import Pick
from perinvfl.runs.predictions import read_predictions
from perinvfl.runs.progress import Progress
from perinvfl.runs.records import EVENTS, FINISHED, PREDICTIONS, find_runs, pack, read_events, read_packed, read_run
from perinvfl.runs.train import train
from tests.commands import called, tiny_file, untimed
from tests.runs.damage import damages
from tests.stops import StopAt

SECOND = '\n[[algorithm]]\nname = "fedavg"\nlearning_rate = 0.05\n'
ROUNDS, STOPPED = 8, 6


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return read_experiment(tiny_file(tmp_path_factory.mktemp("file"), ROUNDS, "evaluate_every = 2", SECOND))


@pytest.fixture(scope="module")
def finished(experiment: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, so that one can vanish."""
    folder = tmp_path_factory.mktemp("finished") / "tiny"
    train(experiment, folder, Progress())
    return folder


@pytest.fixture(scope="module")
def stopped(experiment: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stopped in a round whose line is not counted on by the last checkpoint."""
    folder = tmp_path_factory.mktemp("stopped") / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("perinvfl.runs.group.CHECKPOINT_SHARE", 0.0)

        class Stop(StopAt):
            def evaluated(self, trials, rounds_done, mean, task):  # type: ignore[no-untyped-def]
                if rounds_done == STOPPED:
                    raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(experiment, folder, Stop(-1))
    return folder


def first_record(folder: Path) -> Path:
    return next(path for path in sorted(folder.rglob(EVENTS)) if "perinvfl" in path.parent.name)


def put(path: Path, content: bytes | None) -> None:
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)


def table(folder: Path) -> object:
    return as_json(make_table(find_runs(folder)))


def names_it(error: pytest.ExceptionInfo[UserError] | UserError, path: Path) -> None:
    words = str(error if isinstance(error, UserError) else error.value)
    assert str(path.parent) in words and "\n" not in words, words
    assert "delete" in words, f"and how to go on: {words}"


def test_a_finished_record_damaged_in_any_way_changes_no_table(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(finished, folder)
    record, whole = first_record(folder), table(finished)
    content, refused, tried = record.read_bytes(), 0, 0
    for what, left in damages(content, seed=1, cuts=60, flips=160):
        put(record, left)
        tried += 1
        try:
            assert table(folder) == whole, what
        except UserError as error:
            refused += 1
            names_it(error, record)
    assert tried >= 250 and refused >= tried - 4, (tried, refused)  # a lost last newline and the like do no harm
    put(record, content)
    assert table(folder) == whole


def test_trials_of_a_search_have_no_checkpoint_and_are_checked_all_the_same(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(finished, folder, ignore=shutil.ignore_patterns("checkpoint.*"))
    record, whole = first_record(folder), table(finished)
    for what, left in damages(record.read_bytes(), seed=2, cuts=20, flips=40):
        put(record, left)
        try:
            assert table(folder) == whole, what
        except UserError as error:
            names_it(error, record)


def test_a_run_under_way_resumes_to_the_same_bits_or_says_what_is_wrong(
    experiment: Experiment, finished: Path, stopped: Path, tmp_path: Path
) -> None:
    content = first_record(stopped).read_bytes()
    assert content.count(b"\n") == 4, "the start, three evaluations; the last is not counted on"
    resumed = refused = 0
    for number, (what, left) in enumerate(damages(content, seed=3, cuts=20, flips=20)):
        folder = tmp_path / str(number)
        shutil.copytree(stopped, folder)
        record = first_record(folder)
        put(record, left)
        try:
            train(experiment, folder, Progress())
        except UserError as error:
            refused += 1
            names_it(error, record)
            assert record.parent.exists() and (left is None or record.read_bytes() == left), "nothing is touched"
        else:
            resumed += 1
            assert_same_run(record, first_record(finished), what)
        shutil.rmtree(folder)
    assert resumed >= 8 and refused >= 40, (resumed, refused)


def assert_same_run(ours: Path, theirs: Path, what: str) -> None:
    assert [drop(event) for event in untimed(ours)] == [drop(event) for event in untimed(theirs)], what
    left, right = (checkpoint.load(path.with_name("checkpoint.pt")) for path in (ours, theirs))
    assert left.keys() == right.keys()
    assert all((left[key] == right[key]).all() for key in left.keys() - {"seconds"}), what


def drop(event: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in event.items() if key != "environment"}


@pytest.mark.parametrize("name", ["checkpoint.pt", FINISHED, PREDICTIONS])
def test_what_lies_beside_a_record_is_damaged(name: str, finished: Path, tmp_path: Path) -> None:
    """A table needs the record alone; whoever needs the other files notices."""
    folder = tmp_path / "tiny"
    shutil.copytree(finished, folder)
    (run,) = Pick(("perinvfl",)).among(find_runs(folder))
    path, whole = run.folder / name, table(finished)
    content = path.read_bytes()
    predicted = read_predictions(run)
    for what, left in damages(content, seed=4, cuts=8, flips=30):
        put(path, left)
        assert table(folder) == whole, what
        if left is None or name == FINISHED:
            continue
        try:
            if name == PREDICTIONS:
                assert read_predictions(run) == predicted, what
            else:
                checkpoint.load(path)
            raise AssertionError(f"{what}: not noticed")
        except UserError as error:
            names_it(error, path)


def test_a_packed_record_is_whole_or_refused(finished: Path, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl.xz"
    runs = find_runs(finished)
    pack(runs, path)
    content, events = path.read_bytes(), [run.events for run in runs]
    for what, left in damages(content, seed=5, cuts=40, flips=200):
        put(path, left)
        try:
            assert left is None or [run.events for run in read_packed(path)] == events, what
        except UserError as error:
            assert str(path) in str(error)


def commands(folder: Path, tmp_path: Path) -> Iterator[list[str]]:
    yield ["table", str(folder)]
    yield ["table", str(folder), "--score", "auroc"]
    yield ["plot", str(folder), "--kind", "learning", "--out", str(tmp_path / "figures")]
    yield ["report", str(folder), "-o", str(tmp_path / "r.html")]


@pytest.mark.parametrize("left", [None, b"", b'{"event":"start","id'], ids=["missing", "empty", "torn"])
def test_commands_name_the_folder_and_end_with_an_error(
    left: bytes | None, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(finished, folder)
    record = first_record(folder)
    put(record, left)
    for arguments in [*commands(folder, tmp_path), ["export", str(record.parent), "-o", str(tmp_path / "m.pt2")]]:
        capsys.readouterr()
        assert call(arguments) == 2, arguments
        printed = capsys.readouterr().err
        assert str(record) in printed and "delete the folder" in printed and printed.count("\n") == 1, arguments
    # Without any other trace it is a run that never began, which its command begins; a table still says so.
    for name in ("checkpoint.pt", FINISHED, PREDICTIONS):
        (record.parent / name).unlink()
    code = call(["table", str(folder)])
    assert code == (0 if left is None else 2)
    assert left is None or "begins that run again" in capsys.readouterr().err


def test_files_of_other_programs_are_no_traces_of_a_run(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(finished, folder)
    (folder / "other").mkdir()
    for name in ("checkpoint.pt", "server.pt", FINISHED, PREDICTIONS):
        (folder / "other" / name).write_bytes(b'{"another": "program"}')
    assert table(folder) == table(finished)


def test_older_records_still_read_and_resume(
    experiment: Experiment, finished: Path, stopped: Path, tmp_path: Path
) -> None:
    """As format 2 had them: lines without checks, checkpoints that count on nothing."""
    for whole in (finished, stopped):
        folder = tmp_path / whole.parent.name
        shutil.copytree(whole, folder, ignore=shutil.ignore_patterns(FINISHED))
        for record in folder.rglob(EVENTS):
            old = read_events(record)
            old[0]["format"] = 2
            record.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in old))
            saved = record.with_name("checkpoint.pt")
            checkpoint.save(saved, checkpoint.load(saved))
        train(experiment, folder, Progress())
        record = first_record(folder)
        run = read_run(record.parent)
        assert run is not None and run.finished and run.format == 2
        assert [event | {"format": 2} for event in untimed(record) if event["event"] == "evaluation"] == [
            event | {"format": 2} for event in untimed(first_record(finished)) if event["event"] == "evaluation"
        ]
        assert '"check"' not in record.read_text(), "a record keeps its format"
        assert (record.parent / FINISHED).exists(), "and is protected from losing its end from now on"
        record.write_bytes(b"".join(record.read_bytes().splitlines(keepends=True)[:-1]))
        with pytest.raises(UserError, match="its end is missing"):
            find_runs(folder)


def test_an_older_record_that_goes_on_has_every_evaluation_that_was_due(
    experiment: Experiment, stopped: Path, tmp_path: Path
) -> None:
    shutil.copytree(stopped, tmp_path / "runs")
    record = first_record(tmp_path / "runs")
    old = read_events(record)
    old[0]["format"] = 2
    lines = [json.dumps(event, separators=(",", ":")) + "\n" for event in old]
    saved = record.with_name("checkpoint.pt")
    checkpoint.save(saved, checkpoint.load(saved))
    record.write_text(lines[0] + lines[2] + lines[3])
    with pytest.raises(UserError, match="the evaluation of round 2 is missing"):
        train(experiment, tmp_path / "runs", Progress())
    assert record.read_text() == lines[0] + lines[2] + lines[3]


def test_left_over_temporary_files_are_removed(experiment: Experiment, stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "runs")
    folder = first_record(tmp_path / "runs").parent
    for name in (f".{EVENTS}.17.tmp", ".checkpoint.pt.17.tmp", f".{PREDICTIONS}.17.tmp"):
        (folder / name).write_bytes(b"half of a file")
    train(experiment, tmp_path / "runs", Progress())
    assert not list(folder.glob(".*")) and read_run(folder) is not None


def test_a_damaged_list_of_a_group_is_one_sentence(tmp_path: Path) -> None:
    file = tiny_file(tmp_path)
    (tmp_path / "runs/tiny-sweep/.together").mkdir(parents=True)
    (tmp_path / "runs/tiny-sweep/.together/0123456789abcdef.json").write_bytes(b'["a", "b"')
    done = called("sweep", file, "--trials", 2, "--out", tmp_path / "runs")
    assert done.returncode == 2 and "0123456789abcdef.json is damaged; delete it" in done.stderr


def test_verify_names_every_damaged_run_and_says_what_is_older(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(finished, folder)
    assert call(["verify", str(folder)]) == 0
    said = capsys.readouterr().out
    assert said.count("whole: ") == 2 and "finished, 6 lines, checkpoint.pt, predictions.json.gz" in said
    pack(find_runs(folder), folder / "runs.jsonl.xz")
    shutil.copytree(first_record(folder).parent, folder / "older")
    (folder / "older" / FINISHED).unlink()
    old = read_events(folder / "older" / EVENTS)
    old[0]["format"] = 2
    (folder / "older" / EVENTS).write_text("".join(json.dumps(event) + "\n" for event in old))
    (folder / "older/checkpoint.pt").unlink()
    assert call(["verify", str(folder)]) == 0
    said = capsys.readouterr().out
    assert (
        said.count("whole: ") == 3 and f"older: {folder / 'older'}: finished, older record, cannot be checked" in said
    )

    one, two = (path for path in sorted(folder.rglob(EVENTS)) if path.parent.name != "older")
    one.write_bytes(one.read_bytes().replace(b'"round":4', b'"round":5'))
    saved = two.with_name("checkpoint.pt")
    saved.write_bytes(saved.read_bytes()[:-1])
    assert call(["verify", str(folder)]) == 2
    printed = capsys.readouterr()
    assert f"damaged: {one.parent}: " in printed.out and f"damaged: {two.parent}: " in printed.out
    assert "line 3 does not match its check" in printed.out and printed.err.startswith("error: 2 of 4 damaged")
    (folder / "older" / PREDICTIONS).unlink()
    assert call(["verify", str(folder / "older")]) == 2
    assert f"{PREDICTIONS} is missing" in capsys.readouterr().out


def test_states_at_rest_that_are_lost_are_noticed(tmp_path: Path) -> None:
    training = 'batch_size = 8\nfraction = 0.67\nexecutor = "loop"\nat_rest = "disk"'
    experiment = read_experiment(tiny_file(tmp_path, ROUNDS, training))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("perinvfl.runs.group.CHECKPOINT_SHARE", 0.0)
        train(experiment, tmp_path / "runs", StopAt(STOPPED))
    rows = sorted((tmp_path / "runs").rglob("*.rows"))[0]
    for left in (None, b"", rows.read_bytes()[:-1]):
        put(rows, left)
        for _ in range(2):  # the first refusal leaves all as it is
            with pytest.raises(UserError, match=r"0\.rows is missing or was cut"):
                train(experiment, tmp_path / "runs", Progress())
