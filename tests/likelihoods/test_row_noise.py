"""Known noise on top of each row's: the same numbers as Gaussians with these variances, one row at a time."""

import torch

from autogp.data import ArraySource
from autogp.kernels import RBF
from autogp.likelihoods import BoxCox, Gaussian
from autogp.model import SparseGP
from autogp.training.feed import Feed
from autogp.training.fullbatch import Profile


def test_every_row_has_a_gaussian_of_its_own_variance() -> None:
    torch.manual_seed(0)
    gaussian = Gaussian(2, variance=torch.tensor([0.5, 2.0]))
    y, extra = torch.randn(5, 2).double(), torch.rand(5, 2).double()
    mean, variance = torch.randn(1, 5, 2).double(), 0.3 * torch.rand(1, 5, 2).double()
    both = gaussian.with_row_noise()
    targets = both.check_targets(torch.cat([y, extra], -1))
    residual = torch.zeros(5, 2).double()
    for row in range(5):
        own = Gaussian(2, variance=gaussian.variance.detach() + extra[row])
        at, this = mean[:, row : row + 1], variance[:, row : row + 1]
        for name in ("expected_log_prob", "log_expected_prob", "log_expected_inverse_prob"):
            found = getattr(both, name)(mean, variance, targets)[:, row]
            torch.testing.assert_close(found, getattr(own, name)(at, this, y[row : row + 1])[:, 0])
        found = both.log_leave_one_out(torch.zeros(1), mean, variance, residual, targets)[row]
        expected = own.log_leave_one_out(torch.zeros(1), at, this, residual[:1], y[row : row + 1])[0]
        torch.testing.assert_close(found, expected)


def test_elbo_with_inducing_inputs_at_the_data_is_the_exact_evidence() -> None:
    torch.manual_seed(1)
    x, y, extra = torch.randn(12, 2).double(), torch.randn(12, 1).double(), torch.rand(12, 1).double()
    gaussian = Gaussian(variance=0.4)
    model = SparseGP(RBF(), gaussian.with_row_noise(), x)
    source = ArraySource(x, torch.cat([y, extra], -1))
    profile = Profile(model, source, Feed(model, 12, None, None))
    value, gradients = profile()
    covariance = RBF().gram(x, x)[0] + torch.diag(0.4 + extra[:, 0])
    exact = torch.distributions.MultivariateNormal(torch.zeros(12).double(), covariance).log_prob(y[:, 0])
    torch.testing.assert_close(value, exact, rtol=0, atol=1e-5)
    assert any(
        "log_variance" in name and gradient.any() for name, gradient in zip(profile.parameters, gradients, strict=True)
    )


def test_noise_of_a_row_comes_on_top_of_that_after_a_transform():
    likelihood = BoxCox(variance=0.25, power=0.5, unit=2.0)
    y, extra = torch.tensor([[3.0]], dtype=torch.float64), torch.tensor([[0.5]], dtype=torch.float64)
    f = torch.tensor([[0.2]], dtype=torch.float64)
    expected = BoxCox(variance=0.75, power=0.5, unit=2.0).log_prob(f, y)
    torch.testing.assert_close(likelihood.with_row_noise().log_prob(f, torch.cat([y, extra], -1)), expected)
