"""Tables in the manner of scikit-learn: fit, predict and score, for each client.

>>> model = PersonalInvariantClassifier(rounds=20, hidden=(8,))
>>> X = [[0.0], [1.0], [2.0], [3.0]] * 10
>>> y = ["low", "low", "high", "high"] * 10
>>> model = model.fit(X, y, client=["a"] * 20 + ["b"] * 20)
>>> model.predict([[0.0], [3.0]], client="a").tolist()
['low', 'high']
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Number
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from perinvfl import api
from perinvfl.algorithms import Algorithm, settings_of
from perinvfl.core.extras import how_to_install
from perinvfl.core.naming import name_of
from perinvfl.data.own import readers
from perinvfl.data.own.inputs import raw_inputs
from perinvfl.data.own.rows import AskedTask
from perinvfl.errors import UserError
from perinvfl.runs.experiment import algorithm_named

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.exceptions import NotFittedError
    from sklearn.metrics import accuracy_score, r2_score
    from sklearn.utils import check_array, check_consistent_length, check_random_state, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import validate_data
except ImportError as error:
    raise UserError(
        f"The estimators need scikit-learn 1.6 or later ({error}): {how_to_install('sklearn')}. "
        "pf.from_arrays and pf.start train the same without it."
    ) from None

RATES = ("learning_rate", "personal_learning_rate", "finetune_learning_rate")
OPTIMIZERS = ("optimizer", "personal_optimizer", "finetune_optimizer")
OWN_DEFAULTS = ("recommended", "pfedme")  # the first needs no settings, and those of the second only go together
BLOCK = 256  # rows that are predicted at once
UNKNOWN = ("<NA>", "NaT")  # how pandas writes a missing value
NUMBERS = "biufc"  # kinds of NumPy arrays that hold numbers


class BadInput(UserError, ValueError):
    """What cannot be fitted or predicted, in one sentence; scikit-learn looks for a ValueError."""


class NotFitted(UserError, NotFittedError):
    """Asked to predict before fit."""


class _Estimator(BaseEstimator):
    """What the classifier and the regressor share."""

    # Where the algorithms' own defaults are the paper's, these suit standardised columns and a small network.
    _usual: ClassVar[dict[str, Any]]
    # With metadata routing on, client and context go where they are meant to go without a further word.
    __metadata_request__fit: ClassVar = {"client": True, "context": True}
    __metadata_request__predict: ClassVar = {"client": True}
    __metadata_request__score: ClassVar = {"client": True}

    def __init__(
        self,
        algorithm: str = "recommended",
        settings: dict[str, Any] | None = None,
        rounds: int = 200,
        hidden: Sequence[int] = (16,),
        batch_size: int = 0,
        random_state: Any = 0,
        contexts: dict[str, Any] | None = None,
        unknown_client: Literal["shared", "error"] = "shared",
        categories: Sequence[str | int] = (),
    ) -> None:
        """algorithm: a name that `perinvfl list` shows, or your own as "module:Class". settings: of the algorithm.

        rounds: number of training rounds. hidden: widths of the hidden layers. batch_size: rows per step; 0 takes all.

        random_state: a seed, a RandomState, or None for a different result each time.

        contexts: settings as under `[contexts]` of an experiment file, to infer contexts.

        unknown_client: for a client that was not in fit, predict with the shared model, or refuse ("error").

        categories: columns whose numbers are codes, by name or place; text and pandas categories need not be named.
        """
        self.algorithm = algorithm
        self.settings = settings
        self.rounds = rounds
        self.hidden = hidden
        self.batch_size = batch_size
        self.random_state = random_state
        self.contexts = contexts
        self.unknown_client = unknown_client
        self.categories = categories

    def __getstate__(self) -> dict[str, Any]:
        """All but the session, which holds every row it was trained on."""
        return {name: value for name, value in super().__getstate__().items() if name != "session_"}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "models_")

    def _fit(self, table: Any, y: Any, client: Any, context: Any, task: AskedTask) -> Self:
        if self.unknown_client not in ("shared", "error"):
            raise BadInput(f'unknown_client = {self.unknown_client!r}: must be "shared" or "error".')
        seed = self.random_state
        seed = int(seed) if isinstance(seed, Integral) else int(check_random_state(seed).randint(2**31 - 1))
        for role, values in (("client", client), ("context", context)):
            if values is not None:
                _one_per_row(role, values, len(y))
        with _one_sentence():
            algorithm = self._algorithm()
            federation = api.from_arrays(
                table,
                y,
                client=client,
                context=context,
                features=getattr(self, "feature_names_in_", None),
                categories=self._categories(table),
                task=task,
                seed=seed,
                test_share=0,
                holdout=0,
            )
            session = api.start(
                federation,
                algorithm,
                rounds=_plain(self.rounds),
                seed=seed,
                model={"hidden": _plain(self.hidden)},
                batch_size=_plain(self.batch_size),
                contexts=self.contexts,
            ).run()
            self.session_, self.models_, self.found_ = session, session.fitted(), session.found
        self.clients_ = np.array(federation.client_names)
        self.contexts_ = np.array(federation.schema.contexts)
        self.one_client_ = client is None
        return self

    def _table(self, X: Any, reset: bool) -> Any:
        """X checked against the columns of fit: a data frame as it is, anything else as an array; gaps may stay."""
        if isinstance(X, str | Path) or type(X) is dict:
            raise BadInput(f"X is a {type(X).__name__}; it must be {readers.TABLES_IN_MEMORY}, or an array of numbers.")
        X = readers.as_frame(X)
        if readers.column_names(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
            if hasattr(self, "feature_names_in_"):  # columns that are numbered have no names
                return X
        table = validate_data(self, X, reset=reset, dtype=None, ensure_all_finite="allow-nan")
        for value in table.flat if table.dtype.kind == "O" else ():
            if not (isinstance(value, str | Number | np.generic | None) or str(value) in UNKNOWN):
                raise TypeError(f"Each value of X must be a string or a number, not a {type(value).__name__}.")
        return table

    def _categories(self, table: Any) -> list[str]:
        """The columns to be told apart by level: those declared, and those of pandas' type for it."""
        names = [str(name) for name in getattr(self, "feature_names_in_", ())]
        names = names or [f"x{place}" for place in range(self.n_features_in_)]
        declared = []
        for given in self.categories:
            if isinstance(given, Integral) and not 0 <= given < len(names):
                raise BadInput(f"categories names column {given}; there are {len(names)}, counted from 0.")
            declared.append(names[int(given)] if isinstance(given, Integral) else str(given))
        frame = hasattr(table, "dtypes") and bool(readers.column_names(table))
        typed = [name for name in names if str(table[name].dtype) == "category"] if frame else []
        return list(dict.fromkeys([*declared, *typed]))

    def _algorithm(self) -> Algorithm:
        """With the settings that were given, and the usual ones for the rest."""
        if not isinstance(self.settings, dict | None):
            raise BadInput(f"settings = {self.settings!r}: must be a dict of the algorithm's settings.")
        if not isinstance(self.rounds, Integral):
            raise BadInput(f"rounds = {self.rounds!r}: must be a whole number.")
        known = {field.name for field in settings_of(algorithm_named(self.algorithm, "algorithm"))}
        usual = {"local_steps": 5, "beta": 0.1, "warmup_rounds": int(self.rounds) // 4, **self._usual}
        if self.algorithm in OWN_DEFAULTS:
            usual = {}
        chosen = {name: value for name, value in usual.items() if name in known} | (self.settings or {})
        return api.algorithm(self.algorithm, **_plain(chosen))

    def _by_client(self, X: Any, client: Any, ask: Any) -> np.ndarray:
        """What `ask(rows, client)` says row by row: one client for all rows, one a row, or none: the shared model."""
        if not hasattr(self, "models_"):
            raise NotFitted(f"This {type(self).__name__} is not fitted yet; call fit first.")
        table = self._table(X, reset=False)
        with _one_sentence():
            rows = raw_inputs(table, self.models_.schema.encodings).numpy()
            if client is None or isinstance(client, str) or np.ndim(client) == 0:
                return _in_blocks(ask, rows, self._model_for(client))
            names = _one_per_row("client", client, len(rows))
            answers: list[Any] = [None] * len(names)
            for name in dict.fromkeys(names):
                places = [place for place, own in enumerate(names) if own == name]
                said = _in_blocks(ask, rows[places], self._model_for(name))
                for place, answer in zip(places, said, strict=True):
                    answers[place] = answer
        return np.array(answers)

    def _model_for(self, client: Any) -> str | None:
        """Whose model predicts: the client's own, or (None) the shared one."""
        if client is None:
            return str(self.clients_[0]) if self.one_client_ else None
        name = name_of(client)
        known = name in self.models_.personal
        return name if known or self.unknown_client == "error" else None


class PersonalInvariantClassifier(ClassifierMixin, _Estimator):
    """A scikit-learn classifier with one model for each client, which does not rely on shortcuts.

    The default, `recommended`, leaves out columns whose relation to y changes between contexts or clients.
    """

    _usual: ClassVar[dict[str, Any]] = {**dict.fromkeys(RATES, 0.5), "penalty_weight": 1000.0}
    __metadata_request__predict_proba: ClassVar = {"client": True}

    def fit(self, X: Any, y: Any, client: Any = None, context: Any = None) -> Self:
        """Train on the rows of all clients together.

        client, context: who each row is from and what it was recorded in, one name per row; without them, all rows
        are of one client or one context. Every row is used for training: hold out rows yourself.
        """
        table = self._table(X, reset=True)
        labels = _labels(self, table, y)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise BadInput("y holds one class only, so there is nothing to learn.")
        return self._fit(table, numbers, client, context, "binary" if len(self.classes_) == 2 else "multiclass")

    def predict(self, X: Any, client: Any = None) -> np.ndarray:
        """The class of each row, by the client's model; by the shared model without a client or for an unknown one.

        client: one name for all rows, or one per row.
        """
        shares = self.predict_proba(X, client)
        return self.classes_[shares.argmax(1)]

    def predict_proba(self, X: Any, client: Any = None) -> np.ndarray:
        """The probability of each class, [n, classes], in the order of `classes_`; `client` as in `predict`."""
        return self._by_client(X, client, lambda rows, name: self.models_.predict_proba(rows, name).numpy())

    def score(self, X: Any, y: Any, client: Any = None, sample_weight: Any = None) -> float:
        """The accuracy: the share of rows that are classified correctly; `client` as in `predict`."""
        return float(accuracy_score(y, self.predict(X, client), sample_weight=sample_weight))


class PersonalInvariantRegressor(RegressorMixin, _Estimator):
    """A scikit-learn regressor with one model for each client, which does not rely on shortcuts.

    The default, `recommended`, leaves out columns whose relation to y changes between contexts or clients.
    """

    # A squared error is steeper than a cross-entropy, and its penalty of the fourth order: Adam's steps are bounded.
    _usual: ClassVar[dict[str, Any]] = {
        **dict.fromkeys(RATES, 0.01),
        **dict.fromkeys(OPTIMIZERS, "adam"),
        "penalty_weight": 100.0,
    }

    def fit(self, X: Any, y: Any, client: Any = None, context: Any = None) -> Self:
        """Train on the rows of all clients together.

        client, context: who each row is from and what it was recorded in, one name per row; without them, all rows
        are of one client or one context. Every row is used for training: hold out rows yourself.
        """
        table = self._table(X, reset=True)
        quantity = check_array(_labels(self, table, y), ensure_2d=False, dtype="numeric", input_name="y")
        return self._fit(table, quantity, client, context, "regression")

    def predict(self, X: Any, client: Any = None) -> np.ndarray:
        """A value for each row, in the unit of y; `client` as for the classifier."""
        return self._by_client(X, client, lambda rows, name: self.models_.predict(rows, name).numpy())  # type: ignore[union-attr]

    def score(self, X: Any, y: Any, client: Any = None, sample_weight: Any = None) -> float:
        """R², the share of the variance that is explained; 1 is perfect, 0 no better than the mean."""
        return float(r2_score(y, self.predict(X, client), sample_weight=sample_weight))


def _labels(estimator: _Estimator, X: Any, y: Any) -> np.ndarray:
    """[n] as given, none missing."""
    if y is None:
        raise BadInput(f"{type(estimator).__name__} requires y to be passed, but the target y is None.")
    labels = column_or_1d(y, warn=True, input_name="y")
    check_consistent_length(X, labels)
    if labels.dtype.kind in NUMBERS:
        check_array(labels, ensure_2d=False, input_name="y")
    return labels


def _one_per_row(role: str, values: Any, rows: int) -> list[str]:
    given = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
    if given.ndim != 1 or len(given) != rows:
        raise BadInput(f"{role} names {given.size} {role}s for the {rows} rows of X.")
    return [name_of(value) for value in given.tolist()]


def _in_blocks(ask: Any, rows: np.ndarray, client: str | None) -> np.ndarray:
    """Products of matrices round by their size: in blocks of one size, a row gets the same answer in any company."""
    filled = np.concatenate([rows, np.repeat(rows[-1:], -len(rows) % BLOCK, axis=0)])
    blocks = [ask(filled[at : at + BLOCK], client) for at in range(0, len(filled), BLOCK)]
    return np.concatenate(blocks)[: len(rows)]


def _plain(value: Any) -> Any:
    """NumPy's numbers, which searches draw, as Python's."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(part) for part in value)
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Errors of the library as errors that scikit-learn knows too."""
    try:
        yield
    except BadInput:
        raise
    except UserError as error:
        raise BadInput(str(error)) from error
