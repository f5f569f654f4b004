"""The finished tables of the package are those of the records in results/."""

import lzma
from pathlib import Path

import pytest

from perinvfl.errors import UserError
from perinvfl.results import finished
from perinvfl.results.finished import NOTE, finished_names, read_file, read_finished
from perinvfl.results.published import table_of_published
from perinvfl.results.render import as_json
from perinvfl.results.search_records import published_folders
from scripts.make_finished_tables import digests, published_names
from tests.reproduce.tables import RESULTS, published

DAMAGED = {
    "cut": lambda content: content[:-9],
    "emptied": lambda content: b"",
    "a bit flipped": lambda content: content[:99] + bytes([content[99] ^ 4]) + content[100:],
    "another file": lambda content: lzma.compress(b'{"tables": {"rc_mnist": {"tables": {"oracle": 3}}}}'),
    "nested": lambda content: lzma.compress(b"[" * 100_000),
}
RENEW = "`python scripts/make_finished_tables.py` renews them"


def test_they_are_made_from_the_records_that_are_here() -> None:
    assert finished_names() == published_names(), RENEW
    for name in finished_names():
        assert read_file(name)["made_from"] == digests(name), f"{name}: {RENEW}"


@pytest.mark.parametrize("name", published_names())
def test_they_show_what_the_records_show(name: str) -> None:
    folders = published_folders(RESULTS / name)
    parts = {f"{name}/{part}": {part: folder} for part, folder in folders.items() if part != name}
    for place, own in {name: folders, **parts}.items():
        finished = read_finished(RESULTS.joinpath(place).relative_to(RESULTS))
        assert finished is not None, RENEW
        table = finished.table()
        assert table.notes.pop() == NOTE
        records = {part: published(folder) for part, folder in own.items()}
        made = table_of_published(place.rpartition("/")[2], records)
        assert table == made, f"{place}: {RENEW}"
        assert as_json(table) == as_json(made)
        assert all(t.rule == rule and t.rows for rule, by in finished.tables.items() for t in by.values())


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_one_is_one_sentence(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = (finished.FOLDER / "rc_mnist.json.xz").read_bytes()
    (tmp_path / "rc_mnist.json.xz").write_bytes(DAMAGED[how](content))
    monkeypatch.setattr(finished, "FOLDER", tmp_path)
    with pytest.raises(UserError, match=r"rc_mnist\.json\.xz is damaged: reinstall perinvfl"):
        read_finished(Path("rc_mnist"))
