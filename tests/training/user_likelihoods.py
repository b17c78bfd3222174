"""Likelihoods as a user would write them: only log_prob. Smooth and with kinks, log-concave and not, heavy tails."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from autogp.likelihoods import Likelihood
from autogp.parameters import positive_parameter

__all__ = ["LIKELIHOODS"]


class Scaled(Likelihood):
    """log p = density((y - f) / scale) - log scale."""

    def __init__(self, scale: float = 1.0):
        super().__init__()
        self.log_scale = positive_parameter(scale, "scale")

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        scale = self.log_scale.exp().to(f.dtype)
        return self.density((y - f[..., 0]) / scale) - scale.log()

    def density(self, r: Tensor) -> Tensor:
        raise NotImplementedError


class Laplace(Scaled):
    def density(self, r: Tensor) -> Tensor:
        return -r.abs() - math.log(2)


class LogCosh(Scaled):  # the hyperbolic secant distribution
    def density(self, r: Tensor) -> Tensor:
        return -(r + functional.softplus(-2 * r)) + math.log(2 / math.pi)


class Normal(Scaled):
    def density(self, r: Tensor) -> Tensor:
        return -0.5 * r.square() - 0.5 * math.log(2 * math.pi)


class Huber(Scaled):
    def density(self, r: Tensor) -> Tensor:
        return -functional.huber_loss(r, torch.zeros_like(r), reduction="none") - 1.0


class Cauchy(Scaled):
    def density(self, r: Tensor) -> Tensor:
        return -torch.log1p(r.square()) - math.log(math.pi)


class Student(Scaled):
    def density(self, r: Tensor) -> Tensor:
        return -2.5 * torch.log1p(r.square() / 4) - 1.0


class Mixture(Scaled):  # a contaminated normal distribution
    def density(self, r: Tensor) -> Tensor:
        return torch.logaddexp(math.log(0.9) - 0.5 * r.square(), math.log(0.01) - 0.005 * r.square()) - 0.9


class Logistic(Scaled):
    def density(self, r: Tensor) -> Tensor:
        return -r - 2 * functional.softplus(-r)


class Gumbel(Scaled):
    def density(self, r: Tensor) -> Tensor:
        return -r - torch.exp(-r.clamp_min(-40))


class Quartic(Scaled):
    def density(self, r: Tensor) -> Tensor:
        return -0.25 * r.square().square() - 0.9


class Quantile(Scaled):  # asymmetric Laplace
    def density(self, r: Tensor) -> Tensor:
        return -torch.maximum(0.7 * r, -0.3 * r) + math.log(0.21)


class Insensitive(Scaled):  # flat within 0.5
    def density(self, r: Tensor) -> Tensor:
        return -(r.abs() - 0.5).clamp_min(0) - math.log(3)


class Square(Scaled):  # the sign of f is not seen
    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return super().log_prob(f.square(), y.square())

    def density(self, r: Tensor) -> Tensor:
        return -0.5 * r.square() - 0.9


class Exponential(Scaled):  # y ~ exp(f) with normal noise
    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return super().log_prob(f.clamp_max(20).exp(), y.exp())

    def density(self, r: Tensor) -> Tensor:
        return -0.5 * r.square() - 0.9


class Sine(Scaled):  # many modes
    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return super().log_prob(f + 0.3 * torch.sin(3 * f), y)

    def density(self, r: Tensor) -> Tensor:
        return -0.5 * r.square() - 0.9


class Counts(Likelihood):
    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        rate, count = functional.softplus(f[..., 0]) + 1e-9, y.exp().round()
        return count * rate.log() - rate - torch.lgamma(count + 1)


class NegativeBinomial(Scaled):
    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        shape, count = 1 / self.log_scale.exp().to(f.dtype), y.exp().round()
        choose = torch.lgamma(count + shape) - torch.lgamma(shape) - torch.lgamma(count + 1)
        total = torch.logaddexp(shape.log(), f[..., 0])
        return choose + shape * (shape.log() - total) + count * (f[..., 0] - total)


class Gamma(Scaled):
    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        shape, value = 1 / self.log_scale.exp().to(f.dtype), y.exp()
        return (
            shape * (shape.log() - f[..., 0])
            - torch.lgamma(shape)
            + (shape - 1) * y
            - shape * value * torch.exp(-f[..., 0].clamp(-30, 30))
        )


class Probit(Likelihood):  # with labels that are wrong now and then: not log-concave
    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        p = torch.special.ndtr(torch.where(y > 0, 1.0, -1.0) * f[..., 0])
        return torch.log(0.05 + 0.9 * p)


class Heteroscedastic(Likelihood):  # two latent functions: mean and log standard deviation
    num_latents = 2

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        log_sd = f[..., 1].clamp(-6, 6) - 1
        return -0.5 * ((y - f[..., 0]) * torch.exp(-log_sd)).square() - log_sd - 0.9


LIKELIHOODS = [
    Laplace, LogCosh, Normal, Huber, Cauchy, Student, Mixture, Logistic, Gumbel, Quartic, Quantile, Insensitive, Square,
    Exponential, Sine, Counts, NegativeBinomial, Gamma, Probit, Heteroscedastic,
]  # fmt: skip
