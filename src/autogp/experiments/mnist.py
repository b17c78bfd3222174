"""MNIST: error and NLP by inducing inputs, ELBO against leave-one-out (the paper's figure 3)."""

from dataclasses import replace
from functools import partial

from autogp.datasets import load_mnist
from autogp.experiments.base import PAPER, Experiment, Preset
from autogp.features import Convolutional, PrincipalComponents
from autogp.training import Settings, Start

SETTINGS = Settings(max_epochs=24, held_share=0.75)
IMAGES = {"scaling": "global", "settings": SETTINGS}
OURS = {"share_kernel": False, "scaling": "global", "start": Start(variance=20.0), "settings": SETTINGS}

EXPERIMENT = Experiment(
    name="mnist",
    title="MNIST",
    load=lambda data, seed: partial(load_mnist),
    inducing=(10, 200, 1000),
    objectives=("elbo", "loo", "predictive"),
    metrics=("error", "nlp", "calibration"),
    curve="time",
    presets={
        "ours": Preset(OURS),
        "one kernel": Preset(
            OURS | {"share_kernel": True, "settings": replace(SETTINGS, kernel_rate=0.03)}, inducing=(10, 200)
        ),
        "components": Preset(OURS | {"features": PrincipalComponents(80)}, inducing=(200, 1000)),
        "images": Preset(
            IMAGES | {"features": Convolutional((28, 28), num_components=300)},
            inducing=(200,),
            objectives=("predictive",),
            curve=False,
        ),
        "images, large": Preset(
            IMAGES | {"features": Convolutional((28, 28), layers=[(256, 5, 3), (800, 3, 2)], num_components=600)},
            inducing=(600,),
            objectives=("predictive",),
            curve=False,
        ),
        "paper": PAPER,
    },
    beside=("one kernel", "components"),
    published={
        ("rbf", "loo", 200): {"error": 0.0171, "nlp": 0.063},
        ("rbf", "loo", 1000): {"error": 0.0155, "nlp": 0.061},
    },
    published_on=("mnist",),
    note=(
        "ours: a kernel and inducing inputs for each class, as in the paper, three quarters of which start in the "
        "class; one kernel: the same for all classes, with 0.03 of the learning rate for the kernel; "
        "components: as ours, with a lengthscale for each of 80 principal components of the pixels; images: one kernel "
        "for all classes on convolutional kernel features. loo and "
        "predictive: a quarter of the epochs follow the ELBO, the rest hold q(u)."
    ),
)
