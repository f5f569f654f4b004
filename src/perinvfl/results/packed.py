"""Published runs without a search behind them: packed files in one folder, each of them a table. Never trains."""

from pathlib import Path

from perinvfl.core.shipped import published_places
from perinvfl.results.search_records import SEARCH
from perinvfl.runs.records import PACKED


def packed_files(place: Path) -> dict[str, Path]:
    """The packed files of a published table by what they are called; {} where `place` names none.

    `place` is a folder, or the name of one in results/, here, beside the source or inside the package.
    """
    for folder in published_places(place):
        files = sorted(folder.glob(f"*{PACKED}"))
        if files and not (folder / SEARCH).exists():
            return {f"{folder.name}, {file.name.removesuffix(PACKED).replace('_', ' ')}": file for file in files}
    return {}
