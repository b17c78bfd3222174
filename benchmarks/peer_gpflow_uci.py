"""GPflow's sparse GPs on splits that `benchmarks.uci` has written as SETS/SPLIT.npz; called by it.

    python peer_gpflow_uci.py ARRAYS RESULTS.json --explore                every recipe, at growing lengths
    python peer_gpflow_uci.py ARRAYS RESULTS.json --chosen EXPLORED.json   the best of them for each set

GPflow's own recipes: a kernel with a lengthscale for each input that starts at sqrt(D), inducing inputs from k-means,
inputs and targets standardised, float64, compiled steps. `natgrad` is a whitened SVGP that follows the notebook on
natural gradients (gamma 0.1 for q, Adam for the rest), `adam` one that follows that on big data (Adam for everything),
`sgpr` is SGPR, where noise is Gaussian, with SciPy's L-BFGS on all rows. The kernel is RBF where the recipe names none.
For each set the recipe and its number of steps are those with the best log-likelihood on held-out training rows. What
is in the results already is not repeated. Needs a Python that has GPflow.
"""

import argparse
import gc
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import gpflow
import numpy as np
import scipy
import tensorflow as tf
from gpflow.keras import tf_keras
from scipy.cluster.vq import kmeans2

NUM_INDUCING = 200
GAMMA = 0.1
CHECKPOINTS = (100, 125, 250, 300, 500, 600, 750, 1000, 1500, 2000, 3000, 4000, 6000, 8000)
FEW_ROWS = 2000  # more are taken in batches, and get more steps
# Optimiser, rows in a batch, Adam's learning rate, kernel; and the most steps that are tried.
RECIPES = {
    "few": {"natgrad 1000 0.01": 2000, "natgrad 1000 0.03": 2000, "adam 250 0.01": 4000},
    "many": {"natgrad 500 0.01": 3000, "natgrad 500 0.03": 3000, "adam 250 0.01": 6000},
    "gaussian": {"sgpr": 300, "sgpr Matern52": 300},
    "poisson": {"natgrad 1000 0.01 Matern52": 2000},
    "bernoulli": {"natgrad 1000 0.01 Matern52": 2000},
}
SETTINGS = {
    "num_inducing": NUM_INDUCING,
    "gamma": GAMMA,
    "precision": "float64",
    "threads": 1,
    "seconds": "CPU time of training (with compilation) and prediction",
}
VERSIONS = {module.__name__: module.__version__ for module in (gpflow, tf, np, scipy)}


class Standardised:
    """Rows in the units that GPflow is given: counts and labels as they are, all else standardised by training rows."""

    def __init__(self, path: Path):
        with np.load(path) as rows:
            self.likelihood = str(rows["likelihood"])
            x, y, x_test, self.y_test = (rows[name] for name in ("x_train", "y_train", "x_test", "y_test"))
        centre, spread = x.mean(axis=0), x.std(axis=0)
        spread[spread == 0] = 1.0
        self.x, self.x_test = (x - centre) / spread, (x_test - centre) / spread
        self.y_mean, self.y_std = (y.mean(), y.std()) if self.likelihood == "gaussian" else (0.0, 1.0)
        self.y = ((y - self.y_mean) / self.y_std)[:, None]


def build(rows: Standardised, optimiser: str, kernel: str, rng: np.random.Generator) -> gpflow.models.BayesianModel:
    num_rows, num_inputs = rows.x.shape
    sample = rows.x[rng.permutation(num_rows)[:10_000]]
    inducing = kmeans2(sample, min(NUM_INDUCING, num_rows), minit="points", seed=rng)[0]
    covariance = getattr(gpflow.kernels, kernel)(lengthscales=np.full(num_inputs, num_inputs**0.5))
    if optimiser == "sgpr":
        return gpflow.models.SGPR((rows.x, rows.y), covariance, inducing, noise_variance=0.1)
    likelihood = {
        "gaussian": lambda: gpflow.likelihoods.Gaussian(0.1),
        "poisson": gpflow.likelihoods.Poisson,
        "bernoulli": gpflow.likelihoods.Bernoulli,
    }[rows.likelihood]()
    # Counts have no mean to subtract: a constant takes its place, and is learnt.
    mean = gpflow.functions.Constant(np.log(rows.y.mean())) if rows.likelihood == "poisson" else None
    return gpflow.models.SVGP(covariance, likelihood, inducing, mean_function=mean, num_data=num_rows)


def train(model, rows: Standardised, recipe: str, steps: int, after: Callable, rng: np.random.Generator) -> None:
    """Calls `after` with the number of steps taken."""
    optimiser, *numbers = recipe.removesuffix(" Matern52").split()
    if optimiser == "sgpr":

        def moved(done, variables, values):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
            after(done + 1)

        gpflow.optimizers.Scipy().minimize(
            model.training_loss, model.trainable_variables, step_callback=moved, options={"maxiter": steps}
        )
        return
    x, y = tf.constant(rows.x), tf.constant(rows.y)
    num_rows = len(rows.x)
    batch, rate = min(int(numbers[0]), num_rows), float(numbers[1])
    adam = tf_keras.optimizers.Adam(rate)
    natural = gpflow.optimizers.NaturalGradient(GAMMA)
    if optimiser == "natgrad":
        gpflow.set_trainable(model.q_mu, False)
        gpflow.set_trainable(model.q_sqrt, False)
    adam.build(model.trainable_variables)

    @tf.function
    def step(chosen):
        def loss():
            return model.training_loss((tf.gather(x, chosen), tf.gather(y, chosen)) if batch < num_rows else (x, y))

        adam.minimize(loss, model.trainable_variables)
        if optimiser == "natgrad":
            natural.minimize(loss, [(model.q_mu, model.q_sqrt)])

    per_epoch = num_rows // batch
    for done in range(steps):
        if done % per_epoch == 0:
            order = rng.permutation(num_rows)
        first = done % per_epoch * batch
        step(tf.constant(order[first : first + batch]))
        after(done + 1)


def scores(model: gpflow.models.BayesianModel, rows: Standardised) -> dict:
    """Mean log-likelihood, root mean squared error and share of rows in the central 90 %, in the units of y."""
    x, y = rows.x_test, rows.y_test
    standardised = ((y - rows.y_mean) / rows.y_std)[:, None]
    log_density = model.predict_log_density((x, standardised)).numpy() - np.log(rows.y_std)
    mean = model.predict_y(x)[0].numpy()[:, 0] * rows.y_std + rows.y_mean
    result = {"log_likelihood": float(log_density.mean())}
    if rows.likelihood == "bernoulli":
        return result | {"error_rate": float(np.mean((mean > 0.5) != y))}
    if rows.likelihood == "gaussian":
        half = 1.6448536269514722 * np.sqrt(model.predict_y(x)[1].numpy()[:, 0]) * rows.y_std
        low, high = mean - half, mean + half
    else:
        f, variance = (each.numpy()[:, 0] for each in model.predict_f(x))
        rng = np.random.default_rng(0)
        draws = rng.poisson(np.exp(f + np.sqrt(variance) * rng.standard_normal((4000, len(f)))))
        low, high = np.quantile(draws, [0.05, 0.95], axis=0, method="inverted_cdf")
    rmse = np.sqrt(np.mean((y - mean) ** 2))
    return result | {"rmse": float(rmse), "coverage": float(np.mean((low <= y) & (y <= high)))}


def run(path: Path, recipe: str, checkpoints: list[int]) -> dict:
    """Scores by number of steps; L-BFGS may be done before the last of them."""
    tf_keras.backend.clear_session()  # or the graphs of all runs stay in memory
    gc.collect()
    seed = int(path.stem)
    rng = np.random.default_rng(seed)
    tf.random.set_seed(seed)
    started, scoring, found = time.process_time(), 0.0, {}
    rows = Standardised(path)
    kernel = "Matern52" if recipe.endswith("Matern52") else "SquaredExponential"
    model = build(rows, recipe.split()[0], kernel, rng)

    def score(done: int) -> None:
        nonlocal scoring
        before = time.process_time()
        found[done] = scores(model, rows)
        took = time.process_time() - before
        found[done]["seconds"] = before - started - scoring + took
        scoring += took

    train(model, rows, recipe, checkpoints[-1], lambda done: score(done) if done in checkpoints else None, rng)
    for missing in [each for each in checkpoints if each not in found]:
        score(missing)
    return found


def explore(path: Path, result: dict) -> None:
    """Every recipe on one split that `result` lacks. One that is the best, and still getting better at its end, gets
    twice the steps."""
    with np.load(path) as rows:
        size = "few" if len(rows["x_train"]) <= FEW_ROWS else "many"
        recipes = RECIPES[size] | RECIPES[str(rows["likelihood"])]
    for recipe, most in recipes.items():
        if recipe in result:
            continue
        try:
            found = run(path, recipe, [steps for steps in CHECKPOINTS if steps <= most])
        except tf.errors.InvalidArgumentError as error:  # a matrix that could not be factorised
            print(path, recipe, str(error)[:200], flush=True)
            continue
        result[recipe] = found
        show(path, recipe, found)
    best, steps = choose(result)
    before, last = (each["log_likelihood"] for each in list(result[best].values())[-2:])
    if steps == recipes[best] == int(list(result[best])[-1]) and last > before + 0.01:
        result[best] = run(path, best, [each for each in CHECKPOINTS if each <= 2 * steps])
        show(path, best, result[best])


def show(path: Path, recipe, found: dict) -> None:
    by_steps = {steps: round(each["log_likelihood"], 3) for steps, each in found.items()}
    print("/".join(path.parts[-3:-1]), recipe, by_steps, flush=True)


def choose(explored: dict) -> tuple[str, int]:
    """The recipe and the number of steps with the best log-likelihood on validation rows."""
    scored = [
        (each["log_likelihood"], recipe, int(steps))
        for recipe, found in explored.items()
        for steps, each in found.items()
        if np.isfinite(each["log_likelihood"])
    ]
    return max(scored)[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arrays", type=Path)
    parser.add_argument("results", type=Path)
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--explore", action="store_true")
    task.add_argument("--chosen", type=Path)
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    results = {"settings": SETTINGS, "versions": VERSIONS, "runs": {}}
    if options.results.exists():
        results = json.loads(options.results.read_text())
    explored = json.loads(options.chosen.read_text())["runs"] if options.chosen else {}
    for path in sorted(options.arrays.glob("*/*/*.npz"), key=lambda path: path.stat().st_size):
        name, split = f"{path.parent.parent.name}/{path.parent.name}", path.stem
        runs = results["runs"].setdefault(name, {})
        if options.explore:
            explore(path, runs.setdefault(split, {}))
        else:
            recipe, steps = choose(explored[name]["0"])
            if split in runs and (runs[split]["recipe"], runs[split]["steps"]) == (recipe, steps):
                continue
            runs[split] = {"recipe": recipe, "steps": steps, **run(path, recipe, [steps])[steps]}
            print(name, split, runs[split], flush=True)
        partial = options.results.with_suffix(".partial")
        partial.write_text(json.dumps(results, indent=1) + "\n")
        partial.replace(options.results)


if __name__ == "__main__":
    main()
