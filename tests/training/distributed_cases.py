"""Trainings whose result must not depend on the number of processes; run as a program by each of them.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python distributed_cases.py RESULT.npz
"""

import sys

import numpy as np
import torch

from autogp import GPClassifier, GPRegressor
from autogp.data import ArraySource
from autogp.features import PrincipalComponents
from autogp.kernels import RBF
from autogp.likelihoods import Gaussian, Softmax
from autogp.model import SparseGP
from autogp.posteriors import Posterior
from autogp.training import Phase, Settings, train
from autogp.training.distributed import processes

ROWS = 103  # does not divide evenly, into batches or processes


def data(dtype=np.float64):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 2)).astype(dtype)
    return x, (x[:, 0] + 0.5 * rng.normal(size=ROWS) > 0).astype(np.int64) + (x[:, 1] > 1)


def classes(settings, dtype=np.float64, components=1, weights=None, validation=None, callbacks=()):
    x, y = data(dtype)
    generator = torch.Generator().manual_seed(1)
    posterior = Posterior(3, 7, components, generator=generator)
    model = SparseGP(RBF([1.0, 1.5]), Softmax(3), torch.from_numpy(x[::15]), posterior=posterior)
    history = train(
        model, ArraySource(x, y), settings, weights=weights, validation=validation, callbacks=callbacks, verbose=False
    )
    return model, history


def vector(model, history=None):
    parts = [tensor.double().ravel() for tensor in model.state_dict().values()]
    rows = [] if history is None else [torch.tensor([row["value"], row["score"]]).double() for row in history.rows]
    return torch.cat([*parts, *rows]).numpy()


def stop_after(step):
    return lambda progress: progress.step == step


def cases():
    batches = Settings(batch_size=20, max_epochs=4, seed=3)
    yield "elbo", vector(*classes(batches))
    yield "float32", vector(*classes(batches, np.float32))
    yield "tiny batches", vector(*classes(Settings(batch_size=3, max_epochs=1)))  # some processes have no row of them
    yield "loo", vector(*classes(Settings(objective="loo", batch_size=20, max_epochs=4)))
    yield "predictive", vector(*classes(Settings(objective="predictive", batch_size=20, max_epochs=4)))
    phases = [
        Phase("elbo", 2),
        Phase("predictive", 1, hold=True, prior=0.1),
        Phase("elbo", 1, trainable=("posterior",)),
    ]
    yield "plan", vector(*classes(Settings(plan=phases, batch_size=20)))
    yield "paper", vector(*classes(Settings.paper(max_epochs=2, samples=5, batch_size=20)))
    yield "mixture", vector(*classes(batches, components=2))
    weights = np.linspace(0.5, 2, ROWS)
    yield "weights", vector(*classes(batches, weights=weights))
    x, y = data()
    model, history = classes(Settings(batch_size=20, max_epochs=15, patience=2), validation=ArraySource(x[:31], y[:31]))
    yield "early stopping", np.array([*vector(model, history), len(history.rows), history.best_epoch])
    model, history = classes(batches, callbacks=[stop_after(9)])
    assert history.stopped == "callback"
    yield "callback", np.array([*vector(model), history.rows[-1]["step"]])
    rng = np.random.default_rng(2)
    x = rng.normal(size=(ROWS, 2))
    y = np.stack([np.sin(x[:, 0]), x[:, 1]], 1)
    model = SparseGP(RBF(), Gaussian(2), torch.from_numpy(x[::15]))
    train(model, ArraySource(x, y), batches, verbose=False)
    yield "regression", vector(model)

    # Estimators: a seed by chance, which process 0 chooses, is the same for all.
    x, y = data()
    found = GPClassifier(n_inducing=7, max_epochs=3, batch_size=25, validation_fraction=0.2).fit(x, y)
    together = processes().agree("model", vector(found.model_).tobytes())
    yield "chance", np.array([len(together)])
    features = PrincipalComponents(1)  # each process applies them to its own rows
    found = GPClassifier(
        n_inducing=7, max_epochs=3, batch_size=25, random_state=0, validation_fraction=0.2, features=features
    ).fit(x, y)
    found.partial_fit(x[:20], y[:20])
    yield "classifier", np.concatenate([vector(found.model_), found.predict_proba(x[:5]).ravel(), [found.elbo_]])
    found = GPClassifier(n_inducing=7, random_state=0, max_epochs=6, objective="elbo").fit(x, y > 0)
    yield "all rows", np.concatenate([vector(found.model_), found.predict_proba(x[:5]).ravel(), [found.elbo_]])
    found = GPRegressor(n_inducing=7, random_state=0).fit(x, x[:, 0] + np.sin(y))
    yield "regressor", np.concatenate([found.predict(x[:5]), [found.elbo_]])


def main():
    torch.set_num_threads(1)
    results = dict(cases())
    among = processes()
    for name, result in results.items():
        among.agree(f"bits of {name!r}", result.tobytes())
    if among.first:
        np.savez(sys.argv[1], **results)


if __name__ == "__main__":
    main()
