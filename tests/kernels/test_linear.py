"""The linear kernel against direct sums and the regression that it stands for."""

import numpy as np
import pytest
import torch
from kernel_zoo import points

from autogp.kernels import Linear


@pytest.mark.parametrize("bias", [0.0, [0.5, 2.0]])
def test_values_agree_with_a_loop_over_pairs(bias):
    x, z = points(2, 5, 3), points(2, 4, 3, seed=1)
    variance = torch.tensor([[0.5, 1.0, 2.0], [3.0, 0.7, 1.0]], dtype=torch.float64)
    gram = Linear(variance, bias).gram(x, z)
    for g, i, j in np.ndindex(2, 5, 4):
        product = sum((variance[g, d] * x[g, i, d] * z[g, j, d]).item() for d in range(3))
        intercept = bias[g] if isinstance(bias, list) else bias
        assert gram[g, i, j].item() == pytest.approx(intercept + product, rel=1e-12, abs=1e-14)


def test_one_variance_serves_every_input():
    x, z = points(5, 3), points(4, 3, seed=1)
    torch.testing.assert_close(Linear(2.0, 0.5).gram(x, z)[0], 0.5 + 2.0 * x @ z.T, rtol=1e-13, atol=1e-14)


def test_covariance_is_that_of_random_weights():
    """Exactly: the weights' second moments are propagated through the features (1, x)."""
    x, variance, bias = points(6, 3), torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64), 0.3
    features = torch.cat([torch.ones(6, 1, dtype=x.dtype), x], 1)
    prior = torch.diag(torch.cat([torch.tensor([bias], dtype=x.dtype), variance]))
    torch.testing.assert_close(Linear(variance, bias).gram(x, x)[0], features @ prior @ features.T)


def test_zero_bias_has_no_parameter():
    assert Linear().bias is None
    assert [name for name, _ in Linear().named_parameters()] == ["log_variance"]
    assert [name for name, _ in Linear(bias=1.0).named_parameters()] == ["log_variance", "log_bias"]


@pytest.mark.parametrize(("name", "value"), [("variance", 0.0), ("variance", -1.0), ("variance", float("nan"))])
def test_variance_that_is_not_positive_is_named(name, value):
    with pytest.raises(ValueError, match="variance must be positive and finite"):
        Linear(variance=value)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), [1.0, 0.0]])
def test_bias_that_is_negative_is_named(value):
    with pytest.raises(ValueError, match="bias must be positive and finite"):
        Linear(bias=value)
