"""Prior distributions of hyper-parameters, which keep them from fitting the noise."""

import math
from dataclasses import dataclass

from torch import Tensor

__all__ = ["LogNormal"]


@dataclass(frozen=True)
class LogNormal:
    """log v_d = centre + common + own_d, common ~ N(0, together^2), own_d ~ N(0, apart^2), for values v [G, D].

    `together` is how far all values of a function may be from the centre (in logarithms), `apart` how far each may be
    from the others.

    >>> import torch
    >>> prior = LogNormal(centre=1.0, together=1.0, apart=0.5)
    >>> log_values = torch.tensor([[0.3, 1.2, 2.0]], dtype=torch.float64)
    >>> normal = torch.distributions.MultivariateNormal(torch.ones(3).double(), 1.0 + 0.25 * torch.eye(3).double())
    >>> torch.allclose(prior.log_density(log_values), normal.log_prob(log_values).sum())
    True
    """

    centre: float
    together: float
    apart: float

    def log_density(self, log_values: Tensor) -> Tensor:
        """Of the logarithms, [G, D]; a number."""
        size = log_values.shape[-1]
        mean = log_values.mean(-1, keepdim=True)
        # The covariance apart^2 I + together^2 1 1' has the eigenvalue apart^2 but for the direction of the mean.
        own, common = self.apart**2, self.apart**2 + size * self.together**2
        squares = (log_values - mean).square().sum() / own + size * (mean - self.centre).square().sum() / common
        constant = size * math.log(2 * math.pi) + (size - 1) * math.log(own) + math.log(common)
        return -0.5 * (squares + len(log_values) * constant)
