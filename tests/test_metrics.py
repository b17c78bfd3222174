"""Every score equals scikit-learn's, or the loop that its definition describes."""

import math

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, mean_squared_error, r2_score

from autogp.metrics import (
    brier_score,
    class_scores,
    error_rate,
    expected_calibration_error,
    negative_log_probability,
    number_scores,
    standardised_squared_error,
)


def predictions(classes: int, rows: int = 500, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and probabilities that know something of them."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, rows)
    scores = generator.normal(size=(rows, classes)) + 1.5 * np.eye(classes)[labels]
    return labels, np.exp(scores) / np.exp(scores).sum(1, keepdims=True)


CLASSES = pytest.mark.parametrize("classes", [2, 3, 10])


@CLASSES
def test_error_rate_is_what_accuracy_leaves(classes):
    labels, probabilities = predictions(classes)
    assert error_rate(labels, probabilities) == pytest.approx(1 - accuracy_score(labels, probabilities.argmax(1)))


@CLASSES
def test_negative_log_probability_is_the_log_loss(classes):
    labels, probabilities = predictions(classes)
    expected = log_loss(labels, probabilities, labels=range(classes))
    assert negative_log_probability(labels, probabilities) == pytest.approx(expected, rel=1e-12)


@CLASSES
def test_brier_score_is_the_sum_over_classes(classes):
    labels, probabilities = predictions(classes)
    expected = sum(brier_score_loss(labels == number, probabilities[:, number]) for number in range(classes))
    assert brier_score(labels, probabilities) == pytest.approx(expected, rel=1e-12)


@CLASSES
@pytest.mark.parametrize("bins", [1, 10, 15])
def test_calibration_error_is_the_loop_over_bins(classes, bins):
    labels, probabilities = predictions(classes)
    total = 0.0
    for number in range(bins):
        inside = [
            (float(row.max()), int(row.argmax() == label))
            for row, label in zip(probabilities, labels, strict=True)
            if number / bins <= row.max() < (number + 1) / bins
        ]
        if inside:
            confidence, right = (sum(column) / len(inside) for column in zip(*inside, strict=True))
            total += len(inside) / len(labels) * abs(confidence - right)
    assert total > 0.001
    assert expected_calibration_error(labels, probabilities, bins) == pytest.approx(total, rel=1e-9)


def test_standardised_squared_error_is_the_mean_over_outputs():
    generator = np.random.default_rng(0)
    targets = generator.normal(size=(200, 3)) * [1, 10, 100] + 5
    mean = targets + generator.normal(size=(200, 3)) * [0.1, 3, 10]
    each = [mean_squared_error(t, m) / np.mean((t - t.mean()) ** 2) for t, m in zip(targets.T, mean.T, strict=True)]
    assert standardised_squared_error(targets, mean) == pytest.approx(np.mean(each), rel=1e-12)
    assert standardised_squared_error(targets[:, 0], mean[:, 0]) == pytest.approx(each[0], rel=1e-12)


def test_predicting_the_mean_has_a_standardised_squared_error_of_one():
    targets = np.random.default_rng(0).normal(size=100)
    assert standardised_squared_error(targets, np.full(100, targets.mean())) == pytest.approx(1, rel=1e-12)


def test_perfect_predictions_score_zero():
    labels = [0, 2, 1]
    certain = np.eye(3)[labels]
    for metric in (error_rate, negative_log_probability, brier_score, expected_calibration_error):
        assert metric(labels, certain) == 0.0
    assert standardised_squared_error([1.0, 2.0], [1.0, 2.0]) == 0.0


def test_certain_and_wrong_is_the_worst_and_yet_finite():
    labels, wrong = [0, 0], [[0.0, 1.0], [0.0, 1.0]]
    assert error_rate(labels, wrong) == 1.0
    assert brier_score(labels, wrong) == 2.0
    assert expected_calibration_error(labels, wrong) == 1.0
    assert negative_log_probability(labels, wrong) == pytest.approx(-math.log(np.finfo(np.float64).tiny))


def test_small_probabilities_in_single_precision_keep_their_digits():
    probabilities = np.array([[1e-30, 1.0]], dtype=np.float32)
    assert negative_log_probability([0], probabilities) == pytest.approx(30 * math.log(10), rel=1e-6)


def test_lists_and_arrays_are_taken_alike_and_scores_are_plain_numbers():
    labels, probabilities = predictions(3, rows=20)
    for metric in (error_rate, negative_log_probability, brier_score, expected_calibration_error):
        score = metric(labels, probabilities)
        assert type(score) is float
        assert metric(labels.tolist(), probabilities.tolist()) == score
    assert type(standardised_squared_error([1.0, 2.0], [1.0, 2.5])) is float


def test_scores_of_classes_are_each_of_the_metrics():
    labels, probabilities = predictions(3)
    assert class_scores(labels, probabilities) == {
        "error": error_rate(labels, probabilities),
        "nlp": negative_log_probability(labels, probabilities),
        "brier": brier_score(labels, probabilities),
        "calibration": expected_calibration_error(labels, probabilities),
    }


def test_scores_of_numbers_leave_missing_targets_and_constant_outputs_out():
    generator = np.random.default_rng(0)
    y = generator.normal(size=(200, 4)) * [1, 10, 100, 1] + 5
    mean = y + generator.normal(size=y.shape) * [0.1, 3, 10, 1]
    y[generator.random(y.shape) < 0.3] = math.nan
    y[:, 3] = 7  # never varies: it has an error, and no share of a variance
    low, high = mean - 1, mean + 1
    found = number_scores(y, mean, np.array([-1.0, -3.0]), (low, high))
    known = ~np.isnan(y)
    each = [r2_score(y[k, p], mean[k, p]) for p, k in enumerate(known.T[:3])]
    assert found["r2"] == pytest.approx(np.mean(each), rel=1e-12)
    assert found["smse"] == pytest.approx(1 - np.mean(each), rel=1e-12)
    assert found["rmse"] == pytest.approx(math.sqrt(mean_squared_error(y[known], mean[known])), rel=1e-12)
    assert found["nlp"] == 2
    assert found["coverage"] == np.mean((np.abs(y - mean) <= 1)[known])
    assert all(type(value) is float for value in found.values())
    assert set(number_scores(y[:, 0], mean[:, 0])) == {"smse", "r2", "rmse"}
    assert all(math.isnan(value) for value in number_scores([math.nan], [1.0], interval=([0.0], [2.0])).values())
