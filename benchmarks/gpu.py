"""A training step on a GPU beside the CPU: milliseconds, memory, kernels launched, and waits of the host.

    python -m benchmarks.gpu [--device cuda] [--seconds S]

The first column of checks says by how much the parameters after a step differ from those of the CPU. A step should wait
for the device once, where `apply` reads the value; more waits, or many small kernels, are what to look for where
a GPU is no faster. Whole runs take `device="cuda"`; several GPUs `torchrun --nproc-per-node N`, one for each process.
"""

import argparse
import time
import warnings
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from autogp.kernels import RBF
from autogp.likelihoods import Softmax
from autogp.model import SparseGP
from autogp.posteriors import Natural
from autogp.training.optimisers import Adam
from autogp.training.step import Batch, apply, natural_statistics

# Inducing inputs, classes, inputs, rows; a kernel and inducing inputs for each class.
CASES = ((200, 10, 784, 1000), (200, 10, 80, 1000), (200, 10, 80, 10_000), (1000, 10, 80, 1000), (200, 2, 20, 1000))


class Step:
    """Steps of one model on one batch."""

    def __init__(self, case: tuple[int, int, int, int], device: str):
        inducing, classes, inputs, rows = case
        generator = torch.Generator().manual_seed(0)
        x, y = torch.randn(rows, inputs, generator=generator), torch.randint(0, classes, (rows,), generator=generator)
        z = torch.randn(classes, inducing, inputs, generator=generator)
        kernel = RBF(torch.full((classes, inputs), inputs**0.5), torch.full((classes,), 5.0))
        self.model = SparseGP(kernel, Softmax(classes), z).to(device)
        self.batch = Batch(x.to(device), y.to(device), torch.full((rows,), 60_000 / rows, device=device))
        self.parameters = [self.model.inducing_inputs, *self.model.kernel.parameters()]
        self.q, self.optimiser = Natural.of(self.model.posterior), Adam(self.parameters)

    def __call__(self) -> None:
        found = natural_statistics(self.model, self.batch, "elbo", self.parameters, self.q)
        apply(found, self.optimiser, [1e-3] * len(self.parameters), self.q, 0.1)


def waits(step: Step) -> int:
    """How often the host waits for the device in a step."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(each.message) for each in found)


def launches(step: Step) -> int:
    """How many kernels a step starts."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        step()
    return sum(event.count for event in profiled.key_averages() if event.key.startswith(("cudaLaunch", "cuLaunch")))


def measured(case: tuple[int, int, int, int], device: str, seconds: float) -> dict[str, Any]:
    step, cuda = Step(case, device), device.startswith("cuda")
    for _ in range(3):
        step()
    state = [parameter.detach().double().cpu() for parameter in step.parameters]
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        step()
        count += 1
    if cuda:
        torch.cuda.synchronize()
    found = {"ms": 1e3 * (time.perf_counter() - started) / count, "state": state}
    if cuda:
        found |= {"kernels": launches(step), "waits": waits(step), "MB": round(torch.cuda.max_memory_allocated() / 1e6)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    options = parser.parse_args()
    name = torch.cuda.get_device_name() if options.device.startswith("cuda") else "no GPU: the CPU beside itself"
    print(f"{name}; torch {torch.__version__}; {torch.get_num_threads()} threads\n")
    print("| M | classes | inputs | rows | CPU | device | difference | kernels | waits | MB |\n|" + "---|" * 10)
    for case in CASES:
        cpu, own = measured(case, "cpu", options.seconds), measured(case, options.device, options.seconds)
        pairs = zip(cpu["state"], own["state"], strict=True)
        apart = max(((a - b).abs().max() / a.abs().max()).item() for a, b in pairs)
        cells = [*case, f"{cpu['ms']:.1f} ms", f"{own['ms']:.1f} ms", f"{apart:.1e}"]
        print(f"| {' | '.join(map(str, [*cells, *(own.get(name, '-') for name in ('kernels', 'waits', 'MB'))]))} |")


if __name__ == "__main__":
    main()
