"""Where a mixture of Gaussians as the posterior is better than one Gaussian, and where it cannot be.

    python -m benchmarks.mixtures results/mixtures

Magnitudes: targets are |f| + noise, so that a stretch of rows does not tell the sign of f. Whether f changes its sign
in a gap between two stretches is not known: the posterior has a mode for each answer, and they predict different
magnitudes in the gap. Functions are drawn from the model's own prior, and kernel and noise are the true ones. One
Gaussian is the best mode that was found, so that all sizes have the same starts. Network: two nodes may change places,
which gives a second mode that predicts the same.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autogp import Posterior, SparseGP
from autogp.data import ArraySource
from autogp.kernels import RBF
from autogp.likelihoods import Likelihood, Network
from autogp.objectives import elbo, predictive
from autogp.training import Settings
from autogp.training.mixture import mix

SEEDS, ROWS, TEST, NOISE, SIZES = range(12), 60, 200, 0.1, (1, 2, 4)


class Magnitude(Likelihood):
    """y = |f| + noise of standard deviation 0.1."""

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return -0.5 * ((y - f[..., 0].abs()) / NOISE).square() - math.log(NOISE * math.sqrt(2 * math.pi))


def magnitudes(seed: int) -> tuple[SparseGP, ArraySource, ArraySource]:
    """Rows in [-3, -1] and [1, 3], test rows in between."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.uniform(-3, -1, ROWS // 2), rng.uniform(1, 3, ROWS // 2), np.linspace(-1, 1, TEST)])
    gram = np.exp(-0.5 * np.square(x[:, None] - x)) + 1e-9 * np.eye(len(x))
    f = np.linalg.cholesky(gram) @ rng.normal(size=len(x))
    y = np.abs(f) + NOISE * rng.normal(size=len(x))
    z = torch.linspace(-3, 3, 20, dtype=torch.float64)[:, None]
    rows = ArraySource(x[:ROWS, None], y[:ROWS]), ArraySource(x[ROWS:, None], y[ROWS:])
    return SparseGP(RBF(1.0, 1.0), Magnitude(), z), *rows


def network(seed: int) -> tuple[SparseGP, ArraySource, ArraySource]:
    """Three outputs that mix two nodes by weights that vary slowly."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3, 3, (ROWS + TEST, 1))
    nodes = np.stack([np.sin(2 * x[:, 0]), np.cos(3 * x[:, 0] + 1)], 1)
    weights = 1 + 0.3 * rng.normal(size=(3, 2)) * x[:, :1, None]
    y = (weights * nodes[:, None]).sum(-1) + NOISE * rng.normal(size=(len(x), 3))
    lengthscales = torch.tensor([3.0] * 6 + [0.7] * 2, dtype=torch.float64)[:, None]
    kernel = RBF(lengthscales, torch.ones(8, dtype=torch.float64))
    z = torch.linspace(-3, 3, 15, dtype=torch.float64)[:, None]
    model = SparseGP(kernel, Network(3, 2, variance=NOISE**2), z.expand(8, -1, -1))
    return model, ArraySource(x[:ROWS], y[:ROWS]), ArraySource(x[ROWS:], y[ROWS:])


def measure(problem: Any, seed: int) -> dict[str, dict[str, float]]:
    model, rows, test = problem(seed)
    for part in (model.kernel, model.likelihood):
        part.requires_grad_(False)
    model.inducing_inputs.requires_grad_(False)
    mix(model, rows, Settings(batch_size=ROWS, natural_rates=(0.2, 0.2), seed=seed), max(SIZES), verbose=False)
    whole = model.posterior
    order, found = whole.logits.argsort(descending=True), {}
    for size in SIZES:
        chosen = order[:size]
        part = Posterior(*whole.mean.shape[1:], num_components=size)
        with torch.no_grad():
            for name, values in part.named_parameters():
                values.copy_(whole.get_parameter(name)[chosen])
            value = elbo(model, *map(torch.from_numpy, (rows.x, rows.y)), q=part).item()
            density = predictive(model, *map(torch.from_numpy, (test.x, test.y)), q=part).item() / len(test)
        found[str(size)] = {"elbo": value, "nlp": -density}
    return found


def main(folder: str) -> None:
    torch.set_num_threads(1)
    record: dict[str, Any] = {"kind": "mixtures", "seeds": list(SEEDS)}
    for problem in (magnitudes, network):
        record[problem.__name__] = [measure(problem, seed) for seed in SEEDS]
        print(problem.__name__, json.dumps(record[problem.__name__][-1]), flush=True)
    for problem in (magnitudes, network):
        for name in ("elbo", "nlp"):
            gains = np.array(
                [[run[str(size)][name] - run["1"][name] for size in SIZES] for run in record[problem.__name__]]
            )
            error = gains.std(0, ddof=1) / math.sqrt(len(gains))
            record[f"{problem.__name__}_{name}_gain"] = {
                str(size): {"mean": gains[:, i].mean(), "error": error[i]} for i, size in enumerate(SIZES)
            }
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / "mixtures.json").write_text(json.dumps(record, indent=1) + "\n")
    for name, value in record.items():
        if name.endswith("gain"):
            print(name, value)


if __name__ == "__main__":
    main(*sys.argv[1:])
