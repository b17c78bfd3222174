"""Every row an inducing input: the evidence of an exact Gaussian process, which is the ELBO of the general road."""

import numpy as np
import pytest
import torch

from autogp.data import ArraySource
from autogp.kernels import Matern32, Matern52
from autogp.likelihoods import BoxCox, Gaussian
from autogp.model import SparseGP
from autogp.training.exact import Exact
from autogp.training.feed import Feed
from autogp.training.fullbatch import Profile


def problem(outputs: int = 1, kernel=None, box_cox: bool = False) -> tuple[SparseGP, ArraySource]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, dtype=torch.float64, generator=generator)
    y = (x @ torch.randn(3, outputs, dtype=torch.float64, generator=generator)).sin()
    y = y + 0.2 * torch.randn(60, outputs, dtype=torch.float64, generator=generator)
    kernel = kernel or Matern52(torch.tensor([[1.0, 2.0, 1.5]]), 0.8)
    noise = torch.linspace(0.05, 0.1, outputs)
    likelihood = BoxCox(outputs, noise, power=0.3, unit=1.2, spread=0.8) if box_cox else Gaussian(outputs, noise)
    model = SparseGP(kernel, likelihood, x)
    model.inducing_inputs.requires_grad_(False)
    y = y.exp() if box_cox else y
    return model, ArraySource(x, y[:, 0] if outputs == 1 else y)


@pytest.mark.parametrize(
    ("outputs", "kernel", "weighted", "box_cox"),
    [
        (1, None, False, False),
        (1, None, True, False),
        (3, None, True, False),
        (2, Matern32(torch.tensor([[1.0, 2.0, 1.0], [2.0, 1.0, 0.7]]), torch.tensor([1.0, 0.5])), False, False),
        (1, None, False, True),
        (2, None, True, True),
    ],
    ids=["one output", "weights", "outputs share a kernel", "a kernel each", "Box-Cox", "Box-Cox, weights"],
)
def test_value_gradients_and_q_are_those_of_the_rows_marginals(outputs, kernel, weighted, box_cox):
    model, source = problem(outputs, kernel, box_cox)
    weights = np.random.default_rng(0).uniform(0.2, 3, len(source)) if weighted else None
    feed = Feed(model, len(source), weights, None)
    general = Profile(model, source, feed)
    value, gradients = general()
    exact = Exact(model, source, feed)
    found, own = exact()
    torch.testing.assert_close(found, value, rtol=1e-7, atol=0)  # but for jitter
    for name, one, other in zip(exact.parameters, own, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5, msg=name)
    torch.testing.assert_close(exact.q.precision, general.q.precision, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(exact.q.shift, general.q.shift, rtol=1e-8, atol=1e-8)


def test_which_rows_it_suits():
    model, source = problem()
    assert Exact.suits(model, source)
    x, y = source.rows(np.arange(60))
    twice = ArraySource(np.concatenate([x, x[:5]]), np.concatenate([y, y[5:10]]))
    assert Exact.suits(model, twice)  # equal rows with other targets
    assert not Exact.suits(model, ArraySource(x + 1, y))
    model.inducing_inputs.requires_grad_(True)
    assert not Exact.suits(model, source)
