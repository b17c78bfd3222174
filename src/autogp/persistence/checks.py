"""Which classes a model file may name without being asked, and what makes their numbers sound."""

from typing import Any

import torch
from torch import Tensor, nn

from autogp import features, kernels, likelihoods
from autogp.data import TargetScaler
from autogp.features import Chain, FeatureMap, Transformer
from autogp.kernels import Kernel
from autogp.likelihoods import Elementwise, Likelihood
from autogp.linalg import LAST_JITTER
from autogp.model import SparseGP
from autogp.posteriors import Posterior

__all__ = [
    "MOST_LEVELS",
    "MOST_MODULES",
    "MOST_NUMBERS",
    "OWN",
    "check_numbers",
    "check_parts",
    "is_map",
    "make_posterior",
]

# A posterior is its tensors and nothing else: their axes are K components, Q latents, M inducing inputs.
POSTERIOR_AXES = {"logits": "K", "mean": "KQM", "log_scale": "KQM", "upper": "KQMM"}
BASES = (Kernel, Likelihood, Elementwise, FeatureMap, Transformer)
OWN = {SparseGP, Posterior, TargetScaler} | {
    kind
    for package in (kernels, likelihoods, features)
    for kind in (getattr(package, name) for name in package.__all__)
    if isinstance(kind, type) and issubclass(kind, nn.Module) and kind not in BASES
}
# What a hostile file may make a constructor compute: far beyond any model, and far below what hurts.
MOST_MODULES = 200
MOST_LEVELS = 30  # of modules within modules: a copy of the model descends twelve frames for each
MOST_NUMBERS = 2**22  # integers, positive parameters, and columns times latents


def make_posterior(tensors: dict[str, Tensor], path: str) -> Posterior:
    """The smallest posterior, with the file's tensors put in place of its own: nothing is copied."""
    posterior = Posterior(1, 1, diagonal=f"{path}.upper" not in tensors)
    sizes: dict[str, int] = {}
    for name, old in list(posterior.named_parameters()):
        new, axes = tensors.get(f"{path}.{name}"), POSTERIOR_AXES[name]
        if new is None or new.ndim != len(axes) or new.dtype != old.dtype or new.numel() == 0:
            raise ValueError(f"{path}.{name} must be a tensor of {len(axes)} axes in {old.dtype}")
        if any(sizes.setdefault(axis, size) != size for axis, size in zip(axes, new.shape, strict=True)):
            raise ValueError(f"{path}.{name} has the shape {tuple(new.shape)}, where others make {sizes}")
        setattr(posterior, name, nn.Parameter(new))
    return posterior


def check_parts(kernel: Any, likelihood: Any, inducing_inputs: Any, features: Any, posterior: Any) -> None:
    """What the constructor of a model takes for granted."""
    if not (isinstance(kernel, Kernel) and isinstance(likelihood, Likelihood) and isinstance(posterior, Posterior)):
        raise TypeError("a model is made of a kernel, a likelihood and a posterior")
    if not (features is None or is_map(features)):
        raise TypeError("features must be None, a feature map or a module of your own")
    if not isinstance(inducing_inputs, Tensor) or inducing_inputs.ndim != 3:
        raise ValueError("inducing_inputs must be a tensor of 3 axes")
    _, latents, size = posterior.mean.shape
    if (latents, size) != (likelihood.num_latents, inducing_inputs.shape[1]):
        raise ValueError(
            f"the posterior is over {latents} latent functions at {size} inducing inputs, the model has "
            f"{likelihood.num_latents} and {inducing_inputs.shape[1]}"
        )
    owned = [part for part in kernel.modules() if type(part) in OWN]
    groups = max([1, *(len(tensor) for part in owned for tensor in part.parameters(recurse=False))])
    if groups * inducing_inputs.shape[2] > MOST_NUMBERS:
        raise ValueError(f"the columns of inducing_inputs times the kernel's latent functions exceed {MOST_NUMBERS}")


def is_map(module: Any) -> bool:
    """Whether it maps rows to features, as far as can be told."""
    if isinstance(module, Chain):
        return all(map(is_map, module.maps))
    return isinstance(module, FeatureMap) or (isinstance(module, nn.Module) and type(module) not in OWN)


def check_numbers(root: nn.Module) -> None:
    """Whether predictions can be computed; what a caller's own classes hold is theirs to check."""
    for module in root.modules():
        if type(module) in OWN:
            for key, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
                if not all(torch.isfinite(part).all() for part in tensor.reshape(-1).split(2**20)):
                    raise ValueError(f"{key!r} of a {type(module).__name__} contains NaN or infinity")
        if isinstance(module, SparseGP):
            if not 0 < module.jitter.item() <= LAST_JITTER:
                raise ValueError(f"jitter must be positive and at most {LAST_JITTER:g}, got {module.jitter.item():g}")
            low, high = module.inducing_inputs.aminmax()
            if max(-low, high) > torch.finfo(module.dtype).max:
                raise ValueError(f"inducing_inputs exceed the range of {module.dtype}")
