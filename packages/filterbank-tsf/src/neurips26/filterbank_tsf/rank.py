"""Intrinsic rank: how the error falls with the rank of the forecaster, and four ways to choose the rank."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from .regression import ALPHA_GRID, RANK_GRID, RidgePath, grid_losses
from .stats import WindowStats


@dataclass(frozen=True)
class RankCurve:
    """Mean squared error against rank on the parts it was evaluated on.

    Attributes:
        ranks: ranks r, ascending.
        alphas: penalties.
        losses: per part ``(len(alphas), len(ranks))`` MSE.
        full: per part ``(len(alphas),)`` MSE of full-rank ridge.
        mu: leading eigenvalues of ``M = C^T W_lam`` per penalty.
    """

    ranks: tuple[int, ...]
    alphas: tuple[float, ...]
    losses: dict[str, Float[np.ndarray, "a r"]]
    full: dict[str, Float[np.ndarray, " a"]]
    mu: Float[np.ndarray, "a k"] = field(repr=False)

    def best(self, part: str) -> tuple[float, int]:
        """``(alpha, rank)`` with the smallest loss on ``part``; the smaller rank wins a tie."""
        table = self.losses[part]
        column = int(table.min(0).argmin())
        return self.alphas[int(table[:, column].argmin())], self.ranks[column]

    def along(self, part: str, chosen_on: str | None = None) -> Float[np.ndarray, " r"]:
        """Loss on ``part`` per rank, each with the penalty that is best on ``chosen_on`` (default: the same part)."""
        rows = self.losses[chosen_on or part].argmin(0)
        return self.losses[part][rows, np.arange(len(self.ranks))]


def rank_curve(
    train: WindowStats,
    held_out: dict[str, WindowStats],
    ranks: Sequence[int] = RANK_GRID,
    alphas: Sequence[float] = ALPHA_GRID,
) -> RankCurve:
    """Losses of reduced-rank regression for every penalty and rank on the training part and every held-out part.

    All statistics must have the same look-back, horizon and norm. One eigendecomposition of ``G`` serves all.
    """
    limit = min(train.lookback, train.horizon)
    kept = tuple(sorted({int(r) for r in ranks if 1 <= r <= limit})) or (limit,)
    parts = {"train": train, **held_out}
    losses = {name: np.empty((len(alphas), len(kept))) for name in parts}
    full = {name: np.empty(len(alphas)) for name in parts}
    mu = np.empty((len(alphas), kept[-1]))
    for i, (_, fit, values) in enumerate(grid_losses(RidgePath(train), list(parts.values()), alphas, kept)):
        mu[i] = fit.mu
        for name, (by_rank, whole) in zip(parts, values):
            losses[name][i], full[name][i] = by_rank, whole
    return RankCurve(kept, tuple(alphas), losses, full, mu)


def one_standard_error(fold_losses: Float[np.ndarray, "f r"], ranks: Sequence[int], best: int | None = None) -> int:
    """The smallest rank whose loss is within one standard error of the best one.

    ``fold_losses`` holds the loss of each rank on disjoint blocks of time (overlapping windows are dependent, so the
    error is taken over blocks). The error is that of the *paired* difference to the best rank: blocks differ in level
    far more than ranks differ within a block.
    """
    folds = np.asarray(fold_losses, dtype=float)
    best = int(folds.mean(0).argmin()) if best is None else best
    gap = folds - folds[:, [best]]
    error = gap.std(0, ddof=1) / np.sqrt(len(folds)) if len(folds) > 1 else np.zeros(folds.shape[1])
    return int(ranks[int(np.flatnonzero(gap.mean(0) <= error + 1e-15)[0])])


def rank_selection_criterion(stats: WindowStats, alpha: float = 0.0) -> int:
    """Bunea, She and Wegkamp (2011): keep singular values of the fitted values above
    ``sqrt(2) sigma (sqrt(H) + sqrt(rank X))``.

    It counts overlapping windows as independent and is therefore liberal here (it keeps too many directions).
    """
    path = RidgePath(stats)
    fit = path.reduced_rank(alpha)
    rank_x = int((path.values > 1e-10 * path.values[-1]).sum())
    residual = stats.sse(path.weight(alpha))
    freedom = max((stats.count - rank_x) * stats.horizon, 1.0)
    threshold = np.sqrt(2.0 * residual / freedom) * (np.sqrt(stats.horizon) + np.sqrt(rank_x))
    return max(int((np.sqrt(fit.mu) >= threshold).sum()), 1)


def energy_rank(mu: Float[np.ndarray, " k"], share: float) -> int:
    """The smallest rank whose eigenvalues of ``M`` carry ``share`` of their sum."""
    if not 0 < share <= 1:
        raise ValueError(f"share must be in (0, 1], got {share}")
    cumulative = np.cumsum(mu) / max(float(np.sum(mu)), np.finfo(float).tiny)
    return int(np.searchsorted(cumulative, share - 1e-12) + 1)


def stable_rank(matrix: Float[np.ndarray, "a b"]) -> float:
    """``||.||_F^2 / ||.||_2^2``."""
    values = np.linalg.svd(np.asarray(matrix, dtype=float), compute_uv=False)
    return float((values**2).sum() / values[0] ** 2) if values[0] > 0 else 0.0


def effective_rank(matrix: Float[np.ndarray, "a b"]) -> float:
    """Exponential of the entropy of the normalised singular values (Roy and Vetterli 2007)."""
    values = np.linalg.svd(np.asarray(matrix, dtype=float), compute_uv=False)
    share = values[values > 0] / values.sum() if values.sum() > 0 else np.ones(1)
    return float(np.exp(-(share * np.log(share)).sum()))


def numerical_rank(matrix: Float[np.ndarray, "a b"], tolerance: float = 1e-9) -> int:
    """Number of singular values above ``tolerance`` times the largest."""
    values = np.linalg.svd(np.asarray(matrix, dtype=float), compute_uv=False)
    return int((values > tolerance * max(values[0], np.finfo(float).tiny)).sum())


def intrinsic_rank(
    train: WindowStats,
    method: str = "val",
    *,
    val: WindowStats | None = None,
    folds: Float[np.ndarray, "f r"] | None = None,
    ranks: Sequence[int] = RANK_GRID,
    alphas: Sequence[float] = ALPHA_GRID,
) -> int:
    """The rank chosen by ``"val"``, ``"one_se"``, ``"rsc"`` or ``"energy:<share>"``.

    Args:
        train: statistics of the training windows.
        method: the selector.
        val: statistics of the validation windows (``"val"``).
        folds: losses per disjoint block and rank (``"one_se"``), e.g. from
            :func:`neurips26.filterbank_tsf.selection.blocked_cv`.
        ranks: candidates.
        alphas: penalties tried with every rank.
    """
    if method == "val":
        if val is None:
            raise ValueError("val: method='val' needs validation statistics, got None")
        return rank_curve(train, {"val": val}, ranks, alphas).best("val")[1]
    if method == "one_se":
        if folds is None:
            raise ValueError("folds: method='one_se' needs losses per block, got None")
        return one_standard_error(folds, ranks)
    if method == "rsc":
        return rank_selection_criterion(train, alphas[0])
    if method.startswith("energy:"):
        return energy_rank(RidgePath(train).reduced_rank(alphas[0]).mu, float(method.partition(":")[2]))
    raise ValueError(f"method must be 'val', 'one_se', 'rsc' or 'energy:<share>', got {method!r}")


def spectrum(stats: WindowStats, which: str = "lookback") -> Float[np.ndarray, " k"]:
    """Eigenvalues, largest first, of the lag covariance ``G`` (``"lookback"``) or of the joint moment (``"joint"``)."""
    if which not in ("lookback", "joint"):
        raise ValueError(f"which must be 'lookback' or 'joint', got {which!r}")
    matrix = stats.gram if which == "lookback" else stats.moment
    values = np.linalg.eigvalsh(matrix)[::-1]
    if values[-1] < -1e-8 * max(values[0], 1.0):
        warnings.warn("the moment matrix has a clearly negative eigenvalue", RuntimeWarning, stacklevel=2)
    return np.maximum(values, 0.0) / stats.count
