"""Handwritten digits of 8 x 8 pixels, which come with scikit-learn."""

import numpy as np

from autogp.datasets.common import Dataset

__all__ = ["load_digits"]


def load_digits(seed: int = 0) -> Dataset:
    """1,347 digits to learn from and 450 to test on: uint8 [N, 64] and labels; the seed decides which.

    >>> load_digits().x_train.shape
    (1347, 64)
    """
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    images, labels = map(np.asarray, datasets.load_digits(return_X_y=True))
    x, y = images.astype(np.uint8), labels.astype(np.int64)
    train, test = train_test_split(np.arange(len(y)), test_size=450, random_state=seed, stratify=y)
    return Dataset("digits", x[train], y[train], x[test], y[test], target_names=tuple("0123456789"))
