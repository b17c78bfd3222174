"""One training with checkpoints, for tests of what happens when a process dies, hangs or is told to stop.

python distributed_run.py FOLDER RESULT.npy [--kills COUNT] [--stop-at STEP] [--signal-at STEP]
"""

import argparse
import os
import random
import signal
import threading
import time
from pathlib import Path

import numpy as np
import torch

from autogp.data import ArraySource
from autogp.kernels import RBF
from autogp.likelihoods import Softmax
from autogp.model import SparseGP
from autogp.training import Settings, train
from autogp.training.distributed import Processes, processes


def kill_at_random(folder: Path, among: Processes, kills: int) -> None:
    """SIGKILL for one process after another, some milliseconds after one of the next three steps was saved."""
    counter, chance = folder.with_name("kills"), random.SystemRandom()
    happened = len(counter.read_bytes()) if counter.exists() else 0

    def newest() -> int:
        return max((int(path.stem[5:]) for path in folder.glob("step-*.safetensors")), default=0)

    def wait() -> None:
        last = newest() + chance.randrange(4)
        while newest() < last:
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.02))
        with counter.open("ab") as file:
            file.write(b".")
        os.kill(os.getpid(), signal.SIGKILL)

    if happened < kills and among.rank == happened % among.count:
        threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--stop-at", type=int, default=0)
    parser.add_argument("--signal-at", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=6)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(203, 2))
    y = (x[:, 0] + 0.5 * rng.normal(size=203) > 0) + (x[:, 1] > 1).astype(np.int64)
    model = SparseGP(RBF([1.0, 1.5]), Softmax(3), torch.from_numpy(x[::20]))
    among = processes()
    kill_at_random(wanted.folder, among, wanted.kills)

    def act(progress) -> None:
        if progress.step == wanted.stop_at:
            os.kill(os.getpid(), signal.SIGSTOP)
        if progress.step == wanted.signal_at:
            os.kill(os.getpid(), signal.SIGTERM)

    # A checkpoint after every step: a process is killed as likely in a save as in a step.
    settings = Settings(batch_size=20, max_epochs=wanted.epochs, checkpoint_seconds=1e-9)
    train(model, ArraySource(x, y), settings, folder=wanted.folder, resume=True, callbacks=[act], verbose=False)
    if among.first:
        np.save(wanted.result, torch.cat([tensor.double().ravel() for tensor in model.state_dict().values()]).numpy())


if __name__ == "__main__":
    main()
