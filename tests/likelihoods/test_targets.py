"""Targets that a likelihood cannot use are refused by an error that names y, the row, and what is expected."""

import math

import numpy as np
import pytest
import torch

from autogp.likelihoods import Bernoulli, Gaussian, Likelihood, Network, Poisson, Softmax, StudentT

NAN, INF = math.nan, math.inf


class Plain(Likelihood):
    """A user's likelihood, which inherits the check of real numbers."""

    def log_prob(self, f, y):
        return -(y - f[..., 0]).square()


REFUSED = [
    # shape
    (Gaussian(), torch.zeros(4, 2), r"y must have shape \[B\] or \[B, 1\], got \(4, 2\)"),
    (Gaussian(3), torch.zeros(4), r"y must have shape \[B, 3\], got \(4,\)"),
    (Gaussian(3), torch.zeros(3, 4), r"y must have shape \[B, 3\], got \(3, 4\)"),
    (Gaussian(), torch.zeros(2, 1, 1), r"y must have shape \[B\] or \[B, 1\], got \(2, 1, 1\)"),
    (Gaussian(), torch.tensor(1.0), r"y must be a tensor of real numbers, one row per input"),
    (StudentT(2), torch.zeros(5, 3), r"y must have shape \[B, 2\], got \(5, 3\)"),
    (Network(7), torch.zeros(5), r"y must have shape \[B, 7\], got \(5,\)"),
    (Bernoulli(2), torch.zeros(5), r"y must have shape \[B, 2\], got \(5,\)"),
    (Softmax(3), torch.zeros(5, 1, dtype=torch.int64), r"y must be a vector of integer labels, .* shape \(5, 1\)"),
    (Softmax(3), torch.tensor(1), r"y must be a vector of integer labels"),
    (Poisson(2), torch.zeros(5), r"y must have shape \[B, 2\], got \(5,\)"),
    (
        Poisson(),
        torch.zeros(5, 1, 1),
        r"y must hold counts \[B, P\], or counts and exposures \[B, P, 2\], got \(5, 1, 1\)",
    ),
    (Poisson(), torch.zeros(5, 1, 3), r"y must hold counts .* got \(5, 1, 3\)"),
    (Poisson(), torch.zeros(5, 1, 1, 2), r"y must hold counts .* got \(5, 1, 1, 2\)"),
    # dtype
    (Gaussian(), torch.zeros(4, dtype=torch.complex64), r"y must be a tensor of real numbers.*complex64"),
    (Softmax(3), torch.zeros(4, dtype=torch.complex64), r"y must be a vector of integer labels, got torch.complex64"),
    (Softmax(3), torch.zeros(4, dtype=torch.bool), r"y must be a vector of integer labels, got torch.bool"),
    (Poisson(), torch.zeros(4, dtype=torch.complex64), r"y must be a tensor of real numbers.*complex64"),
    # NaN and infinity
    (Gaussian(), torch.tensor([0.0, 1.0, INF]), r"y contains infinity, first at row 2"),
    (Gaussian(2), torch.tensor([[0.0, 1.0], [-INF, NAN]]), r"y contains infinity, first at row 1"),
    (Network(1), torch.tensor([0.0, INF]), r"y contains infinity, first at row 1"),
    (StudentT(), torch.tensor([INF]), r"y contains infinity, first at row 0"),
    (Poisson(), torch.tensor([0.0, 3.0, INF]), r"y contains infinity, first at row 2"),
    (Bernoulli(), torch.tensor([0.0, -INF]), r"y contains infinity, first at row 1"),
    (Softmax(3), torch.tensor([0.0, NAN, 7.0]), r"y must hold integer labels from 0 to 2, got nan at row 1"),
    (Softmax(3), torch.tensor([0.0, 2.0, INF]), r"y must hold integer labels from 0 to 2, got inf at row 2"),
    (Plain(), torch.tensor([0.0, NAN]), r"y contains NaN or infinity, first at row 1"),
    (Plain(), torch.tensor([[0.0, 1.0], [2.0, INF]]), r"y contains NaN or infinity, first at row 1"),
    # counts
    (Poisson(), torch.tensor([0, 2, -1]), r"y contains a negative count, first at row 2"),
    (Poisson(), torch.tensor([0.0, 0.5, -1.0]), r"y contains a negative count, first at row 2"),
    (Poisson(), torch.tensor([0.0, 0.5]), r"y contains a count that is not a whole number, first at row 1"),
    (Poisson(2), torch.tensor([[1.0, 2.0], [1.0, NAN], [3.5, 1.0]]), r"y contains a count that is not.* at row 2"),
    (Poisson(), torch.tensor([[[1.0, 1.0]], [[2.0, 0.0]]]), r"y contains an exposure that is not positive.* at row 1"),
    (Poisson(), torch.tensor([[[1.0, -2.0]]]), r"y contains an exposure that is not positive and finite.* at row 0"),
    (Poisson(), torch.tensor([[[1.0, NAN]]]), r"y contains an exposure that is not positive and finite.* at row 0"),
    (Poisson(), torch.tensor([[[1.0, INF]]]), r"y contains an exposure that is not positive and finite.* at row 0"),
    # labels
    (Softmax(3), torch.tensor([0, 1, 3]), r"y must hold integer labels from 0 to 2, got 3 at row 2"),
    (Softmax(3), torch.tensor([0, -1, 3]), r"y must hold integer labels from 0 to 2, got -1 at row 1"),
    (Softmax(3), torch.tensor([0.0, 1.5]), r"y must hold integer labels from 0 to 2, got 1.5 at row 1"),
    (Softmax(3), torch.tensor([1e30]), r"y must hold integer labels from 0 to 2, got 1.0+\d*e\+30 at row 0"),
    (Bernoulli(), torch.tensor([-1, 1]), r"y must hold labels 0 and 1, got -1 at row 0"),
    (Bernoulli(2), torch.tensor([[0.0, 1.0], [NAN, 0.5]]), r"y must hold labels 0 and 1, got 0.5 at row 1"),
    (Bernoulli(), torch.tensor([0, 1, 2]), r"y must hold labels 0 and 1, got 2 at row 2"),
]


@pytest.mark.parametrize(("likelihood", "y", "message"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_targets_are_refused_by_name_and_row(likelihood: Likelihood, y: torch.Tensor, message: str):
    with pytest.raises(ValueError, match=message):
        likelihood.check_targets(y)


@pytest.mark.parametrize("likelihood", [Gaussian(), Softmax(3), Poisson(), Bernoulli(), Network(1), Plain()])
@pytest.mark.parametrize("y", [["a", "b"], np.array(["a", "b"]), None])
def test_targets_that_are_no_numbers_are_refused(likelihood: Likelihood, y):
    with pytest.raises(TypeError, match="y must be a tensor of numbers, got"):
        likelihood.check_targets(y)


def test_targets_come_back_in_the_form_that_log_prob_takes():
    for likelihood in (Gaussian(), StudentT(), Bernoulli(), Network(1)):
        for y in (
            torch.tensor([0, 1]),
            torch.tensor([[0.0], [1.0]]),
            np.array([0.0, 1.0]),
            torch.tensor([False, True]),
        ):
            checked = likelihood.check_targets(y)
            assert checked.tolist() == [[0.0], [1.0]]
            assert checked.is_floating_point()
            assert torch.equal(likelihood.check_targets(checked), checked)
    for y in (torch.tensor([0, 2]), torch.tensor([0.0, 2.0]), np.array([0, 2], dtype=np.uint8)):
        checked = Softmax(3).check_targets(y)
        assert checked.tolist() == [0, 2]
        assert checked.dtype == torch.int64
    for y in (torch.tensor([3, 0]), np.array([3.0, 0.0]), torch.tensor([[3], [0]])):
        checked = Poisson().check_targets(y)
        assert checked.tolist() == [[[3.0, 1.0]], [[0.0, 1.0]]]
        assert torch.equal(Poisson().check_targets(checked), checked)


def test_missing_targets_pass_where_an_output_may_be_missing():
    for likelihood in (Gaussian(), StudentT(), Bernoulli(), Network(1)):
        assert torch.isnan(likelihood.check_targets(torch.tensor([NAN, 1.0]))).tolist() == [[True], [False]]
    assert torch.isnan(Poisson().check_targets(torch.tensor([NAN, 1.0]))[..., 0]).tolist() == [[True], [False]]


def test_targets_of_no_rows_pass():
    for likelihood in (Gaussian(), Softmax(3), Poisson(), Bernoulli(), StudentT(), Network(1)):
        assert len(likelihood.check_targets(torch.zeros(0))) == 0


def test_checking_leaves_the_callers_tensor_alone():
    y = torch.tensor([0.0, 1.0, NAN])
    for likelihood in (Gaussian(), Poisson(), Bernoulli()):
        likelihood.check_targets(y)
        torch.testing.assert_close(y, torch.tensor([0.0, 1.0, NAN]), equal_nan=True)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64, np.int16])
def test_labels_may_be_integers_of_any_kind(dtype):
    assert Softmax(3).check_targets(torch.from_numpy(np.array([0, 2, 1], dtype))).tolist() == [0, 2, 1]
