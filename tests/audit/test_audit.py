"""The audit on tables whose shortcut is known: found where it changes, left alone where there is none, and honest where
the data cannot tell."""

import random
from pathlib import Path

import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from perinvfl.audit import linear, words
from perinvfl.audit.experiment import experiment
from perinvfl.audit.habits import odd_value
from perinvfl.audit.verdicts import weakest
from perinvfl.audit.without import CONTEXTS, HELD_OUT, ROWS, SITES
from perinvfl.core.naming import with_and
from perinvfl.errors import UserError
from tests.audit.made_tables import advice_of, audited, made_csv, planted_csv, reason_of


@pytest.mark.parametrize(
    "settings", [{}, {"shortcut": "soft"}, {"classes": 3}, {"shortcut": "soft", "classes": 1}], ids=str
)
def test_a_planted_shortcut_is_to_be_dropped_and_nothing_else(settings: dict[str, object], tmp_path: Path) -> None:
    audit = audited(planted_csv(tmp_path / "t.csv", 0, **settings))
    dropped = [column.name for column in audit.advised("drop")]
    assert sorted(dropped) == (["x7", "x8", "x9"] if audit.task == "multiclass" else ["x7"])  # one for each class
    assert not audit.advised("discount")
    shortcut = audit.columns[0]
    assert shortcut.verdict.reason == "changes between contexts"
    # It helps as long as it holds; of three that name the class, two are enough.
    assert shortcut.changes[ROWS].worse or audit.task == "multiclass"
    assert audit.task == "multiclass" or "The price" in words.price(shortcut)
    assert words.headline(audit) == f"Drop {with_and(dropped)}. Keep the other 6 columns."
    assert f'ignore = ["{dropped[0]}"' in experiment(audit)


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_to_be_dropped_where_there_is_no_shortcut(seed: int, tmp_path: Path) -> None:
    audit = audited(planted_csv(tmp_path / "t.csv", seed, shortcut="none"))
    assert set(advice_of(audit).values()) == {"keep"}
    assert words.headline(audit).startswith("Nothing is recommended to be dropped")
    assert not any(words.price(column) for column in audit.columns)


def test_a_shortcut_that_is_equally_strong_everywhere_is_said_to_be_beyond_the_data(tmp_path: Path) -> None:
    audit = audited(planted_csv(tmp_path / "t.csv", p_train=((0.9, 0.9),) * 4))
    assert advice_of(audit)["x7"] == "keep" and reason_of(audit, "x7") == "steady and strong"
    told = words.why(audit, next(column for column in audit.columns if column.name == "x7"))
    assert "cannot be seen in these data" in told and "A context in which it breaks would show it" in told
    assert any("equally strong everywhere" in line for line in words.limits(audit))


def test_contexts_held_out_measure_the_advice_and_do_not_lead_to_it(tmp_path: Path) -> None:
    broken = ((0.95, 0.8, 0.1),) * 4
    path = planted_csv(tmp_path / "t.csv", p_train=broken, rows=600)
    audit = audited(path, held_out=("2022",))
    assert [group.name for group in audit.contexts if group.held_out] == ["2022"]
    shortcut = audit.columns[0]
    assert (shortcut.name, shortcut.verdict.advice) == ("x7", "drop")
    assert shortcut.changes[HELD_OUT].better and shortcut.changes[HELD_OUT].mean > 0.2
    assert set(audit.tests[CONTEXTS].full.by_fold) == {"2020", "2021"}
    assert sum(len(test.full.by_fold) > 0 for test in audit.tests.values()) == 4
    # The same advice from a table without the held-out rows.
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if ",2022," not in line) + "\n")
    alone = audited(path)
    assert [c.verdict for c in alone.columns] == [c.verdict for c in audit.columns]
    assert alone.tests[ROWS] == audit.tests[ROWS]


def test_what_differs_by_site_and_not_by_context_is_kept_for_personal_models(tmp_path: Path) -> None:
    audit = audited(planted_csv(tmp_path / "t.csv", shortcut="none", personal=2.5, rows=800))
    reasons = {column.name: column.verdict.reason for column in audit.columns}
    assert "differs by site" in reasons.values() and set(advice_of(audit).values()) == {"keep"}
    differing = next(column for column in audit.columns if column.verdict.reason == "differs by site")
    for said in (
        words.headline(audit),
        words.why(audit, differing),
        next(s for s in words.limits(audit) if "year" in s),
    ):
        assert differing.name in said and "own style" in said and "shortcut" in said
    assert '`--context ""`' in words.why(audit, differing) and not words.is_calm(audit)
    assert words.is_explained(differing)


def test_a_value_that_tells_the_site_is_found(tmp_path: Path) -> None:
    def patient(rng: random.Random, site: str, ill: bool) -> dict[str, object]:
        chol = 0 if site == "c" or (site == "d" and rng.random() < 0.3) else round(rng.gauss(240 + 25 * ill, 40))
        return {"chol": chol, "age": round(rng.gauss(50 + 8 * ill, 9)), "luck": round(rng.random(), 3)}

    path = made_csv(tmp_path / "t.csv", patient, {"a": 0.4, "b": 0.35, "c": 0.9, "d": 0.75})
    audit = audited(path, context="")
    found = next(column for column in audit.columns if column.name == "chol")
    assert found.habit is not None and found.habit.value == 0 and found.habit.shares["c"] == 1
    assert (found.verdict.advice, found.verdict.reason) == ("discount", "habit and value")
    told = words.why(audit, found)
    assert "it is 0 in 100 % of the rows at c" in told and "Fill in a usual value where it is 0" in told
    assert words.short(found) == "its 0 identifies the site"
    assert set(found.hidden) == {ROWS, SITES}
    assert advice_of(audit) == {"chol": "discount", "age": "keep", "luck": "keep"}
    assert any("one context" in line for line in words.limits(audit))


def test_a_habit_beside_which_nothing_tells_the_label_is_dropped(tmp_path: Path) -> None:
    def patient(rng: random.Random, site: str, ill: bool) -> dict[str, object]:
        dose = 999 if site == "c" else round(rng.gauss(20, 4), 2)
        return {"dose": dose, "age": round(rng.gauss(50 + 8 * ill, 9))}

    audit = audited(made_csv(tmp_path / "t.csv", patient, {"a": 0.3, "b": 0.4, "c": 0.9}), context="")
    assert advice_of(audit)["dose"] == "drop" and reason_of(audit, "dose") == "habit"


def test_odd_values() -> None:
    source = torch.Generator().manual_seed(0)
    values = (100 + 10 * torch.randn(200, generator=source)).round().double()
    assert odd_value(values) is None
    assert odd_value(torch.cat([values, torch.zeros(30)])) == 0
    assert odd_value(torch.cat([values, torch.full((30,), 999.0)])) == 999
    assert odd_value(torch.cat([values, torch.zeros(1)])) is None, "one far value is an accident"
    assert odd_value((torch.rand(300, generator=source) * 5).round().double()) is None, "levels"


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_the_model_is_that_of_scikit_learn(task: str) -> None:
    source = torch.Generator().manual_seed(1)
    x = torch.randn(300, 4, generator=source, dtype=torch.float64)
    z = x[:, 0] - 2 * x[:, 1] + torch.randn(300, generator=source, dtype=torch.float64)
    if task == "regression":
        weights = linear.fit(x, z, "regression", 0)
        theirs = Ridge(alpha=linear.RIDGE, tol=1e-12).fit(x.numpy(), z.numpy())
        assert weights[0, :-1].tolist() == pytest.approx(theirs.coef_.tolist(), abs=1e-6)
        return
    y = (z > 0).double() if task == "binary" else (z > 1).double() + (z > -1).double()
    weights = linear.fit(x, y, task, 3)  # type: ignore[arg-type]
    for number, own in enumerate(weights):
        of_class = (y == (1 if task == "binary" else number)).numpy()
        theirs = LogisticRegression(C=1 / linear.RIDGE, tol=1e-10, max_iter=1000).fit(x.numpy(), of_class)
        assert own.tolist() == pytest.approx([*theirs.coef_[0], *theirs.intercept_], abs=1e-3)
    start = weights + 0.5
    assert torch.allclose(linear.fit(x, y, task, 3, start), weights, atol=1e-3)  # type: ignore[arg-type]


def test_the_weakest_strength_beside_the_strongest(tmp_path: Path) -> None:
    audit = audited(planted_csv(tmp_path / "t.csv", p_train=((0.95, 0.3),) * 4))
    assert weakest(audit.columns[0].meaning.contexts) < 0
    assert "reverses" in words.why(audit, audit.columns[0])


def test_many_rows_are_shared_out_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in (("MOST_ROWS", 500), ("LEAST_ROWS", 100)):
        monkeypatch.setattr(f"perinvfl.audit.table.{name}", most)
    audit = audited(planted_csv(tmp_path / "t.csv"))
    assert audit.rows == 1600 and audit.rows_looked_at == 504  # 63 of 200 in each context of each site
    assert {group.rows for group in audit.sites} == {126}
    assert any("504 of 1600 rows" in line for line in words.limits(audit))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"context": "", "client": ""}, "There is one site and one context, so nothing can be compared"),
        ({"held_out": ("2050",)}, '--held-out names "2050", no context of these data'),
        ({"held_out": ("2020", "2021")}, "--held-out leaves no context to learn from"),
    ],
)
def test_what_cannot_be_audited(asked: dict[str, object], told: str, tmp_path: Path) -> None:
    path = planted_csv(tmp_path / "t.csv", rows=40)
    if asked.pop("client", "site") == "":
        lines = path.read_text().splitlines()
        path.write_text("\n".join([lines[0], *(line for line in lines[1:] if line.startswith("site 1,"))]) + "\n")
    with pytest.raises(UserError, match=told):
        audited(path, **asked)  # type: ignore[arg-type]


def test_gaps_and_categories_are_columns_like_others(tmp_path: Path) -> None:
    """A test that one hospital does not do, a category that is a shortcut between years, and one that is none."""

    def patient(rng: random.Random, site: str, ill: bool) -> dict[str, object]:
        year = rng.choice([2020, 2021])
        agrees = rng.random() < (0.95 if year == 2020 else 0.55)
        ward = rng.choice("ab" if ill == agrees else "cd")
        ca = "" if site == "z" or rng.random() < 0.02 else round(rng.gauss(ill, 1), 3)
        sex = rng.choice("mmf" if ill else "mff")
        return {"year": year, "ward": ward, "ca": ca, "sex": sex, "age": round(rng.gauss(50 + 8 * ill, 9))}

    path = made_csv(tmp_path / "t.csv", patient, {"x": 0.4, "y": 0.5, "z": 0.8})
    audit = audited(path)
    assert advice_of(audit) == {"ward": "drop", "ca": "discount", "sex": "keep", "age": "keep"}
    assert reason_of(audit, "ward") == "changes between contexts"
    gaps = next(column for column in audit.columns if column.name == "ca")
    assert gaps.habit is not None and gaps.habit.value is None and gaps.habit.shares["z"] == 1
    assert words.short(gaps) == "its gaps identify the site" and "it is missing in 100 % of the rows at z" in words.why(
        audit, gaps
    )
    assert audit.missing == {"ca": gaps.habit.rows}
    unknown = [relation.where for relation in gaps.meaning.sites if relation.strength is None]
    assert unknown == ["z"], "a median in the place of a gap is no value"


def test_a_column_that_no_model_can_use_is_left_aside_and_named(tmp_path: Path) -> None:
    path = planted_csv(tmp_path / "t.csv", 0)
    head, *rows = path.read_text().splitlines()
    path.write_text("\n".join([f"{head},patient", *(f"{row},P{i}" for i, row in enumerate(rows))]) + "\n")
    audit = audited(path)
    assert [column.name for column in audit.advised("drop")] == ["x7"]
    assert "different texts" in audit.left_aside["patient"]
    assert words.limits(audit)[0].startswith("patient is left aside: it holds")
