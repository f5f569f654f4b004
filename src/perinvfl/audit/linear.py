"""The model of an audit: linear in its columns, with a small ridge, fitted exactly. It takes milliseconds, so that one
can be trained without each column and without each site in turn."""

import torch
from torch import Tensor

from perinvfl.data.federation import Task

RIDGE = 1.0  # as one more row would count
STEPS, CLOSE = 30, 1e-6


def fit(x: Tensor, y: Tensor, task: Task, classes: int, start: Tensor | None = None) -> Tensor:
    """[C, d + 1] weights, the intercept last: C = 1, or one against the others for each of several classes.

    start: weights near those to be found, which saves steps and changes nothing else.
    """
    inputs = with_intercept(x)
    if task == "regression":
        return _least_squares(inputs, y)[None]
    labels = [y] if task == "binary" else [(y == number).double() for number in range(classes)]
    begin = inputs.new_zeros(len(labels), inputs.shape[1]) if start is None else start
    return torch.stack([_logistic(inputs, label, own) for label, own in zip(labels, begin, strict=True)])


def with_intercept(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(len(x), 1)], 1)


def scores(weights: Tensor, x: Tensor, task: Task) -> Tensor:
    """[n] a probability (binary), a class (multiclass) or a quantity."""
    outputs = with_intercept(x) @ weights.T
    if task == "multiclass":
        return outputs.argmax(1).double()
    return outputs[:, 0] if task == "regression" else outputs[:, 0].sigmoid()


def rights(score: Tensor, y: Tensor, task: Task) -> Tensor:
    """[n] 1 where an answer is right, else 0; of a regression, minus the squared error."""
    if task == "regression":
        return -(score - y).square()
    answers = (score > 0.5).double() if task == "binary" else score
    return (answers == y).double()


def _penalty(d: int) -> Tensor:
    penalty = torch.full((d,), RIDGE, dtype=torch.float64)
    penalty[-1] = 1e-6  # the intercept is free
    return penalty


def _least_squares(x: Tensor, y: Tensor) -> Tensor:
    return torch.linalg.solve(x.T @ x + torch.diag(_penalty(x.shape[1])), x.T @ y)


def _logistic(x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Newton's method, the step halved while the loss does not fall."""
    penalty = _penalty(x.shape[1])

    def loss(w: Tensor) -> Tensor:
        logits = x @ w
        return torch.nn.functional.softplus(logits).sum() - logits @ y + 0.5 * (penalty * w.square()).sum()

    now = loss(weights)
    for _ in range(STEPS):
        p = (x @ weights).sigmoid()
        slope = x.T @ (p - y) + penalty * weights
        curve = (x * (p * (1 - p))[:, None]).T @ x + torch.diag(penalty)
        step = torch.linalg.solve(curve, slope)
        size = 1.0
        while size > 1e-4 and loss(weights - size * step) > now:
            size /= 2
        weights = weights - size * step
        before, now = now, loss(weights)
        if float(before - now) < CLOSE:
            break
    return weights
