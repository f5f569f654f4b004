"""Tables in the manner of scikit-learn, which need not be installed: fit, predict and score, for each client.

>>> model = PersonalInvariantClassifier(rounds=20, hidden=(8,))
>>> X = [[0.0], [1.0], [2.0], [3.0]] * 10
>>> y = ["low", "low", "high", "high"] * 10
>>> model = model.fit(X, y, client=["a"] * 20 + ["b"] * 20)
>>> model.predict([[0.0], [3.0]], client="a").tolist()
['low', 'high']
"""

import inspect
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from perinvfl import api
from perinvfl.algorithms import settings_of
from perinvfl.data.federation import Federation
from perinvfl.errors import UserError
from perinvfl.runs.experiment import algorithm_named

RATES = ("learning_rate", "personal_learning_rate", "finetune_learning_rate")
OPTIMIZERS = ("optimizer", "personal_optimizer", "finetune_optimizer")
OWN_DEFAULTS = ("recommended", "pfedme")  # the first needs no settings, and those of the second only go together


class _Estimator:
    """What the classifier and the regressor share. Parameters follow scikit-learn's convention, so `clone` works."""

    _estimator_type: str
    _task: Any
    # Where the algorithms' own defaults are the paper's, these suit standardised columns and a small network.
    _usual: ClassVar[dict[str, Any]]

    def __init__(
        self,
        algorithm: str = "recommended",
        settings: dict[str, Any] | None = None,
        rounds: int = 200,
        hidden: Sequence[int] = (16,),
        batch_size: int = 0,
        random_state: int = 0,
    ) -> None:
        self.algorithm = algorithm
        self.settings = settings
        self.rounds = rounds
        self.hidden = hidden
        self.batch_size = batch_size
        self.random_state = random_state

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        for name, value in params.items():
            if name not in self.get_params():
                raise ValueError(f"{name} is not a parameter of {type(self).__name__}.")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        changed = [f"{k}={v!r}" for k, v in self.get_params().items() if v != defaults[k].default]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        """For scikit-learn, if it is there: what kind of estimator this is."""
        from sklearn.utils import ClassifierTags, RegressorTags, Tags, TargetTags

        classifier = self._estimator_type == "classifier"
        return Tags(
            estimator_type=self._estimator_type,
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags() if classifier else None,
            regressor_tags=None if classifier else RegressorTags(),
        )

    def fit(self, X: Any, y: Any, client: Any = None, context: Any = None) -> Self:
        """Rows of all clients together: who each is from, and in which context. Every row trains."""
        federation = self._federation(X, y, client, context)
        self.session_ = api.start(
            federation,
            api.algorithm(self.algorithm, **self._settings()),
            rounds=self.rounds,
            seed=self.random_state,
            model={"hidden": tuple(self.hidden)},
            batch_size=self.batch_size,
        ).run()
        self.clients_ = np.array(federation.client_names)
        self.contexts_ = np.array(federation.schema.contexts)
        self.n_features_in_ = len(federation.schema.columns)
        if getattr(X, "columns", None) is not None:
            self.feature_names_in_ = np.array(federation.schema.columns, dtype=object)
        return self

    def _federation(self, X: Any, y: Any, client: Any, context: Any) -> Federation:
        return api.from_arrays(
            X, y, client=client, context=context, task=self._task, seed=self.random_state, test_share=0, holdout=0
        )

    def _settings(self) -> dict[str, Any]:
        known = {field.name for field in settings_of(algorithm_named(self.algorithm, "algorithm"))}
        usual = {"local_steps": 5, "beta": 0.1, "warmup_rounds": self.rounds // 4, **self._usual}
        if self.algorithm in OWN_DEFAULTS:
            usual = {}
        return {name: value for name, value in usual.items() if name in known} | (self.settings or {})

    def _by_client(self, X: Any, client: Any, ask: Any) -> np.ndarray:
        """What `ask(X, client)` says row by row: one client for all rows, one a row, or none for the global model."""
        if not hasattr(self, "session_"):
            raise UserError(f"This {type(self).__name__} is not fitted yet; call fit first.")
        if client is None or isinstance(client, str) or np.ndim(client) == 0:
            return np.asarray(ask(X, None if client is None else str(client)))
        names = np.array([str(name) for name in client])
        rows = X if hasattr(X, "iloc") else np.asarray(X)
        if len(names) != len(rows):
            raise UserError(f"client names {len(names)} clients for the {len(rows)} rows of X.")
        answers: list[Any] = [None] * len(names)
        for name in dict.fromkeys(names.tolist()):
            places = np.flatnonzero(names == name)
            said = ask(rows.iloc[places] if hasattr(rows, "iloc") else rows[places], name)
            for place, answer in zip(places, np.asarray(said), strict=True):
                answers[place] = answer
        return np.array(answers)


class PersonalInvariantClassifier(_Estimator):
    """A model for each client, invariant over the client's contexts. `settings` are those of the algorithm."""

    _estimator_type = "classifier"
    _task = "multiclass"
    _usual: ClassVar[dict[str, Any]] = {**dict.fromkeys(RATES, 0.5), "penalty_weight": 1000.0}

    def fit(self, X: Any, y: Any, client: Any = None, context: Any = None) -> Self:
        labels = np.asarray(y)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise UserError("y holds one class only, so there is nothing to learn.")
        return super().fit(X, numbers, client, context)

    def predict(self, X: Any, client: Any = None) -> np.ndarray:
        """Classes as they were in y; without a client, those of the global model."""
        shares = self.predict_proba(X, client)
        return self.classes_[shares.argmax(1)]

    def predict_proba(self, X: Any, client: Any = None) -> np.ndarray:
        """[n, classes], in the order of `classes_`."""
        return self._by_client(X, client, lambda X, name: self.session_.predict_proba(X, name).numpy())

    def score(self, X: Any, y: Any, client: Any = None) -> float:
        """Share of the rows that are classified right."""
        return float(np.mean(self.predict(X, client) == np.asarray(y)))

    def _federation(self, X: Any, y: Any, client: Any, context: Any) -> Federation:
        self._task = "binary" if len(self.classes_) == 2 else "multiclass"
        return super()._federation(X, y, client, context)


class PersonalInvariantRegressor(_Estimator):
    """A model for each client, invariant over the client's contexts. `settings` are those of the algorithm."""

    _estimator_type = "regressor"
    _task = "regression"
    # A squared error is steeper than a cross-entropy, and its penalty of the fourth order: Adam's steps are bounded.
    _usual: ClassVar[dict[str, Any]] = {
        **dict.fromkeys(RATES, 0.01),
        **dict.fromkeys(OPTIMIZERS, "adam"),
        "penalty_weight": 100.0,
    }

    def predict(self, X: Any, client: Any = None) -> np.ndarray:
        """Values in the unit of y; without a client, those of the global model."""
        return self._by_client(X, client, lambda X, name: self.session_.predict(X, name).numpy())  # type: ignore[union-attr]

    def score(self, X: Any, y: Any, client: Any = None) -> float:
        """The share of the variance that is explained (R²)."""
        truth = np.asarray(y, dtype=float)
        return float(1 - np.sum((truth - self.predict(X, client)) ** 2) / np.sum((truth - truth.mean()) ** 2))
