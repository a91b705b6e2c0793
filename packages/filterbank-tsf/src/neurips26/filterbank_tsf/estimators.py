"""The forecasters of the package in the manner of scikit-learn: ``fit``, ``predict``, ``partial_fit``, ``score``."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from .bank import fit_bank, polish
from .choices import DEFAULTS
from .forecaster import Forecaster, LinearFamily, check_alpha, check_count
from .frames import Panel
from .linear import LinearForecaster
from .nn import DeepFilterBank, FilterBank
from .protocol import dominant_period
from .rank import RankCurve, one_standard_error, rank_curve
from .regression import ALPHA_GRID, RANK_GRID, RidgePath, clip_rank
from .selection import blocked_cv
from .stats import WindowStats
from .training import TrainConfig, Windows, train


class ReducedRankForecaster(LinearFamily):
    """Reduced-rank regression in closed form.

    Args:
        lookback: L.
        horizon: H.
        rank: a number, ``None`` for full rank (ridge), ``"val"`` (smallest error on the validation rows) or ``"one_se"``
            (smallest rank within one standard error over contiguous blocks of the rows before them).
        alpha: a penalty in units of the mean diagonal of the Gram matrix, or ``"val"``.
        norm: ``"mean"``, ``"last"`` or ``"none"`` (then with an intercept).
        channel_mode: ``"shared"`` (one W), ``"individual"`` (one a channel) or ``"grouped"`` (one a group).
        groups: a group for each channel (``"grouped"``): a list in the order of the channels, or a map from their names.
        missing: ``"error"``, or ``"mask"`` to leave out windows that touch a missing value.

    Attributes:
        coef_: W, ``(L, H)``; ``(C, L, H)`` unless channels share it.
        intercept_: ``(H,)`` or ``(C, H)``; zero unless ``norm="none"``.
        analysis_, synthesis_: banks A ``(L, r)`` and B ``(r, H)`` (lists of one a channel unless channels share them).
        rank_, alpha_: what is used (a rank above ``min(L, H)`` is clipped with a warning); lists like the banks.
        rank_curve_: losses over the grid where something was chosen (of the first group), else ``None``.
    """

    def __init__(
        self,
        lookback: int = 336,
        horizon: int = 96,
        rank: int | str | None = "val",
        alpha: float | str = "val",
        norm: str = DEFAULTS.norm,
        channel_mode: str = "shared",
        groups: Sequence[Any] | Mapping[Any, Any] | None = None,
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

    def _check_settings(self) -> None:
        super()._check_settings()
        if isinstance(self.rank, str):
            if self.rank not in ("val", "one_se"):
                raise ValueError(f"rank must be a positive integer, None, 'val' or 'one_se', got {self.rank!r}")
        elif self.rank is not None:
            check_count(self.rank, "rank")
        check_alpha(self.alpha)

    def _start(self, panel: Panel) -> None:
        self._rank = self.rank
        if isinstance(self.rank, (int, np.integer)):
            self._rank = clip_rank(self.rank, self.lookback, self.horizon)

    def _fixed(self) -> dict[str, Any]:
        return {"rank": self._rank, "alpha": self.alpha, "curve": None}

    def _needs_choice(self) -> bool:
        return isinstance(self.rank, str) or self.alpha == "val"

    def _choose(self, stats: WindowStats, val: WindowStats, rows: list[np.ndarray]) -> dict[str, Any]:
        full = min(self.lookback, self.horizon)
        ranks = RANK_GRID if isinstance(self._rank, str) else (self._rank or full,)
        alphas = ALPHA_GRID if isinstance(self.alpha, str) else (float(self.alpha),)
        curve = rank_curve(stats, {"val": val}, ranks, alphas)
        alpha, rank = curve.best("val")
        if self.rank == "one_se":
            if len({len(r) for r in rows}) > 1 or not all(np.isfinite(r).all() for r in rows):
                raise ValueError("rank='one_se' needs series of one length without missing values")
            table = blocked_cv(
                np.stack(rows, 1), self.lookback, self.horizon, self.norm, curve.ranks, alphas, name="y"
            )[..., :-1]
            best = table.mean(0).argmin(0)
            rank = one_standard_error(table[:, best, np.arange(len(curve.ranks))], curve.ranks)
            alpha = curve.alphas[int(best[curve.ranks.index(rank)])]
        return {"rank": None if self._rank is None else rank, "alpha": alpha, "curve": curve}

    def _solve(
        self, stats: WindowStats, rows: list[np.ndarray], setting: dict[str, Any], ahead: list[np.ndarray] | None
    ) -> tuple[Any, Any]:
        path, rank, alpha = RidgePath(stats), setting["rank"], setting["alpha"]
        if rank is None:
            weight = path.weight(alpha)
            return LinearForecaster(weight, self.norm, label="ridge"), (weight, np.eye(self.horizon))
        fit = path.reduced_rank(alpha, rank)
        macs = fit.rank * sum(fit.weight.shape)
        return LinearForecaster(fit.weight, self.norm, label=f"rank {rank}", macs=macs), (fit.analysis, fit.synthesis)

    def _publish(self) -> None:
        super()._publish()
        self.analysis_ = self._each({g: shown[0] for g, (_, shown) in self._solved.items()})
        self.synthesis_ = self._each({g: shown[1] for g, (_, shown) in self._solved.items()})
        self.rank_ = self._each({g: s["rank"] for g, s in self._settings.items()})
        self.rank_curve_: RankCurve | None = next(iter(self._settings.values()))["curve"]


class FilterBankForecaster(LinearFamily):
    """A strided filter bank: closed form, polished on the statistics, or trained by gradient steps.

    Args:
        lookback, horizon, norm, channel_mode, groups, missing: as in :class:`ReducedRankForecaster`.
        n_filters: K.
        kernel_size: P; ``None`` takes half the dominant period of the data.
        stride: S; default P.
        rank: r of the low-rank core; ``None`` does not limit it.
        core: ``"lowrank"``, ``"dense"``, ``"depthwise"`` or ``"shared"``.
        alpha: penalty of the core, or ``"val"``.
        solver: ``"closed"``, ``"polish"`` or ``"adam"`` (not with norm ``"none"``: the layer has no bias).
        init: where the filters come from.
        epochs: of ``"adam"``.
        seed: of ``"adam"``.
        checkpoint: file that ``"adam"`` writes after every pass and a killed fit goes on from (``"shared"`` channels).

    Attributes:
        bank_: the fitted layer (a list of one a channel unless channels share it); with norm ``"none"`` a forecast is its
            output plus ``intercept_``.
        coef_, intercept_, alpha_: as in :class:`ReducedRankForecaster`.
        kernel_size_: P as used (of the first group).
        macs_, rank_bound_: cost and rank law of the (first) layer.
    """

    def __init__(
        self,
        lookback: int = 336,
        horizon: int = 96,
        n_filters: int = 4,
        kernel_size: int | None = None,
        stride: int | None = None,
        rank: int | None = 8,
        core: str = DEFAULTS.core,
        alpha: float | str = "val",
        norm: str = DEFAULTS.norm,
        solver: str = "closed",
        init: str = DEFAULTS.filters,
        epochs: int = 5,
        seed: int = 0,
        channel_mode: str = "shared",
        groups: Sequence[Any] | Mapping[Any, Any] | None = None,
        missing: str = "error",
        checkpoint: str | os.PathLike[str] | None = None,
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
        self.checkpoint = checkpoint

    def _check_settings(self) -> None:
        super()._check_settings()
        for name in ("n_filters", "epochs"):
            check_count(getattr(self, name), name)
        for name in ("kernel_size", "stride", "rank"):
            if getattr(self, name) is not None:
                check_count(getattr(self, name), name)
        check_alpha(self.alpha)
        if self.solver not in ("closed", "polish", "adam"):
            raise ValueError(f"solver must be 'closed', 'polish' or 'adam', got {self.solver!r}")
        if self.solver == "adam":
            _check_level(self.norm)
        if self.checkpoint is not None and self.channel_mode != "shared":
            raise ValueError(f"checkpoint holds one model: channel_mode must be 'shared', got {self.channel_mode!r}")

    def _start(self, panel: Panel) -> None:
        clipped = self.rank is not None and self.core == "lowrank"
        self._rank = clip_rank(self.rank, self.lookback, self.horizon) if clipped else None
        self._size = self.kernel_size
        if self._size is None:
            shortest = min(len(v) for v in panel.series)
            recent = np.nan_to_num(np.concatenate([v[len(v) - shortest :] for v in panel.series], 1))
            period = dominant_period(recent, self.lookback) if shortest >= 8 else self.lookback
            self._size = min(max(period // 2, 2), self.lookback)

    def _fixed(self) -> dict[str, Any]:
        alpha = 1e-3 if isinstance(self.alpha, str) else float(self.alpha)
        return {"n_filters": self.n_filters, "kernel_size": self._size, "rank": self._rank, "alpha": alpha}

    def _needs_choice(self) -> bool:
        return isinstance(self.alpha, str)

    def _continues(self) -> bool:
        return self.solver != "adam"

    def _make(self, stats: WindowStats, setting: dict[str, Any], path: RidgePath | None = None) -> FilterBank:
        return fit_bank(
            stats, setting["n_filters"], setting["kernel_size"], self.stride, rank=setting["rank"], core=self.core,
            alpha=setting["alpha"], init=self.init, path=path,
        )  # fmt: skip

    def _candidates(self) -> list[dict[str, Any]]:
        """The settings that are tried on validation."""
        return [self._fixed() | {"alpha": alpha} for alpha in ALPHA_GRID]

    def _choose(self, stats: WindowStats, val: WindowStats, rows: list[np.ndarray]) -> dict[str, Any]:
        path, tried = RidgePath(stats), self._candidates()
        losses = [val.mse(self._make(stats, setting, path).double_map().numpy()) for setting in tried]
        return tried[int(np.argmin(losses))]

    def _solve(
        self, stats: WindowStats, rows: list[np.ndarray], setting: dict[str, Any], ahead: list[np.ndarray] | None
    ) -> tuple[Any, Any]:
        if self.solver == "adam":
            config = TrainConfig(epochs=self.epochs, seed=self.seed)
            bank, _ = _train(self, lambda seen: self._make(seen, setting), rows, ahead, config)
        else:
            bank = self._make(stats, setting)
        if self.solver == "polish":
            polish(bank, stats, setting["alpha"])
        weight = bank.double_map().numpy()
        return LinearForecaster(weight, self.norm, label="filter bank", macs=bank.macs()), bank

    def _publish(self) -> None:
        super()._publish()
        banks = {g: bank for g, (_, bank) in self._solved.items()}
        self.bank_, first = self._each(banks), next(iter(banks.values()))
        self.kernel_size_, self.macs_, self.rank_bound_ = first.kernel_size, first.macs(), first.rank_bound


class _Network:
    """A torch model as a forecaster of numpy rows."""

    def __init__(self, model: torch.nn.Module):
        self.model = model

    def predict(self, x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return self.model.eval()(torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))).double().numpy()


class DeepFilterBankForecaster(Forecaster):
    """The deep stack, started at the closed-form bank of the older four fifths of the rows, trained on them and stopped
    early on the newest fifth (or started and trained on ``y`` and stopped on ``val``).

    Args:
        lookback, horizon, missing: as in :class:`ReducedRankForecaster`; norm: ``"mean"`` or ``"last"``.
        depth: blocks; hidden: width of the GELU path; n_filters, rank: of the banks.
        alpha: penalty of the closed-form start.
        epochs, lr, seed: of training.
        checkpoint: file that training writes after every pass and a killed fit goes on from, bit for bit.

    Attributes:
        model_: the trained :class:`neurips26.filterbank_tsf.nn.DeepFilterBank`.
        history_: error on the validation rows per epoch (neither the start nor the training has seen them); entry 0 is
            that of the closed-form start.
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
        norm: str = DEFAULTS.norm,
        epochs: int = 10,
        lr: float = 1e-3,
        seed: int = 0,
        missing: str = "error",
        checkpoint: str | os.PathLike[str] | None = None,
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
        self.checkpoint = checkpoint

    def _check_settings(self) -> None:
        super()._check_settings()
        _check_level(self.norm)
        for name in ("depth", "n_filters", "hidden", "rank", "epochs"):
            check_count(getattr(self, name), name)
        check_alpha(self.alpha, "")

    def _continues(self) -> bool:
        return False

    def _start(self, panel: Panel) -> None:
        self._rank = clip_rank(self.rank, self.lookback, self.horizon)

    def _solve(
        self, stats: WindowStats, rows: list[np.ndarray], setting: dict[str, Any], ahead: list[np.ndarray] | None
    ) -> tuple[Any, Any]:
        period = int(np.clip(dominant_period(np.nan_to_num(rows[0])[:, None], self.lookback), 4, self.lookback))

        def start(seen: WindowStats) -> DeepFilterBank:
            bank = fit_bank(seen, self.n_filters, min(period, self.lookback), rank=self._rank, alpha=self.alpha)
            return DeepFilterBank(
                self.lookback, self.horizon, bank, self.depth, hidden=self.hidden, period=period, seed=self.seed
            )

        config = TrainConfig(lr=self.lr, epochs=self.epochs, seed=self.seed)
        model, history = _train(self, start, rows, ahead, config)
        return _Network(model), (model, history)

    def _publish(self) -> None:
        self.model_, self.history_ = self._solved["all"][1]


def _check_level(norm: str) -> None:
    if norm == "none":
        raise ValueError("norm must be 'mean' or 'last' where a network is trained (it has no bias), got 'none'")


def _train(
    estimator: Forecaster,
    start: Callable[[WindowStats], Any],
    rows: list[np.ndarray],
    ahead: list[np.ndarray] | None,
    config: TrainConfig,
) -> tuple[Any, list[float]]:
    """A model that starts at a closed form and is trained, and its validation errors.

    Start and training see ``rows`` and training stops on ``ahead``; without it the newest fifth of ``rows`` is kept from
    both and training stops there.
    """
    seen, held = rows, ahead
    if held is None:
        seen, held = estimator._held_out(rows, "stopping the training", "pass val")
    series = []
    for part in (seen, held):
        shortest = min(map(len, part))
        series.append(np.stack([r[-shortest:] for r in part], 1))
        if not np.isfinite(series[-1]).all():
            raise ValueError("missing='mask' is not possible with gradient training; fill the gaps first")
    windows, val = (Windows(z, estimator.lookback, estimator.horizon) for z in series)
    model = start(estimator._statistics(seen, "y").normalised(estimator.norm))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model, train(model, windows, val, config, estimator.checkpoint).val  # type: ignore[attr-defined]


class AutoFilterBank(FilterBankForecaster):
    """A closed-form bank that chooses its filters' number, their length, the rank and the penalty on validation.

    Tries K in {4, 8}, P in {period / 2, period} and r in {8, 12}; everything else as in
    :class:`FilterBankForecaster`.

    Attributes:
        setting_: the chosen ``n_filters``, ``kernel_size``, ``rank`` and ``alpha``.
    """

    def __init__(self, lookback: int = 336, horizon: int = 96, norm: str = DEFAULTS.norm, missing: str = "error"):
        super().__init__(lookback, horizon, rank=None, norm=norm, missing=missing)

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return ["horizon", "lookback", "missing", "norm"]

    def _candidates(self) -> list[dict[str, Any]]:
        sizes = sorted({min(self._size, self.lookback), min(2 * self._size, self.lookback)})
        ranks = sorted({min(r, self.lookback, self.horizon) for r in (8, 12)})
        grid = itertools.product((4, 8), sizes, ranks, ALPHA_GRID[::2])
        return [{"n_filters": min(k, p), "kernel_size": p, "rank": r, "alpha": a} for k, p, r, a in grid]

    def _publish(self) -> None:
        super()._publish()
        self.setting_ = self._settings["all"]
