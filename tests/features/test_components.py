"""Principal components: directions of the rows that they were fitted to, and distances within these."""

import numpy as np
import pytest
import torch

from autogp.data import ArraySource
from autogp.features import PrincipalComponents


def test_principal_components_are_directions_of_the_training_rows() -> None:
    rng = np.random.default_rng(0)
    plane, other = np.linalg.qr(rng.normal(size=(6, 3)))[0].T[:2], np.eye(6)[0]
    train = 5 + rng.normal(size=(40, 2)) @ plane
    test = np.stack([train[3], train[3] + other - plane.T @ (plane @ other)])  # the second leaves their plane
    features = PrincipalComponents(2).fit(ArraySource(train))
    found = features(torch.from_numpy(train)).numpy()
    assert found.shape == (40, 2)
    distances = [np.linalg.norm(x[:, None] - x[None], axis=-1) for x in (train, found)]
    np.testing.assert_allclose(distances[1], distances[0], atol=1e-10)
    np.testing.assert_allclose(features(torch.from_numpy(test)).numpy(), np.repeat(found[3:4], 2, axis=0), atol=1e-10)
    covariance = np.cov(found.T)
    assert abs(covariance[0, 1]) < 1e-10
    assert covariance[0, 0] > covariance[1, 1]


def test_more_components_than_rows_or_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="num_components=4 is more than 3 rows of 5 columns"):
        PrincipalComponents(4).fit(ArraySource(np.eye(3, 5)))
    with pytest.raises(ValueError, match="call fit"):
        PrincipalComponents(4)(torch.zeros(1, 5))
