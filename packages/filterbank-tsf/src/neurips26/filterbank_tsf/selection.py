"""Choosing look-back, penalty and rank without the test part, and the averaged forecaster.

Two selectors stand side by side: the smallest error on the validation rows, and cross-validation over contiguous
blocks of the training rows with the one-standard-error rule. A validation period that is unlike the future (ETTh1's is)
misleads the first one; averaging over what neither can tell apart is the third way and the default of the benchmark.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from .linear import LinearForecaster, average
from .protocol import LTSFData
from .rank import one_standard_error
from .regression import ALPHA_GRID, RANK_GRID, RidgePath, grid_losses
from .stats import WindowStats

# Ranks over which the averaged forecaster runs: from where the rank curves of the validation rows are flat.
AVERAGED_RANKS: tuple[int, ...] = tuple(r for r in RANK_GRID if r >= 8)
FOLDS = 5


@dataclass
class Candidates:
    """All penalties and ranks of one look-back, with their validation losses.

    Attributes:
        lookback, norm: of the forecasters.
        ranks, alphas: the grid.
        val: ``(alphas, ranks)`` validation MSE; ``val_full`` ``(alphas,)`` that of full-rank ridge.
    """

    lookback: int
    norm: str
    ranks: tuple[int, ...]
    alphas: tuple[float, ...]
    val: Float[np.ndarray, "a r"]
    val_full: Float[np.ndarray, " a"]
    path: RidgePath
    _factors: list[tuple[np.ndarray, np.ndarray]]

    def low_rank(self, row: int, rank: int, label: str = "") -> LinearForecaster:
        """The reduced-rank forecaster of a penalty (by its place in the grid) and a rank."""
        analysis, synthesis = self._factors[row]
        weight = analysis[:, :rank] @ synthesis[:rank]
        return LinearForecaster(weight, self.norm, label=label, macs=rank * sum(weight.shape))

    def ridge(self, row: int, label: str = "ridge") -> LinearForecaster:
        """The full-rank ridge forecaster of a penalty."""
        weight = self.path.weight(self.alphas[row])
        return LinearForecaster(weight, self.norm, label=label, macs=weight.size)


def candidates(
    data: LTSFData,
    lookback: int,
    horizon: int,
    norm: str = "mean",
    ranks: Sequence[int] = RANK_GRID,
    alphas: Sequence[float] = ALPHA_GRID,
) -> Candidates:
    """Fit the whole grid of one look-back on the training rows and score it on the validation rows."""
    kept = tuple(r for r in ranks if r <= min(lookback, horizon))
    path = RidgePath(data.stats("train", lookback, horizon).normalised(norm))
    val = data.stats("val", lookback, horizon).normalised(norm)
    losses, full, factors = [], [], []
    for _, fit, [(by_rank, whole)] in grid_losses(path, [val], alphas, kept):
        losses.append(by_rank)
        full.append(whole)
        factors.append((fit.analysis, fit.synthesis))
    return Candidates(lookback, norm, kept, tuple(alphas), np.array(losses), np.array(full), path, factors)


@dataclass(frozen=True)
class Choice:
    """A chosen forecaster and how it was chosen."""

    forecaster: LinearForecaster
    setting: dict[str, object]
    val_mse: float


def choose_on_validation(grids: Sequence[Candidates], full: bool = False) -> Choice:
    """The look-back, penalty and rank (or full-rank ridge) with the smallest validation error."""
    best: Choice | None = None
    for grid in grids:
        if full:
            row = int(grid.val_full.argmin())
            loss, make = float(grid.val_full[row]), lambda g=grid, i=row: g.ridge(i)
            setting = {"lookback": grid.lookback, "alpha": grid.alphas[row], "rank": "full"}
        else:
            column = int(grid.val.min(0).argmin())
            row = int(grid.val[:, column].argmin())
            loss = float(grid.val[row, column])
            make = lambda g=grid, i=row, r=grid.ranks[column]: g.low_rank(i, r, "reduced rank, validation")  # noqa: E731
            setting = {"lookback": grid.lookback, "alpha": grid.alphas[row], "rank": grid.ranks[column]}
        if best is None or loss < best.val_mse:
            best = Choice(make(), setting, loss)
    assert best is not None
    return best


def averaged(grids: Sequence[Candidates], ranks: Sequence[int] = AVERAGED_RANKS) -> Choice:
    """The equal-weight average over look-backs and ranks; only the penalty of each member is chosen, on validation."""
    members = []
    for grid in grids:
        columns = [j for j, r in enumerate(grid.ranks) if r in ranks] or [len(grid.ranks) - 1]
        low = [grid.low_rank(int(grid.val[:, j].argmin()), grid.ranks[j]) for j in columns]
        members.append(average(low))  # per look-back first: one map of its own L
    whole = average(members, "averaged low rank")
    used = sorted({r for g in grids for r in g.ranks if r in ranks})
    macs = sum(g.lookback * g.low_rank(0, 1).horizon for g in grids)
    setting = {"lookbacks": [g.lookback for g in grids], "ranks": used, "alpha": "each on validation"}
    return Choice(replace(whole, macs=min(macs, whole.weight.size)), setting, float("nan"))


def blocked_cv(
    z: Float[np.ndarray, "t c"],
    lookback: int,
    horizon: int,
    norm: str = "mean",
    ranks: Sequence[int] = RANK_GRID,
    alphas: Sequence[float] = ALPHA_GRID,
    folds: int = FOLDS,
) -> Float[np.ndarray, "f a r"]:
    """Losses on contiguous blocks of windows of the training rows; the last column is full-rank ridge.

    Windows that start less than H steps from the held-out block are left out of the fit, so no target value is seen on
    both sides.
    """
    count = len(z) - lookback - horizon + 1
    if count < 2 * folds:
        raise ValueError(f"z has {count} windows, too few for {folds} folds")
    kept = tuple(r for r in ranks if r <= min(lookback, horizon))
    edges = np.linspace(0, count, folds + 1).astype(int).tolist()
    whole = WindowStats.from_series(z, lookback, horizon)
    table = np.empty((folds, len(alphas), len(kept) + 1))

    def between(a: int, b: int) -> WindowStats:
        return WindowStats.from_series(z[a : b + lookback + horizon - 1], lookback, horizon)

    for k, (a, b) in enumerate(itertools.pairwise(edges)):
        near = between(max(0, a - horizon), min(count, b + horizon))
        rest = replace(
            whole, moment=whole.moment - near.moment, total=whole.total - near.total, count=whole.count - near.count
        )
        held = between(a, b).normalised(norm)
        for i, (_, _, [(by_rank, full)]) in enumerate(
            grid_losses(RidgePath(rest.normalised(norm)), [held], alphas, kept)
        ):
            table[k, i] = [*by_rank, full]
    return table


def choose_by_blocks(grids: Sequence[Candidates], tables: Sequence[Float[np.ndarray, "f a r"]]) -> Choice:
    """Cross-validation over blocks: per look-back the smallest rank within one standard error of the best, with its
    best penalty; the look-backs are then averaged, since blocks of different look-backs are not the same windows.
    """
    members, settings = [], []
    for grid, table in zip(grids, tables):
        low = table[:, :, :-1]
        rows = low.mean(0).argmin(0)  # best penalty of each rank
        per_rank = low[:, rows, np.arange(len(grid.ranks))]
        rank = one_standard_error(per_rank, grid.ranks)
        row = int(rows[grid.ranks.index(rank)])
        members.append(grid.low_rank(row, rank))
        settings.append({"lookback": grid.lookback, "rank": rank, "alpha": grid.alphas[row]})
    whole = average(members, "reduced rank, blocked CV + 1 SE")
    macs = sum(int(m.macs or 0) for m in members)
    return Choice(replace(whole, macs=macs), {"members": settings}, float("nan"))
