"""Rows come out of every kind of array as they were put in, without a copy of the whole."""

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st

from autogp.data import ArraySource, Source, Subset, fingerprint, sources
from autogp.data.sources import evenly_spaced

ROWS = np.array([4, 1, 1])


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int64", "float32", "float64"])
def test_rows_keep_the_stored_dtype(dtype: str) -> None:
    x = np.arange(10).reshape(5, 2).astype(dtype)
    found, _ = ArraySource(x, np.arange(5)).rows(ROWS)
    assert found.dtype == dtype
    assert (found == x[ROWS]).all()


def test_arrays_tensors_and_lists_give_the_same_rows() -> None:
    x, y = np.arange(10.0).reshape(5, 2), np.arange(5)
    for kind in (np.asarray, torch.tensor, lambda array: array.tolist(), pd.DataFrame, scipy.sparse.csc_matrix):
        found, targets = ArraySource(kind(x), y).rows(ROWS)
        assert isinstance(found, np.ndarray)
        assert (found == x[ROWS]).all()
        assert (targets == ROWS).all()


def test_inputs_are_not_copied(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((6, 4)))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    tensor = torch.zeros(5, 2)
    for x, memory in ((mapped, mapped), (mapped[::2, 1:3], mapped), (tensor, tensor.numpy())):
        assert np.shares_memory(ArraySource(x).x, memory)


def test_only_mapped_arrays_are_not_in_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((6, 4)))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert not ArraySource(mapped[::2]).in_memory
    assert not ArraySource(np.zeros((6, 4)), mapped).in_memory
    assert ArraySource(np.zeros((6, 4))[::2]).in_memory


@pytest.mark.parametrize("shape", [(5, 3, 2), (5, 3, 2, 4)])
def test_images_are_flattened_row_by_row_without_copying_them_all(shape: tuple[int, ...]) -> None:
    images = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    # Channels moved to the end: an array that cannot be flattened as a view.
    for x in (images, np.moveaxis(images, 1, -1)):
        source = ArraySource(x)
        assert np.shares_memory(source.x, images)
        assert (source.rows(ROWS)[0] == x[ROWS].reshape(3, -1)).all()


def test_big_endian_numbers_come_out_in_the_order_that_torch_takes() -> None:
    x, y = ArraySource(np.eye(3, dtype=">f4"), np.arange(3, dtype=">i4")).rows(np.arange(3))
    assert torch.equal(torch.from_numpy(x), torch.eye(3))
    assert torch.from_numpy(y).tolist() == [0, 1, 2]


def test_dataframe_with_text_names_the_column() -> None:
    frame = pd.DataFrame({"width": [1.0, 2.0], "colour": ["red", "blue"]})
    with pytest.raises(ValueError, match="x must hold numbers, but column 'colour' holds"):
        ArraySource(frame)
    with pytest.raises(ValueError, match="y must hold numbers, but column 'colour' holds"):
        ArraySource(frame[["width"]], frame["colour"])


def test_dataframe_of_truth_values_is_uint8_and_keeps_its_names() -> None:
    source = ArraySource(pd.DataFrame({"a": [True, False], "b": [True, True]}), pd.Series([1.5, 2.5]))
    assert source.columns == ["a", "b"]
    assert source.rows(np.arange(2))[0].dtype == np.uint8
    assert source.y.tolist() == [1.5, 2.5]


def test_nullable_and_mixed_columns_become_float64() -> None:
    frame = pd.DataFrame({"a": pd.array([1, None], "Int64"), "b": [True, False], "c": [0.5, 1.5]})
    x, _ = ArraySource(frame).rows(np.arange(2))
    assert x.dtype == np.float64
    np.testing.assert_array_equal(x, [[1, 1, 0.5], [np.nan, 0, 1.5]])


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.array([["a"], ["b"]]), None, "x must hold real numbers, got <U1"),
        (np.array([[None]]), None, "x must hold real numbers, got object"),
        (np.array([[1j]]), None, "x must hold real numbers, got complex128"),
        (np.eye(2, dtype=np.longdouble), None, "x must hold real numbers"),
        (np.eye(2), np.array(["a", "b"]), "y must hold real numbers, got <U1"),
        (np.arange(3), None, r"x must be \[N, D\]"),
        (np.zeros((0, 3)), None, "at least one row"),
        (np.zeros((3, 0)), None, r"x must be \[N, D\]"),
        (np.eye(3), np.arange(2), "x has 3 rows but y has 2"),
        (np.eye(3), np.zeros((3, 1, 1)), r"y must be \[N\] or \[N, P\]"),
        (np.eye(3), 1.0, r"y must be \[N\] or \[N, P\]"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(x: np.ndarray, y: np.ndarray | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ArraySource(x, y)


def test_without_targets_there_are_none_per_row() -> None:
    assert ArraySource(np.eye(3)).rows(np.arange(2))[1].shape == (2, 0)


@given(st.lists(st.integers(0, 9), min_size=1), st.data())
def test_subset_of_subset_gives_the_rows_it_names(chosen: list[int], data: st.DataObject) -> None:
    source = ArraySource(np.arange(20).reshape(10, 2), np.arange(10))
    subset = Subset(source, np.array(chosen))
    inner = data.draw(st.lists(st.integers(0, len(chosen) - 1), min_size=1))
    x, y = Subset(subset, np.array(inner)).rows(np.arange(len(inner)))
    assert y.tolist() == [chosen[i] for i in inner]
    assert (x == source.x[y]).all()


@pytest.mark.parametrize("indices", [[], [3], [-1], [0.5], [[0]], [True, False, True]])
def test_subset_refuses_rows_that_do_not_exist(indices: list) -> None:
    with pytest.raises(ValueError, match="indices must be"):
        Subset(ArraySource(np.eye(3)), np.array(indices))


@given(st.integers(1, 10**7), st.integers(1, 1000))
def test_evenly_spaced_rows_are_different_and_reach_both_ends(length: int, count: int) -> None:
    rows = evenly_spaced(length, count)
    assert len(rows) == min(length, count)
    assert (np.diff(rows) > 0).all()
    assert rows[0] == 0
    assert rows[-1] == length - 1 or count == 1


def test_fingerprint_is_the_same_for_the_same_numbers_wherever_they_are(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(3000, 4)), np.arange(3000)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert fingerprint(ArraySource(x, y)) == fingerprint(ArraySource(mapped, y))
    assert fingerprint(ArraySource(x, y)) == fingerprint(ArraySource(x.astype(">f8"), y))


@pytest.mark.parametrize("change", ["first", "last", "one pixel", "one label", "dtype", "order", "length"])
def test_fingerprint_differs_for_other_data(change: str) -> None:
    x, y = np.random.default_rng(0).normal(size=(5000, 4)).astype(np.float32), np.arange(5000)
    other, targets = x.copy(), y.copy()
    if change == "first":
        other[0, 0] += 1
    elif change == "last":
        other[-1, -1] += 1
    elif change == "one pixel":
        other[4321, 2] += 1
    elif change == "one label":
        targets[1234] += 1
    elif change == "dtype":
        other = x.astype(np.float64)
    elif change == "order":
        other = x[::-1]
    else:
        other, targets = x[:-1], y[:-1]
    assert fingerprint(ArraySource(x, y)) != fingerprint(ArraySource(other, targets))


@given(st.integers(1, 61))
def test_fingerprint_does_not_depend_on_how_many_rows_are_read_at_a_time(rows: int) -> None:
    source = ArraySource(np.arange(120.0).reshape(60, 2)[:, ::-1], np.arange(120).reshape(60, 2))
    parts = [hashlib.sha256(part.tobytes()).digest() for part in source.rows(np.arange(60))]
    whole = hashlib.sha256(b"".join(parts)).hexdigest()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "BLOCK_NUMBERS", 2 * rows)
        assert fingerprint(source) == {
            "rows": 60,
            "features": 2,
            "x_dtype": "float64",
            "y_dtype": "int64",
            "y_shape": [2],
            "sha256": whole,
        }


def test_any_object_with_length_and_rows_is_a_source() -> None:
    class Generated:
        def __len__(self) -> int:
            return 10**9

        def rows(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return numbers[:, None] % 256, numbers % 2

    source: Source = Generated()
    assert [part.tolist() for part in Subset(source, np.array([7, 300])).rows(np.array([1]))] == [[[44]], [0]]
