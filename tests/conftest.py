"""What all tests share."""

import signal

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """The matrices of the tests are small: a second thread only waits for the first."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="session")
def interruptible():
    """A shell that runs the tests in the background has them ignore SIGINT, and the programs that they start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
