"""Tables by address: a local path, and a server that speaks S3's protocol where moto is installed."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, fs, parquet
from typer.testing import CliRunner

from autogp.cli import app
from autogp.data import open_source, read_rows


def table(rows: int = 60) -> pa.Table:
    rng = np.random.default_rng(0)
    x = rng.normal(size=rows)
    y = np.where(x + rng.normal(size=rows) > 0, "yes", "no")
    return pa.table({"x": x, "port": ["Cork", "Bari", "Oslo"] * (rows // 3), "y": y})


def test_an_address_of_a_local_file_is_the_file(tmp_path: Path) -> None:
    csv.write_csv(table(), tmp_path / "rows of may.csv")
    address = (tmp_path / "rows of may.csv").as_uri()
    expected, found = open_source(tmp_path / "rows of may.csv", "y"), open_source(address, "y")
    np.testing.assert_array_equal(found.x, expected.x)
    with pytest.raises(FileNotFoundError, match=r"there is no file file:///.*/june.csv"):
        open_source((tmp_path / "june.csv").as_uri(), "y")
    with pytest.raises(ValueError, match=r"zzz://rows.csv cannot be opened: Unrecognized filesystem"):
        open_source("zzz://rows.csv", "y")


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The address of a folder of Parquet files and of one CSV file in a bucket, with a %s for the name."""
    server = pytest.importorskip("moto.server", reason="needs a server of S3's protocol: pip install 'moto[s3,server]'")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    port = running.get_host_and_port()[1]
    place = f"127.0.0.1:{port}"
    system = fs.S3FileSystem(
        access_key="key", secret_key="secret", endpoint_override=place, scheme="http", allow_bucket_creation=True
    )
    system.create_dir("trips")
    for number in range(3):
        parquet.write_table(table().slice(20 * number, 20), f"trips/rows/{number}.parquet", filesystem=system)
    with system.open_output_stream("trips/rows.csv.gz", compression="gzip") as file:
        csv.write_csv(table(), file)
    yield f"s3://key:secret@trips/%s?scheme=http&endpoint_override={place}"
    running.stop()


def test_a_table_in_a_bucket_is_read_like_a_file(bucket: str, tmp_path: Path) -> None:
    csv.write_csv(table(), tmp_path / "rows.csv")
    expected = open_source(tmp_path / "rows.csv", "y")
    assert expected.encoder is not None
    for name in ("rows", "rows/", "rows.csv.gz"):
        found = open_source(bucket % name, "y", cache=tmp_path / "cache")
        np.testing.assert_array_equal(found.x, expected.x)
        assert (found.y.tolist(), found.classes) == (expected.y.tolist(), ["no", "yes"])
        pieces = [x for x, _ in read_rows(bucket % name, expected.encoder)]
        np.testing.assert_allclose(np.concatenate(pieces), expected.x, rtol=1e-6)
    with pytest.raises(FileNotFoundError, match=r"there is no file s3://trips/june.csv$"):
        open_source(bucket % "june.csv", "y")


def test_the_commands_take_addresses(bucket: str, tmp_path: Path) -> None:
    model = str(tmp_path / "model.autogp")

    def run(*arguments: str) -> dict:
        found = CliRunner().invoke(app, [*arguments, "--json"])
        assert found.exit_code == 0, found.output
        return json.loads(found.stdout)

    run("fit", bucket % "rows", "--target", "y", "--inducing", "5", "--epochs", "2", "--out", model)
    assert run("evaluate", model, bucket % "rows")["rows"] == 60
    assert run("predict", model, bucket % "rows.csv.gz", "--out", str(tmp_path / "found.csv"))["rows"] == 60
