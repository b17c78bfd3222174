"""Support vector machines beside our runs."""

import numpy as np
import pytest

from autogp.datasets import load_digits
from autogp.experiments.svm import DEPTH, arc_cosine, rbf, support_vectors


def test_kernels_equal_their_formulas():
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    settings, gram = next(rbf(x))
    apart = np.square(x[:, None] - x[None]).sum(-1)
    np.testing.assert_allclose(gram(x, x), np.exp(-settings["gamma"] * apart), rtol=1e-4)
    expected = x.astype(np.float64) @ x.T.astype(np.float64)
    for _ in range(DEPTH):  # Cho and Saul (2009), degree 0: k = 1 - angle / pi, and its own diagonal is 1
        lengths = np.sqrt(np.diagonal(expected))
        expected = 1 - np.arccos(np.clip(expected / np.outer(lengths, lengths), -1, 1)) / np.pi
    ((_, gram),) = arc_cosine(x)
    np.testing.assert_allclose(gram(x, x), expected, atol=2e-4)


@pytest.mark.parametrize("kernels", [rbf, arc_cosine])
def test_a_machine_tells_more_than_two_classes_apart(kernels):
    data = load_digits(seed=0)
    few = type(data)(**{**vars(data), "x_train": data.x_train[:300], "y_train": data.y_train[:300]})
    found = support_vectors(few, None, 0, kernels)
    assert found["scores"]["error"] < 0.15
    assert found["settings"]["C"] in {each["C"] for each in found["tried"]}
