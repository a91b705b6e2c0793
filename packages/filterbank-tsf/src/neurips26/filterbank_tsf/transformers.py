"""PatchTST and iTransformer through neuralforecast, evaluated on every test window (extra ``nixtla``; GPU scale)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from neurips26.shared.claims import DataUse, Measurement, Series
from neurips26.shared.context import Context

from .bank import fit_bank
from .nn import DeepFilterBank
from .protocol import SPECS, LTSFData, load_ltsf
from .training import TrainConfig, Windows, score, train

TRANSFORMERS: tuple[str, ...] = ("patchtst", "itransformer")


class _ChannelFirst(torch.nn.Module):
    """A neuralforecast network as ``(B, C, L) -> (B, C, H)``, under our trainer and our windows."""

    def __init__(self, network: torch.nn.Module, multivariate: bool):
        super().__init__()
        self.network, self.multivariate = network, multivariate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, lookback = x.shape
        if self.multivariate:
            return self.network({"insample_y": x.transpose(1, 2)}).transpose(1, 2)
        y = self.network({"insample_y": x.reshape(batch * channels, lookback, 1)})
        return y.reshape(batch, channels, -1)


def make_transformer(
    name: str, lookback: int, horizon: int, channels: int, seed: int = 0, **settings: Any
) -> torch.nn.Module:
    """PatchTST or iTransformer with neuralforecast's networks and reversible instance normalisation."""
    from neuralforecast.losses.pytorch import MSE
    from neuralforecast.models import PatchTST, iTransformer

    common = dict(h=horizon, input_size=lookback, loss=MSE(), random_seed=seed, max_steps=1)
    if name == "patchtst":
        return _ChannelFirst(PatchTST(**common, revin=True, **settings), False)
    if name == "itransformer":
        return _ChannelFirst(iTransformer(**common, n_series=channels, use_norm=True, **settings), True)
    raise ValueError(f"name must be one of {', '.join(TRANSFORMERS)}, got {name!r}")


def run_model(
    model: torch.nn.Module, data: LTSFData, lookback: int, horizon: int, config: TrainConfig
) -> dict[str, float]:
    """Train on the training rows, stop on validation, score on every test window."""
    windows = Windows(data.rows("train", lookback), lookback, horizon)
    val = Windows(data.rows("val", lookback), lookback, horizon, data.train_end - lookback)
    held = Windows(data.rows("test", lookback), lookback, horizon, data.val_end - lookback)
    history = train(model, windows, val, config)
    mse, mae = score(model, held)
    return {"val": history.best, "mse": mse, "mae": mae}


def deep_against_transformers(ctx: Context) -> Measurement:
    """The measurement of the claim ``transformers`` on the data sets present."""
    ours: list[float] = []
    rivals: dict[str, list[float]] = {t: [] for t in TRANSFORMERS}
    names: list[str] = []
    for name in (n for n in SPECS if n != "co2"):
        try:
            data = load_ltsf(name)
        except FileNotFoundError:
            ctx.note(f"{name}: not on this machine")
            continue
        names.append(name)
        lookback, horizon = data.spec.lookbacks[-1] // 2, data.spec.horizons[0]
        bank = fit_bank(
            data.stats("train", lookback, horizon).normalised("mean"), 8, min(data.spec.period, lookback), rank=12
        )
        for seed in ctx.seeds(3):
            config = TrainConfig(1e-3, 30, seed=seed)

            def deep(b=bank, d=data, c=config, s=seed, look=lookback, h=horizon):
                return run_model(DeepFilterBank(look, h, b, seed=s), d, look, h, c)["mse"]

            ours.append(ctx.cell({"data": name, "seed": seed, "model": "deep"}, deep))
            for rival in TRANSFORMERS:

                def other(r=rival, d=data, c=config, s=seed, look=lookback, h=horizon):
                    return run_model(make_transformer(r, look, h, d.values.shape[1], s), d, look, h, c)["mse"]

                rivals[rival].append(ctx.cell({"data": name, "seed": seed, "model": rival}, other))
    best = min(rivals, key=lambda r: float(np.mean(rivals[r])))
    return Measurement(
        Series({"epochs": 30}, ours), {r: Series({}, v) for r, v in rivals.items()}, best, ctx.seeds(3),
        data=[DataUse(n, "real") for n in names],
    )  # fmt: skip
