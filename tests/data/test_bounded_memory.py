"""Files larger than the memory allowed are summarised and batched all the same."""

import subprocess
import sys
from pathlib import Path

import numpy as np

# In a process of its own, whose memory is its own. Pages of a mapped file are the system's to take back, so the limit
# is on private memory: beyond it, allocation fails.
ARRAY = """
import resource, sys
import numpy as np
from autogp.data import Batches, check_finite, fingerprint, open_source, prefetch, summarise

def private():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))

source = open_source(sys.argv[1])
limit = private() + 200 * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    np.array(source.x)
except MemoryError:
    pass
else:
    sys.exit("the limit does not hold")
summary = summarise(source)
assert summary.rows == len(source)
check_finite(source)
fingerprint(source)
assert sum(len(x) for _, x, _ in prefetch(Batches(source, 1000, seed=0), 0, 400)) == len(source)
"""

TABLE = """
import resource, sys
from autogp.data import open_source

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

open_source(sys.argv[2], "c0")
before = peak()
source = open_source(sys.argv[1], "c0")
print(len(source), peak() - before)
"""


def run(program: str, *arguments: Path) -> str:
    # The package's folder first, so that the same tree is tested whether or not it is installed.
    package = str(Path(__file__).parents[2] / "src")
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {package!r})\n{program}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_array_of_400_megabytes_is_streamed_in_200(tmp_path: Path) -> None:
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", dtype=np.float32, shape=(400_000, 250))
    # The file is sparse on disk: zeros everywhere but here.
    x[::100_000] = 1
    del x
    run(ARRAY, tmp_path / "x.npy")


def test_csv_of_200_megabytes_is_read_in_100(tmp_path: Path) -> None:
    names = ",".join(f"c{number}" for number in range(20)) + "\n"
    line = ",".join(f"{number / 7:.6f}" for number in range(20)) + "\n"
    rows = 200 * 2**20 // len(line)
    (tmp_path / "warm.csv").write_text(names + line)
    with (tmp_path / "large.csv").open("w") as file:
        file.write(names)
        file.writelines([line * 1000] * (rows // 1000))
    length, growth = map(int, run(TABLE, tmp_path / "large.csv", tmp_path / "warm.csv").split())
    assert length == rows // 1000 * 1000
    assert growth < 100 * 2**20


def test_csv_of_100_megabytes_with_text_and_missing_values_is_read_in_100(tmp_path: Path) -> None:
    names = ",".join(f"c{number}" for number in range(12)) + "\n"
    lines = [
        f"{number},{'' if number % 3 else number},name {number},{'ab'[number % 2]},"
        + ",".join(f"{number / 7:.6f}" for _ in range(8))
        + "\n"
        for number in range(1000)
    ]
    block = "".join(lines)
    (tmp_path / "warm.csv").write_text(names + block)
    with (tmp_path / "large.csv").open("w") as file:
        file.write(names)
        file.writelines([block] * (100 * 2**20 // len(block)))
    length, growth = map(int, run(TABLE, tmp_path / "large.csv", tmp_path / "warm.csv").split())
    assert length == 100 * 2**20 // len(block) * 1000
    assert growth < 100 * 2**20
