"""Handwritten digits of 8 x 8 pixels that come with scikit-learn: a minute to see that everything works."""

from functools import partial

from autogp.datasets import load_digits
from autogp.experiments.base import PAPER, Experiment, Peer, Preset
from autogp.experiments.svm import support_vectors
from autogp.features import Convolutional
from autogp.training import Settings

EXPERIMENT = Experiment(
    name="digits",
    title="Handwritten digits of scikit-learn, 8 x 8 pixels",
    load=lambda data, seed: partial(load_digits, seed=seed),
    data={"": range(3)},
    inducing=(10, 50, 150),
    objectives=("elbo", "loo", "predictive"),
    metrics=("error", "nlp", "calibration"),
    presets={
        "ours": Preset({"scaling": "global", "settings": Settings(max_epochs=60, batch_size=1000)}),
        "images": Preset(
            {
                "features": Convolutional((8, 8)),
                "scaling": "global",
                "settings": Settings(max_epochs=60, batch_size=1000, held_share=0.75),
            },
            inducing=(100,),
            objectives=("predictive",),
        ),
        "paper": PAPER,
    },
    peers={"svm": Peer(support_vectors)},
    note="svm: scikit-learn's SVC with an RBF kernel, gamma and C by cross-validation on the training rows.",
)
