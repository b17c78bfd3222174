"""All rows at once: the ELBO at its best q, its gradient, its maximum, for any likelihood."""

import math
import signal
import time

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF as SklearnRBF
from sklearn.gaussian_process.kernels import ConstantKernel, WhiteKernel

from autogp import Posterior, SparseGP, elbo
from autogp.data import ArraySource
from autogp.kernels import RBF, ArcCosine, LogNormal
from autogp.likelihoods import Bernoulli, Gaussian, Poisson, Softmax, StudentT
from autogp.linalg import NotPositiveDefiniteError
from autogp.objectives import expected_log_prob
from autogp.posteriors import Natural
from autogp.training import Settings, TrainingInterruptedError, converge, fullbatch, settle
from autogp.training.feed import Feed
from autogp.training.fullbatch import Profile


def problem(count: int = 40, inputs: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = 3 * torch.rand(count, inputs, dtype=torch.float64, generator=generator)
    y = torch.sin(2 * x[:, :1]) + 0.2 * torch.randn(count, 1, dtype=torch.float64, generator=generator)
    return x, y


def profile(model: SparseGP, x: torch.Tensor, y: torch.Tensor) -> Profile:
    source = ArraySource(x, y)
    return Profile(model, source, Feed(model, len(source), None, None))


def test_the_collapsed_elbo_is_titsias():
    x, y = problem()
    z = x[:7]
    model = SparseGP(RBF(lengthscale=0.7, variance=1.3), Gaussian(variance=0.1), z)
    at = profile(model, x, y)
    found, q = at()[0], at.q
    with torch.no_grad():
        kernel = model.kernel
        kzz = kernel.gram(z, z)[0]
        kzz = kzz + model.jitter * kzz.diagonal().mean() * torch.eye(7)
        kzx = kernel.gram(z, x)[0]
        low_rank = kzx.mT @ torch.linalg.solve(kzz, kzx)
        density = torch.distributions.MultivariateNormal(torch.zeros(40).double(), low_rank + 0.1 * torch.eye(40))
        expected = density.log_prob(y[:, 0]) - (40 * 1.3 - low_rank.trace()) / (2 * 0.1)
    assert found.item() == pytest.approx(expected.item(), rel=1e-8)
    assert elbo(model, x, y, q=q).item() == pytest.approx(found.item(), rel=1e-10)  # where the maximum is


def test_outputs_that_are_independent_settle_as_each_would_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = problem()
    labels = torch.cat([y > 0, y > 0.5], 1).double()

    def best(targets: torch.Tensor) -> float:
        model = SparseGP(RBF(lengthscale=0.7, variance=3.0), Bernoulli(targets.shape[1]), x[:7])
        at = profile(model, x, targets)
        at.tolerance = 1e-9
        return at()[0].item()

    alone = best(labels[:, :1]) + best(labels[:, 1:])
    monkeypatch.setattr(settle, "_coupled", None)  # nothing couples them: there is nothing to solve for
    assert best(labels) == pytest.approx(alone, rel=1e-7)


def test_a_prior_adds_its_log_density_and_gradient():
    x, y = problem()
    kernel = RBF([0.7, 2.0], variance=1.3)
    model = SparseGP(kernel + RBF(0.5), Gaussian(variance=0.1), x[:7])
    plain, gradients = profile(model, x, y)()
    kernel.priors = {"lengthscale": LogNormal(0.3, together=1.0, apart=0.5), "variance": LogNormal(0.1, 0.6, 0.8)}
    found, raised = fullbatch.with_prior(profile(model, x, y))
    covariance = torch.tensor([[1.25, 1.0], [1.0, 1.25]], dtype=torch.float64)
    log_lengthscale = torch.tensor([0.7, 2.0], dtype=torch.float64).log()
    away = log_lengthscale - 0.3
    expected = torch.distributions.MultivariateNormal(torch.full((2,), 0.3).double(), covariance)
    variance = torch.distributions.Normal(0.1, 1.0)  # 0.6^2 + 0.8^2 = 1
    added = expected.log_prob(log_lengthscale) + variance.log_prob(torch.tensor(1.3).log())
    assert (found - plain).item() == pytest.approx(added.item(), rel=1e-6)
    names = list(profile(model, x, y).parameters)
    changes = {name: a - b for name, a, b in zip(names, raised, gradients, strict=True)}
    slope = -torch.linalg.solve(covariance, away)
    assert torch.allclose(changes.pop("kernel.kernels.0.log_lengthscale")[0], slope)
    assert changes.pop("kernel.kernels.0.log_variance").item() == pytest.approx(0.1 - math.log(1.3))
    assert not any(each.any() for each in changes.values())


LIKELIHOODS = {
    "gaussian": (lambda: Gaussian(variance=0.1), lambda y: y),
    "student": (lambda: StudentT(scale=0.3), lambda y: y),
    "poisson": (Poisson, lambda y: torch.exp(y).round()),
    "bernoulli": (Bernoulli, lambda y: (y > 0).double()),
    "softmax": (lambda: Softmax(3), lambda y: (y[:, 0].clamp(-1, 1).round() + 1).long()),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_q_is_at_its_optimum_and_the_gradient_is_that_of_the_profiled_elbo(name, monkeypatch):
    monkeypatch.setattr(fullbatch, "Q_ROUGH", 1e-12)
    x, y = problem()
    new, targets = LIKELIHOODS[name]
    model = SparseGP(RBF(lengthscale=[0.7, 1.4], variance=1.3), new(), x[:7].clone())
    at = profile(model, x, targets(y))
    value, gradients = at()
    q = at.q
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):  # no q nearby is better
        step = 0.05 * torch.randn(q.shift.shape, dtype=torch.float64, generator=generator)
        moved = Natural(q.precision * (1 + step.mean()), q.shift + step)
        noise = at.read(np.arange(40)).noise
        assert at_q(model, x, targets(y), moved, noise) < at_q(model, x, targets(y), q, noise)
    assert at_q(model, x, targets(y), q, noise) == pytest.approx(value.item(), rel=1e-10)
    for (_, parameter), gradient in zip(at.parameters.items(), gradients, strict=True):
        place = (0,) * parameter.ndim
        with torch.no_grad():
            values = []
            for step in (1e-5, -2e-5):
                parameter[place] += step
                values.append(at()[0].item())
            parameter[place] += 1e-5
        slope = (values[0] - values[1]) / 2e-5
        assert gradient[place].item() == pytest.approx(slope, rel=1e-4, abs=1e-5)


def at_q(model: SparseGP, x: torch.Tensor, y: torch.Tensor, q: Natural, noise: torch.Tensor | None) -> float:
    with torch.no_grad():
        marginals = model(x, q)
        rows = expected_log_prob(model.likelihood, marginals, model.likelihood.check_targets(y), noise)
        return (rows.sum() - q.moments().kl()).item()


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_blocks_of_rows_read_again_at_every_pass_give_what_memory_gives(name, monkeypatch):
    x, y = problem()
    new, targets = LIKELIHOODS[name]
    model = SparseGP(RBF(lengthscale=[0.7, 1.4]), new(), x[:7].clone())
    value, gradients = profile(model, x, targets(y))()
    monkeypatch.setattr(fullbatch, "BLOCK_NUMBERS", 7 * 10)
    monkeypatch.setattr(fullbatch, "KEPT_NUMBERS", 0)
    streamed = profile(model, x, targets(y))
    assert len(streamed.slices) > 1
    assert streamed.batches is None
    again, streamed_gradients = streamed()
    assert again.item() == pytest.approx(value.item(), rel=1e-9)
    for one, two in zip(gradients, streamed_gradients, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_a_run_that_was_broken_off_ends_in_the_same_bits(name, tmp_path):
    x, y = problem()
    new, targets = LIKELIHOODS[name]
    source = ArraySource(x, targets(y))

    def model() -> SparseGP:
        return SparseGP(RBF(lengthscale=[1.0, 1.0]), new(), x[::4].clone())

    whole = model()
    settings = Settings(max_epochs=12, checkpoint_seconds=1e-9)
    history = converge(whole, source, settings)

    def break_off(progress):
        if progress.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        converge(model(), source, settings, folder=tmp_path, callbacks=[break_off])
    again = model()
    resumed = converge(again, source, settings, folder=tmp_path, resume=True)
    assert [row["value"] for row in resumed.rows] == [row["value"] for row in history.rows]
    for one, two in zip(whole.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(one, two)
    finished = model()
    assert converge(finished, source, settings, folder=tmp_path, resume=True).stopped == history.stopped
    assert torch.equal(finished.inducing_inputs, whole.inducing_inputs)


def test_it_reaches_the_optimum_of_the_exact_gaussian_process():
    x, y = problem()
    kernel = ConstantKernel(1.0) * SklearnRBF([1.0, 1.0], (1e-2, 1e6)) + WhiteKernel(0.1)
    exact = GaussianProcessRegressor(kernel, n_restarts_optimizer=3, random_state=0).fit(x.numpy(), y.numpy()[:, 0])
    model = SparseGP(RBF(lengthscale=[1.0, 1.0]), Gaussian(variance=0.1), x)
    history = converge(model, ArraySource(x, y), Settings())
    assert history.stopped == "converged"
    assert elbo(model, x, y).item() == pytest.approx(exact.log_marginal_likelihood_value_, abs=0.05)
    values = [row["value"] for row in history.rows]
    assert values == sorted(values)  # no noise: every iteration is better than the last


def test_missing_targets_and_weights_count_as_they_should():
    x, y = problem()
    y = torch.cat([y, y + 1], 1)
    y[3, 1] = math.nan
    model = SparseGP(RBF(), Gaussian(2), x[::4])
    weights = np.ones(40)
    weights[5] = 2.0
    converge(model, ArraySource(x, y), Settings(max_epochs=5), weights=weights)
    twice = torch.cat([torch.arange(40), torch.tensor([5])])
    other = SparseGP(RBF(), Gaussian(2), x[::4])
    converge(other, ArraySource(x[twice], y[twice]), Settings(max_epochs=5))
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)


def test_held_out_rows_choose_the_state_and_stop_the_run():
    x, y = problem()
    held = ArraySource(x[30:], y[30:])
    model = SparseGP(RBF(lengthscale=[1.0, 1.0]), Gaussian(variance=1.0), x[:30])
    history = converge(model, ArraySource(x[:30], y[:30]), Settings(patience=3), validation=held)
    scores = [row["score"] for row in history.rows]
    assert history.best_score == max(scores)
    assert history.best_epoch == scores.index(max(scores)) + 1


def test_a_signal_ends_it_after_an_iteration_and_it_resumes_to_the_same_bits(tmp_path):
    x, y = problem()
    source, settings = ArraySource(x, y), Settings(max_epochs=10)

    def model() -> SparseGP:
        return SparseGP(RBF(lengthscale=[1.0, 1.0]), StudentT(), x[::4].clone())

    def stop(progress):
        if progress.step == 4:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(TrainingInterruptedError, match="SIGTERM after step 4") as error:
        converge(model(), source, settings, folder=tmp_path, callbacks=[stop])
    assert error.value.exit_code == 143
    again, whole = model(), model()
    converge(again, source, settings, folder=tmp_path, resume=True)
    converge(whole, source, settings)
    assert torch.equal(again.inducing_inputs, whole.inducing_inputs)
    assert torch.equal(again.posterior.mean, whole.posterior.mean)


def test_time_callbacks_and_the_number_of_iterations_end_it():
    x, y = problem()
    source = ArraySource(x, y)

    def fresh() -> SparseGP:
        return SparseGP(RBF(lengthscale=[1.0, 1.0]), Gaussian(variance=0.1), x[:20])

    seen = []
    assert converge(fresh(), source, Settings(max_epochs=3), callbacks=[seen.append]).stopped == "max_epochs"
    assert [progress.step for progress in seen] == [1, 2, 3]
    assert converge(fresh(), source, Settings(), callbacks=[lambda progress: progress.step == 2]).stopped == "callback"
    started = time.monotonic()
    history = converge(fresh(), source, Settings(time_budget=1e-3))
    assert history.stopped == "time budget"
    assert time.monotonic() - started < 5


def test_mixtures_and_diagonal_posteriors_are_refused():
    x, y = problem()
    for posterior in (Posterior(1, 5, num_components=2), Posterior(1, 5, diagonal=True)):
        model = SparseGP(RBF(), Gaussian(), x[:5], posterior=posterior)
        with pytest.raises(TypeError, match="one Gaussian with a full covariance"):
            converge(model, ArraySource(x, y), Settings())


def test_other_objectives_are_refused():
    x, y = problem()
    model = SparseGP(RBF(), Gaussian(), x[:7])
    with pytest.raises(ValueError, match="for the objective 'elbo', got 'loo': use train"):
        converge(model, ArraySource(x, y), Settings(objective="loo"))


def test_a_start_that_cannot_be_factorised_says_so():
    x, y = problem(inputs=1)
    model = SparseGP(ArcCosine(degree=2, depth=12, weight_variance=9.0), Gaussian(), x[::5])
    with pytest.raises(NotPositiveDefiniteError, match="closest inducing inputs"):
        converge(model, ArraySource(x, y), Settings())


def test_where_everything_is_frozen_q_alone_learns():
    x, y = problem()
    model = SparseGP(RBF(), Gaussian(variance=0.04), x[::2])
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    history = converge(model, ArraySource(x, y), Settings())
    assert (len(history.rows), history.stopped) == (1, "converged")
    assert (model.predict(x).mean - y).square().mean() < 0.2 * y.var()
