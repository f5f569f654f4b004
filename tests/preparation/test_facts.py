"""What a site tells of its notes: taken where it can be true, refused where it cannot."""

import math
from typing import Any

import pytest

from perinvfl.preparation.facts import are_facts, join_facts

FOUND: dict[str, Any] = {
    "varies_between": None,
    "left_out": [],
    "directions": [],
    "kept": False,
    "reference": {"chosen": 2},
}


def test_shares_of_right_answers_are_taken_and_joined() -> None:
    each = [{"shortcut": FOUND, "right": [[0.95, -1]]}, {"shortcut": FOUND, "right": [[0.5, 0.25]]}]
    assert all(are_facts(own) for own in each)
    assert join_facts(each)["right"] == [[0.95, -1], [0.5, 0.25]]
    assert "right" not in join_facts([{"shortcut": FOUND}, {"shortcut": FOUND}])


@pytest.mark.parametrize(
    "right", [[[1.2]], [[-0.5]], [["0.5"]], [[math.nan]], [0.5], 0.5, [[0.5], [0.5]], [[True]], {"a": [0.5]}]
)
def test_what_is_no_share_is_refused(right: Any) -> None:
    assert not are_facts({"shortcut": FOUND, "right": right})


def test_a_style_is_taken_where_it_names_columns() -> None:
    style = {"columns": [0, 3], "compared": "contexts"}
    assert are_facts({"shortcut": FOUND | {"style": style}})
    odd: list[Any] = [
        None,
        [],
        {},
        style | {"columns": [-1]},
        style | {"columns": [True]},
        style | {"columns": 3},
        style | {"compared": None},
    ]
    for other in [*odd, style | {"compared": "x" * 10_000}, style | {"more": 1}]:
        assert not are_facts({"shortcut": FOUND | {"style": other}}), other
