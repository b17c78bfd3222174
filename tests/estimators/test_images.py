"""Images as X: patches by default, pixels on request, and the same predictions however rows are laid out."""

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from autogp import GPClassifier, GPRegressor, load_model
from autogp.cli.app import app
from autogp.data import ArraySource
from autogp.features import Chain, Convolutional
from autogp.report import write_report
from benchmarks.image_defaults import textures


def stripes(count: int = 120, side: int = 10, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Lying or upright stripes at any place, uint8 [N, side, side]: no pixel by itself tells the class."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, count)
    waves = np.sin(1.3 * np.arange(side) + rng.uniform(0, 6.3, (count, 1)))
    images = np.repeat(waves[:, :, None], side, axis=2)
    images = np.where(y[:, None, None] == 1, images.transpose(0, 2, 1), images) + 0.8 * rng.normal(size=images.shape)
    return np.clip(128 + 60 * images, 0, 255).astype(np.uint8), y


def maps_of(model) -> list[str]:
    return [type(each).__name__ for each in model.model_.features.maps]


def quick(**arguments) -> GPClassifier:
    return GPClassifier(20, max_epochs=20, random_state=0, verbose=False, **arguments)


def test_images_get_patches_unasked_and_pixels_with_none(tmp_path) -> None:
    (x, y), (x_test, y_test) = stripes(), stripes(seed=1)
    patches = quick().fit(x, y)
    assert maps_of(patches) == ["Convolutional", "Scaling"]
    pixels = quick(features=None).fit(x, y)
    assert maps_of(pixels) == ["Scaling"]
    assert patches.score(x_test, y_test) > 0.97
    assert patches.log_density(x_test, y_test).mean() > 0.5 * pixels.log_density(x_test, y_test).mean()
    flat = x_test.reshape(len(x_test), -1)
    np.testing.assert_array_equal(patches.predict_proba(flat), patches.predict_proba(x_test))
    patches.save(tmp_path / "model.autogp")
    loaded = load_model(tmp_path / "model.autogp")
    assert loaded.image_shape_ == (10, 10)
    assert loaded.features == "auto"
    np.testing.assert_array_equal(loaded.predict_proba(x_test), patches.predict_proba(x_test))


def test_flat_rows_with_a_map_of_that_shape_are_the_same_model_as_images() -> None:
    x, y = stripes()
    images = quick().fit(x, y)
    flat = quick(features=Convolutional((10, 10))).fit(x.reshape(len(x), -1), y)
    assert flat.image_shape_ == (10, 10)
    np.testing.assert_array_equal(flat.predict_proba(x), images.predict_proba(x))
    source = quick().fit(ArraySource(x, y))
    np.testing.assert_array_equal(source.predict_proba(ArraySource(x)), images.predict_proba(x))


def test_rows_that_are_no_images_keep_their_columns() -> None:
    x, y = stripes()
    assert maps_of(quick().fit(x.reshape(len(x), -1), y)) == ["Scaling"]
    assert maps_of(quick().fit(x[:, :4, :5], y)) == ["Scaling"]  # too small to have patches


def test_colour_images_validation_sets_and_regression() -> None:
    x, y = stripes()
    colour = np.stack([x, 255 - x, x // 2], axis=-1)
    model = quick().fit(colour[:90], y[:90], eval_set=(colour[90:], y[90:]))
    assert model.score(colour[90:], y[90:]) > 0.85
    planes = quick().fit(colour.transpose(0, 3, 1, 2), y)
    assert maps_of(planes) == ["Convolutional", "Scaling"]
    numbers = GPRegressor(20, likelihood="gaussian", max_epochs=20, random_state=0, verbose=False).fit(x / 255, y + 0.0)
    assert maps_of(numbers) == ["Convolutional", "Scaling"]
    assert numbers.score(x / 255, y) > 0.8


def test_features_are_computed_once_for_each_row(monkeypatch) -> None:
    x, y = stripes()
    seen = 0
    forward = Convolutional.forward

    def counting(self: Convolutional, rows: torch.Tensor) -> torch.Tensor:
        nonlocal seen
        seen += len(rows)
        return forward(self, rows)

    monkeypatch.setattr(Convolutional, "forward", counting)
    quick().fit(x, y)
    assert seen == len(x)


def test_callbacks_predict_from_images_while_training() -> None:
    x, y = stripes()
    found = []

    def look(progress) -> None:
        if progress.epoch_end:
            found.append(progress.predictor().predict(torch.from_numpy(x.reshape(len(x), -1))).mean)

    model = GPClassifier(20, max_epochs=3, objective="elbo", verbose=False).fit(x, y, callbacks=[look])
    assert len(found) == 3
    np.testing.assert_allclose(found[-1][:, 0], model.predict_proba(x)[:, 1], atol=0.05)


def test_images_of_another_shape_and_with_nan_are_named() -> None:
    x, y = stripes()
    model = quick().fit(x, y)
    with pytest.raises(ValueError, match=r"images of shape \(5, 20\), but GPClassifier is expecting \(10, 10\)"):
        model.predict(x.reshape(-1, 5, 20))
    broken = x.astype(float)
    broken[3, 2, 1] = np.nan
    with pytest.raises(ValueError, match="NaN, first in row 3, column 21"):
        quick().fit(broken, y)
    assert np.isfinite(model.predict_proba(broken)).all()  # what is missing in a prediction is averaged over


def test_the_command_line_sees_images_in_files_and_by_their_shape(tmp_path) -> None:
    x, y = stripes()
    images, flat, model = tmp_path / "images.npz", tmp_path / "flat.npz", tmp_path / "model.autogp"
    np.savez(images, x=x, y=y)
    np.savez(flat, x=x.reshape(len(x), -1), y=y)
    runner, common = CliRunner(), ["--inducing", "20", "--epochs", "5", "--out", str(model)]
    found = runner.invoke(app, ["fit", str(images), "--target", "y", *common])
    assert found.exit_code == 0, found.output
    assert "100 inputs: images of 10 x 10" in found.output
    first = load_model(model).predict_proba(x)
    found = runner.invoke(app, ["fit", str(flat), "--target", "y", "--image-shape", "10x10", *common])
    assert found.exit_code == 0, found.output
    np.testing.assert_array_equal(load_model(model).predict_proba(x), first)
    for command in (["evaluate", str(model), str(flat)], ["predict", str(model), str(images)]):
        assert runner.invoke(app, command).exit_code == 0
    found = runner.invoke(app, ["fit", str(flat), "--image-shape", "28x28", *common])
    assert "--image-shape 28x28 has 784 pixels, but the rows have 100" in found.output
    assert "write 28x28" in runner.invoke(app, ["fit", str(flat), "--image-shape", "28", *common]).output


def test_a_report_shows_flat_rows_as_the_images_that_the_model_was_told_of(tmp_path) -> None:
    x, y = stripes(side=12)
    wide = x[:, :9]
    model = quick(features=Convolutional((9, 12))).fit(wide.reshape(len(x), -1), y)
    write_report(tmp_path / "report.html", model, wide.reshape(len(x), -1), y)
    assert (tmp_path / "report.html").read_text().count("data:image/png") > 20


def test_chains_may_hold_patches() -> None:
    x, y = stripes()
    model = quick(features=Chain(Convolutional((10, 10), num_components=20))).fit(x, y)
    assert model.score(x, y) > 0.95


@pytest.mark.parametrize("planes", [False, True])
def test_squares_of_pixels_matter_where_the_label_is(planes: bool) -> None:
    """Bars stand or lie in the upper left corner of one channel; elsewhere is noise."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(0, 0.3, (120, 24, 16, 3)), rng.integers(0, 2, 120)
    x[y == 0, 2:8, 4:6, 1] += 4
    x[y == 1, 4:6, 2:8, 1] += 4
    x = np.ascontiguousarray(np.moveaxis(x, 3, 1)) if planes else x
    shape = (3, 24, 16) if planes else (24, 16, 3)
    features = Convolutional(shape, layers=[(16, 3, 3)], num_components=20, ridge=None)
    model = GPClassifier(20, features=features, max_epochs=10, random_state=0).fit(x.reshape(120, -1), y)
    shares = model.feature_importances_
    assert shares.sum() == pytest.approx(1)
    maps = shares.reshape(shape)
    maps = np.moveaxis(maps, 0, 2) if planes else maps
    assert (maps == maps[..., :1]).all()  # the channels of a pixel are exchanged together,
    squares = maps[..., 0].reshape(8, 3, 16, 1)[:, :, :15].reshape(8, 3, 5, 3)
    assert (squares == squares[:, :1, :, :1]).all()  # and so are the pixels of a square
    assert maps[:9, :9].sum() > 0.8


def test_a_list_of_images_is_an_array_of_them_and_sizes_must_agree() -> None:
    x, y = stripes(40)
    model = quick().fit(list(x), y)
    assert model.image_shape_ == x.shape[1:]
    np.testing.assert_array_equal(model.predict_proba(list(x)), model.predict_proba(x))
    with pytest.raises(ValueError, match=r"all images must have one shape, got \(9, 10\), \(10, 10\)"):
        model.predict([x[0], x[1][1:]])
    with pytest.raises(ValueError, match=r"X is one image of shape \(10, 10\): pass X\[None\]"):
        model.predict(x[0])
    with pytest.raises(ValueError, match="0 sample"):
        model.predict(x[:0])


def test_few_images_follow_the_predictive_density_where_rows_held_out_gain_by_it() -> None:
    x, y = textures(np.random.default_rng(1))
    train, test = slice(400), slice(400, 900)
    auto, plain = (
        GPClassifier(50, objective=name, random_state=0).fit(x[train], y[train]) for name in ("auto", "elbo")
    )
    assert auto.history_[-1]["objective"] == "predictive"
    nlp = [-model.log_density(x[test], y[test]).mean() for model in (auto, plain)]
    assert nlp[0] < 0.8 * nlp[1]


def test_few_images_with_chance_labels_keep_the_elbo() -> None:
    x, _ = stripes(100)
    y = np.random.default_rng(0).integers(0, 3, len(x))
    assert {row["objective"] for row in quick().fit(x, y).history_} == {"elbo"}
