"""SARCOS: a regression network of one node, by epoch and number of samples (the paper's figure 1)."""

from pathlib import Path

import torch

from autogp.datasets import Dataset, load_sarcos, without_repeats
from autogp.experiments.base import Experiment, Preset
from autogp.experiments.sampled import SampledNetwork
from autogp.likelihoods import Gaussian, Network
from autogp.training import Settings, start_nodes

SETTINGS = Settings(max_epochs=20, batch_size=500, learning_rate=0.1, natural_rates=(0.2, 0.02))


def load(data: str, folder: str | Path | None, seed: int, download: bool) -> Dataset:
    """The publishers' splits, or ("-clean") without the training rows that are also test rows."""
    recording, _, clean = data.partition("-")
    rows = load_sarcos(folder, recording)
    return without_repeats(rows) if clean else rows


EXPERIMENT = Experiment(
    name="sarcos",
    title="SARCOS inverse dynamics",
    load=load,
    data=dict.fromkeys(("gpml", "gpml-clean", "ias", "ias-clean"), range(1)),
    likelihood=lambda: Network(num_outputs=7, variance=0.1),
    inducing=(50,),
    objectives=("elbo",),
    metrics=("smse", "nlp"),
    curve=True,
    presets={
        "ours": Preset(SETTINGS, shared=False, precision=torch.float32, start=start_nodes),
        "sampled": Preset(
            SETTINGS,
            shared=False,
            precision=torch.float32,
            start=start_nodes,
            samples=(10, 100, 1000, 10_000),
            likelihood=lambda: SampledNetwork(num_outputs=7, variance=0.1),
        ),
        "independent": Preset(
            SETTINGS,
            shared=False,
            precision=torch.float32,
            likelihood=lambda: Gaussian(num_outputs=7, variance=0.1),
        ),
        "paper": Preset(
            Settings.paper(max_epochs=100),
            shared=False,
            lengthscale=10.0,
            samples=(10, 100, 1000),
            likelihood=lambda: SampledNetwork(num_outputs=7),
        ),
    },
    beside=("sampled", "independent"),
    published={("rbf", "elbo", 50): {"smse": 0.0195}},
    published_on="sarcos-gpml",
    note=(
        "gpml is the paper's recording, ias another one of the same arm. Test rows also stand in the training sets of "
        "both publishers: -clean is without them. ours: the network with its expectations in closed form; sampled: by "
        "Monte Carlo; independent: a Gaussian process of its own for each output, with as many inducing inputs."
    ),
)
