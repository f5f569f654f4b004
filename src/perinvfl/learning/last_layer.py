"""The last layer of a model, for methods that look at its gradient or at what it sees."""

import torch
from torch import Tensor

from perinvfl.core.tree import Params
from perinvfl.errors import UserError
from perinvfl.learning.penalties import PenaltyInputs, gradient_means, residuals
from perinvfl.learning.problem import Problem
from perinvfl.models import Model


def last_layer_shape(params: Params) -> tuple[int, int]:
    """Outputs, and features plus one for the bias: of the last matrix among the parameters.

    Where there is none, clients refuse the model (`check_last_layer`), and any shape will do.
    """
    last = _last_matrix(params)
    outputs, features = params[last].shape if last else (1, 1)
    return outputs, features + 1


def check_last_layer(title: str, model: Model, params: Params) -> None:
    if _last_matrix(params) not in model.head:
        raise UserError(f"{title} looks at the last layer of the model, and this model does not say which that is.")


def _last_matrix(params: Params) -> str:
    return next((name for name, leaf in reversed(params.items()) if leaf.ndim == 2), "")


def last_layer_gradient(problem: Problem, features: Tensor, logits: Tensor, y: Tensor, context: Tensor) -> Tensor:
    """[outputs, D + 1] gradient of the mean loss in the last layer's weights and bias, without a backward pass."""
    whole = problem.whole(context)
    seen = PenaltyInputs(problem.task, features, logits, y, whole, problem.paired)
    residual = residuals(seen)
    mean = gradient_means(seen, residual, features.to(residual.dtype))[0]  # [outputs · (D + 1)]
    return mean.unflatten(0, (logits.shape[1], -1)).to(torch.float32)
