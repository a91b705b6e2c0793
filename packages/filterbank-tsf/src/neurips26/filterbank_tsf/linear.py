"""A fitted linear forecaster: a weight on the normalised look-back, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg as sla
from jaxtyping import Float

from .choices import DEFAULTS
from .stats import WindowStats, norm_vector


@dataclass(frozen=True)
class LinearForecaster:
    """``y = level + (x - level) W + b`` with ``level`` after ``norm``.

    Attributes:
        weight: W, ``(L, H)``.
        norm: instance normalisation.
        bias: b, ``(H,)`` or ``None``.
        label: for tables.
        macs: multiply-adds of one forecast in the cheapest form known (``L H`` for a full matrix).
    """

    weight: Float[np.ndarray, "l h"]
    norm: str = DEFAULTS.norm
    bias: Float[np.ndarray, " h"] | None = None
    label: str = ""
    macs: int | None = None

    @property
    def lookback(self) -> int:
        """L."""
        return self.weight.shape[0]

    @property
    def horizon(self) -> int:
        """H."""
        return self.weight.shape[1]

    def predict(self, x: Float[np.ndarray, "n l"]) -> Float[np.ndarray, "n h"]:
        """Forecasts of rows whose newest L values end each row (older ones are ignored)."""
        x = x[:, x.shape[1] - self.lookback :]
        level = x @ norm_vector(self.norm, self.lookback, self.lookback)
        y = (x - level[:, None]) @ self.weight + level[:, None]
        return y if self.bias is None else y + self.bias

    def raw_map(self, lookback: int | None = None) -> Float[np.ndarray, "l h"]:
        """The same forecaster as one matrix on raw look-backs of ``lookback >= L`` values (bias apart)."""
        lookback = self.lookback if lookback is None else lookback
        q = norm_vector(self.norm, self.lookback, self.lookback)
        whole = np.zeros((lookback, self.horizon))
        whole[lookback - self.lookback :] = self.weight + np.outer(q, 1.0 - self.weight.sum(0))
        return whole

    def mse(self, stats: WindowStats) -> float:
        """Exact MSE on raw statistics (norm ``"none"``) of a look-back at least as long as L."""
        if stats.norm != "none":
            raise ValueError("stats: raw statistics (norm 'none') are needed")
        return stats.mse(self.raw_map(stats.lookback), self.bias)


def average(forecasters: Sequence[LinearForecaster], label: str = "average") -> LinearForecaster:
    """The equal-weight ensemble as one forecaster: for linear maps the average forecast is the average map."""
    if not forecasters:
        raise ValueError("forecasters: expected at least one, got none")
    longest = max(f.lookback for f in forecasters)
    weight = np.mean([f.raw_map(longest) for f in forecasters], 0)
    biases = [np.zeros(f.horizon) if f.bias is None else f.bias for f in forecasters]
    bias = np.mean(biases, 0) if any(f.bias is not None for f in forecasters) else None
    return LinearForecaster(weight, "none", bias, label)


def repeat_last(lookback: int, horizon: int) -> LinearForecaster:
    """The newest value, for ever."""
    return LinearForecaster(np.zeros((lookback, horizon)), "last", label="repeat-last", macs=0)


def seasonal_naive(lookback: int, horizon: int, period: int) -> LinearForecaster:
    """The last full period, repeated."""
    if period > lookback:
        raise ValueError(f"period must be at most lookback={lookback}, got {period}")
    weight = np.zeros((lookback, horizon))
    weight[lookback - period + np.arange(horizon) % period, np.arange(horizon)] = 1.0
    return LinearForecaster(weight, "none", label=f"seasonal-naive({period})", macs=0)


def least_squares_affine(stats: WindowStats, label: str = "affine OLS") -> LinearForecaster:
    """Ordinary least squares with an intercept on raw windows: the optimum of Linear and of DLinear, whose moving
    average is itself linear (Toner and Darlow 2024).
    """
    centred = stats.centred()
    values, basis = sla.eigh(centred.gram, driver="evd", check_finite=False)
    keep = values > 1e-13 * max(values[-1], np.finfo(float).tiny)
    weight = basis[:, keep] @ ((basis[:, keep].T @ centred.cross) / values[keep, None])
    return LinearForecaster(weight, "none", intercept(stats, weight), label)


def intercept(stats: WindowStats, weight: Float[np.ndarray, "l h"]) -> Float[np.ndarray, " h"]:
    """The bias that goes with a weight fitted on centred windows: mean target minus what the mean look-back gives."""
    mean_x, mean_y = stats.total[: stats.lookback] / stats.count, stats.total[stats.lookback :] / stats.count
    return mean_y - mean_x @ weight
