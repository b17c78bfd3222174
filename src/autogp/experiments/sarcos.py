"""SARCOS: a regression network of one node, by epoch and number of samples (the paper's figure 1)."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from autogp.datasets import Dataset, load_sarcos, without_repeats
from autogp.estimators import GPRegressor
from autogp.experiments.base import Experiment, Preset
from autogp.training import Settings, Start

SETTINGS = Settings(max_epochs=20, batch_size=500, learning_rate=0.1, natural_rates=(0.2, 0.02))
PAPER_EPOCHS = 320  # on the 13,922 rows of ias as many steps as 100 epochs of the paper's 44,484
OURS = {"likelihood": "network", "share_kernel": False, "start": Start(dtype="float32"), "settings": SETTINGS}


def load_recording(data: str, folder: str | Path | None = None) -> Dataset:
    """The publishers' splits, or ("-clean") without the training rows that are also test rows."""
    recording, _, clean = data.partition("-")
    rows = load_sarcos(folder, recording)
    return without_repeats(rows) if clean else rows


EXPERIMENT = Experiment(
    name="sarcos",
    title="SARCOS inverse dynamics",
    load=lambda data, seed: partial(load_recording, data),
    data=dict.fromkeys(("gpml", "gpml-clean", "ias", "ias-clean"), range(1)),
    estimator=GPRegressor,
    inducing=(50,),
    objectives=("elbo",),
    metrics=("smse", "nlp"),
    curve="epoch",
    presets={
        "ours": Preset(OURS),
        "sampled": Preset(OURS | {"settings": replace(SETTINGS, monte_carlo=True)}, samples=(10, 100, 1000, 10_000)),
        "independent": Preset(OURS | {"likelihood": "gaussian"}),
        "paper": Preset(
            {
                "likelihood": "network",
                "share_kernel": False,
                "start": Start(lengthscale=10.0, latents=False),
                "settings": Settings.paper(max_epochs=PAPER_EPOCHS),
            },
            samples=(10, 100, 1000, 10_000),
        ),
    },
    beside=("sampled", "independent"),
    published={("rbf", "elbo", 50): {"smse": 0.0195}},
    published_on=("sarcos-gpml",),
    note=(
        "gpml is the paper's recording, ias another one of the same arm. Test rows also stand in the training sets of "
        "both publishers: -clean is without them. ours: the network with its expectations in closed form; sampled: by "
        "Monte Carlo; independent: a Gaussian process of its own for each output, with as many inducing inputs."
    ),
)
