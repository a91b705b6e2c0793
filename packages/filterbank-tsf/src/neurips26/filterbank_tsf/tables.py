"""The closed-form part of the benchmark table: ours, the naive rows and the optima of the linear models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .bank import fit_bank
from .linear import LinearForecaster, average, least_squares_affine, repeat_last, seasonal_naive
from .nn import FilterBank
from .protocol import LTSFData, evaluate
from .rank import numerical_rank
from .regression import ALPHA_GRID, RidgePath, direct_weight_reduction, kronecker_als, ridge
from .selection import Candidates, blocked_cv, candidates, choose_by_blocks, choose_on_validation, chosen_forecaster

# (K, P as a share of the period, r) of the strided banks tried on validation.
STRIDED_GRID: tuple[tuple[int, float, int], ...] = ((4, 0.5, 8), (4, 0.5, 12), (8, 1.0, 8), (8, 1.0, 12))
# Penalties of the strided bank's core.
STRIDED_ALPHAS: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1)

CLOSED_FORM_ROWS: tuple[str, ...] = (
    "chosen", "rrr-val", "rrr-blocks", "rrr-r12", "dwrr-r12", "bank", "ridge", "ridge-average", "rlinear-ols", "nlinear-ols",
    "dlinear-ols", "kronecker", "seasonal-naive", "repeat-last",
)  # fmt: skip
# Rows that are taken out of the grids of all look-backs.
GRID_ROWS = frozenset(CLOSED_FORM_ROWS[:8])


def bank_forecaster(bank: FilterBank, label: str = "") -> LinearForecaster:
    """A linear bank as a forecaster of numpy rows, with its cost."""
    return LinearForecaster(bank.double_map().numpy(), bank.norm.mode, label=label, macs=bank.macs())


def strided_grid(
    data: LTSFData,
    lookback: int,
    horizon: int,
    settings: Sequence[tuple[int, float, int]] = STRIDED_GRID,
    alphas: Sequence[float] = STRIDED_ALPHAS,
    path: RidgePath | None = None,
) -> list[tuple[LinearForecaster, dict[str, Any], float]]:
    """Strided banks in closed form with the penalty of each setting chosen on validation."""
    train = data.stats("train", lookback, horizon).normalised("mean")
    val = data.stats("val", lookback, horizon).normalised("mean")
    path = path or RidgePath(train)
    rows = []
    for filters, share, rank in settings:
        size = max(2, round(data.spec.period * share))
        if size > lookback:
            continue
        best: tuple[LinearForecaster, dict[str, Any], float] | None = None
        for alpha in alphas:
            bank = fit_bank(train, min(filters, size), size, rank=rank, alpha=alpha, path=path)
            forecaster = bank_forecaster(bank, f"bank K{filters} P{size} r{rank}")
            loss = val.mse(forecaster.weight)
            if best is None or loss < best[2]:
                setting = {"lookback": lookback, "filters": filters, "kernel_size": size, "rank": rank, "alpha": alpha}
                best = (forecaster, setting, loss)
        assert best is not None
        rows.append(best)
    return rows


def kronecker_grid(
    data: LTSFData, horizon: int, lookbacks: Sequence[int], alphas: Sequence[float] = STRIDED_ALPHAS
) -> list[tuple[LinearForecaster, dict[str, Any], float]]:
    """Forecasters ``W = D kron E`` (SparseTSF's form, with a map of the phases in place of its convolution) of all look-backs
    of at least a period, cut to whole periods, and penalties, with their validation errors.
    """
    period, rows = data.spec.period, []
    longer = -(-horizon // period) * period  # whole periods; what lies beyond the horizon is cut off
    for length in (n // period * period for n in lookbacks if n >= period):
        train, val = data.stats("train", length, longer).normalised("mean"), data.stats("val", length, horizon)
        for alpha in alphas:
            core, phases = kronecker_als(train, period, alpha)
            weight = np.kron(core, phases)[:, :horizon]
            macs = period * core.size + period * min(length, longer)
            forecaster = LinearForecaster(weight, "mean", label="D kron E", macs=macs)
            rows.append((forecaster, {"lookback": length, "alpha": alpha}, forecaster.mse(val)))
    if not rows:
        raise ValueError(f"lookbacks: the row 'kronecker' needs one of at least a period ({period}), got {lookbacks}")
    return rows


def closed_form_table(
    data: LTSFData,
    horizon: int,
    rows: Sequence[str] = CLOSED_FORM_ROWS,
    lookbacks: Sequence[int] | None = None,
    mae: bool = True,
    alphas: Sequence[float] = ALPHA_GRID,
) -> dict[str, dict[str, Any]]:
    """Test errors of closed-form forecasters at one horizon; every choice is made on training and validation rows.

    Args:
        data: the benchmark.
        horizon: H.
        rows: which forecasters, of ``CLOSED_FORM_ROWS``.
        lookbacks: candidates for L; default those of the benchmark.
        mae: also the mean absolute error, which needs a pass over the test windows, and the numerical rank of the map.
        alphas: penalties of the forecasters that are chosen.

    Returns:
        per row: ``mse``, ``mae`` and ``rank`` (or ``None``), ``windows``, ``macs``, ``setting``.
    """
    unknown = set(rows) - set(CLOSED_FORM_ROWS)
    if unknown:
        raise ValueError(f"rows must be among {', '.join(CLOSED_FORM_ROWS)}, got {', '.join(sorted(unknown))}")
    lookbacks = tuple(lookbacks or data.spec.lookbacks)
    longest = max(lookbacks)
    grids = [candidates(data, n, horizon, alphas=alphas) for n in lookbacks] if GRID_ROWS & set(rows) else []
    chosen = {row: _row(row, data, horizon, lookbacks, grids) for row in rows}
    table = {}
    for row, (forecaster, setting) in chosen.items():
        test = data.stats("test", longest, horizon)
        score = evaluate(forecaster, data, longest, horizon) if mae else None
        table[row] = {
            "mse": score.mse if score else forecaster.mse(test),
            "mae": score.mae if score else None,
            "rank": numerical_rank(forecaster.weight) if score else None,
            "windows": round(test.count / data.values.shape[1]),
            "macs": forecaster.weight.size if forecaster.macs is None else forecaster.macs,
            "setting": setting,
        }
    return table


def _row(
    row: str, data: LTSFData, horizon: int, lookbacks: Sequence[int], grids: list[Candidates]
) -> tuple[LinearForecaster, dict[str, Any]]:
    if row == "chosen":
        choice = chosen_forecaster(data, horizon, grids)
        return choice.forecaster, choice.setting
    if row in ("rrr-val", "ridge"):
        choice = choose_on_validation(grids, full=row == "ridge")
        return choice.forecaster, choice.setting
    if row == "rrr-blocks":
        tables = [blocked_cv(data.rows("train", g.lookback), g.lookback, horizon, g.norm) for g in grids]
        choice = choose_by_blocks(grids, tables)
        return choice.forecaster, choice.setting
    if row == "rrr-r12":
        only = [
            replace(g, ranks=(r,), val=g.losses(by_blocks=False)[:, [j]])
            for g in grids
            for j, r in enumerate(g.ranks)
            if r == min(12, g.ranks[-1])
        ]
        choice = choose_on_validation(only)
        return choice.forecaster, choice.setting
    if row == "ridge-average":
        members = [g.ridge(int(np.argmin(g.val_full))) for g in grids]
        whole = average(members, "ridge, average over look-backs")
        setting = {g.lookback: g.alphas[int(np.argmin(g.val_full))] for g in grids}
        return replace(whole, macs=min(whole.weight.size, sum(m.weight.size for m in members))), {"alphas": setting}
    if row == "dwrr-r12":
        options = []
        for grid in grids:
            weight = grid.ridge(int(np.argmin(grid.val_full))).weight
            fit = direct_weight_reduction(weight, min(12, *weight.shape))
            cut = LinearForecaster(fit.weight, grid.norm, label="truncated ridge", macs=fit.rank * sum(weight.shape))
            options.append((cut.mse(data.stats("val", grid.lookback, horizon)), grid.lookback, cut))
        _, length, forecaster = min(options, key=lambda o: o[0])
        return forecaster, {"lookback": length, "rank": 12}
    if row == "bank":
        tried = [t for g in grids for t in strided_grid(data, g.lookback, horizon, path=g.path)]
        forecaster, setting, _ = min(tried, key=lambda t: t[2])
        return forecaster, setting
    if row == "kronecker":
        forecaster, setting, _ = min(kronecker_grid(data, horizon, lookbacks), key=lambda t: t[2])
        return forecaster, setting
    if row == "repeat-last":
        return repeat_last(lookbacks[0], horizon), {}
    if row == "seasonal-naive":
        period = data.spec.period
        usable = min([length for length in lookbacks if length >= period] or [max(lookbacks)])
        return seasonal_naive(usable, horizon, min(period, usable)), {"period": period}
    options = []
    for length in lookbacks:
        train, val = data.stats("train", length, horizon), data.stats("val", length, horizon)
        if row == "dlinear-ols":
            forecaster = least_squares_affine(train)
        else:
            norm = "mean" if row == "rlinear-ols" else "last"
            # OLS needs a trace of ridge: the normalised Gram matrix has one zero direction by construction.
            forecaster = LinearForecaster(ridge(train.normalised(norm), 1e-9), norm, label=row)
        options.append((forecaster.mse(val), length, forecaster))
    _, length, forecaster = min(options, key=lambda o: o[0])
    return forecaster, {"lookback": length}
