"""What `recommended` leaves out is left out of every exported file: it takes x as it is and looks away by itself."""

from pathlib import Path

import pytest
import torch

from perinvfl.cli import call
from perinvfl.export.formats import FORMATS, read_model
from perinvfl.export.predict import predict
from perinvfl.runs.loaded import open_run

DATA = {
    "table": 'benchmark = "planted"\np_train = [[0.95, 0.7], [0.95, 0.7], [0.95, 0.7]]\nrows = 200\ntest_rows = 40\n',
    "digits": 'benchmark = "rc_mnist"\np_train = [[0.95, 0.7], [0.95, 0.7]]\ntrain_per_client = 300\n'
    "test_per_client = 40\np_test = [0.1]\n",
    "ten digits": 'benchmark = "rc_mnist"\nclasses = 10\np_train = [[0.95, 0.6], [0.95, 0.6]]\n'
    "train_per_client = 600\ntest_per_client = 40\np_test = [0.1]\n",
}


@pytest.fixture(scope="module", params=sorted(DATA))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lens")
    rest = '[model]\nhidden = [8]\n[training]\nrounds = 6\n[[algorithm]]\nname = "recommended"\n'
    (folder / "lens.toml").write_text(f"[data]\n{DATA[request.param]}{rest}")
    assert call(["run", str(folder / "lens.toml"), "--out", str(folder / "runs")]) == 0
    return next((folder / "runs").rglob("events.jsonl")).parent


@pytest.mark.parametrize("shared", [False, True], ids=["personal", "shared"])
@pytest.mark.parametrize("form", FORMATS)
def test_an_exported_file_looks_away_by_itself(form: str, shared: bool, run: Path, tmp_path: Path) -> None:
    file = tmp_path / f"model.{form}"
    whose = ["--global"] if shared else ["--client", "1"]
    assert call(["export", str(run), *whose, "--format", form, "-o", str(file)]) == 0
    assert "Before training: " in Path(f"{file}.md").read_text(), "the card says what was left out"
    opened = open_run(run)
    raw = opened.trial.federation().tests["0.1"]
    found = predict(read_model(file), raw.x[1])
    right = (found["prediction"] == raw.y[1]).float().mean()
    kind = "global" if shared else "personal"
    assert float(right) == pytest.approx(opened.run.evaluations[-1][kind]["0.1"][1], abs=1e-4)

    # The shortcut may be anything: a column that was left out, or the colour of an image.
    other = raw.x[1].clone()
    if other.ndim == 2:
        other[:, -1] = torch.randn(len(other))
    else:
        other = other.flip(1)
    again = predict(read_model(file), other)
    torch.testing.assert_close(
        again["probability"], found["probability"], atol=2e-2 if other.ndim > 2 else 1e-6, rtol=0
    )
