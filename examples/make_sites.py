"""A made-up table with a planted shortcut: five hospitals, three years, one label. `python examples/make_sites.py`.

Whether a patient is ill follows from `marker`, `pressure` and `age`, at every hospital and in every year, with a weight
of age that is each hospital's own. `scanner` is a shortcut: it agrees with the label in 2021 (95 %) and 2022 (60 %),
because the ill were sent to another machine, and goes against it in 2023 (20 %). `noise` tells nothing.
"""

import argparse
import csv
import math
import random
from pathlib import Path

SITES = ("north", "south", "east", "west", "centre")
AGREES = {"2021": 0.95, "2022": 0.60, "2023": 0.20}  # how often the scanner agrees with the label
HEADER = ("hospital", "year", "marker", "pressure", "age", "scanner", "noise", "ill")


def make_rows(each: int, seed: int) -> list[tuple[object, ...]]:
    """`each` patients in every year at every site."""
    rng = random.Random(seed)
    rows: list[tuple[object, ...]] = []
    for place, site in enumerate(SITES):
        for year, agrees in AGREES.items():
            for _ in range(each):
                marker, pressure, age = rng.gauss(5, 2), rng.gauss(120, 15), rng.gauss(50 + 3 * place, 12)
                score = 0.9 * (marker - 5) / 2 + 0.7 * (pressure - 120) / 15 + 0.15 * (place - 1) * (age - 50) / 12
                ill = rng.random() < 1 / (1 + math.exp(-1.5 * score))
                scanner = (1 if (rng.random() < agrees) == ill else -1) + rng.gauss(0, 0.3)
                cells = (marker, pressure, age, scanner, rng.gauss(0, 1))
                rows.append((site, year, *(round(cell, 3) for cell in cells), "yes" if ill else "no"))
    rng.shuffle(rows)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a table of five hospitals with a planted shortcut.")
    parser.add_argument("path", type=Path, nargs="?", default=Path("sites.csv"))
    parser.add_argument("--each", type=int, default=200, help="patients in every year at every hospital")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with open(given.path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([HEADER, *make_rows(given.each, given.seed)])
    print(f"{given.path}: {len(SITES) * len(AGREES) * given.each} rows")


if __name__ == "__main__":
    main()
