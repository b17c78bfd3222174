"""How tests/data/model-2.autogp was made, once, by autogp 0.1.0: `python tests/data/make_model_2.py FILE`.

The file stays as it is: it proves that later versions read what this one wrote. For another format make another file.
"""

import math
import sys

import torch

from autogp import SparseGP
from autogp.data import TargetScaler
from autogp.features import Categories, Chain, Columns, Numbers, PrincipalComponents, Scaling
from autogp.kernels import RBF, ArcCosine, Linear, Matern12, Matern32, Matern52, Product, Sum
from autogp.likelihoods import Bernoulli, Gaussian, Network, Poisson, Softmax, StudentT
from autogp.persistence import save
from autogp.posteriors import Posterior

generator = torch.Generator().manual_seed(1)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def positive(*shape: int) -> torch.Tensor:
    return (0.3 * normal(*shape)).exp()


scaling = Scaling(normal(2), positive(2))
product = Product(ArcCosine(2, 2, positive(2), bias=0.5, variance=0.8, normalize=True), Linear(positive(2)))
classifier = SparseGP(
    Sum(RBF(positive(3, 2), positive(3)), product),
    Softmax(3),
    normal(4, 2).float(),
    scaling,
    Posterior(3, 4, num_components=2, generator=generator),
)
regressor = SparseGP(
    Matern52(positive(1), 1.5),
    StudentT(2, df=4.5, scale=positive(2)),
    normal(2, 4, 1),
    Chain(scaling, PrincipalComponents(1, normal(2), normal(2, 1))),
)
network = SparseGP(
    Matern32(positive(2)),
    Network(2, num_nodes=1, variance=positive(2)),
    normal(3, 2),
    posterior=Posterior(3, 3, diagonal=True),
)
with torch.no_grad():
    for model in (classifier, regressor, network):
        for parameter in model.posterior.parameters():
            parameter += 0.3 * normal(*parameter.shape)

modules = {
    "classifier": classifier,
    "regressor": regressor,
    "network": network,
    "kernel": Matern12(positive(2), 0.7) + ArcCosine(0, 3, bias=0.1) + Linear(bias=0.2),
    "gaussian": Gaussian(2, variance=positive(2)),
    "bernoulli": Bernoulli(2, link="probit"),
    "poisson": Poisson(2, rate=positive(2)),
    "columns": Columns([[1], [0]], [Numbers(["age"], [0.5], [True]), Categories(["port"], [["Bari", "Cork"]], [True])]),
    "targets": TargetScaler(normal(2), positive(2)),
}
x, latent = normal(5, 2), normal(5, 2)
tensors = {
    "x": x,
    "latent": latent,
    "gram": modules["kernel"].gram(x, x),
    "table": torch.tensor([[0.0, 20.0], [1.0, math.nan], [math.nan, -3.0], [-1.0, 0.1]], dtype=torch.float64),
    "targets.mean": modules["targets"].inverse_mean(latent),
}
tensors["columns"] = modules["columns"](tensors["table"])
for name in ("gaussian", "bernoulli", "poisson"):
    tensors[f"{name}.mean"] = modules[name].conditional_moments(latent)[0]
for name in ("classifier", "regressor", "network"):
    prediction = modules[name].predict(x)
    tensors |= {f"{name}.mean": prediction.mean, f"{name}.variance": prediction.variance}
save(sys.argv[1], modules, {"classes": ["setosa", "versicolor", "virginica"], "note": "Größe"}, tensors)
