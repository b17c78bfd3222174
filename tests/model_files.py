"""Small models of every kind, and files that only look like autogp's: what an attacker can always make."""

import hashlib
import json
from typing import Any

import torch
from torch import Tensor

from autogp import SparseGP
from autogp.data import InputScaler, TargetScaler
from autogp.kernels import RBF, ArcCosine, Kernel, Linear, Matern12, Matern32, Matern52
from autogp.likelihoods import Bernoulli, Gaussian, Likelihood, Network, Poisson, Softmax, StudentT
from autogp.posteriors import GaussianPosterior, HeldPosterior, MixturePosterior

CODES = {torch.float64: "F64", torch.float32: "F32", torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8"}
POSTERIORS = ("gaussian", "mixture", "diagonal", "held")


def randomise(module: torch.nn.Module, seed: int = 0) -> None:
    """Numbers that no constructor gives, as training would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, dtype=parameter.dtype, generator=generator)


def rows(count: int, columns: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(count, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def make_model(
    kernel: Kernel,
    likelihood: Likelihood,
    posterior: str = "gaussian",
    size: int = 4,
    dtype: torch.dtype = torch.float32,
) -> SparseGP:
    """A model with two input columns whose parameters and posterior look learnt."""
    latents = likelihood.num_latents
    model = SparseGP(kernel, likelihood, rows(size, 2, dtype))
    root = torch.linalg.qr(rows(latents * size, size, seed=1).reshape(latents, size, size))[0] + torch.eye(size)
    mean, covariance = rows(latents, size, seed=2)[None], (root @ root.mT + 0.1 * torch.eye(size))[None]
    if posterior in ("mixture", "diagonal"):
        model.posterior = MixturePosterior(latents, size, num_components=2, diagonal=posterior == "diagonal")
    else:
        model.posterior.set_moments(mean, covariance)
    randomise(model)
    if posterior == "held":
        prepared = model.prepare()
        model.posterior = HeldPosterior(prepared.moments, prepared.factor)
    assert isinstance(model.posterior, (GaussianPosterior, MixturePosterior, HeldPosterior))
    return model


def kernels() -> dict[str, Kernel]:
    return {
        "rbf": RBF(lengthscale=[1.0, 2.0], variance=0.7),
        "matern12": Matern12(0.9),
        "matern32": Matern32([0.9, 1.1]),
        "matern52": Matern52(1.4, 2.0),
        "linear": Linear(variance=[1.0, 0.5]),
        "linear with bias": Linear(bias=0.3),
        "arccosine": ArcCosine(degree=0, depth=3),
        "arccosine with bias": ArcCosine(degree=2, depth=2, weight_variance=[1.0, 0.1], bias=0.4, normalize=True),
        "sum of product and sum": RBF() * Linear() + (Matern32() + ArcCosine(1, 2)),
    }


def likelihoods() -> dict[str, Likelihood]:
    return {
        "gaussian": Gaussian(2, variance=torch.tensor([0.1, 3.0])),
        "logit": Bernoulli(),
        "probit": Bernoulli(3, link="probit"),
        "softmax": Softmax(4),
        "poisson": Poisson(2),
        "student-t": StudentT(2, df=4.5, scale=0.2),
        "network": Network(3, num_nodes=2, variance=torch.tensor([0.1, 1.0, 2.0])),
    }


def scalers() -> dict[str, torch.nn.Module]:
    shift, scale = torch.tensor([1.0, -2.0]) / 3, torch.tensor([0.1, 7.0])
    return {"inputs": InputScaler(shift, scale), "targets": TargetScaler(shift[:1], scale[:1])}


def canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def pack(entries: dict[str, Any], description: str, data: bytes) -> bytes:
    """A file with a right checksum, whatever it says."""

    def header(checksum: str) -> bytes:
        metadata = {"description": description, "format": "1", "sha256": checksum}
        text = canonical({"__metadata__": metadata, **entries}).encode()
        return text + b" " * (-len(text) % 8)

    final = header(hashlib.sha256(header("") + data).hexdigest())
    return len(final).to_bytes(8, "little") + final + data


def forge(content: Any, tensors: dict[str, Tensor]) -> bytes:
    """A file of these tensors with this description, laid out as autogp lays it out."""
    entries, data = {}, b""
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])):
        start, data = len(data), data + tensor.contiguous().numpy().tobytes()
        entries[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, len(data)]}
    return pack(entries, canonical(content), data)
