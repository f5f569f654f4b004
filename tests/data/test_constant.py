import pytest
import torch

from perinvfl.data.constant import constant_scores
from perinvfl.data.federation import Split

CONTEXT = torch.tensor([[0, 0, 0, 0, 0], [0, 1, 0, -1, -1]])


def split(y: torch.Tensor) -> Split:
    return Split(torch.zeros(2, 5, 1), y, CONTEXT)


def test_majority_label_per_client_ignores_padding() -> None:
    train = split(torch.tensor([[0, 0, 3, 1, 2], [3, 3, 0, 0, 0]]))
    test = split(torch.tensor([[0, 1, 0, 0, 2], [3, 0, 0, 3, 3]]))
    assert constant_scores("multiclass", train, {"case": test}) == {"case": [0.6, pytest.approx(1 / 3)]}


def test_regression_is_the_error_of_the_training_mean() -> None:
    train = split(torch.tensor([[1.0, 1, 1, 1, 1], [1, 2, 3, 99, 99]]))
    test = split(torch.tensor([[1.0, 1, 1, 1, 6], [2, 2, 5, 99, 99]]))
    assert constant_scores("regression", train, {"case": test}) == {"case": [5.0, 3.0]}
