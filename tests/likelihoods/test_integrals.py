"""Integrals of a likelihood that knows nothing but its log density, against closed forms and fine grids."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from autogp.likelihoods import Elementwise, InfiniteLOOError, Likelihood, Network


class Noise(Likelihood):
    """Gaussian noise without closed forms."""

    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return Normal(f[..., 0], self.scale).log_prob(y)


class NoiseOfEach(Elementwise):
    """The same for outputs, each with a noise of its own."""

    scales = (1e-4, 0.1, 3.0)

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        return Normal(f, torch.tensor(self.scales, dtype=f.dtype)).log_prob(y)


class Laplace(Likelihood):
    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return -(y - f[..., 0]).abs() - math.log(2)


class Uniform(Likelihood):
    """|y - f| <= 1."""

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return torch.where((y - f[..., 0]).abs() <= 1, -math.log(2), -math.inf)


class Counts(Likelihood):
    """Poisson: 1 / p grows as exp(exp(f)), which no Gaussian makes up for."""

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        f = f[..., 0]
        return y * f - f.exp() - torch.lgamma(y + 1)


class Labels(Likelihood):
    """Logistic, as it is often written: log p underflows to minus infinity, but 1 / p has an expectation."""

    num_classes = 2

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return torch.log(torch.sigmoid((2 * y - 1) * f[..., 0]))


class Sum(Likelihood):
    """Three latents, of which y is the sum with Gaussian noise."""

    num_latents = 3
    scale = 0.05

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return Normal(f.sum(-1), self.scale).log_prob(y)


class Heteroscedastic(Likelihood):
    num_latents = 2

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return Normal(f[..., 0], (0.5 * f[..., 1]).exp()).log_prob(y)


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


MEAN, VARIANCE = column(0.0, 1.0, -2.0, 0.3, 0.0), column(1.0, 4.0, 0.01, 1e-8, 25.0)
TARGETS = torch.tensor([0.0, 3.0, 4.0, -7.0, 120.0], dtype=torch.float64)  # up to 60 standard deviations away


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.1, 1.0, 100.0])
def test_predictive_density_of_narrow_noise_and_of_outliers(scale: float):
    exact = Normal(MEAN[:, 0], (VARIANCE[:, 0] + scale**2).sqrt()).log_prob(TARGETS)
    torch.testing.assert_close(Noise(scale).log_expected_prob(MEAN, VARIANCE, TARGETS), exact, rtol=1e-6, atol=1e-6)


class Contaminated(Noise):
    """One target in a hundred is anything: a peak on a floor that is flat."""

    floor = 1e-4

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return torch.logaddexp(
            math.log(0.99) + super().log_prob(f, y), torch.full_like(f[..., 0], math.log(self.floor))
        )


class Magnitudes(Noise):
    """The sign of f is not known."""

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return torch.logaddexp(super().log_prob(f, y), super().log_prob(f, -y))


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.1, 1.0])
@pytest.mark.parametrize("variance", [1e-2, 1.0, 25.0])
def test_narrow_peaks_are_found_on_a_floor_and_two_at_a_time(scale: float, variance: float):
    mean = torch.linspace(-3, 3, 40, dtype=torch.float64)[:, None] + 0.123
    targets = mean[:, 0] + 4 * variance**0.5 * torch.linspace(-1, 1, 40, dtype=torch.float64).sin()
    targets = targets.sign() * targets.abs().clamp_min(variance**0.5)  # the two peaks two deviations apart
    v, q = torch.full_like(mean, variance), Normal(mean[:, 0], math.sqrt(variance + scale**2))
    floor = torch.full_like(targets, math.log(Contaminated.floor))
    peak = torch.logaddexp(math.log(0.99) + q.log_prob(targets), floor)
    both = torch.logaddexp(q.log_prob(targets), q.log_prob(-targets))
    for likelihood, exact in ((Contaminated(scale), peak), (Magnitudes(scale), both)):
        torch.testing.assert_close(likelihood.log_expected_prob(mean, v, targets), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.999])
def test_leave_one_out_of_noise_that_is_wider_than_q(share: float):
    noise = VARIANCE / share
    for row in range(len(MEAN)):
        m, v, s, y = MEAN[row], VARIANCE[row], noise[row], TARGETS[row]
        rest = s - v
        exact = 0.5 * (math.log(2 * math.pi) + 2 * s.log() - rest.log() + (y - m).square() / rest)
        actual = Noise(s.sqrt().item()).log_expected_inverse_prob(m[None], v[None], y[None])
        torch.testing.assert_close(actual, exact, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("share", [1.0, 1.001, 2.0])
def test_leave_one_out_of_noise_that_is_narrower_than_q_is_infinite(share: float):
    actual = Noise(1.0).log_expected_inverse_prob(MEAN[:2], torch.full_like(MEAN[:2], share), TARGETS[:2])
    assert torch.isposinf(actual).all()
    log_weights = torch.zeros(1, dtype=torch.float64)
    q = (MEAN[None, :2], torch.full_like(MEAN[None, :2], share), torch.zeros_like(MEAN[:2]))
    with pytest.raises(InfiniteLOOError, match="at 2 of 2 rows q"):
        Noise(1.0).log_leave_one_out(log_weights, *q, TARGETS[:2])


@pytest.mark.parametrize("variance", [1e-6, 0.01, 1.0, 9.0])
def test_leave_one_out_that_diverges_far_out_is_found(variance: float):
    q = (column(0.0, 1.0), column(variance, variance))
    assert torch.isposinf(Counts().log_expected_inverse_prob(*q, torch.tensor([0.0, 3.0]).double())).all()
    assert torch.isposinf(Uniform().log_expected_inverse_prob(*q, torch.tensor([0.0, 3.0]).double())).all()
    noise = torch.randn(50, 2, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.isposinf(Counts().log_expected_inverse_prob(*q, torch.tensor([0.0, 3.0]).double(), noise)).all()


@pytest.mark.parametrize("variance", [1e-6, 0.01, 1.0, 9.0, 100.0])
def test_density_that_underflows_has_a_leave_one_out(variance: float):
    mean = column(-3.0, 0.0, 5.0)
    actual = Labels().log_expected_inverse_prob(mean, torch.full_like(mean, variance), torch.ones(3, dtype=torch.int64))
    torch.testing.assert_close(actual, torch.nn.functional.softplus(0.5 * variance - mean[:, 0]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("variance", [1e-4, 1.0, 100.0])
def test_kinks_and_jumps_are_integrated(variance: float):
    mean, v = column(0.0, 1.0, -6.0), column(variance, variance, variance)
    y = torch.tensor([0.0, 1.5, 1.0], dtype=torch.float64)
    r, sd = y - mean[:, 0], math.sqrt(variance)
    sides = [0.5 * variance + sign * r + torch.special.log_ndtr(-(variance + sign * r) / sd) for sign in (-1, 1)]
    laplace = torch.logaddexp(*sides) - math.log(2)
    torch.testing.assert_close(Laplace().log_expected_prob(mean, v, y), laplace, rtol=1e-6, atol=1e-6)
    inside = torch.special.log_ndtr((1 - r.abs()) / sd).exp() - torch.special.log_ndtr((-1 - r.abs()) / sd).exp()
    seen = inside > 1e-30  # beyond, the difference of two distribution functions has no digits
    uniform = Uniform().log_expected_prob(mean, v, y)
    torch.testing.assert_close(uniform[seen], (0.5 * inside).log()[seen], rtol=0, atol=1e-3)
    with torch.no_grad():
        expected = Laplace().expected_log_prob(mean, v, y)
    absolute = sd * math.sqrt(2 / math.pi) * torch.exp(-0.5 * r.square() / variance) + r * torch.erf(
        r / math.sqrt(2 * variance)
    )
    torch.testing.assert_close(expected, -absolute - math.log(2), rtol=1e-5, atol=1e-5)


def test_gradients_of_adaptive_integrals():
    q = (MEAN.clone().requires_grad_(), VARIANCE.clone().requires_grad_())
    gradients = torch.autograd.grad(Noise(0.1).log_expected_prob(*q, TARGETS).sum(), q)
    exact = torch.autograd.grad(Normal(q[0][:, 0], (q[1][:, 0] + 0.01).sqrt()).log_prob(TARGETS).sum(), q)
    torch.testing.assert_close(gradients, exact, rtol=1e-5, atol=1e-5)


def test_outputs_are_integrated_each_by_itself():
    mean = torch.zeros(2, 4, 3, dtype=torch.float64)  # two components
    variance = torch.full_like(mean, 2.0)
    y = torch.tensor([[0.0, 1.0, -1.0], [5.0, math.nan, 2.0], [50.0, 0.0, 0.0], [0.0, 0.0, -40.0]]).double()
    scale = (2.0 + torch.tensor(NoiseOfEach.scales, dtype=torch.float64).square()).sqrt()
    exact = Normal(mean, scale).log_prob(y.nan_to_num()).where(~y.isnan(), 0.0).sum(-1)
    torch.testing.assert_close(NoiseOfEach(3).log_expected_prob(mean, variance, y), exact, rtol=1e-6, atol=1e-6)


def test_moments_of_a_link_that_grows():
    class Growth(Likelihood):
        def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
            return Normal(f[..., 0].exp(), 1.0).log_prob(y)

        def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
            return f.exp(), torch.ones_like(f)

    mean, variance = column(0.0, -1.0, 2.0), column(0.1, 4.0, 16.0)
    expected, spread = Growth().predictive_moments(mean, variance)
    torch.testing.assert_close(expected, (mean + variance / 2).exp(), rtol=1e-5, atol=0)
    torch.testing.assert_close(spread, 1 + variance.expm1() * (2 * mean + variance).exp(), rtol=1e-5, atol=0)


def test_several_latents_of_outliers():
    mean = torch.tensor([[0.0, 1.0, 2.0], [0.0, 0.0, 0.0], [-1.0, 0.5, 0.0]], dtype=torch.float64)
    variance = torch.tensor([[1.0, 0.5, 0.1], [4.0, 0.01, 1e-4], [0.3, 0.3, 0.3]], dtype=torch.float64)
    for distance in (0.0, 3.0, 10.0, 30.0):
        total = (variance.sum(-1) + Sum.scale**2).sqrt()
        y = mean.sum(-1) + distance * total
        actual = Sum().log_expected_prob(mean, variance, y)
        torch.testing.assert_close(actual, Normal(mean.sum(-1), total).log_prob(y), rtol=0, atol=0.05)


def test_several_latents_of_which_one_makes_leave_one_out_diverge():
    mean, variance = torch.zeros(3, 2, dtype=torch.float64), torch.full((3, 2), 0.1, dtype=torch.float64)
    y = torch.tensor([0.0, 1.0, -2.0], dtype=torch.float64)
    noise = torch.randn(100, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for samples in (None, noise):
        assert torch.isposinf(Heteroscedastic().log_expected_inverse_prob(mean, variance, y, samples)).all()


@pytest.mark.parametrize("distance", [0.0, 5.0, 40.0, 400.0])
def test_network_outliers(distance: float):
    """One node: a fine grid over it, around the target as well as around q."""
    network = Network(2, variance=torch.tensor([0.01, 0.04], dtype=torch.float64))
    mean = torch.tensor([[1.0, -0.5, 0.8]], dtype=torch.float64)
    variance = torch.tensor([[0.02, 0.01, 0.05]], dtype=torch.float64)
    y = torch.tensor([[0.8 + 0.1 * distance, -0.4 - 0.05 * distance]], dtype=torch.float64)
    g = torch.linspace(-300.0, 300.0, 600_001, dtype=torch.float64)
    spread = (0.02 * g.square() + 0.01, 0.01 * g.square() + 0.04)
    log_joint = Normal(0.8, math.sqrt(0.05)).log_prob(g)
    for weight, noise, target in zip((1.0, -0.5), spread, y[0], strict=True):
        log_joint = log_joint + Normal(weight * g, noise.sqrt()).log_prob(target)
    exact = torch.logsumexp(log_joint, 0) + math.log(1e-3)
    torch.testing.assert_close(network.log_expected_prob(mean, variance, y)[0], exact, rtol=1e-6, atol=1e-6)


def test_network_outliers_of_two_nodes():
    network = Network(1, num_nodes=2, variance=0.01)
    mean = torch.tensor([[1.0, 0.5, 0.8, -0.4]], dtype=torch.float64)
    variance = torch.tensor([[1e-12, 1e-12, 0.05, 0.1]], dtype=torch.float64)  # fixed weights: y is Gaussian
    total = math.sqrt(0.05 + 0.25 * 0.1 + 0.01)
    for distance in (0.0, 4.0, 20.0):
        y = torch.tensor([[0.6 + distance * total]], dtype=torch.float64)
        actual = network.log_expected_prob(mean, variance, y)
        torch.testing.assert_close(actual, Normal(0.6, total).log_prob(y[:, 0]), rtol=0, atol=0.05)
