"""MNIST: error and NLP by inducing inputs, evidence lower bound against leave-one-out (the paper's figure 3)."""

from autogp.datasets import load_mnist
from autogp.experiments.base import Experiment, Preset
from autogp.inference import Settings
from autogp.likelihoods import Softmax

EXPERIMENT = Experiment(
    name="mnist",
    title="MNIST",
    load=lambda data, folder, seed, download: load_mnist(folder, download=download),
    likelihood=lambda: Softmax(10),
    inducing=(10, 200, 1000),
    objectives=("elbo", "loo", "predictive"),
    metrics=("error", "nlp", "calibration"),
    presets={
        "ours": Preset(Settings(max_epochs=60), scaling="global", by_class=True, variance=20.0),
        "paper": Preset(Settings.paper(), shared=False, lengthscale=10.0),
    },
    published={
        ("rbf", "loo", 200): {"error": 0.0171, "nlp": 0.063},
        ("rbf", "loo", 1000): {"error": 0.0155, "nlp": 0.061},
    },
    published_on="mnist",
)
