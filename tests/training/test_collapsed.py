"""Gaussian noise by sums over the rows: the same ELBO and gradients as by the marginals of every row."""

import numpy as np
import pytest
import torch

from autogp.data import ArraySource
from autogp.kernels import RBF, Matern32, Matern52
from autogp.likelihoods import BoxCox, Gaussian, StudentT
from autogp.model import SparseGP
from autogp.training import collapsed
from autogp.training.collapsed import Collapsed
from autogp.training.feed import Feed
from autogp.training.fullbatch import Profile


def problem(outputs: int = 1, kernel=None, dtype=torch.float64, features=None) -> tuple[SparseGP, ArraySource]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(90, 3, dtype=torch.float64, generator=generator)
    y = (x @ torch.randn(3, outputs, dtype=torch.float64, generator=generator)).sin()
    y = y + 0.2 * torch.randn(90, outputs, dtype=torch.float64, generator=generator)
    kernel = kernel or Matern52(torch.tensor([[1.0, 2.0, 1.5]]), 0.8)
    noise = torch.linspace(0.05, 0.1, outputs)
    model = SparseGP(kernel, Gaussian(outputs, noise), x[:12].to(dtype), features)
    return model, ArraySource(x, y[:, 0] if outputs == 1 else y)


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "computed twice"])
@pytest.mark.parametrize(
    ("outputs", "kernel", "weighted"),
    [
        (1, None, False),
        (1, RBF(torch.ones(1, 3)), True),
        (3, None, True),
        (2, Matern32(torch.tensor([[1.0, 2.0, 1.0], [2.0, 1.0, 0.7]]), torch.tensor([1.0, 0.5])), True),
    ],
    ids=["one output", "weights", "outputs share a kernel", "a kernel each"],
)
def test_value_and_gradients_are_those_of_the_rows_marginals(outputs, kernel, weighted, kept, monkeypatch):
    monkeypatch.setattr(collapsed, "BLOCK_NUMBERS", 12 * 40)  # several blocks
    model, source = problem(outputs, kernel)
    weights = np.random.default_rng(0).uniform(0.2, 3, len(source)) if weighted else None
    feed = Feed(model, len(source), weights, None)
    value, gradients = Profile(model, source, feed)()
    short = Collapsed(model, source, feed)
    short.kept = kept
    found, own = short()
    torch.testing.assert_close(found, value, rtol=1e-10, atol=0)
    for name, one, other in zip(short.parameters, own, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8, msg=name)


def test_a_transform_of_the_targets_that_is_learnt():
    model, source = problem(2)
    x, y = source.rows(np.arange(90))
    model.likelihood = BoxCox(2, torch.tensor([0.05, 0.1]), power=0.3, unit=1.2, spread=0.8)
    source, weights = ArraySource(x, np.exp(y)), np.random.default_rng(0).uniform(0.2, 3, 90)
    feed = Feed(model, 90, weights, None)
    value, gradients = Profile(model, source, feed)()
    short = Collapsed(model, source, feed)
    found, own = short()
    torch.testing.assert_close(found, value, rtol=1e-10, atol=0)
    for name, one, other in zip(short.parameters, own, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8, msg=name)


def test_features_that_learn_have_gradients():
    torch.manual_seed(0)
    model, source = problem(features=torch.nn.Linear(3, 3).double())
    feed = Feed(model, len(source), None, None)
    _, gradients = Profile(model, source, feed)()
    _, own = Collapsed(model, source, feed)()
    for one, other in zip(own, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def test_float32_rows_are_enough():
    exact, source = problem()
    rough, _ = problem(dtype=torch.float32)
    exact.jitter.copy_(0.999 * rough.jitter)  # the same model, but for the precision of its rows
    assert (exact.dtype, rough.dtype) == (torch.float64, torch.float32)
    value, gradients = Collapsed(exact, source, Feed(exact, 90, None, None))()
    found, own = Collapsed(rough, source, Feed(rough, 90, None, None))()
    torch.testing.assert_close(found, value, rtol=1e-5, atol=0)
    for one, other in zip(own, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-3)


def test_which_rows_it_suits():
    model, source = problem(2)
    assert Collapsed.suits(model, source)
    x, y = source.rows(np.arange(90))
    y = y.copy()
    y[5, 1] = np.nan
    assert not Collapsed.suits(model, ArraySource(x, y))  # a missing target
    assert not Collapsed.suits(SparseGP(RBF(), StudentT(), torch.zeros(1, 3)), problem()[1])
