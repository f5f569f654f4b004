"""A folder of shards: the same federation as one file, read shard by shard; a shard that does not fit is named."""

from pathlib import Path
from typing import Any

import pytest
import torch

from perinvfl.core import config, mapped
from perinvfl.data.federation import Federation
from perinvfl.data.own import fitted
from perinvfl.data.own.files import FileSettings, file_federation
from perinvfl.errors import UserError

numpy = pytest.importorskip("numpy")
pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

GIVEN = {
    "label": "ill",
    "client": "hospital",
    "context": "year",
    "test_contexts": [2023],
    "missing_values": {"chol": 0},
}
Row = dict[str, Any]


def rows(clients: int = 12) -> list[Row]:
    draw = numpy.random.default_rng(0)
    return [
        {
            "hospital": f"h{client}",
            "year": int(draw.integers(2021, 2024)),
            "age": None if draw.random() < 0.1 else float(draw.normal(50, 9)),
            "kind": str(draw.choice(["a", "b", "zz", "k"])),
            "chol": float(draw.choice([0, 200, 220])),
            "ill": str(draw.choice(["no", "yes"])),
        }
        for client in range(clients)
        for _ in range(20 + client)
    ]


def write(path: Path, made: list[Row]) -> None:
    path.parent.mkdir(exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(made), path)


def shards(folder: Path, made: list[Row]) -> Path:
    """Three groups of clients, none of them in the order of the file."""
    names = list(dict.fromkeys(row["hospital"] for row in made))
    for number in range(3):
        own = names[number::3]
        write(folder / f"{number}.parquet", [row for row in made if row["hospital"] in own])
    return folder


def federation(path: Path, **further: Any) -> Federation:
    return file_federation(config.build(FileSettings, {"path": str(path), **GIVEN, **further}, "data"), 0)


@pytest.mark.parametrize("further", [{}, {"exclude_clients": ["h3", "h7"]}, {"statistics": "summed"}], ids=str)
def test_shards_and_one_file_are_the_same_data(
    further: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitted, "BLOCK", 50)  # several blocks
    made = rows()
    write(tmp_path / "one.parquet", made)
    whole = federation(tmp_path / "one.parquet", **further)
    parts = federation(shards(tmp_path / "shards", made), **further)
    assert mapped.is_mapped(parts.train.x) and not mapped.is_mapped(whole.train.x)
    assert parts.schema.clients == whole.schema.clients and parts.schema.encodings == whole.schema.encodings
    about = ("constant", "sizes", "labels", "contexts", "encoding")
    assert {key: parts.notes.get(key) for key in about} == {key: whole.notes.get(key) for key in about}
    assert parts.validation is not None and whole.validation is not None
    pairs = [(parts.train, whole.train), (parts.validation, whole.validation)]
    for mine, theirs in [*pairs, *zip(parts.tests.values(), whole.tests.values(), strict=True)]:
        assert torch.equal(mine.y, theirs.y) and torch.equal(mine.context, theirs.context)
        assert torch.allclose(mine.x, theirs.x, atol=1e-6, rtol=1e-6)


def test_each_archive_is_a_client_where_none_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "archives"
    folder.mkdir()
    for name in ("b", "a"):
        x = numpy.random.default_rng(len(name)).normal(size=(20, 1, 3, 3)).astype("float32")
        numpy.savez(folder / f"{name}.npz", x=x, y=numpy.arange(20) % 2)
    made = file_federation(FileSettings(path=str(folder)), 0)
    assert made.schema.clients == ("a", "b") and made.shape == (1, 3, 3) and mapped.is_mapped(made.train.x)


def _text_for_numbers(made: list[Row]) -> list[Row]:
    return [{**row, "chol": "high"} for row in made]


BAD = {
    "a column less": (
        lambda made: [{k: v for k, v in row.items() if k != "chol"} for row in made],
        r"9\.parquet .*chol",
    ),
    "a column more": (lambda made: [{**row, "new": 1.0} for row in made], r'9\.parquet .*only 9.parquet has .*"new"'),
    "text for numbers": (_text_for_numbers, r"9\.parquet.*chol"),
    "another class": (lambda made: [{**row, "ill": "maybe"} for row in made], r'9\.parquet.*"maybe".*data\.classes'),
    "a client twice": (
        lambda made: [{**row, "hospital": "h0"} for row in made],
        r'9\.parquet: client "h0" .* 0\.parquet',
    ),
    "no client": (lambda made: [{**row, "hospital": None} for row in made], r"9\.parquet.*the client is missing"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_shard_that_does_not_fit_is_named_in_one_sentence(what: str, tmp_path: Path) -> None:
    change, message = BAD[what]
    folder = shards(tmp_path / "shards", rows(6))
    spoilt = [{**row, "hospital": "new"} for row in rows(1)]
    write(folder / "9.parquet", change(spoilt))
    further: dict[str, Any] = {"missing_values": {}} if what in ("a column less", "text for numbers") else {}
    with pytest.raises(UserError, match=message) as found:
        federation(folder, **further)
    assert "\n" not in str(found.value)


def test_what_is_no_shard_is_refused(tmp_path: Path) -> None:
    folder = shards(tmp_path / "shards", rows(6))
    (folder / "1.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(UserError, match=r"1\.parquet is not a Parquet file"):
        federation(folder)
    (folder / "notes.txt").write_text("hello")
    with pytest.raises(UserError, match=r"holds shards and notes\.txt"):
        federation(folder)


def test_no_room_for_the_file_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"cannot be written to .*TMPDIR names another folder"):
        mapped.mapped_zeros((2**50,))
