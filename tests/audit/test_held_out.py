"""What the rows held out say against the advice is said, and leads to no other advice."""

import dataclasses
import json
import tomllib
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from perinvfl.audit import Audit, words
from perinvfl.audit.experiment import experiment
from perinvfl.audit.held_out import find_objection, is_reversed
from perinvfl.audit.meaning import Meaning, Relation
from perinvfl.audit.verdicts import Verdict
from perinvfl.audit.without import HELD_OUT, Change
from perinvfl.cli import call
from tests.audit.made_tables import advice_of, audited, planted_csv
from tests.browser import opened

BREAKS = ((0.9, 0.9, 0.1),) * 4  # steady in the years that train, the other way round in the last


def broken(tmp_path: Path) -> Path:
    return planted_csv(tmp_path / "t.csv", p_train=BREAKS, rows=600)


@pytest.fixture(scope="module")
def doubtful(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    return audited(broken(tmp_path_factory.mktemp("broken")), held_out=("2022",))


def test_a_shortcut_that_breaks_on_rows_held_out_alone_is_kept_and_doubted(doubtful: Audit) -> None:
    assert advice_of(doubtful)["x7"] == "keep"
    column = doubtful.columns[0]
    assert column.name == "x7" and column.objection is not None and column.objection.certain
    told = words.doubt(doubtful)
    points = f"+{100 * column.changes[HELD_OUT].mean:.1f} points"
    assert "rows held out (2022)" in told and f"a model without x7 does better there ({points}" in told
    assert "not used for the advice" in told and "--ignore x7" in told
    why = words.why(doubtful, column)
    assert "(held out)" not in why and why.startswith("In training x7"), "what is steady are the contexts that train"
    assert "would show it" not in why, "the rows held out are the context that shows it"
    assert "its relation to the label is reversed there (−" in words.held_out_reason(column)
    assert not words.is_calm(doubtful) and words.is_explained(column)
    assert words.short(column).endswith("; held-out rows speak against it")
    assert "speaks against the column in these data" not in words.WHAT_ADVICE_MEANS["keep"]


def test_rows_held_out_that_agree_raise_no_doubt(tmp_path: Path) -> None:
    path = planted_csv(tmp_path / "t.csv", p_train=((0.9, 0.9, 0.9),) * 4, rows=600, personal=0.0)
    audit = audited(path, held_out=("2022",))
    assert words.doubt(audit) == "" and not any(column.objection for column in audit.columns)
    assert not any(words.held_out_reason(column) for column in audit.columns) and words.is_calm(audit)


def test_a_column_to_be_dropped_needs_no_doubt(tmp_path: Path) -> None:
    audit = audited(planted_csv(tmp_path / "t.csv", p_train=((0.95, 0.8, 0.1),) * 4, rows=600), held_out=("2022",))
    dropped = audit.columns[0]
    assert dropped.verdict.advice == "drop" and dropped.changes[HELD_OUT].better and dropped.objection is None


def test_reversed_is_what_has_another_sign_than_everywhere() -> None:
    held = Relation("2023", 100, -0.33, 0.1, held_out=True)
    assert is_reversed(held, [Relation("2021", 100, 0.27, 0.1), Relation("2022", 100, 0.1, 0.1)])
    assert not is_reversed(held, [Relation("2021", 100, 0.27, 0.1), Relation("2022", 100, -0.1, 0.1)])


def test_an_experiment_names_no_column_that_it_ignores(tmp_path: Path) -> None:
    audit = audited(planted_csv(tmp_path / "t.csv", rows=100))
    dropped = dataclasses.replace(audit.columns[0], verdict=Verdict("drop", "changes between contexts"))
    other = audit.columns[1].name
    reading = {"categories": [dropped.name, other], "missing_values": {dropped.name: [-9.0]}}
    made = dataclasses.replace(audit, columns=[dropped, *audit.columns[1:]], reading=reading)
    data = tomllib.loads(experiment(made))["data"]
    assert dropped.name in data["ignore"] and data["categories"] == [other] and "missing_values" not in data


@pytest.mark.parametrize(
    ("strength", "columns", "apart"),
    [(-0.4, 5, True), (0.4, 5, True), (2.0, 5, True), (0.9, 5, False), (1.25, 5, False), (0.4, 10**9, False)],
)
def test_a_strength_outside_of_those_in_training(strength: float, columns: int, apart: bool) -> None:
    contexts = [
        Relation("2021", 100, 1.0, 0.1),
        Relation("2022", 100, 1.2, 0.1),
        Relation("2023", 100, strength, 0.1, held_out=True),
    ]
    meaning = Meaning(contexts, [], 1.1, 0.0, 0.5, 0.5)
    found = find_objection(meaning, None, columns)
    assert (found is not None) == apart
    assert find_objection(Meaning(contexts[2:], [], 1.1, 0.0, 0.5, 0.5), Change(-1.0, -2.0, 0.5), columns) is None


def test_a_column_that_is_needed_there_too_may_be_stronger_but_not_turned_round() -> None:
    for strength, doubted in ((2.0, False), (0.4, False), (-0.4, True)):
        contexts = [Relation("2021", 100, 1.0, 0.1), Relation("2022", 100, strength, 0.1, held_out=True)]
        found = find_objection(Meaning(contexts, [], 1.0, 0.0, 1.0, 1.0), Change(-0.1, -0.15, -0.05), 5)
        assert (found is not None) == doubted


def test_an_interval_that_chance_may_have_moved_is_called_so() -> None:
    objection = find_objection(Meaning([], [], 0.0, 1.0, 1.0, 1.0), Change(0.02, 0.001, 0.039), 20)
    assert objection is not None and not objection.certain
    surer = find_objection(Meaning([], [], 0.0, 1.0, 1.0, 1.0), Change(0.138, 0.097, 0.179), 20)
    assert surer is not None and surer.certain


def test_the_page_and_the_terminal_say_so(tmp_path: Path, browser: Browser, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--label", "ill", "--client", "site", "--context", "year", "--held-out", "2022", "--out", str(tmp_path)]
    assert call(["audit", str(broken(tmp_path)), *asked]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "The rows held out (2022) speak against this: a model without x7 does better" in printed
    assert "keep: In training x7" in printed
    found = {column["name"]: column for column in json.loads((tmp_path / "audit.json").read_text())["columns"]}
    assert found["x7"]["verdict"]["advice"] == "keep" and found["x7"]["objection"]["apart"]
    with opened(browser, tmp_path / "audit.html") as page:
        bar = page.locator("p.verdict")
        assert "mixed" in (bar.get_attribute("class") or "") and "speak against this" in bar.inner_text()
        assert page.locator("article", has_text="The rows held out speak against it").count() == 1
        assert page.locator("tbody tr", has_text="x7").first.locator(".advice").get_attribute("class") == "advice doubt"


def test_no_promise_of_what_a_run_will_find(doubtful: Audit) -> None:
    reasons = ("changes between sites, and needed", "may change", "part of a mixture")
    for reason in reasons:
        verdict = Verdict("discount", reason)  # type: ignore[arg-type]
        told = words.why(doubtful, dataclasses.replace(doubtful.columns[0], verdict=verdict))
        assert "training rows of a run" in told and "where they show it too" in told


def test_what_is_printed_for_an_experiment_runs(tmp_path: Path, browser: Browser) -> None:
    path = planted_csv(tmp_path / 'a "quoted" name.csv', rows=100)
    head, *rows = path.read_text().splitlines()
    path.write_text("\n".join([f"{head},kind,patient", *(f"{row},{i % 3},P{i}" for i, row in enumerate(rows))]) + "\n")
    asked = ["--label", "ill", "--client", "site", "--context", "year", "--held-out", "2021"]
    assert call(["audit", str(path), *asked, "--ignore", "x1", "--category", "kind", "--out", str(tmp_path)]) == 0
    with opened(browser, tmp_path / "audit.html") as page:
        printed = page.locator("pre").inner_text()
    data = tomllib.loads(printed)["data"]
    assert {"patient", "x1"} <= set(data["ignore"]) and data["categories"] == ["kind"]
    (tmp_path / "experiment.toml").write_text(printed)
    options = ["--set", "training.rounds=2", "--out", str(tmp_path / "runs")]
    assert call(["run", str(tmp_path / "experiment.toml"), *options]) == 0
