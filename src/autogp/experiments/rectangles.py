"""RECTANGLES-IMAGE: error by inducing inputs and kernel (the paper's figure 2)."""

from autogp.datasets import load_rectangles
from autogp.experiments.base import Experiment, Preset
from autogp.inference import Settings
from autogp.likelihoods import Bernoulli

EXPERIMENT = Experiment(
    name="rectangles",
    title="RECTANGLES-IMAGE",
    load=lambda data, folder, seed, download: load_rectangles(folder),
    likelihood=Bernoulli,
    kernels=("rbf", "arccosine"),
    inducing=(10, 200, 1000),
    objectives=("elbo", "loo"),
    metrics=("error", "nlp", "calibration"),
    presets={
        "ours": Preset(Settings(max_epochs=100), scaling="global", by_class=True, variance=5.0),
        "paper": Preset(Settings.paper(), lengthscale=10.0),
    },
    published={
        ("rbf", "elbo", 200): {"error": 0.2406, "nlp": 0.495},
        ("rbf", "loo", 200): {"error": 0.2404, "nlp": 0.485},
        ("rbf", "loo", 1000): {"error": 0.236, "nlp": 0.478},
    },
    published_on="rectangles",
)
