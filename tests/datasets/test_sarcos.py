"""SARCOS: made-up files in the publishers' layouts, and the real ones where they are at hand."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from autogp.datasets import Dataset, data_folder, load_sarcos, without_repeats


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    (tmp_path / "sarcos").mkdir()
    train = rng.normal(size=(6, 28))
    test = np.concatenate([train[1:3], rng.normal(size=(2, 28))])
    savemat(tmp_path / "sarcos" / "sarcos_inv.mat", {"sarcos_inv": train})
    savemat(tmp_path / "sarcos" / "sarcos_inv_test.mat", {"sarcos_inv_test": test})
    parts = {"X_train": train[:, :21], "Y_train": train[:, 21:], "X_test": test[:, :21], "Y_test": test[:, 21:]}
    np.savez(tmp_path / "sarcos" / "ias_sarcos_real.npz", **{k: v.astype(np.float32) for k, v in parts.items()})
    return tmp_path


@pytest.mark.parametrize("recording", ["gpml", "ias"])
def test_both_recordings_have_21_inputs_and_7_outputs(folder: Path, recording: str) -> None:
    data = load_sarcos(folder, recording)
    assert (data.x_train.shape, data.y_train.shape) == ((6, 21), (6, 7))
    assert (data.x_test.shape, data.y_test.shape) == ((4, 21), (4, 7))
    rows = loadmat(folder / "sarcos" / "sarcos_inv.mat")["sarcos_inv"]
    np.testing.assert_allclose(np.hstack([data.x_train, data.y_train]), rows, rtol=1e-6)
    assert len(data.input_names) == 21
    assert len(data.target_names) == 7


@pytest.mark.parametrize("recording", ["gpml", "ias"])
def test_training_rows_that_are_tested_on_are_removed_and_no_others(folder: Path, recording: str) -> None:
    data = load_sarcos(folder, recording)
    clean = without_repeats(data)
    np.testing.assert_array_equal(clean.x_train, data.x_train[[0, 3, 4, 5]])
    np.testing.assert_array_equal(clean.y_train, data.y_train[[0, 3, 4, 5]])
    assert clean.x_test is data.x_test


def test_zero_and_minus_zero_are_the_same_row() -> None:
    x = np.array([[0.0, 1.0], [2.0, 3.0]])
    data = Dataset("example", x, x[:, 0], -x[:1] * [1, -1], x[:1, 0])
    assert without_repeats(data).x_train.tolist() == [[2.0, 3.0]]


def test_a_training_set_of_repeats_alone_is_an_error() -> None:
    x = np.ones((2, 1))
    with pytest.raises(ValueError, match="every training row"):
        without_repeats(Dataset("example", x, x[:, 0], x, x[:, 0]))


def test_errors_say_what_is_wrong_and_where(folder: Path) -> None:
    with pytest.raises(ValueError, match="recording must be"):
        load_sarcos(folder, "other")
    path = folder / "sarcos" / "sarcos_inv.mat"
    savemat(path, {"sarcos_inv": np.zeros((3, 5))})
    with pytest.raises(ValueError, match=r"sarcos_inv\.mat should hold a matrix 'sarcos_inv' of 28 columns"):
        load_sarcos(folder)
    path.write_bytes(b"not a MATLAB file")
    with pytest.raises(ValueError, match=r"sarcos_inv\.mat is damaged"):
        load_sarcos(folder)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"sarcos_inv\.mat.*https://gaussianprocess.*AUTOGP_DATA"):
        load_sarcos(folder)
    np.savez(folder / "sarcos" / "ias_sarcos_real.npz", X_train=np.zeros((2, 21)))
    with pytest.raises(ValueError, match=r"ias_sarcos_real\.npz should hold X_train"):
        load_sarcos(folder, "ias")


def test_the_real_recording_of_13922_rows() -> None:
    path = data_folder(None) / "sarcos" / "ias_sarcos_real.npz"
    if not path.is_file():
        pytest.skip(f"there is no {path}")
    expected = "c7c94c8b493daae2d82083134cebb3b6b146bffb40930fc6fddd1e8be0f11f9b"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == expected
    data = load_sarcos(recording="ias")
    assert (data.x_train.shape, data.x_test.shape) == ((13_922, 21), (5_569, 21))
    clean = without_repeats(data)
    assert len(clean.x_train) == 13_922 - 2_785
    tested = set(map(bytes, clean.x_test))
    assert not any(bytes(row) in tested for row in clean.x_train)


def test_the_real_test_file_of_4449_rows() -> None:
    path = data_folder(None) / "sarcos" / "sarcos_inv_test.mat"
    if not path.is_file():
        pytest.skip(f"there is no {path}")
    expected = "161a59b5c3b4f4b404584323f181607b2acbe620eb134dc720760dc3f38f5cec"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == expected
    assert loadmat(path)["sarcos_inv_test"].shape == (4_449, 28)


def test_the_real_recording_of_44484_rows() -> None:
    path = data_folder(None) / "sarcos" / "sarcos_inv.mat"
    if not path.is_file():
        pytest.skip(f"there is no {path}")
    data = load_sarcos()
    assert (data.x_train.shape, data.x_test.shape) == ((44_484, 21), (4_449, 21))
