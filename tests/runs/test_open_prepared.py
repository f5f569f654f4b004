"""A run whose contexts were inferred is opened and exported without training anything again."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from perinvfl.cli import call
from perinvfl.core import checkpoint
from perinvfl.engine.program_run import Preparation
from perinvfl.runs.group import forget_prepared
from perinvfl.runs.loaded import LoadedRun, open_run

PREPARED = """
name = "prepared"
[data]
benchmark = "random"
samples = 20
holdout = 10
[contexts]
infer = "hard"
{more}
reference_rounds = 3
reference_rate = 0.02
[model]
hidden = [5]
[training]
rounds = 5
evaluate_every = 5
executor = "{executor}"
device = "cpu"
[[algorithm]]
name = "perinvfl"
learning_rate = 0.3
"""


def prepared_run(folder: Path, executor: str, more: str = "") -> Path:
    file = folder / "prepared.toml"
    file.write_text(PREPARED.format(executor=executor, more=more))
    assert call(["run", str(file), "--quiet", "--out", str(folder / "runs")]) == 0
    forget_prepared()  # another process would have nothing in memory
    return next((folder / "runs").rglob("events.jsonl")).parent


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which phases had a round of preparation, from here on."""
    done: list[str] = []
    real = Preparation.round

    def counted(self: Preparation) -> Tensor:
        done.append(self.phase.name)
        return real(self)

    monkeypatch.setattr(Preparation, "round", counted)
    return done


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Preparation) -> Tensor:
        raise AssertionError(f"the phase {self.phase.name} would be trained again")

    monkeypatch.setattr(Preparation, "round", refuse)


def assert_same_models(one: LoadedRun, other: LoadedRun) -> None:
    assert one.shared is not None and other.shared is not None and one.personal and other.personal
    for left, right in zip([one.shared, *one.personal], [other.shared, *other.personal], strict=True):
        assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("more", ["", "every = 2"], ids=["once", "again on the way"])
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_opened_and_exported_without_training(
    executor: str, more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = prepared_run(tmp_path, executor, more)
    forbid(monkeypatch)
    opened = open_run(run)
    last = opened.run.evaluations[-1]["personal"]
    for case, test in opened.federation.tests.items():  # the models are those that were evaluated
        for client in range(opened.federation.clients):
            real = test.context[client] >= 0
            logits = opened.predict(opened.lead(client), test.x[client, real])[:, 0]
            right = ((logits > 0).float() == test.y[client, real]).float().mean()
            assert float(right) == pytest.approx(last[case][client], abs=1e-4)
    file = tmp_path / "m.safetensors"
    assert call(["export", str(run), "--client", "1", "--format", "safetensors", "-o", str(file)]) == 0
    assert file.exists()


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_checkpoint_without_notes_is_prepared_again(
    executor: str, tmp_path: Path, rounds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As written before notes were kept."""
    run = prepared_run(tmp_path, executor)
    assert rounds == ["reference"] * 3
    now = open_run(run)
    assert len(rounds) == 3
    path = run / "checkpoint.pt"
    saved = checkpoint.load(path)
    old = {name: leaf for name, leaf in saved.items() if not name.startswith("notes.")}
    assert len(old) < len(saved)
    checkpoint.save(path, old)
    assert_same_models(open_run(run), now)
    assert rounds == ["reference"] * 6
    forbid(monkeypatch)
    with pytest.raises(AssertionError, match="would be trained again"):
        open_run(run)
