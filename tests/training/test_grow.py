"""Inducing inputs that become more: nothing is lost when they are added, and what they will gain is known before."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.stats import multivariate_normal
from sklearn.datasets import load_diabetes, load_iris, make_friedman1

from autogp import GPClassifier, GPRegressor
from autogp.data import ArraySource
from autogp.kernels import RBF, Matern52
from autogp.likelihoods import Gaussian, Heteroscedastic, Poisson
from autogp.model import SparseGP
from autogp.objectives import elbo
from autogp.training import Settings, Start, converge
from autogp.training.feed import Feed
from autogp.training.grow import LEAST_GAIN, grow, missing


def rows(count: int = 80, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, dtype=torch.float64, generator=generator)
    noise = 0.1 * torch.randn(count, dtype=torch.float64, generator=generator)
    return x, (2 * x[:, 0]).sin() + x[:, 1] ** 2 + noise


def trained(likelihood, kernel=None, size: int = 5) -> tuple[SparseGP, ArraySource]:
    x, y = rows()
    if likelihood.counts:
        y = y.round().clamp_min(0)
    model = SparseGP(kernel or Matern52(torch.ones(1, 2, dtype=torch.float64)), likelihood, x[:size])
    source = ArraySource(x, y)
    converge(model, source, Settings(max_epochs=5))
    return model, source


@pytest.mark.parametrize(
    ("likelihood", "kernel"),
    [
        (Gaussian(variance=0.1), None),
        (Poisson(1, torch.tensor([1.0])), None),
        (Heteroscedastic(1, variance=0.1), RBF(torch.ones(2, 2, dtype=torch.float64))),
    ],
    ids=["gaussian", "poisson", "a kernel for each function"],
)
def test_growing_changes_neither_predictions_nor_the_elbo(likelihood, kernel):
    model, source = trained(likelihood, kernel)
    x, y = (torch.from_numpy(part) for part in source.rows(np.arange(80)))
    before, value = model(x), elbo(model, x, y)
    grow(model, source, 12)
    after = model(x)
    assert model.inducing_inputs.shape[-2] == 12
    torch.testing.assert_close(after.mean, before.mean, rtol=0, atol=1e-7)
    torch.testing.assert_close(after.variance, before.variance, rtol=0, atol=1e-7)
    torch.testing.assert_close(elbo(model, x, y), value, rtol=1e-8, atol=0)


@pytest.mark.parametrize("variance", [1.0, 1e-9])
def test_each_new_inducing_input_is_the_row_with_most_variance_left(variance):
    model, source = trained(Gaussian(variance=0.1))
    model.kernel = Matern52(torch.ones(1, 2, dtype=torch.float64), torch.tensor([variance], dtype=torch.float64))
    x = torch.from_numpy(source.rows(np.arange(80))[0]).float().double()
    grow(model, source, 9)
    z = model.inducing_inputs.detach()[0]
    for known in range(5, 9):
        gram = model.kernel.gram(z[:known], z[:known])[0]
        cross = model.kernel.gram(z[:known], x)[0]
        left = model.kernel.diag(x)[0] - (cross * torch.linalg.solve(gram, cross)).sum(0)
        torch.testing.assert_close(z[known], x[left.argmax()])


def test_rows_that_are_inducing_inputs_already_are_not_taken_again():
    x = torch.eye(3, dtype=torch.float64).repeat(10, 1)
    model = SparseGP(RBF(torch.ones(1, 3, dtype=torch.float64)), Gaussian(), x[:1])
    grow(model, ArraySource(x, x[:, 0]), 30)
    assert model.inducing_inputs.shape[-2] == 3


def test_inducing_inputs_are_added_until_all_rows_are_known_to_rounding():
    """Targets with little noise under a kernel of large variance need rows whose variance is nearly known."""
    model, source = trained(Gaussian(variance=0.1))
    model.kernel = RBF(torch.full((1, 2), 4.0, dtype=torch.float64))
    grow(model, source, 80)
    x = torch.from_numpy(source.rows(np.arange(80))[0])
    left = model.marginals(model.embed(x), model.prepare()).residual
    assert model.inducing_inputs.shape[-2] < 80
    assert left.max() < 1e-7


def test_what_is_missing_is_the_trace_of_titsias_bound():
    model, source = trained(Gaussian(variance=0.1))
    x = torch.from_numpy(source.rows(np.arange(80))[0])
    z = model.inducing_inputs.detach()[0]
    cross = model.kernel.gram(z, x)[0]
    left = model.kernel.diag(x)[0] - (cross * torch.linalg.solve(model.kernel.gram(z, z)[0], cross)).sum(0)
    noise = model.likelihood.variance.item()
    expected = (left.sum() / (2 * noise * len(x))).item()
    assert missing(model, source, Feed(model, 80, None, None)) == pytest.approx(expected, rel=1e-4)


def sets() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(0)
    line = np.sort(random.uniform(0, 10, 300))[:, None]
    plane = random.normal(size=(300, 2))
    return {
        "smooth": (line, np.sin(line[:, 0]) + 0.1 * random.normal(size=300)),
        "rough": (line, np.sin(line[:, 0] ** 2) + 0.1 * random.normal(size=300)),
        "plane": (plane, np.sin(3 * plane[:, 0]) * plane[:, 1] + 0.1 * random.normal(size=300)),
        "friedman": make_friedman1(300, 8, noise=0.5, random_state=0),
        "diabetes": load_diabetes(return_X_y=True),
    }


@pytest.mark.parametrize("name", sets())
def test_more_inducing_inputs_never_hurt(name):
    x, y = sets()[name]
    test = np.arange(len(y)) % 4 == 0
    values, errors = [], []
    for size in (10, 25, 51, 100, 150):
        model = GPRegressor(size, likelihood="gaussian", random_state=0, verbose=False).fit(x[~test], y[~test])
        values.append(model.elbo_ / (~test).sum())
        errors.append(np.sqrt(np.mean((model.predict(x[test]) - y[test]) ** 2)))
    # From one number of inducing inputs to the next the ELBO may lose what convergence leaves open, and no more.
    assert all(later > earlier - 0.01 for earlier, later in pairwise(values)), values
    assert all(later < 1.05 * min(errors[: i + 1]) for i, later in enumerate(errors[1:])), errors


def test_rough_functions_get_more_inducing_inputs_and_the_summary_says_why(capsys):
    found, random = {}, np.random.default_rng(0)
    plane = random.normal(size=(600, 2))
    for name, width in (("smooth", 0.5), ("plane", 3)):
        x, y = plane, np.sin(width * plane[:, 0]) * plane[:, 1] + 0.1 * random.normal(size=600)
        model = GPRegressor(likelihood="gaussian", random_state=0, verbose=False).fit(x, y)
        found[name] = model.model_.inducing_inputs.shape[-2]
        model.summary()
        assert f"at {found[name]} inducing inputs; more would gain less than {LEAST_GAIN}" in capsys.readouterr().out
    assert found["smooth"] == 50 < found["plane"] <= 400


def test_few_rows_are_all_inducing_inputs_and_the_evidence_is_exact():
    x, y = sets()["plane"]
    model = GPRegressor(likelihood="gaussian", kernel="rbf", start=Start(prior=False), random_state=0, verbose=False)
    model.fit(x, y)
    assert model.model_.inducing_inputs.shape[-2] == 300
    kernel, likelihood = model.model_.kernel, model.model_.likelihood
    assert isinstance(kernel, RBF)
    assert isinstance(likelihood, Gaussian)
    lengthscale, variance = kernel.lengthscale.detach().numpy()[0], kernel.variance.item()
    noise = likelihood.variance.item()
    scaled = (x - x.mean(0)) / x.std(0) / lengthscale
    covariance = variance * np.exp(-0.5 * cdist(scaled, scaled, "sqeuclidean")) + noise * np.eye(300)
    targets = (y - y.mean()) / y.std()
    evidence = multivariate_normal.logpdf(targets, np.zeros(300), covariance) - 300 * np.log(y.std())
    assert model.elbo_ == pytest.approx(evidence, abs=0.01)


def test_a_limit_of_epochs_holds_for_all_parts_together():
    x, y = sets()["plane"]
    model = GPRegressor(120, likelihood="gaussian", max_epochs=7, random_state=0, verbose=False).fit(x, y)
    assert len(model.history_) <= 7
    assert model.model_.inducing_inputs.shape[-2] == 120


def test_a_callback_that_asks_once_to_stop_is_heard():
    x, y = sets()["plane"]
    calls: list = []
    model = GPRegressor(120, likelihood="gaussian", random_state=0, verbose=False)
    model.fit(x, y, callbacks=[lambda progress: calls.append(progress) or len(calls) == 3])
    assert len(calls) == len(model.history_) == 4  # and one iteration with as many inducing inputs as were asked for
    assert model.stopped_ == "callback"
    assert model.model_.inducing_inputs.shape[-2] == 120


def test_fewer_rows_than_inducing_inputs_are_said(capsys):
    x = np.linspace(0, 1, 20)[:, None]
    GPRegressor(likelihood="gaussian", random_state=0, verbose=False).fit(x, np.sin(9 * x[:, 0])).summary()
    assert "at 20 inducing inputs; as many as rows" in capsys.readouterr().out


def test_a_run_that_grows_resumes_to_the_same_bits(tmp_path):
    x, y = sets()["plane"]
    whole = GPRegressor(120, likelihood="gaussian", random_state=0, verbose=False).fit(x, y)

    def stop_early(progress) -> None:
        if calls.append(progress) is None and len(calls) == 25:
            raise KeyboardInterrupt

    calls: list = []
    broken = GPRegressor(120, likelihood="gaussian", checkpoint=str(tmp_path / "run"), random_state=0, verbose=False)
    with pytest.raises(KeyboardInterrupt):
        broken.fit(x, y, callbacks=[stop_early])
    broken.fit(x, y)
    np.testing.assert_array_equal(broken.predict(x), whole.predict(x))


def test_three_classes_take_a_fifth_of_the_rows():
    x, y = load_iris(return_X_y=True)
    x = np.concatenate([x, x + 0.01]) + 1e-3 * np.random.default_rng(0).normal(size=(300, 4))
    model = GPClassifier(random_state=0, max_epochs=2, verbose=False).fit(x, np.tile(y, 2))
    assert model.model_.inducing_inputs.shape[-2] == 60


def wavy(count: int = 600) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.uniform(-3, 3, (count, 2))
    return x, np.sin(2 * x[:, 0]) * np.cos(2 * x[:, 1]) + 0.3 * random.normal(size=count)


def rough(count: int = 600) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.uniform(-3, 3, (count, 1))
    return x, np.abs(np.sin(2 * x[:, 0])) + 0.02 * random.normal(size=count)


@pytest.mark.parametrize(("data", "expected"), [(wavy, RBF), (rough, Matern52)], ids=["smooth", "rough"])
def test_the_elbo_chooses_the_kernel(data, expected, monkeypatch):
    monkeypatch.setattr("autogp.estimators.fitting.RIVAL_ROWS", 600)
    monkeypatch.setattr("autogp.training.grow.FEWEST_INDUCING", 20)  # the rival is tried with twice as many
    x, y = data()
    model = GPRegressor(45, likelihood="gaussian", random_state=0, max_epochs=100).fit(x, y)
    assert type(model.model_.kernel) is expected
    own = GPRegressor(45, likelihood="gaussian", kernel="matern52", random_state=0, max_epochs=100).fit(x, y)
    assert type(own.model_.kernel) is Matern52
    if expected is RBF:
        assert model.elbo_ > own.elbo_


@pytest.mark.parametrize(("noise", "dtype"), [(0.3, torch.float32), (0.003, torch.float64)])
def test_rows_are_float32_where_the_noise_hides_what_that_loses(noise, dtype, monkeypatch):
    monkeypatch.setattr("autogp.training.grow.MANY_NUMBERS", 60 * 600)
    random = np.random.default_rng(0)
    x = random.uniform(-3, 3, (800, 1))
    y = np.sin(2 * x[:, 0])
    model = GPRegressor(60, likelihood="gaussian", kernel="rbf", random_state=0)
    model.fit(x, y + noise * random.normal(size=len(x)))
    assert model.model_.dtype is dtype
    assert np.sqrt(np.mean((model.predict(x) - y) ** 2)) < 0.25 * noise
