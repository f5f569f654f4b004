"""A table of patients as hospitals have them: gaps, a category in words, a category in numbers, a new level later."""

import random
from typing import Any

HEADER = ["hospital", "year", "age", "chol", "cp", "unit", "ill"]
COLUMNS = ("age", "chol", "cp", "unit")


def patients(each: int = 40, seed: int = 0) -> list[list[Any]]:
    """Three hospitals and years. Some cholesterol and some units are missing; a few units are rare; cp = 9 and the unit
    "east" appear in 2022 alone."""
    draw = random.Random(seed)
    rows: list[list[Any]] = []
    for hospital in ("h0", "h1", "h2"):
        for year in (2020, 2021, 2022):
            for number in range(each):
                age, pain = draw.randint(30, 80), draw.choice([1, 2, 3])
                unit = draw.choice(["north", "north", "south", ""])
                unit = f"rare {number}" if number == 0 else unit
                chol: Any = round(draw.gauss(220, 40), 1)
                ill = int(age / 25 + pain + (unit == "north") + draw.gauss(0, 1) > 4.7)
                if draw.random() < 0.25:
                    chol = ""
                if year == 2022 and number % 10 == 5:
                    pain, unit = 9, "east"
                rows.append([hospital, year, age, chol, pain, unit, ill])
    return rows
