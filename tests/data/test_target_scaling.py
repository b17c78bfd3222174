"""Scaled targets come back with all their digits, and missing ones stay missing."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autogp.data import ArraySource, TargetScaler, summarise


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e3), st.booleans())
def test_target_mean_and_variance_come_back(offset: float, spread: float, flat: bool) -> None:
    y = np.random.default_rng(0).normal(size=(200, 2)) * spread + offset
    y = y[:, 0] if flat else y
    scaler = TargetScaler.from_summary(summarise(ArraySource(np.zeros((200, 1)), y)))
    scaled = scaler(torch.from_numpy(y))
    assert scaled.shape == y.shape
    np.testing.assert_allclose(scaler.inverse_mean(scaled).numpy(), y, rtol=1e-9, atol=1e-9)
    variance = scaler.inverse_variance(scaled.var(0, correction=0))
    np.testing.assert_allclose(variance.numpy().ravel(), y.var(axis=0).ravel(), rtol=1e-8)


def test_missing_targets_stay_missing() -> None:
    y = np.array([[1.0, np.nan], [3.0, 4.0]])
    scaler = TargetScaler.from_summary(summarise(ArraySource(np.eye(2), y), allow_missing_targets=True))
    scaled = scaler(torch.from_numpy(y))
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
