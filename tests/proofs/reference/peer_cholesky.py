"""Counts the Gram matrices that GPflow's and GPyTorch's Cholesky policies factorise, into peer_cholesky.json."""

import argparse
import importlib.util
import json
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
HERE = Path(__file__).parent
TOLERANCE = 1e-3

Factoriser = Callable[[np.ndarray], np.ndarray | None]  # None if the policy fails


def gpflow_policy() -> tuple[str, dict[str, Any], Factoriser]:
    """One attempt on K + default_jitter I, as in GPflow's `Kuu` followed by `tf.linalg.cholesky`."""
    import gpflow
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    jitter = gpflow.default_jitter()

    def factorise(matrix: np.ndarray) -> np.ndarray | None:
        K = tf.constant(matrix)
        try:
            return tf.linalg.cholesky(K + jitter * tf.eye(len(matrix), dtype=K.dtype)).numpy()
        except tf.errors.InvalidArgumentError:
            return None

    return "gpflow", {"version": gpflow.__version__, "jitter": jitter, "attempts": 1}, factorise


def gpytorch_policy() -> tuple[str, dict[str, Any], Factoriser]:
    """`psd_safe_cholesky`: K as it is, then with jitter that grows tenfold at each further attempt."""
    import gpytorch
    import torch
    from linear_operator import settings
    from linear_operator.utils.cholesky import psd_safe_cholesky
    from linear_operator.utils.errors import NanError, NotPSDError

    torch.set_num_threads(1)

    def factorise(matrix: np.ndarray) -> np.ndarray | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return psd_safe_cholesky(torch.as_tensor(matrix)).numpy()
        except (NanError, NotPSDError):
            return None

    jitter, tries = settings.cholesky_jitter.value(torch.float64), settings.cholesky_max_tries.value()
    return "gpytorch", {"version": gpytorch.__version__, "jitter": jitter, "attempts": 1 + tries}, factorise


def load_cases(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """The (name, matrix) pairs of the `cases()` of a module given by its path."""
    spec = importlib.util.spec_from_file_location("gram_cases", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.cases()


def family(name: str) -> str:
    """The part of a name before its first slash or colon, without a trailing number: rbf/3 and rbf-3 are of rbf."""
    return re.sub(r"[-_ #.]*\d+$", "", re.split(r"[/:]", name)[0]) or name


def outcome(matrix: np.ndarray, factorise: Factoriser) -> str:
    """Whether the factor exists and reproduces the matrix as given."""
    L = factorise(matrix)
    if L is None or not np.isfinite(L).all():
        return "failed"
    L = np.tril(L)
    error = np.linalg.norm(L @ L.T - matrix) / np.linalg.norm(matrix)
    return "factorised" if error < TOLERANCE else "inaccurate"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", type=Path, nargs="?", default=HERE.parent / "gram_cases.py")
    parser.add_argument("--output", type=Path, default=HERE / "peer_cholesky.json")
    arguments = parser.parse_args()

    installed = {"gpflow": gpflow_policy, "gpytorch": gpytorch_policy}
    policies = [policy() for name, policy in installed.items() if importlib.util.find_spec(name)]
    counts: dict[str, dict[str, Counter[str]]] = {name: {} for name, _, _ in policies}
    for case, matrix in load_cases(arguments.cases):
        matrix = np.ascontiguousarray(matrix, dtype=np.float64)
        for name, _, factorise in policies:
            result = outcome(matrix, factorise)
            for group in ("total", family(case)):
                counts[name].setdefault(group, Counter(cases=0, factorised=0, inaccurate=0, failed=0)).update(
                    ["cases", result]
                )

    merged = json.loads(arguments.output.read_text()) if arguments.output.exists() else {"tolerance": TOLERANCE}
    for name, facts, _ in policies:
        total = counts[name].pop("total")
        merged[name] = facts | {"total": total, "families": counts[name]}
        print(name, dict(total))
    arguments.output.write_text(json.dumps(merged, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
