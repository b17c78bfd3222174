"""Other methods on the images of an experiment: `python -m benchmarks.image_peers mnist --minutes 3`.

Ridge regression and a linear support vector machine on the features of the preset `images`, a support vector machine
with an RBF kernel on pixels, and a small convolutional network that is trained for as many minutes. One thread each.
Scores of test rows go to results/images/peers-NAME.json; `--table` prints a table of all such files, our own runs
beside them.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import RidgeClassifierCV
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from torch import Tensor, nn

from autogp.datasets import Dataset
from autogp.experiments import EXPERIMENTS
from autogp.experiments.record import plain, read_json, write_json
from autogp.metrics import class_scores

NAMES = ("digits", "mnist", "cifar10", "rectangles")
MOST_SVM_ROWS = 10_000  # of training rows for the SVM on pixels, whose time grows with their square
BATCH = 128
SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=NAMES)
    parser.add_argument("--minutes", type=float, default=3.0, help="of CPU time, of the network")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--table", action="store_true", help="only print the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.table:
        path = options.results / "images" / f"peers-{options.name}.json"
        measure(options.name, options.minutes, path)
    print(table(options.results))


def measure(name: str, minutes: float, path: Path) -> None:
    """Every peer in turn; the file grows with each, so that an interrupted run keeps what it has."""
    run = EXPERIMENTS[name].runs("images", SEED)[0]
    data, features = run.load(), run.arguments()["features"]
    started = time.process_time()
    train, test = (features.fit(data.x_train, seed=SEED).transform(x) for x in (data.x_train, data.x_test))
    scaler = StandardScaler().fit(train)
    train, test = (np.asarray(scaler.transform(each)) for each in (train, test))
    spent = time.process_time() - started
    peers: dict[str, tuple[float, Callable[[], dict[str, float]]]] = {
        "ridge regression on the features": (
            spent,
            lambda: only_error(RidgeClassifierCV(np.logspace(-1, 4, 11)), train, test, data),
        ),
        "linear SVM on the features": (spent, lambda: only_error(LinearSVC(C=0.01), train, test, data)),
        f"SVM with an RBF kernel on pixels, {min(MOST_SVM_ROWS, len(data.y_train)):,} rows": (0, lambda: svm(data)),
        f"convolutional network, {minutes:g} min": (0, lambda: network(data, features.image_shape, 60 * minutes)),
    }
    found: dict[str, Any] = {}
    for peer, (before, work) in peers.items():
        started = time.process_time()
        scores = work()
        found[peer] = {"scores": scores, "cpu_seconds": before + time.process_time() - started}
        write_json(path, plain({"experiment": name, "peers": found}))
        print(peer, found[peer], flush=True)


def only_error(peer: Any, train: np.ndarray, test: np.ndarray, data: Dataset) -> dict[str, float]:
    """Of a method without probabilities."""
    return {"error": float(np.mean(peer.fit(train, data.y_train).predict(test) != data.y_test))}


def svm(data: Dataset) -> dict[str, float]:
    """Probabilities by Platt's method."""
    rows = np.random.default_rng(SEED).permutation(len(data.y_train))[:MOST_SVM_ROWS]
    scale = float(data.x_train.max())
    machine = SVC(C=10, gamma="scale", probability=True, random_state=SEED, cache_size=1000)  # pyright: ignore
    machine.fit(data.x_train[rows] / scale, data.y_train[rows])
    return class_scores(data.y_test, machine.predict_proba(data.x_test / scale))


def network(data: Dataset, shape: tuple[int, ...], seconds: float) -> dict[str, float]:
    """Three convolutions with batch normalisation, Adam, a learning rate that falls to 0 as the time runs out."""
    torch.manual_seed(SEED)
    planes = shape if len(shape) == 3 else (1, *shape)
    x, test = (torch.from_numpy(np.asarray(each)).reshape(-1, *planes) for each in (data.x_train, data.x_test))
    y = torch.from_numpy(np.asarray(data.y_train, np.int64))
    mean, deviation = x.float().mean(), x.float().std()
    model = small_network(planes[0], min(planes[1:]), int(y.max()) + 1)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.01)
    start = time.process_time()
    while (spent := (time.process_time() - start) / seconds) < 1:
        for group in optimiser.param_groups:
            group["lr"] = 0.003 * (1 - spent)
        rows = torch.randint(len(x), (BATCH,))
        loss = nn.functional.cross_entropy(model((x[rows].float() - mean) / deviation), y[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        found: list[Tensor] = [model((part.float() - mean) / deviation).softmax(1) for part in test.split(1000)]
    return class_scores(data.y_test, torch.cat(found).double().numpy())


def small_network(channels: int, side: int, classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for width in (32, 64, 128):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
        if side >= 4:
            layers.append(nn.MaxPool2d(2))
            side //= 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.3), nn.LazyLinear(classes))


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
        for peer, each in ((read_json(results / "images" / f"peers-{name}.json") or {}).get("peers", {})).items():
            lines.append(_line(name, peer, each["scores"], each["cpu_seconds"]))
    return "\n".join(lines)


def _line(name: str, method: str, scores: dict[str, float], seconds: float) -> str:
    nlp, calibration = (f"{scores[key]:.4f}" if key in scores else "" for key in ("nlp", "calibration"))
    return f"| {name} | {method} | {100 * scores['error']:.2f} | {nlp} | {calibration} | {seconds:.0f} |"


if __name__ == "__main__":
    main()
