"""safe_cholesky on the 1,400 frozen Gram matrices, and on those that autogp's own kernels make of the same inputs.

Matrices of 280 in each family that are factorised with |L L' - K| < 1e-3 |K|; the peers' by reference/peer_cholesky.py:

| policy            | duplicates | near-duplicates | offsets | zeros | smooth | of 1,400 |
|-------------------|------------|-----------------|---------|-------|--------|----------|
| autogp            | 280        | 280             | 280     | 280   | 280    | 1400     |
| GPyTorch 1.15.2   | 196        | 202             | 215     | 211   | 248    | 1072     |
| GPflow 2.11.2     | 163        | 167             | 164     | 174   | 195    | 863      |
"""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from gram_cases import FAMILIES, Case, cases, fingerprint, gram, specifications

from autogp.kernels import RBF, ArcCosine, Kernel
from autogp.linalg import FIRST_JITTER, NotPositiveDefiniteError, safe_cholesky

TOLERANCE = 1e-3  # of |L L' - K| / |K|, Frobenius


def relative_error(matrix: torch.Tensor, first_jitter: float = FIRST_JITTER[torch.float64]) -> float:
    """Of the factorisation; infinite if there is none."""
    try:
        factor = safe_cholesky(matrix, first_jitter)
    except NotPositiveDefiniteError:
        return float("inf")
    return ((factor @ factor.mT - matrix).norm() / matrix.norm()).item()


def kernel(case: Case) -> Kernel:
    if case.degree is None:
        return RBF(case.lengthscale, case.variance)
    return ArcCosine(case.degree, case.depth, case.lengthscale**-2, case.bias, case.variance)


def report(passed: Counter[str], record_property: Callable[[str, object], None]) -> None:
    record_property("factorised", dict(passed))
    print(f"factorised {passed.total()} of 1400:", ", ".join(f"{family} {passed[family]}" for family in FAMILIES))


@pytest.fixture(scope="module")
def matrices() -> dict[str, np.ndarray]:
    return dict(cases())


def test_set_of_matrices_is_frozen(matrices):
    assert fingerprint() == "2c67730ea80849c7982d489e7ea6a85c69cd9d8cae7d0097db48095b5e35c853"
    assert len(matrices) == 1400
    assert {len(matrix) for matrix in matrices.values()} <= set(range(5, 121))
    # The sum of the norms, each relative to the largest entry: the formulas are frozen too.
    total = sum(np.linalg.norm(matrix / matrix.max()) for matrix in matrices.values())
    assert total == pytest.approx(57491.575596455295, rel=1e-9)


def test_plain_cholesky_fails_on_most_of_the_matrices(matrices):
    failed = [torch.linalg.cholesky_ex(torch.from_numpy(matrix)).info.item() > 0 for matrix in matrices.values()]
    assert sum(failed) > 900


@pytest.mark.parametrize("first_jitter", FIRST_JITTER.values(), ids=["float64-blocks", "float32-blocks"])
def test_safe_cholesky_factorises_all_but_half_a_percent(matrices, first_jitter, record_property):
    passed: Counter[str] = Counter()
    for name, matrix in matrices.items():
        passed[name.split("/")[0]] += relative_error(torch.from_numpy(matrix), first_jitter) < TOLERANCE
    report(passed, record_property)
    assert passed.total() >= 0.995 * 1400
    assert min(passed[family] for family in FAMILIES) >= 0.99 * 280


def test_gram_matrices_of_the_kernels_factorise(record_property):
    """Degree 0 of depth 3 takes an eighth root of the distance: errors in distances of close points would show here."""
    passed: Counter[str] = Counter()
    for case in specifications():
        z = torch.from_numpy(case.inputs)
        with torch.no_grad():
            matrix = kernel(case).gram(z, z)[0]
        passed[case.family] += relative_error(matrix) < TOLERANCE
    report(passed, record_property)
    assert passed.total() >= 0.995 * 1400


def test_kernels_agree_with_the_direct_formulas(matrices):
    for case in specifications():
        if case.variance != 1:
            continue
        z = torch.from_numpy(case.inputs)
        with torch.no_grad():
            own = kernel(case).gram(z, z)[0].numpy()
        direct = matrices[case.name]
        # Roots of differences that both sides round: eps^(1/4) of 1e-9-close points in the third layer of degree 0.
        tolerance = 1e-5 if case.degree == 0 else 1e-10
        scale = np.sqrt(np.diagonal(direct)[:, None] * np.diagonal(direct)[None])
        assert np.max(np.abs(own - direct) / np.where(scale > 0, scale, 1)) < tolerance, case.name


def test_only_indefinite_matrices_of_a_careless_formula_are_refused():
    """With the plain arccos 16 matrices are no covariances at all; the other 1,384 factorise all the same."""
    refused = 0
    for case in specifications():
        matrix = torch.from_numpy(gram(case, arccos=True))
        if relative_error(matrix) > TOLERANCE:
            refused += 1
            assert torch.linalg.eigvalsh(matrix)[0] < -1e-4 * torch.diagonal(matrix).mean(), case.name
    assert refused <= 0.015 * 1400
