"""The sets of Dezfouli and Bonilla: made-up files in the publisher's layout, and the real ones if at hand."""

from pathlib import Path

import numpy as np
import pytest

from autogp.datasets import data_folder, load_savigp, savigp
from autogp.datasets.common import folder_sha256

SHAPES = {
    "abalone": (1000, 3177, 10),
    "boston": (300, 206, 13),
    "creep": (800, 1266, 30),
    "mining": (811, 811, 1),
    "wisconsin": (300, 383, 9),
}


def write(folder: Path, file: str, rows: np.ndarray) -> None:
    path = folder / "savigp" / "data" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savetxt(path, rows, delimiter=",", fmt="%.17g")


def test_the_target_comes_first_and_splits_are_counted_from_the_publishers_first(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((6, 4))
    write(tmp_path, "abalone/train_6.csv", rows[:4])
    write(tmp_path, "abalone/test_6.csv", rows[4:])
    data = load_savigp("abalone", 1, tmp_path)
    np.testing.assert_array_equal(data.x_train, rows[:4, 1:])
    np.testing.assert_array_equal(data.y_train, rows[:4, 0])
    np.testing.assert_array_equal(data.x_test, rows[4:, 1:])
    np.testing.assert_array_equal(data.y_test, rows[4:, 0])


def test_classes_and_counts_are_integers(tmp_path: Path) -> None:
    write(tmp_path, "wisconsin_cancer/train_1.csv", np.array([[-1, 0.5], [1, 0.25]]))
    write(tmp_path, "wisconsin_cancer/test_1.csv", np.array([[1, 0.5]]))
    write(tmp_path, "mining/data.csv", np.array([[0, 25.5], [3, 75.5]]))
    assert load_savigp("wisconsin", folder=tmp_path).y_train.tolist() == [-1, 1]
    mining = load_savigp("mining", folder=tmp_path)
    assert mining.y_test.dtype == int
    assert mining.y_test.tolist() == mining.y_train.tolist() == [0, 3]
    assert mining.x_train.tolist() == [[25.5], [75.5]]


def test_what_is_missing_is_named_with_its_source(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"savigp/data.*github.com/adezfouli/savigp"):
        load_savigp("creep", folder=tmp_path)
    write(tmp_path, "creep/train_1.csv", np.ones((2, 2)))
    with pytest.raises(FileNotFoundError, match=r"test_1.csv is missing.*github.com"):
        load_savigp("creep", 0, tmp_path)


@pytest.mark.parametrize(
    ("name", "split", "match"), [("usps", 0, "no set 'usps'.*wisconsin"), ("boston", 5, "0 to 4 for boston")]
)
def test_names_and_splits_that_do_not_exist_are_refused(name: str, split: int, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        load_savigp(name, split)


def real_folder() -> Path:
    found = data_folder() / "savigp" / "data"
    if not found.is_dir():
        pytest.skip("the sets of Dezfouli and Bonilla are not at hand; AUTOGP_DATA says where data sets are")
    return found


@pytest.mark.parametrize("name", savigp.NAMES)
def test_the_real_sets_have_the_published_sizes(name: str) -> None:
    real_folder()
    for split in range(savigp.num_splits(name)):
        data = load_savigp(name, split)
        assert (len(data.y_train), len(data.y_test), data.x_train.shape[1]) == SHAPES[name]
        assert np.isfinite(data.x_train).all()
    if name == "wisconsin":
        assert set(np.unique(data.y_test)) == {-1, 1}


def test_the_real_files_have_the_sum_that_a_download_must_have(tmp_path: Path) -> None:
    for publishers_name, _, _ in savigp.SETS.values():
        for path in (real_folder() / publishers_name).glob("*.csv"):
            place = tmp_path / "data" / publishers_name / path.name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(path)
    assert folder_sha256(tmp_path) == savigp.SHA256
