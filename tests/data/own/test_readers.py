"""What is read from each form of file, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from perinvfl.core.config import build
from perinvfl.data.own.files import FileSettings, array_rows
from perinvfl.data.own.rows import BadData
from perinvfl.data.own.survey import survey
from perinvfl.errors import UserError
from tests.data.own.small_table import HEADER, Row, read, refused, replaced, rows_of, same, settings_for, write


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


@pytest.mark.parametrize(
    ("column", "cell", "words"),
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
def test_a_bad_cell_is_named(tmp_path: Path, column: int, cell: str, words: str) -> None:
    path = write(tmp_path / "t.csv", replaced(7, column, cell))
    assert words in refused(path, missing="refuse")
    found = survey(settings_for(path, missing="refuse"))
    assert [fault["where"] for fault in found["faults"]] == ["line 7"]
    assert found["rows"] == 90


def test_a_bad_cell_of_other_files_is_named(tmp_path: Path) -> None:
    rows = rows_of()
    columns: dict[str, list[Any]] = {n: list(v) for n, v in zip(HEADER, zip(*rows, strict=True), strict=True)}
    columns["a"][4] = None
    columns["b"][6] = float("nan")
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with pytest.raises(BadData) as caught:
        read(tmp_path / "t.parquet", missing="refuse")
    assert list(map(str, caught.value.faults)) == [
        'row 5, column "a": the value is missing',
        'row 7, column "b": the value is missing',
    ]
    flat = np.zeros((6, 2))
    flat[2, 1] = np.nan
    np.savez(tmp_path / "flat.npz", x=flat, y=np.arange(6) % 2)
    assert 'row 3, column "x1": the value is missing' in refused(tmp_path / "flat.npz", missing="refuse")
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

    def fault_of(rows: list[Row], header: list[str] = HEADER, **more: Any) -> str:
        return refused(write(path, rows, header), **more)

    rows = rows_of()
    text = [[*row[:2], f"Oslo {number}", *row[3:]] for number, row in enumerate(rows)]
    assert 'column "a": holds 90 different texts in 90 rows ("Oslo 0", "Oslo 1", ...), too many' in fault_of(text)
    assert 'categories names "c", which is no feature' in fault_of(rows, categories=["c"])
    write(path, text)
    assert read(path, ignore=["a"]).schema.features == ("b",)
    assert read(path, features=["b"]).schema.features == ("b",)
    assert 'column "a": stands twice, in places 3 and 4' in fault_of(rows, ["site", "year", "a", "a", "y"])
    assert "column 4 has no name" in fault_of(rows, ["site", "year", "a", "", "y"])
    assert 'there is no column "client"' in fault_of(rows, client="client")
    assert 'client = "" if there is none' in fault_of(rows, client="client")
    assert "did you mean site" in fault_of(rows, client="sit")
    assert "line 4: has 6 cells where the first line names 5 columns" in fault_of([*rows[:2], [*rows[2], 1], *rows[3:]])
    assert 'column "site": cannot be two of label, client and context' in fault_of(rows, context="site")
    assert 'ignore names "c", which is no column' in fault_of(rows, ignore=["c"])
    assert "no column is left" in fault_of(rows, ignore=["a", "b"])
    assert "there is a header and no row below it" in fault_of([], client="none")
    assert 'holds only one class ("1")' in fault_of([[*row[:4], 1] for row in rows])
    assert "a binary task needs two classes" in fault_of(
        [[*row[:4], i % 3] for i, row in enumerate(rows)], task="binary"
    )
    assert '"2" is not one of the classes (0, 1)' in fault_of(
        [[*row[:4], i % 3] for i, row in enumerate(rows)], classes=[0, 1]
    )
    for place, what in ((0, "client"), (1, "context"), (4, "y")):
        named = [[*row[:place], f"{row[place]} " * 201, *row[place + 1 :]] for row in rows]
        told = fault_of(named)
        assert f"line 2: the name of its {what} has" in told and len(told) < 300
    path.write_text(f"site,year,{'a' * 300},b,y\n" + "".join(f"s{i % 2},2020,{i},{i},{i % 2}\n" for i in range(8)))
    assert "its name has 300 characters; at most 200 are allowed" in refused(path) and len(refused(path)) < 400
    path.write_text("")
    assert "the file is empty" in refused(path)
    path.write_bytes(b"site,a\n\xff\xfe\n")
    assert "is not UTF-8 text: line 2 holds a letter in another encoding" in refused(path)
    path.write_bytes(b"site,a\n" + b"s,1\n" * 50_000 + "Zürich,2\n".encode("cp1252"))
    assert 'line 50002 holds a letter in another encoding, such as that of Windows; save it as "CSV UTF-8"' in refused(
        path
    )
    path.write_bytes("site,a\ns,1\n".encode("utf-16"))
    assert 'is UTF-16 text and not UTF-8; save it as "CSV UTF-8"' in refused(path)
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


def test_arrays_lists_and_frames() -> None:
    rows = array_rows([[1, 2], [3, 4], [5, 6]], ["a", "b", "a"], client=[1, 1, 2.0])
    assert rows.clients == ("1", "2") and rows.classes == ("a", "b") and rows.features == ("x0", "x1")
    with pytest.raises(BadData, match="must be \\[rows"):
        array_rows([1, 2, 3], [0, 1, 0])
    with pytest.raises(BadData, match="not an array of numbers"):
        array_rows([["a", "b"], ["c"]], [0, 1])
    with pytest.raises(BadData, match="one entry a row"):
        array_rows([[1.0], [2.0]], [[0, 1], [1, 0]])


def texts(*codes: int) -> np.ndarray:
    """Names of one character each, as numbers in memory: whatever a file may hold."""
    return np.array(codes, dtype="<u4").view("<U1")


@pytest.mark.parametrize("code", [0xD800, 0xDFFF, 0x110000, 0xFFFFFFFF])
@pytest.mark.parametrize("role", ["y", "client", "context", "features"])
def test_characters_that_do_not_exist_are_refused_before_anything_is_recorded(
    code: int, role: str, tmp_path: Path
) -> None:
    """A run that took such a name would write a record that nobody can read."""
    path, n = tmp_path / "t.npz", 24
    arrays: dict[str, Any] = {
        "x": np.arange(2.0 * n).reshape(n, 2),
        "y": np.arange(n) % 2,
        "client": texts(97, 98).repeat(n // 2),
    }
    odd = texts(*([97, code] if role == "features" else [97, code] * (n // 2)))
    np.savez(path, **{**arrays, role: odd})
    assert f"{role} holds texts with a character that does not exist" in refused(path)


def test_half_characters_of_arrays_in_memory_are_refused() -> None:
    n = 24
    x, y, site = np.arange(2.0 * n).reshape(n, 2), np.arange(n) % 2, ["a", "b"] * (n // 2)
    half = ["caf\udce9", "b"] * (n // 2)
    with pytest.raises(BadData, match="the name of its client is no whole text"):
        array_rows(x, y, client=half)
    with pytest.raises(BadData, match="the name of its y is no whole text"):
        array_rows(x, half, client=site)
