"""SARCOS: the torques at the seven joints of a robot arm, from their positions, velocities and accelerations."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.io import loadmat

from autogp.datasets.common import FOLDER_NAMES, Dataset, data_folder

__all__ = ["load_sarcos", "without_repeats"]

GPML = "https://gaussianprocess.org/gpml/data/"
IAS = "the group Intelligent Autonomous Systems of TU Darmstadt (X_train, Y_train, X_test, Y_test as one .npz)"
JOINTS = range(1, 8)
INPUTS = tuple(f"{what} {joint}" for what in ("position", "velocity", "acceleration") for joint in JOINTS)
TARGETS = tuple(f"torque {joint}" for joint in JOINTS)


def load_sarcos(folder: str | Path | None = None, recording: str = "gpml") -> Dataset:
    """One of two recordings of the arm: 21 inputs, 7 outputs, in the split of its publisher.

    Rows of either test set also stand in its training set: see `without_repeats`.

    Arguments:
        folder: Where the data sets are; else AUTOGP_DATA says. The files of this one are in its sub-folder `sarcos`.
        recording: "gpml", 44,484 and 4,449 rows, from the files that come with Rasmussen and Williams (2006),
            `sarcos_inv.mat` and `sarcos_inv_test.mat`; or "ias", another recording of 13,922 and 5,569 rows, from
            `ias_sarcos_real.npz`.
    """
    if recording not in ("gpml", "ias"):
        raise ValueError(f"recording must be 'gpml' or 'ias', got {recording!r}")
    place = data_folder(folder) / "sarcos"
    if recording == "gpml":
        train, test = (_matrix(place / f"{name}.mat", name) for name in ("sarcos_inv", "sarcos_inv_test"))
        parts = [train[:, :21], train[:, 21:], test[:, :21], test[:, 21:]]
    else:
        parts = _arrays(place / "ias_sarcos_real.npz")
    return Dataset(f"sarcos-{recording}", *parts, input_names=INPUTS, target_names=TARGETS)


def without_repeats(data: Dataset) -> Dataset:
    """The same without the training rows whose inputs also stand in the test set, under the name with "-clean".

    Example:
        >>> x, y = np.array([[1.0], [2.0]]), np.array([10.0, 20.0])
        >>> without_repeats(Dataset("example", x, y, x[:1], y[:1])).y_train.tolist()
        [20.0]
    """
    tested = {row.tobytes() for row in data.x_test + 0.0}  # -0 and 0 are equal, but not their bytes
    kept = np.array([row.tobytes() not in tested for row in data.x_train + 0.0])
    if not kept.any():
        raise ValueError(f"every training row of {data.name} also stands in its test set")
    return replace(data, name=f"{data.name}-clean", x_train=data.x_train[kept], y_train=data.y_train[kept])


def _matrix(path: Path, name: str) -> np.ndarray:
    """The matrix [N, 28] of a MATLAB file: 21 inputs, then 7 torques."""
    found = _read(path, lambda: loadmat(path, variable_names=[name]), GPML)
    if name not in found or found[name].ndim != 2 or found[name].shape[1] != 28:
        raise ValueError(f"{path} should hold a matrix {name!r} of 28 columns")
    return np.asarray(found[name], np.float64)


def _arrays(path: Path) -> list[np.ndarray]:
    names = ("X_train", "Y_train", "X_test", "Y_test")

    def read() -> dict[str, np.ndarray]:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in names if name in archive.files}

    found = _read(path, read, IAS)
    shapes = {name: array.shape[1:] for name, array in found.items()}
    if shapes != {"X_train": (21,), "Y_train": (7,), "X_test": (21,), "Y_test": (7,)}:
        raise ValueError(f"{path} should hold X_train and X_test of 21 columns, Y_train and Y_test of 7")
    return [found[name] for name in names]


def _read(path: Path, reader: Callable[[], dict], source: str) -> dict:
    if not path.is_file():
        raise FileNotFoundError(
            f"SARCOS is not at hand: there is no {path}. Get it from {source} and put it there. {FOLDER_NAMES}"
        )
    try:
        return reader()
    except Exception as error:  # of any kind: the readers of both formats raise whatever a damaged file leads to
        raise ValueError(f"{path} is damaged: {error}. Get it again from {source}.") from error
