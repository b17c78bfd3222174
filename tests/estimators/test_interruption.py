"""A fit that is interrupted goes on where it was, in the same bits."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from own_parts import long_run, waves

from autogp.training import CheckpointError, Settings

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """The folder of a run that got SIGTERM on its way."""
    folder = tmp_path_factory.mktemp("run")
    process = subprocess.Popen(
        [sys.executable, HERE / "own_parts.py", folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    deadline = time.monotonic() + 300
    while not any(folder.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=300)
    assert process.returncode != 0, "the run was through before it was killed"
    assert process.returncode == 143
    assert "stopped by SIGTERM after step" in errors
    assert "Traceback" not in errors
    return folder


def test_fit_goes_on_after_a_kill(broken, tmp_path):
    X, y = waves()
    # Without random_state: a run with a folder has a seed of its own.
    resumed = long_run(broken).fit(X, y)
    unbroken = long_run(tmp_path / "other").fit(X, y)
    assert len(resumed.history_) == len(unbroken.history_) == 20
    assert (resumed.predict(X) == unbroken.predict(X)).all()


def test_other_data_or_settings_are_refused(broken):
    X, y = waves()
    with pytest.raises(CheckpointError, match="data"):
        long_run(broken).fit(X, y + 1)
    with pytest.raises(CheckpointError, match="learning_rate"):
        long_run(broken).set_params(settings=Settings(learning_rate=0.01)).fit(X, y)


def test_a_finished_run_is_not_run_again(broken):
    X, y = waves()
    start = time.process_time()
    assert np.isfinite(long_run(broken).fit(X, y).predict(X)).all()
    assert time.process_time() - start < 5
