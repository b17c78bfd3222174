"""Trees, linear models and scikit-learn's Gaussian process with their defaults, as contenders of `benchmarks.tables`.

Runs in the environment that `make table-peers` sets up. A model that gives numbers alone is given Gaussian noise whose
deviation is that of its residuals on rows left out (five folds). Dates become year, month, weekday and hour for all.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from sklearn.base import clone
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from tables_worker import LEVELS, Rows, serve

MOST_CATEGORIES = 250  # that HistGradientBoosting takes; the rest of a column are one


def plain(frames: list[pd.DataFrame]) -> list[pd.DataFrame]:
    """Numbers and categories alone; dates by their parts, texts that are different in nearly every row not at all."""
    found = [frame.copy() for frame in frames]
    for name in frames[0]:
        column = frames[0][name]
        if column.dtype.kind in "iufb":
            continue
        if column.nunique() > 0.5 * len(column) and not is_date(column):
            found = [frame.drop(columns=name) for frame in found]
        elif is_date(column):
            found = [with_parts(frame, name) for frame in found]
        else:
            common = column.value_counts().index[:MOST_CATEGORIES]
            kind = pd.CategoricalDtype(list(common))
            for frame in found:
                frame[name] = frame[name].where(frame[name].isin(common)).astype(kind)
    return found


def is_date(column: pd.Series) -> bool:
    return column.dtype.kind == "M" or bool(column.dropna().astype(str).str.match(r"\d{4}-\d\d-\d\d").all())


def with_parts(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    date = pd.to_datetime(frame[name], utc=True)
    parts = {"time": date.astype("int64") / 8.64e13, "month": date.dt.month, "day": date.dt.weekday}
    if date.dt.hour.nunique() > 1:
        parts["hour"] = date.dt.hour
    return frame.drop(columns=name).assign(**{f"{name} {part}": values.astype(float) for part, values in parts.items()})


def encoded(model: Any, one_hot: bool) -> Any:
    numbers, texts = (
        make_column_selector(dtype_include=["number", "bool"]),
        make_column_selector(dtype_include="category"),
    )
    if one_hot:
        categories = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    else:
        categories = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-1)
    scaled = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    return make_pipeline(make_column_transformer((scaled, numbers), (categories, texts)), model)


def with_noise(model: Any, rows: Rows) -> Callable[[], dict[str, np.ndarray]]:
    """A regressor with Gaussian noise from rows left out, or a classifier as it is."""
    x, x_test = plain([rows.x, rows.x_test])
    if rows.kind == "class":
        fitted = model.fit(x, rows.y)
        return lambda: {"probabilities": fitted.predict_proba(x_test)}
    y, y_test = rows.y.astype(float), rows.y_test.astype(float)
    fitted = clone(model).fit(x, y)
    started = time.process_time()
    noise = float(np.std(y - cross_val_predict(model, x, y, cv=5)))
    rows.apart.append(time.process_time() - started)
    return lambda: gaussian(fitted.predict(x_test), np.full(len(y_test), noise), y_test)


def gaussian(mean: np.ndarray, deviation: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    distribution = stats.norm(mean, np.maximum(deviation, 1e-12))
    quantiles = np.stack([distribution.ppf(level) for level in LEVELS], 1)
    return {"mean": mean, "density": distribution.logpdf(y), "quantiles": quantiles}


def lightgbm(rows: Rows):
    from lightgbm import LGBMClassifier, LGBMRegressor

    kind = LGBMClassifier if rows.kind == "class" else LGBMRegressor
    return with_noise(kind(random_state=rows.seed, n_jobs=1, verbose=-1), rows)


def hist_boosting(rows: Rows):
    kind = HistGradientBoostingClassifier if rows.kind == "class" else HistGradientBoostingRegressor
    return with_noise(kind(random_state=rows.seed), rows)


def random_forest(rows: Rows):
    kind = RandomForestClassifier if rows.kind == "class" else RandomForestRegressor
    return with_noise(encoded(kind(random_state=rows.seed), one_hot=False), rows)


def linear(rows: Rows):
    return with_noise(encoded(LogisticRegression(max_iter=1000) if rows.kind == "class" else Ridge(), True), rows)


def lightgbm_quantiles(rows: Rows):
    """The median, and two quantiles; there is no density."""
    from lightgbm import LGBMRegressor

    x, x_test = plain([rows.x, rows.x_test])
    models = [
        LGBMRegressor(objective="quantile", alpha=level, random_state=rows.seed, n_jobs=1, verbose=-1).fit(x, rows.y)
        for level in (0.5, *LEVELS)
    ]

    def predict() -> dict[str, np.ndarray]:
        middle, *quantiles = (model.predict(x_test) for model in models)
        return {"mean": middle, "quantiles": np.stack(quantiles, 1)}

    return predict


def ngboost(rows: Rows):
    from ngboost import NGBClassifier, NGBRegressor
    from ngboost.distns import Bernoulli, Normal, k_categorical

    x, x_test = plain([rows.x, rows.x_test])
    prepare = encoded("passthrough", one_hot=True)
    x, x_test = prepare.fit_transform(x), prepare.transform(x_test)
    if rows.kind == "class":
        labels = np.unique(rows.y, return_inverse=True)[1]
        classes = labels.max() + 1
        distribution = Bernoulli if classes == 2 else k_categorical(classes)
        classifier = NGBClassifier(Dist=distribution, verbose=False, random_state=rows.seed).fit(x, labels)
        return lambda: {"probabilities": classifier.predict_proba(x_test)}
    y, y_test = rows.y.astype(float), rows.y_test.astype(float)
    regressor = NGBRegressor(Dist=Normal, verbose=False, random_state=rows.seed).fit(x, y)

    def predict() -> dict[str, np.ndarray]:
        found = regressor.pred_dist(x_test).params
        return gaussian(found["loc"], found["scale"], y_test)

    return predict


def sklearn_gp(rows: Rows):
    x, x_test = plain([rows.x, rows.x_test])
    prepare = encoded("passthrough", one_hot=True)
    x, x_test = prepare.fit_transform(x), prepare.transform(x_test)
    kernel = ConstantKernel() * RBF()
    if rows.kind == "class":
        classifier = GaussianProcessClassifier(kernel, random_state=rows.seed).fit(x, rows.y)
        return lambda: {"probabilities": classifier.predict_proba(x_test)}
    y, y_test = rows.y.astype(float), rows.y_test.astype(float)
    regressor = GaussianProcessRegressor(kernel + WhiteKernel(), normalize_y=True, random_state=rows.seed).fit(x, y)
    return lambda: gaussian(*regressor.predict(x_test, return_std=True), y_test)


if __name__ == "__main__":
    serve(
        {
            "lightgbm": lightgbm,
            "lightgbm-quantiles": lightgbm_quantiles,
            "hist-boosting": hist_boosting,
            "random-forest": random_forest,
            "linear": linear,
            "ngboost": ngboost,
            "sklearn-gp": sklearn_gp,
        }
    )
