"""In the manner of scikit-learn, and with scikit-learn itself."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import perinvfl as pf
from perinvfl.algorithms import ALGORITHMS
from perinvfl.errors import UserError


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


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_the_usual_settings_admit_every_algorithm(algorithm: str) -> None:
    for kind, task in ((pf.PersonalInvariantClassifier, "binary"), (pf.PersonalInvariantRegressor, "regression")):
        given = data(task, 40)
        model = kind(algorithm, rounds=2, hidden=(4,)).fit(**given)
        assert np.isfinite(model.score(given["X"], given["y"], given["client"]))


def test_scikit_learn_can_clone_and_sort_them() -> None:
    model = pf.PersonalInvariantClassifier(algorithm="ditto", settings={"pull": 0.3}, rounds=2, hidden=[4])
    copied = clone(model)
    assert copied is not model and copied.get_params() == model.get_params()
    assert copied.set_params(rounds=3).rounds == 3 and model.rounds == 2
    with pytest.raises(ValueError, match="nonsense is not a parameter"):
        model.set_params(nonsense=1)
    assert is_classifier(model) and not is_regressor(model) and is_regressor(pf.PersonalInvariantRegressor())
    assert repr(model) == "PersonalInvariantClassifier(algorithm='ditto', settings={'pull': 0.3}, rounds=2, hidden=[4])"
    given = data("binary", 40)
    pipe = make_pipeline(StandardScaler(), copied)
    pipe.fit(given["X"], given["y"], personalinvariantclassifier__client=given["client"])
    assert pipe.predict(given["X"], client="a").shape == (40,)


def test_mistakes_are_answered() -> None:
    given = data("binary", 40)
    model = pf.PersonalInvariantClassifier(rounds=2, hidden=(4,))
    with pytest.raises(UserError, match="not fitted yet"):
        model.predict_proba(given["X"])
    with pytest.raises(UserError, match="one class only"):
        model.fit(given["X"], ["same"] * 40)
    with pytest.raises(UserError, match="row 3"):
        model.fit(np.where(np.arange(40)[:, None] == 2, np.inf, given["X"]), given["y"])
    model.fit(**given)
    with pytest.raises(UserError, match="is not a client"):
        model.predict(given["X"], "c")
    with pytest.raises(UserError, match="names 3 clients for the 40 rows"):
        model.predict(given["X"], ["a", "b", "a"])
