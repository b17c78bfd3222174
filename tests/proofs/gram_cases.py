"""1,400 frozen Gram matrices that are hard to factorise; numpy only, so that any library's environment can run it.

Five families of inputs (duplicated rows, rows 1e-9 apart, an offset of 1e4, rows of zeros, and lengthscales far beyond
the data), seven variances from 1e-8 to 1e12, an RBF kernel or an arc-cosine kernel of degree 0-2 and depth 1-3. Every
matrix is positive semi-definite up to rounding: distances and angles come from differences of points. With the plain
arccos of the cosine (`gram(case, arccos=True)`) 16 matrices of degree 0 have eigenvalues down to -0.03 of the diagonal.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

__all__ = ["FAMILIES", "Case", "cases", "fingerprint", "gram", "specifications"]

FAMILIES = ("duplicates", "near-duplicates", "offsets", "zeros", "smooth")
VARIANCES = (1e-8, 1e-4, 1e-2, 1.0, 1e4, 1e8, 1e12)
# (degree, depth); degree None is the RBF kernel. 22 + 2 * 9 = 40 kernels for each family and variance.
KERNELS = ((None, 1),) * 22 + tuple((degree, depth) for degree in (0, 1, 2) for depth in (1, 2, 3)) * 2


@dataclass(frozen=True)
class Case:
    """The inputs and the kernel of one matrix."""

    name: str
    family: str
    inputs: np.ndarray  # [M, D]
    variance: float
    lengthscale: float  # RBF: of the exponent; arc-cosine: weight variance 1 / lengthscale^2
    degree: int | None  # None: RBF
    depth: int
    bias: float  # arc-cosine only


def cases() -> Iterator[tuple[str, np.ndarray]]:
    """The names and the float64 matrices [M, M], M between 5 and 120, always in the same order."""
    for case in specifications():
        yield case.name, gram(case)


def specifications() -> Iterator[Case]:
    """Inputs and parameters of the 1,400 matrices, each drawn from a seed of its own."""
    for f, family in enumerate(FAMILIES):
        for v, variance in enumerate(VARIANCES):
            for k, (degree, depth) in enumerate(KERNELS):
                rng = np.random.default_rng([f, v, k])
                size, columns = int(rng.integers(5, 121)), (1, 2, 3, 5, 10)[rng.integers(5)]
                inputs = _inputs(family, size, columns, rng)
                spread = (1.0, 3.0) if family == "smooth" else (-0.5, 1.0)
                kernel = "rbf" if degree is None else f"arccosine-{degree}-{depth}"
                yield Case(
                    name=f"{family}/{kernel}/variance-{variance:g}/{k}",
                    family=family,
                    inputs=inputs,
                    variance=variance,
                    lengthscale=float(np.round(10 ** rng.uniform(*spread), 3)),
                    degree=degree,
                    depth=depth,
                    bias=float(family == "smooth" or k % 2),
                )


def _inputs(family: str, size: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    x = rng.standard_normal((size, columns))
    if family in ("duplicates", "near-duplicates"):
        x = x[rng.integers(max(2, size // 3), size=size)]  # each row about three times
    if family == "near-duplicates":
        x = x + 1e-9 * rng.standard_normal(x.shape)
    if family == "offsets":
        x = x + 1e4
    if family == "zeros":
        x[rng.permutation(size)[: max(2, size // 3)]] = 0
    return x


def gram(case: Case, arccos: bool = False) -> np.ndarray:
    """The Gram matrix of a case, [M, M]; with `arccos`, angles of the first layer come from the cosine."""
    x = case.inputs / case.lengthscale
    if case.degree is None:
        return case.variance * np.exp(-0.5 * np.square(x[:, None] - x[None]).sum(-1))
    x = np.column_stack([x, np.full(len(x), np.sqrt(case.bias))])
    norm = np.sqrt(np.square(x).sum(-1))
    angle = _angle(x @ x.T, norm) if arccos else _half_angles(x, norm)
    for _ in range(case.depth):
        product = _arccosine_layer(angle, norm, case.degree)
        norm = np.sqrt(np.diagonal(product))
        angle = _angle(product, norm)
    return case.variance * product


def _angle(product: np.ndarray, norm: np.ndarray) -> np.ndarray:
    """arccos(product / |x| |z|), exactly 0 on the diagonal."""
    angle = np.arccos(np.clip(_divide(product, norm[:, None] * norm[None]), -1, 1))
    np.fill_diagonal(angle, 0)
    return angle


def _half_angles(x: np.ndarray, norm: np.ndarray) -> np.ndarray:
    """2 atan(|u - v| / |u + v|) between unit vectors: arccos cannot tell angles below 1e-8 from 0."""
    unit = _divide(x, norm[:, None])
    unit = np.column_stack([unit, norm == 0])  # rows of zeros share a direction, orthogonal to all others
    difference, total = unit[:, None] - unit[None], unit[:, None] + unit[None]
    return 2 * np.arctan2(np.sqrt(np.square(difference).sum(-1)), np.sqrt(np.square(total).sum(-1)))


def _arccosine_layer(t: np.ndarray, norm: np.ndarray, degree: int) -> np.ndarray:
    """(|x| |z|)^n J_n(t) / pi."""
    if degree == 0:
        angular = np.pi - t
    elif degree == 1:
        angular = np.sin(t) + (np.pi - t) * np.cos(t)
    else:
        angular = 3 * np.sin(t) * np.cos(t) + (np.pi - t) * (1 + 2 * np.cos(t) ** 2)
    return (norm[:, None] * norm[None]) ** degree * angular / np.pi


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)


def fingerprint() -> str:
    """SHA-256 over the names, the parameters and the inputs to six decimals: the set is frozen while it stays equal."""
    digest = hashlib.sha256()
    for case in specifications():
        digest.update(f"{case.name} {case.lengthscale:.3f} {case.bias:g} {case.inputs.shape}".encode())
        digest.update((np.round(case.inputs * 1e6) + 0.0).astype("<i8").tobytes())
    return digest.hexdigest()
