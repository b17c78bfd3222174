"""What a report says is what the model does, for every kind of model."""

import base64
import io
import re
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread
from pages import HOSTILE, Fitted, Report, report_on
from scipy.stats import poisson
from sklearn.exceptions import NotFittedError
from sklearn.metrics import confusion_matrix, log_loss, r2_score, roc_auc_score, root_mean_squared_error

from autogp import GPClassifier, GPRegressor, load_model
from autogp.data import ArraySource, as_table, open_source
from autogp.features import Convolutional
from autogp.report import write_report
from autogp.report.heldout import features, share_of
from autogp.report.regions import _categories

KINDS = ["digits", "passengers", "arm", "visitors"]


@pytest.fixture(scope="module")
def reports(tmp_path_factory, digits, passengers, arm, visitors) -> dict[str, Report]:
    folder = tmp_path_factory.mktemp("reports")
    return {
        name: report_on(fitted, folder) for name, fitted in zip(KINDS, (digits, passengers, arm, visitors), strict=True)
    }


# -- the numbers ------------------------------------------------------------------------------------------------------


def test_scores_of_classes_are_those_of_scikit_learn(digits, reports):
    probabilities = digits.estimator.predict_proba(digits.X)
    wrong = int((digits.estimator.predict(digits.X) != digits.y).sum())
    brier = np.mean(np.sum((probabilities - np.eye(10)[digits.y]) ** 2, axis=1))
    words = reports["digits"].words
    assert f"Error {wrong / 2:.1f} % {wrong} of 200 rows get a wrong class." in words
    assert f"NLP {log_loss(digits.y, probabilities):.3g} " in words
    assert f"Brier score {brier:.3g} " in words


def test_the_confusion_matrix_counts_true_classes_by_line_and_said_ones_by_column(digits, reports):
    table = reports["digits"].tables[0]
    found = np.array([[int(cell or 0) for cell in row[1:-1]] for row in table[1:]])
    np.testing.assert_array_equal(found, confusion_matrix(digits.y, digits.estimator.predict(digits.X)))
    share = found[3, 3] / found[3].sum()
    assert table[4][-1] == ("100 %" if share == 1 else f"{100 * share:.1f} %")


def test_the_reliability_diagram_has_every_row_once(digits, reports):
    alt = next(a["aria-label"] for a in reports["digits"].attributes("svg") if "Reliability" in (a["aria-label"] or ""))
    assert sum(int(count) for count in re.findall(r"\((\d+) rows\)", alt or "")) == len(digits.X)


def test_hard_rows_are_the_least_certain_and_the_most_confident_mistakes(digits, reports):
    probabilities = digits.estimator.predict_proba(digits.X)
    confidence, said = probabilities.max(axis=1), probabilities.argmax(axis=1)
    wrong = np.flatnonzero(said != digits.y)
    expected = [*np.argsort(confidence)[:12], *wrong[np.argsort(-confidence[wrong])][:12]]
    shown = [int(number) - 1 for number in re.findall(r"\brow (\d+)\b", reports["digits"].words)]
    assert shown == expected


@pytest.mark.parametrize("output", range(3))
def test_scores_of_an_output_are_those_of_scikit_learn_over_its_known_rows(arm, reports, output):
    known = ~np.isnan(arm.y[:, output])
    y, mean = arm.y[known, output], arm.estimator.predict(arm.X)[known, output]
    low, high = arm.estimator.predict(arm.X, quantiles=[0.05, 0.95])[known, output].T
    row = reports["arm"].tables[0][1 + output]
    inside = 100 * np.mean((low <= y) & (y <= high))
    assert row[:2] == [f"output {output + 1}", str(known.sum())]
    assert float(row[2]) == pytest.approx(root_mean_squared_error(y, mean), rel=5e-3)
    assert float(row[4]) == pytest.approx(r2_score(y, mean), abs=5e-3)
    assert float(row[5].removesuffix(" %")) == pytest.approx(inside, abs=0.06)


def test_scores_of_counts_are_of_all_rows(visitors, reports):
    mean = visitors.estimator.predict(visitors.X)
    words = reports["visitors"].words
    assert f"RMSE {root_mean_squared_error(visitors.y, mean):.3g} " in words
    assert f"NLP {-visitors.estimator.log_density(visitors.X, visitors.y).mean():.3g} " in words
    base = -poisson.logpmf(visitors.y, visitors.y.mean()).mean()
    assert f"A Poisson distribution with their mean would score {base:.3g}." in words
    low, high = visitors.estimator.predict(visitors.X, quantiles=[0.05, 0.95]).T
    assert f"{((low <= visitors.y) & (visitors.y <= high)).sum()} of 100 true values lie within" in words


def test_farthest_off_are_the_largest_errors_in_standard_deviations(arm, reports):
    mean, deviation = arm.estimator.predict(arm.X, return_std=True)
    distance = np.abs(arm.y - mean) / deviation
    row, output = np.unravel_index(np.nanargmax(distance), distance.shape)
    first = reports["arm"].tables[2][1]
    assert first[:2] == [str(row + 1), f"output {output + 1}"]
    assert float(first[2].replace("−", "-").replace(",", "")) == pytest.approx(arm.y[row, output], rel=5e-3)


def test_importance_has_a_bar_for_each_column_with_its_share(arm, reports):
    shares = arm.estimator.feature_importances_
    for column, share in enumerate(shares):
        assert f"x{column} {share_of(share)}" in reports["arm"].words
    assert (share_of(3e-6), share_of(0.0), share_of(0.0123)) == ("under 0.1 %", "under 0.1 %", "1.2 %")


def nearest_rows(fitted: Fitted) -> np.ndarray:
    """The different rows that lie nearest to an inducing input."""
    z = fitted.estimator.model_.inducing_inputs.detach()[0].double().numpy()
    x = features(fitted.estimator, fitted.X)
    return np.unique(np.linalg.norm(z[:, None] - x, axis=2).argmin(axis=1))


def test_inducing_inputs_are_shown_by_the_rows_nearest_to_them(arm, reports):
    rows = nearest_rows(arm)
    assert f"These are 10 of the {len(rows)} rows of this report nearest to them" in reports["arm"].words
    order = np.argsort(-arm.estimator.feature_importances_)
    table = reports["arm"].tables[3]
    shown = np.array([[float(cell.replace("−", "-")) for cell in row] for row in table[1:]])
    distance = np.abs(shown[:, None, 1:] - arm.X[rows][:, order]).max(axis=2)  # three digits
    assert len(shown) == 10
    assert distance.min(axis=1).max() < 0.01
    said = arm.estimator.predict(arm.X)[rows[distance.argmin(axis=1)], 0]
    np.testing.assert_allclose(shown[:, 0], said, rtol=0.01)
    assert (np.diff(said) >= 0).all()
    assert table[0][0] == "output 1"  # what the first column says


def test_nearest_rows_are_found_block_by_block(arm, reports, tmp_path, monkeypatch):
    monkeypatch.setattr("autogp.report.heldout.NEAREST_ROWS", 7)
    assert report_on(arm, tmp_path).text == reports["arm"].text


# -- pictures ---------------------------------------------------------------------------------------------------------


def test_hard_digits_are_the_pictures_of_their_rows(digits, reports):
    first = reports["digits"].attributes("img")[0]
    row = int((first["alt"] or "").removeprefix("Row ")) - 1
    pixels = _decoded(first["src"])[..., 0]
    np.testing.assert_allclose(pixels, digits.X[row].reshape(8, 8) / 16, atol=0.003)


def test_importance_of_pixels_is_a_picture_that_is_clear_where_there_is_none(digits, reports):
    picture = next(a for a in reports["digits"].attributes("img") if a.get("class") == "heat")
    shares = digits.estimator.feature_importances_.reshape(8, 8)
    np.testing.assert_allclose(_decoded(picture["src"])[..., 3], shares / shares.max(), atol=0.003)


def test_rows_nearest_to_inducing_inputs_are_pictures_with_what_the_model_says(digits, reports):
    pictures = [a for a in reports["digits"].attributes("img") if a["alt"] == "Row nearest to an inducing input"]
    shown = np.stack([_decoded(a["src"])[..., 0].reshape(64) for a in pictures])
    rows = nearest_rows(digits)
    distance = np.abs(shown[:, None] - digits.X[rows] / 16).max(axis=2)
    assert len(pictures) == len(rows)
    assert distance.min(axis=1).max() < 0.003
    said = digits.estimator.predict(digits.X[rows[distance.argmin(axis=1)]])
    assert " ".join(map(str, said)) in reports["digits"].words


@pytest.mark.parametrize("channels", [1, 3])
def test_filters_of_a_model_of_images_are_pictures_with_grey_for_nothing(tmp_path, channels):
    rng = np.random.default_rng(0)
    images = rng.normal(size=(60, 9, 10, channels)).cumsum(1).cumsum(2)
    map_of_patches = Convolutional((9, 10, channels), [(7, 3, 2)], num_components=4)
    model = GPClassifier(5, features=map_of_patches, max_epochs=1, random_state=0, verbose=False)
    model.fit(images, images.mean((1, 2, 3)) > 0)
    report = report_on(Fitted(model, images, images.mean((1, 2, 3)) > 0), tmp_path)
    found = np.stack([_decoded(a["src"])[..., :3] for a in report.attributes("img") if a["alt"] == "Filter"])
    filters = model.model_.features.patterns().reshape(7, 3, 3, channels).numpy()
    light = 0.5 + 0.5 * filters / np.abs(filters).max((1, 2, 3), keepdims=True)
    np.testing.assert_allclose(found, np.broadcast_to(light, (7, 3, 3, 3)), atol=0.003)


def test_a_model_without_filters_shows_none(reports):
    assert "Filter" not in [a["alt"] for a in reports["digits"].attributes("img")]


def _decoded(source: str | None) -> np.ndarray:
    return imread(io.BytesIO(base64.b64decode((source or "").partition("base64,")[2])), format="png")


# -- the page ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_a_report_asks_for_nothing_from_outside(reports, name):
    report = reports[name]
    assert "http" not in report.text.replace("http-equiv", "")
    assert re.findall(r"url\((?!#)", report.text) == []
    assert "@import" not in report.text
    for _, attributes in report.tags:
        for attribute, value in attributes.items():
            if attribute in ("src", "href", "xlink:href", "srcset", "action", "data", "poster"):
                assert (value or "").startswith(("data:", "#"))
            assert not attribute.startswith("on")
    assert not {"script", "iframe", "object", "embed", "form", "b"} & {tag for tag, _ in report.tags}


@pytest.mark.parametrize("name", KINDS)
def test_figures_have_alternatives_and_headings_their_order(reports, name):
    report = reports[name]
    assert all(attributes.get("alt") for attributes in report.attributes("img"))
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in report.attributes("svg"))
    assert len(report.attributes("svg")) >= 2
    levels = [int(tag[1]) for tag, _ in report.headings]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [attributes["id"] for _, attributes in report.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for attributes in report.attributes("use"):
        assert (attributes["xlink:href"] or "").removeprefix("#") in ids


def test_text_from_data_is_shown_and_harmless(passengers, tmp_path):
    report = report_on(passengers, tmp_path, title="</title><script>1</script>")
    assert "<script" not in report.text
    assert HOSTILE in report.words
    assert "</title><script>1</script>" in report.headings[0][1]
    header = report.tables[1][0]
    assert {"<img src=x onerror=alert(1)>", "$x_{$ & 'quotes\""} <= set(header)
    assert any("<b>Bari</b>" in row for row in report.tables[1])


@pytest.mark.parametrize("tile", ["paper", "tile"])
@pytest.mark.parametrize("colour", ["ink", "muted", "accent", "warn", "good"])
def test_words_stand_out_in_light_and_dark(reports, colour, tile):
    palettes = [dict(re.findall(r"--(\w+): (#\w{6})", part)) for part in reports["arm"].text.split("@media")[:2]]
    assert palettes[0] != palettes[1]
    for palette in palettes:
        light, dark = sorted((_luminance(palette[colour]), _luminance(palette[tile])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def _luminance(colour: str) -> float:
    channels = np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return float(
        np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]
    )


def test_a_report_on_images_of_mnist_is_small(tmp_path):
    rng = np.random.default_rng(0)
    noisy = rng.integers(0, 256, size=(400, 784), dtype=np.uint8)  # the worst case for PNG
    model = GPClassifier(150, max_epochs=1, random_state=0).fit(noisy[:300], rng.integers(0, 10, 300))
    report = report_on(Fitted(model, noisy, rng.integers(0, 10, 400)), tmp_path, image_shape=(28, 28))
    assert len(report.text) < 2_000_000
    assert len(report.attributes("img")) == 2 * 12 + 1 + 100


# -- other ways to ask ------------------------------------------------------------------------------------------------


def test_a_saved_model_gives_the_same_report(digits, tmp_path, reports):
    digits.estimator.save(tmp_path / "model.autogp")
    again = report_on(digits._replace(estimator=load_model(tmp_path / "model.autogp")), tmp_path)
    assert again.text == reports["digits"].text


def test_a_source_brings_its_own_targets_and_the_shape_of_its_images(digits, tmp_path, reports):
    source = ArraySource(digits.X.reshape(-1, 8, 8), digits.y)
    assert report_on(digits._replace(X=source, y=None), tmp_path).text == reports["digits"].text


def test_a_source_of_a_table_shows_the_columns_of_the_table(passengers, tmp_path):
    encoder = passengers.estimator.encoder_
    source = ArraySource(encoder.transform(as_table(passengers.X)), columns=encoder.used, encoder=encoder)
    by_source = report_on(passengers._replace(X=source), tmp_path)
    by_table = report_on(passengers, tmp_path)
    assert by_source.tables == by_table.tables


def test_more_than_twenty_classes_are_listed_by_their_most_common_mistakes(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 24, 400)
    X = np.stack([y + 0.6 * rng.normal(size=400), rng.normal(size=400)], axis=1)
    model = GPClassifier(30, max_epochs=10, random_state=0).fit(X[:200], y[:200])
    report = report_on(Fitted(model, X[200:], y[200:]), tmp_path)
    counts = confusion_matrix(y[200:], model.predict(X[200:]), labels=np.arange(24))
    np.fill_diagonal(counts, 0)
    true, said, count, _ = report.tables[0][1]
    assert int(count) == counts.max() == counts[int(true), int(said)]


def test_one_row_and_a_constant_target_have_a_report(arm, tmp_path):
    report = report_on(Fitted(arm.estimator, arm.X[:1], np.array([[1.0, 2.0, np.nan]])), tmp_path)
    assert "evaluated here on 1 row" in report.words
    assert "R² –" in report.words


def test_without_mistakes_there_is_nothing_to_show(tmp_path):
    X = np.linspace(-3, 3, 80)[:, None]
    y = np.where(X[:, 0] > 0, "yes", "no")
    model = GPClassifier(10, max_epochs=20, random_state=0).fit(X, y)
    far = np.abs(X[:, 0]) > 1
    report = report_on(Fitted(model, X[far], y[far]), tmp_path)
    assert "Error 0 %" in report.words
    assert "No row was wrong." in report.words


def test_what_was_there_stays_until_the_new_report_is_complete(digits, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("before")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_report(path, digits.estimator, digits.X, digits.y)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_shape": (7, 9)}, r"image_shape must be .* with 64 pixels in all, got \(7, 9\)"),
        ({"image_shape": (4, 4, 4)}, "image_shape must be"),
        ({"feature_names": ["a", "b"]}, "feature_names has 2 names, but the model has 64 columns"),
    ],
)
def test_wrong_options_are_named(digits, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        report_on(digits, tmp_path, **options)


def test_what_cannot_be_reported_on_is_said_at_once(digits, arm, tmp_path):
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere"):
        write_report(tmp_path / "nowhere" / "report.html", digits.estimator, digits.X, digits.y)
    with pytest.raises(TypeError, match="estimator must be a fitted GPClassifier or GPRegressor, got str"):
        write_report(tmp_path / "report.html", "model", digits.X, digits.y)  # pyright: ignore[reportArgumentType]
    with pytest.raises(NotFittedError):
        write_report(tmp_path / "report.html", GPRegressor(), digits.X, digits.y)
    with pytest.raises(ValueError, match="11"):
        write_report(tmp_path / "report.html", digits.estimator, digits.X[:2], [3, 11])
    with pytest.raises(ValueError, match="y has no value at all"):
        write_report(tmp_path / "report.html", arm.estimator, arm.X, np.full_like(arm.y, np.nan))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def houses(tmp_path_factory) -> Report:
    """Prices from a file with years, dates, text and gaps; two rows are the same."""
    rng, folder = np.random.default_rng(3), tmp_path_factory.mktemp("houses")
    table = pd.DataFrame(
        {
            "year": rng.integers(1950, 2024, 300),
            "area": rng.gamma(4, 30, 300).round(1),
            "kind": rng.choice(["flat", "villa"], 300),
            "sold": pd.Timestamp("2015-01-01") + pd.to_timedelta(rng.integers(0, 2500, 300), unit="D"),
            "code": 7,
        }
    )
    sold = (table["sold"] - table["sold"].min()).dt.days
    table["price"] = 2 * table["area"] + 3 * (table["year"] - 1950) + 100 * (table["kind"] == "villa") + sold / 20
    table["price"] += rng.normal(0, 20, 300)
    table.loc[299] = table.loc[298]
    table[:200].to_csv(folder / "train.csv", index=False)
    table[200:].to_csv(folder / "test.csv", index=False)
    model = GPRegressor(20, likelihood="gaussian", max_epochs=60, random_state=0)
    model.fit(open_source(folder / "train.csv", "price"))
    test = open_source(folder / "test.csv", "price", encoder=model.encoder_)
    return report_on(Fitted(model, test, None), folder)


def test_values_are_shown_as_the_data_has_them(houses):
    table = next(table for table in houses.tables if "sold" in table[0])
    year, sold, kind = (table[0].index(name) for name in ("year", "sold", "kind"))
    for row in table[1:]:
        assert re.fullmatch(r"(19|20)\d\d", row[year])
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", row[sold])
        assert row[kind] in ("flat", "villa")


def test_rows_of_a_list_are_distinct(houses):
    for table in houses.tables:
        if table[0][0] == "row":
            assert not {"99", "100"} <= {row[0] for row in table[1:]}  # the same row twice


def test_coverage_is_shown_by_region(houses):
    table = next(table for table in houses.tables if table[0][:2] == ["by", "where"])
    names = [row[0] for row in table[1:] if row[0]]
    assert names[0] == "predicted value"
    assert "area" in names
    rows, parts = 0, 0
    for row in table[1:5]:  # quarters of the prediction
        rows, parts = rows + int(row[2]), parts + 1
        assert float(row[3].removesuffix(" %")) > 60
    assert (rows, parts) == (100, 4)


def test_partial_dependence_follows_the_function(houses):
    labels = [each["aria-label"] or "" for each in houses.attributes("svg")]
    (ends,) = [
        found for label in labels if (found := re.findall(r"by area: from (\S+) at (\S+) to (\S+) at (\S+)\.", label))
    ]
    low, low_at, high, high_at = map(float, ends[0])
    assert (high - low) / (high_at - low_at) == pytest.approx(2, rel=0.15)  # the slope that made the data


def test_what_was_left_out_and_how_columns_were_read_is_said(houses):
    assert "How the columns were read" in houses.words
    assert "'code' is left out: it has the same value in every row" in houses.words
    assert "'sold' holds dates or times" in houses.words
    assert not any("code" in table[0] for table in houses.tables)


def test_missing_values_are_a_region_of_their_own():
    held: Any = SimpleNamespace(said=lambda column, value: "ab"[int(value)])
    parts = _categories(held, 0, np.array([0, 1, np.nan, 1, np.nan]))
    assert [(label, rows.sum()) for label, rows in parts] == [("b", 2), ("a", 1), ("missing", 2)]


def test_two_classes_have_an_area_under_the_curve(reports, passengers):
    second = passengers.estimator.classes_[1]
    area = roc_auc_score(passengers.y == second, passengers.estimator.predict_proba(passengers.X)[:, 1])
    assert (
        f"AUC {area:.3g} Area under the ROC curve: how often a row of class “{second}”" in reports["passengers"].words
    )
