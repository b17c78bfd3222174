"""Counts that vary more than Poisson counts do: a negative binomial whose log mean is a Gaussian process."""

import torch
from torch import Tensor
from torch.nn import functional

from autogp.likelihoods.elementwise import Elementwise
from autogp.likelihoods.poisson import Poisson
from autogp.parameters import describe_range, positive_parameter

__all__ = ["NegativeBinomial"]


class NegativeBinomial(Poisson):
    """y_p has the mean mu = exposure * rate_p * exp(f_p) and the variance mu + dispersion_p mu^2; Poisson at 0.

    It is a Poisson distribution whose mean is itself Gamma distributed. Rates and dispersions are learnt. Targets are
    those of `Poisson`.

    >>> import torch
    >>> model = NegativeBinomial(dispersion=1.0)  # geometric: 1/2, 1/4, 1/8, ... where mu = 1
    >>> model.log_prob(torch.zeros(2, 1), model.check_targets(torch.tensor([0, 2]))).exp()
    tensor([0.5000, 0.1250], dtype=torch.float64, grad_fn=<ExpBackward0>)
    """

    smooth = True
    finite_loo = True  # 1 / p(y | f) grows as exp(|f|), slower than a Gaussian decays

    def __init__(self, num_outputs: int = 1, rate: float | Tensor = 1.0, dispersion: float | Tensor = 1.0):
        super().__init__(num_outputs, rate)
        self.log_dispersion = positive_parameter(dispersion, "dispersion", size=num_outputs)

    @property
    def dispersion(self) -> Tensor:  # [P]
        return self.log_dispersion.exp()

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        """log C(y + r - 1, y) + y u - (y + r) log(1 + e^u), where r = 1 / dispersion and e^u = dispersion mu."""
        count, u = y[..., 0], f + self._log_ratio(y)
        return self._log_constant(count) + count * u - (count + self._shape(f)) * functional.softplus(u)

    # By quadrature; a Poisson likelihood knows more.
    expected_log_density = Elementwise.expected_log_density
    log_expected_density = Elementwise.log_expected_density
    log_expected_inverse_prob = Elementwise.log_expected_inverse_prob

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        expected = torch.exp(f + self.log_rate.to(f.dtype))
        return expected, expected + self.dispersion.to(f.dtype) * expected.square()

    def predictive_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        expected, spread = super().predictive_moments(mean, variance)  # of a Poisson: E mu + Var mu
        square = torch.exp(2 * (mean + self.log_rate.to(mean.dtype) + variance))  # E mu^2
        return expected, spread + self.dispersion.to(mean.dtype) * square

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        shape = self._shape(f).expand_as(f).contiguous()
        draws = torch._standard_gamma(shape.double(), generator)  # pyright: ignore[reportPrivateImportUsage]
        gamma = draws.to(f.dtype) / shape  # of mean 1
        return torch.poisson(torch.exp(f + self.log_rate.to(f.dtype)) * gamma, generator)

    def describe(self, unit: Tensor | float = 1.0) -> str:
        return f"{super().describe(unit)}, dispersion {describe_range(self.dispersion)}"

    def _shape(self, like: Tensor) -> Tensor:  # [P], r
        return torch.exp(-self.log_dispersion).to(like.dtype)

    def _log_ratio(self, y: Tensor) -> Tensor:
        """u - f, [B, P]."""
        return self._offset(y) + self.log_dispersion.to(y.dtype)

    def _log_constant(self, count: Tensor) -> Tensor:
        """log Gamma(y + r) / (Gamma(r) y!), in float64: the terms cancel where r is large."""
        r, y = self._shape(self.log_dispersion), count.double()
        return (torch.lgamma(y + r) - torch.lgamma(r) - torch.lgamma(y + 1)).to(count.dtype)
