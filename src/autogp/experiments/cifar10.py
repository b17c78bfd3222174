"""CIFAR-10: the paper's table 1."""

from functools import partial

from autogp.data import Deformations
from autogp.datasets import load_cifar10
from autogp.experiments.base import PAPER, Experiment, Preset
from autogp.features import Convolutional
from autogp.training import Settings, Start

IMAGES = {"scaling": "global", "settings": Settings(max_epochs=16, held_share=0.75, held_prior=0.05)}

EXPERIMENT = Experiment(
    name="cifar10",
    title="CIFAR-10",
    load=lambda data, seed: partial(load_cifar10),
    inducing=(200,),
    objectives=("elbo", "loo", "predictive"),
    metrics=("error", "nlp", "calibration"),
    curve="time",
    presets={
        "ours": Preset(
            {
                "share_kernel": False,
                "scaling": "global",
                "start": Start(variance=5.0),
                "settings": Settings(max_epochs=150, held_share=0.75, held_prior=0.05),
            }
        ),
        "images": Preset(
            IMAGES
            | {
                "features": Convolutional(
                    (3, 32, 32), layers=[(128, 5, 3), (512, 3, 3)], num_components=600, mirror=True
                )
            },
            inducing=(500,),
            objectives=("predictive",),
            curve=False,
        ),
        "images, large": Preset(
            IMAGES
            | {
                "features": Convolutional(
                    (3, 32, 32), layers=[(256, 5, 3), (1024, 3, 3)], num_components=1000, mirror=True
                ),
                "augment": Deformations(2, shift=2, bend=0.0),
            },
            inducing=(1000,),
            objectives=("predictive",),
            curve=False,
        ),
        "paper": PAPER,
    },
    published={("rbf", "loo", 200): {"error": 0.4495, "nlp": 1.333}},
    published_on=("cifar10",),
    note=(
        "A kernel and inducing inputs for each class, as in the paper, three quarters of which start in the class. "
        "images: one kernel for all classes on convolutional kernel features. "
        "loo and predictive: a quarter of the epochs follow the ELBO, the rest hold q(u)."
    ),
)
