"""Data frames of pandas, polars and pyarrow and Hugging Face data sets give what the same table in a file gives."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import perinvfl as pf
from perinvfl.errors import UserError
from tests.data.own.small_table import Row, rows_of, same, write

HEADER = ["site", "year", "a", "b", "town", "y"]
NAMED: dict[str, Any] = {"label": "y", "client": "site", "context": "year"}
KINDS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "pandas with its own missing values": lambda frame: frame.convert_dtypes(),
    "pandas with categories and an index": lambda frame: frame.astype({"town": "category"}).set_index(["site", "year"]),
    "polars": lambda frame: pl.from_pandas(frame),
    "pyarrow": lambda frame: pa.Table.from_pandas(frame),
    "a batch of pyarrow": lambda frame: pa.Table.from_pandas(frame).to_batches()[0],
    "Hugging Face": lambda frame: datasets.Dataset.from_pandas(frame),
    "Hugging Face, rows chosen, as tensors": lambda frame: (
        datasets.Dataset.from_pandas(pd.concat([frame, frame], ignore_index=True))
        .select(range(len(frame)))
        .with_format("torch")
    ),
}


def patients() -> list[Row]:
    """With gaps and a category."""
    rows = [[*row[:4], ("Bern", "Chur", "Davos")[i % 3], row[4]] for i, row in enumerate(rows_of())]
    for i in range(0, len(rows), 7):
        rows[i][2] = ""
        rows[i + 1][4] = ""
    return rows


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "t.csv", patients(), HEADER)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_frame_gives_what_the_file_gives(table: Path, kind: str) -> None:
    frame = KINDS[kind](pd.read_csv(table))
    want = pf.load(table, **NAMED, test_contexts=2022, seed=3)
    found = pf.load(frame, **NAMED, test_contexts=2022, seed=3)
    same(found, want)
    assert found.schema == want.schema and "town=Bern" in found.schema.features
    session = pf.start(want, "fedavg", rounds=2, model={"hidden": [4]}).run()
    x = pd.read_csv(table)[["a", "b", "town"]]
    only = KINDS[kind](x.assign(site="s", year=0)) if "index" in kind else KINDS[kind](x)
    assert session.predict(only, "s0") == session.predict(x, "s0")
    arrays = pf.from_arrays(only, [row[5] for row in patients()], client=[row[0] for row in patients()])
    assert arrays.schema.columns[:3] == ("a", "b", "town")


def test_classes_of_a_hugging_face_data_set_go_by_their_names() -> None:
    rows = rows_of()
    columns = {"client": [row[0] for row in rows], "a": [row[2] for row in rows], "label": [row[4] for row in rows]}
    plain = datasets.Dataset.from_dict(columns)
    named = plain.cast_column("label", datasets.ClassLabel(names=["well", "ill"]))
    federation = pf.load(named, context="")
    assert federation.schema.classes == ("ill", "well")
    assert pf.load(named, context="", classes=["well", "ill"]).schema.classes == ("well", "ill")
    assert pf.load(plain, context="").schema.classes == ("0", "1")


def test_a_session_on_a_frame_is_resumed_with_the_frame(table: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(table)
    session = pf.start(pf.load(frame, **NAMED), rounds=2, model={"hidden": [4]}).run()
    session.save(tmp_path / "run")
    with pytest.raises(UserError, match="give the federation again"):
        pf.resume(tmp_path / "run")
    again = pf.resume(tmp_path / "run", pf.load(pl.from_pandas(frame), **NAMED), rounds=3)
    assert again.run().rounds_done == 3
    with pytest.raises(UserError, match="trained on other data"):
        pf.resume(tmp_path / "run", pf.load(frame.assign(b=frame["b"] + 1), **NAMED))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3, "it was given something of type int."),
        (None, "something of type NoneType."),
        (np.zeros((3, 2)), "of type ndarray; pf.from_arrays takes arrays."),
        (pd.Series([1, 2]), "of type Series; pf.from_arrays takes arrays."),
        (pl.LazyFrame({"a": [1]}), "call its collect() first."),
        (datasets.DatasetDict({"train": datasets.Dataset.from_dict({"a": [1]})}), "give one of them (train)."),
        (datasets.Dataset.from_dict({"a": [1]}).to_iterable_dataset(), "load it without streaming."),
    ],
)
def test_anything_else_gets_one_sentence(given: Any, words: str) -> None:
    with pytest.raises(UserError) as caught:
        pf.load(given, **NAMED)
    assert str(caught.value).endswith(words)
    assert "a data frame of pandas, polars or pyarrow, or a Hugging Face data set" in str(caught.value)


def test_what_is_wrong_with_a_frame_is_said_as_of_a_file(table: Path) -> None:
    frame = pd.read_csv(table)

    def refused(frame: Any, **more: Any) -> str:
        with pytest.raises(UserError) as caught:
            pf.load(frame, **{**NAMED, **more})
        return str(caught.value)

    assert 'pandas data frame: there is no column "clinic"' in refused(frame, client="clinic")
    assert "the table has no row" in refused(frame[:0])
    assert 'column "a": stands twice' in refused(frame.rename(columns={"b": "a"}))
    assert 'column "b": inf is not a finite number' in refused(frame.assign(b=np.inf)).replace("row 1, ", "")
    assert 'column "pair": holds values of type list' in refused(frame.assign(pair=[[1, 2]] * len(frame)))
    assert pf.load(frame.assign(pair=[[1, 2]] * len(frame)), **NAMED, ignore="pair").clients == 3
    assert "leave_one_context_out makes several" in refused(frame, leave_one_context_out=True)
    assert "data.colums is not a setting" in refused(frame, colums=["a"])


def test_no_library_is_imported_for_a_file(table: Path) -> None:
    code = (
        "import sys, perinvfl as pf\n"
        f"pf.load({str(table)!r}, label='y', client='site', context='year')\n"
        "try:\n    pf.load(3)\nexcept Exception as error:\n    print(error)\n"
        "print([name for name in ('pandas', 'polars', 'pyarrow', 'datasets') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "something of type int" in done.stdout and done.stdout.splitlines()[-1] == "[]"
