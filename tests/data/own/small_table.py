"""A small table of sites and years, as files, and what becomes of them."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

from perinvfl.core.config import build
from perinvfl.data.federation import Federation
from perinvfl.data.own.files import FileSettings, file_federation
from perinvfl.errors import UserError

HEADER = ["site", "year", "a", "b", "y"]
Row = list[Any]


def rows_of(sites: int = 3, years: int = 3, each: int = 10, label: Any = lambda i: i % 2) -> list[Row]:
    draw = torch.Generator().manual_seed(0)
    numbers = torch.randn(sites * years * each, 2, generator=draw, dtype=torch.float64).tolist()
    made = []
    for i, (a, b) in enumerate(numbers):
        made.append([f"s{i % sites}", 2020 + i // sites % years, a * 3 + 7, b, label(i)])
    return made


def replaced(line: int, column: int, cell: Any) -> list[Row]:
    """Line 1 is the header."""
    rows = rows_of()
    rows[line - 2] = [cell if place == column else kept for place, kept in enumerate(rows[line - 2])]
    return rows


def write(path: Path, rows: list[Row], header: list[str] = HEADER, delimiter: str = ",") -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows([header, *rows])
    return path


def settings_for(path: Path, **more: Any) -> FileSettings:
    named = {"label": "y", "client": "site", "context": "year"} if path.suffix not in (".npz", ".safetensors") else {}
    return build(FileSettings, {"path": str(path), **named, **more}, "data")


def read(path: Path, seed: int = 0, **more: Any) -> Federation:
    return file_federation(settings_for(path, **more), seed)


def refused(path: Path, **more: Any) -> str:
    with pytest.raises(UserError) as caught:
        read(path, **more)
    return str(caught.value)


def same(one: Federation, other: Federation) -> None:
    for name in ("train", "validation"):
        for left, right in zip(getattr(one, name), getattr(other, name), strict=True):
            assert torch.equal(left, right)
    assert one.tests.keys() == other.tests.keys()
    for case in one.tests:
        assert all(torch.equal(a, b) for a, b in zip(one.tests[case], other.tests[case], strict=True))
