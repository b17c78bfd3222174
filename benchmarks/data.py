"""The problems: arrays, their scale, and a common start, in files that every Python can read."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.cluster  # noqa: F401  # autogp imports it late; imports are on nobody's clock
import torch
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

from autogp.data import ArraySource, summarise
from autogp.datasets import Dataset, load_cifar10, load_digits, load_mnist, load_uci
from autogp.features import Scaling
from autogp.kernels import RBF
from autogp.training import start_inducing_inputs, start_kernel

IMAGES = {"mnist": load_mnist, "cifar10": load_cifar10, "digits": load_digits}
START_VARIANCE = 10.0  # of the kernel, for classes
START_NOISE = 0.1


def load(name: str) -> Dataset:
    """A set by its name; FileNotFoundError if it is not at hand. digits and diabetes come with scikit-learn."""
    if name == "diabetes":
        x, y = map(np.asarray, load_diabetes(return_X_y=True))
        train, test = map(np.asarray, train_test_split(np.arange(len(y)), test_size=0.2, random_state=0))
        return Dataset("diabetes", x[train], y[train], x[test], y[test])
    return IMAGES[name]() if name in IMAGES else load_uci(name)


def write_problem(name: str, num_inducing: int, folder: Path) -> Path:
    """Rows as they are and the start that all sparse contenders share: scale, k-means, distance between rows.

    Images become float32, scaled by one number; other sets float64, standardised (`problems.scaled`). The processor's
    seconds that the start took are put on every contender's clock.
    """
    path = folder / f"{name}.npz"
    if path.exists():
        return path
    data = load(name)
    started = time.process_time()
    source = ArraySource(data.x_train, data.y_train)
    summary = summarise(source, max_rows=20_000)
    image = name in IMAGES
    scaling = Scaling.from_summary(summary, "global" if image else "standard")
    dtype = torch.float32 if image else torch.float64
    classes = int(data.y_train.max()) + 1 if image else 0
    variance = START_VARIANCE if classes else 1.0
    kernel = start_kernel("rbf", source, scaling)
    assert isinstance(kernel, RBF)
    z = start_inducing_inputs(source, num_inducing, scaling, by_class=bool(classes), dtype=dtype)
    seconds = time.process_time() - started
    centre, scale = (0, 1) if classes else (data.y_train.mean(), data.y_train.std())
    arrays: dict[str, Any] = {
        "x_train": data.x_train.reshape(len(data.x_train), -1),
        "x_test": data.x_test.reshape(len(data.x_test), -1),
        "x_shift": scaling.shift.numpy(),
        "x_scale": scaling.scale.numpy(),
        "y_train": data.y_train if classes else (data.y_train - centre) / scale,
        "y_test": data.y_test if classes else (data.y_test - centre) / scale,
        "y_scale": scale,
        "z": z.numpy(),
        "lengthscale": kernel.lengthscale[0, 0].item(),
        "variance": variance,
        "noise": START_NOISE,
        "classes": classes,
        "kernel": "rbf" if classes else "matern52",
        "start_seconds": seconds,
    }
    np.savez(path, **arrays)
    return path
