"""MNIST8M: test error against time (the paper's figure 4)."""

from functools import partial

from autogp.datasets import load_mnist8m
from autogp.experiments.base import PAPER, Experiment, Preset
from autogp.features import Convolutional, PrincipalComponents
from autogp.training import Settings, Start

SETTINGS = Settings(max_epochs=2, held_share=0.75)
OURS = {
    "share_kernel": False,
    "scaling": "global",
    "start": Start(variance=20.0),
    "settings": SETTINGS,
}

EXPERIMENT = Experiment(
    name="mnist8m",
    title="MNIST8M",
    load=lambda data, seed: partial(load_mnist8m),
    inducing=(200,),
    objectives=("loo", "predictive"),
    metrics=("error", "nlp", "calibration"),
    curve="time",
    presets={
        "ours": Preset(OURS | {"features": PrincipalComponents(80)}),
        "pixels": Preset(OURS),
        "images": Preset(
            {
                "scaling": "global",
                "settings": Settings(max_epochs=4, held_share=0.75),
                "features": Convolutional((28, 28), num_components=200),
            },
            inducing=(300,),
            objectives=("predictive",),
            loader=partial(load_mnist8m, variants=8),
        ),
        "images, large": Preset(
            {
                "scaling": "global",
                "settings": Settings(max_epochs=5, held_share=0.75),
                "features": Convolutional((28, 28), layers=[(128, 5, 3), (400, 3, 2)], num_components=600),
            },
            inducing=(600,),
            objectives=("predictive",),
            loader=partial(load_mnist8m, variants=20),
        ),
        "paper": PAPER,
    },
    published={  # by leave-one-out, after 10 hours
        ("rbf", objective, 200): {"error": 0.0089, "nlp": 0.033, "seconds": 36_000}
        for objective in ("loo", "predictive")
    },
    published_on=("mnist8m", "mnist8m-generated"),
    note=(
        "mnist8m-generated is made by the rule of the published files, mnist8m, with other random fields. A "
        "kernel with a lengthscale for each input and inducing inputs for each class, on 80 principal components "
        "(ours), or on the pixels as in the paper (pixels); images: one kernel for all classes on convolutional kernel "
        "features of 480,000 of the rows. A quarter of the time follows the ELBO, the rest holds q(u)."
    ),
)
