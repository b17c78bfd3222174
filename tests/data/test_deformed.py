"""Deformed copies of images: what they are, and that they depend on seed and row number alone."""

import numpy as np
import pytest
from scipy.ndimage import map_coordinates

from autogp.data import ArraySource, Deformations, Deformed, Subset
from autogp.data.deformed import hashed, random_fields


def images(count=6, height=9, width=7, channels=None, dtype=np.float64):
    random = np.random.default_rng(0)
    shape = (count, height, width) if channels is None else (count, height, width, channels)
    values = random.uniform(0, 255, shape)
    return ArraySource(values.astype(dtype), np.arange(count))


def test_first_rows_are_the_images_and_copies_keep_their_targets():
    source = images()
    deformed = Deformed(source, (9, 7), Deformations(3), seed=1)
    x, y = deformed.rows(np.arange(len(deformed)))
    assert len(deformed) == 24
    np.testing.assert_array_equal(x[:6], source.rows(np.arange(6))[0])
    np.testing.assert_array_equal(y, np.tile(np.arange(6), 4))
    assert (x[6:] != np.tile(x[:6], (3, 1))).any(1).sum() >= 16


def test_a_copy_is_the_image_at_the_displaced_places():
    """Against scipy's interpolation, with the field and the shift that the row's number gives."""
    source, seed, row = images(), 5, 13
    how = Deformations(3, shift=2, bend=0.7)
    found = Deformed(source, (9, 7), how, seed).rows(np.array([row]))[0].reshape(9, 7)
    drawn = hashed(np.array([row]), seed)[0]
    fields = random_fields((9, 7), seed)
    down, across = np.meshgrid(np.arange(9), np.arange(7), indexing="ij")
    down = down + drawn[2] % 5 - 2 + 0.7 * fields[drawn[0] % 1000]
    across = across + drawn[3] % 5 - 2 + 0.7 * fields[drawn[1] % 1000]
    expected = map_coordinates(source.x[row % 6], [down, across], order=1, mode="nearest")
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_shifts_alone_move_whole_pixels_and_all_nine_occur():
    source = ArraySource(np.arange(25.0).reshape(1, 5, 5), np.zeros(1))
    x, _ = Deformed(source, (5, 5), Deformations(200, shift=1, bend=0.0), seed=0).rows(np.arange(1, 201))
    centres, counts = np.unique(np.rint(x.reshape(-1, 5, 5)[:, 2, 2]), return_counts=True)
    assert sorted(centres) == [6, 7, 8, 11, 12, 13, 16, 17, 18]
    assert counts.min() >= 10  # 22 are expected
    np.testing.assert_allclose(x, np.rint(x), atol=1e-4)


def test_fields_are_smooth_and_displace_by_a_pixel():
    fields = random_fields((28, 28), 0)
    assert np.sqrt(np.square(fields).mean()) == pytest.approx(1, abs=1e-5)
    assert np.square(np.diff(fields, axis=1)).mean() < 0.05  # neighbours go together: pixels do not change places
    edge, middle = np.square(fields[:, 0]).mean(), np.square(fields[:, 14]).mean()
    assert 0.8 < edge / middle < 1.25


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float32])
def test_rows_do_not_depend_on_how_they_are_read(dtype):
    deformed = Deformed(images(dtype=dtype, channels=3), (9, 7, 3), Deformations(2, mirror=True), seed=3)
    everything = deformed.rows(np.arange(18))[0]
    assert everything.dtype == dtype
    shuffled = np.random.default_rng(1).permutation(18)
    np.testing.assert_allclose(deformed.rows(shuffled)[0], everything[shuffled], rtol=1e-6)
    np.testing.assert_allclose(Subset(deformed, np.array([17])).rows(np.zeros(1, int))[0], everything[17:], rtol=1e-6)
    other = Deformed(images(dtype=dtype, channels=3), (9, 7, 3), Deformations(2, mirror=True), seed=4)
    assert (other.rows(np.arange(18))[0][6:] != everything[6:]).any()


def test_planes_move_as_channels_do():
    source = images(height=9, width=9, channels=3)
    planes = ArraySource(np.ascontiguousarray(source.x.transpose(0, 3, 1, 2)), source.y)
    how, rows = Deformations(2), np.arange(18)
    last, _ = Deformed(source, (9, 9, 3), how, 0).rows(rows)
    first, _ = Deformed(planes, (3, 9, 9), how, 0).rows(rows)
    np.testing.assert_allclose(first.reshape(-1, 3, 9, 9).transpose(0, 2, 3, 1), last.reshape(-1, 9, 9, 3), rtol=1e-6)


def test_every_other_copy_is_mirrored():
    source = images()
    how = Deformations(2, shift=0, bend=0.0, mirror=True)
    x = Deformed(source, (9, 7), how, 0).rows(np.arange(18))[0].reshape(3, 6, 9, 7)
    np.testing.assert_allclose(x[1], x[0, :, :, ::-1], rtol=1e-4)
    np.testing.assert_allclose(x[2], x[0], rtol=1e-4)


def test_the_source_keeps_its_pixels():
    class Views:
        x = np.random.default_rng(0).uniform(size=(4, 16))

        def __len__(self):
            return 4

        def rows(self, indices):
            return self.x[indices[0] : indices[-1] + 1], np.zeros(len(indices))

    before = Views.x.copy()
    Deformed(Views(), (4, 4), Deformations(1), 0).rows(np.arange(5, 7))
    np.testing.assert_array_equal(Views.x, before)


@pytest.mark.parametrize(
    "wrong", [{"copies": 0}, {"shift": -1}, {"copies": 1.5}, {"bend": -0.1}, {"image_shape": (4,)}]
)
def test_wrong_deformations_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Deformations(**wrong)
