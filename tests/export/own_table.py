"""A table of three sites and three years, in which a form goes with the label, less often from year to year."""

import csv
import random
from pathlib import Path

Row = dict[str, str]
ALL = ("site", "year", "age", "form", "ill")
EXPERIMENT = """
name = "own"
[data]
benchmark = "file"
path = "past.csv"
label = "ill"
client = "site"
context = "year"
test_contexts = ["2023"]
[model]
hidden = [8]
[training]
rounds = 6
[[algorithm]]
name = "recommended"
"""


def rows_of(seed: int) -> list[Row]:
    """Ages have gaps; the form agrees with the label, less often from year to year."""
    draw, rows = random.Random(seed), []
    for site in ("north", "south", "west"):
        for year, agrees in (("2021", 0.95), ("2022", 0.7), ("2023", 0.5)):
            for _ in range(150):
                ill = draw.random() < 0.5
                age = "" if draw.random() < 0.1 else f"{60 + 12 * ill + draw.gauss(0, 10):.1f}"
                form = "A" if (draw.random() < agrees) == ill else "B"
                rows.append({"site": site, "year": year, "age": age, "form": form, "ill": "yes" if ill else "no"})
    return rows


def write(path: Path, rows: list[Row], *columns: str) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path
