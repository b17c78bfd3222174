"""Nine regression sets of the UCI repository: does leave-one-out help, and where."""

from functools import partial

from autogp.datasets import load_uci, uci
from autogp.estimators import GPRegressor
from autogp.experiments.base import Experiment, Preset
from autogp.training import Settings

SETTINGS = Settings(max_epochs=100, held_share=0.9, learning_rate=0.003, held_learning_rate=0.003)

EXPERIMENT = Experiment(
    name="uci",
    title="UCI regression",
    load=lambda data, seed: partial(load_uci, data, seed % uci.num_splits(data)),
    data={name: range(3) for name in uci.NAMES},
    estimator=GPRegressor,
    kernels=("rbf", "arccosine"),
    inducing=(100,),
    objectives=("elbo", "loo", "predictive"),
    metrics=("nlp", "rmse", "smse"),
    presets={"ours": Preset({"settings": SETTINGS})},
    note=(
        "Seeds are the first of the published splits. ELBO: 100 iterations of L-BFGS on all rows, q always at its "
        "optimum; leave-one-out and predictive go on from there for 100 epochs of small steps (0.003), and hold q(u) "
        "after the first ten."
    ),
)
