"""Speed of the features of images, beside that of matrix products: `python -m benchmarks.images` (half a minute)."""

import math
import time

import numpy as np
import torch

from autogp.features import Convolutional
from autogp.features.patches import PatchLayer, patches_of
from autogp.features.whitening import Whitening

ROUNDS = 5
CASES = {  # shape, layers, whether the ground is blank, as that of drawings: these are not whitened
    "28 x 28, 64 and 200 filters (default), drawings": ((28, 28), None, True),
    "28 x 28, 64 and 200 filters (default), whitened": ((28, 28), None, False),
    "28 x 28, 64 and 200 filters, pooling 2, 3, drawings": ((28, 28), [(64, 5, 2), (200, 3, 3)], True),
    "32 x 32 x 3, 128 and 512 filters, whitened": ((32, 32, 3), [(128, 5, 3), (512, 3, 3)], False),
}


def flops(features: Convolutional) -> float:
    """Multiplications and additions that one image needs, in products of matrices alone."""
    shape = (*features.image_shape, 1)[:3]
    x, total = torch.zeros(1, *shape), 0.0
    for layer in features.fitted:
        if isinstance(layer, Whitening):
            total += 2 * shape[0] * shape[1] * layer.weights.numel()
            continue
        assert isinstance(layer, PatchLayer)
        places, width = patches_of(x, layer.size).shape[1:3].numel(), layer.filters.shape[1]
        down, across = (length - layer.size + 1 for length in x.shape[1:3])
        total += 2 * places * width * len(layer.filters)
        x = layer(x)
        count = len(layer.filters)
        total += 2 * count * (x.shape[1] * down * across + x.shape[1] * x.shape[2] * across)  # pooling
        total += 2 * x.shape[1:3].numel() * layer.projection.numel()
    assert features.directions is not None  # fitted
    return total + 2 * features.directions.numel()


def cpu_seconds(work, *arguments) -> float:
    """The least CPU time of several rounds."""
    found = math.inf
    for _ in range(ROUNDS):
        start = time.process_time()
        work(*arguments)
        found = min(found, time.process_time() - start)
    return found


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    left, right = torch.randn(4096, 576), torch.randn(576, 200)
    rng = np.random.default_rng(0)
    for name, (shape, layers, blank) in CASES.items():
        images = rng.integers(0, 256, (400, *shape), dtype=np.uint8)
        if blank:
            images[:, : shape[0] // 2] = 0
        features = Convolutional(shape, layers=layers, num_components=100).fit(images)
        x = torch.from_numpy(images)
        features(x)  # warm
        seconds = cpu_seconds(features, x) / len(x)
        product = cpu_seconds(torch.mm, left, right) / (2 * left.numel() * right.shape[1])  # per operation
        share = flops(features) * product / seconds
        print(
            f"{name}: {1 / seconds:,.0f} images a second and core, {flops(features) / 1e6:.1f} MFLOP each, "
            f"{share:.0%} of the rate of matrix products ({1e-9 / product:.0f} GFLOP/s)",
            flush=True,
        )


if __name__ == "__main__":
    main()
