"""Nine regression sets of the UCI repository: does leave-one-out help, and where."""

from autogp.datasets import load_uci, uci
from autogp.experiments.base import Experiment, Preset
from autogp.likelihoods import Gaussian
from autogp.training import Settings

SETTINGS = Settings(max_epochs=100, held_share=0.9, learning_rate=0.003, held_learning_rate=0.003)

EXPERIMENT = Experiment(
    name="uci",
    title="UCI regression",
    load=lambda data, folder, seed, download: load_uci(data, seed % uci.num_splits(data), folder, download=download),
    data={name: range(3) for name in uci.NAMES},
    likelihood=lambda: Gaussian(variance=0.1),
    kernels=("rbf", "arccosine"),
    inducing=(100,),
    objectives=("elbo", "loo", "predictive"),
    metrics=("nlp", "rmse", "smse"),
    presets={"ours": Preset(SETTINGS, exact=True)},
    note=(
        "Seeds are the first of the published splits. Evidence lower bound: 100 iterations of L-BFGS on all rows, q "
        "always at the maximum of the bound; leave-one-out and predictive go on from there for 100 epochs of small "
        "steps (0.003) on batches, and hold q(u) after the first ten."
    ),
)
