"""Two small sets of Dezfouli and Bonilla (2015): classes (wisconsin) and counts (mining)."""

from dataclasses import replace
from pathlib import Path

from autogp.datasets import Dataset, load_savigp, savigp
from autogp.experiments.base import Experiment, Preset
from autogp.likelihoods import Bernoulli, Poisson
from autogp.training import Settings


def load_wisconsin(data: str, folder: str | Path | None, seed: int, download: bool) -> Dataset:
    """The published splits, with classes 0 and 1 for -1 and 1."""
    rows = load_savigp("wisconsin", seed % savigp.num_splits("wisconsin"), folder, download=download)
    return replace(rows, y_train=(rows.y_train > 0).astype(int), y_test=(rows.y_test > 0).astype(int))


WISCONSIN = Experiment(
    name="wisconsin",
    title="Wisconsin breast cancer",
    load=load_wisconsin,
    data={"": range(3)},
    likelihood=Bernoulli,
    kernels=("rbf", "arccosine"),
    inducing=(50,),
    objectives=("elbo", "loo", "predictive"),
    metrics=("error", "nlp"),
    presets={"ours": Preset(Settings(max_epochs=300, held_prior=1.0))},
)

MINING = Experiment(
    name="mining",
    title="Coal-mine accidents",
    load=lambda data, folder, seed, download: load_savigp("mining", 0, folder, download=download),
    likelihood=Poisson,
    kernels=("rbf", "arccosine"),
    inducing=(30,),
    objectives=("elbo", "predictive"),
    metrics=("nlp", "rmse"),
    presets={"ours": Preset(Settings(max_epochs=300))},
    note=(
        "As published, the test rows are the training rows. There is no leave-one-out: 1 / p(y | f) of counts grows as "
        "exp(exp(f)), so that its expectation is infinite for every Gaussian q."
    ),
)
