"""One pass gives exact moments at any offset, and stops at the first number that is not finite."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autogp.data import ArraySource, check_finite, summarise


class Counting:
    """A source that remembers how many rows were read."""

    def __init__(self, source: ArraySource) -> None:
        self.source = source
        self.read = 0

    def __len__(self) -> int:
        return len(self.source)

    def rows(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.read += len(indices)
        return self.source.rows(indices)


@given(st.integers(0, 100), st.integers(1, 60), st.sampled_from([0.0, 1e8, -1e12]), st.integers(1, 61))
def test_moments_merged_by_chunk_equal_those_of_the_whole(seed: int, rows: int, offset: float, chunk: int) -> None:
    x = np.random.default_rng(seed).normal(size=(rows, 3)) * [1.0, 10.0, 0.0] + offset
    found = summarise(ArraySource(x, x), chunk_rows=chunk)
    for moments in (found.x, found.y):
        assert moments is not None
        np.testing.assert_allclose(moments.mean, x.mean(axis=0), rtol=1e-15, atol=1e-14)
        # The offset is taken away first, so that the reference itself keeps its digits.
        np.testing.assert_allclose(moments.std, (x - offset).std(axis=0), rtol=1e-9, atol=1e-15 * abs(offset))
        np.testing.assert_array_equal(moments.minimum, x.min(axis=0))
        np.testing.assert_array_equal(moments.maximum, x.max(axis=0))


def test_standard_deviation_keeps_its_digits_at_an_offset_of_1e8() -> None:
    noise = np.random.default_rng(0).normal(size=(100_000, 2))
    x = noise + 1e8
    found = summarise(ArraySource(x), chunk_rows=1000)
    np.testing.assert_allclose(found.x.std, (x - 1e8).std(axis=0), rtol=1e-12)


def test_float32_is_summed_in_float64() -> None:
    x = np.full((100_000, 1), 0.1, np.float32)
    found = summarise(ArraySource(x))
    np.testing.assert_allclose(found.x.mean, x[0], rtol=1e-14)


def test_class_counts_add_up_over_chunks() -> None:
    y = np.random.default_rng(0).integers(0, 4, 1000).astype(np.uint8)
    found = summarise(ArraySource(np.zeros((1000, 1)), y), chunk_rows=7)
    assert found.class_counts == {k: int((y == k).sum()) for k in range(4)}


@pytest.mark.parametrize("y", [np.zeros(3), np.zeros((3, 2), int), None])
def test_only_a_single_integer_target_has_class_counts(y: np.ndarray | None) -> None:
    assert summarise(ArraySource(np.eye(3), y)).class_counts is None


def test_integers_of_very_many_values_are_not_counted() -> None:
    y = np.arange(20_000)
    found = summarise(ArraySource(np.zeros((20_000, 1)), y), chunk_rows=1000)
    assert found.class_counts is None
    assert found.y is not None
    assert found.y.mean.tolist() == [9999.5]


def test_without_targets_there_are_no_target_moments() -> None:
    assert summarise(ArraySource(np.eye(3))).y is None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("check", [summarise, check_finite])
def test_first_input_that_is_not_finite_is_named(value: float, check) -> None:
    x = np.zeros((100, 5), np.float32)
    x[57, 3] = x[60, 1] = value
    with pytest.raises(ValueError, match=rf"inputs hold {value} in row 57, column 3 \(counted from 0\)"):
        check(ArraySource(x, np.zeros(100)), chunk_rows=10)


@pytest.mark.parametrize("check", [summarise, check_finite])
def test_first_target_that_is_not_finite_is_named(check) -> None:
    y = np.zeros((100, 2))
    y[33, 1] = np.nan
    with pytest.raises(ValueError, match="targets hold nan in row 33, column 1"):
        check(ArraySource(np.zeros((100, 1), int), y), chunk_rows=10)
    with pytest.raises(ValueError, match=r"targets hold nan in row 33 \("):
        check(ArraySource(np.zeros((100, 1), int), y[:, 1]), chunk_rows=10)


def test_missing_inputs_may_be_allowed_but_infinite_ones_never() -> None:
    x = np.array([[1.0, 0.0], [np.nan, 1.0]])
    check_finite(ArraySource(x), allow_missing_inputs=True)
    x[1, 1] = -np.inf
    with pytest.raises(ValueError, match="inputs hold -inf in row 1, column 1"):
        check_finite(ArraySource(x), allow_missing_inputs=True)


def test_missing_targets_may_be_allowed_but_infinite_ones_never() -> None:
    y = np.array([[1.0, np.nan], [3.0, 5.0], [np.nan, np.nan]])
    source = ArraySource(np.zeros((3, 1)), y)
    check_finite(source, allow_missing_targets=True)
    found = summarise(source, allow_missing_targets=True, chunk_rows=1).y
    assert found is not None
    assert found.mean.tolist() == [2.0, 5.0]
    assert found.std.tolist() == [1.0, 0.0]
    y[2, 0] = np.inf
    for check in (summarise, check_finite):
        with pytest.raises(ValueError, match="targets hold inf in row 2, column 0"):
            check(source, allow_missing_targets=True)


def test_a_target_that_is_always_missing_is_refused() -> None:
    y = np.array([[1.0, np.nan], [3.0, np.nan]])
    with pytest.raises(ValueError, match="every target is missing in column 1"):
        summarise(ArraySource(np.zeros((2, 1)), y), allow_missing_targets=True)


def test_integers_are_checked_without_reading_them() -> None:
    source = Counting(ArraySource(np.zeros((1000, 2), np.uint8), np.zeros(1000, int)))
    check_finite(source)
    assert source.read == 1


def test_summary_reads_every_row_once_or_as_many_as_allowed() -> None:
    for limit, expected in ((None, 1000), (100, 100), (5000, 1000)):
        source = Counting(ArraySource(np.arange(2000.0).reshape(1000, 2)))
        found = summarise(source, max_rows=limit, chunk_rows=64)
        assert source.read == found.rows == expected
        assert found.x.minimum.tolist() == [0.0, 1.0]
        assert found.x.maximum.tolist() == [1998.0, 1999.0]


def test_a_source_without_rows_is_refused() -> None:
    class Nothing(Counting):
        def __len__(self) -> int:
            return 0

    with pytest.raises(ValueError, match="no rows"):
        summarise(Nothing(ArraySource(np.eye(1))))


def test_targets_have_to_pass_a_check_of_their_own_and_rows_keep_their_numbers():
    def small(y):
        if (y > 90).any():
            raise ValueError(f"too large in row {int((y > 90).nonzero()[0])}")

    source = ArraySource(np.zeros((100, 2), np.uint8), np.arange(100))
    check_finite(source, chunk_rows=7)
    with pytest.raises(ValueError, match="too large in row 91"):
        check_finite(source, check_targets=small, chunk_rows=7)
