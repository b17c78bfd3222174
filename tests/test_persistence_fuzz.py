"""Files changed at random, many of them with a right checksum: each loads and predicts, or is refused by one error."""

import json
import math
import os
import random
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import model_files
import numpy as np
import pandas as pd
import pytest
import torch
from model_files import forge, make_model
from sklearn.base import clone
from torch import Tensor, nn

from autogp import GPClassifier, GPRegressor, NotPositiveDefiniteError, SparseGP, load_model
from autogp.data import TargetScaler
from autogp.estimators.summary import describe
from autogp.features import PrincipalComponents
from autogp.kernels import RBF, ArcCosine, Linear, Matern32
from autogp.likelihoods import Bernoulli, Gaussian, Softmax, StudentT
from autogp.persistence import load, save
from autogp.storage import StorageError, read_tensors
from autogp.training import Phase, Settings, Start

X = model_files.rows(2, 2, torch.float32)
NAMES = """
RBF ArcCosine Sum Product SparseGP Gaussian Softmax Bernoulli Poisson Network StudentT Kernel Posterior Scaling
PrincipalComponents Chain TargetScaler type arguments kernel kernels likelihood posterior features maps num_components
frozen evaluating degree depth bias num_outputs num_nodes variance logit probit link model tensors modules kind
"""
WORDS = [*NAMES.split(), "", ".", "0", "__class__", "é\0", "x" * 1000]
PARAMETERS = """
estimator parameters n_inducing n_components likelihood objective scaling settings start plan epochs natural_rates
class_weight balanced auto random_state features feature_names target_names rows best_epoch stopped encoder columns
classes labels outputs elbo loo GPClassifier GPRegressor Columns Numbers Categories number text ignored name missing
means inputs a b
"""
WORDS += PARAMETERS.split()
NUMBERS = [0, 1, 2, 3, -1, 99, 100, 101, 2**20, 2**22, 2**31, 2**63, 2**64, 10**30, 0.0, 1.0, -0.5, 1e-320, 1e300]
FLOATS = [0.0, -0.0, 1.0, -1.0, 1e-320, 1e-8, 1e8, 700.0, -700.0, 1e300, -1e300, math.inf, -math.inf, math.nan]


def originals(folder: Path) -> list[tuple[bytes, dict[str, Any], dict[str, Tensor]]]:
    chain, scaling = model_files.maps()["chain"], model_files.maps()["scaling"]
    groups: list[dict[str, nn.Module]] = [
        {"model": make_model(RBF([1.0, 2.0]), Bernoulli(), size=2), "scaler": TargetScaler(X[0], X[0].abs())},
        {"model": make_model(ArcCosine(1, 2, bias=0.5) + Linear(), Softmax(3), size=2, features=chain)},
        {"model": make_model(Matern32(), StudentT(), "mixture", size=2).requires_grad_(False)},
        {"model": make_model(RBF(), Gaussian(2), "diagonal", size=2, dtype=torch.float64, features=scaling).eval()},
    ]
    found = []
    for modules in groups:
        save(folder / "file", modules, {"classes": [1, 2]}, {"note": torch.zeros(2)})
        tensors, content = read_tensors(folder / "file", "model")
        assert forge(content, tensors) == (folder / "file").read_bytes()
        found.append((forge(content, tensors), content, tensors))
    return found


def value(rng: random.Random, depth: int = 0) -> Any:
    """Any JSON, preferably of words that mean something."""
    choice = rng.randrange(8 if depth < 2 else 5)
    if choice < 2:
        return rng.choice(WORDS)
    if choice < 4:
        return rng.choice(NUMBERS)
    if choice == 4:
        return rng.choice([None, True, False])
    if choice == 5:
        return [value(rng, depth + 1) for _ in range(rng.randrange(3))]
    if choice == 6:
        return {rng.choice(WORDS): value(rng, depth + 1) for _ in range(rng.randrange(3))}
    return {"type": rng.choice(WORDS), "arguments": {rng.choice(WORDS): value(rng, depth + 1)}}


def change_description(rng: random.Random, content: Any) -> None:
    """Replace, remove, add or double something anywhere below."""
    node = content
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = rng.choice(keys) if keys else None
        if key is not None and isinstance(node[key], (dict, list)) and rng.random() < 0.8:
            node = node[key]
            continue
        action = rng.randrange(4)
        if action == 0 and key is not None:
            node[key] = value(rng)
        elif action == 1 and key is not None:
            del node[key]
        elif isinstance(node, dict):
            node[rng.choice(WORDS)] = value(rng) if key is None or action == 2 else node[key]
        else:
            node.insert(rng.randrange(len(node) + 1), value(rng) if key is None or action == 2 else node[key])
        return


def change_tensors(rng: random.Random, tensors: dict[str, Tensor]) -> None:
    name = rng.choice(sorted(tensors))
    tensor, action = tensors[name], rng.randrange(8)
    if action < 3 and tensor.numel():
        tensors[name] = tensor = tensor.to(torch.float64, copy=True)
        tensor.view(-1)[rng.randrange(tensor.numel())] = rng.choice(FLOATS)
    elif action == 3:
        tensors[name] = torch.full_like(tensor, rng.choice(FLOATS), dtype=torch.float64)
    elif action == 4:
        shape = [rng.randrange(4) for _ in range(rng.randrange(5))]
        tensors[name] = torch.full(shape, rng.choice(FLOATS), dtype=torch.float64)
    elif action == 5:
        tensors[name] = tensor.nan_to_num(0, 0, 0).clamp(-9, 9).to(rng.choice(list(model_files.CODES)))
    elif action == 6:
        tensors[rng.choice([name + "x", "log_" + name, rng.choice(WORDS), "tensors." + name])] = tensors.pop(name)
    else:
        tensors[name] = tensors[rng.choice(sorted(tensors))]


def change_bytes(rng: random.Random, content: bytes) -> bytes:
    """Flip, cut, double or overwrite; the checksum does not follow."""
    start, length = rng.randrange(len(content)), rng.choice([1, 2, 8, 100])
    action = rng.randrange(6)
    if action == 0:
        return content[:start]
    if action == 1:
        return content[:start] + content[start + length :]
    if action == 2:
        return content[: start + length] + content[start:]
    if action == 3:
        return content[:start] + rng.randbytes(length) + content[start + length :]
    if action == 4:
        return rng.choice([0, 1, 7, 2**32, 2**63, len(content)]).to_bytes(8, "little") + content[8:]
    return content[:start] + bytes([content[start] ^ 1 << rng.randrange(8)]) + content[start + 1 :]


def fuzzed(rng: random.Random, original: tuple[bytes, dict[str, Any], dict[str, Tensor]]) -> bytes:
    """With a right checksum."""
    _, content, tensors = original
    content, tensors = json.loads(json.dumps(content)), dict(tensors)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if rng.random() < 0.55:
            change_description(rng, content)
        else:
            change_tensors(rng, tensors)
    return forge(content, tensors)


def survive(folder: Path, count: int, seed: int) -> Counter:
    """Try `count` files; how many were refused, and what became of the others."""
    rng = random.Random(seed)
    sources = originals(folder)
    path, found = folder / "fuzzed.autogp", Counter()
    for _ in range(count):
        original, forged = rng.choice(sources), rng.random() < 0.3
        path.write_bytes(fuzzed(rng, original) if forged else change_bytes(rng, original[0]))
        start = time.process_time()
        try:
            modules = load(path).modules
        except StorageError as error:
            found["refused"] += 1
            found["wordy"] += len(str(error)) > 1000
            modules = {}
        else:
            found["changed"] += not forged and forge(*reversed(read_tensors(path, "model"))) != original[0]
        for module in modules.values():
            if isinstance(module, SparseGP) and rng.random() < 0.1:
                found[outcome(module)] += 1
        found["slow"] += time.process_time() - start > 10
    assert not any(found[fault] for fault in ("wordy", "slow", "changed"))
    return found


def outcome(model: SparseGP) -> str:
    """What became of a prediction; features may expect another number of columns."""
    try:
        model.predict(X[:, :1].expand(-1, 2 if model.features else model.inducing_inputs.shape[-1]))
    except NotPositiveDefiniteError:
        return "explained"
    except (ValueError, RuntimeError):
        if model.features is None:
            raise
        return "other columns"
    return "predicted"


@pytest.fixture
def folder(tmp_path):
    """In main memory where there is such a folder: a disk would be most of the time."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path) as name:
        yield Path(name)


def test_files_changed_at_random_are_refused_or_work(folder):
    found = survive(folder, 1500, seed=1)
    assert found["refused"] > 1000
    assert found["predicted"] > 5


def test_estimators_changed_at_random_are_refused_or_work(folder):
    rng, x, path, found = random.Random(4), model_files.rows(40, 3).numpy(), folder / "estimator.autogp", Counter()
    frame = pd.DataFrame({"a": np.where(x[:, 1] > 0, "up", "down"), "b": np.where(x[:, 2] > 1, np.nan, x[:, 2])})
    settings = Settings(max_epochs=2, plan=[Phase("elbo", 2)])
    estimators = [
        GPClassifier(4, settings=settings, class_weight={False: 1.0, True: 2.0}, random_state=0).fit(x, x[:, 0] > 0),
        GPClassifier(4, max_epochs=2, start=Start(variance=2.0), random_state=0).fit(x, np.digitize(x[:, 0], [-1, 1])),
        GPRegressor(4, max_epochs=2, features=PrincipalComponents(2), random_state=0).fit(x, x[:, :2]),
        GPRegressor(4, max_epochs=2, random_state=0).fit(frame, x[:, 0]),
    ]
    originals = []
    for estimator in estimators:
        estimator.save(path)
        tensors, content = read_tensors(path, "model")
        originals.append((path.read_bytes(), content, tensors))
    for _ in range(600):
        path.write_bytes(fuzzed(rng, rng.choice(originals)))
        try:
            model = load_model(path)
        except StorageError as error:
            found["refused"] += 1
            found["wordy"] += len(str(error)) > 1000
            continue
        found["loaded"] += 1
        describe(model)
        clone(model)
        try:
            model.predict(x if model.encoder_ is None else frame)
        except NotPositiveDefiniteError:
            found["explained"] += 1
        except ValueError as error:
            if "NaN or infinity" not in str(error):
                raise
            found["explained"] += 1
    assert not found["wordy"]
    assert found["refused"] > 300
    assert found["loaded"] > 50


@pytest.mark.slow
def test_a_million_files_changed_at_random_are_refused_or_work(folder):
    survive(folder, 1000, seed=2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = survive(folder, 1_000_000, seed=3)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # KiB
    assert found["refused"] > 700_000
    assert found["predicted"] > 5_000
