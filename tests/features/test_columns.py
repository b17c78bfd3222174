"""Columns of a table become the numbers of a plain formula, in the precision of the rows; the rest is refused."""

import doctest
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autogp import GPRegressor, load_model
from autogp.data import TableEncoder
from autogp.features import Categories, Columns, FeatureMap, Numbers, columns
from autogp.persistence import load, save

NAN = float("nan")
MIXED = Columns(
    [[0, 2], [1, 3]],
    [
        Numbers(["age", "fare"], [30.0, 12.5], [True, False]),
        Categories(["port", "deck"], [["Bari", "Cork"], ["A", "B", "C"]], [False, True]),
    ],
)


def plain(x: np.ndarray, encoder: TableEncoder) -> np.ndarray:
    """What each input column becomes, one column after the other."""
    found = []
    for values, part in zip(x.T, (part for part in encoder.parts if part.name in encoder.used), strict=True):
        if part.name in encoder.categories:
            found += [values == code for code in range(len(part.categories))]
        else:
            found.append(np.where(np.isnan(values), part.mean, values))
        found += [np.isnan(values)] if part.missing else []
    return np.column_stack(found).astype(np.float64)


def test_examples_hold() -> None:
    found = doctest.testmod(columns)
    assert found.attempted
    assert not found.failed


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.floats(-1e6, 1e6)),
            st.sampled_from(["a", "b", "c", None]),
            st.floats(-1e6, 1e6),
            st.sampled_from(["x", "y"]),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_every_column_is_the_plain_formula_to_the_bit(rows: list[tuple]) -> None:
    types = [pa.float64(), pa.string(), pa.float64(), pa.string()]
    arrays = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), types, strict=True)]
    table = pa.table(arrays, names=["n", "t", "m", "u"])
    encoder = TableEncoder.fit([table])
    x, features = encoder.transform(table), Columns.of(encoder)
    if features is None:
        return
    assert x.shape == (len(rows), len(encoder.used))
    found = features(torch.from_numpy(x)).numpy()
    np.testing.assert_array_equal(found, plain(x, encoder))
    assert found.shape[1] == len(features.columns) == len(features.origin)
    assert features.origin == sorted(features.origin)
    for name, origin in zip(features.columns, features.origin, strict=True):
        assert name.startswith(encoder.used[origin])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_missing_and_unseen_values_in_the_precision_of_the_rows(dtype: torch.dtype) -> None:
    x = torch.tensor([[NAN, 0, NAN, NAN], [1.5, -1, 2.5, -1], [2.0, NAN, 3.0, 2]], dtype=dtype)
    names = "age,age missing,port=Bari,port=Cork,fare,deck=A,deck=B,deck=C,deck missing"
    assert MIXED.columns == names.split(",")
    assert MIXED.origin == [0, 0, 1, 1, 2, 3, 3, 3, 3]
    assert MIXED.origins([5, 6, 8, 9]) == [5, 5, 6, 6, 8, 9, 9, 9, 9]
    found = MIXED(x)
    assert found.dtype == dtype
    assert found.tolist() == [
        [30, 1, 1, 0, 12.5, 0, 0, 0, 1],
        [1.5, 0, 0, 0, 2.5, 0, 0, 0, 0],
        [2, 0, 0, 0, 3, 0, 0, 1, 0],
    ]


def test_bytes_stay_bytes() -> None:
    x = torch.tensor([[255, 1, 0, 2]], dtype=torch.uint8)
    found = MIXED(x)
    assert found.dtype == torch.uint8
    assert found.tolist() == [[255, 0, 0, 1, 0, 0, 0, 1, 0]]


def test_columns_come_back_from_a_model_file(tmp_path: Path) -> None:
    save(tmp_path / "columns.autogp", {"features": MIXED}, {})
    again = load(tmp_path / "columns.autogp").modules["features"]
    assert isinstance(again, Columns)
    assert (again.columns, again.origin) == (MIXED.columns, MIXED.origin)
    x = torch.tensor([[NAN, 0, 2.5, NAN], [1.5, -1, NAN, 2]], dtype=torch.float64)
    assert torch.equal(again(x), MIXED(x))
    assert all(torch.isfinite(buffer).all() for buffer in again.buffers())


def test_a_map_of_ones_own_stands_beside_ours() -> None:
    class Daily(FeatureMap):
        names, columns = ("hour",), ("hour sin", "hour cos")

        def origins(self, columns: Sequence[int | None]) -> list[int | None]:
            return [columns[0], columns[0]]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            angle = 2 * torch.pi * x / 24
            return torch.cat([angle.sin(), angle.cos()], -1)

    found = Columns([[1], [0]], [Daily(), Numbers(["age"], [30.0], [False])])
    assert found.columns == ["age", "hour sin", "hour cos"]
    torch.testing.assert_close(found(torch.tensor([[20.0, 6.0]])), torch.tensor([[20.0, 1.0, 0.0]]))


def test_other_widths_and_incomplete_descriptions_are_refused() -> None:
    with pytest.raises(ValueError, match="expected 4 columns, got 3"):
        MIXED(torch.zeros(2, 3))
    number = Numbers(["age"], [30.0], [False])
    for inputs in ([[]], [[1]], [[0, 0]], [[0, 1]], [[-1]]):
        with pytest.raises(ValueError, match="inputs must name every column once"):
            Columns(inputs, [number])
    with pytest.raises(ValueError, match="shorter"):
        Columns([[0], [1]], [number])
    for means, missing in (([NAN], [False]), ([1.0, 2.0], [False]), ([1.0], [])):
        with pytest.raises(ValueError, match="numbers need a name, a finite mean"):
            Numbers(["age"], means, missing)
    with pytest.raises(ValueError, match="longer"):
        Categories(["port"], [["Bari"], ["Cork"]], [False])


def test_columns_of_more_than_ten_categories_share_scale_and_lengthscale(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    effects, code = random.normal(size=80), random.integers(80, size=1500)
    frame = pd.DataFrame({"x": random.normal(size=1500), "c": [f"c{each}" for each in code], "few": ["a", "b"] * 750})
    y = effects[code] + frame["x"].to_numpy() + 0.3 * random.normal(size=1500)
    model = GPRegressor(likelihood="gaussian", random_state=0, verbose=False).fit(frame[:1000], y[:1000])
    kernel: Any = model.model_.kernel
    assert kernel.shared == [0, *[1] * 80, 2, 3]
    scaling: Any = model.model_.features.maps[1]  # pyright: ignore
    share = np.bincount(code[:1000], minlength=80) / 1000
    np.testing.assert_allclose(scaling.scale[1:81], np.sqrt(1 - np.sum(share**2)))
    error = np.sqrt(np.mean((model.predict(frame[1000:]) - y[1000:]) ** 2))
    assert error < 0.34  # 0.3 is noise; 0.36 where categories are placed by their means
    other = random.integers(40, size=400)
    strange = pd.DataFrame({"x": random.normal(size=400), "c": [f"new {each}" for each in other], "few": "a"})
    target = random.normal(size=40)[other] + strange["x"].to_numpy() + 0.3 * random.normal(size=400)
    with pytest.warns(UserWarning, match="400 rows hold values that training never saw"):
        low, high = model.predict(strange, quantiles=[0.05, 0.95]).T
    assert 0.8 <= np.mean((low <= target) & (target <= high)) <= 0.98
    model.save(tmp_path / "model.autogp")
    np.testing.assert_array_equal(load_model(tmp_path / "model.autogp").predict(frame), model.predict(frame))
