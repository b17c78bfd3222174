"""An estimator as one file: the model, how its targets are scaled and its tables encoded, and what it was asked for."""

import json
import math
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from importlib.metadata import version
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from autogp import persistence
from autogp.data import Deformations, TableEncoder, TargetScaler
from autogp.estimators.gaps import Gaps
from autogp.features import Chain, Columns
from autogp.likelihoods import Likelihood
from autogp.model import SparseGP
from autogp.persistence.checks import is_map
from autogp.storage import StorageError
from autogp.training import History, Phase, Settings, Start
from autogp.training.schedule import OBJECTIVES
from autogp.training.state import COLUMNS

if TYPE_CHECKING:
    from autogp.estimators.base import GPEstimator

__all__ = ["load_model", "save_estimator"]

PACKAGES = ("autogp", "torch", "numpy", "scikit-learn")
SCORES = ("elbo_", "loo_score_")
LABEL_KINDS = {"b": bool, "i": int, "u": int, "f": float, "U": str, "O": str}
WHOLE_COLUMNS = {"epoch", "step", "objective", "skipped"}  # of the history
PREFIX = "parameter_"  # of modules that are arguments of the estimator


def save_estimator(estimator: "GPEstimator", path: str | Path) -> None:
    modules: dict[str, nn.Module] = {"model": estimator.model_}
    if estimator.target_scaler_ is not None:
        modules["target_scaler"] = estimator.target_scaler_
    parameters = {}
    for name, value in estimator.get_params(deep=False).items():
        if isinstance(value, nn.Module):
            modules[PREFIX + name] = value
        elif isinstance(value, np.random.RandomState) or name == "checkpoint":
            parameters[name] = None  # belongs to the run, not to the model
        elif is_dataclass(value) and not isinstance(value, type):
            parameters[name] = json.loads(json.dumps(asdict(value)))  # lists for tuples
        else:
            parameters[name] = value.item() if isinstance(value, np.generic) else value
    if parameters["categorical"] is not None:
        parameters["categorical"] = [str(name) for name in parameters["categorical"]]
    if isinstance(parameters.get("class_weight"), dict):
        parameters["class_weight"] = [[_plain(label), float(w)] for label, w in parameters["class_weight"].items()]
    names = getattr(estimator, "feature_names_in_", None)
    description: dict[str, Any] = {
        "estimator": type(estimator).__name__,
        "parameters": parameters,
        "features": estimator.n_features_in_,
        "image_shape": None if estimator.image_shape_ is None else list(estimator.image_shape_),
        "feature_names": None if names is None else list(names),
        "target_names": estimator.target_names_,
        "rows": estimator.n_rows_,
        "best_epoch": estimator.best_epoch_,
        "stopped": estimator.stopped_,
        "encoder": None if estimator.encoder_ is None else estimator.encoder_.describe(),
        "versions": {name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
    }
    if hasattr(estimator, "classes_"):
        classes: np.ndarray = estimator.classes_  # pyright: ignore[reportAttributeAccessIssue]
        description["classes"] = {"kind": classes.dtype.kind, "labels": [_plain(label) for label in classes]}
    else:
        description["outputs"] = None if estimator._single else estimator.n_outputs_  # pyright: ignore
    tensors = {name: torch.tensor(getattr(estimator, name), dtype=torch.float64) for name in SCORES}
    tensors["varies"] = torch.from_numpy(estimator._varies)
    tensors["reference"] = torch.from_numpy(estimator._gaps.reference)
    tensors |= {f"history.{name}": column for name, column in History(estimator.history_).tensors().items()}
    persistence.save(path, modules, description, tensors)


def load_model(path: str | Path, modules: Sequence[type] = ()) -> Any:
    """The estimator that `save` wrote: predictions are the same to the bit.

    `modules` are your own classes of kernels, likelihoods and feature maps, where the model has such. Nothing in the
    file is run or imported by name; a file that is damaged, or not what it says, gives one `StorageError`.
    """
    from autogp.estimators.classifier import GPClassifier
    from autogp.estimators.regressor import GPRegressor

    saved = persistence.load(path, modules)
    try:
        kind = {"GPClassifier": GPClassifier, "GPRegressor": GPRegressor}[saved.description["estimator"]]
        parameters = _parameters(saved)
        if not parameters.keys() <= set(kind._get_param_names()):  # older files lack the newest parameters
            raise ValueError("its parameters are not those of the estimator")
        estimator = kind(**parameters)
        estimator._validate_params()
        _restore(estimator, saved)
    except Exception as error:  # whatever a hostile description makes fail, there is one answer
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]
        raise StorageError(f"{path} is damaged: its description does not fit ({text})", damaged=True) from error
    return estimator


def _parameters(saved: persistence.Saved) -> dict[str, Any]:
    found = dict(saved.description["parameters"])
    found |= {name.removeprefix(PREFIX): each for name, each in saved.modules.items() if name.startswith(PREFIX)}
    if isinstance(found.get("class_weight"), list | dict):
        found["class_weight"] = dict(found["class_weight"])
        if not all(type(weight) is float and 0 <= weight < math.inf for weight in found["class_weight"].values()):
            raise ValueError("class_weight must hold finite numbers from 0")
    if isinstance(found["settings"], dict):
        plan = found["settings"]["plan"]
        phases = None if plan is None else [_dataclass(Phase, phase) for phase in plan]
        found["settings"] = _dataclass(Settings, found["settings"] | {"plan": phases})
    if isinstance(found["start"], dict):
        found["start"] = _dataclass(Start, found["start"])
    if isinstance(found.get("augment"), dict):  # older files have none
        found["augment"] = _dataclass(Deformations, found["augment"])
    return found


def _dataclass(kind: Any, content: Any) -> Any:
    """An object with these fields, each of the type that its class declares; the class itself checks their range."""
    hints = get_type_hints(kind)
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in content.items()}
    if values.keys() != hints.keys() or not all(_fits(value, hints[name]) for name, value in values.items()):
        raise TypeError(f"the fields of its {kind.__name__} are not of their types")
    return kind(**values)


def _fits(value: Any, hint: Any) -> bool:
    if isinstance(hint, UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if hint is float:
        return type(value) in (int, float)
    if get_origin(hint) is tuple and Ellipsis not in get_args(hint) and len(value) != len(get_args(hint)):
        return False
    return isinstance(value, get_origin(hint) or hint) and isinstance(value, bool) == (hint is bool)


def _restore(estimator: Any, saved: persistence.Saved) -> None:
    """What fit learnt, all of it checked."""
    description, tensors = saved.description, saved.tensors
    model, targets = saved.modules["model"], saved.modules.get("target_scaler")
    if not (isinstance(model, SparseGP) and isinstance(model.features, Chain)):
        raise TypeError("its model is none with a chain of features")
    if not (estimator.features in (None, "auto") or is_map(estimator.features)):
        raise TypeError("the parameter features is no feature map")
    estimator.model_, estimator.target_scaler_ = model, targets
    described = description["encoder"]
    estimator.encoder_ = None if described is None else TableEncoder.from_description(described)
    estimator.n_features_in_ = _whole(description["features"], 1)
    shape = description["image_shape"]
    estimator.image_shape_ = None if shape is None else tuple(_whole(length, 1) for length in shape)
    if shape is not None and math.prod(shape) != estimator.n_features_in_:
        raise ValueError(f"images of {shape} have other columns")
    _restore_columns(estimator, description["feature_names"], tensors["varies"], tensors["reference"])

    if description["estimator"] == "GPClassifier":
        estimator.classes_ = _classes(**description["classes"])
    else:
        outputs = description["outputs"]
        estimator._single, estimator.n_outputs_ = outputs is None, 1 if outputs is None else _whole(outputs, 1)
    _check_declared(estimator)
    if targets is not None and not (isinstance(targets, TargetScaler) and len(targets.shift) == estimator.n_outputs_):
        raise ValueError("target_scaler does not fit the targets")
    estimator.target_names_ = description["target_names"]
    if estimator.target_names_ is not None and not _texts(estimator.target_names_):
        raise TypeError("the names of the targets are no list of texts")

    estimator.n_rows_ = _whole(description["rows"], 1)
    estimator.history_ = _history(tensors)
    estimator.best_epoch_ = _whole(description["best_epoch"], 0)
    estimator.stopped_ = description["stopped"]
    if estimator.best_epoch_ > len(estimator.history_) or not isinstance(estimator.stopped_, str):
        raise ValueError("the history has no such end")
    for name in SCORES:
        setattr(estimator, name, float(tensors[name]))


@torch.no_grad()
def _restore_columns(estimator: Any, names: Any, varies: Tensor, reference: Tensor) -> None:
    """Names of the columns and which of them vary; encoding, features and inducing inputs must fit their number."""
    encoder, model = estimator.encoder_, estimator.model_
    columns = width = estimator.n_features_in_
    if encoder is not None:
        columns = width = len(encoder.used)
        numbered = [f"x{column}" for column in range(estimator.n_features_in_)]  # as columns of arrays are called
        if len(encoder.inputs) != estimator.n_features_in_ or (numbered if names is None else names) != encoder.inputs:
            raise ValueError("the encoding is of other columns")
        encoding = Columns.of(encoder)
        if encoding is not None:
            found = model.features.maps[0]
            if not isinstance(found, Columns) or not encoding.resembles(found):
                raise ValueError("the encoding is not the one that its features were made for")
            width = len(found.columns)
    if varies.dtype != torch.bool or varies.shape != (width,):
        raise ValueError(f"it does not say of {width} columns whether they vary")
    estimator._varies = varies.numpy()
    if names is not None:
        if not _texts(names) or len(names) != estimator.n_features_in_:
            raise ValueError("the names of the columns do not fit their number")
        estimator.feature_names_in_ = np.array(names, dtype=object)
    if reference.dtype != torch.float64 or reference.ndim != 2 or reference.shape != (len(reference), columns):
        raise ValueError("its rows of training do not fit its columns")
    if len(reference) == 0 or not reference.isfinite().all():
        raise ValueError("its rows of training are not finite")
    estimator._gaps = Gaps.around(reference.numpy(), encoder)
    learning = [part for part in model.modules() if part.training]
    model.eval().embed(torch.zeros(1, columns, dtype=torch.float64))  # of one row: what it gives must fit the kernel
    for part in learning:
        part.training = True


def _classes(kind: str, labels: list[Any]) -> np.ndarray:
    if not all(type(label) is LABEL_KINDS[kind] for label in labels) or labels != sorted(set(labels)):
        raise ValueError("the classes are not labels of one kind in order")
    return np.array(labels, dtype=object if kind == "O" else None)


def _check_declared(estimator: Any) -> None:
    """The number of classes or outputs must be the one that the likelihood declares."""
    likelihood: Likelihood = estimator.model_.likelihood
    if hasattr(estimator, "classes_"):
        several = likelihood.num_classes is None  # labels at once
        declared, found = likelihood.num_outputs if several else likelihood.num_classes, len(estimator.classes_)
    else:
        declared, found = likelihood.num_outputs, estimator.n_outputs_
    if declared != found:
        raise ValueError(f"the targets have {found} classes or outputs, but the likelihood {declared}")


def _history(tensors: dict[str, Tensor]) -> list[dict[str, Any]]:
    columns = {name.removeprefix("history."): column for name, column in tensors.items() if name.startswith("history.")}
    for name, column in columns.items():
        allowed = (torch.int64,) if name in WHOLE_COLUMNS else (torch.int64, torch.float64)
        if columns.keys() != set(COLUMNS) or column.ndim != 1 or column.dtype not in allowed:
            raise ValueError("the columns of the history are others")
    if columns and not all(0 <= number < len(OBJECTIVES) for number in columns["objective"].tolist()):
        raise ValueError("the history has an unknown objective")
    return History.rows_of(columns)


def _plain(label: Any) -> Any:
    """A label as JSON has it."""
    label = label.item() if isinstance(label, np.generic) else label
    if not isinstance(label, (bool, int, float, str)):
        raise TypeError(f"labels must be texts or numbers to be saved, got {type(label).__name__}")
    return label


def _texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _whole(value: Any, least: int) -> int:
    if type(value) is not int or not least <= value < sys.maxsize:
        raise ValueError(f"{value!r} is no number of things"[:200])
    return value
