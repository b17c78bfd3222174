"""Kernels as expressions of named columns: what they compute, and what is wrong with them in one sentence."""

import numpy as np
import pandas as pd
import pytest
import torch

from autogp import GPClassifier, GPRegressor, load_model
from autogp.data import ArraySource
from autogp.features import Scaling
from autogp.kernels import RBF, Linear, Periodic, Product, RationalQuadratic, Selected, Sum
from autogp.training import KERNELS, start_kernel
from autogp.training.expression import build, terms_of


def points(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_products_bind_stronger_than_sums():
    kernels = {"rbf": RBF(0.7), "linear": Linear(2.0), "periodic": Periodic(3.0)}
    x, z = points(4), points(5, seed=1)
    found = build("rbf * periodic + linear * (rbf + periodic)", KERNELS, lambda term: kernels[term.name]).gram(x, z)
    rbf, linear, periodic = (kernels[name].gram(x, z) for name in ("rbf", "linear", "periodic"))
    torch.testing.assert_close(found, rbf * periodic + linear * (rbf + periodic))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rbf(", "cannot be read"),
        ("gauss(age)", "there is no kernel 'gauss'; those by name are rbf,"),
        ("rbf - linear", "'rbf - linear' is neither a kernel nor a sum or product"),
        ("rbf(age, period=2)", "rbf has no option 'period'"),
        ("linear(age, variance=2)", "linear has no option 'variance'"),
        ("periodic(age, period=-2)", "'-2' is no positive number"),
        ("rbf(age + 1)", "'age + 1' is no name of a column"),
        ("__import__('os')", "there is no kernel '__import__'"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(text: str, words: str):
    with pytest.raises(ValueError, match="kernel=") as caught:
        terms_of(text, KERNELS)
    assert words in str(caught.value)
    with pytest.raises(ValueError, match="kernel="):
        GPRegressor(kernel=text).fit([[1.0], [2.0]], [1.0, 2.0])


def test_a_column_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="no column 'height'; those are x0, x1"):
        GPRegressor(kernel="rbf(height)").fit([[1.0, 2.0], [2.0, 1.0]], [1.0, 2.0])


def test_selected_columns_are_all_that_a_kernel_sees():
    x, z = points(4), points(5, seed=1)
    kernel = Selected(RBF([0.5, 2.0]), [2, 0])
    torch.testing.assert_close(kernel.gram(x, z), RBF([0.5, 2.0]).gram(x[:, [2, 0]], z[:, [2, 0]]))
    assert kernel.diag(x).shape == (1, 4)
    with pytest.raises(ValueError, match="of column 2, but there are 2"):
        kernel.gram(x[:, :2], z[:, :2])


def test_rational_quadratic_is_a_mixture_of_rbf_kernels():
    """The mean of exp(-t r^2 / 2) over t ~ Gamma(alpha, alpha)."""
    x, z = points(4), points(5, seed=1)
    t = np.random.default_rng(0).gamma(1.5, 1 / 1.5, 400_000)
    squared = torch.cdist(x, z).square().numpy() / 0.8**2
    expected = np.exp(-0.5 * t[:, None, None] * squared).mean(0)
    found = RationalQuadratic(0.8, alpha=1.5).gram(x, z)[0].detach().numpy()
    np.testing.assert_allclose(found, expected, atol=5e-3)


def test_periodic_equals_its_formula_and_repeats():
    x, z = points(4), points(5, seed=1)
    kernel = Periodic([2.0, 3.0, 5.0], [0.7, 1.0, 1.4], 2.0)
    apart = (x[:, None] - z[None]).numpy()
    sine = np.sin(np.pi * apart / [2.0, 3.0, 5.0]) / [0.7, 1.0, 1.4]
    np.testing.assert_allclose(kernel.gram(x, z)[0].detach(), 2 * np.exp(-2 * (sine**2).sum(-1)), rtol=1e-12)
    moved = x + torch.tensor([2.0, -3.0, 10.0], dtype=torch.float64)
    torch.testing.assert_close(kernel.gram(moved, z), kernel.gram(x, z))


def test_an_expression_of_a_table_keeps_the_period_given_and_comes_back_from_its_file(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"month": np.arange(120.0), "shop": rng.choice(["a", "b", "c"], 120)})
    y = np.sin(2 * np.pi * table["month"] / 12) + (table["shop"] == "a") + 0.1 * rng.normal(size=120)
    text = "periodic(month, period=12) * rbf(month) + categorical(shop)"
    model = GPRegressor(20, kernel=text, max_epochs=40, random_state=0).fit(table, y)
    product, shop = model.model_.kernel.kernels
    assert isinstance(model.model_.kernel, Sum)
    assert isinstance(product, Product)
    assert product.kernels[0].columns == [0]
    assert len(shop.columns) >= 3
    assert shop.kernel.log_lengthscale.shape == (1, 1)
    scale = table["month"].std(ddof=0)
    assert product.kernels[0].kernel.period.item() * scale == pytest.approx(12, rel=1e-12)  # it is known, not learnt
    model.save(tmp_path / "model.autogp")
    assert (load_model(tmp_path / "model.autogp").predict(table) == model.predict(table)).all()


def test_lengthscales_start_where_an_expression_says_in_the_units_of_the_column():
    table = pd.DataFrame({"month": np.arange(120.0), "year": np.arange(120.0) // 12})
    text = "rbf(month, lengthscale=24) + matern32(month, year, lengthscale=3)"
    kernel = start_kernel(
        text,
        ArraySource(table.to_numpy(), np.zeros(120)),
        Scaling(torch.zeros(2), torch.tensor([40.0, 2.0])),
        columns={"month": (0, [0]), "year": (1, [1])},
    )
    month, both = kernel.kernels
    assert month.kernel.lengthscale.tolist() == [[pytest.approx(24 / 40)]]
    assert both.kernel.lengthscale.tolist() == [[pytest.approx(3 / 40), pytest.approx(3 / 2)]]


def test_variances_start_where_an_expression_says_and_at_1_elsewhere():
    source = ArraySource(np.arange(120.0)[:, None], np.zeros(120))
    text = "rbf(x0, variance=20) + matern32(x0, lengthscale=3) * periodic(x0, period=12, variance=0.03)"
    trend, season = start_kernel(text, source, columns={"x0": (0, [0])}).kernels
    variances = [part.kernel.log_variance.exp().item() for part in (trend, *season.kernels)]
    assert variances == pytest.approx([20, 1, 0.03])


def test_a_classifier_takes_an_expression_too():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    label = x[:, 0] + rng.normal(size=80) > 0
    model = GPClassifier(10, kernel="rbf(x0) + linear(x1)", max_epochs=10, random_state=0).fit(x, label)
    assert [part.columns for part in model.model_.kernel.kernels] == [[0], [1]]
    assert model.score(x, label) > 0.6
