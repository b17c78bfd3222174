"""Estimators with feature maps: networks that learn, components that are found, and both in a file."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from torch import nn

from autogp import GPClassifier, GPRegressor, load_model
from autogp.features import PrincipalComponents


class Distance(nn.Module):
    """A network from two numbers to one."""

    def __init__(self, width=8):
        super().__init__()
        self.width = width
        generator = torch.Generator().manual_seed(0)
        self.first, self.last = nn.Linear(2, width), nn.Linear(width, 1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def rings(count=200):
    """Targets that follow the distance from the origin."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (count, 2))
    return X, np.sin(2 * np.hypot(*X.T)) + 0.1 * rng.normal(size=count)


@pytest.mark.parametrize("kind", [GPClassifier, GPRegressor])
def test_a_network_learns_its_weights_and_comes_back_from_a_file_in_the_same_bits(kind, tmp_path):
    X, y = rings()
    targets = y if kind is GPRegressor else y > 0
    given = Distance()
    common = {"n_inducing": 10, "max_epochs": 60, "random_state": 0}
    model = kind(features=given, **common).fit(X, targets)
    frozen = kind(features=Distance().requires_grad_(False), **common).fit(X, targets)
    learnt, untouched = model.model_.features.maps[-1], Distance()
    assert all((a != b).any() for a, b in zip(learnt.parameters(), untouched.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(given.parameters(), untouched.parameters(), strict=True))
    assert model.log_density(X, targets).mean() > frozen.log_density(X, targets).mean() + 0.1
    model.save(tmp_path / "model.autogp")
    again = load_model(tmp_path / "model.autogp", modules=[Distance])
    assert (again.log_density(X, targets) == model.log_density(X, targets)).all()
    assert isinstance(again.features, Distance)


def test_principal_components_equal_a_fit_on_those_of_scikit_learn():
    X, y = load_digits(n_class=3, return_X_y=True)
    common = {"n_inducing": 20, "max_epochs": 20, "random_state": 0}
    ours = GPClassifier(features=PrincipalComponents(4), **common).fit(X[::2], y[::2])
    found = ours.model_.features.maps[0](torch.from_numpy(X[::2])).numpy()
    theirs = PCA(4, svd_solver="full").fit(X[::2])
    signs = np.sign((found * theirs.transform(X[::2])).sum(0))
    np.testing.assert_allclose(found, theirs.transform(X[::2]) * signs, atol=1e-9)
    other = GPClassifier(scaling="global", **common).fit(theirs.transform(X[::2]) * signs, y[::2])
    expected = other.predict_proba(theirs.transform(X[1::2]) * signs)
    np.testing.assert_allclose(ours.predict_proba(X[1::2]), expected, atol=1e-4)
