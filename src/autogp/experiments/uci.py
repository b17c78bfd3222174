"""Nine regression sets of the UCI repository, in 20 published splits (5 of protein)."""

from autogp.datasets import load_uci, uci
from autogp.experiments.base import Experiment, Preset
from autogp.inference import Settings
from autogp.likelihoods import Gaussian

EXPERIMENT = Experiment(
    name="uci",
    title="UCI regression",
    load=lambda data, folder, seed, download: load_uci(data, seed % uci.num_splits(data), folder, download=download),
    data={name: range(uci.num_splits(name)) for name in uci.NAMES},
    likelihood=lambda: Gaussian(variance=0.1),
    inducing=(200,),
    objectives=("elbo", "predictive"),
    metrics=("rmse", "nlp", "smse"),
    presets={"ours": Preset(Settings())},
)
