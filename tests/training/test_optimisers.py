"""Adam is PyTorch's, to the bit, but for what it loads; RMSProp is TensorFlow's."""

import itertools

import numpy as np
import pytest
import torch

from autogp.training.optimisers import Adam, RMSProp


def test_steps_of_adam_are_those_of_pytorchs_class():
    ours, theirs = Adam, lambda parameters: torch.optim.Adam(parameters, fused=True)
    start = [torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    shares, results = [1.0, 0.25, 0.0], []
    for kind in (ours, theirs):
        parameters = [torch.nn.Parameter(part.clone()) for part in start]
        optimiser = kind(parameters if kind is ours else [{"params": [part]} for part in parameters])
        for step in range(6):
            gradients = [(step + 1) * parameters[0].detach(), parameters[1].detach().exp(), torch.ones(4, 3).double()]
            rates = [share * 0.1 / (step + 1) for share in shares]
            if kind is ours:
                optimiser.step(gradients, rates)
                continue
            for parameter, gradient, group, rate in zip(
                parameters, gradients, optimiser.param_groups, rates, strict=True
            ):
                parameter.grad, group["lr"] = gradient, rate
            optimiser.step()
        results.append(parameters)
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    assert [torch.equal(end, begin) for end, begin in zip(results[0], start, strict=True)] == [False, False, True]


def test_steps_of_rmsprop_are_those_of_tensorflow():
    """Of tf.train.RMSPropOptimizer: the mean square starts at 1, and epsilon = 1e-10 stands inside the root."""
    parameter, square = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64)), np.ones(3)
    optimiser, expected = RMSProp([parameter]), np.array([1.0, -2.0, 0.0])
    for gradient in ([0.1, 30.0, 0.0], [1e-4, -2.0, 1e-6], [-0.3, 0.5, 0.0]):
        optimiser.step([torch.tensor(gradient, dtype=torch.float64)], [0.003])
        square = square + (np.square(gradient) - square) * (1 - 0.9)
        expected = expected - 0.003 * np.array(gradient) / np.sqrt(square + 1e-10)
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-14)


@pytest.mark.parametrize("kind", [Adam, RMSProp])
def test_the_layout_of_parameters_and_gradients_in_memory_makes_no_difference(kind):
    """Autograd gives transposed gradients, and those of a sum as one number for all."""
    start, weights = (torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    results = []
    for transposed, as_they_come in itertools.product((False, True), repeat=2):
        parameters = [torch.nn.Parameter(start.mT.clone().mT if transposed else start.clone()) for _ in range(2)]
        gradients = [weights.mT.contiguous().mT, torch.ones(()).expand(3, 4)]
        optimiser = kind(parameters)
        for _ in range(3):
            optimiser.step(gradients if as_they_come else [each.contiguous() for each in gradients], [0.1, 0.1])
        results.append(parameters)
    for found in results[1:]:
        torch.testing.assert_close(found, results[0], rtol=1e-6, atol=1e-7)
