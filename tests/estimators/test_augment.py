"""`augment`: deformed copies of images as further rows of training."""

import importlib

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss

from autogp import GPClassifier, GPRegressor, load_model
from autogp.data import ArraySource, Deformations, Deformed
from autogp.features import PrincipalComponents
from autogp.training import TrainingInterruptedError


@pytest.fixture(scope="module")
def digits():
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    return images[order].reshape(-1, 8, 8), labels[order]


def classifier(**changes):
    settings = {"n_inducing": 20, "features": None, "max_epochs": 6, "batch_size": 100, "random_state": 0}
    return GPClassifier(**(settings | changes))


def test_augment_is_training_on_the_copies(digits):
    """The same bits as from rows that were deformed beforehand."""
    x, y = digits[0][:60], digits[1][:60]
    how = Deformations(2, bend=0.3)
    model = classifier(augment=how, objective="elbo").fit(x, y)
    seed = np.random.RandomState(0).randint(2**31 - 1)
    deformed = Deformed(ArraySource(x, y), (8, 8), how, seed)
    rows, targets = deformed.rows(np.arange(len(deformed)))
    by_hand = classifier(objective="elbo", max_epochs=2).fit(rows.reshape(-1, 8, 8), targets)
    np.testing.assert_array_equal(model.predict_proba(x), by_hand.predict_proba(x))
    assert model.n_rows_ == 180
    assert model.elbo_ == by_hand.elbo_
    assert np.isnan(model.loo_score_)


def test_copies_take_no_more_steps(digits):
    x, y = digits[0][:400], digits[1][:400]
    steps = [classifier(augment=augment).fit(x, y).history_[-1]["step"] for augment in (None, 2)]
    assert steps == [24, 24]


def test_shifted_copies_teach_shifts(digits):
    """Test digits that are shifted by a pixel: by chance a few in ten are wrong without copies."""
    x, y = digits
    shifted = np.roll(x[300:900], 1, axis=2)
    shifted[:, :, 0] = 0
    arguments = {"n_inducing": 30, "max_epochs": 30, "objective": "elbo", "features": PrincipalComponents(20)}
    losses = []
    for augment in (None, Deformations(4, bend=0.0)):
        model = classifier(augment=augment, **arguments).fit(x[:300], y[:300])
        losses.append(log_loss(y[300:900], model.predict_proba(shifted)))
    assert losses[1] < 0.6 * losses[0]


@pytest.mark.parametrize("features", ["auto", PrincipalComponents(10)])
def test_features_are_of_the_copies_too_and_the_file_keeps_all(digits, tmp_path, features):
    x, y = digits[0][:120], digits[1][:120]
    how = Deformations(2, shift=1, bend=0.4, mirror=False, image_shape=(8, 8))
    model = classifier(augment=how, features=features).fit(x.reshape(-1, 64) if features != "auto" else x, y)
    model.save(tmp_path / "model.autogp")
    again = load_model(tmp_path / "model.autogp")
    assert again.augment == how
    assert again.n_rows_ == 360
    np.testing.assert_array_equal(again.predict_proba(x.reshape(-1, 64)), model.predict_proba(x.reshape(-1, 64)))


def test_an_interrupted_training_goes_on_with_the_same_copies(digits, tmp_path):
    x, y = digits[0][:120], digits[1][:120]
    arguments = {"augment": 2, "objective": "elbo", "max_epochs": 9}
    whole = classifier(**arguments).fit(x, y)

    def stop(progress):
        if progress.epoch == 2:
            raise KeyboardInterrupt

    broken = classifier(**arguments, checkpoint=str(tmp_path))
    with pytest.raises((KeyboardInterrupt, TrainingInterruptedError)):
        broken.fit(x, y, callbacks=[stop])
    broken.fit(x, y)
    np.testing.assert_array_equal(broken.predict_proba(x), whole.predict_proba(x))


def test_copies_of_rows_that_decide_are_not_learnt_from(digits, monkeypatch):
    """The rows by which `objective="auto"` decides, and all of their copies, are out of q and out of its training."""
    module = importlib.import_module("autogp.training.refine")
    x, y = digits[0][:1000], digits[1][:1000]
    seen = []

    def train(model, source, settings, validation, **options):
        seen.append((source.indices, validation.indices))
        raise FloatingPointError

    monkeypatch.setattr(module, "train", train)
    monkeypatch.setattr(module, "FAILURES", (FloatingPointError,))
    classifier(augment=2, n_inducing=10, max_epochs=6).fit(x, y)
    ((learnt, decides),) = seen
    assert decides.max() < 1000
    assert not set(learnt % 1000) & set(decides)
    assert len(learnt) == 3 * (1000 - len(decides))


def test_regressions_weights_and_new_rows_take_copies_too(digits):
    x = digits[0][:80]
    y = x.mean((1, 2))
    model = GPRegressor(20, likelihood="gaussian", features=None, augment=3, max_epochs=20, random_state=0)
    model.fit(x, y, sample_weight=np.linspace(0.5, 1.5, 80))
    assert model.n_rows_ == 320
    assert np.isfinite(model.elbo_)
    model.partial_fit(digits[0][80:100], digits[0][80:100].mean((1, 2)))
    assert model.n_rows_ == 400


def test_rows_that_are_no_images_are_refused(digits):
    flat = digits[0][:50].reshape(50, -1)
    with pytest.raises(ValueError, match=r"augment is for images.*Deformations\(image_shape"):
        classifier(augment=2).fit(flat, digits[1][:50])
    with pytest.raises(ValueError, match=r"images of \(4, 4\) have other than 64 pixels"):
        classifier(augment=Deformations(2, image_shape=(4, 4))).fit(flat, digits[1][:50])
    with pytest.raises(ValueError, match="augment"):
        classifier(augment=0).fit(digits[0][:50], digits[1][:50])
