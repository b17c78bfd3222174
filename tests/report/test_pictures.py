"""Rows are taken for images where they are images, and are shown the right way up."""

import base64
import io

import numpy as np
import pytest
from matplotlib.image import imread
from sklearn.datasets import load_digits

from autogp.data import ArraySource
from autogp.report.pictures import find_image_shape, picture


def shape_of(x: np.ndarray, given=None):
    return find_image_shape(ArraySource(x), None, given)


def smooth(count: int, *shape: int) -> np.ndarray:
    """Images whose neighbours agree."""
    noise = np.random.default_rng(0).normal(size=(count, *shape))
    for axis in (-1, -2):
        for _ in range(3):
            noise = noise + np.roll(noise, 1, axis)
    return noise.reshape(count, -1)


def test_digits_are_images_and_with_shuffled_pixels_they_are_not():
    digits, _ = load_digits(return_X_y=True)
    assert shape_of(digits) == (8, 8)
    assert shape_of(np.random.default_rng(0).permutation(digits, axis=1)) is None


@pytest.mark.parametrize("shape", [(28, 28), (3, 32, 32)])
def test_square_images_of_one_and_three_channels_are_found(shape):
    assert shape_of(smooth(200, *shape)) == shape


def test_other_tables_are_no_images():
    rng = np.random.default_rng(0)
    assert shape_of(rng.normal(size=(200, 64))) is None  # a square number of columns, and nothing else
    assert shape_of(rng.normal(size=(200, 1)) + 0.1 * rng.normal(size=(200, 100))) is None  # all go together
    assert shape_of(smooth(200, 8, 9)) is None
    assert shape_of(np.ones((200, 64))) is None


def test_the_user_knows_better():
    x = np.zeros((5, 12))
    assert shape_of(x, (3, 4)) == (3, 4)
    assert shape_of(x, (3, 2, 2)) == (3, 2, 2)
    assert shape_of(x, [2, 2, 3]) == (2, 2, 3)


@pytest.mark.parametrize("shape", [(2, 4), (3, 2, 4), (2, 4, 3)])
def test_pixels_come_back_from_a_picture(shape):
    x = np.random.default_rng(0).integers(0, 256, size=shape)
    address = picture(x.reshape(-1), shape, (0, 255))
    found = imread(io.BytesIO(base64.b64decode(address.partition(",")[2])), format="png")[..., :3] * 255
    expected = {2: x[..., None], 3: np.moveaxis(x, 0, -1) if shape[0] == 3 else x}[len(shape)]
    expected = np.broadcast_to(expected, (2, 4, 3))
    np.testing.assert_allclose(found, expected, atol=0.01)


def test_values_beyond_the_limits_are_black_and_white():
    address = picture(np.array([-5.0, 0.5, 9.0, 1.0]), (2, 2), (0, 1))
    found = imread(io.BytesIO(base64.b64decode(address.partition(",")[2])), format="png")[..., 0]
    np.testing.assert_allclose(found, [[0, 0.5], [1, 1]], atol=0.003)
