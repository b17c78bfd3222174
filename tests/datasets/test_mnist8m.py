"""MNIST8M: the rule by hand, rows that stay the same for ever, and published files in both formats."""

import bz2
import hashlib
import time
from pathlib import Path

import numpy as np
import pytest

from autogp.data import fingerprint
from autogp.datasets import Dataset, DeformedDigits, load_mnist8m, mnist8m
from autogp.datasets.mnist8m import SHIFTS, deformation, random_fields
from autogp.experiments.run import hold_out
from tests.datasets.test_mnist import write_idx, write_mnist


@pytest.fixture(scope="module")
def digits() -> DeformedDigits:
    rng = np.random.default_rng(0)
    blots = rng.integers(0, 256, size=(50, 28, 28), dtype=np.uint8)
    blots[:, :6] = blots[:, -6:] = blots[:, :, :6] = blots[:, :, -6:] = 0  # as in MNIST the edges are empty
    return DeformedDigits(blots.reshape(50, 784), np.arange(50) % 10)


def test_fields_sign_and_shift_follow_the_publishers_rule() -> None:
    # By hand: 131071 * 70000 = 9174970000, less 2 * 2^32 is 585035408, which is 1010 mod 1521;
    # 1010 + 1 + 140000 = 141011, which is 987 mod 1522; 1997 is odd; 1010 is 2 mod 9: left.
    assert [int(part[0]) for part in deformation(np.array([70_000]))] == [1010, 987, -1, 2]
    # The last row: 131071 * 8109999 = 1062985678929, less 247 * 2^32 is 2128756817, which is 200 mod 1521;
    # 200 + 1 + 16219998 = 16220199, which is 245 mod 1522; 445 is odd; 200 is 2 mod 9.
    assert [int(part[0]) for part in deformation(np.array([8_109_999]))] == [200, 245, -1, 2]


def test_a_row_is_its_formula(digits: DeformedDigits) -> None:
    down, across = (part.astype(np.float64) for part in digits.tangents)
    for row in [50, 51, 777, 3000, 6749]:
        k1, k2, sign, shift = (int(part[0]) for part in deformation(np.array([10_000 + row])))
        a, fields = row % 50, digits.fields / 32
        moved = digits.images[a] + sign * (fields[k1] * down[a] - fields[k2] * across[a])
        image = np.floor(moved.clip(0, 255)).reshape(28, 28)
        padded = np.pad(image, 1)
        rows, columns = SHIFTS[shift]
        expected = padded[1 + rows : 29 + rows, 1 + columns : 29 + columns]
        x, y = digits.rows(np.array([row]))
        np.testing.assert_array_equal(x.reshape(28, 28), expected)
        assert y[0] == digits.labels[a]


def test_shifts_are_up_down_left_right_diagonals_and_none() -> None:
    digits = DeformedDigits(np.zeros((1, 784), np.uint8), np.zeros(1), variants=5000)
    digits.images[0, 14 * 28 + 14] = 100  # after the tangents, which stay 0: rows are shifts of this pixel alone
    rows = np.arange(1, 5000)
    x, _ = digits.rows(rows)
    shift = deformation(rows + 10_000)[3]
    moves = [(-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1), (0, 0)]
    for number, (down, across) in enumerate(moves):
        place = (14 + down) * 28 + 14 + across
        assert (shift == number).any()
        assert (x[shift == number].argmax(1) == place).all()
    assert (x.sum(1) == 100).all()


def test_the_first_rows_are_the_images_themselves(digits: DeformedDigits) -> None:
    x, y = digits.rows(np.arange(50))
    np.testing.assert_array_equal(x, digits.images)
    np.testing.assert_array_equal(y, digits.labels)


def test_a_row_does_not_depend_on_what_is_read_beside_it(digits: DeformedDigits) -> None:
    order = np.random.default_rng(1).permutation(len(digits))
    together, _ = digits.rows(order)
    for number in range(0, len(order), 499):
        np.testing.assert_array_equal(digits.rows(order[number : number + 1])[0][0], together[number])


def test_rows_are_the_same_for_ever(digits: DeformedDigits) -> None:
    assert np.square(random_fields() / 32).mean() == pytest.approx(1.0, abs=2e-3)
    sums = [hashlib.sha256(random_fields().astype("<i2").tobytes()).hexdigest(), fingerprint(digits)["sha256"]]
    assert [each[:16] for each in sums] == ["469845b594bb1603", "c480931f16a86735"]


def test_deformations_are_of_a_pixel_or_two() -> None:
    ramp = np.tile(np.arange(28, dtype=np.uint8) * 4, (28, 1)).reshape(1, 784)  # 4 grey levels a pixel
    digits = DeformedDigits(ramp, np.zeros(1), variants=2000)
    x = digits.rows(np.arange(1, 2000))[0].reshape(-1, 28, 28).astype(float)
    unshifted = x[deformation(np.arange(1, 2000) + 10_000)[3] == 8][:, 8:-8, 8:-8] + 0.5  # it was truncated
    moved = (unshifted - ramp.reshape(28, 28)[8:-8, 8:-8]) / 4
    assert np.sqrt(np.square(moved).mean()) == pytest.approx(1.0, abs=0.15)


def test_more_than_50_000_rows_a_second(digits: DeformedDigits) -> None:
    chosen = [np.random.default_rng(seed).integers(0, len(digits), 1000) for seed in range(5)]
    seconds = []
    for rows in chosen:
        started = time.process_time()
        digits.rows(rows)
        seconds.append(time.process_time() - started)
    assert 1000 / min(seconds) > 50_000


def test_without_the_published_files_nothing_is_stored(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    data = load_mnist8m(tmp_path)
    assert data.name == "mnist8m-generated"
    assert len(data.x_train) == len(data.y_train) == 6 * 135
    assert data.x_test.shape == (4, 784)
    np.testing.assert_array_equal(data.x_train.rows(np.arange(6 * 135))[1], data.y_train)
    assert sorted(tmp_path.rglob("*")) == before
    few = load_mnist8m(tmp_path, variants=3)
    assert few.variants == 3
    np.testing.assert_array_equal(few.x_train.rows(np.arange(18))[0], data.x_train.rows(np.arange(18))[0])
    np.testing.assert_array_equal(few.y_train, data.y_train[:18])
    with pytest.raises(ValueError, match="variants must be from 1 to 135, got 136"):
        load_mnist8m(tmp_path, variants=136)


def test_the_published_idx_files_are_mapped(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    x, y = published(tmp_path)
    write_idx(tmp_path / "mnist8m" / mnist8m.IMAGES, x)
    write_idx(tmp_path / "mnist8m" / mnist8m.LABELS, y)
    data = load_mnist8m(tmp_path)
    assert data.name == "mnist8m"
    np.testing.assert_array_equal(data.x_train.rows(np.arange(len(x)))[0], x.reshape(-1, 784))
    np.testing.assert_array_equal(data.y_train, y)
    few = load_mnist8m(tmp_path, variants=2)
    np.testing.assert_array_equal(few.x_train.rows(np.arange(12))[0], x[:12].reshape(-1, 784))
    assert len(few.x_train) == len(few.y_train) == 12


@pytest.mark.parametrize("name", ["mnist8m", "mnist8m.scale", "mnist8m.bz2"])
def test_libsvm_text_is_converted_piece_by_piece(tmp_path: Path, name: str, monkeypatch) -> None:
    monkeypatch.setattr(mnist8m, "TEXT_BYTES", 20_000)  # a few rows
    write_mnist(tmp_path)
    x, y = published(tmp_path)
    scale = 255 if name.endswith(".scale") else 1
    lines = [
        " ".join([str(label), *(f"{j + 1}:{row[j] / scale:.6g}" for j in np.flatnonzero(row))])
        for label, row in zip(y, x.reshape(-1, 784), strict=True)
    ]
    text = ("\n".join(lines) + "\n").encode()
    (tmp_path / "mnist8m" / name).write_bytes(bz2.compress(text) if name.endswith("bz2") else text)
    data = load_mnist8m(tmp_path)
    np.testing.assert_array_equal(data.x_train.rows(np.arange(len(x)))[0], x.reshape(-1, 784))
    np.testing.assert_array_equal(data.y_train, y)


def test_a_text_that_is_something_else_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    published(tmp_path)
    (tmp_path / "mnist8m" / "mnist8m").write_text("3 1:255\n12 4:9\n")
    with pytest.raises(ValueError, match=r"mnist8m is not LIBSVM's text .*lines from 1 on.*labels from 0 to 9"):
        load_mnist8m(tmp_path)
    assert [path.name for path in (tmp_path / "mnist8m").iterdir()] == ["mnist8m"]


def test_published_files_of_another_size_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    x, y = published(tmp_path)
    write_idx(tmp_path / "mnist8m" / mnist8m.IMAGES, x[:-1])
    write_idx(tmp_path / "mnist8m" / mnist8m.LABELS, y[:-1])
    with pytest.raises(ValueError, match="should hold 810 images"):
        load_mnist8m(tmp_path)


def published(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    (folder / "mnist8m").mkdir()
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, size=(6 * 135, 28, 28), dtype=np.uint8) * (rng.random((6 * 135, 28, 28)) < 0.2)
    return x.astype(np.uint8), rng.integers(10, size=6 * 135, dtype=np.uint8)


def test_validation_rows_have_no_variant_among_the_rows_to_learn_from() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, size=(20, 784), dtype=np.uint8), np.arange(20)
    digits = DeformedDigits(x, y, variants=3)
    data = Dataset("digits", digits, np.tile(y, 3), x[:2], y[:2], variants=3)
    held = hold_out(data, seed=0)
    np.testing.assert_array_equal(held.x_test, x[held.y_test])
    assert len(held.y_test) == 4
    assert len(held.x_train) == len(held.y_train) == 48
    assert not set(held.y_test) & set(held.y_train)
    np.testing.assert_array_equal(held.x_train.rows(np.arange(48))[1], held.y_train)
