"""What makes two runs the same one, as plain JSON: a run resumes only where settings, model and data are equal."""

import hashlib
from dataclasses import asdict
from typing import Any

from torch import Tensor

from autogp.data import Source, TargetScaler, fingerprint
from autogp.model import SparseGP
from autogp.training.schedule import Settings

__all__ = ["data_identity", "settings_identity"]


def settings_identity(settings: Settings, model: SparseGP) -> dict[str, Any]:
    """All settings that decide the course of a run, and what its saved tensors take for granted of the model."""
    found = asdict(settings)
    del found["checkpoint_seconds"], found["device"]
    return found | {"model": _structure(model)}


def data_identity(
    source: Source, weights: Tensor | None, validation: Source | None, target_scaler: TargetScaler | None
) -> dict[str, Any]:
    """Fingerprints of the rows, and of all that changes what the model sees of them."""
    return fingerprint(source) | {
        "weights": None if weights is None else _digest(weights),
        "validation": None if validation is None else fingerprint(validation),
        "target_scaler": None if target_scaler is None else _digest(target_scaler.shift, target_scaler.scale),
    }


def _structure(model: SparseGP) -> dict[str, Any]:
    """Classes of the parts, their options, the shapes of all tensors, and the values of those that stay fixed."""
    found: dict[str, Any] = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    fixed = [(name, buffer) for name, buffer in model.named_buffers() if not name.startswith("posterior.")]
    fixed += [(name, parameter) for name, parameter in model.named_parameters() if not parameter.requires_grad]
    found |= {f"{name}, fixed": tensor.item() if tensor.numel() == 1 else _digest(tensor) for name, tensor in fixed}
    for name, module in model.named_modules():
        found[name] = type(module).__name__
        for option, value in vars(module).items():
            if isinstance(value, (int, float, str)) and not option.startswith("_") and option != "training":
                found[f"{name}.{option}"] = repr(value)
    return found


def _digest(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().double().cpu().numpy().tobytes())
    return digest.hexdigest()
