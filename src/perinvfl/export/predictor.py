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
        classes = max(2, self.description.outputs)
        wanted = [(len(x),), (len(x), classes)][: len(names)]
        right = [tuple(answer.shape) for answer in answers] == wanted and answers[-1].is_floating_point()
        if not right or (len(names) > 1 and not _are_classes(answers[0], classes)):
            raise UserError("The model does not answer as its description says.")
        return dict(zip(names, answers, strict=True))


def _are_classes(prediction: Tensor, classes: int) -> bool:
    """Whether these are numbers of classes: an ONNX file may answer anything."""
    return prediction.dtype == torch.int64 and bool(((prediction >= 0) & (prediction < classes)).all())
