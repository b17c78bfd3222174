"""`--code FILE.py`: a likelihood, a kernel and features of one's own on the command line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from typer.testing import Result

from autogp import GPRegressor, load_model
from autogp.cli.models import encoder_for
from autogp.features import FeatureMap

PARTS = """
import torch
from autogp.kernels import RBF
from autogp.likelihoods import Gaussian, Likelihood
from autogp.parameters import positive_parameter


class Laplace(Likelihood):
    affine_targets = True

    def __init__(self, scale=0.5):
        super().__init__()
        self.log_scale = positive_parameter(scale, "scale")

    def log_prob(self, f, y):
        scale = self.log_scale.exp().to(f.dtype)
        return -(y - f[..., 0]).abs() / scale - torch.log(2 * scale)

    def conditional_moments(self, f):
        return f, 2 * self.log_scale.exp().to(f.dtype).square().expand_as(f)

    def sample(self, f, generator=None):
        u = torch.rand(f.shape, dtype=f.dtype, generator=generator) - 0.5
        return f - self.log_scale.exp().to(f.dtype) * u.sign() * torch.log1p(-2 * u.abs())


class Smooth(RBF):
    pass
"""


def test_parts_of_ones_own_are_fitted_and_used_by_every_command(
    run: Callable[..., Result], run_json: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    x = np.linspace(0, 6, 60)
    data, parts, model = tmp_path / "data.csv", tmp_path / "parts.py", tmp_path / "m.autogp"
    pd.DataFrame({"x": x, "y": 1000 + 10 * np.sin(x)}).to_csv(data, index=False)
    parts.write_text(PARTS)
    code = ("--code", parts)
    options = ("--likelihood", "Laplace", "--kernel", "Smooth", "--inducing", 8, "--epochs", 5)
    run("fit", data, "--target", "y", "--out", model, *options, *code)
    about = run_json("info", model, *code)
    assert (about["likelihood"], about["kernel"]) == ("Laplace", "Smooth")
    run("predict", model, data, "--out", tmp_path / "p.csv", *code)
    found = pd.read_csv(tmp_path / "p.csv")
    assert np.abs(found["mean"] - 1000 - 10 * np.sin(x)).mean() < 3  # targets were scaled
    assert run_json("evaluate", model, data, *code)["rows"] == 60
    run("report", model, data, "--out", tmp_path / "r.html", *code)
    assert "Laplace" in (tmp_path / "r.html").read_text()
    assert "--code" in run("info", model, code=1).stderr
    assert "should end in .py" in run("info", model, "--code", data, code=2).stderr


class Own(FeatureMap):
    scaled_outputs = True

    def forward(self, x: Tensor) -> Tensor:
        return x.square()


def test_a_table_serves_a_model_of_named_columns_with_features_of_ones_own(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": np.linspace(0, 1, 20), "b": np.linspace(0, 1, 20) ** 2})
    model = GPRegressor(4, features=Own(), max_epochs=1, likelihood="gaussian").fit(frame, frame["a"])
    assert model.encoder_ is None
    model.save(tmp_path / "m.autogp")
    encoder = encoder_for(load_model(tmp_path / "m.autogp", modules=[Own]), "new.csv")
    assert encoder is not None
    assert encoder.used == ["a", "b"]
    assert torch.isfinite(torch.from_numpy(model.predict(frame))).all()
