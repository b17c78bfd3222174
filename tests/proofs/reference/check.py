"""Compares gpflow.json, gpytorch.json and a computation from scratch in NumPy, and prints the largest deviations."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

POINTS = 20
STEP = 1e-3  # of the five-point differences
VALUE_TOLERANCE, GRADIENT_TOLERANCE = 1e-8, 1e-6  # absolute below one, relative above

Array = np.ndarray
log_gamma = np.vectorize(math.lgamma)
erfc = np.vectorize(math.erfc)


def rbf(a: Array, b: Array, inputs: dict[str, Any]) -> Array:
    difference = (a[:, None, :] - b[None, :, :]) / inputs["lengthscales"]
    return inputs["variance"] * np.exp(-0.5 * (difference**2).sum(-1))


def marginals(x: Array, inputs: dict[str, Any], extra: float) -> tuple[Array, Array]:
    """Mean and variance of q(f) at x, each [rows, Q]; `extra` is added to the variance."""
    Z, q_mu, q_sqrt = inputs["Z"], inputs["q_mu"], np.tril(inputs["q_sqrt"])
    L = np.linalg.cholesky(rbf(Z, Z, inputs) + inputs["jitter"] * np.eye(len(Z)))
    A = np.linalg.solve(L, rbf(Z, x, inputs))
    projected = np.einsum("qmk,mn->nqk", q_sqrt, A)
    var = inputs["variance"] + extra - (A**2).sum(0)[:, None] + (projected**2).sum(-1)
    return A.T @ q_mu.T, var


def log_link(f: Array, y: Array, inputs: dict[str, Any], lapse: float) -> Array:
    """Log p(y | f) of the likelihoods with one latent function; `lapse` is GPflow's distance of probit from 0 and 1."""
    if inputs["link"] == "logit":
        return -np.logaddexp(0, -(2 * y - 1) * f)
    if inputs["link"] == "probit":
        return np.log(lapse + (1 - 2 * lapse) * 0.5 * erfc(-(2 * y - 1) * f / math.sqrt(2)))
    return y * f - np.exp(f) - log_gamma(y + 1.0)


def log_softmax(f: Array) -> Array:
    shifted = f - f.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def mean_over_f(function: Any, mean: Array, var: Array) -> Array:
    """Gauss-Hermite expectation over f ~ N(mean, var) of a function of arrays [POINTS, rows]."""
    nodes, weights = np.polynomial.hermite.hermgauss(POINTS)
    values = function(mean + np.sqrt(2 * var) * nodes[:, None])
    return np.tensordot(weights / math.sqrt(math.pi), values, 1)


def expected_log_lik(y: Array, mean: Array, var: Array, inputs: dict[str, Any], lapse: float, eps: Array) -> Array:
    if inputs["likelihood"] == "softmax":
        logs = log_softmax(mean + np.sqrt(var) * eps)
        return logs[:, np.arange(len(y)), y].mean(0)
    mean, var = mean[:, 0], var[:, 0]
    if inputs["likelihood"] == "gaussian":
        noise = inputs["noise_variance"]
        return -0.5 * (math.log(2 * math.pi * noise) + ((y - mean) ** 2 + var) / noise)
    if inputs["likelihood"] == "poisson":
        return y * mean - np.exp(mean + var / 2) - log_gamma(y + 1.0)
    return mean_over_f(lambda f: log_link(f, y, inputs, lapse), mean, var)


def predictions(mean: Array, var: Array, inputs: dict[str, Any], lapse: float, eps: Array) -> dict[str, Array]:
    """Moments of y and log predictive density at the test rows."""
    y = inputs["Y_test"]
    if inputs["likelihood"] == "softmax":
        probs = np.exp(log_softmax(mean + np.sqrt(var) * eps)).mean(0)
        log_density = np.log(probs[np.arange(len(y)), y])
        return {"y_mean": probs, "y_var": probs - probs**2, "probs": probs, "log_density": log_density}
    mean, var = mean[:, 0], var[:, 0]
    if inputs["likelihood"] == "gaussian":
        var = var + inputs["noise_variance"]
        log_density = -0.5 * (np.log(2 * math.pi * var) + (y - mean) ** 2 / var)
        return {"y_mean": mean, "y_var": var, "log_density": log_density}
    if inputs["likelihood"] == "poisson":
        first, second = np.exp(mean + var / 2), np.exp(2 * mean + 2 * var)
        log_density = np.log(mean_over_f(lambda f: np.exp(log_link(f, y, inputs, lapse)), mean, var))
        return {"y_mean": first, "y_var": first + second - first**2, "log_density": log_density}
    if inputs["link"] == "probit":
        p = np.exp(log_link(mean / np.sqrt(1 + var), np.ones_like(y), inputs, lapse))
    else:
        p = mean_over_f(lambda f: np.exp(log_link(f, np.ones_like(y), inputs, lapse)), mean, var)
    log_density = np.log(np.where(y == 1, p, 1 - p))
    return {"y_mean": p, "y_var": p - p**2, "probs": np.stack([1 - p, p], 1), "log_density": log_density}


def kl(inputs: dict[str, Any]) -> float:
    q_mu, q_sqrt = inputs["q_mu"], np.tril(inputs["q_sqrt"])
    log_det = 2 * np.log(np.diagonal(q_sqrt, axis1=1, axis2=2)).sum()
    return 0.5 * ((q_mu**2).sum() + (q_sqrt**2).sum() - q_mu.size - log_det)


def stored_draws(eps: dict[str, Any]) -> tuple[Array, Array]:
    """The Monte Carlo noise described in the JSON, for the training and the test rows."""
    rng = np.random.default_rng(eps["seed"])
    found = [rng.standard_normal(eps[f"{part}_shape"]).round(eps["decimals"]) for part in ("train", "test")]
    for part, values in zip(("train", "test"), found, strict=True):
        millionths = np.rint(values * 1e6).astype("<i8")
        assert hashlib.sha256(millionths.tobytes()).hexdigest() == eps[f"{part}_sha256"]
    return found[0], found[1]


def scratch(inputs: dict[str, Any], extra: float = 0.0, lapse: float = 0.0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values and gradients of a problem as stored in the JSON files."""
    inputs = {key: np.array(value) if isinstance(value, list) else value for key, value in inputs.items()}
    eps_train, eps_test = stored_draws(inputs["eps"]) if "eps" in inputs else (np.empty((0, 0)), np.empty((0, 0)))

    def rows(changed: dict[str, Any], number: int | None = None) -> Array:
        mean, var = marginals(changed["X"][:number], changed, extra)
        return expected_log_lik(changed["Y"][:number], mean, var, changed, lapse, eps_train[:, :number])

    def elbo(changed: dict[str, Any]) -> float:
        return float(rows(changed).sum() - kl(changed))

    batch = inputs["batch"]
    f_mean, f_var = marginals(inputs["X_test"], inputs, extra)
    values = {"elbo": elbo(inputs), "kl": kl(inputs), "expected_log_lik": rows(inputs)}
    values |= {"f_mean": f_mean, "f_var": f_var}
    values["elbo_batch"] = len(inputs["X"]) / batch * rows(inputs, batch).sum() - kl(inputs)
    values |= predictions(f_mean, f_var, inputs, lapse, eps_test)

    gradients = {}
    for name in ("lengthscales", "variance", "Z", "q_mu", "q_sqrt", "noise_variance"):
        if name not in inputs:
            continue
        centre = np.asarray(inputs[name], dtype=float)
        slope = np.zeros(centre.shape)
        for index in np.ndindex(centre.shape):
            if name == "q_sqrt" and index[2] > index[1]:
                continue
            for weight, steps in ((1, -2), (-8, -1), (8, 1), (-1, 2)):
                moved = centre.copy()
                moved[index] += steps * STEP
                slope[index] += weight * elbo(inputs | {name: moved}) / (12 * STEP)
        gradients[name] = slope
    return values, gradients


def deviations(one: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """Largest deviation per quantity, absolute below one and relative above."""
    assert one.keys() == other.keys()
    found = {}
    for name, first in one.items():
        a, b = np.asarray(first, dtype=float), np.asarray(other[name], dtype=float)
        assert a.shape == b.shape, name
        found[name] = float((np.abs(a - b) / np.maximum(1, np.abs(b))).max())
    return found


def main() -> None:
    here = Path(__file__).parent
    gpflow, gpytorch = (json.loads((here / f"{name}.json").read_text())["problems"] for name in ("gpflow", "gpytorch"))
    print("| problem | pair | values | gradients | beyond tolerance |\n|---|---|---|---|---|")
    for name, flow in gpflow.items():
        torch, inputs = gpytorch[name], flow["inputs"]
        assert inputs == torch["inputs"]
        native = name.endswith("native")
        plain = scratch(inputs, lapse=1e-3 if native else 0.0)
        jittered = scratch(inputs, extra=inputs["jitter"])
        pairs = {
            "GPflow, GPyTorch": ((flow["values"], torch["values"]), (flow["gradients"], torch["gradients"])),
            "GPflow, NumPy": ((flow["values"], plain[0]), (flow["gradients"], plain[1])),
            "GPyTorch, NumPy": ((torch["values"], jittered[0]), (torch["gradients"], jittered[1])),
        }
        for pair, (values, gradients) in pairs.items():
            value_gap, gradient_gap = deviations(*values), deviations(*gradients)
            beyond = [key for key, gap in value_gap.items() if gap > VALUE_TOLERANCE]
            beyond += [f"d/d {key}" for key, gap in gradient_gap.items() if gap > GRADIENT_TOLERANCE]
            worst = f"{max(value_gap.values()):.1e} | {max(gradient_gap.values()):.1e}"
            print(f"| {name} | {pair} | {worst} | {', '.join(beyond) or 'none'} |")


if __name__ == "__main__":
    main()
