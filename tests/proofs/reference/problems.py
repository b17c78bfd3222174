"""Small fixed problems on which sparse variational GPs of several libraries are compared."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

N, D, M, T, CLASSES = 30, 3, 7, 11, 3  # training rows, input columns, inducing points, test rows, softmax classes
BATCH = 10  # the minibatch is the first BATCH rows
SAMPLES = 200  # Monte Carlo samples of the softmax problem
POINTS = 20  # Gauss-Hermite points
JITTER = 1e-10  # times the kernel variance, added to the diagonal of Kuu

Array = np.ndarray


@dataclass(frozen=True)
class Problem:
    """A model with all its parameters, its data and its test data; every number has at most six decimals."""

    likelihood: str  # gaussian, bernoulli, softmax or poisson
    link: str  # identity, logit, probit, softmax or log
    X: Array  # [N, D]
    Y: Array  # [N]; 0/1 for bernoulli, 0..CLASSES-1 for softmax
    X_test: Array  # [T, D]
    Y_test: Array  # [T]
    lengthscales: Array  # [D]
    variance: float
    Z: Array  # [M, D]
    q_mu: Array  # [Q, M], whitened
    q_sqrt: Array  # [Q, M, M], whitened, lower triangular with positive diagonal
    noise_variance: float | None = None  # gaussian only
    eps_seed: int | None = None  # softmax only: see `draws`

    @property
    def jitter(self) -> float:
        return JITTER * self.variance

    def inputs(self) -> dict[str, Any]:
        """Everything a reader of the JSON needs to rebuild the problem."""
        fields = {key: value for key, value in asdict(self).items() if value is not None}
        fields |= {"jitter": self.jitter, "batch": BATCH}
        if seed := fields.pop("eps_seed", None):
            train, test = draws(seed)
            fields["eps"] = {
                "seed": seed,
                "decimals": 6,
                "train_shape": list(train.shape),
                "test_shape": list(test.shape),
            }
            fields["eps"] |= {"train_sha256": digest(train), "test_sha256": digest(test)}
        return fields


def draws(seed: int) -> tuple[Array, Array]:
    """Standard normal noise from one generator: first for the training rows, then for the test rows."""
    rng = np.random.default_rng(seed)
    train, test = (rng.standard_normal((SAMPLES, rows, CLASSES)).round(6) for rows in (N, T))
    return train, test


def digest(values: Array) -> str:
    """SHA-256 of the values as millionths in little-endian int64, so that minus zero cannot change it."""
    return hashlib.sha256(np.rint(values * 1e6).astype("<i8").tobytes()).hexdigest()


def _base(seed: int, outputs: int, lengthscales: list[float], variance: float) -> tuple[dict[str, Any], Array, Any]:
    """Inputs, kernel and q of a problem, a smooth function [N + T, outputs] for its targets, and the generator."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N + T, D)).round(6)
    off_diagonal = np.tril(0.2 * rng.standard_normal((outputs, M, M)), -1)
    diagonal = rng.uniform(0.3, 0.9, (outputs, M))
    fields = {
        "X": X[:N],
        "X_test": X[N:],
        "lengthscales": np.array(lengthscales),
        "variance": variance,
        "Z": rng.uniform(-1.8, 1.8, (M, D)).round(6),
        "q_mu": (0.6 * rng.standard_normal((outputs, M))).round(6),
        "q_sqrt": (off_diagonal + diagonal[:, :, None] * np.eye(M)).round(6),
    }
    weights = rng.standard_normal((D, outputs))
    return fields, np.sin(X @ weights) + 0.4 * X[:, :1], rng


def _targets(values: Array) -> dict[str, Array]:
    return {"Y": values[:N], "Y_test": values[N:]}


def problems() -> dict[str, Problem]:
    """The problems by name."""
    found: dict[str, Problem] = {}

    base, f, rng = _base(11, 1, [0.7, 1.3, 2.1], 1.7)
    y = (f[:, 0] + 0.3 * rng.standard_normal(N + T)).round(6)
    found["gaussian"] = Problem("gaussian", "identity", **base, **_targets(y), noise_variance=0.15)

    base, f, rng = _base(12, 1, [0.9, 1.6, 0.8], 0.85)
    y = (rng.uniform(size=N + T) < 1 / (1 + np.exp(-2 * f[:, 0]))).astype(int)
    for link in ("logit", "probit"):
        found[f"bernoulli_{link}"] = Problem("bernoulli", link, **base, **_targets(y))

    base, f, rng = _base(13, CLASSES, [1.1, 0.75, 1.9], 1.3)
    y = np.argmax(2 * f + rng.gumbel(size=f.shape), axis=1)
    found["softmax"] = Problem("softmax", "softmax", **base, **_targets(y), eps_seed=130)

    base, f, rng = _base(14, 1, [1.2, 0.95, 1.5], 0.6)
    found["poisson"] = Problem("poisson", "log", **base, **_targets(rng.poisson(np.exp(f[:, 0]))))
    return found


def to_json(value: Any, depth: int = 0) -> str:
    """JSON text with dictionaries over several lines and arrays on one, floats in full precision."""
    if isinstance(value, dict):
        pad = " " * (depth + 1)
        rows = [f"{pad}{json.dumps(key)}: {to_json(item, depth + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + "\n" + " " * depth + "}"
    return json.dumps(value.tolist() if isinstance(value, np.ndarray | np.generic) else value, allow_nan=False)


def save(name: str, content: dict[str, Any]) -> None:
    """Writes a JSON file beside this one."""
    (Path(__file__).parent / name).write_text(to_json(content) + "\n", encoding="utf-8")
