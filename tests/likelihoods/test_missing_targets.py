"""A target that is NaN is missing: values and gradients are those of a likelihood that never had the output."""

import math

import pytest
import torch
from likelihood_cases import ELEMENTWISE, make
from torch import Tensor

from autogp.likelihoods import (
    Bernoulli,
    Beta,
    BoxCox,
    Elementwise,
    Gaussian,
    Heteroscedastic,
    InfiniteLOOError,
    Likelihood,
    NegativeBinomial,
    Network,
    Poisson,
    StudentT,
)

NAN = math.nan


def second_output_missing(kind: str) -> tuple[Likelihood, Tensor, Elementwise, Tensor]:
    """The likelihood of two outputs with holes in its second column, and that of the first output alone."""
    case = make(kind)
    alone = {
        "gaussian": Gaussian(variance=0.3),
        "logit": Bernoulli(),
        "probit": Bernoulli(link="probit"),
        "poisson": Poisson(),
        "student-t": StudentT(df=4.5, scale=0.2),
        "box-cox": BoxCox(variance=0.3, power=0.4, unit=2.0, spread=0.7),
        "negative-binomial": NegativeBinomial(dispersion=0.3),
        "heteroscedastic": Heteroscedastic(variance=0.3),
        "beta": Beta(odds=0.5, concentration=4.0),
    }[kind]
    y = case.y.clone()
    (y[:, 1, 0] if y.ndim == 3 else y[:, 1])[:] = NAN
    return case.likelihood, case.likelihood.check_targets(y), alone, case.y[:, :1]


def expectations(likelihood: Likelihood) -> list:
    return [likelihood.expected_log_prob, likelihood.log_expected_prob, likelihood.log_expected_inverse_prob]


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_missing_output_adds_nothing(kind: str, sampled: bool):
    likelihood, y, alone, first = second_output_missing(kind)
    case = make(kind)
    noise = case.latents(6) if sampled else None
    noise_alone = noise[..., ::2] if sampled else None  # the latent functions of the first output: every second
    torch.testing.assert_close(likelihood.log_prob(case.mean, y), alone.log_prob(case.mean[:, ::2], first))
    for whole, part in zip(expectations(likelihood), expectations(alone), strict=True):
        mean, variance = case.mean.clone().requires_grad_(), case.variance.clone().requires_grad_()
        try:
            value = whole(mean, variance, y, noise)
        except InfiniteLOOError:
            continue
        torch.testing.assert_close(value, part(case.mean[:, ::2], case.variance[:, ::2], first, noise_alone))
        for gradient in torch.autograd.grad(value.sum(), (mean, variance)):
            assert torch.isfinite(gradient).all()
            assert (gradient[:, 1::2] == 0).all()
            assert (gradient[:, ::2] != 0).all()


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_missing_output_has_no_derivatives(kind: str, sampled: bool):
    likelihood, y, alone, first = second_output_missing(kind)
    case = make(kind)
    noise = case.latents(6) if sampled else None
    whole = likelihood.expected_derivatives(case.mean, case.variance, y, noise)
    part = alone.expected_derivatives(
        case.mean[:, ::2], case.variance[:, ::2], first, noise[..., ::2] if sampled else None
    )
    for derivative, expected in zip(whole, part, strict=True):
        torch.testing.assert_close(derivative[:, ::2], expected)
        assert (derivative[:, 1::2] == 0).all()


@pytest.mark.parametrize("kind", ["gaussian", "student-t"])
def test_missing_output_does_not_move_its_noise_level(kind: str):
    likelihood, y, _, _ = second_output_missing(kind)
    case = make(kind)
    (parameter,) = likelihood.parameters()
    (gradient,) = torch.autograd.grad(likelihood.expected_log_prob(case.mean, case.variance, y).sum(), parameter)
    assert gradient[0] != 0
    assert gradient[1] == 0


@pytest.mark.parametrize("kind", [*ELEMENTWISE, "network"])
def test_row_without_any_target_scores_zero(kind: str):
    case = make(kind)
    y = case.y.clone()
    (y[1, :, 0] if y.ndim == 3 else y[1])[:] = NAN
    y = case.likelihood.check_targets(y)
    others = [b for b in range(len(y)) if b != 1]
    assert case.likelihood.log_prob(case.mean, y)[1] == 0
    for function in expectations(case.likelihood):
        try:
            value = function(case.mean, case.variance, y)
        except InfiniteLOOError:
            continue
        assert value[1].abs() < 1e-12
        torch.testing.assert_close(value[others], function(case.mean, case.variance, case.y)[others])


def test_missing_gaussian_target_hides_an_infinite_leave_one_out():
    likelihood = Gaussian(variance=0.1)
    mean, variance = torch.zeros(2, 1, requires_grad=True), torch.full((2, 1), 0.5, requires_grad=True)
    value = likelihood.log_expected_inverse_prob(mean, variance, torch.tensor([[NAN], [1.0]]))
    assert value.tolist() == [0.0, math.inf]
    value[0].backward()
    assert mean.grad is not None
    assert (mean.grad == 0).all()


@pytest.mark.parametrize("sampled", [False, True])
def test_network_without_an_output_is_a_smaller_network(sampled: bool):
    case = make("network")  # 3 outputs, 2 nodes: weights 0 to 5, nodes 6 and 7
    y = case.y.clone()
    y[:, 1] = NAN
    smaller = Network(2, num_nodes=2, variance=torch.tensor([0.3, 0.05], dtype=torch.float64))
    kept = [0, 1, 4, 5, 6, 7]
    noise = case.latents(6) if sampled else None
    noise_kept = noise[..., kept] if sampled else None
    for name in ("expected_log_prob", "log_expected_prob"):
        mean, variance = case.mean.clone().requires_grad_(), case.variance.clone().requires_grad_()
        value = getattr(case.likelihood, name)(mean, variance, y, noise)
        expected = getattr(smaller, name)(case.mean[:, kept], case.variance[:, kept], y[:, [0, 2]], noise_kept)
        torch.testing.assert_close(value, expected)
        for gradient in torch.autograd.grad(value.sum(), (mean, variance)):
            assert torch.isfinite(gradient).all()
            assert (gradient[:, 2:4] == 0).all()
            assert (gradient[:, kept] != 0).all()
    for derivative in case.likelihood.expected_derivatives(case.mean, case.variance, y, noise):
        assert torch.isfinite(derivative).all()
        assert (derivative[:, 2:4] == 0).all()
