"""Leave-one-out of a sparse Gaussian regression, against taking each row away and computing q anew."""

import math

import pytest
import torch

from autogp import InfiniteLOOError, SparseGP
from autogp.kernels import RBF
from autogp.likelihoods import Gaussian, Likelihood
from autogp.model import condition
from autogp.objectives import log_predictive
from autogp.posteriors import Natural
from autogp.training import absorb


def exact_model(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, noise: float) -> SparseGP:
    """The optimal q for these rows, in closed form."""
    model = SparseGP(RBF(lengthscale=0.6), Gaussian(variance=noise), z)
    model.posterior.set_natural(absorb(model, Natural.of(model.posterior), x, y))
    return model


@torch.no_grad()
def test_taking_a_row_out_of_q_equals_never_having_seen_it():
    generator = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(30, 1, dtype=torch.float64, generator=generator)
    y = torch.sin(2 * x) + 0.3 * torch.randn(30, 1, dtype=torch.float64, generator=generator)
    z = torch.linspace(0, 4, 5, dtype=torch.float64)[:, None]  # few: much of the variance is not told by u
    model = exact_model(x, y, z, noise=0.05)
    prepared = model.prepare()
    basis, prior_variance = model.basis(x, prepared)
    marginals = condition(basis, prior_variance, prepared.moments)
    assert (marginals.variance > 0.05).any()  # where leave-one-out of f itself would be infinite
    found = model.likelihood.log_leave_one_out(*marginals, y)
    for row in range(30):
        others = torch.arange(30) != row
        without = exact_model(x[others], y[others], z, noise=0.05)
        expected = log_predictive(without.likelihood, without(x[row : row + 1]), y[row : row + 1])
        torch.testing.assert_close(found[row], expected[0], rtol=1e-8, atol=1e-8)


@torch.no_grad()
def test_it_is_leave_one_out_of_f_where_u_tells_everything():
    generator = torch.Generator().manual_seed(1)
    x = torch.linspace(0, 3, 12, dtype=torch.float64)[:, None]
    y = torch.sin(2 * x) + 0.3 * torch.randn(12, 1, dtype=torch.float64, generator=generator)
    model = exact_model(x, y, x, noise=0.3)
    prepared = model.prepare()
    basis, prior_variance = model.basis(x, prepared)
    marginals = condition(basis, prior_variance, prepared.moments)
    found = model.likelihood.log_leave_one_out(*marginals, y)
    expected = Likelihood.log_leave_one_out(model.likelihood, *marginals, y)  # out of q(f)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_a_row_of_which_q_knows_less_than_its_own_noise_is_refused():
    """Such a q was never found from rows: taking one out leaves a negative variance, and nothing to integrate."""
    x = torch.linspace(0, 3, 12, dtype=torch.float64)[:, None]
    y = torch.sin(2 * x)
    y[7] = math.nan
    model = SparseGP(RBF(variance=2.0), Gaussian(variance=0.1), x[5:8])  # q is the prior
    marginals = model(x)
    with pytest.raises(InfiniteLOOError, match=r"at \d+ of 12 rows q\(f\) is too wide \(the first is row \d+"):
        model.likelihood.log_leave_one_out(*marginals, y)
    rows = model.likelihood.log_leave_one_out(*model(x[7:8]), y[7:8])  # nothing to take out
    assert rows.tolist() == [0.0]
    (rows.sum() * 1.0).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
