"""Which scores there are, and how they are read; `perinvfl.scoring.sample_scores` computes them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    name: str  # as `--score` takes it
    title: str
    doc: str
    percent: bool = False
    larger_is_better: bool = True
    regression: bool = False
    moved: bool = False  # samples that repeat make it worse: its interval is moved back to its value
    of_several: str = ""  # with more than two classes, instead of doc

    @property
    def factor(self) -> float:
        return 100.0 if self.percent else 1.0

    def meaning(self, classes: int) -> str:
        """
        >>> MEASURES["sensitivity"].meaning(2), MEASURES["sensitivity"].meaning(3)
        ('share of the second class that is recognised', 'share of a class that is recognised, mean over the classes')
        """
        return self.of_several if self.of_several and classes > 2 else self.doc

    @property
    def form(self) -> str:
        """How a number is written."""
        return ".2f" if self.percent else ".4g" if self.name == "mae" else ".3f"


MEASURES = {
    measure.name: measure
    for measure in (
        Measure("accuracy", "accuracy", "share of right answers", percent=True),
        Measure("balanced", "class-balanced accuracy", "mean of the accuracies of the classes", percent=True),
        Measure(
            "auroc",
            "AUROC",
            "how often a sample of the class ranks above one that is not; 0.5 is chance",
            of_several="how often a sample of a class ranks above one of another, mean over the classes; 0.5 is chance",
        ),
        Measure(
            "average-precision",
            "average precision",
            "mean precision over the recalls; chance is the prevalence",
            of_several="mean precision over the recalls, mean over the classes; chance is the mean prevalence",
        ),
        Measure(
            "sensitivity",
            "sensitivity",
            "share of the second class that is recognised",
            percent=True,
            of_several="share of a class that is recognised, mean over the classes",
        ),
        Measure(
            "specificity",
            "specificity",
            "share of the first class that is recognised",
            percent=True,
            of_several="share of the others that are not taken for a class, mean over the classes",
        ),
        Measure(
            "brier",
            "Brier score",
            "mean squared error of the probabilities",
            larger_is_better=False,
            of_several="squared error of the probabilities, summed over the classes",
        ),
        Measure(
            "calibration-error",
            "calibration error",
            "mean distance between predicted probability and observed frequency, in ten bins",
            larger_is_better=False,
            moved=True,
            of_several="mean distance between the probability of the likeliest class and how often it is right, in ten "
            "bins",
        ),
        Measure("r2", "R²", "share of the label's variance that is explained", regression=True),
        Measure("mae", "mean absolute error", "in the label's unit", larger_is_better=False, regression=True),
    )
}


def measures_for(task: str) -> list[str]:
    """The names of the scores that a task has."""
    return [name for name, measure in MEASURES.items() if measure.regression == (task == "regression")]
