"""RECTANGLES-IMAGE: the rules that made-up images obey, and the published files' layout."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from autogp.datasets import data_folder, load_rectangles
from autogp.datasets.rectangles import draw_rectangles


def shaded_photographs() -> list[np.ndarray]:
    """Photographs whose pixels tell which one they are: dark noise, grey noise, light noise."""
    rng = np.random.default_rng(0)
    return [(start + rng.integers(80, size=(40, 50))).astype(np.uint8) for start in (0, 85, 170)]


def boxes(images: np.ndarray) -> tuple[np.ndarray, ...]:
    """Top, bottom, left, right of each rectangle, where the photographs are those above.

    The rectangle has at most three quarters of the image and never its whole, so a corner belongs to it in some
    images: it is told by its shape, not by its place.
    """
    owner = images.reshape(-1, 28, 28) // 85  # [N, 28, 28]
    found = []
    for image in owner:
        candidates = []
        for value in np.unique(image):
            rows, columns = np.flatnonzero((image == value).any(1)), np.flatnonzero((image == value).any(0))
            box = (rows[0], rows[-1] + 1, columns[0], columns[-1] + 1)
            inside = image[box[0] : box[1], box[2] : box[3]]
            if (inside == value).all() and inside.size < image.size:
                candidates.append(box)
        found.append(candidates[0] if len(candidates) == 1 else (0, 0, 0, 0))  # two: the image is cut in two halves
    return tuple(np.array(found).T)


def test_rectangles_obey_the_rules_and_labels_say_which_side_is_longer() -> None:
    images, labels = draw_rectangles(shaded_photographs(), range(2000))
    assert images.shape == (2000, 784)
    assert images.dtype == np.uint8
    top, bottom, left, right = boxes(images)
    seen = bottom > 0
    assert seen.mean() > 0.9
    width, height = (right - left)[seen], (bottom - top)[seen]
    assert min(width.min(), height.min()) == 10
    assert np.abs(width - height).min() == 5
    assert (width * height).min() >= 784 / 4
    assert (width * height).max() <= 784 * 3 / 4
    np.testing.assert_array_equal(labels[seen], width > height)
    assert abs(labels.mean() - 0.5) < 5 * 0.5 / np.sqrt(2000)
    assert left.max() == 18  # the furthest place of the narrowest
    assert top.max() == 18


def test_rectangle_and_background_come_from_different_photographs() -> None:
    images, _ = draw_rectangles(shaded_photographs(), range(300))
    assert all(len(np.unique(image // 85)) == 2 for image in images)


def test_patches_are_pieces_of_the_photographs_and_never_flat_ones() -> None:
    rng = np.random.default_rng(0)
    photographs = [np.zeros((60, 60), np.uint8), np.full((60, 60), 200, np.uint8)]
    for photograph in photographs:  # flat but for one corner
        photograph[-20:, -20:] += rng.integers(50, size=(20, 20)).astype(np.uint8)
    images, _ = draw_rectangles(photographs, range(200))
    flat = [len(np.unique(image)) <= 3 for image in images]
    assert not any(flat)
    gradient = np.arange(60, dtype=np.uint8)[:, None] * 4 + np.zeros((60, 60), np.uint8)
    images, _ = draw_rectangles([gradient, 255 - gradient], range(50))
    steps = np.diff(images.reshape(-1, 28, 28).astype(int), axis=1)
    assert np.isin(np.abs(steps), 4).mean() > 0.8  # all but at the rectangle's edges


def test_an_image_depends_on_seed_and_number_alone() -> None:
    photographs = shaded_photographs()
    images, labels = draw_rectangles(photographs, range(100), seed=3)
    some, some_labels = draw_rectangles(photographs, range(40, 47), seed=3)
    np.testing.assert_array_equal(some, images[40:47])
    np.testing.assert_array_equal(some_labels, labels[40:47])
    others, _ = draw_rectangles(photographs, range(100), seed=4)
    assert (others != images).any(axis=1).all()


def test_the_same_images_for_ever() -> None:
    ramp = np.arange(40 * 40, dtype=np.uint32).reshape(40, 40)
    photographs = [(ramp * step % 251).astype(np.uint8) for step in (7, 11, 13)]
    images, labels = draw_rectangles(photographs, range(20), seed=5)
    found = hashlib.sha256(images.tobytes() + labels.astype("<i8").tobytes()).hexdigest()
    assert found == "a8f5f4a6b6096405ace1ac1b86924dbedf71b6b1862f0972db8b7448829797c9"


@pytest.mark.parametrize(
    ("photographs", "numbers", "message"),
    [
        ([np.eye(40, dtype=np.uint8) * 255], range(3), "two photographs"),
        ([np.eye(40, dtype=np.uint8) * 255, np.eye(20, dtype=np.uint8)], range(3), "photograph 1 must be uint8, of 28"),
        ([np.eye(40), np.eye(40)], range(3), "photograph 0 must be uint8"),
        ([np.zeros((40, 40), np.uint8)] * 2, range(3), "photograph 0 is flat"),
        ([np.eye(40, dtype=np.uint8) * 255] * 2, range(0, 6, 2), "step 1"),
    ],
)
def test_unusable_photographs_and_ranges_are_named(photographs, numbers, message) -> None:
    with pytest.raises(ValueError, match=message):
        draw_rectangles(photographs, numbers)


def test_published_files_are_preferred(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "rectangles").mkdir()
    tables = {}
    for part, rows in (("train", 5), ("test", 3)):
        table = np.column_stack([rng.random((rows, 784)).astype(np.float32), rng.integers(2, size=rows)])
        np.savetxt(tmp_path / "rectangles" / f"rectangles_im_{part}.amat", table, fmt="   %.7e")
        tables[part] = table
    data = load_rectangles(tmp_path)
    assert data.x_train.dtype == np.float32
    np.testing.assert_allclose(data.x_train, tables["train"][:, :-1], rtol=1e-6)
    np.testing.assert_array_equal(data.y_train, tables["train"][:, -1])
    assert data.x_test.shape == (3, 784)


def test_published_files_of_another_layout_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rectangles").mkdir()
    for part in ("train", "test"):
        np.savetxt(tmp_path / "rectangles" / f"rectangles_im_{part}.amat", np.zeros((2, 9)))
    with pytest.raises(ValueError, match=r"rectangles_im_train\.amat should have 784 values and a label"):
        load_rectangles(tmp_path)
    (tmp_path / "rectangles" / "rectangles_im_train.amat").write_text("1 2 3\n1 2\n")
    with pytest.raises(ValueError, match=r"rectangles_im_train\.amat should have 785 numbers in each line"):
        load_rectangles(tmp_path)


def test_without_any_file_both_ways_are_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"rectangles_im_train\.amat.*http.*gray20\.npz.*AUTOGP_DATA"):
        load_rectangles(tmp_path)


def test_the_real_photographs() -> None:
    path = data_folder(None) / "natural_images" / "gray20.npz"
    if not path.is_file():
        pytest.skip(f"there is no {path}")
    expected = "0a5fc3e38c66ba77779459514bd5d15c94173b5039cd7600b1f006c47ce79a58"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == expected
    data = load_rectangles()
    assert data.x_train.shape == (12_000, 784)
    assert data.x_test.shape == (50_000, 784)
    if data.x_train.dtype == np.uint8:  # drawn, not published
        assert data.x_train.reshape(-1, 784).std(axis=1).min() > 5
        assert abs(data.y_test.mean() - 0.5) < 5 * 0.5 / np.sqrt(50_000)
