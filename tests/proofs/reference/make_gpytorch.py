"""Writes gpytorch.json: bounds, gradients and predictions of GPyTorch's SVGP on the problems of problems.py."""

import platform
from typing import Any

import gpytorch
import linear_operator
import numpy as np
import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood, Likelihood, SoftmaxLikelihood
from gpytorch.likelihoods.likelihood import _OneDimensionalLikelihood
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    IndependentMultitaskVariationalStrategy,
    VariationalStrategy,
)
from problems import BATCH, CLASSES, POINTS, SAMPLES, M, N, Problem, draws, problems, save
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Poisson

torch.set_default_dtype(torch.float64)  # before any likelihood is built: its quadrature nodes take the default dtype
torch.set_num_threads(1)

HERMITE = f"Gauss-Hermite, {POINTS} points"
MONTE_CARLO = f"Monte Carlo, {SAMPLES} stored-seed samples"


class LogitLikelihood(_OneDimensionalLikelihood):
    """Bernoulli with the logit link, which GPyTorch lacks, on its base class with quadrature."""

    def forward(self, function_samples: Tensor, *args: Any, **kwargs: Any) -> Bernoulli:
        return Bernoulli(logits=function_samples)


class ExpPoissonLikelihood(_OneDimensionalLikelihood):
    """Poisson with rate exp(f), where GPyTorch has softplus(f), on its base class with quadrature."""

    def forward(self, function_samples: Tensor, *args: Any, **kwargs: Any) -> Poisson:
        return Poisson(function_samples.exp())


class ProbitLikelihood(BernoulliLikelihood):
    """GPyTorch's probit likelihood with PyTorch's log of the normal distribution function in the expectation."""

    def expected_log_prob(self, observations: Tensor, function_dist: Any, *args: Any, **kwargs: Any) -> Tensor:
        signs = 2 * observations - 1
        return self.quadrature(lambda f: torch.special.log_ndtr(signs * f), function_dist)


class FixedSoftmax(SoftmaxLikelihood):
    """GPyTorch's softmax likelihood whose Monte Carlo noise is given: [SAMPLES, rows, CLASSES]."""

    def __init__(self, eps: np.ndarray) -> None:
        super().__init__(num_classes=CLASSES, mixing_weights=False)
        self.eps = torch.as_tensor(eps)

    def _draw_likelihood_samples(self, function_dist: Any, *args: Any, **kwargs: Any) -> Categorical:
        mean, var = function_dist.mean, function_dist.variance
        return self.forward(mean + var.sqrt() * self.eps[:, : len(mean)])


class Model(gpytorch.models.ApproximateGP):
    """A whitened SVGP whose parameters carry no transform, so that gradients are of the natural values."""

    def __init__(self, problem: Problem) -> None:
        outputs = len(problem.q_mu)
        batch = torch.Size([outputs] if outputs > 1 else [])
        distribution = CholeskyVariationalDistribution(M, batch_shape=batch)
        strategy = VariationalStrategy(self, torch.as_tensor(problem.Z), distribution, jitter_val=problem.jitter)
        strategy.variational_params_initialized.fill_(1)
        multitask = IndependentMultitaskVariationalStrategy(strategy, num_tasks=outputs) if outputs > 1 else strategy
        super().__init__(multitask)
        self.strategy = strategy
        self.mean = gpytorch.means.ZeroMean()
        rbf = RBFKernel(ard_num_dims=len(problem.lengthscales), lengthscale_constraint=Positive(transform=None))
        self.kernel = ScaleKernel(rbf, outputscale_constraint=Positive(transform=None))
        with torch.no_grad():
            rbf.lengthscale = torch.as_tensor(problem.lengthscales)
            self.kernel.outputscale = torch.as_tensor(problem.variance)
            distribution.variational_mean.copy_(torch.as_tensor(problem.q_mu).reshape(*batch, M))
            distribution.chol_variational_covar.copy_(torch.as_tensor(problem.q_sqrt).reshape(*batch, M, M))

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


def likelihood(problem: Problem, native: bool) -> tuple[Likelihood, dict[str, str]]:
    """The likelihood and how it computes its expectations."""
    if problem.likelihood == "gaussian":
        model = GaussianLikelihood(noise_constraint=Positive(transform=None))
        model.noise = problem.noise_variance
        return model, {"expected_log_lik": "closed form", "y": "closed form", "log_density": "closed form"}
    if problem.likelihood == "softmax":
        return FixedSoftmax(draws(problem.eps_seed)[0]), dict.fromkeys(
            ("expected_log_lik", "y", "log_density"), MONTE_CARLO
        )
    if problem.link == "probit":
        method = {"expected_log_lik": HERMITE, "y": "closed form", "log_density": "closed form"}
        return BernoulliLikelihood() if native else ProbitLikelihood(), method
    model = LogitLikelihood() if problem.likelihood == "bernoulli" else ExpPoissonLikelihood()
    return model, dict.fromkeys(("expected_log_lik", "y", "log_density"), HERMITE)


def y_moments(model: Likelihood, f: Any) -> tuple[Tensor, Tensor]:
    """Mean and variance of y: GPyTorch's own marginal where it has one, else its quadrature or the given samples."""
    if isinstance(model, FixedSoftmax):
        mean = model(f).probs.mean(0)
        return mean, mean - mean.square()
    if model.has_analytic_marginal:
        return model(f).mean, model(f).variance
    mean = model.quadrature(lambda values: model(values).mean, f)
    square = model.quadrature(lambda values: model(values).variance + model(values).mean.square(), f)
    return mean, square - mean.square()


def run(problem: Problem, native: bool = False) -> dict[str, Any]:
    """All reference values of one problem."""
    with gpytorch.settings.num_gauss_hermite_locs(POINTS):
        model_likelihood, method = likelihood(problem, native)
    model = Model(problem)
    kind = torch.int64 if problem.likelihood == "softmax" else torch.float64
    X, Y = torch.as_tensor(problem.X), torch.as_tensor(problem.Y, dtype=kind)
    X_test, Y_test = torch.as_tensor(problem.X_test), torch.as_tensor(problem.Y_test, dtype=kind)

    parameters = {
        "lengthscales": model.kernel.base_kernel.raw_lengthscale,
        "variance": model.kernel.raw_outputscale,
        "Z": model.strategy.inducing_points,
        "q_mu": model.strategy._variational_distribution.variational_mean,
        "q_sqrt": model.strategy._variational_distribution.chol_variational_covar,
    }
    shapes = {name: np.shape(getattr(problem, name)) for name in parameters}
    if problem.likelihood == "gaussian":
        parameters["noise_variance"] = model_likelihood.noise_covar.raw_noise
        shapes["noise_variance"] = ()
    bound = gpytorch.mlls.VariationalELBO(model_likelihood, model, num_data=N)
    model.train(), model_likelihood.train()
    elbo = N * bound(model(X), Y)
    slopes = torch.autograd.grad(elbo, list(parameters.values()))
    gradients = {name: slope.reshape(shapes[name]) for name, slope in zip(parameters, slopes, strict=True)}
    gradients["q_sqrt"] = gradients["q_sqrt"].tril()

    values = {
        "elbo": elbo,
        "elbo_batch": N * bound(model(X[:BATCH]), Y[:BATCH]),
        "kl": model.variational_strategy.kl_divergence(),
        "expected_log_lik": model_likelihood.expected_log_prob(Y, model(X)),
    }
    model.eval(), model_likelihood.eval()
    if problem.likelihood == "softmax":
        model_likelihood.eps = torch.as_tensor(draws(problem.eps_seed)[1])
    f = model(X_test)
    y_mean, y_var = y_moments(model_likelihood, f)
    if problem.likelihood == "softmax":
        values["probs"] = y_mean
    elif problem.likelihood == "bernoulli":
        values["probs"] = torch.stack([1 - y_mean, y_mean], dim=1)
    outputs = len(problem.q_mu)
    values |= {"f_mean": f.mean.reshape(-1, outputs), "f_var": f.variance.reshape(-1, outputs)}
    values |= {"y_mean": y_mean, "y_var": y_var, "log_density": model_likelihood.log_marginal(Y_test, f)}
    assert all(value.dtype == torch.float64 for value in (values | gradients).values())
    numbers = [{name: value.detach().numpy() for name, value in part.items()} for part in (values, gradients)]
    return {"inputs": problem.inputs(), "method": method, "values": numbers[0], "gradients": numbers[1]}


def main() -> None:
    results = {name: run(problem) for name, problem in problems().items()}
    results["bernoulli_probit_native"] = run(problems()["bernoulli_probit"], native=True)
    versions = {"python": platform.python_version(), "gpytorch": gpytorch.__version__, "torch": torch.__version__}
    versions |= {"linear_operator": linear_operator.__version__, "numpy": np.__version__}
    save("gpytorch.json", {"library": "gpytorch", "versions": versions, "dtype": "float64", "problems": results})


if __name__ == "__main__":
    main()
