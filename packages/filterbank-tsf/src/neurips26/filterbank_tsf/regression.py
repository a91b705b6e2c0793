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
from scipy.linalg import lapack

from .stats import WindowStats

# 1e-4 .. 1e1 in half decades.
ALPHA_GRID: tuple[float, ...] = tuple(float(f"{10.0**e:.6g}") for e in np.arange(-4.0, 1.01, 0.5))
RANK_GRID: tuple[int, ...] = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
# Eigenvalues of G below this share of the largest count as zero when there is no penalty.
RCOND = 1e-12
# Eigenvectors of ``Z^T Z`` are taken from ``Z Z^T``, where that is smaller, unless an eigenvalue is below this share of the
# largest: the step to the other side then loses digits.
SMALL_SIDE = 1e-8
# Where at most one eigenvector in so many is wanted, all others are not computed.
FEW = 3


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

    def balanced(self) -> LowRankFit:
        """The same map with ``A^T A = B B^T``, as gradient descent on both banks from a small start leaves them."""
        fit = direct_weight_reduction(self.weight, self.rank)
        size = np.sqrt(np.maximum(np.linalg.norm(fit.analysis, axis=0), np.finfo(float).tiny))
        return LowRankFit(fit.analysis / size, size[:, None] * fit.synthesis, self.mu)

    def truncated(self, rank: int) -> LowRankFit:
        """The optimum of a smaller rank: its filters are the first ``rank`` of these."""
        return LowRankFit(self.analysis[:, :rank], self.synthesis[:rank], self.mu)


class RidgePath:
    """Ridge regression for any number of penalties from one eigendecomposition of ``G``."""

    def __init__(self, stats: WindowStats):
        self.stats = stats
        self.tau = float(np.trace(stats.gram)) / stats.lookback
        values, self.basis = sla.eigh(stats.gram, driver="evd", check_finite=False)
        self.values = np.maximum(values, 0.0)

    @cached_property
    def projected(self) -> Float[np.ndarray, "l h"]:
        """``Q^T C``: the cross moments along the eigenvectors of ``G``."""
        return self.basis.T @ self.stats.cross

    @cached_property
    def outer(self) -> Float[np.ndarray, "l l"]:
        """``P P^T`` of the projected cross moments ``P``."""
        return self.projected @ self.projected.T

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
            gamma_root, inverse_root = _roots(output_weight, self.stats.horizon)
            projected = projected @ gamma_root
        root = np.sqrt(self.shrinkage(alpha))[:, None]
        mu, vectors, coordinates = _leading(root, projected, self.outer if output_weight is None else None, rank)
        synthesis = vectors.T if inverse_root is None else vectors.T @ inverse_root
        return LowRankFit(self.basis @ (root * coordinates), synthesis, mu)


def _leading(
    root: Float[np.ndarray, "l 1"],
    projected: Float[np.ndarray, "l h"],
    outer: Float[np.ndarray, "l l"] | None,
    rank: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """With ``Z = root * projected``: leading eigenvalues and eigenvectors of ``M = Z^T Z``, and ``Z`` times the vectors.

    Where a window has fewer inputs than outputs they come from the smaller ``Z Z^T``, which is ``outer = projected
    projected^T`` rescaled, so that further penalties cost no product.
    """
    if len(projected) < projected.shape[1]:
        outer = projected @ projected.T if outer is None else outer
        mu, left = leading_eigen(root * outer * root.T, rank)
        if mu[-1] > SMALL_SIDE * mu[0]:
            scale = np.sqrt(mu)
            right = projected.T @ (root * left / scale)
            signs = _signs(right)
            return mu, right * signs, left * (scale * signs)
    scaled = root * projected
    mu, vectors = leading_eigen(scaled.T @ scaled, rank)
    return mu, vectors, scaled @ vectors


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
    stats: WindowStats, period: int, alpha: float, iterations: int = 20
) -> tuple[Float[np.ndarray, "f o"], Float[np.ndarray, "p p"]]:
    """``D`` and ``E`` of the forecaster ``W = D kron E`` by alternating least squares: ``D`` maps past to future periods
    as in :func:`shared_core`, ``E`` maps the phases of a period.

    Starts at ``shared_core`` (``E = I``) and never increases the penalised training loss.
    """
    lookback, horizon = stats.lookback, stats.horizon
    core, phases = shared_core(stats, period, alpha), np.eye(period)
    frames, _ = core.shape
    gram = stats.gram + alpha * np.trace(stats.gram) / lookback * np.eye(lookback)
    gram4 = gram.reshape(frames, period, frames, period)
    cross4 = stats.cross.reshape(frames, period, horizon // period, period)
    for _ in range(iterations):
        normal = np.einsum("apbq,ao,bo->pq", gram4, core, core, optimize=True)
        phases = np.linalg.lstsq(normal, np.einsum("apor,ao->pr", cross4, core, optimize=True), rcond=None)[0]
        normal = np.einsum("apbq,pr,qr->ab", gram4, phases, phases, optimize=True)
        core = np.linalg.lstsq(normal, np.einsum("apor,pr->ao", cross4, phases, optimize=True), rcond=None)[0]
    return core, phases


def grid_losses(
    path: RidgePath,
    held_out: Sequence[WindowStats],
    alphas: Sequence[float],
    ranks: Sequence[int],
    full_rank: bool = True,
) -> Iterator[tuple[float, LowRankFit, list[tuple[np.ndarray, float]]]]:
    """For every penalty: the largest low-rank fit and, per held-out part, its MSE at every rank and at full rank (NaN
    without ``full_rank``).

    The losses of all ranks come from one pass: ``<W_r, C>`` and ``<W_r, G W_r>`` are cumulative sums over the
    eigenvectors of ``M``. Those of full rank are a quadratic function of the shrinkage ``s``: with
    ``W_lam = Q diag(s) P``, ``<W_lam, G W_lam> = s^T ((Q^T G Q) * (P P^T)) s``.
    """
    places = np.asarray(ranks) - 1
    energies = [float(np.trace(part.target)) for part in held_out]
    if full_rank:
        linear = [np.einsum("lh,lh->l", path.projected, path.basis.T @ part.cross) for part in held_out]
        square = [(path.basis.T @ part.gram @ path.basis) * path.outer for part in held_out]
    for alpha in alphas:
        fit = path.reduced_rank(alpha, min(max(ranks), path.stats.lookback, path.stats.horizon))
        shrink = path.shrinkage(alpha) if full_rank else None
        losses = []
        for i, part in enumerate(held_out):
            gain = 2.0 * np.einsum("lr,lr->r", fit.analysis, part.cross @ fit.synthesis.T)
            gain -= np.einsum("lr,lr->r", fit.analysis, part.gram @ fit.analysis)
            full = np.nan if shrink is None else 2.0 * linear[i] @ shrink - shrink @ square[i] @ shrink
            scale = part.count * part.horizon
            by_rank = (energies[i] - np.cumsum(gain)[np.minimum(places, len(gain) - 1)]) / scale
            losses.append((by_rank, float(energies[i] - full) / scale))
        yield alpha, fit, losses


def leading_eigen(matrix: Float[np.ndarray, "h h"], rank: int) -> tuple[np.ndarray, np.ndarray]:
    """The ``rank`` largest eigenvalues and eigenvectors of a symmetric matrix (its lower triangle is read), largest
    first, the largest entry of each vector positive.
    """
    size = len(matrix)
    rank = min(rank, size)
    if rank * FEW < size:
        values, vectors = _few_eigen(matrix, rank)
    else:
        values, vectors = sla.eigh(matrix, driver="evd", check_finite=False)
    values, vectors = values[::-1][:rank], vectors[:, ::-1][:, :rank]
    return np.maximum(values, 0.0), vectors * _signs(vectors)


def _few_eigen(matrix: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """The largest eigenvalues, ascending: tridiagonal form, its eigenvalues by QR, a few vectors by inverse iteration.

    LAPACK's drivers for a subset find the eigenvalues by bisection, which takes several times as long as all of them by
    QR. Where inverse iteration does not separate a cluster all vectors are computed after all.
    """
    size = len(matrix)
    work = int(lapack.dsytrd_lwork(size, lower=1)[0])
    reduced, diagonal, off, scales, _ = lapack.dsytrd(matrix, lower=1, lwork=work)
    values = sla.eigvalsh_tridiagonal(diagonal, off, check_finite=False, lapack_driver="sterf")[-rank:]
    one_block = np.ones(size, np.int32), np.full(size, size, np.int32)
    vectors, failed = lapack.dstein(diagonal, off, values, *one_block)
    if failed or not np.abs(vectors.T @ vectors - np.eye(rank)).max() < 1e-10:  # also where they are not numbers
        return sla.eigh(matrix, driver="evd", check_finite=False)
    # The reflectors of dsytrd lie below the diagonal in the form in which dgeqrf leaves its own.
    reflectors = np.asfortranarray(reduced[1:, :-1])
    vectors[1:], _, _ = lapack.dormqr("L", "N", reflectors, scales, vectors[1:], 64 * rank)
    return values, vectors


def _signs(vectors: Float[np.ndarray, "h r"]) -> Float[np.ndarray, " r"]:
    """What makes the largest entry of every column positive."""
    return np.where(vectors[np.abs(vectors).argmax(0), np.arange(vectors.shape[1])] < 0, -1.0, 1.0)


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
