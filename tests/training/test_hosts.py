"""Two hosts made of network namespaces, joined by a link of 1 Gb/s that is cut for a while, or for good."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
PROGRAM = Path(__file__).with_name("distributed_run.py")


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Names of two namespaces, with addresses 10.77.0.1 and 10.77.0.2."""
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        pytest.skip("network namespaces need root, ip and tc")
    names = [f"autogp-{os.getpid()}-{number}" for number in (1, 2)]
    try:
        try:
            for name in names:
                ip("netns", "add", name)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
        ip("link", "add", "link0", "netns", names[0], "type", "veth", "peer", "name", "link0", "netns", names[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "link0")
            for device in ("lo", "link0"):
                ip("-n", name, "link", "set", device, "up")
            shape = ["tc", "-n", name, "qdisc", "add", "dev", "link0", "root", "tbf"]
            subprocess.run([*shape, "rate", "1gbit", "burst", "256kb", "latency", "50ms"], check=True)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def start(hosts: list[str], folder: Path, **environment: str) -> list[subprocess.Popen]:
    common = {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29400", "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "link0"}
    command = [sys.executable, str(PROGRAM), str(folder / "run"), str(folder / "result.npy"), "--epochs", "60"]
    return [
        subprocess.Popen(
            ["ip", "netns", "exec", name, *command],
            env={**os.environ, **common, "RANK": str(rank), **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, name in enumerate(hosts)
    ]


def cut_after_some_steps(hosts: list[str], folder: Path) -> None:
    end = time.monotonic() + 300
    while not any(int(path.stem[5:]) >= 20 for path in folder.glob("run/step-*.safetensors")):
        assert time.monotonic() < end
        time.sleep(0.01)
    ip("-n", hosts[0], "link", "set", "link0", "down")


def test_a_link_that_is_cut_for_a_while_changes_nothing(hosts: list[str], tmp_path: Path) -> None:
    for name in ("expected", "cut"):
        (tmp_path / name).mkdir()
        running = start(hosts, tmp_path / name)
        if name == "cut":
            cut_after_some_steps(hosts, tmp_path / name)
            assert [process.poll() for process in running] == [None, None]
            time.sleep(8)
            assert [process.poll() for process in running] == [None, None], "they wait"
            ip("-n", hosts[0], "link", "set", "link0", "up")
        told = [process.communicate(timeout=600)[1] for process in running]
        assert [process.returncode for process in running] == [0, 0], told
    expected, found = (np.load(tmp_path / name / "result.npy") for name in ("expected", "cut"))
    np.testing.assert_array_equal(found, expected)


def test_a_link_that_stays_cut_ends_both_with_a_message_within_the_time_out(hosts: list[str], tmp_path: Path) -> None:
    running = start(hosts, tmp_path, AUTOGP_TIMEOUT="10")
    try:
        cut_after_some_steps(hosts, tmp_path)
        began = time.monotonic()
        for rank, process in enumerate(running):
            told = process.communicate(timeout=120)[1]
            assert process.returncode == 1
            assert f"process {rank} lost contact with the others" in told
            assert "has not answered for 10 seconds (AUTOGP_TIMEOUT)" in told
        assert time.monotonic() - began < 60
    finally:
        for process in running:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.communicate()
