"""A model read back: x in, answers by name out."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from perinvfl.errors import UserError
from perinvfl.export.module import Description, answer_names


@dataclass(frozen=True)
class Predictor:
    """x [B, ...] in, answers by name out."""

    description: Description
    apply: Callable[[Tensor], tuple[Tensor, ...]]

    def __call__(self, x: Tensor) -> dict[str, Tensor]:
        names = answer_names(self.description.task)
        with torch.no_grad():
            answers = tuple(self.apply(x))
        wanted = [(len(x),), (len(x), max(2, self.description.outputs))][: len(names)]
        if [tuple(answer.shape) for answer in answers] != wanted:
            raise UserError("The model does not answer as its description says.")
        return dict(zip(names, answers, strict=True))
