"""Support vector machines beside our runs."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.svm import SVC

from autogp.datasets import load_digits
from autogp.experiments.figures import figure_of_depths
from autogp.experiments.svm import DEPTH, arc_cosine, arc_cosines, rbf, support_vectors


def step_kernel(x, z, depth):
    """Cho and Saul (2009), degree 0: k = 1 - angle / pi, and the diagonal of each layer is 1."""
    x, z = (part.astype(np.float64) for part in (x, z))
    found = x @ z.T / np.outer(np.linalg.norm(x, axis=1), np.linalg.norm(z, axis=1))
    found[found > 1 - 1e-12] = 1  # arccos has an infinite slope there, and would turn rounding into angles
    for _ in range(depth):
        found = 1 - np.arccos(np.clip(found, -1, 1)) / np.pi
    return found


def test_kernels_equal_their_formulas():
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    settings, gram = next(rbf(x))
    apart = np.square(x[:, None] - x[None]).sum(-1)
    np.testing.assert_allclose(gram(x, x), np.exp(-settings["gamma"] * apart), rtol=1e-4)
    ((_, gram),) = arc_cosine(x)
    np.testing.assert_allclose(gram(x, x), step_kernel(x, x, DEPTH), atol=2e-4)


def test_the_sweep_has_every_degree_and_depth_with_a_diagonal_of_one():
    x = 3 * np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    found = [(settings["degree"], settings["depth"], gram(x, x)) for settings, gram in arc_cosines(x)]
    assert [each[:2] for each in found] == [(degree, depth) for degree in range(3) for depth in range(1, 7)]
    for _, _, gram in found:
        np.testing.assert_allclose(np.diagonal(gram), 1, atol=1e-6)
        assert np.linalg.eigvalsh(gram).min() > -1e-6


@pytest.mark.parametrize("kernels", [rbf, arc_cosine])
def test_the_error_is_that_of_the_machine_with_the_settings_that_were_chosen(kernels):
    """Against scikit-learn's own RBF kernel, and against the formula of the arc-cosine kernel."""
    data = load_digits(seed=0)
    few = type(data)(**{**vars(data), "x_train": data.x_train[:300], "y_train": data.y_train[:300]})
    found = support_vectors(few, None, 0, kernels)
    chosen = min(found["tried"], key=lambda each: each["error"])
    assert found["settings"]["C"] == chosen["C"]
    scale = few.x_train.max()
    x, test = few.x_train / scale, data.x_test / scale
    if kernels is rbf:
        machine = SVC(C=chosen["C"], gamma=chosen["gamma"]).fit(x, few.y_train)
        predicted = machine.predict(test)
    else:
        machine = SVC(C=chosen["C"], kernel="precomputed").fit(step_kernel(x, x, DEPTH), few.y_train)
        predicted = machine.predict(step_kernel(test, x, DEPTH))
    expected = np.mean(predicted != data.y_test)
    assert abs(found["scores"]["error"] - expected) <= 1 / len(test)  # a row at the border may fall to either side


def test_depths_of_the_arc_cosine_kernel_have_a_line_for_each_degree(tmp_path: Path) -> None:
    tried = [
        {"depth": depth, "degree": degree, "C": c, "error": 0.1 * depth + 0.01 * degree + 0.001 * c}
        for depth in (1, 2)
        for degree in (0, 1)
        for c in (1, 10)
    ]
    path = figure_of_depths([{"tried": tried}], tmp_path)
    assert path is not None
    assert path.read_text().count("<!-- degree") == 2
    assert figure_of_depths([{"tried": [{"C": 1, "gamma": 0.1, "error": 0.2}]}, {}], tmp_path) is None
