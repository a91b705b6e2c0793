"""PatchTST and iTransformer through neuralforecast, evaluated on every test window (extra ``nixtla``; GPU scale)."""

from __future__ import annotations

import copy
from typing import Any

import torch

from neurips26.shared.claims import DataUse, Measurement, Series
from neurips26.shared.context import Context

from .bank import fit_bank
from .nn import DeepFilterBank
from .protocol import SPECS, LTSFData, load_ltsf
from .training import TrainConfig, Windows, score, train

TRANSFORMERS: tuple[str, ...] = ("patchtst", "itransformer")
# The eight sets of PatchTST's and iTransformer's own tables (exchange rates, the shipped and the generated series apart).
STANDARD: tuple[str, ...] = tuple(n for n in SPECS if n not in ("exchange", "co2", "waves"))
# A step takes at most so many channels over all its windows, so that 862 of them fit into memory too.
STEP_CHANNELS = 4096


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
    """Train on the training rows, on a GPU where there is one, stop on validation, score on every test window."""
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    windows = Windows(data.rows("train", lookback), lookback, horizon)
    val = Windows(data.rows("val", lookback), lookback, horizon, data.train_end - lookback)
    held = Windows(data.rows("test", lookback), lookback, horizon, data.val_end - lookback)
    history = train(model, windows, val, config)
    mse, mae = score(model, held)
    return {"val": history.best, "mse": mse, "mae": mae}


def deep_against_transformers(ctx: Context) -> Measurement:
    """The measurement of the claim ``transformers`` on the data sets present; the rival of a data set is the transformer
    with the smaller mean validation error there.
    """
    ours: list[float] = []
    rivals: dict[str, list[float]] = {t: [] for t in TRANSFORMERS}
    better: list[float] = []
    names: list[str] = []
    for name in STANDARD:
        try:
            data = load_ltsf(name)
        except FileNotFoundError:
            ctx.note(f"{name}: not on this machine")
            continue
        names.append(name)
        lookback, horizon, channels = data.spec.lookbacks[-1] // 2, data.spec.horizons[0], data.values.shape[1]
        train_stats = data.stats("train", lookback, horizon).normalised("mean")
        bank = fit_bank(train_stats, 8, min(data.spec.period, lookback), rank=12)
        found: dict[str, list[dict[str, float]]] = {"deep": [], **{t: [] for t in TRANSFORMERS}}
        for seed in ctx.seeds(3):
            config = TrainConfig(1e-3, 30, batch=max(1, min(256, STEP_CHANNELS // channels)), seed=seed)
            for kind, runs in found.items():

                def one(k=kind, d=data, b=bank, c=config, s=seed, look=lookback, h=horizon, n=channels):
                    # Training moves the bank it starts from: every seed gets a copy.
                    model = DeepFilterBank(look, h, copy.deepcopy(b), seed=s) if k == "deep" else None
                    return run_model(model or make_transformer(k, look, h, n, s), d, look, h, c)

                runs.append(ctx.cell({"data": name, "seed": seed, "model": kind}, one))
        data.forget()
        best = min(TRANSFORMERS, key=lambda t: sum(run["val"] for run in found[t]))
        ours += [run["mse"] for run in found["deep"]]
        better += [run["mse"] for run in found[best]]
        for rival in TRANSFORMERS:
            rivals[rival] += [run["mse"] for run in found[rival]]
    baselines = {"better on validation": Series({}, better), **{r: Series({}, v) for r, v in rivals.items()}}
    return Measurement(
        Series({"epochs": 30}, ours), baselines, "better on validation", list(range(len(ours))),
        data=[DataUse(n, "real") for n in names],
    )  # fmt: skip
