"""Methods with all data in one place: what they see, and every way to use them."""

from pathlib import Path
from typing import Any

import pytest
import torch

import perinvfl as pf
from perinvfl.algorithms import ALGORITHMS
from perinvfl.data.benchmarks.random import random_federation
from perinvfl.errors import UserError
from perinvfl.flower.settings import DeploymentSettings, check_deployment
from perinvfl.preparation.pooling import pooled_view
from perinvfl.runs.experiment import build_experiment
from perinvfl.runs.records import find_runs
from tests.commands import called

POOLED = [name for name in ALGORITHMS if ALGORITHMS[name].pooled]
FILE = """
name = "costs"
[data]
benchmark = "random"
clients = 4
samples = 40
holdout = 6
[model]
hidden = [8]
[training]
rounds = 6
evaluate_every = 2
device = "cpu"
executor = "{executor}"
"""


def test_there_are_four() -> None:
    assert POOLED == ["pooled_erm", "pooled_irm", "pooled_groupdro", "pooled_fishr"]


def test_one_client_holds_everyones_rows_and_tests_stay() -> None:
    given = random_federation(clients=3, contexts=2, samples=11, shape=(4,), holdout=4)
    seen = pooled_view(given, {})
    assert seen.clients == 1 and seen.contexts == 3 and int(seen.train.context.min()) == 0
    for client in range(3):
        own, mine = given.train.context[client] >= 0, seen.train.context[0] == client
        assert torch.equal(seen.train.x[0, mine], given.train.x[client, own])
        assert torch.equal(seen.train.y[0, mine], given.train.y[client, own])
    assert seen.tests is given.tests and seen.validation is given.validation


def test_erm_of_clients_of_one_size_is_fedavg_of_one_step() -> None:
    """Where federation costs nothing, the two agree to rounding."""
    federation = pf.load("random", clients=3, uneven=False, samples=20)
    models = []
    for name in ("fedavg", "pooled_erm"):
        session = pf.start(federation, pf.algorithm(name, learning_rate=0.3), rounds=5, model={"hidden": [6]})
        models.append(session.run().fitted().shared)
    assert models[0] is not None and models[1] is not None
    for name, leaf in models[0].items():
        torch.testing.assert_close(leaf, models[1][name], rtol=1e-4, atol=1e-6)


def test_irm_of_one_step_is_irm_across_clients() -> None:
    federation = pf.load("random", clients=3, uneven=False, samples=20)
    models = []
    for name in ("irm", "pooled_irm"):
        algorithm = pf.algorithm(name, learning_rate=0.3, warmup_rounds=2, penalty_weight=20.0)
        models.append(pf.start(federation, algorithm, rounds=5, model={"hidden": [6]}).run().fitted().shared)
    assert models[0] is not None and models[1] is not None
    for name, leaf in models[0].items():
        torch.testing.assert_close(leaf, models[1][name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_they_run_and_stand_in_a_table(executor: str, tmp_path: Path) -> None:
    methods = "".join(f'[[algorithm]]\nname = "{name}"\nlocal_steps = 2\n' for name in ["fedavg", *POOLED])
    file, out = tmp_path / "costs.toml", tmp_path / "runs"
    file.write_text(FILE.format(executor=executor) + methods)
    assert called("run", file, "--quiet", "--out", out).returncode == 0
    runs = find_runs(out)
    assert len(runs) == 5 and all(run.finished and run.clients == 4 for run in runs)
    assert all(len(scores) == 4 for run in runs for scores in run.evaluations[-1]["global"].values())
    shown = called("table", out)
    assert shown.returncode == 0 and "Fishr, pooled" in shown.stdout
    report = called("report", out, "--out", tmp_path / "report.html")
    assert report.returncode == 0, report.stderr
    folder = next(out.glob("**/groupdro-pooled-*"))
    made = called("export", folder, "--global", "--format", "safetensors", "-o", tmp_path / "m.safetensors")
    assert made.returncode == 0, made.stderr


@pytest.mark.parametrize("name", POOLED)
def test_a_session_goes_on_where_it_was_saved(name: str, tmp_path: Path) -> None:
    federation = pf.load("random", clients=3)

    def begin() -> Any:
        algorithm = pf.algorithm(name, optimizer="adam", learning_rate=0.01)
        return pf.start(federation, algorithm, rounds=6, model={"hidden": [6]}, batch_size=6)

    whole, part = begin().run(), begin()
    for _ in range(3):
        assert list(part.step().risks) == ["all clients"]
    part.save(tmp_path / "run")
    resumed = pf.resume(tmp_path / "run", federation).run()
    models = whole.fitted().shared, resumed.fitted().shared
    assert models[1] is not None and all(torch.equal(leaf, models[1][name]) for name, leaf in models[0].items())
    x = federation.tests["0.1"].x[0]
    assert torch.equal(whole.predict_proba(x, client="2"), whole.predict_proba(x))


@pytest.mark.parametrize("name", POOLED)
def test_they_cannot_be_deployed_and_say_so(name: str) -> None:
    trial = build_experiment({"data": {"benchmark": "random"}, "algorithm": {"name": name}}).trials[0]
    with pytest.raises(UserError, match="needs the data of all clients in one place; it cannot run across machines"):
        check_deployment(DeploymentSettings(), trial, 3)


def test_they_take_clients_for_contexts() -> None:
    with pytest.raises(UserError, match=r"clients for contexts; leave \[contexts\] out"):
        pf.start(pf.load("random"), "pooled_irm", contexts={"infer": "hard", "use": "discount"})
