"""Whether models learned anything: how they do in their own training contexts, beside a constant answer."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perinvfl.runs.records import Run


@dataclass(frozen=True)
class Fit:
    """Accuracy (mean squared error for a regression) on training data, the mean over clients."""

    models: float  # infinite where the error of finite answers is too large for a number
    constant: float
    regression: bool
    balanced: bool = False  # the mean over the classes, which count alike in training

    @property
    def better(self) -> bool:
        if not math.isfinite(self.models):
            return False
        return self.models < self.constant if self.regression else self.models > self.constant

    def as_fields(self) -> dict[str, Any]:
        models = round(self.models, 6) if math.isfinite(self.models) else None
        fields = {"models": models, "constant": round(self.constant, 6)}
        return fields | {"balanced": True} if self.balanced else fields

    def in_words(self) -> str:
        if not math.isfinite(self.models):
            return (
                "in their own training contexts the models' answers are so large that their error is no finite number: "
                "the run became unstable. A smaller step or a smaller penalty are the usual cures."
            )
        what = "a class-balanced accuracy of {:.1%}" if self.balanced else "an accuracy of {:.1%}"
        what = "a mean squared error of {:.3g}" if self.regression else what
        return (
            "the models do no better than a constant answer in their own training contexts "
            f"({what.format(self.models)}, the constant {what.format(self.constant).split(' of ')[1]}): they learned "
            "nothing. More rounds, a larger step or a smaller penalty are the usual cures."
        )


def fit_on_record(run: "Run") -> Fit | None:
    """As a run's end has it; older ones do not."""
    known = run.events[-1].get("training")
    if known is None:
        return None
    models = math.inf if known["models"] is None else known["models"]
    return Fit(models, known["constant"], run.task == "regression", known.get("balanced", False))
