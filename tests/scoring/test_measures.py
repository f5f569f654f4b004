"""Scores against scikit-learn, intervals, thresholds, and the predictions that a run keeps for them."""

import numpy as np
import pytest
from sklearn import metrics

from perinvfl.results.score_names import MEASURES
from perinvfl.scoring.measures import calibration_bins, choose_threshold, confusion_at, intervals, mean_scores, scores
from perinvfl.scoring.sample_scores import SCORERS, Sample


def binary(seed: int = 0, n: int = 300, signal: float = 1.0, ties: bool = False) -> Sample:
    source = np.random.default_rng(seed)
    labels = (source.random(n) < 0.3).astype(float)
    logits = signal * (2 * labels - 1) + source.normal(size=n)
    return Sample("binary", labels, (np.round(logits, 1) if ties else logits)[:, None])


def multiclass(seed: int = 0, n: int = 400) -> Sample:
    source = np.random.default_rng(seed)
    labels = source.integers(0, 4, n)
    return Sample("multiclass", labels.astype(float), np.eye(4)[labels] + source.normal(size=(n, 4)))


def regression(seed: int = 0, n: int = 200) -> Sample:
    source = np.random.default_rng(seed)
    labels = 50 + 10 * source.normal(size=n)
    return Sample("regression", labels, (labels + 5 * source.normal(size=n))[:, None])


@pytest.mark.parametrize("ties", [False, True])
def test_binary_scores_are_those_of_scikit_learn(ties: bool) -> None:
    sample, at = binary(ties=ties), 0.37
    y, p, found = sample.labels, sample.probabilities[:, 1], scores(sample, at)
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(y, p > 0.5))
    assert found["balanced"] == pytest.approx(metrics.balanced_accuracy_score(y, p > 0.5))
    assert found["auroc"] == pytest.approx(metrics.roc_auc_score(y, p))
    assert found["average-precision"] == pytest.approx(metrics.average_precision_score(y, p))
    assert found["sensitivity"] == pytest.approx(metrics.recall_score(y, p >= at))
    assert found["specificity"] == pytest.approx(metrics.recall_score(1 - y, p < at))
    assert found["brier"] == pytest.approx(metrics.brier_score_loss(y, p))
    assert confusion_at([sample], at) == metrics.confusion_matrix(y, p >= at).tolist()
    gaps = [b["samples"] * abs(b["predicted"] - b["observed"]) for b in calibration_bins([sample])]
    assert found["calibration-error"] == pytest.approx(sum(gaps) / len(sample))
    assert sum(b["samples"] for b in calibration_bins([sample])) == len(sample)


def test_scores_of_several_classes_are_the_mean_of_each_against_the_rest() -> None:
    sample = multiclass()
    y, p, found = sample.labels, sample.probabilities, scores(sample)
    truth = np.eye(4)[y.astype(int)]
    assert found["auroc"] == pytest.approx(metrics.roc_auc_score(y, p, multi_class="ovr", average="macro"))
    assert found["average-precision"] == pytest.approx(metrics.average_precision_score(truth, p, average="macro"))
    assert found["balanced"] == found["sensitivity"] == pytest.approx(metrics.balanced_accuracy_score(y, p.argmax(1)))
    assert found["brier"] == pytest.approx(np.square(p - truth).sum(1).mean())
    assert confusion_at([sample]) == metrics.confusion_matrix(y, p.argmax(1)).tolist()


def test_scores_of_a_regression_are_those_of_scikit_learn() -> None:
    sample = regression()
    found = scores(sample)
    assert found["r2"] == pytest.approx(metrics.r2_score(sample.labels, sample.outputs[:, 0]))
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(sample.labels, sample.outputs[:, 0]))
    assert set(found) == {"r2", "mae"}


@pytest.mark.parametrize("name", list(MEASURES))
def test_the_score_of_a_resample_is_that_of_its_samples(name: str) -> None:
    sample = regression(n=60) if MEASURES[name].regression else binary(n=60, ties=True)
    drawn = np.random.default_rng(3).integers(0, 60, 60)
    weights = np.bincount(drawn, minlength=60).astype(float)[None]
    again = Sample(sample.task, sample.labels[drawn], sample.outputs[drawn])
    weighted = float(SCORERS[name](sample, weights, 0.4)[0])
    assert weighted == pytest.approx(scores(again, 0.4)[name])


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    truth = scores(binary(seed=999, n=200_000))["auroc"]
    assert truth is not None
    held = 0
    for seed in range(100):
        span = intervals([binary(seed, n=120)], names=["auroc"])["auroc"]
        assert span is not None
        held += span[0] <= truth <= span[1]
    assert 86 <= held <= 99


def test_intervals_of_a_mean_over_clients_are_narrower_and_the_same_every_time() -> None:
    clients = [binary(seed, n=150) for seed in range(4)]
    one, four = intervals(clients[:1])["auroc"], intervals(clients)["auroc"]
    assert one is not None and four is not None
    assert (four[1] - four[0]) < 0.7 * (one[1] - one[0])
    assert intervals(clients) == intervals(clients)
    value = mean_scores(clients)["auroc"]
    assert value is not None and four[0] < value < four[1]


def test_what_is_not_defined_is_none_and_leaves_the_mean() -> None:
    ill_only = Sample("binary", np.ones(5), np.linspace(-1, 1, 5)[:, None])
    assert scores(ill_only)["auroc"] is None and scores(ill_only)["specificity"] is None
    assert intervals([ill_only])["auroc"] is None
    assert mean_scores([ill_only, binary()])["auroc"] == scores(binary())["auroc"]
    assert ill_only.few and not binary().few
    nothing = Sample("binary", np.zeros(0), np.zeros((0, 1)))
    assert set(scores(nothing).values()) == {None}


def test_a_threshold_is_where_both_rates_are_best_on_held_out_data() -> None:
    clients = [binary(seed, n=80) for seed in range(3)]
    found = choose_threshold(clients)
    y = np.concatenate([sample.labels for sample in clients])
    p = np.concatenate([sample.probabilities[:, 1] for sample in clients])
    false_rate, true_rate, _ = metrics.roc_curve(y, p)
    best = metrics.recall_score(y, p >= found.value) + metrics.recall_score(1 - y, p < found.value) - 1
    assert best == pytest.approx((true_rate - false_rate).max())
    assert found.chosen and sum(found.counts) == 240 and not found.few


def test_without_both_classes_held_out_the_threshold_is_a_half() -> None:
    assert choose_threshold([]).value == 0.5
    one = choose_threshold([Sample("binary", np.ones(4), np.ones((4, 1)))])
    assert one.value == 0.5 and not one.chosen and one.counts == (0, 4)


def test_the_interval_of_every_score_holds_its_value() -> None:
    """Resamples repeat samples, and so look less calibrated than the samples are."""
    clients = [binary(seed, n=60) for seed in range(5)]
    values, spans = mean_scores(clients, 0.3), intervals(clients, 0.3)
    for name, span in spans.items():
        value = values[name]
        assert span is not None and value is not None and span[0] < value < span[1], name


def test_every_score_that_is_named_can_be_computed() -> None:
    assert list(SCORERS) == list(MEASURES)
