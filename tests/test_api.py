"""The library from Python: the same numbers as the command line, and sessions that are saved and taken up again."""

import json
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import perinvfl as pf
from perinvfl.algorithms import ALGORITHMS, Ditto
from perinvfl.data.benchmarks.random import random_federation
from perinvfl.errors import UserError
from perinvfl.runs.records import read_run
from tests.commands import ROOT, called

NAMED: dict[str, Any] = {"label": "ill", "client": "hospital", "context": "year"}
SMALL = {"hidden": [4]}


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's table, small."""
    path = tmp_path_factory.mktemp("sites") / "sites.csv"
    subprocess.run([sys.executable, ROOT / "examples/make_sites.py", path, "--each", "20"], check=True)
    return path


def test_importing_the_package_is_light() -> None:
    code = "import sys, perinvfl; print('torch' in sys.modules, 'perinvfl.api' in sys.modules); perinvfl.load"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
    with pytest.raises(AttributeError):
        pf.nonsense  # noqa: B018


def test_public_names_and_short_descriptions(sites: Path) -> None:
    assert {"load", "start", "from_arrays", "PersonalInvariantClassifier"} <= set(dir(pf))
    assert all(hasattr(pf, name) for name in dir(pf)) and "importlib" not in dir(pf)
    federation = pf.load(sites, **NAMED, test_contexts=2023)
    shown = repr(federation)
    assert len(shown.splitlines()) == 5 and "binary" in shown and "north" in shown and "tests: 2023" in shown
    assert f"{int(federation.sizes.sum())} training samples" in shown and "2 training contexts: 2021, 2022" in shown
    session = pf.start(federation, "ditto", rounds=2, model=SMALL)
    assert "Ditto on sites" in repr(session) and "round 0 of 2" in repr(session) and "accuracy" not in repr(session)
    scores = session.run().evaluate()["2023"]
    known = [score for score in scores.values() if score is not None]
    assert "round 2 of 2" in repr(session) and len(repr(session).splitlines()) == 4
    assert f"accuracy after round 2: 2023 {100 * sum(known) / len(known):.1f} %" in repr(session)


def test_rounds_one_by_one_give_what_the_command_line_records(sites: Path, tmp_path: Path) -> None:
    federation = pf.load(sites, **NAMED, test_contexts=["2023"])
    session = pf.start(federation, pf.algorithm("ditto", pull=0.5), rounds=4, model=SMALL)
    numbers = [round.number for round in session]
    assert numbers == [1, 2, 3, 4] and session.rounds_done == 4
    scores = session.evaluate()
    assert set(scores) == {"2023", "same contexts", "validation"}
    assert list(scores["2023"]) == ["centre", "east", "north", "south", "west"]
    file = tmp_path / "t.toml"
    file.write_text(
        f'[data]\nbenchmark = "file"\npath = "{sites}"\nlabel = "ill"\nclient = "hospital"\ncontext = "year"\n'
        "test_contexts = [2023]\n[model]\nhidden = [4]\n[training]\nrounds = 4\n[[algorithm]]\n"
        'name = "ditto"\npull = 0.5\n'
    )
    done = called("run", file, "--out", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in next((tmp_path / "runs").rglob("events.jsonl")).read_text().splitlines()]
    assert {case: list(row.values()) for case, row in scores.items()} == events[-2]["personal"]
    assert session.trial.asked()["data"]["checksum"] == events[0]["asked"]["data"]["checksum"]
    folder = session.save(tmp_path / "mine")
    shown = called("table", folder, "--format", "json")
    assert json.loads(shown.stdout)["rows"][1]["method"] == "Ditto"
    assert session.evaluate("global").keys() == scores.keys()


@pytest.mark.parametrize("name", ["perinvfl", "ftfa", "alone"])
def test_a_saved_session_goes_on_as_if_nothing_had_happened(sites: Path, tmp_path: Path, name: str) -> None:
    def begin(rounds: int) -> pf.Session:
        federation = pf.load(sites, **NAMED, test_contexts=["2023"], seed=3)
        return pf.start(federation, name, rounds=rounds, model=SMALL, batch_size=8)

    whole = begin(6).run()
    half = begin(6)
    for _ in range(3):
        half.step()
    half.evaluate()
    half.save(tmp_path / "half")
    half.save(tmp_path / "half")  # again, in its own place
    taken_up = pf.resume(tmp_path / "half")
    assert taken_up.rounds_done == 3
    taken_up.run()
    x = [[5.0, 120.0, 50.0, 1.0, 0.0], [1.0, 90.0, 40.0, -1.0, 0.5]]
    assert torch.equal(taken_up.predict_proba(x, "north"), whole.predict_proba(x, "north"))
    assert taken_up.evaluate() == whole.evaluate()
    record = read_run(begin(2).run().save(tmp_path / "short"))
    assert record is not None and record.finished and record.evaluations, "what was not evaluated is, at the end"
    other = pf.start(pf.load("random"), "fedavg", rounds=1, model=SMALL)
    with pytest.raises(UserError, match="holds another run"):
        other.save(tmp_path / "half")
    with pytest.raises(UserError, match="holds no saved session"):
        pf.resume(tmp_path / "nothing")


def test_arrays_and_a_module_without_a_name_are_given_again(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 3
    given: dict[str, Any] = {"client": ["a", "b"] * 30, "context": [0] * 30 + [1] * 30}
    federation = pf.from_arrays(x, y, **given)
    assert (federation.task, federation.outputs) == ("multiclass", 3)
    build = lambda: nn.Linear(3, 3)  # noqa: E731
    session = pf.start(federation, "fedavg", rounds=2, model=build).run()
    session.save(tmp_path / "mine")
    with pytest.raises(UserError, match="give the federation again"):
        pf.resume(tmp_path / "mine")
    with pytest.raises(UserError, match="trained on other data"):
        pf.resume(tmp_path / "mine", pf.from_arrays(x + 1, y, **given))
    with pytest.raises(UserError, match=r"model\.build"):
        pf.resume(tmp_path / "mine", pf.from_arrays(x, y, **given))
    with pytest.raises(UserError, match=r"have other shapes|not of this kind"):
        pf.resume(tmp_path / "mine", pf.from_arrays(x, y, **given), model=SMALL)
    again = pf.resume(tmp_path / "mine", pf.from_arrays(x, y, **given), model=build)
    assert torch.equal(again.predict_proba(x, "a"), session.predict_proba(x, "a"))
    assert session.predict_proba(x, "b").sum(1).allclose(torch.ones(60))
    assert set(session.predict(x, "b")) <= {"0", "1", "2"}


def test_predictions_take_inputs_as_they_were_in_the_file(sites: Path) -> None:
    federation = pf.load(sites, **NAMED, test_contexts=["2023"])
    session = pf.start(federation, "ditto", rounds=20, model=SMALL).run()
    lines = [line.split(",") for line in sites.read_text().splitlines()[1:]]
    north = [line for line in lines if line[0] == "north" and line[1] == "2023"]
    said = session.predict([[float(cell) for cell in line[2:7]] for line in north], "north")
    right = sum(a == line[-1] for a, line in zip(said, north, strict=True)) / len(north)
    assert right == pytest.approx(session.evaluate()["2023"]["north"], abs=1e-6)
    shared = session.predict([[float(cell) for cell in line[2:7]] for line in north])
    assert len(shared) == len(north)
    # Parameters are those the outputs come from.
    params = session.parameters("north")
    inputs = torch.tensor([[float(cell) for cell in north[0][2:7]]], dtype=torch.float64)
    scaled = ((inputs - torch.tensor(federation.schema.mean)) / torch.tensor(federation.schema.scale)).float()
    hidden = torch.relu(scaled @ params["0.weight"].T + params["0.bias"])
    by_hand = hidden @ params["1.weight"].T + params["1.bias"]
    torch.testing.assert_close(by_hand, session.outputs(inputs, "north"), rtol=1e-4, atol=1e-5)


def test_a_regression_answers_in_its_own_unit() -> None:
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    y = 5000 + 300 * x[:, 0] - 100 * x[:, 1]
    federation = pf.from_arrays(x, y, client=[i % 2 for i in range(200)])
    session = pf.start(federation, pf.algorithm("fedavg", learning_rate=0.1, local_steps=5), model={"kind": "linear"})
    session.run()
    said, error = session.predict(x), session.evaluate()["same contexts"]["0"]
    assert isinstance(said, torch.Tensor) and (said - y).abs().max() < 30
    assert error is not None and error < 0.01
    with pytest.raises(UserError, match="has no classes"):
        session.predict_proba(x)


def test_mistakes_are_answered(sites: Path) -> None:
    federation = random_federation()
    for wrong, sentence in (
        (lambda: pf.load("no_such_file.csv"), "does not exist"),
        (lambda: pf.load(sites, **NAMED, test_contexts="2031"), "no context of these data"),
        (lambda: pf.load("random", nonsense=1), "nonsense is not a setting"),
        (lambda: pf.load(sites, **NAMED, leave_one_context_out=True), "name the one to hold out"),
        (lambda: pf.algorithm("perinvl"), "did you mean perinvfl"),
        (lambda: pf.algorithm("perinvfl", beta=-1), "at least 0"),
        (lambda: pf.start(federation, "fedavg", rounds=0), "at least 1"),
        (lambda: pf.start(federation, "fedavg", batch=3), "training.batch is not a setting"),
        (lambda: pf.start(federation, "alone", model=SMALL).predict([[1.0] * 6]), "has no global model"),
        (lambda: pf.start(federation, "alone", model=SMALL).predict([[1.0] * 6], "9"), "is not a client"),
        (lambda: pf.start(federation, "fedavg", model=SMALL).predict([[1.0] * 5]), r"rows of shape \[6\]"),
        (lambda: pf.start(federation, "fedavg", model=SMALL).predict([[float("nan")] * 6]), "row 1 holds a value"),
        (lambda: pf.start(federation, "fedavg", contexts={"use": "judge"}), "does nothing without contexts.infer"),
        (lambda: pf.start(str(sites), "fedavg"), "was given a str"),  # type: ignore[arg-type]
        (lambda: pf.PersonalInvariantClassifier().predict([[1.0]]), "not fitted yet"),
        (lambda: pf.start(federation, "fedavg", model=SMALL).evaluate("personal"), "has global models"),
        (
            lambda: pf.start(federation, pf.algorithm("fedavg", learning_rate=1e18), model=SMALL).run(),
            "no longer finite",
        ),
        (lambda: pf.from_arrays([[1.0], [2.0]], [0, 1], leave_one_context_out=True), "at a time"),
    ):
        with pytest.raises(UserError, match=sentence):
            wrong()
    nothing = pf.from_arrays([[1.0], [2.0]], [0, 1], test_share=0, holdout=0)
    with pytest.raises(UserError, match="Nothing was held out"):
        pf.start(nothing, "fedavg", model=SMALL).evaluate()


def test_a_part_of_the_clients_and_lists_of_settings(sites: Path) -> None:
    federation = pf.load(sites, **NAMED, test_contexts=["2023"])
    session = pf.start(federation, Ditto(pull=(0.1, 0.2, 0.3, 0.4, 0.5)), rounds=3, fraction=0.4, model=SMALL)
    assert {len(round.risks) for round in session} == {2}


def test_contexts_can_be_inferred(sites: Path, tmp_path: Path) -> None:
    federation = pf.load(sites, **NAMED, test_contexts=["2023"])
    asked = {"infer": "hard", "reference_rounds": 3}
    session = pf.start(federation, "perinvfl", rounds=3, model=SMALL, contexts=asked).run()
    assert len(session.found["reference"]["wrong"]) == federation.clients
    assert "reference" in str(session.found)
    assert "validation right" in session.evaluate()
    session.save(tmp_path / "mine")
    assert pf.resume(tmp_path / "mine").evaluate() == session.evaluate()


# A new algorithm -----------------------------------------------------------------------------------------------------


@pytest.fixture
def _registry_as_before() -> Iterator[None]:
    before = dict(ALGORITHMS)
    yield
    ALGORITHMS.clear()
    ALGORITHMS.update(before)


@pytest.mark.usefixtures("_registry_as_before")
def test_the_example_algorithm_is_short_registers_and_agrees_under_both_executors() -> None:
    path = ROOT / "examples/new_algorithm.py"
    code = [line for line in path.read_text().splitlines() if line.strip()]
    assert len(code) <= 35
    cls = runpy.run_path(str(path))["FadingProx"]
    federation = pf.load("random", clients=4)

    def trained(executor: str, **settings: Any) -> dict[str, torch.Tensor]:
        made = pf.algorithm(cls, learning_rate=0.3, local_steps=3, **settings)
        return pf.start(federation, made, rounds=3, model=SMALL, executor=executor).run().parameters()

    looped, batched = trained("loop", mu=0.5), trained("vmap", mu=0.5)
    plain, free = trained("loop", mu=0.0), pf.start(
        federation, pf.algorithm("fedavg", learning_rate=0.3, local_steps=3), rounds=3, model=SMALL, executor="loop"
    ).run().parameters()  # fmt: skip
    for name in looped:
        torch.testing.assert_close(looped[name], batched[name])
        assert torch.equal(plain[name], free[name])  # without the pull it is FedAvg
    assert not torch.equal(looped["0.weight"], plain["0.weight"])
    by_name = pf.start(
        federation, pf.algorithm("fadingprox", mu=0.5, learning_rate=0.3, local_steps=3), rounds=3, model=SMALL
    )
    assert torch.equal(by_name.run().parameters()["0.weight"], looped["0.weight"])


def test_an_algorithm_of_ones_own_by_name_from_an_experiment_file(tmp_path: Path) -> None:
    (tmp_path / "new_algorithm.py").write_text((ROOT / "examples/new_algorithm.py").read_text())
    file = tmp_path / "own.toml"
    text = (
        '[data]\nbenchmark = "random"\n[model]\nhidden = [4]\n[training]\nrounds = 2\nexecutor = "{}"\n[[algorithm]]\n'
    )
    text += 'name = "new_algorithm:FadingProx"\nmu = 0.3\n'
    for executor in ("loop", "vmap"):
        file.write_text(text.format(executor))
        done = called("run", file, "--out", tmp_path / "runs", "--set", "algorithm.local_steps=2", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "FadingProx" in done.stdout
    swept = called("sweep", file, "--trials", "2", "--out", tmp_path / "runs", cwd=tmp_path)
    assert swept.returncode == 0, swept.stderr
    start = json.loads(next((tmp_path / "runs/own").rglob("events.jsonl")).read_text().splitlines()[0])
    assert start["asked"]["algorithm"]["name"] == "new_algorithm:FadingProx"
    (tmp_path / "new_algorithm.py").write_text("class FadingProx:\n    pass\n")
    refused = called("run", file, cwd=tmp_path)
    assert refused.returncode == 2 and "must be a dataclass that extends" in refused.stderr


@pytest.mark.parametrize("name", ["planted", "rc_mnist"])
def test_the_number_of_classes_of_a_benchmark_can_be_set(name: str) -> None:
    small = {"rows": 30, "test_rows": 5} if name == "planted" else {"train_per_client": 20, "test_per_client": 5}
    assert pf.load(name, classes=10, **small).outputs == 10


def test_a_client_without_a_name_has_the_number_that_commands_and_figures_give_it() -> None:
    session = pf.start(pf.load("random"), "ditto", rounds=2, model=SMALL).run()
    assert session.clients == ("Client 1", "Client 2", "Client 3")
    x = (
        session.federation.tests["shifted"].x[0]
        if "shifted" in session.federation.tests
        else session.federation.train.x[0]
    )
    for number, name in enumerate(session.clients, 1):
        by_number, by_name = session.outputs(x, str(number)), session.outputs(x, name)
        assert torch.equal(by_number, by_name)
        assert torch.equal(session.fitted().outputs(x, str(number)), by_name)
    assert not torch.equal(session.outputs(x, "1"), session.outputs(x, "2"))
    with pytest.raises(UserError, match='"0" is not a client'):
        session.outputs(x, "0")
