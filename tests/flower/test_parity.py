"""Whatever a file can ask for runs in the simulator and deployed, with the same bits, or is refused by both with the
same sentence. Through the real codec; `test_processes.py` does the same with real processes and TLS."""

import dataclasses
import math
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from perinvfl.algorithms import ALGORITHMS, Broadcast, ClientState, Recommended
from perinvfl.engine.local_client import LocalClient
from perinvfl.errors import UserError
from perinvfl.flower.settings import check_deployment
from perinvfl.runs.experiment import build_experiment
from perinvfl.runs.records import read_run
from perinvfl.runs.trial import Trial
from tests.commands import ROOT
from tests.flower.all_pairs import Case, all_pairs
from tests.flower.deployed import SETTINGS, assert_same, deploy, simulate

CHOICES: dict[str, list[str]] = {
    "algorithm": [
        *(name for name in ALGORITHMS if not ALGORITHMS[name].pooled),
        "perinvfl over groups",
        "recommended, aligned",
        "own",
    ],
    "data": ["random", "digits", "birds", "table", "arrays", "structural", "classes"],
    "model": ["mlp", "resnet group", "resnet batch", "module"],
    "contexts": ["given", "judge", "balance", "discount", "soft", "xrm", "again", "aligned"],
    "images": ["as they are", "crop", "flip", "middle"],
    "aggregation": ["mean", "agreement", "matching", "both", "trimming", "median", "clipping"],
    "global model": ["last", "mean"],
    "weights": ["uniform", "samples"],
    "fraction": ["all", "some"],
    "batches": ["full", "mini"],
}
OVER_CONTEXTS = ("groupdro", "irm", "irm_l2", "irm_ft", "perinvfl", "perinvfl over groups")


HEADS = ("fedper", "fedrep", "lg_fedavg", "fedala", "fedsr", "fediir")  # a module does not say which layer is its last


NOTHING_TO_SET = ("recommended", "recommended, aligned")


def fits(case: Case) -> bool:
    """What can be asked for at once; the rest is refused, see below."""

    def among(name: str, *options: str) -> bool:
        return case.get(name, options[0]) in options

    def has(name: str, *options: str) -> bool:
        return case.get(name) in options

    one_context = among("data", "digits", "birds", "arrays")
    return all(
        (
            not has("model", "resnet group", "resnet batch") or among("data", "birds"),
            not has("images", "flip", "middle") or among("data", "birds"),
            not has("images", "crop") or among("data", "digits", "birds"),
            not has("images", "crop", "flip", "middle") or among("batches", "mini"),
            not has("data", "structural") or among("contexts", "given"),
            not has("data", "classes") or among("contexts", "given", "judge", "balance", "discount", "xrm", "again"),
            not has("contexts", "xrm") or not has("model", "resnet batch"),
            not has("contexts", "aligned") or among("data", "digits", "birds"),
            not has("contexts", "soft") or one_context,
            not has("contexts", "balance", "soft", "again") or among("algorithm", *OVER_CONTEXTS),
            not has("algorithm", *HEADS) or not has("model", "module"),
            not has("algorithm", "fedbn")
            or (among("model", "resnet group", "resnet batch") and among("data", "birds")),
            not has("algorithm", "alone", *NOTHING_TO_SET) or among("global model", "last"),
            not has("algorithm", "alone") or among("aggregation", "mean"),
            not has("algorithm", *NOTHING_TO_SET) or (among("aggregation", "mean") and among("contexts", "given")),
            not has("algorithm", "recommended, aligned") or among("data", "digits", "birds"),
        )
    )


CASES = all_pairs(CHOICES, fits)
DATA: dict[str, dict[str, Any]] = {
    "random": {"benchmark": "random", "clients": 3, "samples": 18, "holdout": 8},
    "digits": {"benchmark": "rc_mnist", "p_train": [0.9, 0.8, 0.7], "train_per_client": 24, "holdout": 6,
               "test_per_client": 6, "p_test": [0.1, 0.9]},
    "birds": {"benchmark": "drawn_birds", "p_train": [0.9, 0.8, 0.7], "train_per_client": 12, "holdout": 4,
              "test_per_client": 6, "p_test": [0.1, 0.5], "size": 12, "birds": 30, "backgrounds": 60, "left_over": 0},
    "structural": {"benchmark": "structural", "clients": 3, "contexts": 2, "samples": 10, "holdout": 2},
    "classes": {"benchmark": "random", "clients": 3, "samples": 18, "task": "multiclass", "outputs": 3, "holdout": 8},
}  # fmt: skip
IMAGES: dict[str, dict[str, Any]] = {"crop": {"crop": 1}, "flip": {"flip": True}, "middle": {"middle": [0.4, 0.8]}}
MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": [5]},
    "resnet group": {"kind": "resnet18", "width": 2, "stem": "small"},
    "resnet batch": {"kind": "resnet18", "width": 2, "stem": "small", "norm": "batch"},
    "module": {"kind": "module", "build": "tests.flower.own_module:build"},
}
REFERENCE = {"infer": "hard", "reference_rounds": 2, "reference_rate": 0.02}
CONTEXTS: dict[str, dict[str, Any]] = {
    "given": {},
    "judge": {**REFERENCE, "use": "judge"},
    "balance": {**REFERENCE, "use": "balance"},
    "discount": {**REFERENCE, "use": "discount"},
    "soft": {**REFERENCE, "infer": "soft", "use": "balance", "soft_steps": 5},
    "xrm": {**REFERENCE, "infer": "xrm", "use": "discount"},
    "again": {**REFERENCE, "use": "balance", "every": 2},
    "aligned": {**REFERENCE, "use": "discount", "align": "rotations and flips"},
}
AGGREGATION: dict[str, dict[str, Any]] = {"mean": {}, "agreement": {"agreement": 0.6}, "matching": {"matching": 0.5},
               "both": {"agreement": 0.6, "matching": 0.5}, "trimming": {"trimming": 0.3, "agreement": 0.6},
               "median": {"trimming": 0.5}, "clipping": {"clipping": 0.9, "trimming": 0.2}}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """A table and arrays of three sites, of unlike sizes."""
    folder, rng = tmp_path_factory.mktemp("own"), numpy.random.default_rng(0)
    x = rng.normal(size=(70, 3))
    client = rng.choice(3, size=70, p=[0.5, 0.3, 0.2])
    year = 2020 + rng.integers(0, 3, 70)
    y = (x[:, 0] + 0.5 * rng.normal(size=70) > 0).astype(int)
    columns = zip(client, year, x, y, strict=True)
    rows = [f"h{c},{t},{a:.5f},{b:.5f},{d:.5f},{label}" for c, t, (a, b, d), label in columns]
    (folder / "sites.csv").write_text("\n".join(["site,year,a,b,c,ill", *rows]) + "\n")
    numpy.savez(folder / "sites.npz", x=x, y=y, client=client, context=(year > 2021).astype(int))
    table = {"label": "ill", "client": "site", "context": "year", "test_contexts": [2022], "holdout": 0.2}
    return {
        "table": {"benchmark": "file", "path": str(folder / "sites.csv"), **table},
        "arrays": {"benchmark": "file", "path": str(folder / "sites.npz"), "test_contexts": [1], "holdout": 0.2},
    }


def trial_for(case: Case, files: dict[str, dict[str, Any]]) -> Trial:
    method = case["algorithm"]
    name = {"own": "new_algorithm:FadingProx", "perinvfl over groups": "perinvfl"}.get(method, method)
    rate = 1e-4 if case["data"] == "structural" else 0.02  # a squared error is steep
    steps = 1 if case["model"].startswith("resnet") else 2  # of a large model one is enough
    algorithm: dict[str, Any] = {"name": name, "learning_rate": rate, "local_steps": steps}
    algorithm |= AGGREGATION[case["aggregation"]]
    algorithm |= {"average_after": 1} if case["global model"] == "mean" else {}
    if method in NOTHING_TO_SET:
        algorithm = {"name": "recommended"}
    if method == "perinvfl over groups":
        algorithm |= {"invariance": "groupdro", "group_step": 0.3, "personal_optimizer": "adam"}
    if method in ("ditto", "perinvfl", "perinvfl over groups", "irm_l2", "pfedme", "fedrep", "apfl", "per_fedavg"):
        algorithm["personal_learning_rate"] = rate
    if method in ("ftfa", "irm_ft"):
        algorithm["finetune_learning_rate"] = rate
    data = files.get(case["data"]) or DATA[case["data"]]
    training = {"rounds": 3, "evaluate_every": 2, "executor": "loop", "device": "cpu", "weights": case["weights"]}
    training |= {"batch_size": 6 if case["batches"] == "mini" else 0}
    training |= {"fraction": 0.67 if case["fraction"] == "some" else 1.0}
    table = {
        "seeds": [3],
        "data": {**data, **IMAGES.get(case["images"], {})},
        "contexts": {"align": "rotations"} if method == "recommended, aligned" else CONTEXTS[case["contexts"]],
        "model": MODELS[case["model"]],
        "training": training,
        "algorithm": algorithm,
    }
    return build_experiment(table).trials[0]


@pytest.fixture(scope="module", autouse=True)
def _own_algorithm() -> Any:
    """The example's algorithm, as a user's own: by its module, which lies beside the experiment."""
    before = dict(ALGORITHMS)
    sys.path.append(str(ROOT / "examples"))
    yield
    sys.path.remove(str(ROOT / "examples"))
    ALGORITHMS.clear()
    ALGORITHMS.update(before)


@pytest.mark.parametrize("case", CASES, ids=lambda case: ", ".join(case.values()))
def test_a_deployed_run_is_the_simulators_to_the_bit(
    case: Case, files: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    trial = trial_for(case, files)
    simulated = simulate(trial, tmp_path)
    rounds = deploy(trial, tmp_path)
    assert_same(trial, rounds, tmp_path, simulated)


def test_a_deployed_run_exchanges_borders_and_averages_as_the_simulator_does(tmp_path: Path) -> None:
    pictures = {**DATA["birds"], "train_per_client": 40, "birds": 70, "backgrounds": 110, "flip": True}
    table = {
        "seeds": [3],
        "data": pictures,
        "contexts": {"hide_middle": 0.7},
        "model": MODELS["resnet group"],
        "training": {"rounds": 4, "evaluate_every": 2, "executor": "loop", "device": "cpu", "batch_size": 6},
        "algorithm": {"name": "recommended"},
    }
    trial = build_experiment(table).trials[0]
    simulated = simulate(trial, tmp_path)
    assert_same(trial, deploy(trial, tmp_path), tmp_path, simulated)
    runs = [read_run(record.parent) for record in tmp_path.rglob("events.jsonl")]
    assert runs and all(run is not None and run.found["shortcut"]["borders_exchanged"] for run in runs)


def test_a_deployed_run_finds_a_mark_as_the_simulator_does(tmp_path: Path) -> None:
    rng = numpy.random.default_rng(0)
    client, y = numpy.repeat(numpy.arange(3), 200), rng.integers(0, 2, 600)
    tag = numpy.where(rng.random(600) < numpy.array([0.95, 0.8, 0.65])[client], y, 1 - y)
    x = rng.normal(size=(600, 1, 8, 8))
    x[:, 0, 3:5, 3:5] += y[:, None, None]
    x[:, 0, :2, :2] += 3 * tag[:, None, None]
    numpy.savez(tmp_path / "tags.npz", x=x.astype(numpy.float32), y=y, client=client)
    table = {
        "seeds": [3],
        "data": {"benchmark": "file", "path": str(tmp_path / "tags.npz"), "test_share": 0.2},
        "model": {"hidden": [4]},
        "training": {"rounds": 4, "evaluate_every": 2, "executor": "loop", "device": "cpu"},
        "algorithm": {"name": "recommended"},
    }
    trial = build_experiment(table).trials[0]
    simulated = simulate(trial, tmp_path)
    assert_same(trial, deploy(trial, tmp_path), tmp_path, simulated)
    runs = [read_run(record.parent) for record in tmp_path.rglob("events.jsonl")]
    assert runs and all(run is not None and 0 in run.found["shortcut"]["hidden"] for run in runs)


def test_the_cases_hold_every_pair() -> None:
    for a in CHOICES:
        for b in CHOICES:
            for one in CHOICES[a]:
                for other in CHOICES[b]:
                    held = any(case[a] == one and case[b] == other for case in CASES)
                    assert held or (a == b and one != other) or not _possible({a: one, b: other}), (one, other)


def _possible(pair: Case) -> bool:
    """Whether the two can stand in one case at all, the data chosen freely."""
    return any(fits({**pair, "data": data}) for data in CHOICES["data"] if pair.get("data", data) == data)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"data": DATA["structural"], "contexts": CONTEXTS["discount"]}, "a regression has no right and wrong answers"),
    ({"data": DATA["random"], "contexts": CONTEXTS["soft"]}, "splits clients that have one context each"),
    ({"data": DATA["random"], "contexts": CONTEXTS["aligned"]}, "takes square images"),
    ({"data": DATA["random"], "contexts": {**CONTEXTS["discount"], "hide_middle": 0.5}}, "have no middle"),
    ({"data": DATA["random"], "training": {"rounds": 1, "batch_size": 100}}, "no client has as many samples"),
    ({"data": {**DATA["birds"], "flip": True}, "training": {"rounds": 1}}, "need mini-batches"),
    ({"data": DATA["random"], "model": {"kind": "resnet18"}}, "takes images of three colours"),
]


@pytest.mark.parametrize(("asked", "sentence"), REFUSED, ids=[sentence for _, sentence in REFUSED])
def test_what_one_refuses_the_other_refuses_alike(asked: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    table = {"model": {"hidden": [4]}, "training": {"rounds": 1}, "algorithm": {"name": "perinvfl"}, **asked}
    trial = build_experiment(table).trials[0]
    check_deployment(SETTINGS, trial, trial.data.clients)
    with pytest.raises(UserError, match=sentence) as alone:
        simulate(trial, tmp_path)
    with pytest.raises(UserError, match=sentence) as deployed:
        deploy(trial, tmp_path)
    assert str(alone.value) in str(deployed.value)


def test_alignment_across_machines_needs_a_word_that_allows_it() -> None:
    trial = build_experiment({"data": DATA["digits"], "contexts": CONTEXTS["aligned"], "algorithm": {"name": "irm"}})
    with pytest.raises(UserError, match=r"federation.pilot_may_be_seen = true"):
        check_deployment(type(SETTINGS)(), trial.trials[0], 3)


def test_recommended_is_refused_under_noise() -> None:
    """Its sums would leave a site without any."""
    trial = build_experiment({"data": DATA["digits"], "algorithm": {"name": "recommended"}}).trials[0]
    with pytest.raises(UserError, match="which noise on updates does not cover"):
        check_deployment(dataclasses.replace(SETTINGS, noise_multiplier=1.0), trial, 3)


@pytest.mark.parametrize("drive", [simulate, deploy], ids=["simulated", "deployed"])
def test_a_run_that_becomes_infinite_goes_on(drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the second round of the last phase every update is infinite."""
    plain = LocalClient.round

    def spoilt(self: LocalClient, broadcast: Broadcast, state: ClientState, indices: Any) -> Any:
        upload, new = plain(self, broadcast, state, indices)
        if isinstance(self.algorithm, Recommended) and int(broadcast.round) == 1:
            upload = upload._replace(update={name: leaf * math.nan for name, leaf in upload.update.items()})
        return upload, new

    monkeypatch.setattr(LocalClient, "round", spoilt)
    table = {
        "data": DATA["random"],
        "model": {"hidden": [4]},
        "training": {"rounds": 4, "executor": "loop", "device": "cpu"},
        "algorithm": {"name": "recommended"},
    }
    drive(build_experiment(table).trials[0], tmp_path)
    runs = [run for path in tmp_path.rglob("events.jsonl") if (run := read_run(path.parent)) is not None]
    assert runs and all(run.finished and run.broken is None for run in runs)
