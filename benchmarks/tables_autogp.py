"""autogp with its defaults as a contender of `benchmarks.tables`; which autogp, PYTHONPATH says."""

import numpy as np
from tables_worker import LEVELS, Rows, serve

from autogp import GPClassifier, GPRegressor


def autogp(rows: Rows):
    if rows.kind == "class":
        classifier = GPClassifier(random_state=rows.seed, verbose=False).fit(rows.x, rows.y)
        return lambda: {"probabilities": classifier.predict_proba(rows.x_test)}
    y = rows.y.astype(np.float64)
    regressor = GPRegressor(random_state=rows.seed, verbose=False).fit(rows.x, y)

    def predict() -> dict[str, np.ndarray]:
        mean, _, quantiles = regressor.predict(rows.x_test, return_std=True, quantiles=LEVELS)
        density = regressor.log_density(rows.x_test, rows.y_test.astype(np.float64))
        likelihood = np.array(regressor.model_.likelihood.describe())
        return {"mean": mean, "density": density, "quantiles": quantiles, "likelihood": likelihood}

    return predict


if __name__ == "__main__":
    serve({"autogp": autogp})
