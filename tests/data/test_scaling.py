"""Scaled columns have zero mean and unit variance, lose no digits, and come back."""

import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autogp.data import ArraySource, InputScaler, TargetScaler, summarise


def rows(offset: float = 0.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(500, 3)) * [1.0, 100.0, 0.01] + offset


def test_standard_gives_every_column_zero_mean_and_unit_variance() -> None:
    x = rows(5.0)
    scaled = InputScaler.from_summary(summarise(ArraySource(x)))(torch.from_numpy(x), torch.float64)
    torch.testing.assert_close(scaled.mean(0), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(scaled.std(0, correction=0), torch.ones(3, dtype=torch.float64))


def test_global_divides_all_columns_by_one_number() -> None:
    x = rows(5.0)
    scaler = InputScaler.from_summary(summarise(ArraySource(x)), "global")
    assert len(set(scaler.scale.tolist())) == 1
    scaled = scaler(torch.from_numpy(x), torch.float64)
    torch.testing.assert_close(scaled.mean(0), torch.zeros(3, dtype=torch.float64))
    assert scaled.var(0, correction=0).mean().item() == pytest.approx(1.0)


def test_none_leaves_inputs_as_they_are() -> None:
    x = torch.from_numpy(rows(5.0))
    assert torch.equal(InputScaler.from_summary(summarise(ArraySource(x)), "none")(x, torch.float64), x)


@pytest.mark.parametrize("mode", ["standard", "global"])
@pytest.mark.parametrize("value", [0.0, 0.1, 1e8 + 0.1])
def test_constant_columns_become_exactly_zero(mode, value: float) -> None:
    x = np.full((1001, 2), value)
    scaler = InputScaler.from_summary(summarise(ArraySource(x), chunk_rows=10), mode)
    assert scaler.scale.tolist() == [1.0, 1.0]
    assert torch.equal(scaler(torch.from_numpy(x), torch.float64), torch.zeros(1001, 2, dtype=torch.float64))


def test_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="mode must be 'standard', 'global' or 'none', got 'minmax'"):
        InputScaler.from_summary(summarise(ArraySource(np.eye(2))), "minmax")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [np.float64, np.int64])
def test_large_offsets_do_not_swallow_digits(kind: type) -> None:
    x = (np.random.default_rng(0).normal(size=(500, 2)) * 100 + 1e9).astype(kind)
    scaled = InputScaler.from_summary(summarise(ArraySource(x)))(torch.from_numpy(x), torch.float32)
    exact = (x - x.mean(axis=0)) / x.std(axis=0)
    np.testing.assert_allclose(scaled.numpy(), exact, rtol=1e-6, atol=1e-6)


@given(st.sampled_from(["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]), st.booleans())
def test_every_stored_dtype_scales_alike(kind: str, wide: bool) -> None:
    dtype = torch.float64 if wide else torch.float32
    x = np.random.default_rng(0).integers(0, 100, (20, 3)).astype(kind)
    before = x.copy()
    scaled = InputScaler.from_summary(summarise(ArraySource(x)))(torch.from_numpy(x), dtype)
    exact = x.astype(np.float64)
    assert scaled.dtype == dtype
    np.testing.assert_allclose(scaled.numpy(), (exact - exact.mean(0)) / exact.std(0), rtol=1e-5, atol=1e-6)
    assert (x == before).all()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """On a busy machine, threads that wait for each other would be all that is measured."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_a_batch_of_images_is_scaled_within_milliseconds() -> None:
    x = torch.randint(0, 256, (1000, 784), dtype=torch.uint8)
    scaler = InputScaler(torch.full((784,), 33.0), torch.full((784,), 78.0))
    durations = []
    for _ in range(50):
        start = time.perf_counter()
        scaler(x, torch.float32)
        durations.append(time.perf_counter() - start)
    # About 0.3 ms; the bound leaves room for a busy machine.
    assert min(durations) < 3e-3


def test_buffers_are_saved_and_restored_in_float64() -> None:
    scaler = InputScaler.from_summary(summarise(ArraySource(rows(1e8))))
    other = InputScaler(torch.zeros(3), torch.ones(3))
    other.load_state_dict(scaler.state_dict())
    assert other.shift.dtype == torch.float64
    assert torch.equal(other.shift, scaler.shift)
    assert torch.equal(other.scale, scaler.scale)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e3), st.booleans())
def test_target_mean_and_variance_come_back(offset: float, spread: float, flat: bool) -> None:
    y = np.random.default_rng(0).normal(size=(200, 2)) * spread + offset
    y = y[:, 0] if flat else y
    scaler = TargetScaler.from_summary(summarise(ArraySource(np.zeros((200, 1)), y)))
    scaled = scaler(torch.from_numpy(y), torch.float64)
    assert scaled.shape == y.shape
    np.testing.assert_allclose(scaler.inverse_mean(scaled).numpy(), y, rtol=1e-9, atol=1e-9)
    variance = scaler.inverse_variance(scaled.var(0, correction=0))
    np.testing.assert_allclose(variance.numpy().ravel(), y.var(axis=0).ravel(), rtol=1e-8)


def test_missing_targets_stay_missing() -> None:
    y = np.array([[1.0, np.nan], [3.0, 4.0]])
    scaler = TargetScaler.from_summary(summarise(ArraySource(np.eye(2), y), allow_missing_targets=True))
    scaled = scaler(torch.from_numpy(y), torch.float64)
    assert scaled.isnan().tolist() == [[False, True], [False, False]]
    # The second target is constant as far as it is known: scale 1.
    assert scaled[:, 0].tolist() == [-1.0, 1.0]
    assert scaled[1, 1].item() == 0.0


def test_whole_number_targets_can_be_scaled() -> None:
    y = np.array([3, 5])
    scaler = TargetScaler.from_summary(summarise(ArraySource(np.eye(2), y)))
    assert scaler(torch.from_numpy(y)).tolist() == [-1.0, 1.0]


def test_scaling_targets_needs_targets() -> None:
    with pytest.raises(ValueError, match="no targets"):
        TargetScaler.from_summary(summarise(ArraySource(np.eye(2))))


def test_shift_and_scale_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="same length"):
        InputScaler(torch.zeros(2), torch.ones(3))


@pytest.mark.parametrize("shape", [(5, 1), (5, 4), (3,)])
def test_other_numbers_of_columns_are_refused(shape: tuple[int, ...]) -> None:
    for scaler in (InputScaler(torch.zeros(3), torch.ones(3)), TargetScaler(torch.zeros(3), torch.ones(3))):
        with pytest.raises(ValueError, match=f"expected 3 columns, got {1 if len(shape) == 1 else shape[1]}"):
            scaler(torch.zeros(shape))
