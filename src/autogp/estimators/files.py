"""An estimator as one file: the model, how its inputs and targets are scaled and encoded, and what it was asked for."""

import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from autogp import persistence
from autogp.data import TableEncoder, TargetScaler
from autogp.model import SparseGP
from autogp.storage import StorageError

if TYPE_CHECKING:
    from autogp.estimators.base import GPEstimator

__all__ = ["load_model", "save_estimator"]

PACKAGES = ("autogp", "torch", "numpy", "scikit-learn")
SCORES = ("elbo_", "loo_score_")
LABEL_KINDS = {"b": bool, "i": int, "u": int, "f": float, "U": str, "O": str}


def save_estimator(estimator: "GPEstimator", path: str | Path) -> None:
    modules: dict[str, nn.Module] = {"model": estimator.model_}
    if estimator.target_scaler_ is not None:
        modules["target_scaler"] = estimator.target_scaler_
    parameters = {}
    for name, value in estimator.get_params(deep=False).items():
        if isinstance(value, nn.Module):
            modules[f"parameter_{name}"] = value
        elif isinstance(value, np.random.RandomState) or name == "checkpoint":
            parameters[name] = None  # belongs to the run, not to the model
        else:
            parameters[name] = value.item() if isinstance(value, np.generic) else value
    if isinstance(parameters.get("class_weight"), dict):
        parameters["class_weight"] = [[_plain(label), float(w)] for label, w in parameters["class_weight"].items()]
    names = getattr(estimator, "feature_names_in_", None)
    description: dict[str, Any] = {
        "estimator": type(estimator).__name__,
        "parameters": parameters,
        "features": estimator.n_features_in_,
        "feature_names": None if names is None else list(names),
        "target_names": estimator.target_names_,
        "rows": estimator.n_rows_,
        "best_epoch": estimator.best_epoch_,
        "encoder": None if estimator.encoder_ is None else estimator.encoder_.describe(),
        "history_objectives": [row["objective"] for row in estimator.history_],
        "versions": {name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
    }
    if hasattr(estimator, "classes_"):
        classes: np.ndarray = estimator.classes_  # pyright: ignore[reportAttributeAccessIssue]
        description["classes"] = {"kind": classes.dtype.kind, "labels": [_plain(label) for label in classes]}
    else:
        description["outputs"] = None if estimator._single else estimator.n_outputs_  # pyright: ignore
    tensors = {name: _number(getattr(estimator, name)) for name in SCORES}
    tensors["varies"] = torch.from_numpy(estimator._varies)
    if estimator.history_:
        tensors |= {
            f"history.{name}": torch.tensor([row[name] for row in estimator.history_], dtype=torch.float64)
            for name in estimator.history_[0]
            if name != "objective"
        }
    persistence.save(path, modules, description, tensors)


def load_model(path: str | Path, types: Sequence[type] = ()) -> Any:
    """The estimator that `save` wrote: predictions are the same to the bit.

    `types` are your own kernel and likelihood classes, where the model has such. Nothing in the file is run or imported
    by name; a file that is damaged, or not what it says, gives one `StorageError`.
    """
    from autogp.estimators.classifier import GPClassifier
    from autogp.estimators.regressor import GPRegressor

    modules, description, tensors = persistence.load(path, types)
    try:
        kinds = {"GPClassifier": GPClassifier, "GPRegressor": GPRegressor}
        estimator = kinds[description["estimator"]](**_parameters(modules, description))
        _restore(estimator, modules, description, tensors)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StorageError(
            f"{path} is damaged: its description does not fit ({type(error).__name__}: {error})", damaged=True
        ) from error
    return estimator


def _parameters(modules: dict[str, nn.Module], description: dict[str, Any]) -> dict[str, Any]:
    parameters = dict(description["parameters"])
    if isinstance(parameters.get("class_weight"), list):
        parameters["class_weight"] = dict(parameters["class_weight"])
    prefix = "parameter_"
    return parameters | {
        name.removeprefix(prefix): module for name, module in modules.items() if name.startswith(prefix)
    }


def _restore(
    estimator: Any, modules: dict[str, nn.Module], description: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    model, targets = modules["model"], modules.get("target_scaler")
    if not isinstance(model, SparseGP):
        raise TypeError("the model is of another type")
    if targets is not None and not isinstance(targets, TargetScaler):
        raise TypeError("target_scaler is of another type")
    columns = model.inducing_inputs.shape[-1]
    estimator.model_, estimator.target_scaler_ = model, targets
    described = description["encoder"]
    encoder = None if described is None else TableEncoder.from_description(described)
    features = _count(description["features"])
    if encoder is None and features != columns:
        raise ValueError("the number of features does not fit the model")
    if encoder is not None and (len(encoder.inputs), len(encoder.columns)) != (features, columns):
        raise ValueError("the encoding of the columns does not fit the model")
    estimator.encoder_ = encoder
    estimator.n_features_in_ = features
    names = description["feature_names"]
    if names is not None:
        if len(names) != features or not all(isinstance(name, str) for name in names):
            raise ValueError("the names of the features do not fit their number")
        estimator.feature_names_in_ = np.array(names, dtype=object)
    names = description["target_names"]
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError("the names of the targets are no list of names")
    estimator.target_names_ = names
    estimator.n_rows_ = _count(description["rows"])
    estimator.best_epoch_ = best = description.get("best_epoch", 0)
    if type(best) is not int or not 0 <= best <= len(description["history_objectives"]):
        raise ValueError(f"{best!r} is no number of an epoch")
    estimator._varies = tensors["varies"].numpy()
    for name in SCORES:
        setattr(estimator, name, float(tensors[name]))
    if description["estimator"] == "GPClassifier":
        kind, labels = description["classes"]["kind"], description["classes"]["labels"]
        if not all(type(label) is LABEL_KINDS[kind] for label in labels) or len(set(labels)) != len(labels):
            raise ValueError("the class labels are not of their kind")
        if targets is not None or len(labels) != model.likelihood.num_classes:
            raise ValueError(f"{len(labels)} classes do not fit the likelihood's {model.likelihood.num_classes}")
        estimator.classes_ = np.array(labels, dtype=object if kind == "O" else None)
        if not np.array_equal(np.unique(estimator.classes_), estimator.classes_):
            raise ValueError("the class labels are not in order")
    else:
        outputs = description["outputs"]
        estimator._single, estimator.n_outputs_ = outputs is None, 1 if outputs is None else _count(outputs)
        expected = model.likelihood.num_outputs
        if expected != estimator.n_outputs_ or (targets is not None and len(targets.shift) != expected):
            raise ValueError(f"{estimator.n_outputs_} outputs do not fit the likelihood")
    estimator.history_ = _history(description["history_objectives"], tensors)


def _history(objectives: list[str], tensors: dict[str, Tensor]) -> list[dict[str, Any]]:
    prefix = "history."
    columns = {name.removeprefix(prefix): column for name, column in tensors.items() if name.startswith(prefix)}
    if any(column.shape != (len(objectives),) for column in columns.values()):
        raise ValueError("the columns of the history differ in length")
    whole = ("epoch", "step", "skipped")
    lists = {name: [int(v) if name in whole else v for v in column.tolist()] for name, column in columns.items()}
    return [
        {"objective": str(objective)} | {name: values[row] for name, values in lists.items()}
        for row, objective in enumerate(objectives)
    ]


def _plain(label: Any) -> Any:
    """A label as JSON has it."""
    label = label.item() if isinstance(label, np.generic) else label
    if not isinstance(label, (bool, int, float, str)):
        raise TypeError(f"labels must be texts or numbers to be saved, got {type(label).__name__}")
    return label


def _count(value: Any) -> int:
    if type(value) is not int or not 0 < value < sys.maxsize:
        raise ValueError(f"{value!r} is no number of things")
    return value


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)
