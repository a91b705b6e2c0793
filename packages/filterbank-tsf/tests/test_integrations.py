"""Bridges: ONNX, neuralforecast, the transformers under our protocol."""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from neurips26.filterbank_tsf.bank import fit_bank
from neurips26.filterbank_tsf.nn import DeepFilterBank, FilterBank
from neurips26.filterbank_tsf.stats import WindowStats


@pytest.fixture(scope="module")
def bank():
    z = np.sin(2 * np.pi * np.arange(900) / 24)[:, None] + 0.1 * np.random.default_rng(0).normal(size=(900, 2))
    return fit_bank(WindowStats.from_series(z, 96, 48).normalised("mean"), 4, 24, 12, rank=6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["overlapping", "folded", "deep"])
def test_onnx_runs_and_agrees(bank, kind, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    from neurips26.filterbank_tsf.export import to_onnx

    model = {"overlapping": bank, "folded": FilterBank(96, 48, 4, 24, rank=5), "deep": DeepFilterBank(96, 48, bank)}[
        kind
    ]
    path = to_onnx(model, tmp_path / "bank.onnx")
    x = np.random.default_rng(1).normal(size=(7, 96)).astype(np.float32)
    (y,) = runtime.InferenceSession(str(path)).run(None, {"x": x})
    assert np.allclose(y, model(torch.from_numpy(x)).detach().numpy(), atol=1e-5)


@pytest.mark.slow
def test_neuralforecast_model(tmp_path, monkeypatch):
    pytest.importorskip("neuralforecast")
    from neuralforecast import NeuralForecast

    from neurips26.filterbank_tsf.integrations.neuralforecast import FilterBank as Model

    monkeypatch.chdir(tmp_path)  # lightning writes its logs where it stands
    t = np.arange(400)
    frame = pd.DataFrame({
        "unique_id": np.repeat(["a", "b"], 400), "ds": np.tile(pd.date_range("2024-01-01", periods=400, freq="h"), 2),
        "y": np.concatenate([np.sin(2 * np.pi * t / 24), np.cos(2 * np.pi * t / 24)]),
    })  # fmt: skip
    model = Model(h=24, input_size=96, max_steps=150, learning_rate=1e-2, accelerator="cpu", logger=False,
                  enable_progress_bar=False, enable_checkpointing=False)  # fmt: skip
    forecaster = NeuralForecast(models=[model], freq="h")
    forecaster.fit(frame)
    out = forecaster.predict()
    truth = np.concatenate([np.sin(2 * np.pi * (t[:24] + 400) / 24), np.cos(2 * np.pi * (t[:24] + 400) / 24)])
    assert list(out["unique_id"]) == ["a"] * 24 + ["b"] * 24
    assert np.abs(out["FilterBank"].to_numpy() - truth).mean() < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["patchtst", "itransformer"])
def test_transformers_train_and_score_on_every_window(name):
    pytest.importorskip("neuralforecast")
    from neurips26.filterbank_tsf.protocol import DataSpec, split
    from neurips26.filterbank_tsf.training import TrainConfig
    from neurips26.filterbank_tsf.transformers import make_transformer, run_model

    z = np.sin(2 * np.pi * np.arange(600)[:, None] / np.array([24, 12, 8])) + 0.1
    data = split("waves", z, ("a", "b", "c"), DataSpec("", None, 24))
    small = (
        dict(hidden_size=16, n_heads=2, encoder_layers=1)
        if name == "patchtst"
        else dict(hidden_size=16, n_heads=2, e_layers=1, d_ff=16)
    )
    model = make_transformer(name, 48, 24, 3, **small)
    result = run_model(model, data, 48, 24, TrainConfig(1e-2, 3, batch=32))
    assert 0 < result["mse"] < 0.9 and result["val"] < 0.9


@pytest.mark.slow
def test_the_full_scale_comparison_on_a_small_series(monkeypatch):
    """The measurement that a GPU makes: three seeds, both transformers, every seed from the same closed-form start."""
    pytest.importorskip("neuralforecast")
    from neurips26.filterbank_tsf import transformers
    from neurips26.filterbank_tsf.protocol import DataSpec, split
    from neurips26.filterbank_tsf.training import TrainConfig
    from neurips26.shared.context import Context

    z = np.sin(2 * np.pi * np.arange(500)[:, None] / np.array([24, 12])) + 0.1
    data = split("waves", z, ("a", "b"), DataSpec("", None, 24, (48, 96), (24,)))
    small = dict(hidden_size=8, n_heads=2)
    make, run, starts = transformers.make_transformer, transformers.run_model, []

    def quick(model, data, lookback, horizon, config):
        if isinstance(model, DeepFilterBank):
            starts.append(model(torch.ones(1, lookback).cumsum(1)).detach())
        assert config.batch == 256 and config.epochs == 30
        return run(model, data, lookback, horizon, TrainConfig(1e-2, 1, seed=config.seed))

    monkeypatch.setattr(transformers, "STANDARD", ("waves", "ETTh9"))
    monkeypatch.setattr(transformers, "run_model", quick)
    monkeypatch.setattr(transformers, "make_transformer", lambda *a: make(*a, **small))

    def load(name):
        if name != "waves":
            raise FileNotFoundError(name)
        return data

    monkeypatch.setattr(transformers, "load_ltsf", load)
    with tempfile.TemporaryDirectory() as folder:
        ctx = Context("filterbank-tsf", "gpu", "transformers", Path(folder))
        measured = transformers.deep_against_transformers(ctx)
    assert ctx.notes == ["ETTh9: not on this machine"] and measured.compared_to == "better on validation"
    assert [len(s.values) for s in (measured.ours, *measured.baselines.values())] == [3] * 4
    assert measured.baselines["better on validation"].values in [
        measured.baselines[t].values for t in transformers.TRANSFORMERS
    ]
    assert len(starts) == 3 and torch.allclose(starts[0], starts[1]) and torch.allclose(starts[0], starts[2])


@pytest.mark.slow
def test_sktime_forecaster():
    pytest.importorskip("sktime", reason="heavy peer: uv run --with-requirements benchmarks/peers.txt")
    from sktime.forecasting.base import ForecastingHorizon
    from sktime.utils.estimator_checks import check_estimator

    from neurips26.filterbank_tsf.estimators import ReducedRankForecaster
    from neurips26.filterbank_tsf.integrations.sktime import FilterBankSktime

    t = np.arange(400)
    z = np.stack([np.sin(2 * np.pi * t / 24), np.cos(2 * np.pi * t / 12)], 1)
    y = pd.DataFrame(z, index=pd.period_range("2024-01-01", periods=400, freq="h"), columns=["a", "b"])
    settings = {"rank": 4, "alpha": 1e-3}
    got = FilterBankSktime(48, settings=settings).fit(y, fh=ForecastingHorizon([1, 5, 24])).predict()
    expected = ReducedRankForecaster(48, 24, **settings).fit(z).predict(z)[[0, 4, 23]]
    assert np.allclose(got.to_numpy(), expected) and list(got.columns) == ["a", "b"]
    assert got.index[0] == y.index[-1] + 1 and got.index[-1] == y.index[-1] + 24
    one = FilterBankSktime(48, "bank", {"n_filters": 2, "alpha": 1e-3}).fit(y["a"], fh=[1, 2]).predict()
    assert (
        isinstance(one, pd.Series)
        and np.abs(one.to_numpy() - np.sin(2 * np.pi * np.array([400, 401]) / 24)).max() < 0.1
    )
    with pytest.raises(ValueError, match="estimator must be one of"):
        FilterBankSktime(48, "arima").fit(y, fh=[1])
    found = check_estimator(FilterBankSktime, verbose=False)
    # The tests' import hook wraps every constructor; sktime reads its signature.
    failed = {k: v for k, v in found.items() if v != "PASSED" and not k.startswith("test_constructor")}
    assert not failed and len(found) > 100, failed
