"""Write src/perinvfl/results/finished_tables/*.json.xz from the records in results/: what the wheel has of them.

python scripts/make_finished_tables.py
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

from perinvfl.errors import UserError
from perinvfl.results.finished import ENDING, FOLDER, Finished, finished_names, written
from perinvfl.results.published import SCORES, default_score, table_of_published
from perinvfl.results.search_records import SEARCH, SearchRecords, default_rule, published_folders, read_published
from perinvfl.results.selection import RULES
from perinvfl.results.table import Table

RESULTS = Path(__file__).parents[1] / "results"


def main(read: Callable[[Path], SearchRecords] = read_published) -> None:
    names = published_names()
    for name in set(finished_names()) - set(names):
        (FOLDER / f"{name}{ENDING}").unlink()
    FOLDER.mkdir(exist_ok=True)
    for name in names:
        (FOLDER / f"{name}{ENDING}").write_bytes(written(digests(name), finished_of(name, read)))


def published_names() -> list[str]:
    """The folders of results/ that hold a search, or several."""
    return sorted({path.relative_to(RESULTS).parts[0] for path in RESULTS.glob(f"**/{SEARCH}")})


def digests(name: str) -> dict[str, str]:
    files = sorted((RESULTS / name).glob("**/*.jsonl.xz"))
    return {file.relative_to(RESULTS).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def finished_of(name: str, read: Callable[[Path], SearchRecords] = read_published) -> list[Finished]:
    """The table of this name, and each of its parts where it has several."""
    folders = published_folders(RESULTS / name)
    records = {part: read(folder) for part, folder in folders.items()}
    parts = {f"{name}/{part}": {part: found} for part, found in records.items()} if list(records) != [name] else {}
    return [_finished(place, found) for place, found in {name: records, **parts}.items()]


def _finished(place: str, records: dict[str, SearchRecords]) -> Finished:
    tables: dict[str, dict[str, Table]] = {}
    for rule in RULES:
        for score in SCORES:
            try:
                made = table_of_published(Path(place).name, records, rule, score)
            except UserError:  # nothing here that the rule or the score looks at
                continue
            tables.setdefault(rule, {})[score] = made
    return Finished(place, default_rule(*records.values()), default_score(records), tables)


if __name__ == "__main__":
    main()
