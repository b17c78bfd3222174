"""The small sets of Dezfouli and Bonilla (2015), in their splits: regression, classes and counts."""

from pathlib import Path

from autogp.datasets.common import Dataset, data_folder, download_archive, missing, read_numbers

__all__ = ["NAMES", "load_savigp", "num_splits"]

REPOSITORY = "https://github.com/adezfouli/savigp"
COMMIT = "bb18ba2acab7301f3f2856419cfa81fccedee52c"
SHA256 = "1d57e6255317ead50b393a973611ba0325fa00150024027f799242e4e9f8a03a"

# Our name: the publisher's folder and numbers of splits, what is predicted.
SETS = {
    "abalone": ("abalone", range(5, 11), "rings"),
    "boston": ("boston_housing", range(1, 6), "median value of homes"),
    "creep": ("creep", range(1, 21), "rupture stress"),
    "mining": ("mining", range(1), "accidents"),
    "wisconsin": ("wisconsin_cancer", range(1, 6), "benign"),
}
NAMES = tuple(SETS)
MEMBERS = tuple(f"data/{folder}/*.csv" for folder, _, _ in SETS.values())


def num_splits(name: str) -> int:
    """How many splits of a set are published."""
    return len(SETS[name][1])


def load_savigp(name: str, split: int = 0, folder: str | Path | None = None, *, download: bool = False) -> Dataset:
    """One published split of a set. Training sets are small: 300 rows of boston and wisconsin, 800 of creep, 1000 of
    abalone. In mining (coal-mine accidents by 50 days, 1851 to 1962) the test rows are the training rows.

    Arguments:
        name: abalone, boston, creep (regression), wisconsin (classes -1 and 1) or mining (counts).
        split: From 0 to `num_splits(name) - 1`.
        folder: Where the data sets are; else AUTOGP_DATA says. The files of this one are in its sub-folder `savigp`.
        download: Whether to fetch the files if they are not there (10 MB).
    """
    if name not in SETS:
        raise ValueError(f"no set {name!r}; there are {', '.join(NAMES)}")
    if split not in range(num_splits(name)):
        raise ValueError(f"split must be 0 to {num_splits(name) - 1} for {name}, not {split}")
    publishers_name, numbers, target = SETS[name]
    files = _sets(data_folder(folder), download) / publishers_name
    parts = ["data", "data"] if name == "mining" else [f"{part}_{numbers[split]}" for part in ("train", "test")]
    train, test = (read_numbers(files / f"{part}.csv", REPOSITORY, delimiter=",") for part in parts)
    kind = int if name in ("wisconsin", "mining") else float
    return Dataset(
        name, train[:, 1:], train[:, 0].astype(kind), test[:, 1:], test[:, 0].astype(kind), target_names=(target,)
    )


def _sets(folder: Path, download: bool) -> Path:
    place = folder / "savigp"
    path = place / "data"
    if path.is_dir():
        return path
    if not download:
        raise missing("The collection of Dezfouli and Bonilla", path, f"{REPOSITORY} (its folder data)")
    url = f"https://codeload.github.com/{REPOSITORY.removeprefix('https://github.com/')}/tar.gz/{COMMIT}"
    download_archive(url, place, MEMBERS, SHA256)
    return path
