"""Own data: what is read, what is refused, and that held-out rows influence nothing."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from commands import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file

from perinvfl.cli import call
from perinvfl.core.config import build
from perinvfl.data.federation import Federation
from perinvfl.data.own.files import SAME, FileSettings, array_rows, file_federation
from perinvfl.data.own.rows import BadData, in_order, number_of
from perinvfl.data.own.survey import survey
from perinvfl.errors import UserError
from perinvfl.runs.experiment import build_experiment

HEADER = ["site", "year", "a", "b", "y"]
Row = list[Any]


def rows_of(sites: int = 3, years: int = 3, each: int = 10, label: Any = lambda i: i % 2) -> list[Row]:
    draw = torch.Generator().manual_seed(0)
    numbers = torch.randn(sites * years * each, 2, generator=draw, dtype=torch.float64).tolist()
    made = []
    for i, (a, b) in enumerate(numbers):
        made.append([f"s{i % sites}", 2020 + i // sites % years, a * 3 + 7, b, label(i)])
    return made


def write(path: Path, rows: list[Row], header: list[str] = HEADER, delimiter: str = ",") -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows([header, *rows])
    return path


def settings_for(path: Path, **more: Any) -> FileSettings:
    named = {"label": "y", "client": "site", "context": "year"} if path.suffix not in (".npz", ".safetensors") else {}
    return build(FileSettings, {"path": str(path), **named, **more}, "data")


def read(path: Path, seed: int = 0, **more: Any) -> Federation:
    return file_federation(settings_for(path, **more), seed)


def refused(path: Path, **more: Any) -> str:
    with pytest.raises(UserError) as caught:
        read(path, **more)
    return str(caught.value)


def same(one: Federation, other: Federation) -> None:
    for name in ("train", "validation"):
        for left, right in zip(getattr(one, name), getattr(other, name), strict=True):
            assert torch.equal(left, right)
    assert one.tests.keys() == other.tests.keys()
    for case in one.tests:
        assert all(torch.equal(a, b) for a, b in zip(one.tests[case], other.tests[case], strict=True))


def test_every_form_of_file_gives_the_same_federation(tmp_path: Path) -> None:
    rows = rows_of()
    table = write(tmp_path / "t.csv", rows)
    columns = dict(zip(HEADER, zip(*rows, strict=True), strict=True))
    pq.write_table(pa.table({name: list(values) for name, values in columns.items()}), tmp_path / "t.parquet")
    x = np.array([row[2:4] for row in rows])
    site, year, y = ([row[i] for row in rows] for i in (0, 1, 4))
    np.savez(tmp_path / "t.npz", x=x, y=np.array(y), client=np.array(site), context=np.array(year), features=["a", "b"])
    tensors = {
        "x": torch.tensor(x),
        "y": torch.tensor(y),
        "client": torch.tensor([int(name[1:]) for name in site]),
        "context": torch.tensor(year),
    }
    save_file(tensors, tmp_path / "t.safetensors")
    first = read(table, test_contexts=["2022"])
    for name in ("t.parquet", "t.npz"):
        other = read(tmp_path / name, test_contexts=["2022"])
        same(first, other)
        assert other.schema == first.schema
    plain = read(tmp_path / "t.safetensors", test_contexts=[2022])
    assert plain.schema.clients == ("0", "1", "2") and plain.schema.features == ("x0", "x1")
    unscaled = [
        read(path, test_contexts=[2022], standardise=False).tests["2022"]
        for path in (table, tmp_path / "t.safetensors")
    ]
    assert all(torch.equal(a, b) for a, b in zip(*unscaled, strict=True))  # another name, another draw of the rest


def test_separators_byte_order_marks_and_true_and_false(tmp_path: Path) -> None:
    rows = [[*row[:3], row[3] > 0, row[4]] for row in rows_of()]
    plain = read(write(tmp_path / "a.csv", rows))
    same(plain, read(write(tmp_path / "b.csv", rows, delimiter=";")))
    same(plain, read(write(tmp_path / "c.tsv", rows, delimiter="\t")))
    marked = tmp_path / "d.csv"
    marked.write_bytes(b"\xef\xbb\xbf" + (tmp_path / "a.csv").read_bytes().replace(b"\n", b"\r\n") + b"\r\n")
    same(plain, read(marked))


def test_what_a_federation_holds(tmp_path: Path) -> None:
    rows = rows_of(each=10)
    federation = read(write(tmp_path / "t.csv", rows), test_contexts=["2022"], test_share=0.2, holdout=0.1)
    assert (federation.task, federation.outputs, federation.contexts, federation.clients) == ("binary", 1, 2, 3)
    assert federation.sizes.tolist() == [14, 14, 14]  # of 20 in two contexts, 4 test and 2 validate
    assert federation.spectrum == ("2022",) and list(federation.tests) == ["2022", SAME]
    assert federation.tests["2022"].y.shape == (3, 10) and federation.tests[SAME].y.shape == (3, 4)
    assert federation.validation is not None and federation.validation.y.shape == (3, 2)
    assert federation.schema.clients == ("s0", "s1", "s2") and federation.schema.contexts == ("2020", "2021")
    assert federation.schema.classes == ("0", "1") and federation.schema.features == ("a", "b")
    x = federation.train.x.flatten(0, 1)
    assert torch.allclose(x.mean(0), torch.zeros(2), atol=1e-6)
    assert torch.allclose(x.std(0, correction=0), torch.ones(2), atol=1e-5)
    # Every row is used once, and its own numbers come back from what was taken off.
    mean, scale = torch.tensor(federation.schema.mean), torch.tensor(federation.schema.scale)
    parts = [federation.train, federation.validation, *federation.tests.values()]
    back = torch.cat([(part.x[part.context >= 0] * scale + mean) for part in parts])
    known = torch.tensor([row[2:4] for row in rows], dtype=torch.float32)
    assert torch.allclose(back.sort(0).values, known.sort(0).values, atol=1e-4)


@given(held_rows=st.lists(st.integers(0, 29), min_size=1, max_size=5), factor=st.floats(-1e3, 1e3))
@settings(max_examples=15, deadline=None)
def test_held_out_contexts_influence_nothing(
    tmp_path_factory: pytest.TempPathFactory, held_rows: list[int], factor: float
) -> None:
    folder = tmp_path_factory.mktemp("held")
    rows = rows_of()
    before = read(write(folder / "a.csv", rows), test_contexts=["2022"])
    held = [i for i, row in enumerate(rows) if row[1] == 2022]
    for i in held_rows:
        rows[held[i]] = [*rows[held[i]][:2], factor, factor, 1 - rows[held[i]][4]]
    after = read(write(folder / "b.csv", rows), test_contexts=["2022"])
    assert all(torch.equal(a, b) for a, b in zip(before.train, after.train, strict=True))
    assert before.schema == after.schema


def test_rows_kept_for_tests_and_validation_do_not_enter_the_statistics(tmp_path: Path) -> None:
    rows = rows_of()
    path = write(tmp_path / "t.csv", rows)
    raw = read(path, standardise=False)
    real = raw.train.context >= 0
    scaled = read(path)
    assert torch.allclose(torch.tensor(scaled.schema.mean), raw.train.x[real].mean(0), atol=1e-5)
    assert torch.allclose(torch.tensor(scaled.schema.scale), raw.train.x[real].std(0, correction=0), atol=1e-5)


def test_the_seed_draws_what_is_kept_and_another_client_changes_nothing(tmp_path: Path) -> None:
    rows = rows_of()
    path = write(tmp_path / "t.csv", rows)
    one, other = read(path, standardise=False), read(path, seed=1, standardise=False)
    assert not torch.equal(one.train.x, other.train.x)
    more = write(tmp_path / "more.csv", [["s00", 2020, 1.0, 2.0, 0]] * 4 + rows)
    grown = read(more, standardise=False)
    assert grown.schema.clients == ("s0", "s00", "s1", "s2")
    assert torch.equal(grown.train.x[[0, 2, 3]], one.train.x)


def test_what_labels_are_taken_to_be(tmp_path: Path) -> None:
    def task(label: Any, **more: Any) -> tuple[str, int]:
        federation = read(write(tmp_path / "t.csv", rows_of(label=label)), **more)
        return federation.task, federation.outputs

    assert task(lambda i: i % 2) == ("binary", 1)
    assert task(lambda i: ["no", "yes"][i % 2]) == ("binary", 1)
    assert task(lambda i: i % 3) == ("multiclass", 3)
    assert task(lambda i: i % 3, task="regression") == ("regression", 1)
    assert task(lambda i: i) == ("regression", 1)  # more whole numbers than anyone has classes
    assert task(lambda i: i % 30, task="multiclass") == ("multiclass", 30)
    assert task(lambda i: i / 7) == ("regression", 1)
    assert task(lambda i: ["1", "2", "many"][i % 3], task="multiclass") == ("multiclass", 3)
    assert task(lambda i: i % 2, classes=[0, 1, 2], task="multiclass") == ("multiclass", 3)
    federation = read(write(tmp_path / "t.csv", rows_of(label=lambda i: ["yes", "no"][i % 2])), classes=["yes", "no"])
    assert federation.schema.classes == ("yes", "no")


def test_a_regression_is_standardised_and_says_how(tmp_path: Path) -> None:
    federation = read(write(tmp_path / "t.csv", rows_of(label=lambda i: 1000.5 + i)), test_contexts=[2022])
    y = federation.train.y[federation.train.context >= 0]
    assert y.mean().item() == pytest.approx(0, abs=1e-5) and y.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    back = federation.schema.label_mean + federation.schema.label_scale * y
    assert 1000 < back.min() < back.max() < 1090.6
    raw = read(tmp_path / "t.csv", test_contexts=[2022], standardise=False)
    assert raw.schema.label_scale == 1 and raw.train.y.max() > 1000


def replaced(line: int, column: int, cell: Any) -> list[Row]:
    """Line 1 is the header."""
    rows = rows_of()
    rows[line - 2] = [cell if place == column else kept for place, kept in enumerate(rows[line - 2])]
    return rows


@pytest.mark.parametrize(
    ("column", "cell", "told"),
    [
        (2, "", 'line 7, column "a": the value is missing'),
        (2, "NA", 'line 7, column "a": "NA" stands for a missing value'),
        (2, "oops", 'line 7, column "a": "oops" is not a number'),
        (3, "1_000", 'line 7, column "b": "1_000" is not a number'),
        (3, "inf", 'line 7, column "b": "inf" is not a finite number'),
        (3, "1e99", 'line 7, column "b": "1e99" is too large'),
        (0, "", 'line 7, column "site": the client is missing'),
        (1, " ", 'line 7, column "year": the context is missing'),
        (4, "", 'line 7, column "y": the label is missing'),
        (4, "perhaps", 'line 7, column "y": "perhaps" stands among labels that are numbers'),
    ],
)
def test_a_bad_cell_is_named(tmp_path: Path, column: int, cell: str, told: str) -> None:
    path = write(tmp_path / "t.csv", replaced(7, column, cell))
    assert told in refused(path)
    found = survey(settings_for(path))
    assert [fault["where"] for fault in found["faults"]] == ["line 7"]
    assert found["rows"] == 90


def test_a_bad_cell_of_other_files_is_named(tmp_path: Path) -> None:
    rows = rows_of()
    columns: dict[str, list[Any]] = {n: list(v) for n, v in zip(HEADER, zip(*rows, strict=True), strict=True)}
    columns["a"][4] = None
    columns["b"][6] = float("nan")
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with pytest.raises(BadData) as caught:
        read(tmp_path / "t.parquet")
    assert list(map(str, caught.value.faults)) == [
        'row 5, column "a": the value is missing',
        'row 7, column "b": nan is not a finite number',
    ]
    x = np.zeros((6, 2, 2))
    x[3, 1, 0] = np.inf
    np.savez(tmp_path / "t.npz", x=x, y=np.arange(6) % 2)
    assert 'row 4, column "x[1, 0]": inf is not a finite number' in refused(tmp_path / "t.npz")
    np.savez(tmp_path / "short.npz", x=np.zeros((6, 2)), y=np.arange(5) % 2)
    assert 'column "y": has 5 entries for the 6 rows of x' in refused(tmp_path / "short.npz")
    np.savez(tmp_path / "odd.npz", x=np.zeros((6, 2)), label=np.arange(6))
    assert 'there is no array "y"' in refused(tmp_path / "odd.npz")


def test_text_lines_headers_and_files_that_cannot_be_meant(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"

    def told(rows: list[Row], header: list[str] = HEADER, **more: Any) -> str:
        return refused(write(path, rows, header), **more)

    rows = rows_of()
    text = [[*row[:2], "Oslo", *row[3:]] for row in rows]
    assert 'column "a": holds text ("Oslo" in line 2)' in told(text)
    assert read(path, ignore=["a"]).schema.features == ("b",)
    assert read(path, features=["b"]).schema.features == ("b",)
    assert 'column "a": stands twice, in places 3 and 4' in told(rows, ["site", "year", "a", "a", "y"])
    assert "column 4 has no name" in told(rows, ["site", "year", "a", "", "y"])
    assert 'there is no column "client"' in told(rows, client="client")
    assert 'client = "" if there is none' in told(rows, client="client")
    assert "did you mean site" in told(rows, client="sit")
    assert "line 4: has 6 cells where the first line names 5 columns" in told([*rows[:2], [*rows[2], 1], *rows[3:]])
    assert 'column "site": cannot be two of label, client and context' in told(rows, context="site")
    assert 'ignore names "c", which is no column' in told(rows, ignore=["c"])
    assert "no column is left" in told(rows, ignore=["a", "b"])
    assert "no row below" in told([])
    assert 'holds only one class ("1")' in told([[*row[:4], 1] for row in rows])
    assert "a binary task needs two classes" in told([[*row[:4], i % 3] for i, row in enumerate(rows)], task="binary")
    assert '"2" is not one of the classes (0, 1)' in told(
        [[*row[:4], i % 3] for i, row in enumerate(rows)], classes=[0, 1]
    )
    path.write_text("")
    assert "the file is empty" in refused(path)
    path.write_bytes(b"site,a\n\xff\xfe\n")
    assert "is not UTF-8 text" in refused(path)
    path.write_text('site,year,a,b,y\ns0,2020,"1,2,3\n')
    assert "is not CSV" in refused(path)
    (tmp_path / "t.xlsx").write_text("")
    assert "of no known kind" in refused(tmp_path / "t.xlsx")
    for name in ("t.parquet", "t.npz", "t.safetensors"):
        (tmp_path / name).write_bytes(b"nonsense")
        assert "is not a" in refused(tmp_path / name)
    assert "does not exist" in refused(tmp_path / "none.csv")
    with pytest.raises(UserError, match=r"data\.path is missing"):
        build(FileSettings, {}, "data")


def test_divisions_that_cannot_work(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", rows_of())
    assert 'test_contexts names "2030", no context of these data; did you mean 2020?' in refused(
        path, test_contexts=[2030]
    )
    assert "no context may be named twice" in refused(path, test_contexts=[2020, 2020])
    assert "leave nothing to train on" in refused(path, test_share=0.5, holdout=0.5)
    assert 'Client "s0" has rows in 2020, 2021, 2022 alone' in refused(path, test_contexts=[2020, 2021, 2022])
    lonely = write(tmp_path / "lonely.csv", [*rows_of(), *[["new", 2022, 1.0, 1.0, i % 2] for i in range(4)]])
    assert 'data.exclude_clients = ["new"]' in refused(lonely, test_contexts=[2022])
    assert read(lonely, test_contexts=[2022], exclude_clients=["new"]).clients == 3
    assert "no client; did you mean new?" in refused(lonely, exclude_clients=["neww"])
    alike = write(tmp_path / "alike.csv", [[*row[:4], int(row[1] == 2022)] for row in rows_of()])
    assert "All training rows have the same label" in refused(alike, test_contexts=[2022])


@pytest.mark.parametrize("quantity", [False, True])
def test_a_site_with_its_rows_alone_has_what_it_has_in_the_simulation(tmp_path: Path, quantity: bool) -> None:
    rows = rows_of(label=lambda i: 0.5 + i if quantity else "no" if i % 2 else "yes")
    path = write(tmp_path / "all.csv", rows)
    whole = read(path, test_contexts=[2022])
    shared = survey(settings_for(path, test_contexts=[2022]))["statistics"]
    assert ("label_mean" in shared) == quantity
    for number, name in enumerate(whole.schema.clients):
        mine = write(tmp_path / f"{name}.csv", [row for row in rows if row[0] == name])
        classes = {} if quantity else {"classes": ["no", "yes"]}
        alone = read(mine, test_contexts=[2022], **shared, **classes)
        for split in ("2022", SAME):
            for one, other in zip(alone.tests[split], whole.tests[split], strict=True):
                assert torch.equal(one[0], other[number])
        assert all(torch.equal(a[0], b[number]) for a, b in zip(alone.train, whole.train, strict=True))
    assert "entries for 2 features" in refused(path, mean=[1.0], scale=[1.0])
    assert "both of them" in refused(path, mean=[1.0])


def test_no_client_and_no_context_is_said_on_purpose(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [row[2:] for row in rows_of()], HEADER[2:])
    federation = read(path, client="", context="")
    assert federation.schema.clients == federation.schema.contexts == ("all",)
    assert federation.spectrum == (SAME,)  # nothing is held out, so the only test is in distribution


def test_photographs(tmp_path: Path) -> None:
    for client in ("north", "south"):
        for context in ("day", "night"):
            for number, label in enumerate(("cat", "dog")):
                folder = tmp_path / "photos" / client / context / label
                folder.mkdir(parents=True)
                for i in range(3):
                    shade = (200 * number, 10 * i, 0)
                    Image.new("RGB", (20 + i, 12), shade).save(folder / f"{i}.png")
    (tmp_path / "photos/north/.DS_Store").write_text("not data")
    federation = read(tmp_path / "photos", test_contexts=["night"], image_size=8)
    assert federation.shape == (3, 8, 8) and federation.schema.classes == ("cat", "dog")
    assert federation.schema.clients == ("north", "south") and federation.schema.mean == ()
    night = federation.tests["night"]
    assert torch.allclose(night.x[:, :, 0, 4, 4], night.y * 200 / 255)
    assert read(tmp_path / "photos", image_size=8, colour=False).shape == (1, 8, 8)
    (tmp_path / "photos/north/day/cat/9.png").write_text("no photograph")
    (tmp_path / "photos/stray.png").write_text("")
    (tmp_path / "photos/north/day/cat/notes.txt").write_text("")
    found = survey(settings_for(tmp_path / "photos"))
    assert sorted(fault["where"] for fault in found["faults"]) == [
        "north/day/cat/9.png",
        "north/day/cat/notes.txt",
        "stray.png",
    ]


def test_a_changed_file_is_another_run_and_a_moved_one_is_not(tmp_path: Path) -> None:
    def trial(path: Path, **more: Any) -> Any:
        data = {"benchmark": "file", "path": str(path), "label": "y", "client": "site", "context": "year", **more}
        return build_experiment({"data": data, "algorithm": [{"name": "fedavg"}]}).trials[0]

    path = write(tmp_path / "t.csv", rows_of())
    first = trial(path)
    assert first.asked()["data"]["checksum"]
    moved = write(tmp_path / "elsewhere.csv", rows_of())
    assert trial(moved).id == first.id
    write(path, replaced(7, 2, 1.25))
    assert trial(path).id != first.id
    with pytest.raises(UserError, match="has changed since it was used"):
        trial(path, checksum=first.asked()["data"]["checksum"])
    assert trial(path, standardise=False).id != trial(path).id


def test_clients_without_a_held_out_row_have_no_score(tmp_path: Path) -> None:
    rows = [row for row in rows_of() if not (row[0] == "s1" and row[1] == 2022)]
    write(tmp_path / "t.csv", rows)
    (tmp_path / "t.toml").write_text(
        '[data]\nbenchmark = "file"\npath = "t.csv"\nlabel = "y"\nclient = "site"\ncontext = "year"\n'
        'test_contexts = [2022]\n[model]\nhidden = [4]\n[training]\nrounds = 2\n[[algorithm]]\nname = "ditto"\n'
    )
    assert call(["run", str(tmp_path / "t.toml"), "--out", str(tmp_path / "runs")]) == 0
    events = [json.loads(line) for line in next(tmp_path.rglob("events.jsonl")).read_text().splitlines()]
    scores = events[-2]["personal"]["2022"]
    assert scores[1] is None and None not in (scores[0], scores[2])
    assert events[0]["notes"]["constant"]["2022"][1] is None
    notes = survey(settings_for(tmp_path / "t.csv", test_contexts=[2022]))["warnings"]
    assert any('"s1" has no row in the held-out context 2022' in note for note in notes)


def test_check_prints_what_was_understood(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(label=lambda i: int(i % 3 == 0))
    rows = [[*row[:4], int(row[1] == 2020)] if row[0] == "s0" else row for row in rows]  # the year tells the label
    path = write(tmp_path / "t.csv", rows)
    asked = ["data", "check", str(path), "--label", "y", "--client", "site", "--context", "year"]
    assert call([*asked, "--test-context", "2022"]) == 0
    shown = capsys.readouterr().out
    assert "90 rows, 2 features, 3 clients, 3 contexts, binary" in shown and "Nothing is wrong" in shown
    assert call([*asked, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    clients = {client["name"]: client for client in told["clients"]}
    assert clients["s0"]["from_context"] == {"accuracy": 1.0, "constant": pytest.approx(2 / 3)}
    assert clients["s1"]["from_context"]["accuracy"] == clients["s1"]["from_context"]["constant"]
    assert clients["s0"]["contexts"] == {"2020": 10, "2021": 10, "2022": 10}
    assert any("no context is held out" in warning for warning in told["warnings"])
    write(path, replaced(7, 2, "oops"))
    assert call([*asked]) == 2
    assert 'wrong: line 7, column "a": "oops" is not a number' in capsys.readouterr().out
    assert call(["data", "check"]) == 2
    assert "Give either" in capsys.readouterr().err
    (tmp_path / "t.toml").write_text(
        '[data]\nbenchmark = "file"\npath = "t.csv"\nlabel = "y"\nclient = "site"\ncontext = ""\n'
    )
    assert call(["data", "check", "--file", str(tmp_path / "t.toml")]) == 2
    assert "line 7" in capsys.readouterr().out
    (tmp_path / "t.toml").write_text('[data]\nbenchmark = "random"\n')
    assert call(["data", "check", "--file", str(tmp_path / "t.toml")]) == 2
    assert "names no data of your own" in capsys.readouterr().err


def test_check_refuses_what_a_run_would_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [["ab"[k % 2], k, client, year] for client in "uv" for year in (2021, 2022) for k in range(8)]
    write(tmp_path / "t.csv", [row for row in rows if row[2:] != ["u", 2021]], ["label", "x", "client", "context"])
    thin = [["ab"[k], k, "u", k] for k in range(2)]
    write(tmp_path / "thin.csv", thin, ["label", "x", "client", "context"])
    for name, more, words in (
        ("t", "test_contexts = [2022]", 'Client "u" has rows in 2022 alone'),
        ("t", "leave_one_context_out = true", 'Client "u" has rows in 2022 alone'),
        ("thin", "", "No row is left to test on"),
    ):
        file = tmp_path / f"{name}.toml"
        file.write_text(
            f'[data]\nbenchmark = "file"\npath = "{name}.csv"\n{more}\n[training]\nrounds = 1\n'
            '[[algorithm]]\nname = "fedavg"\n'
        )
        capsys.readouterr()
        assert call(["data", "check", "--file", str(file)]) == 2
        assert f"wrong: {words}" in capsys.readouterr().out
        assert call(["run", str(file), "--out", str(tmp_path / "runs")]) == 2
        assert words in capsys.readouterr().err


def test_check_finds_the_planted_shortcut(tmp_path: Path) -> None:
    import runpy

    made = runpy.run_path(str(ROOT / "examples/make_sites.py"))
    path = write(tmp_path / "sites.csv", [list(row) for row in made["make_rows"](60, 0)], list(made["HEADER"]))
    told = survey(
        build(FileSettings, {"path": str(path), "label": "ill", "client": "hospital", "context": "year"}, "data")
    )
    first, second = told["relations"][:2]
    assert first["column"] == "scanner" and first["change"] > 1 > 2 * second["change"]
    assert first["by_context"]["2021"] > 0.5 > 0 > first["by_context"]["2023"]


def test_check_says_with_which_class_a_column_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [[grade, "ABC".index(grade) + k % 2, "a", k % 2] for grade in "ABC" for k in range(10)]
    path = write(tmp_path / "t.csv", rows, ["label", "x", "client", "context"])
    (relation,) = survey(build(FileSettings, {"path": str(path)}, "data"))["relations"]
    assert relation["class"] in ("A", "C")
    assert call(["data", "check", str(path)]) == 0
    assert "Correlation with the class" in capsys.readouterr().out.replace("\n", " ")


def test_leaving_each_context_out_makes_a_run_each_and_one_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "t.csv", rows_of())
    (tmp_path / "t.toml").write_text(
        'seeds = [0, 1]\n[data]\nbenchmark = "file"\npath = "t.csv"\nlabel = "y"\nclient = "site"\ncontext = "year"\n'
        "leave_one_context_out = true\n[model]\nhidden = [4]\n[training]\nrounds = 2\n"
        '[[algorithm]]\nname = "ditto"\n[[algorithm]]\nname = "fedavg"\n'
    )
    assert call(["run", str(tmp_path / "t.toml"), "--out", str(tmp_path / "runs")]) == 0
    assert len(list((tmp_path / "runs/t").iterdir())) == 12
    capsys.readouterr()
    assert call(["table", str(tmp_path / "runs/t"), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in told["rows"]] == ["Constant", "Ditto", "FedAvg"] and told["seeds"] == 2
    assert {"2020", "2021", "2022", SAME} == set(told["rows"][1]["cases"])
    # Each column is from the run that held its context out.
    scores = []
    for events in sorted((tmp_path / "runs/t").glob("ditto-without-2021-*/events.jsonl")):
        last = [json.loads(line) for line in events.read_text().splitlines()][-2]
        assert set(last["personal"]) == {"2021", SAME, "validation"}
        scores.append(100 * sum(last["personal"]["2021"]) / 3)
    assert told["rows"][1]["cases"]["2021"]["mean"] == pytest.approx(sum(scores) / 2)


def test_arrays_lists_and_frames() -> None:
    rows = array_rows([[1, 2], [3, 4], [5, 6]], ["a", "b", "a"], client=[1, 1, 2.0])
    assert rows.clients == ("1", "2") and rows.classes == ("a", "b") and rows.features == ("x0", "x1")
    with pytest.raises(BadData, match="must be \\[rows"):
        array_rows([1, 2, 3], [0, 1, 0])
    with pytest.raises(BadData, match="not an array of numbers"):
        array_rows([["a", "b"]], [0])
    with pytest.raises(BadData, match="one entry a row"):
        array_rows([[1.0], [2.0]], [[0, 1], [1, 0]])


@pytest.mark.parametrize(("text", "number"), [("1", 1.0), (" 2.5 ", 2.5), ("-1e3", -1e3), ("True", 1.0), ("x", None)])
def test_numbers(text: str, number: float | None) -> None:
    assert number_of(text) == number


def test_order_of_names() -> None:
    assert in_order(["10", "9", "2", "10"]) == ("2", "9", "10")
    assert in_order(["b", "10", "a"]) == ("10", "a", "b")
