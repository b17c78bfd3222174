"""SARCOS: a regression network of one node, by epoch and number of samples (the paper's figure 1)."""

from pathlib import Path

from autogp.datasets import Dataset, load_sarcos, without_repeats
from autogp.experiments.base import Experiment, Preset
from autogp.inference import Settings
from autogp.likelihoods import Network


class SampledNetwork(Network):
    """The network with its expectations by Monte Carlo, as in the paper, although it has them in closed form."""

    @property
    def sampled(self) -> frozenset[str]:
        return frozenset({"elbo", "predictive"})


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
        "ours": Preset(Settings(max_epochs=100), shared=False),
        "paper": Preset(
            Settings.paper(max_epochs=100),
            shared=False,
            lengthscale=10.0,
            samples=(10, 100, 1000),  # the paper also has 10,000, with which a step takes 9 GB here
            likelihood=lambda: SampledNetwork(num_outputs=7),
        ),
    },
    published={("rbf", "elbo", 50): {"smse": 0.0195}},
    published_on="sarcos-gpml",
)
