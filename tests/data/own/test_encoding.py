"""Missing values and categories: what becomes of them, in every form of file, and that only training rows decide."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import perinvfl as pf
from perinvfl.data.encoding import Encoding, encode, feature_names, read_encodings
from perinvfl.errors import UserError
from tests.data.own.patients import COLUMNS, HEADER, patients
from tests.data.own.small_table import read, refused, same, write

NAMED: dict[str, Any] = {"label": "ill", "client": "hospital", "context": "year", "test_contexts": [2022]}


def federation(path: Path, **more: Any) -> Any:
    return read(path, **{**NAMED, "categories": ["cp"], **more})


def test_numbers_with_gaps_and_categories_become_columns(tmp_path: Path) -> None:
    rows = patients()
    made = federation(write(tmp_path / "t.csv", rows, HEADER), standardise=False, test_share=0, holdout=0)
    assert made.schema.features == (
        "age", "chol", "chol missing", "cp=1", "cp=2", "cp=3", "unit=north", "unit=south", "unit=other", "unit missing",
    )  # fmt: skip
    assert made.schema.columns == COLUMNS
    training = [row for row in rows if row[1] != 2022]
    chol = sorted(row[3] for row in training if row[3] != "")
    median = (chol[(len(chol) - 1) // 2] + chol[len(chol) // 2]) / 2
    mine = [row for row in training if row[0] == "h1"]
    x = made.train.x[1]
    for row, seen in zip(mine, x.tolist(), strict=False):
        missing, unit = row[3] == "", row[5]
        known = [unit == "north", unit == "south", unit not in ("", "north", "south"), unit == ""]
        levels = [row[4] == level for level in (1, 2, 3)]
        expected = [row[2], median if missing else row[3], missing, *levels, *known]
        assert seen == pytest.approx([float(value) for value in expected], rel=1e-6)
    # An unseen level of a category without "other", in the held-out year alone: 0 in every column.
    new = [row for row in rows if row[1] == 2022 and row[4] == 9]
    assert new and float(made.tests["2022"].x[:, :, 3:6].sum(-1).min()) == 0


def test_only_training_rows_decide(tmp_path: Path) -> None:
    rows = patients()
    first = federation(write(tmp_path / "a.csv", rows, HEADER))
    changed = [[*row[:3], 1e6, row[4], "west", row[6]] if row[1] == 2022 else row for row in rows]
    second = federation(write(tmp_path / "b.csv", changed, HEADER))
    assert first.schema == second.schema
    assert torch.equal(first.train.x, second.train.x) and not torch.equal(first.tests["2022"].x, second.tests["2022"].x)


def test_every_form_of_table_is_encoded_alike(tmp_path: Path) -> None:
    rows = patients()
    first = federation(write(tmp_path / "t.csv", rows, HEADER))
    cells = [[None if cell == "" else cell for cell in row] for row in rows]
    table = {name: list(column) for name, column in zip(HEADER, zip(*cells, strict=True), strict=True)}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    same(first, federation(tmp_path / "t.parquet"))
    frames = [pd.DataFrame(table), pl.DataFrame(table), pa.table(table)]
    given: dict[str, Any] = {
        "y": table["ill"],
        "client": table["hospital"],
        "context": table["year"],
        "test_contexts": [2022],
    }
    for frame in frames:
        x = frame.select(list(COLUMNS)) if isinstance(frame, pa.Table) else frame[list(COLUMNS)]
        made = pf.from_arrays(x, categories=["cp"], **given)
        same(first, made)
        assert made.schema == first.schema
    lists = [[row[HEADER.index(name)] for name in COLUMNS] for row in cells]
    same(first, pf.from_arrays(lists, features=COLUMNS, categories="cp", **given))


def test_a_session_takes_what_it_was_fitted_on() -> None:
    """Frames with names or numbers for columns, in any order; arrays by codes; what does not fit is one sentence."""
    rows = [[None if cell == "" else cell for cell in row] for row in patients()]
    numbered = pd.DataFrame([row[2:6] for row in rows])
    named = numbered.set_axis(list(COLUMNS), axis=1)
    given: dict[str, Any] = {"y": [row[6] for row in rows], "client": [row[0] for row in rows]}
    said = []
    for frame in (numbered, named):
        names = [str(name) for name in frame.columns]
        session = pf.start(pf.from_arrays(frame, categories=[names[2]], **given), "fedavg", rounds=2).run()
        said.append(session.outputs(frame[:20]))
        assert torch.equal(said[-1], session.outputs(frame[:20][list(frame.columns[::-1])]))
    assert torch.equal(*said)
    with pytest.raises(UserError, match='column "unit" is missing'):
        session.outputs(named[["age", "chol", "cp"]])
    with pytest.raises(UserError, match='row 1, column "age": "old" is not a number'):
        session.outputs([["old", 200, 1, "north"]])
    with pytest.raises(UserError, match="x has 3 columns; the model takes 4"):
        session.outputs([[50, 200, "north"]])


def test_arrays_with_gaps(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(80, 3))
    x[draw.random(80) < 0.2, 1] = np.nan
    x[:, 2] = draw.integers(1, 4, 80)
    np.savez(tmp_path / "t.npz", x=x, y=np.arange(80) % 2, client=np.arange(80) // 40)
    made = read(tmp_path / "t.npz", categories=["x2"])
    assert made.schema.features == ("x0", "x1", "x1 missing", "x2=1", "x2=2", "x2=3")
    assert bool(torch.isfinite(made.train.x).all())
    assert made.notes["encoding"]["missing"] == {"x1": int(np.isnan(x[:, 1]).sum())}  # type: ignore[index]
    same(made, pf.from_arrays(x, np.arange(80) % 2, client=np.arange(80) // 40, categories=["x2"]))
    assert 'categories names "x9", which is no feature' in refused(tmp_path / "t.npz", categories=["x9"])


def test_what_was_done_is_counted(tmp_path: Path) -> None:
    rows = patients()
    path = write(tmp_path / "t.csv", [[*row, "note"] for row in rows], [*HEADER, "remark"])
    made = federation(path, ignore=["remark"], exclude_clients=["h2"])
    kept = [row for row in rows if row[0] != "h2"]
    counted: Any = made.notes["encoding"]
    assert counted["rows"] == len(kept) and counted["excluded"] == len(rows) - len(kept)
    assert counted["missing"] == {
        "chol": sum(row[3] == "" for row in kept),
        "unit": sum(row[5] == "" for row in kept),
    }
    assert counted["levels"] == {"cp": ["1", "2", "3"], "unit": ["north", "south"]}
    assert counted["other"]["cp"] == sum(row[4] == 9 for row in kept)
    assert made.notes["ignored"] == ["remark"]


def test_what_cannot_be_encoded_is_one_sentence(tmp_path: Path) -> None:
    rows = patients()
    empty = [[*row[:3], "" if row[1] != 2022 else 5, *row[4:]] for row in rows]
    write(tmp_path / "t.csv", empty, HEADER)
    with pytest.raises(UserError, match='Column "chol" has no value in any training row; name it in ignore'):
        federation(tmp_path / "t.csv")
    with pytest.raises(UserError, match='"chol": the value is missing'):
        federation(write(tmp_path / "t.csv", rows, HEADER), missing="refuse")


def test_encodings_are_plain_values() -> None:
    made = (Encoding("a", median=2.5, flagged=True), Encoding("b", levels=("x", "y"), codes=(-1.0, 4.0), other=True))
    assert read_encodings([one.as_fields() for one in made]) == made
    assert feature_names(made) == ("a", "a missing", "b=x", "b=y", "b=other")
    raw = torch.tensor([[math.nan, -1.0], [7.0, made[1].unseen], [1.0, math.nan]])
    assert encode(raw, made).tolist() == [[2.5, 1, 1, 0, 0], [7, 0, 0, 0, 1], [1, 0, 0, 0, 1]]
