"""Closed forms: least squares, the ridge path, reduced-rank regression and its neighbours, all from window statistics.

Notation: ``G = X^T X`` (L x L), ``C = X^T Y`` (L x H), ``tau = tr(G) / L``. The penalty is ``lam * tau``, so ``lam`` has
no unit and one grid serves every data set.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg as sla
from jaxtyping import Float

from .stats import WindowStats

# 1e-4 .. 1e1 in half decades.
ALPHA_GRID: tuple[float, ...] = tuple(float(f"{10.0**e:.6g}") for e in np.arange(-4.0, 1.01, 0.5))
RANK_GRID: tuple[int, ...] = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
# Eigenvalues of G below this share of the largest count as zero when there is no penalty.
RCOND = 1e-12


@dataclass(frozen=True)
class LowRankFit:
    """A forecaster ``W_r = A B`` with analysis bank ``A`` (L x r) and synthesis bank ``B`` (r x H).

    ``mu`` are all computed eigenvalues of ``M = C^T W_lam``, largest first: the training objective of rank ``r`` is
    ``tr(Y^T Y) - sum(mu[:r])``.
    """

    analysis: Float[np.ndarray, "l r"]
    synthesis: Float[np.ndarray, "r h"]
    mu: Float[np.ndarray, " k"]

    @property
    def weight(self) -> Float[np.ndarray, "l h"]:
        """``W_r = A B``."""
        return self.analysis @ self.synthesis

    @property
    def rank(self) -> int:
        """Number of filters r."""
        return self.analysis.shape[1]

    def truncated(self, rank: int) -> LowRankFit:
        """The optimum of a smaller rank: its filters are the first ``rank`` of these."""
        return LowRankFit(self.analysis[:, :rank], self.synthesis[:rank], self.mu)


class RidgePath:
    """Ridge regression for any number of penalties from one eigendecomposition of ``G``."""

    def __init__(self, stats: WindowStats):
        self.stats = stats
        self.tau = float(np.trace(stats.gram)) / stats.lookback
        values, self.basis = sla.eigh(stats.gram, check_finite=False)
        self.values = np.maximum(values, 0.0)

    @cached_property
    def projected(self) -> Float[np.ndarray, "l h"]:
        """``Q^T C``: the cross moments along the eigenvectors of ``G``."""
        return self.basis.T @ self.stats.cross

    def shrinkage(self, alpha: float) -> Float[np.ndarray, " l"]:
        """``1 / (g_i + lam tau)``; with ``lam = 0`` and a singular ``G`` the pseudo-inverse, with a warning."""
        if not np.isfinite(alpha) or alpha < 0:
            raise ValueError(f"alpha must be a finite number >= 0, got {alpha!r}")
        if alpha > 0 and self.tau > 0:
            return 1.0 / (self.values + alpha * self.tau)
        keep = self.values > RCOND * max(self.values[-1], np.finfo(float).tiny)
        # Instance normalisation itself takes one dimension out of the look-back.
        if keep.sum() < len(keep) - (self.stats.norm != "none"):
            warnings.warn(
                f"alpha=0 and the look-back's Gram matrix is singular (rank {int(keep.sum())} of {len(keep)}): "
                "taking the minimum-norm solution",
                RuntimeWarning,
                stacklevel=3,
            )
        return np.where(keep, 1.0 / np.where(keep, self.values, 1.0), 0.0)

    def weight(self, alpha: float) -> Float[np.ndarray, "l h"]:
        """``W_lam = (G + lam tau I)^{-1} C``."""
        return self.basis @ (self.shrinkage(alpha)[:, None] * self.projected)

    def reduced_rank(
        self, alpha: float, rank: int | None = None, output_weight: Float[np.ndarray, "h h"] | None = None
    ) -> LowRankFit:
        """Reduced-rank regression: the best ``W`` of rank ``<= rank`` under the penalised training loss.

        ``M = C^T W_lam`` (H x H, PSD), ``V_r`` its leading eigenvectors, ``A = W_lam V_r``, ``B = V_r^T``
        (Izenman 1975). ``output_weight`` is a positive definite ``Gamma``: the loss is then
        ``||(Y - X W) Gamma^{1/2}||^2``.
        """
        rank = clip_rank(rank, self.stats.lookback, self.stats.horizon)
        projected, inverse_root = self.projected, None
        if output_weight is not None:
            root, inverse_root = _roots(output_weight, self.stats.horizon)
            projected = projected @ root
        scaled = np.sqrt(self.shrinkage(alpha))[:, None] * projected
        mu, vectors = leading_eigen(scaled.T @ scaled, rank)
        analysis = self.basis @ (self.shrinkage(alpha)[:, None] * (projected @ vectors))
        synthesis = vectors.T if inverse_root is None else vectors.T @ inverse_root
        return LowRankFit(analysis, synthesis, mu)


def ridge(stats: WindowStats, alpha: float) -> Float[np.ndarray, "l h"]:
    """``(G + alpha tau I)^{-1} C`` for one penalty; ``alpha = 0`` is ordinary least squares."""
    return RidgePath(stats).weight(alpha)


def reduced_rank(
    stats: WindowStats, rank: int | None, alpha: float = 0.0, output_weight: np.ndarray | None = None
) -> LowRankFit:
    """Reduced-rank regression for one rank and penalty; see :meth:`RidgePath.reduced_rank`."""
    return RidgePath(stats).reduced_rank(alpha, rank, output_weight)


def direct_weight_reduction(weight: Float[np.ndarray, "l h"], rank: int) -> LowRankFit:
    """DWRR: truncated SVD of the weight itself. It ignores the inputs' metric, so it never beats reduced-rank
    regression on training loss; kept to show why the metric matters.
    """
    left, values, right = sla.svd(weight, full_matrices=False, check_finite=False)
    return LowRankFit(left[:, :rank] * values[:rank], right[:rank], values**2)


def residual_precision(stats: WindowStats, alpha: float) -> Float[np.ndarray, "h h"]:
    """Inverse residual covariance of the ridge fit: as ``output_weight`` it gives the canonical-variate form."""
    weight = ridge(stats, alpha)
    fit = weight.T @ stats.cross
    cov = (stats.target - fit - fit.T + weight.T @ stats.gram @ weight) / stats.count
    cov += np.trace(cov) / len(cov) * 1e-8 * np.eye(len(cov))
    return np.linalg.inv((cov + cov.T) / 2)


def shared_core(
    stats: WindowStats, period: int, alpha: float = 0.0, rank: int | None = None
) -> Float[np.ndarray, "f o"]:
    """The best ``D`` of ``W = D kron I_period``: one matrix from past to future periods shared by all phases.

    This is SparseTSF without its convolution; with a ``rank`` it is TimeBase without its penalty. L and H must be
    multiples of the period.
    """
    lookback, horizon = stats.lookback, stats.horizon
    if period < 1 or lookback % period or horizon % period:
        raise ValueError(f"period={period} must divide lookback={lookback} and horizon={horizon}")
    frames, outputs = lookback // period, horizon // period
    phase = np.arange(period)
    gram = stats.gram.reshape(frames, period, frames, period)[:, phase, :, phase].sum(0)
    cross = stats.cross.reshape(frames, period, outputs, period)[:, phase, :, phase].sum(0)
    gram = gram + alpha * np.trace(gram) / frames * np.eye(frames)
    full = sla.solve(gram, cross, assume_a="pos", check_finite=False) if alpha > 0 else np.linalg.pinv(gram) @ cross
    if rank is None or rank >= min(frames, outputs):
        return full
    _, vectors = leading_eigen(cross.T @ full, rank)
    return full @ vectors @ vectors.T


def kronecker_als(
    stats: WindowStats, period: int, alpha: float, iterations: int = 20, outer_rank: int = 1
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Alternating least squares for ``W = sum_k D_k kron E_k`` with ``E_k`` a ``period x period`` map of the phases.

    Starts from ``shared_core`` (``E = I``) and never increases the penalised training loss. Each term is fitted on what
    the ones before it leave.
    """
    lookback, horizon = stats.lookback, stats.horizon
    frames, outputs = lookback // period, horizon // period
    gram = stats.gram + alpha * np.trace(stats.gram) / lookback * np.eye(lookback)
    gram4 = gram.reshape(frames, period, frames, period)
    cross = stats.cross.copy()
    terms: list[tuple[np.ndarray, np.ndarray]] = []
    for term in range(outer_rank):
        inner = np.eye(period) if term == 0 else np.roll(np.eye(period), term, 1)
        core = np.zeros((frames, outputs))
        cross4 = cross.reshape(frames, period, outputs, period)
        for _ in range(iterations):
            normal = np.einsum("apbq,pr,qr->ab", gram4, inner, inner, optimize=True)
            core = np.linalg.lstsq(normal, np.einsum("apor,pr->ao", cross4, inner), rcond=None)[0]
            normal = np.einsum("apbq,ao,bo->pq", gram4, core, core, optimize=True)
            inner = np.linalg.lstsq(normal, np.einsum("apor,ao->pr", cross4, core), rcond=None)[0]
        terms.append((core, inner))
        cross = cross - gram @ np.kron(core, inner)
    return terms


def grid_losses(
    path: RidgePath,
    held_out: Sequence[WindowStats],
    alphas: Sequence[float],
    ranks: Sequence[int],
    full_rank: bool = True,
) -> Iterator[tuple[float, LowRankFit, list[tuple[np.ndarray, float]]]]:
    """For every penalty: the largest low-rank fit and, per held-out part, its MSE at every rank and at full rank (NaN
    without ``full_rank``, which saves the largest product).

    The losses of all ranks come from one pass: ``<W_r, C>`` and ``<W_r, G W_r>`` are cumulative sums over the
    eigenvectors of ``M``.
    """
    basis = path.basis
    rotated = [(basis.T @ part.gram @ basis, basis.T @ part.cross, part) for part in held_out]
    top = max(ranks)
    for alpha in alphas:
        shrink = path.shrinkage(alpha)[:, None]
        coefficients = shrink * path.projected
        scaled = np.sqrt(shrink) * path.projected
        mu, vectors = leading_eigen(scaled.T @ scaled, top)
        low = coefficients @ vectors
        losses = []
        for gram, cross, part in rotated:
            gain = 2.0 * np.einsum("lr,lr->r", low, cross @ vectors) - np.einsum("lr,lr->r", low, gram @ low)
            full = np.nan
            if full_rank:
                full = 2.0 * np.vdot(coefficients, cross) - np.vdot(coefficients, gram @ coefficients)
            energy, scale = np.trace(part.target), part.count * part.horizon
            by_rank = (energy - np.cumsum(gain)[np.minimum(np.asarray(ranks), len(gain)) - 1]) / scale
            losses.append((by_rank, float(energy - full) / scale))
        yield alpha, LowRankFit(basis @ low, vectors.T, mu), losses


def leading_eigen(matrix: Float[np.ndarray, "h h"], rank: int) -> tuple[np.ndarray, np.ndarray]:
    """The ``rank`` largest eigenvalues and eigenvectors of a symmetric matrix, largest first, with fixed signs."""
    size = len(matrix)
    rank = min(rank, size)
    matrix = (matrix + matrix.T) / 2
    values, vectors = sla.eigh(matrix, subset_by_index=(size - rank, size - 1), check_finite=False)
    values, vectors = values[::-1], vectors[:, ::-1]
    signs = np.sign(vectors[np.abs(vectors).argmax(0), np.arange(rank)])
    return np.maximum(values, 0.0), vectors * np.where(signs == 0, 1.0, signs)


def clip_rank(rank: int | None, lookback: int, horizon: int) -> int:
    """``rank`` as asked, or ``min(L, H)`` with a warning where more is asked than exists."""
    limit = min(lookback, horizon)
    if rank is None:
        return limit
    if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)) or rank < 1:
        raise ValueError(f"rank must be a positive integer, got {rank!r}")
    if rank > limit:
        warnings.warn(f"rank={rank} is more than min(L, H) = {limit}: clipped to {limit}", RuntimeWarning, stacklevel=3)
        return limit
    return int(rank)


def _roots(gamma: np.ndarray, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    gamma = np.asarray(gamma, dtype=np.float64)
    if gamma.shape != (horizon, horizon):
        raise ValueError(f"output_weight must be ({horizon}, {horizon}), got {gamma.shape}")
    values, vectors = sla.eigh((gamma + gamma.T) / 2)
    if values[0] <= 0:
        raise ValueError(f"output_weight must be positive definite, its smallest eigenvalue is {values[0]:.3g}")
    root = np.sqrt(values)
    return (vectors * root) @ vectors.T, (vectors / root) @ vectors.T
