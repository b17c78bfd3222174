"""The estimators that are compared: all unbiased, ours the least noisy by far."""

import pytest
import torch

from autogp.experiments.gradients import score_function, through_samples, with_control_variate
from autogp.likelihoods import Network

ESTIMATORS = [through_samples, score_function, with_control_variate]


def estimates(estimator, samples: int, repeats: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Repeated estimates [R, 2, 1, Q] and the truth [2, 1, Q]."""
    generator = torch.Generator().manual_seed(0)
    likelihood = Network(2, variance=0.5)
    mean, variance = torch.randn(1, 1, 3, generator=generator), 0.1 + 0.3 * torch.rand(1, 1, 3, generator=generator)
    y = torch.randn(1, 2, generator=generator)
    noise = torch.randn(repeats, samples, 1, 1, 3, generator=generator)
    found = torch.stack([torch.stack(estimator(likelihood, mean, variance, y, each)) for each in noise])
    return found.detach(), torch.stack(likelihood.expected_derivatives(mean, variance, y))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_estimator_is_unbiased(estimator) -> None:
    found, truth = estimates(estimator, samples=2000, repeats=200)
    error = found.std(0) / 200**0.5
    bias = 0.01 if estimator is with_control_variate else 0.0  # its weight comes from the same samples: O(1 / S)
    assert ((found.mean(0) - truth).abs() < 5 * error + bias).all()


def test_gradients_through_the_samples_are_the_least_noisy_and_control_variates_help() -> None:
    ours, plain, controlled = (estimates(estimator, 100, 100)[0].var(0).sum().item() for estimator in ESTIMATORS)
    assert ours < controlled / 5
    assert controlled < plain / 2
