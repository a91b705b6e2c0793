"""Verbs of this paper: ``neurips26 filterbank-tsf fit | predict | plot | rank-report | benchmark | export``."""

from __future__ import annotations

import importlib.util
import json
import logging
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import tyro

Positional = tyro.conf.Positional
# Rows of the benchmark by the names that ``fit --model`` uses.
SHORT = {"rrr": "rrr-val", "filterbank": "bank"}


@dataclass
class Fit:
    """Fit a forecaster on a CSV (first column time stamps, then numbers) and save it."""

    data: Positional[Path]
    """CSV file."""
    horizon: int = 96
    """Steps to forecast."""
    lookback: int = 336
    """Steps looked at."""
    model: str = "rrr"
    """rrr (reduced rank), bank (strided filter bank) or auto (bank that chooses its shape)."""
    out: Path = Path("forecaster.pkl")
    """Where to save it."""
    json: bool = False
    """Print JSON."""

    def run(self) -> dict[str, Any]:
        """Fit and save."""
        frame, model = read_csv(self.data), make_model(self.model, self.lookback, self.horizon)
        model.fit(frame)
        self.out.write_bytes(pickle.dumps(model))
        return {
            "saved": str(self.out), "rows": len(frame), "channels": frame.shape[1], "lookback": self.lookback,
            "horizon": self.horizon, "rank": getattr(model, "rank_", getattr(model, "rank_bound_", None)),
            "alpha": model.alpha_,
        }  # fmt: skip


@dataclass
class Predict:
    """Forecast what follows a CSV; with --out as CSV, otherwise printed."""

    data: Positional[Path]
    """CSV file whose last rows are looked at."""
    forecaster: Path | None = None
    """Saved by fit (a pickle: open only files you trust); without it one is fitted on the CSV itself."""
    horizon: int | None = None
    """Steps to forecast; default those of the saved forecaster, 96 when fitting here."""
    lookback: int = 336
    """Steps looked at (when fitting here)."""
    out: Path | None = None
    """CSV to write."""
    json: bool = False
    """Print JSON."""

    def run(self) -> dict[str, Any]:
        """Load or fit, then forecast."""
        frame = read_csv(self.data)
        forecast = forecast_frame(frame, self.forecaster, self.lookback, self.horizon)
        if self.out is not None:
            forecast.to_csv(self.out, index_label="date")
            return {"written": str(self.out), "rows": len(forecast)}
        return {"forecast": json.loads(forecast.to_json(orient="split", date_format="iso"))}


@dataclass
class Plot:
    """Draw the last rows of a CSV and their forecast."""

    data: Positional[Path]
    """CSV file."""
    forecaster: Path | None = None
    """Saved by fit; without it one is fitted on the CSV itself."""
    horizon: int | None = None
    """Steps to forecast; default those of the saved forecaster, 96 when fitting here."""
    lookback: int = 336
    """Steps looked at (when fitting here)."""
    out: Path = Path("forecast.png")
    """PNG to write."""
    json: bool = False
    """Print JSON."""

    def run(self) -> dict[str, Any]:
        """Forecast and draw."""
        from neurips26.shared.plots import OURS, figure

        frame = read_csv(self.data)
        forecast = forecast_frame(frame, self.forecaster, self.lookback, self.horizon)
        shown = frame.iloc[-2 * len(forecast) - 48 :]
        with figure(self.out, len(frame.columns), 1, (7.0, 1.6)) as axes:
            for ax, column in zip(np.atleast_1d(axes), frame.columns):
                ax.plot(shown.index, shown[column], color="k", lw=0.8, label="last rows")
                ax.plot(forecast.index, forecast[column], color=OURS, lw=1.2, label="forecast")
                ax.set_title(str(column), loc="left")
            ax.figure.legend(*ax.get_legend_handles_labels(), loc="outside right center")
        return {"drawn": str(self.out), "channels": len(frame.columns)}


@dataclass
class RankReport:
    """How low the rank of a CSV's forecasting task is: rank curve, selectors, alignment of the data and of the fit."""

    data: Positional[Path]
    """CSV file."""
    horizon: int = 96
    """Steps to forecast."""
    lookback: int = 336
    """Steps looked at."""
    json: bool = False
    """Print JSON."""

    def run(self) -> dict[str, Any]:
        """Hold out the newest fifth and report."""
        from .analysis import (
            alignment_curve,
            bank_kernel,
            cka,
            effective_rank,
            intrinsic_rank,
            metric_alignment,
            rank_curve,
            spectrum,
            stable_rank,
            steps_to_learn,
        )
        from .protocol import DataSpec, split
        from .regression import RidgePath
        from .selection import blocked_cv

        frame = read_csv(self.data)
        data = split(str(self.data), frame.to_numpy(), tuple(map(str, frame.columns)), DataSpec("", None, 24))
        train, val = (data.stats(p, self.lookback, self.horizon).normalised("mean") for p in ("train", "val"))
        curve = rank_curve(train, {"val": val})
        (alpha, rank), path = curve.best("val"), RidgePath(train)
        weight, bank = path.weight(alpha), path.reduced_rank(alpha, rank).balanced()
        aligned = alignment_curve(train)
        tangent = metric_alignment(train, bank_kernel(bank.analysis, bank.synthesis, np.eye(self.lookback), trace=True))
        values, joint = spectrum(train), spectrum(train, "joint")
        table = blocked_cv(data.rows("train", 0), self.lookback, self.horizon, name=str(self.data))[..., :-1]
        folds = table[:, table.mean(0).argmin(0), np.arange(len(curve.ranks))]
        return {
            "ranks": list(curve.ranks),
            "validation mse": [round(float(v), 5) for v in curve.along("val")],
            "full rank": round(float(curve.full["val"].min()), 5),
            "chosen": {
                "val": rank,
                "one_se": intrinsic_rank(train, "one_se", folds=folds, ranks=curve.ranks),
                "rsc": intrinsic_rank(train, "rsc", alphas=(1e-3,)),
                "energy:0.99": intrinsic_rank(train, "energy:0.99", alphas=(1e-3,)),
            },
            "stable rank of W": round(stable_rank(weight), 2),
            "effective rank of W": round(effective_rank(weight), 2),
            "eigenvalues of G for 99 %": int(np.searchsorted(np.cumsum(values) / values.sum(), 0.99) + 1),
            "eigenvalues of S for 99 %": int(np.searchsorted(np.cumsum(joint) / joint.sum(), 0.99) + 1),
            "alignment": {"P(12)": round(float(aligned.cumulative[min(12, len(values)) - 1]), 4),
                          "P(L)": round(aligned.r_squared, 4), "k95": aligned.k_at(0.95), "cka": round(cka(train), 4),
                          "k95 of the fitted bank's tangent kernel": tangent.k_at(0.95, aligned.r_squared)},
            "steps of gradient descent for 95 %": {"linear layer": steps_to_learn(aligned), "bank": steps_to_learn(tangent)},
        }  # fmt: skip


@dataclass
class Benchmark:
    """Closed-form rows (and trained peers) on the standard data sets, every test window."""

    datasets: str = "ETTh1"
    """Comma-separated: ETTh1, ETTh2, ETTm1, ETTm2, exchange, illness, weather, electricity, traffic, co2
    (ships with statsmodels), waves (generated, of known rank)."""
    horizons: str = ""
    """Comma-separated; default those of the data set."""
    models: str = "chosen,rrr-val,bank,ridge,dlinear-ols,seasonal-naive,repeat-last"
    """Comma-separated rows: closed forms (also rrr-blocks, rrr-r12, dwrr-r12, ridge-average,
    rlinear-ols, nlinear-ols, kronecker) and trained peers
    (dlinear, rlinear, fits, sparsetsf, cyclenet, timebase, olinear, rootpurge)."""
    data_dir: Path | None = None
    """Folder with the CSV files (the usual dataset/ layout works)."""
    lookback: int = 336
    """Of trained peers."""
    lr: float | None = None
    """Of trained peers; default that of the peer's paper."""
    epochs: int | None = None
    """Most passes of trained peers; default those of the peer's paper (many minutes for some)."""
    out: Path | None = None
    """CSV to write."""
    json: bool = False
    """Print JSON."""

    def run(self) -> dict[str, Any]:
        """Run the rows."""
        from neurips26.shared.progress import track

        from .experiments import peer_config
        from .peers import PEERS, make_peer
        from .protocol import load_ltsf
        from .tables import CLOSED_FORM_ROWS, closed_form_table
        from .training import Windows, score, train

        wanted = [SHORT.get(m, m) for m in self.models.split(",")]
        closed = tuple(m for m in wanted if m not in PEERS)
        unknown = sorted(set(closed) - set(CLOSED_FORM_ROWS))
        if unknown:
            raise ValueError(f"models must be among {', '.join((*CLOSED_FORM_ROWS, *PEERS))}, got {', '.join(unknown)}")
        if not all(h.strip().isdecimal() and int(h) > 0 for h in self.horizons.split(",") if self.horizons):
            raise ValueError(f"horizons must be positive integers with commas between them, got {self.horizons!r}")
        rows = []
        for name in self.datasets.split(","):
            data = load_ltsf(name, self.data_dir)
            horizons = [int(h) for h in self.horizons.split(",")] if self.horizons else data.spec.horizons
            for horizon in track(list(horizons), name):
                table = closed_form_table(data, horizon, closed) if closed else {}
                for model, row in table.items():
                    rows.append({"data": name, "horizon": horizon, "model": model, "mse": row["mse"], "mae": row["mae"],
                                 "windows": row["windows"], "macs": row["macs"]})  # fmt: skip
                length = self.lookback // data.spec.period * data.spec.period or self.lookback
                for peer in (m for m in wanted if m in PEERS):
                    model = make_peer(peer, length, horizon, data.values.shape[1], data.spec.period,
                                      data.stats("train", length, horizon))  # fmt: skip
                    parts = {p: Windows(data.rows(p, length), length, horizon, start) for p, start in
                             (("train", 0), ("val", data.train_end - length), ("test", data.val_end - length))}  # fmt: skip
                    train(model, parts["train"], parts["val"], peer_config(peer, self.lr, self.epochs))
                    mse, mae = score(model, parts["test"])
                    rows.append({"data": name, "horizon": horizon, "model": peer, "mse": mse, "mae": mae,
                                 "windows": len(parts["test"]), "macs": model.macs()})  # type: ignore[operator]  # fmt: skip
                data.forget()
        if self.out is not None:
            pd.DataFrame(rows).to_csv(self.out, index=False)
        return {"rows": rows}


@dataclass
class Export:
    """Fit a strided bank on a CSV and write it as ONNX (scaled units; extra ``onnx``)."""

    data: Positional[Path]
    """CSV file."""
    horizon: int = 96
    """Steps to forecast."""
    lookback: int = 336
    """Steps looked at."""
    onnx: Path = Path("bank.onnx")
    """ONNX file to write."""
    json: bool = False
    """Print JSON."""

    def run(self) -> dict[str, Any]:
        """Fit and export."""
        from .export import to_onnx

        if importlib.util.find_spec("onnxscript") is None:
            raise ValueError("export needs the extra 'onnx': pip install 'neurips26-filterbank-tsf[onnx]'")
        model = make_model("bank", self.lookback, self.horizon).fit(read_csv(self.data))
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of operators of libraries that are not there
        path = to_onnx(model.bank_, self.onnx)
        return {"written": str(path), "macs": model.macs_, "mean": model.mean_.tolist(), "std": model.std_.tolist()}


Verb = Annotated[
    Annotated[Fit, tyro.conf.subcommand("fit")]
    | Annotated[Predict, tyro.conf.subcommand("predict")]
    | Annotated[Plot, tyro.conf.subcommand("plot")]
    | Annotated[RankReport, tyro.conf.subcommand("rank-report")]
    | Annotated[Benchmark, tyro.conf.subcommand("benchmark")]
    | Annotated[Export, tyro.conf.subcommand("export")],
    tyro.conf.OmitSubcommandPrefixes,
]


def read_csv(path: Path) -> pd.DataFrame:
    """A wide frame from a CSV whose first column holds time stamps, whatever it is called.

    Raises:
        ValueError: no such file, no number columns, a first column that is not time, text among the numbers.
    """
    if not path.is_file():
        raise ValueError(f"data: {path} does not exist")
    try:
        frame = pd.read_csv(path)
    except ValueError as error:  # empty, ragged, or not UTF-8
        raise ValueError(f"data: {path} is not a readable CSV: {' '.join(str(error).split())}") from error
    if isinstance(frame.index, pd.MultiIndex) or not isinstance(frame.index, pd.RangeIndex):
        raise ValueError(f"data: {path} has more values in a row than names in its header {list(frame.columns)}")
    if frame.shape[1] < 2:
        raise ValueError(
            f"data: {path} needs a column of time stamps and at least one of numbers, got {list(frame.columns)}"
        )
    try:
        index = pd.DatetimeIndex(_times(frame.iloc[:, 0]))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"data: the first column of {path} ({frame.columns[0]!r}) does not hold time stamps: {error}"
        ) from error
    values = frame.iloc[:, 1:]
    text = [c for c in values.columns if values[c].dtype.kind not in "biuf"]
    if text:
        raise ValueError(f"data: column {text[0]!r} of {path} does not hold numbers")
    return values.set_index(index)


def _times(column: pd.Series) -> pd.Series:
    """Time stamps; where the offset from UTC changes within the file (summer time), instants in UTC."""
    if column.dtype.kind in "biuf":
        raise ValueError(f"numbers such as {column.iloc[0] if len(column) else None} are not time stamps")
    try:
        return pd.to_datetime(column)
    except ValueError as error:
        if "utc=True" not in str(error):
            raise
        return pd.to_datetime(column, utc=True)


def make_model(name: str, lookback: int, horizon: int) -> Any:
    """The estimator called ``name``."""
    from .estimators import AutoFilterBank, FilterBankForecaster, ReducedRankForecaster

    models = {"rrr": ReducedRankForecaster, "bank": FilterBankForecaster, "auto": AutoFilterBank}
    if name not in models:
        raise ValueError(f"model must be one of {', '.join(models)}, got {name!r}")
    return models[name](lookback=lookback, horizon=horizon)


def forecast_frame(frame: pd.DataFrame, forecaster: Path | None, lookback: int, horizon: int | None) -> pd.DataFrame:
    """Forecast with a saved forecaster or with one fitted on the frame itself."""
    if forecaster is None:
        return make_model("rrr", lookback, 96 if horizon is None else horizon).fit(frame).predict(frame)
    if not forecaster.is_file():
        raise ValueError(f"forecaster: {forecaster} does not exist")
    try:
        model = pickle.loads(forecaster.read_bytes())
        if not hasattr(model, "forecasters_"):
            raise TypeError(f"it holds a {type(model).__name__}")
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(f"forecaster: {forecaster} was not saved by fit, or is damaged ({error})") from error
    return model.predict(frame, horizon=horizon)


def main(argv: list[str]) -> int:
    """Run one verb; 2 with one line on stderr for input that cannot be used."""
    verb = tyro.cli(Verb, args=argv, prog="neurips26 filterbank-tsf")  # type: ignore[arg-type]
    try:
        result = verb.run()
    except (ValueError, TypeError, OSError) as error:  # OSError: a folder that is not there, no right to write
        print(f"error: {error}", file=sys.stderr)
        return 2
    if verb.json:
        print(json.dumps(result, default=float))
        return 0
    if "rows" in result and isinstance(result["rows"], list):
        print(pd.DataFrame(result["rows"]).to_string(index=False, float_format=lambda v: f"{v:.4f}"))
    else:
        for key, value in result.items():
            print(f"{key}: {value}")
    return 0
