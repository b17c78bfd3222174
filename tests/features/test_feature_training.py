"""Feature maps in training: frozen ones see each row once, those that learn see it every epoch."""

import copy
import tempfile

import numpy as np
import pytest
import torch
from broken_off import train_broken_off
from torch import nn

from autogp import SparseGP, elbo
from autogp.data import ArraySource
from autogp.features import Chain, PrincipalComponents, Scaling, apply_frozen, cache
from autogp.kernels import RBF
from autogp.likelihoods import Bernoulli, Gaussian
from autogp.training import Settings, converge, train

ROWS, EPOCHS = 120, 5
QUICK = Settings(max_epochs=EPOCHS, batch_size=40, checkpoint_seconds=1e-9)


@pytest.fixture
def source() -> ArraySource:
    """Rows of three columns, and a function of the product of two of them."""
    generator = np.random.default_rng(0)
    x = generator.uniform(-2, 2, size=(ROWS, 3))
    return ArraySource(x, np.sin(2 * x[:, 0] * x[:, 1]) + 0.1 * generator.normal(size=ROWS))


def network(outputs: int = 2, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, outputs))


def counted(module: nn.Module, seen: list[int]) -> nn.Module:
    """The module, which notes how many rows it is given."""
    module.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    return module


def new_model(source: ArraySource, features: nn.Module | None, dtype: torch.dtype = torch.float64) -> SparseGP:
    with torch.no_grad():
        z = torch.from_numpy(source.x[::10].astype(np.float32))
        z = z if features is None else copy.deepcopy(features)(z)
    return SparseGP(RBF(torch.ones(z.shape[1])), Gaussian(variance=0.1), z.to(dtype), features)


def value(model: SparseGP, source: ArraySource) -> float:
    return elbo(model, torch.from_numpy(source.x), torch.from_numpy(source.y)).item()


def equal(first: SparseGP, second: SparseGP) -> bool:
    ours, theirs = first.state_dict(), second.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_frozen_map_sees_each_row_once(source):
    seen: list[int] = []
    model = new_model(source, network().requires_grad_(False))
    counted(model.features, seen)
    validation = ArraySource(source.x[:30], source.y[:30])
    train(model, source, QUICK, validation=validation)
    assert sum(seen) == ROWS + 30


def test_a_map_that_learns_sees_each_row_every_epoch_and_what_is_frozen_before_it_once(source):
    seen: dict[str, list[int]] = {"frozen": [], "learnt": []}
    torch.manual_seed(0)
    frozen = nn.Sequential(nn.Linear(3, 4), nn.Tanh()).requires_grad_(False)
    model = new_model(source, Chain(Scaling(torch.zeros(3), torch.ones(3)), frozen, nn.Linear(4, 2)))
    counted(frozen, seen["frozen"])
    counted(model.features.maps[2], seen["learnt"])
    at_the_end = []
    train(
        model, source, QUICK, callbacks=[lambda now: at_the_end.append(sum(seen["learnt"])) if now.epoch_end else None]
    )
    assert sum(seen["frozen"]) == ROWS
    assert np.diff(at_the_end).tolist() == [ROWS] * (EPOCHS - 1)


def test_all_rows_at_once_see_a_frozen_map_once(source):
    seen: list[int] = []
    model = new_model(source, network().requires_grad_(False))
    counted(model.features, seen)
    converge(model, source, Settings(max_epochs=EPOCHS))
    assert sum(seen) == ROWS


@pytest.mark.parametrize("exact", [False, True], ids=["natural gradients", "L-BFGS"])
def test_a_network_in_front_of_the_kernel_learns_and_improves_the_elbo(source, exact):
    values = []
    for learnt in (False, True):
        model = new_model(source, network().requires_grad_(learnt))
        before = copy.deepcopy(model.features)
        if exact:
            converge(model, source, Settings(max_epochs=60))
        else:
            train(model, source, Settings(max_epochs=200, batch_size=ROWS))
        values.append(value(model, source))
        for ours, start in zip(model.features.parameters(), before.parameters(), strict=True):
            assert torch.equal(ours, start) is not learnt
            assert ours.dtype == torch.float32  # as it came
    assert values[1] > values[0] + 20


def test_what_frozen_maps_give_is_what_the_model_computes_itself(source):
    """Training behind them is training through them."""
    model = new_model(source, Chain(PrincipalComponents(3).fit(source), network(seed=1).requires_grad_(False)))
    with torch.no_grad():
        phi = model.features(torch.from_numpy(source.x)).numpy()
    behind = SparseGP(copy.deepcopy(model.kernel), Gaussian(variance=0.1), model.inducing_inputs.detach())
    train(model, source, QUICK)
    train(behind, ArraySource(phi, source.y), QUICK)
    model.features = None
    assert equal(model, behind)


def test_rows_reach_each_map_of_a_chain_in_a_precision_of_its_own(source):
    """A network in float32 must not cost a scaling the digits that vary."""
    x = torch.from_numpy(source.x) + 1e9
    scaling, behind = Scaling(torch.full((3,), 1e9), torch.ones(3)), network()
    model = new_model(source, Chain(scaling, behind))
    torch.testing.assert_close(model.embed(x), behind((x - 1e9).float()).double(), rtol=1e-5, atol=1e-5)


def test_features_beyond_the_memory_go_to_a_file_without_a_name_and_give_the_same_bits(source, monkeypatch, tmp_path):
    """However a process ends, its file is gone with it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    models, files = [], []
    for limit in (2**30, 100):
        monkeypatch.setattr(cache, "MEMORY_BYTES", limit)
        assert cache.apply_once(network(), source).in_memory is (limit > 100)
        models.append(new_model(source, network().requires_grad_(False)))
        train(models[-1], source, QUICK, callbacks=[lambda _: files.append([*tmp_path.iterdir()])])
    assert equal(*models)
    assert files == [[]] * 30


def test_a_run_with_a_learnt_network_broken_off_at_every_step_ends_in_the_bits_of_an_unbroken_one(source, tmp_path):
    whole = new_model(source, Chain(PrincipalComponents(3).fit(source), network()))
    fresh = copy.deepcopy(whole)
    history = train(whole, source, QUICK)
    assert not torch.equal(whole.features.maps[1][0].weight, fresh.features.maps[1][0].weight)
    broken, again, breaks = train_broken_off(lambda: copy.deepcopy(fresh), source, QUICK, tmp_path)
    assert breaks == 3 * EPOCHS - 1
    assert equal(broken, whole)
    assert again.best_score == history.best_score


def test_predictions_are_those_of_evaluation_mode(source):
    """Dropout and batch normalisation do in training what no prediction should."""
    torch.manual_seed(0)
    features = nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 2))
    model = new_model(source, features)
    x = torch.from_numpy(source.x)
    assert features.training
    train(model, source, QUICK)
    predictor = model.predictor()
    assert features.training  # the caller's is as it was
    assert torch.equal(predictor.predict(x).mean, predictor.predict(x).mean)
    torch.testing.assert_close(predictor.predict(x[:1]).mean, predictor.predict(x).mean[:1], rtol=1e-6, atol=1e-6)
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(predictor(x).mean, model(x).mean, rtol=1e-10, atol=1e-10)


def test_frozen_maps_are_applied_in_evaluation_mode(source):
    torch.manual_seed(0)
    features = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2), nn.Dropout(0.5)).requires_grad_(False)
    model = new_model(source, features)
    _, (mapped,) = apply_frozen(model, source)
    assert features.training
    assert not features[0].running_mean.any()
    phi = model.predictor()._model.embed(torch.from_numpy(source.x))
    np.testing.assert_array_equal(mapped.x, phi.numpy())


def test_a_light_map_that_memory_cannot_keep_is_applied_to_each_batch(source, monkeypatch):
    """Unless rows come from a disk: features are narrower, and are read again every epoch."""
    components = PrincipalComponents(2).fit(source)
    model, again = new_model(source, components), new_model(source, components)
    assert apply_frozen(model, source)[0] is not model
    train(model, source, QUICK)
    monkeypatch.setattr(cache, "MEMORY_BYTES", source.x[:, :2].nbytes - 1)
    behind, (same,) = apply_frozen(again, source)
    assert (behind, same) == (again, source)
    train(again, source, QUICK)
    torch.testing.assert_close(again.state_dict(), model.state_dict(), rtol=1e-9, atol=1e-9)
    with tempfile.TemporaryFile() as file:
        mapped = np.memmap(file, source.x.dtype, mode="w+", shape=source.x.shape)
    assert apply_frozen(again, ArraySource(mapped, source.y))[0] is not again


def test_images_reach_a_convolution_as_they_are():
    generator = np.random.default_rng(0)
    images = generator.normal(size=(60, 36)).astype(np.float32)
    labels = (images[:, 14] + images[:, 15] > 0).astype(np.int64)
    torch.manual_seed(0)
    features = nn.Sequential(nn.Unflatten(1, (1, 6, 6)), nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    with torch.no_grad():
        z = features(torch.from_numpy(images[:10]))
    model = SparseGP(RBF(), Bernoulli(), z, features)
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    before = elbo(model, x, y).item()
    train(model, ArraySource(images, labels), Settings(max_epochs=60, batch_size=60))
    assert elbo(model, x, y).item() > before + 10
