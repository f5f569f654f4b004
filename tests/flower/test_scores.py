"""Scores of a deployment: what sites tell is what the simulator computes, and nothing of a few rows."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from perinvfl.cli import call
from perinvfl.errors import UserError
from perinvfl.flower import codec, evaluation
from perinvfl.flower.adapter.messages import RecordDict
from perinvfl.flower.rounds import Rounds
from perinvfl.flower.transport import Answer
from perinvfl.results.score_names import measures_for
from perinvfl.runs.predictions import VALIDATION
from perinvfl.runs.records import Run, read_run
from perinvfl.scoring.measures import choose_threshold, scores
from perinvfl.scoring.run_scores import predictions_of, run_scores, samples_of
from perinvfl.scoring.sample_scores import Sample
from perinvfl.scoring.site_scores import BY_CLASS, site_scores, wrong_with
from tests.data.own.patients import patients
from tests.flower.deployed import SETTINGS, deploy, simulate
from tests.flower.inprocess import InProcess
from tests.flower.test_columns import at_sites, on_one_machine


def read(folder: Path) -> Run:
    run = read_run(folder)
    assert run is not None
    return run


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rounds, Run]:
    """A deployment, and the simulator's run on the same rows."""
    folder, rows = tmp_path_factory.mktemp("scored"), patients(each=60)
    trial, post = at_sites(folder, rows)
    return deploy(trial, folder, transport=post), read(simulate(on_one_machine(folder, rows), folder))


def test_sites_tell_what_the_simulator_computes(both: tuple[Rounds, Run]) -> None:
    rounds, simulated = both
    found, run = predictions_of(simulated), read(rounds.folder)
    for kind in ("personal", "global"):
        told = run_scores(run, kind)
        assert list(told["cases"]) == ["2022", "same contexts"] and told["models"] == kind
        for case, stored in told["cases"].items():
            samples = samples_of(found, case, kind)
            held_out = samples_of(found, VALIDATION, kind)
            for client, site in enumerate(rounds.sites):
                own = stored["clients"][site]
                want = scores(samples[client], choose_threshold([held_out[client]]).value)
                hidden = BY_CLASS if min(samples[client].counts) < 8 else ()
                assert own["samples"] == len(samples[client])
                assert own["scores"]["auroc"]["value"] is not None or hidden
                for name in measures_for("binary"):
                    expected = None if name in hidden else want[name]
                    got = own["scores"][name]["value"]
                    assert got == (None if expected is None else pytest.approx(expected, abs=2e-6)), (case, site, name)


def test_the_table_and_the_report_show_them(
    both: tuple[Rounds, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = both[0].folder
    for score in ("auroc", "balanced", "sensitivity", "calibration-error"):
        assert call(["table", str(folder), "--score", score, "--format", "json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        (row,) = [row for row in shown["rows"] if row["kind"] == "measured"]
        want = run_scores(read(folder))["cases"]["2022"]["mean"][score]["value"]
        factor = 100 if score in ("balanced", "sensitivity") else 1
        assert row["cases"]["2022"]["mean"] == pytest.approx(factor * want, rel=1e-3)
    assert call(["table", str(folder), "--score", "specificity"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "at each site" in words and "no intervals" in words
    assert call(["report", str(folder), "-o", str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text()
    assert "each site chose its own threshold" in page and "AUROC" in page and "<td>not defined</td>" not in page


def test_few_rows_are_not_told() -> None:
    def sample(*counts: int) -> Sample:
        y = numpy.repeat(numpy.arange(float(len(counts))), counts)
        return Sample("binary", y, numpy.random.default_rng(0).normal(y, 1.0)[:, None])

    told = site_scores({"few": sample(4, 3), "one class": sample(20, 3), "enough": sample(8, 9)}, sample(10, 10))
    assert list(told["cases"]) == ["one class", "enough"] and told["chosen"]
    part = told["cases"]["one class"]
    assert part["counts"] is None and part["scores"]["accuracy"] is not None and part["scores"]["brier"] is not None
    assert all(part["scores"][name] is None for name in BY_CLASS)
    whole = told["cases"]["enough"]
    assert whole["counts"] == [8, 9] and all(value is not None for value in whole["scores"].values())
    assert not wrong_with(json.loads(json.dumps(told)), ["few", "one class", "enough"], "binary", 2)
    assert site_scores({"few": sample(4, 4)}, None)["chosen"] is False


def spoiled(**changes: Any) -> dict[str, Any]:
    values = dict.fromkeys(measures_for("binary"), 0.5) | changes.pop("scores", {})
    return {"chosen": True, "cases": {"t": {"samples": 20, "counts": [10, 10], "scores": values, **changes}}}


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ([], "does not tell its scores"),
        ({"chosen": 1, "cases": {}}, "does not tell its scores"),
        ({"chosen": True, "cases": {"other": {}}}, "test cases that do not exist"),
        (spoiled(samples=5), "has 5 rows"),
        (spoiled(samples=20.0), "has 20.0 rows"),
        (spoiled(counts=[19, 1]), "counts of t that cannot be"),
        (spoiled(counts=[10, 11]), "counts of t that cannot be"),
        (spoiled(scores={"auroc": 1.2}), "has 1.2 as the auroc of t"),
        (spoiled(scores={"brier": -0.1}), "has -0.1 as the brier of t"),
        (spoiled(scores={"accuracy": float("nan")}), "has nan as the accuracy of t"),
        (spoiled(scores={"accuracy": True}), "has True as the accuracy of t"),
        (spoiled(scores={"notes": "all my rows"}), "does not send every score of t"),
    ],
)
def test_nonsense_is_refused(told: Any, says: str) -> None:
    assert says in wrong_with(told, ["t"], "binary", 2)
    assert not wrong_with(spoiled(), ["t"], "binary", 2)


class Liar(InProcess):
    """The second site tells an AUROC of 7."""

    def ask(
        self,
        kind: str,
        questions: dict[int, RecordDict],
        round: int,
        timeout: float,
        heard: Callable[[int], None] | None = None,
    ) -> dict[int, Answer]:
        answers = super().ask(kind, questions, round, timeout, heard)
        if kind == "query.scores":
            table = codec.decode_table(answers[1])  # type: ignore[arg-type]
            table["global"]["cases"]["2022"]["scores"]["auroc"] = 7
            answers[1] = codec.encode_table(table)
        return answers


def test_a_site_that_lies_is_left_out_and_named(tmp_path: Path) -> None:
    trial, honest = at_sites(tmp_path, patients())
    post = Liar(tmp_path, 3)
    post.contexts = honest.contexts
    rounds = deploy(trial, tmp_path, transport=post)
    run = read(rounds.folder)
    assert run.scores is not None
    assert list(run.scores["personal"]["cases"]["2022"]["clients"]) == [rounds.sites[0], rounds.sites[2]]
    (left,) = [event for event in run.events if event["event"] == "left out"]
    assert left["site"] == rounds.sites[1] and "has 7 as the auroc of 2022" in left["why"]


def test_nothing_is_asked_where_nothing_is_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "collect_scores", lambda rounds: pytest.fail("asked"))
    trial, post = at_sites(tmp_path, patients())
    rounds = deploy(trial, tmp_path, dataclasses.replace(SETTINGS, evaluate=False), post)
    assert read(rounds.folder).scores is None
    with pytest.raises(UserError, match="neither scores nor predictions"):
        run_scores(read(rounds.folder))
