"""What all tests share."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """The matrices of the tests are small: a second thread only waits for the first."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
