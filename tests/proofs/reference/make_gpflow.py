"""Writes gpflow.json: bounds, gradients and predictions of GPflow's SVGP on the problems of problems.py."""

import os
import platform
from typing import Any

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.likelihoods import Bernoulli, Gaussian, Likelihood, Poisson, Softmax
from gpflow.quadrature import NDiagGHQuadrature
from problems import BATCH, CLASSES, POINTS, SAMPLES, N, Problem, draws, problems, save

HERMITE = f"Gauss-Hermite, {POINTS} points"
MONTE_CARLO = f"Monte Carlo, {SAMPLES} stored-seed samples"


class FixedSoftmax(Softmax):
    """GPflow's softmax likelihood whose Monte Carlo noise is given: [SAMPLES, rows, CLASSES]."""

    def __init__(self, eps: np.ndarray) -> None:
        super().__init__(CLASSES)
        self.num_monte_carlo_points = SAMPLES
        self.eps = tf.constant(eps)

    def _variational_expectations(self, X: Any, Fmu: Any, Fvar: Any, Y: Any) -> tf.Tensor:
        return super()._variational_expectations(X, Fmu, Fvar, Y, epsilon=self.eps[:, : len(X)])

    def _predict_mean_and_var(self, X: Any, Fmu: Any, Fvar: Any) -> tuple[tf.Tensor, tf.Tensor]:
        return super()._predict_mean_and_var(X, Fmu, Fvar, epsilon=self.eps[:, : len(X)])

    def _predict_log_density(self, X: Any, Fmu: Any, Fvar: Any, Y: Any) -> tf.Tensor:
        return super()._predict_log_density(X, Fmu, Fvar, Y, epsilon=self.eps[:, : len(X)])


def normal_cdf(f: tf.Tensor) -> tf.Tensor:
    """The probit link without the 1e-3 by which GPflow's `inv_probit` keeps away from 0 and 1."""
    return 0.5 * tf.math.erfc(-f / np.sqrt(2.0))


def likelihood(problem: Problem, native: bool) -> tuple[Likelihood, dict[str, str]]:
    """GPflow's likelihood and how it computes its expectations."""
    quadrature = {"quadrature": NDiagGHQuadrature(1, POINTS)}
    if problem.likelihood == "gaussian":
        method = {"expected_log_lik": "closed form", "y": "closed form", "log_density": "closed form"}
        model = Gaussian(variance=problem.noise_variance)
        model.variance = gpflow.Parameter(problem.noise_variance)
        return model, method
    if problem.likelihood == "poisson":
        method = {"expected_log_lik": "closed form", "y": HERMITE, "log_density": HERMITE}
        return Poisson(invlink=tf.exp, **quadrature), method
    if problem.likelihood == "softmax":
        return FixedSoftmax(draws(problem.eps_seed)[0]), dict.fromkeys(
            ("expected_log_lik", "y", "log_density"), MONTE_CARLO
        )
    if native:
        method = {"expected_log_lik": HERMITE, "y": "closed form", "log_density": "closed form"}
        return Bernoulli(**quadrature), method
    link = {"logit": tf.sigmoid, "probit": normal_cdf}[problem.link]
    return Bernoulli(invlink=link, **quadrature), dict.fromkeys(("expected_log_lik", "y", "log_density"), HERMITE)


def build(problem: Problem, model_likelihood: Likelihood) -> gpflow.models.SVGP:
    """A whitened SVGP whose parameters carry no transform, so that gradients are of the natural values."""
    kernel = gpflow.kernels.SquaredExponential()
    kernel.lengthscales = gpflow.Parameter(problem.lengthscales)
    kernel.variance = gpflow.Parameter(problem.variance)
    outputs = len(problem.q_mu)
    model = gpflow.models.SVGP(kernel, model_likelihood, problem.Z, num_latent_gps=outputs, whiten=True, num_data=N)
    model.q_mu = gpflow.Parameter(problem.q_mu.T)
    model.q_sqrt = gpflow.Parameter(problem.q_sqrt)
    return model


def run(problem: Problem, native: bool = False) -> dict[str, Any]:
    """All reference values of one problem."""
    gpflow.config.set_default_jitter(problem.jitter)
    model_likelihood, method = likelihood(problem, native)
    model = build(problem, model_likelihood)
    kind = tf.int64 if problem.likelihood == "softmax" else tf.float64
    X, Y = tf.constant(problem.X), tf.constant(problem.Y[:, None], kind)
    X_test, Y_test = tf.constant(problem.X_test), tf.constant(problem.Y_test[:, None], kind)

    parameters = {
        "lengthscales": model.kernel.lengthscales,
        "variance": model.kernel.variance,
        "Z": model.inducing_variable.Z,
        "q_mu": model.q_mu,
        "q_sqrt": model.q_sqrt,
    }
    if problem.likelihood == "gaussian":
        parameters["noise_variance"] = model.likelihood.variance
    with tf.GradientTape() as tape:
        elbo = model.elbo((X, Y))
    slopes = tape.gradient(elbo, [parameter.unconstrained_variable for parameter in parameters.values()])
    gradients = {name: slope.numpy() for name, slope in zip(parameters, slopes, strict=True)}
    gradients["q_mu"] = gradients["q_mu"].T
    gradients["q_sqrt"] = np.tril(gradients["q_sqrt"])

    train_mean, train_var = model.predict_f(X)
    values = {
        "elbo": elbo.numpy(),
        "elbo_batch": model.elbo((X[:BATCH], Y[:BATCH])).numpy(),
        "kl": model.prior_kl().numpy(),
        "expected_log_lik": model.likelihood.variational_expectations(X, train_mean, train_var, Y).numpy(),
    }
    if problem.likelihood == "softmax":
        model.likelihood.eps = tf.constant(draws(problem.eps_seed)[1])
    f_mean, f_var = model.predict_f(X_test)
    y_mean, y_var = (moment.numpy() for moment in model.likelihood.predict_mean_and_var(X_test, f_mean, f_var))
    log_density = model.likelihood.predict_log_density(X_test, f_mean, f_var, Y_test).numpy()
    if problem.likelihood == "softmax":
        values["probs"] = y_mean
    else:
        y_mean, y_var = y_mean[:, 0], y_var[:, 0]
    if problem.likelihood == "bernoulli":
        values["probs"] = np.stack([1 - y_mean, y_mean], axis=1)
    values |= {"f_mean": f_mean.numpy(), "f_var": f_var.numpy(), "y_mean": y_mean, "y_var": y_var}
    values["log_density"] = log_density
    assert all(np.asarray(value).dtype == np.float64 for value in (values | gradients).values())
    return {"inputs": problem.inputs(), "method": method, "values": values, "gradients": gradients}


def main() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    results = {name: run(problem) for name, problem in problems().items()}
    results["bernoulli_probit_native"] = run(problems()["bernoulli_probit"], native=True)
    versions = {"python": platform.python_version(), "gpflow": gpflow.__version__, "tensorflow": tf.__version__}
    versions |= {"tensorflow_probability": tfp.__version__, "numpy": np.__version__}
    save("gpflow.json", {"library": "gpflow", "versions": versions, "dtype": "float64", "problems": results})


if __name__ == "__main__":
    main()
