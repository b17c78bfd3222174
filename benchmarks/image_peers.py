"""Other methods on the images of an experiment: `python -m benchmarks.image_peers mnist --minutes 4`.

Ridge regression and a linear support vector machine on the features of the preset `images`; a support vector machine
with an RBF kernel on pixels, with as many rows as it learns from in these minutes; a convolutional network that is
trained for as many minutes. Minutes are CPU time of one thread, so that other processes hardly matter. Scores of test
rows go to results/images/peers-NAME.json. With `--validation` the network is trained without a tenth of the training
rows, and scored on these instead; nothing is written. `--table` prints a table of all such files, our own runs beside
them.
"""

import argparse
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, RidgeClassifierCV
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from torch import Tensor, nn

from autogp.datasets import Dataset
from autogp.experiments import EXPERIMENTS
from autogp.experiments.record import plain, read_json, write_json
from autogp.metrics import class_scores

NAMES = ("digits", "mnist", "cifar10", "rectangles")
MIRRORED = ("cifar10", "rectangles")  # left and right do not matter
HELD_SHARE = 0.1  # of the rows, by which the SVM's probabilities are calibrated
TRIAL_ROWS = 2_000  # by which its C and gamma are chosen, and its time foreseen
BATCH = 128
WARM_UP = 0.1  # of the minutes
SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=NAMES)
    parser.add_argument("--minutes", type=float, default=3.0, help="of CPU time, of the network and the SVM on pixels")
    parser.add_argument("--width", type=int, default=32, help="channels of the network's first convolutions")
    parser.add_argument("--rate", type=float, default=0.1, help="its largest learning rate")
    parser.add_argument("--only", choices=list(PEERS), nargs="*", default=list(PEERS))
    parser.add_argument("--validation", action="store_true", help="score the network on training rows held out")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--table", action="store_true", help="only print the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.validation:
        print(options.width, options.rate, network(without_a_tenth(loaded(options.name)), options))
        return
    if not options.table:
        measure(options, options.results / "images" / f"peers-{options.name}.json")
    print(table(options.results))


def measure(options: argparse.Namespace, path: Path) -> None:
    """Peer by peer; the file grows with each, so that an interrupted run keeps what it has."""
    data = loaded(options.name)
    for peer in options.only:
        started = time.process_time()
        for method, scores in PEERS[peer](data, options).items():
            found = (read_json(path) or {}).get("peers", {})
            found[peer] = {"method": method, "scores": scores, "cpu_seconds": time.process_time() - started}
            write_json(path, plain({"experiment": options.name, "peers": found}))
            print(found[peer], flush=True)


def loaded(name: str) -> Dataset:
    return EXPERIMENTS[name].runs("images", SEED)[0].load()


def without_a_tenth(data: Dataset) -> Dataset:
    """Training rows alone, a tenth of them in the place of the test rows."""
    order = np.random.default_rng(SEED).permutation(len(data.y_train))
    held, kept = np.split(order, [len(order) // 10])
    x, y = data.x_train, data.y_train
    return Dataset(data.name, x[kept], y[kept], x[held], y[held])


def on_features(peer: Any, name: str) -> Callable[[Dataset, argparse.Namespace], dict[str, dict[str, float]]]:
    """A method without probabilities, on standardised features of the preset `images`."""

    def work(data: Dataset, options: argparse.Namespace) -> dict[str, dict[str, float]]:
        features = EXPERIMENTS[options.name].runs("images", SEED)[0].arguments()["features"]
        train, test = (features.fit(data.x_train, seed=SEED).transform(x) for x in (data.x_train, data.x_test))
        scaler = StandardScaler().fit(train)
        peer.fit(scaler.transform(train), data.y_train)
        return {name: {"error": float(np.mean(peer.predict(scaler.transform(test)) != data.y_test))}}

    return work


def machine(data: Dataset, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """C and gamma by some rows held out; probabilities by a logistic regression of its decision values for a tenth."""
    scale = float(data.x_train.max())
    order = np.random.default_rng(SEED).permutation(len(data.y_train))
    x, y = data.x_train[order] / np.float32(scale), data.y_train[order]
    count = min(TRIAL_ROWS, len(x) // 2)
    first, then = slice(count), slice(count, 2 * count)
    started = time.process_time()
    gamma = 1 / (x.shape[1] * x[first].var())
    choices = [{"C": c, "gamma": g * gamma} for c, g in product((3, 10, 30), (0.3, 1, 3))]
    best = max(choices, key=lambda each: SVC(**each).fit(x[first], y[first]).score(x[then], y[then]))
    spent = time.process_time() - started
    started = time.process_time()
    SVC(**best).fit(x[first], y[first])
    of_trial = time.process_time() - started
    left = max(0.0, 60 * options.minutes - spent) / of_trial  # and time grows with the square of the rows
    rows = int(min(len(x) * (1 - HELD_SHARE), count * left**0.5))
    held = slice(rows, rows + max(round(rows * HELD_SHARE / (1 - HELD_SHARE)), 100))
    found: Any = SVC(**best, cache_size=2000, decision_function_shape="ovr").fit(x[:rows], y[:rows])
    values, tested = (
        np.asarray(found.decision_function(part)).reshape(len(part), -1) for part in (x[held], data.x_test / scale)
    )
    calibrated = LogisticRegression(max_iter=1000).fit(values, y[held])
    scores = class_scores(data.y_test, calibrated.predict_proba(tested))
    scores["error"] = float(np.mean(found.predict(data.x_test / scale) != data.y_test))
    return {f"SVM with an RBF kernel on pixels, {rows:,} rows": scores}


def network(data: Dataset, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """SGD with momentum, a rate that rises and then falls to 0 by a cosine as the time runs out; shifted images."""
    torch.manual_seed(SEED)
    shape = EXPERIMENTS[options.name].runs("images", SEED)[0].arguments()["features"].image_shape
    planes = shape if len(shape) == 3 else (1, *shape)
    x, test = (torch.from_numpy(np.array(each)).reshape(-1, *planes) for each in (data.x_train, data.x_test))
    y = torch.from_numpy(np.array(data.y_train, np.int64))
    mean, deviation = (x[:5000].float().mean((0, 2, 3), keepdim=True), x[:5000].float().std((0, 2, 3), keepdim=True))
    model = convolutions(planes[0], min(planes[1:]), int(y.max()) + 1, options.width)
    rate = options.rate
    optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, nesterov=True, weight_decay=5e-4)
    start, seen = time.process_time(), 0
    while (spent := (time.process_time() - start) / (60 * options.minutes)) < 1:
        for group in optimiser.param_groups:
            group["lr"] = rate * min(spent / WARM_UP, 0.5 * (1 + np.cos(np.pi * spent)))
        rows = torch.randint(len(x), (BATCH,))
        images = shifted((x[rows].float() - mean) / deviation, options.name in MIRRORED)
        loss = nn.functional.cross_entropy(model(images.contiguous(memory_format=torch.channels_last)), y[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        seen += BATCH
    model.eval()
    with torch.no_grad():
        found: list[Tensor] = [model((part.float() - mean) / deviation).softmax(1) for part in test.split(1000)]
    name = f"convolutional network, {options.minutes:g} min, {seen / len(x):.1f} epochs"
    return {name: class_scores(data.y_test, torch.cat(found).double().numpy())}


def shifted(x: Tensor, mirrored: bool) -> Tensor:
    """Images [B, C, H, W], each shifted by an eighth of its side at most, every other one mirrored if that is right."""
    batch, _, height, width = x.shape
    most = min(height, width) // 8
    padded = nn.functional.pad(x, (most,) * 4, mode="replicate")
    down, across = (torch.randint(2 * most + 1, (batch, 1)) + torch.arange(side) for side in (height, width))
    if mirrored:
        across = torch.where(torch.rand(batch, 1) < 0.5, across.flip(1), across)
    return padded[torch.arange(batch)[:, None, None], :, down[:, :, None], across[:, None]].permute(0, 3, 1, 2)


def convolutions(channels: int, side: int, classes: int, width: int) -> nn.Module:
    """Three pairs of 3 x 3 convolutions with batch normalisation; each pair has twice as many channels as the last."""
    layers: list[nn.Module] = []
    for count in (width, 2 * width, 4 * width):
        for _ in range(2):
            layers += [nn.Conv2d(channels, count, 3, padding=1, bias=False), nn.BatchNorm2d(count), nn.ReLU()]
            channels = count
        if side >= 4:
            layers.append(nn.MaxPool2d(2))
            side //= 2
    layers += [nn.Flatten(), nn.Linear(channels * side**2, classes)]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)  # pyright: ignore


PEERS: dict[str, Callable[[Dataset, argparse.Namespace], dict[str, dict[str, float]]]] = {
    "ridge": on_features(RidgeClassifierCV(np.logspace(-1, 4, 11)), "ridge regression on the features"),
    "linear": on_features(LinearSVC(C=0.01), "linear SVM on the features"),
    "machine": machine,
    "network": network,
}


def table(results: Path) -> str:
    """What each method has, in Markdown."""
    lines = ["| set | method | error, % | NLP | calibration | CPU seconds |", "|---|---|---|---|---|---|"]
    for name in NAMES:
        ours = sorted((results / name).glob(f"{name}-*images*-seed*.json"))
        for path in ours:
            record = read_json(path) or {}
            spent = record["seconds"]
            seconds = spent.get("processor", spent["start"] + spent["training"])  # by the clock in older files
            method = f"autogp, preset {record['preset']}, seed {record['seed']}"
            lines.append(_line(name, method, record["scores"], seconds))
        for each in ((read_json(results / "images" / f"peers-{name}.json") or {}).get("peers", {})).values():
            lines.append(_line(name, each["method"], each["scores"], each["cpu_seconds"]))
    return "\n".join(lines)


def _line(name: str, method: str, scores: dict[str, float], seconds: float) -> str:
    nlp, calibration = (f"{scores[key]:.4f}" if key in scores else "" for key in ("nlp", "calibration"))
    return f"| {name} | {method} | {100 * scores['error']:.2f} | {nlp} | {calibration} | {seconds:.0f} |"


if __name__ == "__main__":
    main()
