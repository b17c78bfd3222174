"""autogp as a contender.

Steps and epochs are those that `train` takes. A training is `train` itself, from the same start as the other
contenders, or with `estimator` a GPClassifier or GPRegressor with its defaults, which finds its start by itself.
"""

import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from problems import class_scores, read_problem, regression_scores, scores
from worker import AfterStep, Server, threads

from autogp import GPClassifier, GPRegressor
from autogp.data import ArraySource, open_source
from autogp.features import Scaling
from autogp.kernels import RBF, Matern52
from autogp.likelihoods import Gaussian, Softmax
from autogp.model import SparseGP
from autogp.posteriors import Natural
from autogp.training import Progress, Settings, train
from autogp.training.memory import kept_memory
from autogp.training.optimisers import Adam
from autogp.training.step import Batch, apply, draw, natural_statistics

PROBE_SECONDS = 0.5
LEAST_SECONDS = 0.1  # of training, where a busy machine leaves less; the answer says how long it took


class Model:
    def __init__(self, problem: dict[str, Any], recipe: dict[str, Any]):
        self.dtype = getattr(torch, recipe["precision"])
        z, self.classes = torch.from_numpy(problem["z"]).to(self.dtype), problem["classes"]
        z = z if z.ndim == 3 else z[None]
        shape = z.shape[0], z.shape[-1]
        kernel = {"rbf": RBF, "matern52": Matern52}[problem["kernel"]](
            torch.full(shape, problem["lengthscale"]), torch.full(shape[:1], problem["variance"])
        )
        likelihood = Softmax(self.classes) if self.classes else Gaussian(variance=problem["noise"])
        scaled = "x_shift" in problem  # else its rows are as a kernel takes them
        features = Scaling(*(torch.from_numpy(problem[key]) for key in ("x_shift", "x_scale"))) if scaled else None
        self.model = SparseGP(kernel, likelihood, z, features)
        self.q = Natural.of(self.model.posterior)
        self.newest = lambda: self.model.predictor(self.q)
        self.optimiser = Adam(each for part, each in self.model.named_parameters() if not part.startswith("posterior."))
        self.generator = torch.Generator().manual_seed(0)
        self.samples, self.num_data = recipe["samples"], problem["num_data"]

    def to_batch(self, x: np.ndarray, y: np.ndarray) -> Batch:
        rows, targets = torch.from_numpy(x).to(self.dtype), torch.from_numpy(y)
        targets = targets if self.classes else targets.to(self.dtype)
        return Batch(rows, targets, torch.full((len(rows),), self.num_data / len(rows), dtype=self.dtype))

    def step(self, batch: Batch) -> None:
        if "elbo" in self.model.likelihood.sampled:
            batch = batch._replace(noise=draw(self.model, len(batch.x), self.samples, self.generator))
        parameters = self.optimiser.parameters
        statistics = natural_statistics(self.model, batch, "elbo", parameters, self.q)
        apply(statistics, self.optimiser, [0.05] * len(parameters), self.q, 0.01)

    def predictor(self):
        """Of rows as a kernel takes them."""
        predictor = self.newest()

        def predict(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            marginals = predictor.at(torch.from_numpy(np.array(x)).to(self.dtype))
            if self.classes:
                return marginals.mean[0].numpy(), marginals.variance[0].numpy()
            found = predictor.likelihood.predict(*marginals[:3])
            return found.mean.numpy(), found.variance.numpy()

        return predict


class OwnServer(Server):
    def fit(self, data: dict[str, Any], recipe: dict[str, Any], turns: AfterStep) -> Model:
        found = Model(data, recipe)
        settings = Settings(
            objective=recipe["objective"],
            max_epochs=recipe["epochs"],
            batch_size=recipe["batch"],
            kernel_rate=recipe["kernel_rate"],
        )
        source = ArraySource(data["x_train"], data["y_train"])

        def watch(progress: Progress) -> bool:
            found.newest = progress.predictor
            return turns(lambda: scores(found, data))

        train(found.model, source, settings, callbacks=[watch])
        found.newest = found.model.predictor
        return found

    def one_epoch(
        self, model: Model, folder: str, x: np.ndarray, y: np.ndarray, order: np.ndarray, recipe: dict[str, Any]
    ) -> None:
        source = open_source(Path(folder) / "x.npy", Path(folder) / "y.npy")
        train(model.model, source, Settings(max_epochs=1, batch_size=recipe["batch"]))

    def estimator(self, problem: str, recipe: dict[str, Any], seconds: float) -> dict[str, Any]:
        """What a user gets who sets the objective and a time budget, and nothing else.

        A budget is one of training; what a fit does before and after is found out first, and taken off.
        """
        data = read_problem(problem)
        kind = GPClassifier if data["classes"] else GPRegressor

        def fit(budget: float) -> tuple[Any, float]:
            started = time.perf_counter()
            model = kind(objective=recipe["objective"], time_budget=budget, random_state=0)
            model.fit(data["x_train"], data["y_train"])
            return model, time.perf_counter() - started

        model, took = fit(PROBE_SECONDS)
        model, took = fit(max(LEAST_SECONDS, seconds - max(0.0, took - model.history_[-1]["seconds"])))
        if isinstance(model, GPClassifier):
            found = class_scores(data["y_test"], model.predict_proba(data["x_test"]))
        else:
            mean, deviation = model.predict(data["x_test"], return_std=True)
            found = regression_scores(data["y_test"], mean, deviation**2, data["y_scale"])
        return {**found, "seconds": took, "epochs": len(model.history_)}


def first_fit(x: np.ndarray, y: np.ndarray) -> None:
    GPRegressor().fit(x, y).predict(x)


if __name__ == "__main__":
    torch.set_num_threads(threads())
    with kept_memory():  # as `train` does
        OwnServer(Model, first_fit, {name: version(name) for name in ("autogp", "torch", "numpy")}).run()
