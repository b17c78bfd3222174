"""Mixtures: never below the Gaussian that they start from, and all modes of a posterior that has several."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from autogp import GPClassifier, GPRegressor, SparseGP
from autogp.data import ArraySource
from autogp.kernels import RBF
from autogp.likelihoods import Likelihood
from autogp.objectives import elbo
from autogp.training import Settings
from autogp.training.mixture import mix


def line(seed: int = 0, rows: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3, 3, (rows, 1))
    return x, np.sin(2 * x[:, 0]) + 0.2 * rng.normal(size=rows)


class Sign(Likelihood):
    """y = f^2 + noise: nothing tells the sign of f."""

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return -0.5 * ((y - f[..., 0].square()) / 0.1).square() - math.log(0.1 * math.sqrt(2 * math.pi))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches for modes and training together of a few steps: what is promised holds after any number."""
    monkeypatch.setattr("autogp.training.mixture.STEPS", 20)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("likelihood", "components"), [("gaussian", 2), ("student_t", 3)])
def test_a_mixture_of_a_regression_has_the_elbo_of_one_gaussian_at_least(likelihood, components):
    x, y = line(rows=40)
    options = {"likelihood": likelihood, "random_state": 0, "max_epochs": 30}
    one = GPRegressor(12, **options).fit(x, y)
    several = GPRegressor(12, n_components=components, **options).fit(x, y)
    assert len(several.model_.posterior.logits) == components
    assert one.elbo_ - 1e-6 <= several.elbo_ <= one.elbo_ + math.log(components) + 1  # hyper-parameters may gain too
    assert several.model_.posterior.moments().jensen_kl() > several.model_.posterior.moments().kl()


@pytest.mark.usefixtures("short")
def test_a_mixture_of_a_classification_predicts_as_well_as_one_gaussian():
    x, y = line()
    one = GPClassifier(12, random_state=0, max_epochs=30, objective="elbo").fit(x, y > 0)
    several = GPClassifier(12, n_components=2, random_state=0, max_epochs=30).fit(x, y > 0)
    assert several.elbo_ >= one.elbo_ - 1e-6
    np.testing.assert_allclose(several.predict_proba(x), one.predict_proba(x), atol=0.02)


def test_a_mixture_finds_both_modes_and_gains_log_2():
    """f and -f explain squares equally well: two components far apart, with the same weight, are worth log 2 nats."""
    x = np.linspace(-1, 1, 30)[:, None]
    y = np.square(1.5 + 0.5 * x[:, 0])
    z = torch.linspace(-1, 1, 6, dtype=torch.float64)[:, None]
    model = SparseGP(RBF(2.0, 2.0), Sign(), z)
    for part in (model.kernel, model.likelihood):
        part.requires_grad_(False)
    model.inducing_inputs.requires_grad_(False)
    mix(model, ArraySource(x, y), Settings(batch_size=30, natural_rates=(0.2, 0.2)), components=2, verbose=False)
    rows = torch.from_numpy(x), torch.from_numpy(y)
    mean = model(rows[0]).mean[:, :, 0]  # [K, B]
    assert sorted(mean.mean(1).sign().tolist()) == [-1, 1]
    both = elbo(model, *rows).item()
    with torch.no_grad():
        weights = torch.softmax(model.posterior.logits, 0)
        model.posterior.logits.copy_(torch.tensor([0.0, -100.0]))
        alone = elbo(model, *rows).item()
    np.testing.assert_allclose(weights.detach(), 0.5, atol=0.05)
    assert both == pytest.approx(alone + math.log(2), abs=0.1)


@pytest.mark.usefixtures("short")
def test_a_fit_that_is_interrupted_goes_on_to_the_same_mixture(tmp_path):
    x, y = line()
    options = {"n_components": 2, "likelihood": "student_t", "random_state": 0, "max_epochs": 10}
    whole = GPRegressor(8, **options, checkpoint=str(tmp_path / "a")).fit(x, y)

    class Stop(Exception):
        pass

    steps = []

    def interrupt(progress):
        steps.append(progress.step)
        if len(steps) == 20:
            raise Stop

    with pytest.raises(Stop):
        GPRegressor(8, **options, checkpoint=str(tmp_path / "b")).fit(x, y, callbacks=[interrupt])
    resumed = GPRegressor(8, **options, checkpoint=str(tmp_path / "b")).fit(x, y)
    np.testing.assert_array_equal(resumed.predict(x), whole.predict(x))
