"""Handwritten digits of 8 x 8 pixels that come with scikit-learn: a minute to see that everything works."""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from autogp.datasets import Dataset
from autogp.experiments.base import Experiment, Preset
from autogp.likelihoods import Softmax
from autogp.training import Settings


def load(data: str, folder: str | Path | None, seed: int, download: bool) -> Dataset:
    """1,347 digits to learn from, 450 to be tested on; the seed decides which."""
    images, labels = map(np.asarray, load_digits(return_X_y=True))
    x, y = images.astype(np.uint8), labels.astype(np.int64)
    train, test = train_test_split(np.arange(len(y)), test_size=450, random_state=seed, stratify=y)
    return Dataset("digits", x[train], y[train], x[test], y[test])


EXPERIMENT = Experiment(
    name="digits",
    title="Handwritten digits of scikit-learn, 8 x 8 pixels",
    load=load,
    data={"": range(3)},
    likelihood=lambda: Softmax(10),
    inducing=(10, 50, 150),
    objectives=("elbo", "loo", "predictive"),
    metrics=("error", "nlp", "calibration"),
    presets={
        "ours": Preset(Settings(max_epochs=60), scaling="global", by_class=True, variance=10.0),
        "paper": Preset(Settings.paper(), shared=False, lengthscale=10.0),
    },
)
