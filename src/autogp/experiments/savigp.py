"""Two small sets of Dezfouli and Bonilla (2015): classes (wisconsin) and counts (mining)."""

from functools import partial

from autogp.datasets import load_savigp, savigp
from autogp.estimators import GPRegressor
from autogp.experiments.base import Experiment, Preset
from autogp.training import Settings

WISCONSIN = Experiment(
    name="wisconsin",
    title="Wisconsin breast cancer",
    load=lambda data, seed: partial(load_savigp, "wisconsin", seed % savigp.num_splits("wisconsin")),
    data={"": range(3)},
    kernels=("rbf", "arccosine"),
    inducing=(50,),
    objectives=("elbo", "loo", "predictive"),
    metrics=("error", "nlp"),
    presets={"ours": Preset({"settings": Settings(max_epochs=300, batch_size=1000, held_prior=1.0)})},
)

MINING = Experiment(
    name="mining",
    title="Coal-mine accidents",
    load=lambda data, seed: partial(load_savigp, "mining", 0),
    estimator=GPRegressor,
    kernels=("rbf", "arccosine"),
    inducing=(30,),
    objectives=("elbo", "predictive"),
    metrics=("nlp", "rmse"),
    presets={"ours": Preset({"likelihood": "poisson", "settings": Settings(max_epochs=300, batch_size=1000)})},
    note=(
        "As published, the test rows are the training rows. There is no leave-one-out: 1 / p(y | f) of counts grows as "
        "exp(exp(f)), so that its expectation is infinite for every Gaussian q."
    ),
)
