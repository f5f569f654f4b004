"""What `recommended` found, in words."""

from typing import Any

import pytest

from perinvfl.runs.found_words import Facts, Names, found_in_words

NOTHING: dict[str, Any] = {
    "varies_between": None,
    "left_out": [],
    "directions": [],
    "kept": False,
    "reference": {"chosen": -1},
}
NAMES = Names(("age", "scanner"), ("site1", "site2", "site3"), ("c1", "c2"))


def test_the_answers_of_the_reference_by_context() -> None:
    found = {"shortcut": {**NOTHING, "reference": {"chosen": 3}}, "right": [[0.9, 0.88], [-1, -1], [0.951, 0.849]]}
    assert found_in_words(found, NAMES) == (
        "The answers of a plain model change their meaning: at site3 they are right in 95 % of c1 and 85 % of c2. "
        "What they say about the label is discounted."
    )


def test_the_answers_of_the_reference_by_client() -> None:
    found = {"shortcut": {**NOTHING, "reference": {"chosen": 3}}, "right": [[0.8], [-1], [0.95]]}
    assert "they are right in 95 % at site3 and 80 % at site1." in found_in_words(found, NAMES)
    assert "95 % at client 2 and 80 % at client 0" in found_in_words(found)


@pytest.mark.parametrize("right", [[], [[0.9, 0.5], [], [0.8, 0.8]]])
def test_a_column_and_answers_are_told_together(right: list[list[float]]) -> None:
    column = {"shortcut": {**NOTHING, "varies_between": "contexts", "left_out": [1]}, "right": right}
    words = found_in_words(column, NAMES)
    assert words.startswith("scanner changes its meaning between contexts by more than chance: it is left out.")
    assert ("at site1 they are right in 90 % of c1 and 50 % of c2" in words) == bool(right)


@pytest.mark.parametrize(
    ("left_out", "said"),
    [
        ([1, 2, 3], "form changes its meaning between clients by more than chance: it is left out."),
        ([0, 1, 2, 3], "age and form change their meaning between clients by more than chance: they are left out."),
        ([1, 2], "form (A, B) changes its meaning between clients by more than chance: it is left out."),
        ([3], "form=B2 changes its meaning between clients by more than chance: it is left out."),
        ([4, 5], "crp changes its meaning between clients by more than chance: it is left out."),
        ([6, 7, 8], "ward changes its meaning between clients by more than chance: it is left out."),
        ([9, 10], "x and x=1 change their meaning between clients by more than chance: they are left out."),
    ],
)
def test_a_column_is_named_once_however_many_inputs_stand_for_it(left_out: list[int], said: str) -> None:
    levels, gaps = ("age", "form=A", "form=B", "form=B2", "crp", "crp missing"), ("ward=1", "ward=2", "ward missing")
    found = {"shortcut": {**NOTHING, "varies_between": "clients", "left_out": left_out}}
    assert found_in_words(found, Names((*levels, *gaps, "x", "x=1"))) == said
    assert Facts(found)["shortcut"]["left_out"] == left_out


def test_facts_print_as_words() -> None:
    column = {"shortcut": {**NOTHING, "varies_between": "contexts", "left_out": [1]}}
    assert str(Facts(column, NAMES)) == found_in_words(column, NAMES) and Facts(column) == column
    assert str(Facts({"views": [1]})) == "{'views': [1]}"


def test_what_cannot_be_told_is_said() -> None:
    assert "cannot be found" in found_in_words({"shortcut": NOTHING}) and not found_in_words({})


@pytest.mark.parametrize("border", ["discounted", "told"])
def test_exchanged_borders_are_told(border: str) -> None:
    shortcut = {**NOTHING, "border": border}
    right = {"right": [[0.9], [0.8]]}
    assert found_in_words({"shortcut": shortcut, **right}).endswith("is discounted.")
    said = found_in_words({"shortcut": {**shortcut, "borders_exchanged": True}, **right})
    assert said.endswith("is discounted. In training, images exchange their borders.")


@pytest.mark.parametrize(
    ("compared", "what", "then"),
    [
        ("contexts", "differs between clients but not between contexts, and so counts as their own style", "or none"),
        ("clients", "differs somewhat between clients, and counts as their own style", "(data.ignore)"),
    ],
)
def test_what_differs_between_clients_and_stays_is_told(compared: str, what: str, then: str) -> None:
    style = {"style": {"columns": [1], "compared": compared}}
    words = found_in_words({"shortcut": NOTHING | style}, NAMES)
    assert words.startswith(f"The data are left as they are. scanner {what}. If it is a shortcut, ") and then in words
    left = found_in_words({"shortcut": {**NOTHING, **style, "varies_between": "contexts", "left_out": [0]}}, NAMES)
    assert left.startswith("age changes its meaning between contexts by more than chance: it is left out. scanner ")
    said = found_in_words({"shortcut": NOTHING | style, "right": [[0.9], [0.8]]}, NAMES)
    assert said.startswith("scanner differs ") and said.endswith("is discounted.")
