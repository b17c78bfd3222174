"""A made-up passenger list: names, categories, missing values and a target that depends on them."""

import csv
from pathlib import Path

import numpy as np

__all__ = ["COLUMNS", "QUICK", "write_passengers"]

QUICK = ["--inducing", "10", "--epochs", "20"]  # training enough for tests that look elsewhere
COLUMNS = ["id", "name", "sex", "port", "age", "fare", "ticket", "survived"]


def write_passengers(path: Path, rows: int = 400, seed: int = 0, target: bool = True) -> Path:
    """Writes a CSV file in which women, children and those who paid more survive more often."""
    rng = np.random.default_rng(seed)
    sex = rng.choice(["female", "male"], rows)
    port = rng.choice(["Cherbourg", "Queenstown", "Southampton", ""], rows, p=[0.2, 0.1, 0.68, 0.02])
    age = rng.integers(1, 80, rows)
    fare = np.round(rng.lognormal(2.5, 1, rows), 2)
    logit = 2.5 * (sex == "female") - 1 - 0.03 * (age - 30) + 0.5 * np.log(fare / 12)
    survived = np.where(rng.random(rows) < 1 / (1 + np.exp(-logit)), "yes", "no")
    absent = rng.random(rows) < 0.2
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS if target else COLUMNS[:-1])
        for row in range(rows):
            values = [row + 1, f"Passenger, No. {row}", sex[row], port[row], "" if absent[row] else age[row], fare[row]]
            values += [f"A/{rng.integers(10**6)}", survived[row]]
            writer.writerow(values if target else values[:-1])
    return path
