"""Labels become codes and come back, whatever counted them."""

import numpy as np
import pytest

from autogp.data import Labels


@pytest.mark.parametrize("values", [["owl", "cat", "owl"], [3, -1, 3], [2.5, 0.5, 2.5], [True, False, True]])
@pytest.mark.parametrize("dtype", [None, object])
def test_labels_come_back(values: list, dtype: type | None) -> None:
    labels = Labels.of(np.array(values, dtype=dtype))
    assert len(labels) == 3
    assert labels.classes.tolist() == sorted(set(values))
    assert labels.codes.tolist() == [1, 0, 1]
    assert np.asarray(labels).tolist() == values


def test_codes_of_classes_in_any_order_count_those_that_occur_in_sorted_order() -> None:
    labels = Labels.of(np.array([3, 0, 3, 1]), ["owl", "bee", "ant", "cat"])
    assert labels.classes.tolist() == ["bee", "cat", "owl"]
    assert labels.codes.tolist() == [1, 2, 1, 0]
    assert np.asarray(labels).tolist() == ["cat", "owl", "cat", "bee"]
