"""The score of a client that ignores its input: every table needs it beside the models' scores."""

from statistics import fmean

from torch import Tensor

from perinvfl.data.federation import Federation, Split, Task


def constant_scores(task: Task, train: Split, tests: dict[str, Split]) -> dict[str, list[float | None]]:
    """Per test case and client: accuracy of the client's training majority label (mean squared error of its mean).

    None where a client has no sample of a case.
    """
    guesses = constant_guesses(task, train)
    scores: dict[str, list[float | None]] = {}
    for name, split in tests.items():
        scores[name] = []
        for client, guess in enumerate(guesses):
            y = split.y[client][split.context[client] >= 0]
            score = (y - guess).square() if task == "regression" else y == guess
            scores[name].append(float(score.double().mean()) if len(y) else None)
    return scores


def constant_guesses(task: Task, train: Split) -> list[float]:
    """Per client: the majority label of its training data (the mean, for regression)."""
    return [_guess(task, train, client) for client in range(train.y.shape[0])]


def _guess(task: Task, train: Split, client: int) -> float:
    y = train.y[client][train.context[client] >= 0]
    return float(y.mean() if task == "regression" else y.mode().values)


def constant_fit(federation: Federation, clients: Tensor | None = None, balanced: bool = False) -> float:
    """What a constant answer scores on the training data themselves, the mean over clients: all, or these [n].

    balanced: each of the classes that a client has counts alike.
    """
    train = federation.train if clients is None else Split(*(part[clients.cpu()] for part in federation.train))
    if balanced:
        owns = [y[context >= 0] for y, context in zip(train.y, train.context, strict=True)]
        return fmean(1 / len(own.unique()) for own in owns if len(own))
    rows = constant_scores(federation.task, train, {"train": train})["train"]
    return fmean(row for row in rows if row is not None)


def label_counts(task: Task, classes: int, train: Split) -> list[list[float]]:
    """Per client: training samples of each class, or the mean of a number as label."""
    owns = [y[context >= 0] for y, context in zip(train.y, train.context, strict=True)]
    if task == "regression":
        return [[float(own.mean())] for own in owns]
    return [[int((own == number).sum()) for number in range(classes)] for own in owns]
