"""Scaled columns have zero mean and unit variance, and lose no digits."""

import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from autogp.data import ArraySource, TargetScaler, summarise
from autogp.features import Scaling


def rows(offset: float = 0.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(500, 3)) * [1.0, 100.0, 0.01] + offset


def test_standard_gives_every_column_zero_mean_and_unit_variance() -> None:
    x = rows(5.0)
    scaled = Scaling.from_summary(summarise(ArraySource(x)))(torch.from_numpy(x))
    torch.testing.assert_close(scaled.mean(0), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(scaled.std(0, correction=0), torch.ones(3, dtype=torch.float64))


def test_auto_stretches_a_column_to_the_range_that_the_others_share() -> None:
    rng = np.random.default_rng(0)
    x = np.hstack([rng.integers(0, 2, (500, 20)), rng.uniform(0, 0.05, (500, 1))]).astype(float)
    scale = Scaling.from_summary(summarise(ArraySource(x)), "auto").scale
    assert len(set(scale[:20].tolist())) == 1
    assert scale[20].item() == pytest.approx(0.05 * scale[0].item(), rel=0.01)
    pixels = summarise(ArraySource(np.clip(x[:, :20], 0, 1)))
    assert (Scaling.from_summary(pixels, "auto").scale == Scaling.from_summary(pixels, "global").scale).all()
    few = summarise(ArraySource(x[:, 6:]))
    assert (Scaling.from_summary(few, "auto").scale == Scaling.from_summary(few).scale).all()


def test_global_divides_all_columns_by_one_number() -> None:
    x = rows(5.0)
    scaler = Scaling.from_summary(summarise(ArraySource(x)), "global")
    assert len(set(scaler.scale.tolist())) == 1
    scaled = scaler(torch.from_numpy(x))
    torch.testing.assert_close(scaled.mean(0), torch.zeros(3, dtype=torch.float64))
    assert scaled.var(0, correction=0).mean().item() == pytest.approx(1.0)


def test_none_leaves_inputs_as_they_are() -> None:
    x = torch.from_numpy(rows(5.0))
    assert torch.equal(Scaling.from_summary(summarise(ArraySource(x)), "none")(x), x)


@pytest.mark.parametrize("mode", ["standard", "global"])
@pytest.mark.parametrize("value", [0.0, 0.1, 1e8 + 0.1])
def test_constant_columns_become_exactly_zero(mode, value: float) -> None:
    x = np.full((1001, 2), value)
    scaler = Scaling.from_summary(summarise(ArraySource(x), chunk_rows=10), mode)
    assert scaler.scale.tolist() == [1.0, 1.0]
    assert torch.equal(scaler(torch.from_numpy(x)), torch.zeros(1001, 2, dtype=torch.float64))


def test_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="mode must be 'auto', 'standard', 'global' or 'none', got 'minmax'"):
        Scaling.from_summary(summarise(ArraySource(np.eye(2))), "minmax")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [np.float64, np.int64])
def test_large_offsets_do_not_swallow_digits(kind: type) -> None:
    x = (np.random.default_rng(0).normal(size=(500, 2)) * 100 + 1e9).astype(kind)
    scaled = Scaling.from_summary(summarise(ArraySource(x)))(torch.from_numpy(x))
    exact = (x - x.mean(axis=0)) / x.std(axis=0)
    np.testing.assert_allclose(scaled.numpy(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"])
def test_every_stored_dtype_scales_alike(kind: str) -> None:
    x = np.random.default_rng(0).integers(0, 100, (20, 3)).astype(kind)
    before = x.copy()
    scaled = Scaling.from_summary(summarise(ArraySource(x)))(torch.from_numpy(x))
    exact = x.astype(np.float64)
    assert scaled.dtype == (torch.float64 if kind in ("int32", "int64", "float64") else torch.float32)
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
    scaler = Scaling(torch.full((784,), 33.0), torch.full((784,), 78.0))
    durations = []
    for _ in range(50):
        start = time.perf_counter()
        scaler(x)
        durations.append(time.perf_counter() - start)
    # About 0.3 ms; the bound leaves room for a busy machine.
    assert min(durations) < 3e-3


def test_buffers_are_saved_and_restored_in_float64() -> None:
    scaler = Scaling.from_summary(summarise(ArraySource(rows(1e8))))
    other = Scaling(torch.zeros(3), torch.ones(3))
    other.load_state_dict(scaler.state_dict())
    assert other.shift.dtype == torch.float64
    assert torch.equal(other.shift, scaler.shift)
    assert torch.equal(other.scale, scaler.scale)


def test_shift_and_scale_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="same length"):
        Scaling(torch.zeros(2), torch.ones(3))


@pytest.mark.parametrize("shape", [(5, 1), (5, 4), (3,)])
def test_other_numbers_of_columns_are_refused(shape: tuple[int, ...]) -> None:
    for scaler in (Scaling(torch.zeros(3), torch.ones(3)), TargetScaler(torch.zeros(3), torch.ones(3))):
        with pytest.raises(ValueError, match=f"expected 3 columns, got {1 if len(shape) == 1 else shape[1]}"):
            scaler(torch.zeros(shape))
