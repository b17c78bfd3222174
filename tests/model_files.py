"""Small models of every kind, and files that only look like autogp's: what an attacker can always make."""

import hashlib
import json
from typing import Any

import torch
from torch import Tensor

from autogp import SparseGP
from autogp.data import TargetScaler
from autogp.features import Chain, PrincipalComponents, Scaling
from autogp.kernels import RBF, ArcCosine, Kernel, Linear, Matern12, Matern32, Matern52
from autogp.likelihoods import Bernoulli, Gaussian, Likelihood, Network, Poisson, Softmax, StudentT
from autogp.posteriors import Posterior

CODES = {  # in the order of the data in a file
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
POSTERIORS = {"gaussian": (1, False), "mixture": (2, False), "diagonal": (2, True)}  # components, diagonal or not


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
    features: torch.nn.Module | None = None,
) -> SparseGP:
    """A model with two input columns whose parameters and posterior look learnt."""
    q = Posterior(likelihood.num_latents, size, *POSTERIORS[posterior])
    model = SparseGP(kernel, likelihood, rows(size, 2, dtype), features, q)
    randomise(model)
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


def maps() -> dict[str, torch.nn.Module]:
    """Features from two columns to two, and a scaler of targets."""
    shift, scale = torch.tensor([1.0, -2.0]) / 3, torch.tensor([0.1, 7.0])
    mean, directions = rows(1, 2, seed=3)[0], rows(2, 2, seed=4)
    return {
        "scaling": Scaling(shift, scale),
        "components": PrincipalComponents(2, mean, directions),
        "chain": Chain(Scaling(shift, scale), Chain(PrincipalComponents(2, mean, directions)), Chain()),
        "unknown components": PrincipalComponents(3),
        "targets": TargetScaler(shift[:1], scale[:1]),
    }


def canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def forge(content: Any, tensors: dict[str, Tensor]) -> bytes:
    """A file of these tensors with this description and a right checksum, made without the code under test."""
    checksum = hashlib.sha256(canonical(content).encode())
    for name, tensor in sorted(tensors.items()):
        dtype, shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
        checksum.update(canonical([name, dtype, shape]).encode() + tensor.contiguous().numpy().tobytes())
    about = canonical({"description": content, "format": 2, "sha256": checksum.hexdigest()})
    entries: dict[str, Any] = {"__metadata__": {"autogp": about}}
    data = b""
    for name, tensor in sorted(tensors.items(), key=lambda item: (list(CODES).index(item[1].dtype), item[0])):
        start, data = len(data), data + tensor.contiguous().numpy().tobytes()
        entries[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, len(data)]}
    header = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data
