"""The long-term forecasting protocol, exactly: borders, scaler, every test window, no dropped batch.

Public as ``neurips26.filterbank_tsf.benchmark``. Rows are scaled per channel by mean and population deviation of the
training rows; metrics are averages over all windows, channels and steps in scaled units. Validation and test parts
start L rows early, so that their first forecast starts at their first row.
"""

from __future__ import annotations

import itertools
import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.signal import lfilter

from neurips26.shared import data as shared_data

from .linear import LinearForecaster
from .stats import WindowStats, as_series, raise_missing, window_blocks

SLUG = "filterbank-tsf"
MONTH = 30 * 24


@dataclass(frozen=True)
class DataSpec:
    """How one benchmark is split and what is tried on it.

    Attributes:
        file: name of the CSV; first column ``date``, then the channels.
        borders: ends of training, validation and test rows, or ``None`` for 70 / 10 / 20 %.
        period: dominant period in steps.
        lookbacks: candidates for L.
        horizons: reported H.
        folder: sub-folder used by the usual full-scale layout.
    """

    file: str
    borders: tuple[int, int, int] | None
    period: int
    lookbacks: tuple[int, ...] = (336, 512, 720)
    horizons: tuple[int, ...] = (96, 192, 336, 720)
    folder: str = ""


_HOURS = (12 * MONTH, 16 * MONTH, 20 * MONTH)
_QUARTERS = tuple(4 * b for b in _HOURS)
SPECS: dict[str, DataSpec] = {
    "ETTh1": DataSpec("ETTh1.csv", _HOURS, 24, folder="ETT-small"),
    "ETTh2": DataSpec("ETTh2.csv", _HOURS, 24, folder="ETT-small"),
    "ETTm1": DataSpec("ETTm1.csv", _QUARTERS, 96, folder="ETT-small"),  # type: ignore[arg-type]
    "ETTm2": DataSpec("ETTm2.csv", _QUARTERS, 96, folder="ETT-small"),  # type: ignore[arg-type]
    "exchange": DataSpec("exchange_rate.csv", None, 7, (96, 192, 336), folder="exchange_rate"),
    "illness": DataSpec("national_illness.csv", None, 52, (36, 60, 104, 148), (24, 36, 48, 60), folder="illness"),
    "weather": DataSpec("weather.csv", None, 144, folder="weather"),
    "electricity": DataSpec("electricity.csv", None, 24, folder="electricity"),
    "traffic": DataSpec("traffic.csv", None, 24, folder="traffic"),
    # Shipped inside statsmodels: weekly CO2 at Mauna Loa, for a machine without any data folder.
    "co2": DataSpec("", None, 52, (104, 156, 208), (13, 26, 52, 104)),
    # Generated: three decaying sinusoids in noise. The forecaster has rank six, whatever L and H.
    "waves": DataSpec("", None, 24, (168, 336), (24, 48, 96)),
}
# Periods of "waves" in steps; each sinusoid is one pair of roots and adds two to the rank.
WAVES: tuple[float, ...] = (24.0, 37.0, 7.0)


@dataclass(frozen=True)
class LTSFData:
    """A scaled benchmark series and its borders.

    Attributes:
        name: of the benchmark.
        values: scaled rows ``(T, C)``.
        columns: channel names.
        train_end, val_end, test_end: borders in rows.
        mean, std: the scaler, from the training rows.
        spec: how it is split and what is tried on it.
    """

    name: str
    values: Float[np.ndarray, "t c"]
    columns: tuple[str, ...]
    train_end: int
    val_end: int
    test_end: int
    mean: Float[np.ndarray, " c"]
    std: Float[np.ndarray, " c"]
    spec: DataSpec
    kind: str = "real"
    _cache: dict[Any, WindowStats] = field(default_factory=dict, repr=False, compare=False)

    def rows(self, part: str, lookback: int) -> Float[np.ndarray, "t c"]:
        """Rows of ``"train"``, ``"val"`` or ``"test"``; the latter two start ``lookback`` rows early."""
        bounds = {
            "train": (0, self.train_end),
            "val": (self.train_end - lookback, self.val_end),
            "test": (self.val_end - lookback, self.test_end),
        }
        if part not in bounds:
            raise ValueError(f"part must be 'train', 'val' or 'test', got {part!r}")
        start, stop = bounds[part]
        if start < 0:
            raise ValueError(f"lookback={lookback} reaches before the first row of {self.name} (part {part!r})")
        return self.values[start:stop]

    def stats(self, part: str, lookback: int, horizon: int) -> WindowStats:
        """Raw window statistics of a part (kept)."""
        key = (part, lookback, horizon)
        if key not in self._cache:
            self._cache[key] = WindowStats.from_series(self.rows(part, lookback), lookback, horizon)
        return self._cache[key]

    def forget(self) -> None:
        """Drop kept statistics."""
        self._cache.clear()


def split(name: str, values: object, columns: tuple[str, ...], spec: DataSpec, kind: str = "real") -> LTSFData:
    """Split and scale the rows of a benchmark."""
    raw = as_series(values, "values")
    if not np.isfinite(raw).all():
        raise_missing(raw, name, columns, "fill it")
    if spec.borders is not None:
        train_end, val_end, test_end = spec.borders
        if len(raw) < test_end:
            raise ValueError(f"{name} needs at least {test_end} rows for its standard borders, got {len(raw)}")
    else:
        train_end, test_rows = int(len(raw) * 0.7), int(len(raw) * 0.2)
        val_end, test_end = len(raw) - test_rows, len(raw)
    mean, std = scaler(raw[:train_end], columns)
    return LTSFData(name, (raw - mean) / std, columns, train_end, val_end, test_end, mean, std, spec, kind)


def scaler(
    train: Float[np.ndarray, "t c"], columns: Sequence[object] | None = None
) -> tuple[Float[np.ndarray, " c"], Float[np.ndarray, " c"]]:
    """Mean and population deviation per channel; a constant channel gets deviation 1 with a warning that names it."""
    # By a power of two first: exact, and squares of very large or small values stay within what float64 holds.
    size = np.ldexp(1.0, np.frexp(np.abs(train).max(0))[1] - 1)
    mean, std = (train / size).mean(0), (train / size).std(0)
    constant = std <= 1e-12 * np.abs(mean)
    mean, std = mean * size, std * size
    if constant.any():
        names = range(len(std)) if columns is None else columns
        warnings.warn(
            f"constant in the training rows, scaled by 1: channel {[names[i] for i in np.flatnonzero(constant)]}",
            RuntimeWarning,
            stacklevel=2,
        )
    return mean, np.where(constant, 1.0, std)


def load_ltsf(name: str, data_dir: str | Path | None = None) -> LTSFData:
    """A benchmark by name, from ``data_dir`` (flat, or the usual ``dataset/`` layout) or from the declared data.

    Files that are not declared (their checksum is not known here) are also looked for in this paper's folder below
    ``$NEURIPS26_DATA``, in either layout.

    Raises:
        ValueError: unknown name, wrong header, missing values (named by column and row).
        neurips26.shared.data.DataMissing: the file is not on this machine; the message says what to put where.
    """
    if name not in SPECS:
        raise ValueError(f"name must be one of {', '.join(SPECS)}, got {name!r}")
    spec = SPECS[name]
    if name == "co2":
        return _co2(spec)
    if name == "waves":
        return split(name, waves(), ("a", "b", "c"), spec, "generated")
    if data_dir is None and spec.file in {d.name for d in _declared()}:
        path = shared_data.require(SLUG, spec.file)
    else:
        home = os.environ.get("NEURIPS26_DATA")
        folder = Path(data_dir) if data_dir is not None else Path(home, SLUG) if home else None
        tried = [] if folder is None else [folder / spec.file, folder / spec.folder / spec.file]
        path = next((p for p in tried if p.is_file()), None)
        if path is None:
            where = f"not in {folder} (looked at {', '.join(map(str, tried))})" if tried else "no folder to look in"
            raise shared_data.DataMissing(
                f"{spec.file}: {where}; pass data_dir, the folder that holds it (the usual dataset/ layout works); it is "
                "part of the thuml/Time-Series-Library data set collection"
            )
    frame = pd.read_csv(path)
    if frame.shape[1] < 2 or frame.columns[0] != "date":
        raise ValueError(f"{path}: the first column must be 'date' and channels must follow, got {list(frame.columns)}")
    return split(name, frame.iloc[:, 1:].to_numpy(), tuple(map(str, frame.columns[1:])), spec)


def _declared():
    from neurips26.shared import registry

    return registry.find(SLUG).data


def waves(
    rows: int = 4000, channels: int = 3, noise: float = 0.3, coefficient: float = 0.5, seed: int = 0
) -> Float[np.ndarray, "t c"]:
    """A series of known rank: sinusoids of the periods ``WAVES``, each losing half its amplitude over the rows, with
    phases of their own in every channel, and autoregressive noise.
    """
    rng, time = np.random.default_rng(seed), np.arange(rows)[:, None]
    clean = np.zeros((rows, channels))
    for period in WAVES:
        clean += np.sin(2 * np.pi * (time / period + rng.uniform(size=channels)))
    steps = noise * rng.standard_normal((rows, channels))
    return 0.5 ** (time / rows) * clean + lfilter([1.0], [1.0, -coefficient], steps, axis=0)


def _co2(spec: DataSpec) -> LTSFData:
    from statsmodels.datasets import co2

    frame = co2.load_pandas().data["co2"].interpolate()
    return split("co2", frame.to_numpy()[:, None], ("co2",), spec, "from a dependency")


Predictor = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Score:
    """Errors over all windows, channels and steps of a part, in scaled units."""

    mse: float
    mae: float
    windows: int


def evaluate(
    model: LinearForecaster | Predictor, data: LTSFData, lookback: int, horizon: int, part: str = "test"
) -> Score:
    """Errors of ``model`` on every window of a part.

    ``model`` is a linear forecaster or any function from look-backs ``(n, L)`` to forecasts ``(n, H)``; windows are
    visited in blocks and no ``(N, L)`` copy is made.
    """
    predict = model.predict if isinstance(model, LinearForecaster) else model
    squared = absolute = count = 0.0
    rows = data.rows(part, lookback)
    for block in window_blocks(rows, lookback + horizon):
        forecast = predict(block[:, :lookback])
        if forecast.shape != (len(block), horizon):
            raise ValueError(f"model: expected forecasts of shape {(len(block), horizon)}, got {forecast.shape}")
        error = forecast - block[:, lookback:]
        squared += float(np.vdot(error, error))
        absolute += float(np.abs(error).sum())
        count += error.size
    return Score(squared / count, absolute / count, len(rows) - lookback - horizon + 1)


def runs_of_windows(count: int, runs: int) -> list[tuple[int, int]]:
    """Contiguous runs of ``count`` windows, of about one length: first window and the one after the last."""
    return list(itertools.pairwise(np.linspace(0, count, runs + 1).astype(int).tolist()))


def block_errors(
    model: LinearForecaster, data: LTSFData, lookback: int, horizon: int, blocks: int, part: str = "test"
) -> Float[np.ndarray, " b"]:
    """MSE on ``blocks`` contiguous runs of windows: paired units for comparing deterministic forecasters."""
    rows = data.rows(part, lookback)
    return np.array([
        model.mse(WindowStats.from_series(rows[a : b + lookback + horizon - 1], lookback, horizon))
        for a, b in runs_of_windows(len(rows) - lookback - horizon + 1, blocks)
    ])  # fmt: skip


def window_count(rows: int, lookback: int, horizon: int) -> int:
    """Windows of a part: ``rows - L - H + 1``, never less because of a batch size."""
    return max(rows - lookback - horizon + 1, 0)


def dominant_period(z: Float[np.ndarray, "t c"], longest: int | None = None) -> int:
    """The period of the strongest peak of the mean periodogram of the detrended channels."""
    z = np.asarray(z, dtype=float)
    time = np.linspace(-1, 1, len(z))[:, None]
    z = z - z.mean(0) - time * ((time * z).sum(0) / (time**2).sum())
    power = (np.abs(np.fft.rfft(z, axis=0)) ** 2 / np.maximum(z.var(0), 1e-12)).mean(1)
    longest = min(longest or len(z) // 4, len(z) // 4)
    low = math.ceil(len(z) / longest)
    return round(len(z) / (low + int(power[low:].argmax()))) if low < len(power) else 1
