"""Constructors refuse what makes no likelihood, by an error that names the argument."""

import math

import pytest
import torch

from autogp.likelihoods import Bernoulli, Gaussian, Network, Ordinal, Poisson, Softmax, StudentT


@pytest.mark.parametrize("kind", [Gaussian, Bernoulli, Poisson, StudentT])
@pytest.mark.parametrize("number", [0, -1, 1.5, "2", None])
def test_number_of_outputs_is_a_positive_integer(kind, number):
    with pytest.raises(ValueError, match="num_outputs must be a positive integer, got"):
        kind(number)


@pytest.mark.parametrize("number", [0, -2, 1.5, None])
def test_numbers_of_a_network_are_positive_integers(number):
    with pytest.raises(ValueError, match="num_outputs must be a positive integer, got"):
        Network(number)
    with pytest.raises(ValueError, match="num_nodes must be a positive integer, got"):
        Network(2, num_nodes=number)


@pytest.mark.parametrize("number", [1, 0, -3, 2.5, None])
def test_number_of_classes_is_an_integer_of_at_least_two(number):
    with pytest.raises(ValueError, match="num_classes must be an integer of at least 2, got"):
        Softmax(number)


def test_ordered_classes_are_three_at_least_and_have_each_rank_once():
    with pytest.raises(ValueError, match="num_classes must be an integer of at least 3, got 2"):
        Ordinal(2)
    with pytest.raises(ValueError, match="order must hold each rank from 0 to 2 once"):
        Ordinal(3, order=[0, 1, 1])


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_variances_and_scales_are_positive_and_finite(value: float):
    for kind, name in ((Gaussian, "variance"), (Network, "variance"), (StudentT, "scale")):
        with pytest.raises(ValueError, match=f"{name} must be positive and finite, got"):
            kind(2, **{name: value})
        with pytest.raises(ValueError, match=f"{name} must be positive and finite, got"):
            kind(2, **{name: torch.tensor([1.0, value])})


def test_variances_and_scales_are_one_number_or_one_for_each_output():
    for kind, name in ((Gaussian, "variance"), (Network, "variance"), (StudentT, "scale")):
        assert getattr(kind(3, **{name: 0.5}), name).tolist() == pytest.approx([0.5] * 3, rel=1e-14)
        each = kind(3, **{name: torch.tensor([1.0, 2.0, 4.0])})
        assert getattr(each, name).tolist() == pytest.approx([1.0, 2.0, 4.0], rel=1e-14)
        with pytest.raises(ValueError, match=rf"{name} must be one number or 3, got shape \(2,\)"):
            kind(3, **{name: torch.tensor([1.0, 2.0])})
        with pytest.raises(ValueError, match=f"{name} must have at most 1 axes"):
            kind(3, **{name: torch.ones(1, 3)})


@pytest.mark.parametrize("df", [2.0, 0.0, -1.0, math.nan, math.inf])
def test_degrees_of_freedom_are_above_two(df: float):
    with pytest.raises(ValueError, match="df must be a number above 2, so that the variance exists, got"):
        StudentT(df=df)


@pytest.mark.parametrize("link", ["log", "", None])
def test_link_is_one_of_two(link):
    with pytest.raises(ValueError, match="link must be 'logit' or 'probit', got"):
        Bernoulli(link=link)


def test_latents_are_counted():
    assert [Gaussian(3).num_latents, Bernoulli().num_latents, Softmax(10).num_latents] == [3, 1, 10]
    assert [Poisson(2).num_latents, StudentT(4).num_latents] == [2, 4]
    assert [Network(7).num_latents, Network(7, num_nodes=3).num_latents, Network(1, 1).num_latents] == [8, 24, 2]


def test_only_noise_levels_and_rates_are_learnt():
    assert [name for name, _ in Gaussian().named_parameters()] == ["log_variance"]
    assert [name for name, _ in Network(2).named_parameters()] == ["log_variance"]
    assert [name for name, _ in StudentT().named_parameters()] == ["log_scale"]
    assert "df" in StudentT(df=7.0).state_dict()  # kept, not learnt
    assert [name for name, _ in Poisson().named_parameters()] == ["log_rate"]
    for likelihood in (Bernoulli(), Softmax(3)):
        assert list(likelihood.parameters()) == []
