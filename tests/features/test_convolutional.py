"""Convolutional kernel features: the formulas by plain loops, what they approximate, and what `fit` promises."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from autogp import GPClassifier, load_model, persistence
from autogp.data import ArraySource
from autogp.features import Convolutional, PatchLayer, PrincipalComponents
from autogp.features.patches import inverse_root, patches_of, pooling_weights, spherical_kmeans
from autogp.features.whitening import Whitening, inverse_root_covariance

LAYERS = [(12, 3, 2), (10, 2, 2)]


def some_images(count: int = 60, shape: tuple[int, ...] = (12, 11, 3), seed: int = 0) -> np.ndarray:
    """Smooth random images, uint8."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(count, shape[0] + 2, shape[1] + 2, *shape[2:]))
    smooth = sum(noise[:, i : i + shape[0], j : j + shape[1]] for i in range(3) for j in range(3))
    return np.clip(128 + 25 * smooth, 0, 255).astype(np.uint8)


def layer_by_loops(x: np.ndarray, layer: PatchLayer) -> np.ndarray:
    """One image [H, W, C] through one layer, written out."""
    size, pool, sigma = layer.size, layer.pool, layer.sigma
    filters, projection = layer.filters.numpy(), layer.projection.numpy()
    places = [length - size + 1 for length in x.shape[:2]]
    phi = np.zeros((*places, len(filters)))
    for i in range(places[0]):
        for j in range(places[1]):
            patch = x[i : i + size, j : j + size].reshape(-1)
            norm = np.linalg.norm(patch)
            if norm > 0:
                phi[i, j] = [norm * math.exp((z @ patch / norm - 1) / sigma**2) for z in filters]
    outputs = [math.ceil(length / pool) for length in places]
    out = np.zeros((*outputs, projection.shape[1]))
    for i in range(outputs[0]):
        for j in range(outputs[1]):
            centre = [
                k * pool + (length - 1 - (count - 1) * pool) / 2
                for k, length, count in zip((i, j), places, outputs, strict=True)
            ]
            total, weights = np.zeros(len(filters)), 0.0
            for a in range(places[0]):
                for b in range(places[1]):
                    if max(abs(a - centre[0]), abs(b - centre[1])) <= pool:
                        deviation = pool / math.sqrt(2)
                        apart = (a - centre[0]) ** 2 + (b - centre[1]) ** 2
                        weight = math.exp(-apart / (2 * deviation**2))
                        total, weights = total + weight * phi[a, b], weights + weight
            out[i, j] = projection.T @ (total / weights)
    return out


def whitened_by_loops(x: np.ndarray, whitening: Whitening) -> np.ndarray:
    """One image [H, W, C], pixel by pixel."""
    reach = 3
    padded = np.pad(x, ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    out = np.zeros_like(x)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            patch = padded[i : i + 2 * reach + 1, j : j + 2 * reach + 1].reshape(-1)
            out[i, j] = whitening.weights.numpy().T @ (patch - whitening.mean.numpy())
    return out


def test_the_forward_pass_equals_the_formulas_by_plain_loops() -> None:
    images = some_images(8)
    features = Convolutional((12, 11, 3), LAYERS, num_components=6, ridge=0.01).fit(images).double()
    assert features.mean is not None
    assert features.directions is not None
    expected = []
    for image in images.astype(np.float64):
        assert isinstance(features.fitted[0], Whitening)
        x = whitened_by_loops(image, features.fitted[0])
        for layer in features.fitted[1:]:
            assert isinstance(layer, PatchLayer)
            x = layer_by_loops(x, layer)
        expected.append((x.reshape(-1) - features.mean.numpy()) @ features.directions.numpy())
    np.testing.assert_allclose(features(torch.from_numpy(images)).numpy(), expected, rtol=1e-9, atol=1e-9)
    in_float32 = Convolutional((12, 11, 3), LAYERS, num_components=6, ridge=0.01).fit(images)(torch.from_numpy(images))
    np.testing.assert_allclose(in_float32.numpy(), expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def test_features_approximate_the_kernel_of_patches_as_filters_grow() -> None:
    rng = np.random.default_rng(0)
    patches = torch.from_numpy(rng.normal(size=(400, 4)) * rng.uniform(0.5, 2, (400, 1)))
    test = torch.from_numpy(rng.normal(size=(50, 4)))
    norm, sigma = test.norm(dim=1), 0.6
    exact = norm[:, None] * norm * torch.exp((test @ test.mT / (norm[:, None] * norm) - 1) / sigma**2)
    errors = []
    for count in (4, 20, 100, 400):
        layer = PatchLayer.of(patches, count, 2, 1, sigma, seed=0).double()
        phi = layer(test.reshape(50, 2, 2, 1)).reshape(50, -1)  # one patch in each image, nothing to pool
        errors.append((phi @ phi.mT - exact).norm().item() / exact.norm().item())
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.2
    assert errors[-1] < 0.02


def test_a_shift_within_the_pooling_changes_little_and_far_less_than_another_image() -> None:
    large = some_images(40, (20, 20), seed=1)
    features = Convolutional((16, 16), [(20, 3, 2), (20, 3, 6)], num_components=30).fit(large[:, 2:18, 2:18])
    here, shifted = (torch.from_numpy(large[:, 2:18, start : start + 16].copy()) for start in (2, 3))
    phi, moved = features(here), features(shifted)
    pixels = here.float().flatten(1)
    ratio = (phi - moved).norm(dim=1) / torch.cdist(phi, phi).median()
    of_pixels = (pixels - shifted.float().flatten(1)).norm(dim=1) / torch.cdist(pixels, pixels).median()
    assert ratio.mean() < 0.6 * of_pixels.mean()


def test_features_forget_the_range_of_pixels_and_how_rows_are_laid_out() -> None:
    images = some_images()
    features = Convolutional((12, 11, 3), LAYERS, num_components=5).fit(images)
    expected = features.transform(images)
    np.testing.assert_array_equal(features.transform(images.reshape(len(images), -1)), expected)
    planes = Convolutional((3, 12, 11), LAYERS, num_components=5).fit(images.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(planes.transform(images.transpose(0, 3, 1, 2).reshape(len(images), -1)), expected)
    floats = Convolutional((12, 11, 3), LAYERS, num_components=5).fit(images / 255.0)
    found = floats.transform(images / 255.0)  # a positive factor of the images is one of the features
    factor = (np.abs(found) * np.abs(expected)).sum() / (expected**2).sum()
    np.testing.assert_allclose(np.abs(found) / factor, np.abs(expected), atol=2e-2 * np.abs(expected).max())


def test_mirror_gives_an_image_and_its_mirror_image_the_mean_of_their_features() -> None:
    images = some_images()
    plain = Convolutional((12, 11, 3), LAYERS, num_components=5).fit(images)
    features = Convolutional((12, 11, 3), LAYERS, num_components=5, mirror=True).fit(images)
    for one, other in zip(plain.fitted, features.fitted, strict=True):  # filters are those of the images as they are
        assert all(torch.equal(*pair) for pair in zip(one.buffers(), other.buffers(), strict=True))
    x = torch.from_numpy(images)
    torch.testing.assert_close(features(x.flip(2)), features(x), rtol=1e-4, atol=1e-4 * features(x).abs().max().item())
    plain.mean, plain.directions = features.mean, features.directions
    torch.testing.assert_close(features(x), (plain(x) + plain(x.flip(2))) / 2, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shape", [(8, 8), (9, 30), (28, 28), (32, 32, 3), (64, 48), (96, 96, 3)])
def test_default_layers_suit_every_size_from_8_x_8(shape: tuple[int, ...]) -> None:
    images = some_images(12, shape)
    found = Convolutional(shape).fit(images).transform(images)
    assert len(found) == 12
    assert np.isfinite(found).all()


def test_fit_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    images = some_images()
    first, again, other = (
        Convolutional((12, 11, 3), LAYERS, 5).fit(images, seed=seed).state_dict() for seed in (3, 3, 4)
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_memory_does_not_grow_with_the_number_of_images() -> None:
    class Many:
        """A million images, of which no more than some thousand are ever asked for at once."""

        most = 0
        images = some_images(50, (12, 12))

        def __len__(self) -> int:
            return 10**6

        def rows(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            Many.most = max(Many.most, len(indices))
            return self.images[indices % 50].reshape(len(indices), -1), np.zeros(len(indices))

    features = Convolutional((12, 12), [(8, 3, 2)], num_components=4)
    assert features.fit(Many()).directions is not None
    assert Many.most <= 1_000
    assert features._chunk_rows() * 10 * 10 * 9 <= 2**20  # of the patches of a forward pass


def test_images_that_never_vary_are_named() -> None:
    with pytest.raises(ValueError, match="never vary"):
        Convolutional((8, 8)).fit(np.full((5, 8, 8), 7))


def test_blank_patches_have_no_features_and_no_nan() -> None:
    filters = torch.eye(9, dtype=torch.float64)
    layer = PatchLayer(3, 1, 0.5, filters, inverse_root(filters, 0.5))
    assert layer(torch.zeros(1, 4, 4, 1, dtype=torch.float64)).abs().max() < 1e-16
    assert layer.float()(torch.zeros(1, 4, 4, 1)).abs().max() < 1e-16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"image_shape": (7, 9)}, "8 x 8 at least"),
        ({"image_shape": (28,)}, r"image_shape must be \(H, W\)"),
        ({"image_shape": (8, 8), "layers": [(4, 9, 1)]}, "9 x 9 fit into 8 x 8"),
        ({"image_shape": (8, 8), "layers": [(4, 3, 3), (4, 3, 1)]}, "layer 1 .* 3 x 3 fit into 2 x 2"),
        ({"image_shape": (8, 8), "num_components": 0}, "num_components must be at least 1"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Convolutional(**arguments)


def test_rows_of_another_size_and_use_before_fit_are_named() -> None:
    features = Convolutional((8, 8))
    with pytest.raises(ValueError, match="call fit"):
        features(torch.zeros(1, 64))
    with pytest.raises(ValueError, match=r"expected images of shape \(8, 8\), got rows of \(63,\)"):
        features.fit(np.zeros((4, 63)))


def test_a_saved_map_and_an_estimator_with_it_come_back_to_the_same_bits(tmp_path) -> None:
    images = some_images(80, (8, 8))
    y = (images.mean((1, 2)) > 128).astype(int)
    features = Convolutional((8, 8), [(8, 3, 2)], num_components=5).fit(images)
    persistence.save(tmp_path / "map", {"map": features}, {})
    loaded = persistence.load(tmp_path / "map").modules["map"]
    assert torch.equal(loaded(torch.from_numpy(images)), features(torch.from_numpy(images)))
    model = GPClassifier(10, features=Convolutional((8, 8), [(8, 3, 2)], num_components=5), max_epochs=3, verbose=False)
    rows = images.reshape(80, -1)
    model.fit(rows, y).save(tmp_path / "model")
    np.testing.assert_array_equal(load_model(tmp_path / "model").predict_proba(rows), model.predict_proba(rows))


def test_scikit_learn_clones_it_unfitted_and_searches_its_parameters() -> None:
    images = some_images(60, (8, 8))
    y = (images.mean((1, 2)) > 128).astype(int)
    features = Convolutional((8, 8), [(8, 3, 2)], num_components=5).fit(images)
    copied: Any = clone(features)
    assert copied.get_params() == features.get_params()
    assert copied.mean is None
    assert len(copied.fitted) == 0
    pipeline = make_pipeline(clone(features), LogisticRegression())
    search = GridSearchCV(pipeline, {"convolutional__num_components": [1, 4]}, cv=2).fit(images, y)
    assert search.predict(images).shape == (60,)
    other: Any = clone(PrincipalComponents(2).fit(images))
    assert other.mean is None
    components = PrincipalComponents(2).fit(ArraySource(images))
    np.testing.assert_array_equal(
        PrincipalComponents(2).fit_transform(images), components(torch.from_numpy(images.reshape(60, -1))).numpy()
    )


def test_whitened_patches_have_covariance_c_over_c_plus_ridge() -> None:
    patches = torch.from_numpy(np.random.default_rng(0).normal(size=(500, 4)) @ np.diag([1.0, 2, 3, 4]) + 5)
    covariance = torch.cov(patches.mT, correction=0)
    ridge = 0.1 * torch.eye(4, dtype=torch.float64) * covariance.diagonal().mean()
    mean, root = inverse_root_covariance(patches, 0.1)
    found = torch.cov(((patches - mean) @ root).mT, correction=0)
    torch.testing.assert_close(found, covariance @ torch.linalg.inv(covariance + ridge), atol=1e-10, rtol=0)


def test_photographs_are_whitened_and_drawings_and_small_images_are_not() -> None:
    photographs = some_images(40, (16, 18))
    drawings = np.where(np.arange(18) < 9, 0, photographs)

    def whitens(images: np.ndarray, **options) -> bool:
        fitted = Convolutional(images.shape[1:], [(8, 3, 2)], num_components=3, **options).fit(images).fitted
        return isinstance(fitted[0], Whitening)

    assert whitens(photographs)
    assert not whitens(drawings)
    assert not whitens(photographs[:, :15])
    assert whitens(drawings, ridge=0.1)
    assert not whitens(photographs, ridge=None)


def test_pixels_of_whitened_images_are_hardly_correlated_with_their_neighbours() -> None:
    images = torch.from_numpy(some_images(200, (16, 16, 3)).astype(np.float64))
    whitened = Whitening.of(patches_of(images, 7).flatten(0, 2), 3, 0.001)(images)
    assert whitened.shape == images.shape

    def neighbours(x: torch.Tensor) -> float:
        inner = x[:, 4:-4, 4:-4]
        pairs = torch.stack([inner[:, :, 1:, 0].flatten(), inner[:, :, :-1, 0].flatten()])
        return abs(torch.corrcoef(pairs)[0, 1].item())

    assert neighbours(images) > 0.6
    assert neighbours(whitened) < 0.15


def test_spherical_kmeans_finds_the_directions_of_clusters() -> None:
    rng = np.random.default_rng(0)
    directions = np.eye(5)[:3]
    patches = directions[rng.integers(0, 3, 300)] * rng.uniform(1, 9, (300, 1)) + 0.01 * rng.normal(size=(300, 5))
    found = spherical_kmeans(torch.from_numpy(patches), 3, seed=1)
    assert np.abs(directions @ found.numpy().T).max(1).min() > 0.999


def test_many_equal_patches_share_one_filter() -> None:
    rng = np.random.default_rng(0)
    blank, others = np.tile(np.ones(6), (900, 1)), rng.normal(size=(100, 6))
    found = spherical_kmeans(torch.from_numpy(np.concatenate([blank, others])), 30, seed=0)
    alike = (found @ found.mT - 2 * torch.eye(30, dtype=torch.float64)).max(1).values
    assert alike.max() < 1 - 1e-6


def test_patches_and_pooling_weights() -> None:
    x = torch.arange(2 * 4 * 5 * 2.0).reshape(2, 4, 5, 2)
    np.testing.assert_array_equal(patches_of(x, 3)[1, 1, 2], x[1, 1:4, 2:5].reshape(-1))
    weights = pooling_weights(11, 3)
    torch.testing.assert_close(weights.sum(1), torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(weights, weights.flip(0, 1))  # the same from both sides


def test_fit_tells_how_many_rows_it_has_read_in_each_pass(monkeypatch):
    """One for the whitening, one for each layer, one for the components."""
    monkeypatch.setattr("autogp.features.convolutional.SAMPLE_ROWS", 30)
    features, told = Convolutional((12, 11, 3), LAYERS), []
    features.watch = lambda done, total: told.append((done, total))
    features.fit(some_images())
    assert told == [(30, 60), (60, 60)] * 4


def test_an_estimator_shows_features_being_learnt(monkeypatch, capsys):
    monkeypatch.setattr("autogp.training.progress.PlainLines.__init__.__defaults__", (None, 0.0))
    GPClassifier(10, features=Convolutional((12, 11, 3), LAYERS), max_epochs=1, verbose=True, random_state=0).fit(
        some_images(), np.arange(60) % 2
    )
    shown = capsys.readouterr().err
    assert "learning features from 60 of 60 rows, 0 s left" in shown
    assert "features of 60 of 60 rows" in shown


def test_features_of_blank_patches_have_squares_that_are_no_subnormal_numbers() -> None:
    """A processor computes with those many times slower."""
    images = np.random.default_rng(0).integers(0, 256, (30, 28, 28), dtype=np.uint8)
    images[:, :14] = 0
    features = Convolutional((28, 28), layers=[(16, 5, 3), (20, 3, 2)], num_components=5).fit(images)
    x = torch.from_numpy(images).float()[..., None]
    for layer in features.fitted:
        x = layer(x)
        squares = x.square()
        assert (squares[squares > 0] >= torch.finfo(torch.float32).tiny).all()
