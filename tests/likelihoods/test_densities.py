"""log p(y | f) is the density that it says, of every likelihood, over any leading axes and in both precisions."""

import numpy as np
import pytest
import torch
from likelihood_cases import INFINITE_LOO, KINDS, make, reference_log_prob
from scipy import integrate, special, stats

from autogp.likelihoods import Bernoulli, Gaussian, Likelihood, Network, Poisson, Softmax, StudentT


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


@pytest.mark.parametrize("kind", KINDS)
def test_log_prob_equals_scipy(kind):
    case = make(kind, rows=50)
    f = case.latents()
    expected = reference_log_prob(kind, f.numpy(), case.y.numpy())
    np.testing.assert_allclose(case.likelihood.log_prob(f, case.y).detach().numpy(), expected, rtol=1e-12, atol=1e-12)


def test_log_prob_equals_torch_distributions():
    f = 3 * make("softmax", rows=50).latents()
    for likelihood, reference, latents, y in (
        (Softmax(4), torch.distributions.Categorical(logits=f), f, torch.arange(50) % 4),
        (Bernoulli(4), torch.distributions.Bernoulli(logits=f), f, (f > 1).double()),
        (Poisson(4), torch.distributions.Poisson(f.exp()), f, (3 * f).abs().round()),
        (StudentT(4, df=3.0, scale=0.5), torch.distributions.StudentT(3.0, f, 0.5), f, -f),
        (Gaussian(4, variance=0.25), torch.distributions.Normal(f, 0.5), f, -f),
    ):
        expected = reference.log_prob(y)
        expected = expected if expected.ndim == 1 else expected.sum(-1)
        actual = likelihood.log_prob(latents, likelihood.check_targets(y))
        torch.testing.assert_close(actual.detach(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("f", [-2.0, 0.3, 4.0])
def test_densities_of_numbers_integrate_to_one(f):
    latent = column(f, 0.7).T  # the Network reads both as weight and node
    for likelihood in (Gaussian(variance=0.4), StudentT(df=3.0, scale=0.5), Network(1, variance=0.4)):

        def density(y, likelihood=likelihood):
            return likelihood.log_prob(latent[:, : likelihood.num_latents], column(y)).exp().item()

        total = sum(integrate.quad(density, *ends, epsabs=1e-12)[0] for ends in ((-np.inf, f), (f, np.inf)))
        assert total == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("f", [-30.0, -2.0, 0.3, 4.0])
def test_probabilities_of_labels_and_counts_sum_to_one(f):
    labels = column(0, 1)
    for link in ("logit", "probit"):
        assert Bernoulli(link=link).log_prob(column(f), labels).exp().sum().item() == pytest.approx(1, abs=1e-12)
    latents = torch.tensor([[f, 0.0, 1.0]], dtype=torch.float64).expand(3, 3)
    assert Softmax(3).log_prob(latents, torch.arange(3)).exp().sum().item() == pytest.approx(1, abs=1e-12)
    counts = Poisson().check_targets(torch.arange(300))
    assert Poisson().log_prob(column(f), counts).exp().sum().item() == pytest.approx(1, abs=1e-12)


def test_exposure_multiplies_the_rate():
    y = torch.tensor([[[4.0, 2.5]], [[0.0, 0.1]]], dtype=torch.float64)
    f = column(0.3, -1.0)
    expected = stats.poisson.logpmf([4, 0], np.array([2.5, 0.1]) * np.exp([0.3, -1.0]))
    found = Poisson().log_prob(f, Poisson().check_targets(y)).detach()
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    shifted = Poisson().log_prob(f + y[:, :, 1].log(), Poisson().check_targets(y[:, :, 0])).detach()
    np.testing.assert_allclose(shifted.numpy(), expected, rtol=1e-12)


def test_probit_and_logit_are_their_distribution_functions():
    f = torch.linspace(-6, 6, 25, dtype=torch.float64)[:, None]
    ones = torch.ones_like(f)
    np.testing.assert_allclose(Bernoulli().log_prob(f, ones).exp().numpy(), special.expit(f[:, 0].numpy()), rtol=1e-12)
    probit = Bernoulli(link="probit").log_prob(f, ones).exp().numpy()
    np.testing.assert_allclose(probit, special.ndtr(f[:, 0].numpy()), rtol=1e-12)


def everything(likelihood: Likelihood, kind: str, mean, variance, y, noise) -> dict[str, torch.Tensor]:
    """Every number that a likelihood gives, each [..., B] or [..., B, columns], by name."""
    results = {
        "log_prob": likelihood.log_prob(mean, y),
        "elbo": likelihood.expected_log_prob(mean, variance, y),
        "predictive": likelihood.log_expected_prob(mean, variance, y),
        "sampled elbo": likelihood.expected_log_prob(mean, variance, y, noise),
        "sampled predictive": likelihood.log_expected_prob(mean, variance, y, noise),
    }
    if kind not in INFINITE_LOO:
        results["loo"] = likelihood.log_expected_inverse_prob(mean, variance, y)
        results["sampled loo"] = likelihood.log_expected_inverse_prob(mean, variance, y, noise)
    for name, pair in {
        "derivatives": likelihood.expected_derivatives(mean, variance, y),
        "sampled derivatives": likelihood.expected_derivatives(mean, variance, y, noise),
        "conditional": likelihood.conditional_moments(mean),
        "moments": likelihood.predictive_moments(mean, variance),
    }.items():
        results[name + " 1"], results[name + " 2"] = pair
    return {name: value.detach() for name, value in results.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_leading_axes_are_independent_problems(kind):
    case = make(kind)
    likelihood, y = case.likelihood, case.y
    mean, variance = case.latents(2, 3), 0.2 * case.latents(2, 3, seed=2).sigmoid()  # [S, K, B, Q]
    noise = case.latents(4, 2, 3, seed=3)
    together = everything(likelihood, kind, mean, variance, y, noise)
    for s in range(2):
        for k in range(3):
            alone = everything(likelihood, kind, mean[s, k], variance[s, k], y, noise[:, s, k])
            for name, value in together.items():
                assert value.shape[:3] == (2, 3, len(y)), name
                torch.testing.assert_close(value[s, k], alone[name], rtol=1e-10, atol=1e-12, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_independent_of_each_other(kind):
    case = make(kind)
    noise = case.latents(4, seed=3)
    together = everything(case.likelihood, kind, case.mean, case.variance, case.y, noise)
    for b in range(len(case.y)):
        row = slice(b, b + 1)
        alone = everything(case.likelihood, kind, case.mean[row], case.variance[row], case.y[row], noise[:, row])
        for name, value in together.items():
            torch.testing.assert_close(value[row], alone[name], rtol=1e-10, atol=1e-12, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_agrees_with_float64(kind):
    double, single = make(kind), make(kind, torch.float32)
    exact = everything(double.likelihood, kind, double.mean, double.variance, double.y, double.latents(4, seed=3))
    rough = everything(single.likelihood, kind, single.mean, single.variance, single.y, single.latents(4, seed=3))
    for name, value in rough.items():
        assert value.dtype == torch.float32, name
        torch.testing.assert_close(value.double(), exact[name], rtol=2e-4, atol=2e-5, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_gives_averages_over_the_samples(kind):
    case = make(kind)
    noise = case.latents(7, seed=3)
    values = case.likelihood.log_prob(case.mean + case.variance.sqrt() * noise, case.y)  # [7, B]
    arguments = (case.mean, case.variance, case.y, noise)
    torch.testing.assert_close(case.likelihood.expected_log_prob(*arguments), values.mean(0))
    torch.testing.assert_close(case.likelihood.log_expected_prob(*arguments), values.exp().mean(0).log())
    if kind not in INFINITE_LOO:
        torch.testing.assert_close(case.likelihood.log_expected_inverse_prob(*arguments), (-values).exp().mean(0).log())


def test_a_class_without_log_prob_says_what_it_must_define():
    class Nothing(Likelihood):
        pass

    with pytest.raises(NotImplementedError, match=r"Nothing must define log_prob\(f, y\)"):
        Nothing().log_prob(torch.zeros(1, 1), torch.zeros(1))
