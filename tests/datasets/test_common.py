"""Data sets are found where the user says, and downloads are whole or not there."""

import functools
import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from autogp.datasets.common import data_folder, download, download_archive, folder_sha256, missing, read_numbers

CONTENT = bytes(range(256)) * 3000  # more than one block
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/broken":  # promises more than it sends
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            self.wfile.write(CONTENT)
        else:
            super().do_GET()


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address at which it is served."""
    folder = tmp_path / "publisher"
    folder.mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def write_archive(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def write_folder(path: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def test_the_argument_goes_before_the_environment_and_that_before_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOGP_DATA", "/somewhere")
    assert data_folder("/here") == Path("/here")
    assert data_folder() == Path("/somewhere")
    monkeypatch.delenv("AUTOGP_DATA")
    assert data_folder() == Path.home() / ".cache" / "autogp"


def test_the_error_for_missing_files_names_source_and_place() -> None:
    text = str(missing("MNIST", Path("/data/mnist/x.gz"), "https://example.org"))
    for part in ("MNIST", "/data/mnist/x.gz", "https://example.org", "download=True", "AUTOGP_DATA", "folder="):
        assert part in text


def test_a_download_is_what_the_publisher_has(publisher: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = publisher
    (folder / "rows.bin").write_bytes(CONTENT)
    target = tmp_path / "data" / "set" / "rows.bin"
    download(f"{address}/rows.bin", target, SHA256)
    assert target.read_bytes() == CONTENT
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize(
    ("file", "error", "match"),
    [
        ("other.bin", ValueError, f"other.bin is not what is expected.*{SHA256}"),
        ("absent.bin", ConnectionError, "absent.bin could not be downloaded.*not found.*its place is .*rows.bin"),
        ("broken", ConnectionError, "broke after 768000 of 1000000 bytes"),
    ],
)
def test_a_download_that_fails_leaves_nothing_and_what_was_there(
    publisher: tuple[Path, str], tmp_path: Path, file: str, error: type[Exception], match: str
) -> None:
    folder, address = publisher
    (folder / "other.bin").write_bytes(CONTENT[1:])
    target = tmp_path / "data" / "rows.bin"
    target.parent.mkdir()
    target.write_bytes(b"old")
    with pytest.raises(error, match=match):
        download(f"{address}/{file}", target, SHA256)
    assert target.read_bytes() == b"old"
    assert list(target.parent.iterdir()) == [target]


def test_nobody_at_the_address_is_told_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match=r"http://127.0.0.1:9/x could not be downloaded"):
        download("http://127.0.0.1:9/x", tmp_path / "x", SHA256)


def test_an_archive_becomes_the_folder_of_the_files_that_are_wanted(
    publisher: tuple[Path, str], tmp_path: Path
) -> None:
    folder, address = publisher
    wanted = {"data/a/1.csv": b"1,2\n", "data/b/2.csv": b"3\n"}
    others = {"data/a/notes.txt": b"", "code/run.py": b"", "data/top.csv": b""}
    write_archive(folder / "set.tar.gz", {f"set-1.0/{name}": content for name, content in {**others, **wanted}.items()})
    sha256 = folder_sha256(write_folder(tmp_path / "expected", wanted))
    download_archive(f"{address}/set.tar.gz", tmp_path / "set", ["data/*/*.csv"], sha256)
    found = {path.relative_to(tmp_path / "set").as_posix(): path for path in (tmp_path / "set").rglob("*.*")}
    assert {name: path.read_bytes() for name, path in found.items()} == wanted


@pytest.mark.parametrize(
    ("content", "match"),
    [({"set/data/1.csv": b"changed"}, "is not what is expected"), (None, "not a complete archive")],
)
def test_an_archive_that_is_wrong_leaves_nothing(
    publisher: tuple[Path, str], tmp_path: Path, content: dict[str, bytes] | None, match: str
) -> None:
    folder, address = publisher
    if content is None:
        (folder / "set.tar.gz").write_bytes(b"no archive")
    else:
        write_archive(folder / "set.tar.gz", content)
    with pytest.raises(ValueError, match=match):
        download_archive(f"{address}/set.tar.gz", tmp_path / "data" / "set", ["data/*.csv"], SHA256)
    assert list((tmp_path / "data").iterdir()) == []


def test_an_archive_does_not_touch_a_folder_that_is_there(tmp_path: Path) -> None:
    place = write_folder(tmp_path / "set", {"mine.txt": b"mine"})
    with pytest.raises(FileExistsError, match="some of its files are missing"):
        download_archive("http://127.0.0.1:9/x", place, ["*"], SHA256)
    assert (place / "mine.txt").read_bytes() == b"mine"


def test_the_sum_of_a_folder_tells_names_contents_and_nothing_else(tmp_path: Path) -> None:
    files = {"b/1": b"one", "a": b"two"}
    first = folder_sha256(write_folder(tmp_path / "first", files))
    lines = "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files))
    assert first == hashlib.sha256(lines.encode()).hexdigest()
    assert first == folder_sha256(write_folder(tmp_path / "second", dict(reversed(files.items()))))
    assert first != folder_sha256(write_folder(tmp_path / "third", {"b/2": b"one", "a": b"two"}))
    assert first != folder_sha256(write_folder(tmp_path / "fourth", {"b/1": b"One", "a": b"two"}))


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("1 2\n3 x\n")
    with pytest.raises(ValueError, match=r"rows.txt is damaged.*'x'.*from the publisher"):
        read_numbers(tmp_path / "rows.txt", "the publisher")
    with pytest.raises(FileNotFoundError, match=r"other.txt is missing.*from the publisher"):
        read_numbers(tmp_path / "other.txt", "the publisher")
