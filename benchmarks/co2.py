"""Ten years of carbon dioxide on Mauna Loa, forecast from the years before: a kernel expression beside scikit-learn's.

    python -m benchmarks.co2

Monthly means of the series that statsmodels has (`make table-peers` installs it). Both start the hyper-parameters where
scikit-learn's example "Forecasting of CO2 level on Mona Loa dataset" starts them; variances of an expression are for
targets of variance 1, of which 2500, 4 and 0.25 ppm^2 are about 20, 0.03 and 0.002. Writes results/co2/co2.json.
"""

import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ExpSineSquared, RationalQuadratic, WhiteKernel

from autogp import GPRegressor
from autogp.storage import replacing
from benchmarks.contenders import PEERS

RESULTS = Path("results/co2/co2.json")
CUTS = (1974, 1977, 1980, 1982, 1985, 1987, 1988, 1990, 1992)
YEARS = 10
EXPRESSION = (
    "rbf(year, lengthscale=50, variance=20)"
    " + rbf(year, lengthscale=100) * periodic(year, period=1, variance=0.03)"
    " + rational_quadratic(year, lengthscale=1, variance=0.002)"
)


def series() -> Any:
    """Monthly means: the time in years, and parts per million."""
    (path,) = (PEERS / "tables").glob("lib/python3*/site-packages/statsmodels/datasets/co2/co2.csv")
    weeks: Any = pd.read_csv(path)
    months = weeks.groupby(weeks["date"] // 100)["co2"].mean().dropna()
    return pd.DataFrame({"year": months.index // 100 + (months.index % 100 - 0.5) / 12, "co2": months.to_numpy()})


def autogp(known: Any, asked: Any) -> tuple[np.ndarray, np.ndarray]:
    model = GPRegressor(kernel=EXPRESSION, likelihood="gaussian", random_state=0, verbose=False)
    return model.fit(known[["year"]], known["co2"]).predict(asked[["year"]], return_std=True)


def scikit_learn(known: Any, asked: Any) -> tuple[np.ndarray, np.ndarray]:
    kernel: Any = 50.0**2 * RBF(50.0)
    kernel += 2.0**2 * RBF(100.0) * ExpSineSquared(1.0, 1.0, periodicity_bounds="fixed")
    kernel += 0.5**2 * RationalQuadratic(length_scale=1.0, alpha=1.0)
    kernel += 0.1**2 * RBF(0.1) + WhiteKernel(0.1**2, (1e-5, 1e5))
    mean = known["co2"].mean()
    model = GaussianProcessRegressor(kernel).fit(known[["year"]].to_numpy(), known["co2"] - mean)
    found: Any = model.predict(asked[["year"]].to_numpy(), return_std=True)
    return found[0] + mean, found[1]


def scores(known: Any, asked: Any, forecast: Any) -> dict[str, float]:
    started = time.process_time()
    mean, deviation = forecast(known, asked)
    residual = asked["co2"].to_numpy() - mean
    nlp = 0.5 * np.log(2 * np.pi * deviation**2) + 0.5 * (residual / deviation) ** 2
    return {
        "rmse": float(np.sqrt(np.mean(residual**2))),
        "nlp": float(nlp.mean()),
        "cover": float(np.mean(np.abs(residual) < 1.645 * deviation)),
        "cpu": time.process_time() - started,
    }


def main() -> None:
    data, found = series(), {}
    for name, forecast in {"autogp": autogp, "scikit-learn": scikit_learn}.items():
        found[name] = {}
        for cut in CUTS:
            known, asked = data[data["year"] < cut], data[(data["year"] >= cut) & (data["year"] < cut + YEARS)]
            with warnings.catch_warnings():  # a parameter at a bound
                warnings.simplefilter("ignore", ConvergenceWarning)
                found[name][str(cut)] = scores(known, asked, forecast)
            print(name, cut, found[name][str(cut)], flush=True)
        means = {score: float(np.mean([each[score] for each in found[name].values()])) for score in ("rmse", "nlp")}
        print(name, "mean", means, flush=True)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with replacing(RESULTS) as temporary:
        temporary.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
