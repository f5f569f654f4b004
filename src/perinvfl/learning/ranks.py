"""Ranks in place of numbers: what columns of a table say, whatever their units and however long their tails."""

import torch
from torch import Tensor


def ranks(values: Tensor, real: Tensor) -> Tensor:
    """[M, d] the share of this client's samples below each value, half of the equal ones included; 0 where not real.

    A chi-square over class means goes wrong where a few values are very large, and where one site measures in other
    units than the rest. Ranks have neither; a column of two values stays a column of two values, half as far apart.

    >>> ranks(torch.tensor([[3.0], [1.0], [1.0], [1000.0]]), torch.tensor([True, True, True, True])).T
    tensor([[0.6250, 0.2500, 0.2500, 0.8750]])
    """
    found = torch.zeros(values.shape)
    columns = values[real].double().T.contiguous()  # [d, samples]
    ordered = columns.sort(1).values
    below = torch.searchsorted(ordered, columns) + torch.searchsorted(ordered, columns, right=True)
    found[real] = (below.T / (2.0 * max(columns.shape[1], 1))).float()
    return found
