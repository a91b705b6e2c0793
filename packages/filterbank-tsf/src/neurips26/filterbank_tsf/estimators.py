"""Forecasters in the manner of scikit-learn: ``fit``, ``predict``, ``score``; arrays, wide frames and long frames."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from .bank import fit_bank, polish
from .frames import Panel, parse
from .linear import LinearForecaster, intercept
from .nn import DeepFilterBank, FilterBank
from .protocol import dominant_period, scaler
from .rank import RankCurve, one_standard_error, rank_curve
from .regression import ALPHA_GRID, RANK_GRID, RidgePath
from .selection import blocked_cv
from .stats import WindowStats, check_long_enough, raise_missing
from .training import TrainConfig, Windows, train

# Share of the newest rows held out to choose rank and penalty when no validation rows are given.
HOLD_OUT = 0.2


class _Forecaster(BaseEstimator):
    """What all forecasters share: forms of input, scaling, channel modes, statistics, prediction."""

    lookback: int
    horizon: int
    norm: str
    channel_mode: str
    groups: Sequence[Any] | None
    missing: str

    # -- to be given by the subclass ----------------------------------------------------------------------------------

    def _solve(self, stats: WindowStats, rows: list[np.ndarray]) -> Any:
        raise NotImplementedError

    def _needs_choice(self) -> bool:
        return False

    # -- fitting ------------------------------------------------------------------------------------------------------

    def fit(self, y: object, val: object | None = None) -> _Forecaster:
        """Fit on a series, a set of series or a frame.

        Args:
            y: ``(T,)``, ``(T, C)``, a wide pandas frame, or a long frame ``unique_id, ds, y`` (pandas, polars).
            val: rows that follow ``y``, in the same form, on which rank and penalty are chosen. Without it the newest
                fifth of ``y`` is held out for the choice and the chosen model is fitted on all of ``y``.

        Raises:
            ValueError, TypeError: naming the argument; see :mod:`neurips26.filterbank_tsf.frames`.
        """
        self._check_settings()
        panel = parse(y, "y")
        self._check_panel(panel, "y")
        self.n_features_in_ = len(panel.names)
        self.feature_names_in_ = np.asarray(panel.names, dtype=object)
        scales = [_scale(s) for s in panel.series]
        self.mean_, self.std_ = (np.concatenate([s[i] for s in scales]) for i in (0, 1))
        series = self._columns(panel)
        held = None
        if val is not None:
            other = parse(val, "val")
            if len(other.names) != len(panel.names):
                raise ValueError(f"val has {len(other.names)} channels, y has {len(panel.names)}")
            later = self._columns(other)
            held = [np.concatenate([a[-self.lookback :], b]) for a, b in zip(series, later)]
        self._stats, self.forecasters_ = {}, {}
        for group in dict.fromkeys(self._groups()):
            members = [i for i, g in enumerate(self._groups()) if g == group]
            rows = [series[i] for i in members]
            future = None if held is None else [held[i] for i in members]
            self._stats[group], self.forecasters_[group] = self._fit_group(rows, future)
        self._publish()
        return self

    def _fit_group(self, rows: list[np.ndarray], future: list[np.ndarray] | None):
        stats = self._statistics(rows)
        if self._needs_choice():
            if future is not None:
                early, late, seen = stats, self._statistics(future), rows
            else:
                cut = [int(len(r) * (1 - HOLD_OUT)) for r in rows]
                window = self.lookback + self.horizon
                if min(cut) < window or min(len(r) - c for r, c in zip(rows, cut)) < self.horizon:
                    raise ValueError(
                        f"y has {min(map(len, rows))} rows: too few to hold out a fifth for choosing rank and alpha with "
                        f"lookback + horizon = {window}; give numbers for them or pass val"
                    )
                seen = [r[:c] for r, c in zip(rows, cut)]
                early = self._statistics(seen)
                late = self._statistics([r[c - self.lookback :] for r, c in zip(rows, cut)])
            at = early.total / early.count
            self._choose(self._prepared(early, at), self._prepared(late, at), seen)
        return stats, self._solve_group(stats, rows)

    def _prepared(self, stats: WindowStats, at: np.ndarray) -> WindowStats:
        """Windows without their level; with norm ``"none"`` without the mean window ``at``, which the intercept returns."""
        return stats.centred(at) if self.norm == "none" else stats.normalised(self.norm)

    def _solve_group(self, stats: WindowStats, rows: list[np.ndarray]) -> Any:
        solved = self._solve(self._prepared(stats, stats.total / stats.count), rows)
        if self.norm == "none" and isinstance(solved, LinearForecaster):
            return replace(solved, bias=intercept(stats, solved.weight))
        return solved

    def partial_fit(self, y: object) -> _Forecaster:
        """Add the windows of further rows (a continuation or other series of the same channels) and solve again.

        Scale, rank and penalty stay as they were chosen by :meth:`fit`; channels are matched by position.
        """
        check_is_fitted(self, "forecasters_")
        panel = parse(y, "y")
        self._check_panel(panel, "y")
        if len(panel.names) != self.n_features_in_:
            raise ValueError(f"y has {len(panel.names)} channels, fitted with {self.n_features_in_}")
        series = self._columns(panel)
        for group in self._stats:
            rows = [series[i] for i, g in enumerate(self._groups()) if g == group]
            self._stats[group] = self._stats[group].merge(self._statistics(rows))
            self.forecasters_[group] = self._solve_group(self._stats[group], rows)
        self._publish()
        return self

    def _choose(self, stats: WindowStats, val: WindowStats, rows: list[np.ndarray]) -> None:
        """Choose what is left to validation; nothing by default. ``rows`` are those behind ``stats``."""

    def _publish(self) -> None:
        maps = [f.weight for f in self.forecasters_.values()]
        self.coef_ = (
            maps[0]
            if self.channel_mode == "shared"
            else np.stack([self.forecasters_[g].weight for g in self._groups()])
        )
        biases = {g: np.zeros(self.horizon) if f.bias is None else f.bias for g, f in self.forecasters_.items()}
        self.intercept_ = (
            next(iter(biases.values()))
            if self.channel_mode == "shared"
            else np.stack([biases[g] for g in self._groups()])
        )

    # -- predicting ---------------------------------------------------------------------------------------------------

    def predict(self, y_last: object, horizon: int | None = None, recursive: bool = False) -> Any:
        """Forecast what follows ``y_last``.

        Args:
            y_last: at least ``lookback`` rows in a form that :meth:`fit` takes, its channels in the order of the fit:
                they are matched by position (``feature_names_in_`` has the names).
            horizon: steps wanted; at most the fitted H unless ``recursive``.
            recursive: feed forecasts back as inputs beyond H.

        Returns:
            forecasts in the form of ``y_last``: ``(horizon,)``, ``(horizon, C)`` or a frame with continued stamps.
        """
        check_is_fitted(self, "forecasters_")
        steps = self.horizon if horizon is None else horizon
        if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 1:
            raise ValueError(f"horizon must be a positive integer, got {steps!r}")
        if steps > self.horizon and not recursive:
            raise ValueError(
                f"horizon={steps} is longer than the fitted horizon={self.horizon}; fit a longer one or pass recursive=True"
            )
        panel = parse(y_last, "y_last")
        if len(panel.names) != self.n_features_in_:
            raise ValueError(f"y_last has {len(panel.names)} channels, fitted with {self.n_features_in_}")
        for values in panel.series:
            if len(values) < self.lookback:
                raise ValueError(f"y_last has {len(values)} rows, a forecast needs lookback={self.lookback}")
            recent = values[-self.lookback :]
            if not np.isfinite(recent).all():
                raise_missing(recent, "y_last", panel.names if len(panel.names) == recent.shape[1] else None)
        columns = self._columns(panel)
        groups = self._groups()
        out = np.empty((steps, len(columns)))
        for group, forecaster in self.forecasters_.items():
            members = [i for i, g in enumerate(groups) if g == group]
            x = np.stack([columns[i][-self.lookback :] for i in members])
            parts = []
            for start in range(0, steps, self.horizon):
                parts.append(forecaster.predict(x)[:, : steps - start])
                x = np.concatenate([x, parts[-1]], 1)[:, -self.lookback :]
            out[:, members] = np.concatenate(parts, 1).T
        out = out * self.std_ + self.mean_
        edges = np.cumsum([0, *(s.shape[1] for s in panel.series)])
        return panel.rebuild([out[:, a:b] for a, b in itertools.pairwise(edges)], int(steps))

    def score(self, y: object) -> float:
        """Minus the mean squared error, in scaled units, over all windows of ``y``, complete rows of the fitted channels."""
        check_is_fitted(self, "forecasters_")
        columns, groups = self._columns(parse(y, "y")), self._groups()
        squared = count = 0.0
        for group, forecaster in self.forecasters_.items():
            for i, g in enumerate(groups):
                if g == group:
                    window = self.lookback + self.horizon
                    check_long_enough(columns[i], self.lookback, self.horizon, "y")
                    w = np.lib.stride_tricks.sliding_window_view(columns[i], window)
                    for start in range(0, len(w), 2048):
                        block = w[start : start + 2048]
                        error = forecaster.predict(block[:, : self.lookback]) - block[:, self.lookback :]
                        squared += float((error**2).sum())
                        count += error.size
        return -squared / count

    # -- parts --------------------------------------------------------------------------------------------------------

    def _check_settings(self) -> None:
        for name in ("lookback", "horizon"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        if self.norm not in ("none", "mean", "last"):
            raise ValueError(f"norm must be 'none', 'mean' or 'last', got {self.norm!r}")
        if self.channel_mode not in ("shared", "individual", "grouped"):
            raise ValueError(f"channel_mode must be 'shared', 'individual' or 'grouped', got {self.channel_mode!r}")
        if self.missing not in ("error", "mask"):
            raise ValueError(f"missing must be 'error' or 'mask', got {self.missing!r}")

    def _check_panel(self, panel: Panel, name: str) -> None:
        if self.channel_mode == "grouped" and (self.groups is None or len(self.groups) != len(panel.names)):
            got = None if self.groups is None else len(self.groups)
            raise ValueError(f"groups must name a group for each of {len(panel.names)} channels, got {got}")
        for values in panel.series:
            check_long_enough(values, self.lookback, self.horizon, name)
            if self.missing == "error" and not np.isfinite(values).all():
                raise_missing(values, name, panel.names if len(panel.names) == values.shape[1] else None)

    def _groups(self) -> list[Any]:
        if self.channel_mode == "shared":
            return ["all"] * self.n_features_in_
        if self.channel_mode == "individual":
            return list(range(self.n_features_in_))
        return list(self.groups or [])

    def _columns(self, panel: Panel) -> list[np.ndarray]:
        """Scaled channels as vectors, over all series."""
        columns = [c for s in panel.series for c in s.T]
        return [(c - m) / s for c, m, s in zip(columns, self.mean_, self.std_)]

    def _statistics(self, rows: list[np.ndarray]) -> WindowStats:
        if len({len(r) for r in rows}) == 1:
            return WindowStats.from_series(np.stack(rows, 1), self.lookback, self.horizon, missing=self.missing)
        parts = [WindowStats.from_series(r, self.lookback, self.horizon, missing=self.missing) for r in rows]
        total = parts[0]
        for part in parts[1:]:
            total = total.merge(part)
        return total


def _scale(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    finite = np.where(np.isfinite(values), values, np.nan)
    if np.isnan(finite).any():
        finite = np.stack(
            [np.where(np.isnan(c), np.nanmean(c) if np.isfinite(c).any() else 0.0, c) for c in finite.T], 1
        )
    return scaler(finite)


class ReducedRankForecaster(_Forecaster):
    """Reduced-rank regression in closed form.

    Args:
        lookback: L.
        horizon: H.
        rank: a number, ``None`` for full rank (ridge), ``"val"`` (smallest error on the validation rows) or ``"one_se"``
            (smallest rank within one standard error over contiguous blocks of the rows before them).
        alpha: a penalty in units of the mean diagonal of the Gram matrix, or ``"val"``.
        norm: ``"mean"``, ``"last"`` or ``"none"`` (then with an intercept).
        channel_mode: ``"shared"`` (one W), ``"individual"`` (one a channel) or ``"grouped"`` (one a group).
        groups: a label for each channel (``"grouped"``).
        missing: ``"error"``, or ``"mask"`` to leave out windows that touch a missing value.

    Attributes:
        coef_: W, ``(L, H)``; ``(C, L, H)`` unless channels share it.
        intercept_: ``(H,)`` or ``(C, H)``; zero unless ``norm="none"``.
        analysis_, synthesis_: banks A ``(L, r)`` and B ``(r, H)`` (of the first group).
        rank_, alpha_: what was used (a rank above ``min(L, H)`` is clipped with a warning; ``rank_`` keeps what was asked).
        rank_curve_: losses over the grid where something was chosen.
    """

    def __init__(
        self,
        lookback: int = 336,
        horizon: int = 96,
        rank: int | str | None = "val",
        alpha: float | str = "val",
        norm: str = "mean",
        channel_mode: str = "shared",
        groups: Sequence[Any] | None = None,
        missing: str = "error",
    ):
        self.lookback = lookback
        self.horizon = horizon
        self.rank = rank
        self.alpha = alpha
        self.norm = norm
        self.channel_mode = channel_mode
        self.groups = groups
        self.missing = missing

    def fit(self, y: object, val: object | None = None) -> ReducedRankForecaster:
        """See the base class."""
        self.rank_curve_: RankCurve | None = None
        self.rank_ = None if isinstance(self.rank, str) else self.rank
        self.alpha_ = 1e-2 if self.alpha == "val" else self.alpha
        super().fit(y, val)
        return self

    def _check_settings(self) -> None:
        super()._check_settings()
        if isinstance(self.rank, str) and self.rank not in ("val", "one_se"):
            raise ValueError(f"rank must be a positive integer, None, 'val' or 'one_se', got {self.rank!r}")
        if isinstance(self.alpha, str) and self.alpha != "val":
            raise ValueError(f"alpha must be a number >= 0 or 'val', got {self.alpha!r}")

    def _needs_choice(self) -> bool:
        return isinstance(self.rank, str) or self.alpha == "val"

    def _choose(self, stats: WindowStats, val: WindowStats, rows: list[np.ndarray]) -> None:
        ranks = RANK_GRID if isinstance(self.rank, str) else (self.rank or min(self.lookback, self.horizon),)
        alphas = ALPHA_GRID if self.alpha == "val" else (float(self.alpha),)
        curve = rank_curve(stats, {"val": val}, ranks, alphas)
        self.rank_curve_ = curve
        alpha, rank = curve.best("val")
        if self.rank == "one_se":
            if len({len(r) for r in rows}) > 1 or not all(np.isfinite(r).all() for r in rows):
                raise ValueError("rank='one_se' needs series of one length without missing values")
            table = blocked_cv(np.stack(rows, 1), self.lookback, self.horizon, self.norm, curve.ranks, alphas)[..., :-1]
            best = table.mean(0).argmin(0)
            rank = one_standard_error(table[:, best, np.arange(len(curve.ranks))], curve.ranks)
            alpha = curve.alphas[int(best[curve.ranks.index(rank)])]
        self.alpha_ = alpha
        self.rank_ = rank if self.rank is not None else None

    def _solve(self, stats: WindowStats, rows: list[np.ndarray]) -> Any:
        path = RidgePath(stats)
        if self.rank_ is None:
            return LinearForecaster(path.weight(self.alpha_), self.norm, label="ridge")
        fit = path.reduced_rank(self.alpha_, self.rank_)
        if not hasattr(self, "forecasters_") or not self.forecasters_:
            self.analysis_, self.synthesis_ = fit.analysis, fit.synthesis
        return LinearForecaster(fit.weight, self.norm, label=f"rank {fit.rank}", macs=fit.rank * sum(fit.weight.shape))


class FilterBankForecaster(_Forecaster):
    """A strided filter bank: closed form, polished on the statistics, or trained by gradient steps.

    Args:
        lookback, horizon, norm, channel_mode, groups, missing: as in :class:`ReducedRankForecaster`.
        n_filters: K.
        kernel_size: P; ``None`` takes half the dominant period of the data.
        stride: S; default P.
        rank: r of the low-rank core.
        core: ``"lowrank"``, ``"dense"``, ``"depthwise"`` or ``"shared"``.
        alpha: penalty of the core, or ``"val"``.
        solver: ``"closed"``, ``"polish"`` or ``"adam"``.
        init: where the filters come from.
        epochs: of ``"adam"``.
        seed: of ``"adam"``.

    Attributes:
        bank_: the fitted layer (of the first group); ``macs_``, ``rank_bound_``, ``coef_``, ``alpha_``.
    """

    def __init__(
        self,
        lookback: int = 336,
        horizon: int = 96,
        n_filters: int = 4,
        kernel_size: int | None = None,
        stride: int | None = None,
        rank: int = 8,
        core: str = "lowrank",
        alpha: float | str = "val",
        norm: str = "mean",
        solver: str = "closed",
        init: str = "predictive",
        epochs: int = 5,
        seed: int = 0,
        channel_mode: str = "shared",
        groups: Sequence[Any] | None = None,
        missing: str = "error",
    ):
        self.lookback = lookback
        self.horizon = horizon
        self.n_filters = n_filters
        self.kernel_size = kernel_size
        self.stride = stride
        self.rank = rank
        self.core = core
        self.alpha = alpha
        self.norm = norm
        self.solver = solver
        self.init = init
        self.epochs = epochs
        self.seed = seed
        self.channel_mode = channel_mode
        self.groups = groups
        self.missing = missing

    def fit(self, y: object, val: object | None = None) -> FilterBankForecaster:
        """See the base class."""
        self.alpha_ = 1e-3 if self.alpha == "val" else self.alpha
        self.kernel_size_ = self.kernel_size
        if self.kernel_size is None:
            series = parse(y, "y").series
            shortest = min(len(v) for v in series)
            recent = np.nan_to_num(np.concatenate([v[len(v) - shortest :] for v in series], 1))
            period = dominant_period(recent, self.lookback) if shortest >= 8 else self.lookback
            self.kernel_size_ = int(np.clip(period // 2, 2, self.lookback))
        super().fit(y, val)
        return self

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.solver not in ("closed", "polish", "adam"):
            raise ValueError(f"solver must be 'closed', 'polish' or 'adam', got {self.solver!r}")

    def _needs_choice(self) -> bool:
        return self.alpha == "val"

    def _make(self, stats: WindowStats, alpha: float) -> FilterBank:
        return fit_bank(
            stats, self.n_filters, self.kernel_size_, self.stride, rank=self.rank, core=self.core, alpha=alpha,
            init=self.init,
        )  # fmt: skip

    def _choose(self, stats: WindowStats, val: WindowStats, rows: list[np.ndarray]) -> None:
        losses = [val.mse(self._make(stats, a).double_map().numpy()) for a in ALPHA_GRID]
        self.alpha_ = ALPHA_GRID[int(np.argmin(losses))]

    def _solve(self, stats: WindowStats, rows: list[np.ndarray]) -> Any:
        bank = self._make(stats, self.alpha_)
        if self.solver == "polish":
            polish(bank, stats, self.alpha_)
        elif self.solver == "adam":
            _adam(bank, rows, self.lookback, self.horizon, self.epochs, self.seed)
        if not hasattr(self, "forecasters_") or not self.forecasters_:
            self.bank_, self.macs_, self.rank_bound_ = bank, bank.macs(), bank.rank_bound
        weight = bank.double_map().numpy()
        return LinearForecaster(weight, self.norm, label="filter bank", macs=bank.macs())


class _Network:
    """A torch model as a forecaster of numpy rows."""

    def __init__(self, model: torch.nn.Module):
        self.model = model

    def predict(self, x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return self.model.eval()(torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))).double().numpy()


class DeepFilterBankForecaster(_Forecaster):
    """The deep stack, started at the closed-form bank and trained with early stopping on the newest fifth.

    Args:
        lookback, horizon, norm, missing: as in :class:`ReducedRankForecaster`.
        depth: blocks; hidden: width of the GELU path; n_filters, rank: of the banks.
        alpha: penalty of the closed-form start.
        epochs, lr, seed: of training.

    Attributes:
        model_: the trained :class:`neurips26.filterbank_tsf.nn.DeepFilterBank`.
        history_: validation error per epoch; entry 0 is the closed form's.
    """

    channel_mode = "shared"
    groups = None

    def __init__(
        self,
        lookback: int = 336,
        horizon: int = 96,
        depth: int = 3,
        n_filters: int = 8,
        hidden: int = 32,
        rank: int = 12,
        alpha: float = 1e-2,
        norm: str = "mean",
        epochs: int = 10,
        lr: float = 1e-3,
        seed: int = 0,
        missing: str = "error",
    ):
        self.lookback = lookback
        self.horizon = horizon
        self.depth = depth
        self.n_filters = n_filters
        self.hidden = hidden
        self.rank = rank
        self.alpha = alpha
        self.norm = norm
        self.epochs = epochs
        self.lr = lr
        self.seed = seed
        self.missing = missing

    def _solve(self, stats: WindowStats, rows: list[np.ndarray]) -> Any:
        period = int(np.clip(dominant_period(np.nan_to_num(rows[0])[:, None], self.lookback), 4, self.lookback))
        bank = fit_bank(stats, self.n_filters, period, rank=self.rank, alpha=self.alpha)
        model = DeepFilterBank(
            self.lookback, self.horizon, bank, self.depth, hidden=self.hidden, period=period, seed=self.seed
        )
        self.history_ = _adam(model, rows, self.lookback, self.horizon, self.epochs, self.seed, self.lr)
        self.model_ = model
        return _Network(model)

    def _publish(self) -> None:
        """No single matrix."""


def _adam(
    model: torch.nn.Module,
    rows: list[np.ndarray],
    lookback: int,
    horizon: int,
    epochs: int,
    seed: int,
    lr: float = 1e-3,
) -> list[float]:
    """Train on all but the newest fifth of the (complete) rows, stopping early on that fifth."""
    shortest = min(len(r) for r in rows)
    series = np.stack([r[-shortest:] for r in rows], 1)
    if not np.isfinite(series).all():
        raise ValueError("missing='mask' is not possible with gradient training; fill the gaps first")
    cut = int(shortest * (1 - HOLD_OUT))
    if cut < lookback + horizon or shortest - cut < horizon:
        raise ValueError(
            f"y has {shortest} rows: too few to hold out a fifth with lookback + horizon = {lookback + horizon}"
        )
    windows, val = Windows(series[:cut], lookback, horizon), Windows(series[cut - lookback :], lookback, horizon)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(model, windows, val, TrainConfig(lr=lr, epochs=epochs, seed=seed)).val


class AutoFilterBank(FilterBankForecaster):
    """A closed-form bank that chooses its filters' number, their length, the rank and the penalty on validation.

    Tries K in {4, 8}, P in {period / 2, period} and r in {8, 12}; everything else as in
    :class:`FilterBankForecaster`.

    Attributes:
        setting_: the chosen ``n_filters``, ``kernel_size``, ``rank`` and ``alpha``.
    """

    def __init__(self, lookback: int = 336, horizon: int = 96, norm: str = "mean", missing: str = "error"):
        super().__init__(lookback, horizon, norm=norm, missing=missing)

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return ["horizon", "lookback", "missing", "norm"]

    def _choose(self, stats: WindowStats, val: WindowStats, rows: list[np.ndarray]) -> None:
        half = self.kernel_size_
        sizes = sorted({min(half, self.lookback), min(2 * half, self.lookback)})
        path = RidgePath(stats)
        best = None
        for filters in (4, 8):
            for size in sizes:
                for rank in (8, 12):
                    for alpha in ALPHA_GRID[::2]:
                        bank = fit_bank(stats, min(filters, size), size, rank=rank, alpha=alpha, path=path)
                        loss = val.mse(bank.double_map().numpy())
                        if best is None or loss < best[0]:
                            best = (loss, min(filters, size), size, rank, alpha)
        assert best is not None
        _, self.n_filters, self.kernel_size_, self.rank, self.alpha_ = best
        self.setting_ = dict(n_filters=best[1], kernel_size=best[2], rank=best[3], alpha=best[4])
