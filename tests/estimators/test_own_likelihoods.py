"""Likelihoods as a user writes them get what ours get: estimators, scaled targets, files, summaries, reports."""

import numpy as np
import pytest
import torch
from scipy.stats import laplace
from torch import nn

from autogp import GPClassifier, GPRegressor, load_model
from autogp.likelihoods import Bernoulli, Gaussian, Likelihood, Network, Poisson, Softmax, StudentT
from autogp.parameters import positive_parameter
from autogp.report import write_report


class Grades(Likelihood):
    """p(y <= c | f) = sigmoid(cut_c - f) for classes in order; the distances between the cut points are learnt."""

    def __init__(self, num_classes):
        super().__init__()
        self.num_classes = num_classes
        self.first = nn.Parameter(torch.tensor(0.0, dtype=torch.float64))
        self.log_step = positive_parameter(1.0, "step", size=num_classes - 2)

    def log_prob(self, f, y):
        cuts = self.first + torch.cat([f.new_zeros(1), self.log_step.exp().to(f.dtype).cumsum(0)])
        below = torch.sigmoid(cuts - f)  # [..., B, C - 1]
        edges = torch.cat([torch.zeros_like(below[..., :1]), below, torch.ones_like(below[..., :1])], -1)
        return edges.diff(dim=-1).gather(-1, y.expand(f.shape[:-1])[..., None])[..., 0].clamp_min(1e-30).log()


class Laplace(Likelihood):
    """y ~ Laplace(f, scale)."""

    affine_targets = True

    def __init__(self, scale=1.0):
        super().__init__()
        self.log_scale = positive_parameter(scale, "scale")

    def log_prob(self, f, y):
        scale = self.log_scale.exp().to(f.dtype)
        return -(y - f[..., 0]).abs() / scale - torch.log(2 * scale)

    def conditional_moments(self, f):
        return f, 2 * self.log_scale.exp().to(f.dtype).square().expand_as(f)

    def sample(self, f, generator=None):
        u = torch.rand(f.shape, dtype=f.dtype, generator=generator) - 0.5
        return f - self.log_scale.exp().to(f.dtype) * u.sign() * torch.log1p(-2 * u.abs())


GRADES = np.array(["a", "b", "c", "d"])


@pytest.fixture(scope="module")
def grades():
    """Four classes in order along a wave, the cut points at distances 1, 3 and a noise of 0.3."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (400, 2))
    height = 3 * np.sin(X[:, 0]) + rng.logistic(scale=0.3, size=400)
    y = GRADES[np.digitize(height, [-2, -1, 2])]
    model = GPClassifier(15, likelihood=Grades(4), max_epochs=150, random_state=0).fit(X[:300], y[:300])
    return model, X[300:], y[300:]


@pytest.fixture(scope="module")
def prices():
    """Targets of size 1e4, with Laplace noise of scale 1,000."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (400, 1))
    y = 5e4 + 1e4 * np.sin(X[:, 0]) + rng.laplace(scale=1e3, size=400)
    model = GPRegressor(12, likelihood=Laplace(0.3), max_epochs=150, random_state=0).fit(X[:300], y[:300])
    return model, X[300:], y[300:]


def test_an_ordinal_likelihood_has_a_probability_for_each_class_and_learns_its_cut_points(grades):
    model, X, y = grades
    probabilities = model.predict_proba(X)
    assert probabilities.shape == (100, 4)
    assert probabilities.sum(1) == pytest.approx(1)
    assert model.score(X, y) > 0.75
    step = model.model_.likelihood.log_step.exp().tolist()
    assert step[1] / step[0] == pytest.approx(3, rel=0.4)
    own = probabilities[np.arange(100), np.searchsorted(GRADES, y)]
    assert model.log_density(X, y) == pytest.approx(np.log(own), abs=1e-3)


def test_targets_of_an_affine_family_are_scaled(prices):
    model, X, y = prices
    assert model.target_scaler_ is not None
    scale = (model.model_.likelihood.log_scale.exp() * model.target_scaler_.scale).item()
    assert scale == pytest.approx(1e3, rel=0.2)
    mean, std = model.predict(X, return_std=True)
    truth = 5e4 + 1e4 * np.sin(X[:, 0])
    assert np.abs(mean - truth).max() < 1e3
    assert std.mean() == pytest.approx(np.sqrt(2) * scale, rel=0.1)
    low, high = model.predict(X, quantiles=[0.05, 0.95]).T
    assert np.mean((low <= y) & (y <= high)) == pytest.approx(0.9, abs=0.07)
    assert model.log_density(X, y).mean() == pytest.approx(laplace.logpdf(y, truth, 1e3).mean(), abs=0.1)


def test_families_that_are_not_affine_are_left_in_the_units_of_the_targets():
    X, y = np.linspace(0, 1, 30)[:, None], np.arange(30) % 4
    assert GPRegressor(5, likelihood="poisson", max_epochs=1).fit(X, y).target_scaler_ is None


@pytest.mark.parametrize("name", ["grades", "prices"])
def test_they_come_back_from_a_file_with_a_summary_and_a_report(name, request, tmp_path, capsys):
    model, X, y = request.getfixturevalue(name)
    model.save(tmp_path / "model.autogp")
    again = load_model(tmp_path / "model.autogp", modules=[Grades, Laplace])
    assert (again.log_density(X, y) == model.log_density(X, y)).all()
    assert (again.predict(X) == model.predict(X)).all()
    again.summary()
    shown = capsys.readouterr().out
    assert ("Grades, step " if name == "grades" else "Laplace, scale ") in shown
    assert ("(of scaled targets)" in shown) == (name == "prices")
    write_report(tmp_path / "report.html", again, X, y)
    page = (tmp_path / "report.html").read_text()
    assert "tells 4 classes apart" in page if name == "grades" else "predicts numbers" in page


def test_labels_are_checked_without_a_line_by_the_user():
    assert Grades(4).check_targets(torch.tensor([0.0, 3.0])).tolist() == [0, 3]
    with pytest.raises(ValueError, match="integer labels from 0 to 3, got 4 at row 1"):
        Grades(4).check_targets(torch.tensor([0, 4]))


def test_a_likelihood_for_other_classes_or_outputs_is_refused():
    X = np.linspace(0, 1, 20)[:, None]
    with pytest.raises(ValueError, match="y has 3 classes, but the likelihood Grades has num_classes=4"):
        GPClassifier(likelihood=Grades(4)).fit(X, np.arange(20) % 3)
    with pytest.raises(ValueError, match="y has 2 classes, but the likelihood Laplace has num_classes=None"):
        GPClassifier(likelihood=Laplace()).fit(X, np.arange(20) % 2)
    with pytest.raises(ValueError, match="y has 2 outputs, but the likelihood Laplace has num_outputs=1"):
        GPRegressor(likelihood=Laplace()).fit(X, np.random.default_rng(0).normal(size=(20, 2)))


def test_what_our_likelihoods_declare():
    declared = {
        "num_outputs": [1, 3, 1, 2, 1, 1, 7],
        "num_classes": [None, None, 2, None, None, 5, None],
        "allows_missing": [True, True, True, True, True, False, True],
        "affine_targets": [True, True, False, False, False, False, True],
        "counts": [False, False, False, False, True, False, False],
        "conjugate": [True, False, False, False, False, False, False],
        "finite_loo": [False, True, True, False, False, True, False],
    }
    ours = [Gaussian(), StudentT(3), Bernoulli(), Bernoulli(2, "probit"), Poisson(), Softmax(5), Network(7)]
    for name, expected in declared.items():
        assert [getattr(likelihood, name) for likelihood in ours] == expected
