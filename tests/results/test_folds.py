"""Hospitals left out in turn, as one table: every score stands at the hospital whose model it is of."""

import json
from pathlib import Path

import numpy
import pytest

from perinvfl.cli import call
from perinvfl.results.folds import clients_of, join_folds
from perinvfl.results.packed import packed_files
from perinvfl.runs.records import PACKED, find_runs, lead_scores, mean_known, pack, read_packed
from perinvfl.scoring.measures import intervals
from perinvfl.scoring.run_scores import run_scores, with_scores
from perinvfl.scoring.sample_scores import Sample
from tests.commands import ROOT

HOSPITALS = ["cleveland", "hungarian", "switzerland", "va"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("left_out")
    file = ROOT / "experiments/heart_disease.toml"
    quick = ["data.leave_out=each", "training.rounds=2", "training.evaluate_every=1", "seeds=[0]"]
    given = [part for setting in quick for part in ("--set", setting)]
    assert call(["run", str(file), *given, "--out", str(folder), "--quiet"]) == 0
    return folder


def test_each_score_stands_at_its_own_hospital(runs: Path) -> None:
    folds = [run for run in find_runs(runs) if run.method == "Ditto"]
    assert [run.fold for run in folds] == HOSPITALS
    (joined,) = join_folds(folds)
    assert clients_of(joined) == HOSPITALS and joined.clients == 4 and joined.spectrum == HOSPITALS
    last = lead_scores(joined.evaluations[-1])
    for place, left_out in enumerate(HOSPITALS):
        assert last[left_out][place] is None, "nobody is tested on its own patients there"
        known = dict(zip(clients_of(folds[place]), lead_scores(folds[place].evaluations[-1])[left_out], strict=True))
        assert {name: last[left_out][k] for k, name in enumerate(HOSPITALS) if k != place} == known
    for k, name in enumerate(HOSPITALS):
        own = [
            lead_scores(run.evaluations[-1])["same hospital"][clients_of(run).index(name)]
            for run in folds
            if name in clients_of(run)
        ]
        assert last["same hospital"][k] == pytest.approx(mean_known(own))
        assert joined.notes["sizes"][k] in folds[(k + 1) % 4].notes["sizes"]
    scored = run_scores(joined)["cases"]
    assert list(scored["switzerland"]["clients"]) == ["cleveland", "hungarian", "va"]
    assert scored["switzerland"]["clients"]["va"]["counts"] == [8, 115]


def test_packed_runs_show_the_table_of_their_folders(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    pack([with_scores(run) for run in find_runs(runs)], tmp_path / "mine" / f"left_out{PACKED}")
    for score in ("accuracy", "auroc", "average-precision", "specificity"):
        tables = []
        for place in (runs, tmp_path / "mine"):
            assert call(["table", str(place), "--score", score, "--format", "json"]) == 0
            tables.append(json.loads(capsys.readouterr().out))
        for ours, theirs in zip(*(table["rows"] for table in tables), strict=True):
            assert ours["method"] == theirs["method"]
            for case in HOSPITALS:
                assert ours["cases"][case] == pytest.approx(theirs["cases"][case], abs=2e-3), (score, case)
    assert call(["table", "heart_disease", "--rule", "oracle"]) == 2
    assert "--rule does not apply" in capsys.readouterr().err


def test_the_published_runs_are_complete() -> None:
    files = packed_files(Path("heart_disease"))
    assert list(files) == ["heart_disease, each hospital left out", "heart_disease, within hospitals"]
    for (_, file), folds in zip(files.items(), (4, 1), strict=True):
        found = read_packed(file)
        assert len(found) == 4 * 5 * folds and all(run.finished and run.scores for run in found)


def test_shared_rows_are_drawn_together() -> None:
    """Three models that answer alike are tested on the same rows: their mean is as uncertain as one of them."""
    source = numpy.random.default_rng(1)
    y = (source.random(80) < 0.5).astype(float)
    one = Sample("binary", y, source.normal(y - 0.5, 1.0)[:, None])
    (low, high), (alone_low, alone_high) = (
        found["accuracy"] or (0.0, 0.0) for found in (intervals([one] * 3, together=True), intervals([one]))
    )
    assert (low, high) == pytest.approx((alone_low, alone_high), abs=0.02)
    apart = intervals([one] * 3)["accuracy"]
    assert apart is not None and apart[1] - apart[0] < 0.75 * (high - low)
