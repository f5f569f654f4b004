"""The finished tables of the package are those of the records in results/."""

import pytest

from perinvfl.results.finished import NOTE, finished_names, read_file, read_finished
from perinvfl.results.published import table_of_published
from perinvfl.results.render import as_json
from perinvfl.results.search_records import published_folders
from scripts.make_finished_tables import digests, published_names
from tests.reproduce.tables import RESULTS, published

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
