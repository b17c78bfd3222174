"""What X and y may be: arrays of all kinds, DataFrames, files, any object with rows."""

import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
import torch
from sklearn.datasets import load_iris

from autogp import GPClassifier, GPRegressor, load_model
from autogp.data import ArraySource, Labels, open_source

X, y = load_iris(return_X_y=True)


def classifier(**changes):
    return GPClassifier(**{"n_inducing": 10, "max_epochs": 5, "random_state": 0, **changes})


def regressor(**changes):
    return GPRegressor(**{"n_inducing": 10, "likelihood": "gaussian", "max_epochs": 5, "random_state": 0, **changes})


@pytest.fixture(scope="module")
def expected():
    return classifier().fit(X, y).predict_proba(X)


@pytest.mark.parametrize(
    "kind",
    [
        scipy.sparse.csr_matrix,
        scipy.sparse.coo_array,
        torch.from_numpy,
        np.asfortranarray,
        lambda x: x.astype(np.longdouble),
        lambda x: x.astype(">f8"),
        lambda x: x.tolist(),
        lambda x: pd.DataFrame(x, columns=list("abcd")),
        lambda x: pd.DataFrame(x, columns=list("abcd"), index=range(50, 200)),
        ArraySource,
    ],
    ids=["csr", "coo", "torch", "fortran", "longdouble", "big-endian", "list", "frame", "other index", "source"],
)
def test_the_same_numbers_in_any_wrapping_give_the_same_bits(kind, expected):
    rows = kind(X)
    assert (classifier().fit(rows, y).predict_proba(rows) == expected).all()


def test_memory_mapped_arrays_are_read_from_the_file(tmp_path, expected):
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert (classifier().fit(mapped, y).predict_proba(mapped) == expected).all()


def test_images_of_bytes_stay_bytes_and_share_one_scale():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (80, 64), dtype=np.uint8)
    images[:, :3] = 0  # a dark edge
    label = images[:, :32].mean(1) > images[:, 32:].mean(1)
    model = classifier(max_epochs=30).fit(images, label)
    assert len(model.model_.features.maps[0].scale.unique()) == 1
    assert model.score(images, label) > 0.9


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["iris", "rose", "lily"])[y],
        np.array(["iris", "rose", "lily"], dtype=object)[y],
        pd.Series(np.array(["iris", "rose", "lily"])[y]).astype("category"),
        y - 5,
        y.astype(np.int8),
        y * 1.0,
        y > 0,
        (y * 10).tolist(),
    ],
    ids=["text", "object", "category", "negative", "int8", "float", "bool", "list"],
)
def test_labels_of_any_type_come_back(labels):
    model = classifier().fit(X, labels)
    assert model.classes_.tolist() == np.unique(labels).tolist()
    found = model.predict(X)
    assert set(found.tolist()) <= set(model.classes_.tolist())
    assert np.mean(found == np.asarray(labels)) > 0.9
    assert model.score(X, labels) > 0.9


def passengers():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.uniform(1, 80, 200),
            "port": rng.choice(["Cork", "Bari", "Oslo"], 200),
            "class": pd.Categorical(rng.choice(["first", "second"], 200)),
            "crew": rng.random(200) > 0.5,
            "noise": rng.normal(size=200),
        }
    )
    frame.loc[::9, "age"] = np.nan
    frame.loc[3, "port"] = None
    return frame, np.where((frame["port"] == "Oslo") | (frame["age"] < 30), "yes", "no")


@pytest.mark.filterwarnings("ignore:training has ended before the ELBO")  # labels without noise
def test_frames_may_hold_text_categories_truth_values_and_gaps():
    frame, survived = passengers()
    model = classifier(n_inducing=40, max_epochs=100).fit(frame, survived)
    assert model.score(frame, survived) > 0.9
    assert model.n_features_in_ == 5
    assert list(model.feature_names_in_) == list(frame.columns)
    relevance = dict(zip(model.feature_names_in_, model.feature_importances_, strict=True))
    assert sum(relevance.values()) == pytest.approx(1)
    assert min(relevance["port"], relevance["age"]) > max(relevance["noise"], relevance["crew"], relevance["class"])


def test_what_training_never_saw_is_told_once():
    frame, survived = passengers()
    model = classifier().fit(frame, survived)
    new = frame[:3].assign(port="Rome")
    with pytest.warns(UserWarning, match="'port': 3 rows hold values that training never saw"):
        model.predict(new)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(frame[:3])


def test_columns_are_checked_by_name_as_in_scikit_learn():
    for frame in (
        pd.DataFrame(X, columns=list("abcd")),
        pd.DataFrame(X, columns=list("abcd")).assign(e=["text", "word"] * (len(X) // 2)),
    ):
        model = regressor().fit(frame, y)
        with pytest.raises(ValueError, match="now missing:\n- b"):
            model.predict(frame.drop(columns="b"))
        with pytest.raises(ValueError, match="same order"):
            model.predict(frame[list(frame.columns[::-1])])
        with pytest.raises(ValueError, match="unseen at fit time:\n- new"):
            model.predict(frame.assign(new=1.0))


def test_an_array_cannot_stand_for_an_encoded_frame():
    frame, survived = passengers()
    model = classifier().fit(frame, survived)
    with pytest.raises(ValueError, match="must be a DataFrame with the columns age, port"):
        model.predict(np.zeros((3, 5)))


def test_files_are_sources_with_targets_inside(tmp_path):
    frame, survived = passengers()
    frame.assign(survived=survived).to_csv(tmp_path / "passengers.csv", index=False)
    source = open_source(tmp_path / "passengers.csv", "survived", cache=tmp_path)
    model = classifier(max_epochs=30).fit(source)
    assert model.classes_.tolist() == ["no", "yes"]
    assert list(model.feature_names_in_) == list(frame.columns)
    assert model.score(frame, survived) > 0.75
    assert (model.predict(source) == model.predict(frame)).all()


def test_rows_of_a_file_are_one_number_per_column_and_labels_are_never_text_again(tmp_path, monkeypatch):
    frame, survived = passengers()
    frame.assign(survived=survived).to_csv(tmp_path / "passengers.csv", index=False)
    source = open_source(tmp_path / "passengers.csv", "survived", classes=["yes", "unknown", "no"])
    assert source.rows(np.arange(3))[0].shape == (3, 5)
    monkeypatch.setattr(Labels, "__array__", None)
    model = classifier().fit(source)
    assert model.classes_.tolist() == ["no", "yes"]
    assert (
        model.model_.inducing_inputs.shape[-1] == 10
    )  # age and a gap, three ports and a gap, two classes, crew, noise
    assert (model.predict(source) == classifier().fit(frame, survived).predict(frame)).mean() > 0.95


def test_a_file_of_numbers_serves_arrays_and_frames_later(tmp_path):
    frame = pd.DataFrame(X, columns=list("abcd"))
    frame.assign(y=y).to_csv(tmp_path / "iris.csv", index=False)
    model = regressor().fit(open_source(tmp_path / "iris.csv", "y", dtype="float64", cache=tmp_path))
    with pytest.warns(UserWarning, match="feature names"):  # scikit-learn's own
        found = model.predict(X)
    assert (found == model.predict(frame)).all()
    assert np.abs(found - regressor().fit(X, y).predict(X)).max() < 1e-9


class Waves:
    """Rows that exist only when they are asked for."""

    def __len__(self):
        return 1000

    def rows(self, indices):
        x = indices[:, None] / 100
        return x, np.sin(x[:, 0])


def test_any_object_with_a_length_and_rows_is_data():
    model = regressor(n_inducing=20, max_epochs=30).fit(Waves(), eval_set=Waves())
    grid = np.linspace(1, 9, 20)[:, None]
    assert np.abs(model.predict(grid) - np.sin(grid[:, 0])).max() < 0.1
    assert len(model.predict(Waves())) == 1000
    labelled = classifier(max_epochs=30).fit(Waves(), np.arange(1000) > 333)
    assert labelled.predict([[0.0], [9.0]]).tolist() == [False, True]


def test_sources_without_targets_need_y():
    with pytest.raises(ValueError, match="the source has no targets"):
        regressor().fit(ArraySource(X))
    with pytest.raises(ValueError, match="X has 150 rows, but y has 3"):
        regressor().fit(ArraySource(X), y[:3])
    model = regressor().fit(ArraySource(X), y)
    with pytest.raises(ValueError, match="X has 2 features, but GPRegressor is expecting 4"):
        model.predict(ArraySource(X[:, :2]))


def test_a_class_too_rare_for_the_sample_that_training_starts_from(monkeypatch):
    monkeypatch.setattr("autogp.training.start.SAMPLE_ROWS", 20)
    labels = np.array(["a", "b"])[np.arange(200) % 2].astype(object)
    labels[7] = "rare"
    x = np.random.default_rng(0).standard_normal((200, 3))
    model = GPClassifier(5, max_epochs=1, share_kernel=False).fit(x, labels)
    assert model.predict_proba(x).shape == (200, 3)


def test_a_file_with_an_encoding_of_its_own_is_refused(tmp_path):
    ports = np.array(["Bari", "Cork", "Oslo"])[np.arange(90) % 3]
    frame = pd.DataFrame(
        {
            "age": np.arange(90.0),
            "port": ports,
            "paid": np.where((ports == "Cork") ^ (np.arange(90) % 11 == 0), "yes", "no"),
        }
    )
    frame.to_csv(tmp_path / "train.csv", index=False)
    frame.replace("Bari", "Rome").to_csv(tmp_path / "new.csv", index=False)
    model = classifier().fit(open_source(tmp_path / "train.csv", "paid"))
    with pytest.raises(ValueError, match=r"open_source\(path, encoder=model.encoder_\)"):
        model.predict(open_source(tmp_path / "new.csv", "paid"))
    again = model.predict(open_source(tmp_path / "new.csv", encoder=model.encoder_))
    with pytest.warns(UserWarning, match="Rome"):
        np.testing.assert_array_equal(again, model.predict(pd.read_csv(tmp_path / "new.csv")[["age", "port"]]))


@pytest.mark.parametrize("as_frame", [True, False])
def test_columns_in_another_order_are_refused(tmp_path, as_frame):
    frame = pd.DataFrame(X, columns=list("abcd")).assign(y=y)
    frame.to_csv(tmp_path / "train.csv", index=False)
    frame[list("ydcba")].to_csv(tmp_path / "new.csv", index=False)
    model = classifier()
    model.fit(frame[list("abcd")], y) if as_frame else model.fit(open_source(tmp_path / "train.csv", "y"))
    with pytest.raises(ValueError, match="columns or an encoding of its own"):
        model.predict(open_source(tmp_path / "new.csv", "y"))
    named = open_source(tmp_path / "new.csv", columns=list(model.feature_names_in_))
    np.testing.assert_allclose(model.predict_proba(named), model.predict_proba(frame[list("abcd")]), atol=1e-6)


class Interchange:
    """A frame that speaks the protocol of DataFrames and nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.shape = table.shape

    def __len__(self) -> int:
        return len(self.table)

    def __dataframe__(self, *arguments, **options):
        return self.table.__dataframe__(*arguments, **options)


def test_frames_of_other_libraries_are_read_as_those_of_pandas():
    frame = pd.DataFrame({"a": X[:, 0], "c": ["x", "y", "z"] * (len(X) // 3) + ["x"] * (len(X) % 3)})
    expected = regressor().fit(frame, y).predict(frame)
    for other in (pa.Table.from_pandas(frame), Interchange(pa.Table.from_pandas(frame)), frame.convert_dtypes()):
        np.testing.assert_allclose(regressor().fit(other, y).predict(other), expected)


def test_numbers_in_disguise_are_inputs_and_the_user_says_what_is_categorical(tmp_path):
    frame = pd.DataFrame({"price": [f"${1000 * value:,.2f}" for value in X[:, 0]], "zip": np.arange(len(X)) % 4})
    model = regressor(categorical=["zip"]).fit(frame, y)
    assert list(model.encoder_.categories) == ["zip"]
    model.save(tmp_path / "model.autogp")
    np.testing.assert_array_equal(load_model(tmp_path / "model.autogp").predict(frame), model.predict(frame))
    with pytest.raises(ValueError, match="categorical names columns of a DataFrame, which X is not"):
        model.fit(X, y)
    with pytest.warns(UserWarning, match="column 'customer_id' is left out: it has another whole number in every row"):
        model.set_params(categorical=None).fit(frame.assign(customer_id=np.arange(len(X))), y)


class ArrowFrame:
    """As polars has it: the protocol of Arrow, `rows` and `columns`, text and categories in views."""

    def __init__(self, table: pa.Table):
        self.table = table
        self.columns, self.shape = table.column_names, table.shape

    def __len__(self) -> int:
        return len(self.table)

    def rows(self) -> list:
        return [tuple(row.values()) for row in self.table.to_pylist()]

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def test_frames_that_have_rows_and_text_in_views_are_tables():
    rng = np.random.default_rng(0)
    kind = rng.choice(["u", "v"], 60)
    views = pa.array(kind.tolist(), pa.string_view())
    categories = pa.DictionaryArray.from_arrays((kind == "v").astype(np.uint32), pa.array(["u", "v"], pa.string_view()))
    table = pa.table({"a": rng.normal(size=60), "text": views, "kind": categories})
    y = table["a"].to_numpy() + (kind == "v") + 0.1 * rng.normal(size=60)
    model = GPRegressor(10, likelihood="gaussian", max_epochs=20, random_state=0).fit(ArrowFrame(table), y)
    assert model.encoder_.categories == {"text": ["u", "v"], "kind": ["u", "v"]}
    plain = ArrowFrame(pa.table({"a": table["a"], "text": kind.tolist(), "kind": kind.tolist()}))
    np.testing.assert_allclose(model.predict(ArrowFrame(table)), model.predict(plain), rtol=1e-12)


def test_a_frame_that_is_still_to_be_collected_is_refused():
    class LazyFrame:
        def collect(self): ...

    with pytest.raises(ValueError, match=r"X is a LazyFrame, which holds no rows yet: pass X.collect\(\)"):
        GPRegressor().fit(LazyFrame(), [1.0])


def test_targets_as_texts_and_truth_values_are_numbers():
    prices = [f"${1000 * price:,.2f}" for price in X[:, 0]]
    mean = regressor().fit(X, prices).predict(X)
    np.testing.assert_allclose(mean, regressor().fit(X, 1000 * X[:, 0]).predict(X), rtol=1e-6)
    assert np.isfinite(regressor(likelihood="auto").fit(X, y == 1).predict(X)).all()
    for wrong, message in (
        (["owl"] * 150, "y holds 'owl' in row 0"),
        (pd.date_range("2024", periods=150), "y holds dates"),
    ):
        with pytest.raises(ValueError, match=message):
            regressor().fit(X, wrong)


def test_frames_with_repeated_names_or_none_are_refused():
    with pytest.raises(ValueError, match="column 'a' appears more than once"):
        regressor().fit(pd.DataFrame(X[:, :2], columns=["a", "a"]), y)
    with pytest.raises(ValueError, match=r"0 feature\(s\), that is no columns"):
        regressor().fit(pd.DataFrame(index=range(150)), y)
