"""What all tests share."""

import os
import signal

import pytest

# The matrices of the tests are small, and tests run on all cores at once: one thread each, also in programs that they
# start. Libraries read this when they are imported.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"


@pytest.fixture(autouse=True, scope="session")
def interruptible():
    """A shell that runs the tests in the background has them ignore SIGINT, and the programs that they start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
