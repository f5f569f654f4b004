"""In the manner of scikit-learn, and with scikit-learn itself."""

import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars
import pyarrow
import pytest
import sklearn
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_html_repr, get_tags
from sklearn.utils.estimator_checks import estimator_checks_generator

import perinvfl as pf
from perinvfl.algorithms import ALGORITHMS
from perinvfl.core.extras import how_to_install
from perinvfl.errors import UserError

SMALL: dict[str, Any] = {"rounds": 2, "hidden": (4,)}


CHECKED = [
    pytest.param(estimator, check, id=f"{type(estimator).__name__}-{getattr(check, 'func', check).__name__}")
    for made in (pf.PersonalInvariantClassifier(rounds=30), pf.PersonalInvariantRegressor(rounds=30))
    for estimator, check in estimator_checks_generator(made)
    if getattr(check, "func", check).__name__ != "check_array_api_input"  # needs arrays of other libraries
]


@pytest.mark.parametrize(("estimator", "check"), CHECKED)
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def data(task: str, rows: int = 240) -> dict[str, Any]:
    """y follows x0, with another sign at each of two clients; x1 is a shortcut that differs between two contexts."""
    rng = np.random.default_rng(0)
    client, context = np.arange(rows) % 2, np.arange(rows) // 2 % 2
    x = rng.normal(size=(rows, 2))
    quantity = 3 * np.where(client == 0, 1, -1) * x[:, 0]
    x[:, 1] += np.where(context == 0, 1.0, 0.4) * np.sign(quantity)
    y: Any = {
        "regression": 100 + 10 * quantity,
        "binary": np.where(quantity > 0, "up", "down"),
        "multiclass": np.digitize(quantity, [-2, 2]),
    }[task]
    return {"X": x, "y": y, "client": np.array(["a", "b"])[client], "context": context}


def test_the_default_needs_no_setting_and_leaves_a_shortcut_out() -> None:
    rng = np.random.default_rng(1)
    site, year = np.repeat(["a", "b", "c"], 200), np.tile([2021, 2022], 300)
    X = rng.normal(size=(600, 4)) * [1.0, 100.0, 0.01, 1.0]  # whatever the unit of a column
    y = np.where(X[:, 0] + X[:, 1] / 100 + rng.normal(size=600) > 0, "ill", "well")
    agrees = rng.random(600) < np.where(year == 2021, 0.97, 0.75)
    X[:, 3] = np.where(agrees == (y == "ill"), 5.0, -5.0)
    model = pf.PersonalInvariantClassifier().fit(X, y, client=site, context=year)
    assert model.session_.found["shortcut"]["left_out"] == [3]
    X[:, 3] = rng.choice([-5.0, 5.0], size=600)
    assert model.score(X, y, site) > 0.72


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_each_client_is_served_by_its_own_model(task: str) -> None:
    given = data(task)
    model = pf.PersonalInvariantClassifier(algorithm="perinvfl", rounds=60, hidden=(8,)).fit(**given)
    X, y, client = given["X"], given["y"], given["client"]
    assert model.classes_.tolist() == sorted(set(y.tolist())) and model.clients_.tolist() == ["a", "b"]
    assert model.score(X, y, client) > 0.8
    swapped = np.where(client == "a", "b", "a")
    assert model.score(X, y, swapped) < 0.6 < model.score(X, y, client)  # the other's sign is the other way round
    one = client == "a"
    assert (model.predict(X[one], "a") == model.predict(X, client)[one]).all()
    probability = model.predict_proba(X, client)
    assert probability.shape == (len(y), len(model.classes_)) and np.allclose(probability.sum(1), 1, atol=1e-6)
    assert model.predict(X).shape == y.shape  # the global model
    twins = [pf.PersonalInvariantClassifier(rounds=3, hidden=(8,)).fit(**given) for _ in range(2)]
    assert (twins[0].predict_proba(X, client) == twins[1].predict_proba(X, client)).all()


@pytest.mark.parametrize(("algorithm", "settings"), [("perinvfl", None), ("ditto", {"pull": 0.1}), ("alone", None)])
def test_a_regression_in_its_own_unit(algorithm: str, settings: dict[str, float] | None) -> None:
    given = data("regression")
    model = pf.PersonalInvariantRegressor(algorithm, settings, rounds=60, hidden=(8,)).fit(**given)
    assert model.score(given["X"], given["y"], given["client"]) > 0.8
    assert 50 < model.predict(given["X"], given["client"]).mean() < 150


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "fedbn"])  # needs norm layers
def test_the_usual_settings_admit_every_algorithm(algorithm: str) -> None:
    for kind, task in ((pf.PersonalInvariantClassifier, "binary"), (pf.PersonalInvariantRegressor, "regression")):
        given = data(task, 40)
        model = kind(algorithm, rounds=2, hidden=(4,)).fit(**given)
        assert np.isfinite(model.score(given["X"], given["y"], given["client"]))


def test_scikit_learn_can_clone_and_sort_them() -> None:
    model = pf.PersonalInvariantClassifier(algorithm="ditto", settings={"pull": 0.3}, rounds=2, hidden=[4])
    copied = clone(model)
    assert copied is not model and copied.get_params() == model.get_params()
    assert copied.set_params(rounds=np.int64(3)).rounds == 3 and model.rounds == 2
    with pytest.raises(ValueError, match="Invalid parameter 'nonsense'"):
        model.set_params(nonsense=1)
    assert is_classifier(model) and not is_regressor(model) and is_regressor(pf.PersonalInvariantRegressor())
    assert "algorithm='ditto'" in repr(model) and "batch_size" not in repr(model)
    assert "<div" in estimator_html_repr(model) and "ditto" in estimator_html_repr(model)
    given = data("binary", 40)
    pipe = make_pipeline(StandardScaler(), copied)
    pipe.fit(given["X"], given["y"], personalinvariantclassifier__client=given["client"])
    assert pipe.predict(given["X"], client="a").shape == (40,)


READ = """
import pickle, sys
for model, X, client, expected in pickle.load(open(sys.argv[1], "rb")):
    assert not hasattr(model, "session_")
    assert (model.predict_proba(X, client) == expected).all()
"""


def test_a_fitted_model_is_pickled_without_its_data(tmp_path: Path) -> None:
    given = data("binary")
    marked, client = given["X"].copy(), given["client"]
    marked[7, 1] = 0.123456789
    fitted = []
    for algorithm in ("recommended", "perinvfl"):
        model = pf.PersonalInvariantClassifier(algorithm, **SMALL).fit(**given | {"X": marked})
        fitted.append((model, marked, client, model.predict_proba(marked, client)))
        packed = pickle.dumps(model)
        assert len(packed) < 10_000, "as large as the models, whatever the number of rows"
        for kind in (np.float32, np.float64):
            assert kind(marked[7, 1]).tobytes() not in packed
        again = pickle.loads(packed)
        assert again.found_ == model.found_ and (again.predict(marked) == model.predict(marked)).all()
        assert again.fit(**given).session_.rounds_done == 2
    (tmp_path / "models.pickle").write_bytes(pickle.dumps(fitted))
    command = [sys.executable, "-c", READ, str(tmp_path / "models.pickle")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def routing() -> Iterator[None]:
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def test_clients_and_contexts_are_routed(routing: None) -> None:
    given = data("binary", 120)
    X, y, who = given["X"], given["y"], {"client": given["client"], "context": given["context"]}
    pipe = make_pipeline(StandardScaler(), pf.PersonalInvariantClassifier("fedavg", rounds=10, hidden=(4,)))
    fitted = clone(pipe).fit(X, y, **who)
    assert fitted[-1].clients_.tolist() == ["a", "b"] and fitted[-1].contexts_.tolist() == ["0", "1"]
    assert fitted.predict(X, client=given["client"]).shape == (120,)
    assert fitted.score(X, y, client=given["client"]) > 0.5
    grid = {"personalinvariantclassifier__algorithm": ["alone", "fedavg"]}
    search = GridSearchCV(pipe, grid, cv=3, error_score="raise").fit(X, y, **who)
    # Clients have opposite signs: only models of their own, asked by name, can be right.
    assert search.best_params_ == {"personalinvariantclassifier__algorithm": "alone"} and search.best_score_ > 0.7
    assert search.score(X, y, client=given["client"]) > 0.7
    scores = cross_validate(pipe, X, y, params=who, cv=3, return_estimator=True, error_score="raise")
    assert [kept[-1].clients_.tolist() for kept in scores["estimator"]] == [["a", "b"]] * 3
    by_client = cross_validate(
        pipe, X, y, params={**who, "groups": given["client"]}, cv=LeaveOneGroupOut(), error_score="raise"
    )
    assert (by_client["test_score"] < 0.5).all(), "the other's model, of a client that it has not seen"


def test_a_client_it_has_not_seen_gets_the_shared_model() -> None:
    given = data("binary", 80)
    X = given["X"]
    model = pf.PersonalInvariantClassifier("perinvfl", rounds=20, hidden=(4,)).fit(**given)
    assert (model.predict_proba(X, "new") == model.predict_proba(X)).all()
    assert (model.predict_proba(X, "a") != model.predict_proba(X)).any()
    mixed = np.where(np.arange(80) < 40, "a", "new")
    assert np.allclose(model.predict_proba(X, mixed)[:40], model.predict_proba(X[:40], "a"), atol=1e-6)
    assert np.allclose(model.predict_proba(X, mixed)[40:], model.predict_proba(X[40:]), atol=1e-6)
    with pytest.raises(UserError, match='"new" is not a client; known are a, b'):
        model.set_params(unknown_client="error").predict(X, mixed)
    alone = pf.PersonalInvariantClassifier("alone", **SMALL).fit(**given)
    with pytest.raises(ValueError, match="no global model; name a client"):
        alone.predict(X, "new")
    alone.fit(X, given["y"])  # all of one client, which is then nobody else's
    assert alone.clients_.tolist() == ["all"] and alone.predict(X).shape == (80,)


def test_a_row_gets_the_same_answer_in_any_company() -> None:
    given = data("regression", 600)
    model = pf.PersonalInvariantRegressor(**SMALL).fit(**given)
    X, client = given["X"], given["client"]
    together = model.predict(X, client)
    assert (model.predict(X[::-1], client[::-1])[::-1] == together).all()
    assert all(model.predict(X[[i]], client[i])[0] == together[i] for i in range(0, 600, 37))


def cohort() -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """A category by name, one by code, and gaps in a number and in a category."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(60, 10, 300), "kind": rng.choice(["a", "b", "c"], 300)})
    frame["code"] = rng.integers(1, 4, 300)
    ill = np.where((frame["kind"] == "b") | (frame["code"] == 2), "ill", "well")
    frame.loc[::7, "age"] = np.nan
    frame.loc[::11, "kind"] = None
    return frame, ill, rng.choice(["x", "y"], 300)


def test_frames_with_gaps_and_categories_of_every_make() -> None:
    frame, y, client = cohort()
    made: dict[str, Any] = {
        "pandas": frame,
        "polars": polars.from_pandas(frame),
        "pyarrow": pyarrow.Table.from_pandas(frame),
        "hugging face": datasets.Dataset.from_pandas(frame, preserve_index=False),
        "objects": frame.to_numpy(dtype=object),
        "typed": frame.astype({"kind": "category", "code": "category"}),
    }
    answers = {}
    for name, X in made.items():
        declared = [] if name == "typed" else [2]
        model = pf.PersonalInvariantClassifier(rounds=40, categories=declared).fit(X, y, client)
        answers[name] = model.predict_proba(X, client)
        names = ["x0", "x1", "x2"] if name == "objects" else ["age", "kind", "code"]
        assert [encoding.name for encoding in model.models_.schema.encodings] == names
        assert [encoding.category for encoding in model.models_.schema.encodings] == [False, True, True]
        assert model.n_features_in_ == 3 and hasattr(model, "feature_names_in_") == (name != "objects")
        assert model.score(X, y, client) > 0.9
        assert (pickle.loads(pickle.dumps(model)).predict_proba(X, client) == answers[name]).all()
    assert all((answer == answers["pandas"]).all() for answer in answers.values())
    tags = get_tags(pf.PersonalInvariantRegressor()).input_tags
    assert tags.allow_nan and tags.categorical and tags.string and not tags.sparse


def test_wrong_columns_are_answered() -> None:
    frame, y, client = cohort()
    model = pf.PersonalInvariantClassifier(categories=["code"], **SMALL).fit(frame, y, client)
    assert model.predict(frame.assign(kind="never seen"), "x").shape == (300,)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame.drop(columns="age"))
    with pytest.raises(UserError, match='row 1, column "age": "old" is not a number'):
        model.predict(frame.assign(age="old"))
    with pytest.raises(UserError, match="X is a str; it must be a data frame of pandas"):
        model.fit("cohort.csv", y)
    with pytest.raises(TypeError, match="must be a string or a number, not a dict"):
        model.fit(np.array([[1.0, {}], [2.0, 3.0]], dtype=object), ["a", "b"])
    for wrong, sentence in ((["cod"], 'categories names "cod"'), ([3], "categories names column 3; there are 3")):
        with pytest.raises(UserError, match=sentence):
            clone(model).set_params(categories=wrong).fit(frame, y, client)


def test_seeds_and_contexts_are_passed_on() -> None:
    given = data("regression", 60)
    first, same, other = (
        pf.PersonalInvariantRegressor(random_state=seed, **SMALL).fit(**given).predict(given["X"]) for seed in (1, 1, 2)
    )
    assert (first == same).all() and (first != other).any()
    drawn = [np.random.RandomState(3), np.random.RandomState(3), None, None]
    answers = [pf.PersonalInvariantRegressor(random_state=s, **SMALL).fit(**given).predict(given["X"]) for s in drawn]
    assert (answers[0] == answers[1]).all() and (answers[2] != answers[3]).any()
    given = data("binary", 60)
    inferred = pf.PersonalInvariantClassifier("irm", contexts={"infer": "hard", "reference_rounds": 3}, **SMALL)
    assert inferred.fit(**given).found_
    with pytest.raises(UserError, match=r"contexts\.infer: recommended decides this itself"):
        inferred.set_params(algorithm="recommended").fit(**given)


def test_without_scikit_learn_it_is_asked_for() -> None:
    code = """
import sys
sys.modules["sklearn"] = None
import perinvfl as pf
from perinvfl.errors import UserError
try:
    pf.PersonalInvariantClassifier
except UserError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert how_to_install("sklearn") in done.stdout and len(done.stdout.splitlines()) == 1


def test_mistakes_are_answered() -> None:
    given = data("binary", 40)
    model = pf.PersonalInvariantClassifier(rounds=2, hidden=(4,))
    for kind in (UserError, NotFittedError):
        with pytest.raises(kind, match="not fitted yet"):
            model.predict_proba(given["X"])
    with pytest.raises(UserError, match="one class only"):
        model.fit(given["X"], ["same"] * 40)
    with pytest.raises(ValueError, match="contains infinity"):
        model.fit(np.where(np.arange(40)[:, None] == 2, np.inf, given["X"]), given["y"])
    for wrong, sentence in (
        ({"algorithm": "perinvlf"}, 'algorithm = "perinvlf" is not known; did you mean perinvfl?'),
        ({"settings": {"beto": 1}, "algorithm": "perinvfl"}, "perinvfl.beto is not a setting; did you mean beta?"),
        ({"settings": "beta=1"}, "must be a dict of the algorithm's settings"),
        ({"rounds": "many"}, "rounds = 'many': must be a whole number"),
        ({"hidden": ("wide",)}, "must be a whole number"),
        ({"unknown_client": "guess"}, 'must be "shared" or "error"'),
    ):
        with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
            clone(model).set_params(**wrong).fit(**given)
        assert isinstance(caught.value, UserError) and "\n" not in str(caught.value)
    with pytest.raises(UserError, match="context names 3 contexts for the 40 rows"):
        model.fit(given["X"], given["y"], context=[1, 2, 3])
    model.fit(**given)
    with pytest.raises(UserError, match="names 3 clients for the 40 rows"):
        model.predict(given["X"], ["a", "b", "a"])
