"""Memory that a training keeps from step to step."""

import contextlib
import ctypes
import platform
from collections.abc import Iterator

__all__ = ["kept_memory"]

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # glibc's numbers for mallopt
KEPT_BYTES = 2**30
USUAL_BYTES = 2**25  # where glibc's own thresholds end after large blocks were freed


@contextlib.contextmanager
def kept_memory() -> Iterator[None]:
    """Within this block freed memory stays with the process; after it, what is freed goes back to the system.

    Each step allocates what the step before has freed. glibc hands large blocks back at once, so that a step would wait
    for thousands of page faults.
    """
    if platform.libc_ver()[0] != "glibc":
        yield
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(MMAP_THRESHOLD, KEPT_BYTES)
    libc.mallopt(TRIM_THRESHOLD, KEPT_BYTES)
    try:
        yield
    finally:
        libc.mallopt(MMAP_THRESHOLD, USUAL_BYTES)
        libc.mallopt(TRIM_THRESHOLD, 2 * USUAL_BYTES)
