"""Fitting a strided bank without passing over the data: filters from moments, core in closed form, then polish.

With the filters fixed, a bank is linear in its core and the best core solves one small problem on projected statistics
``A^T G A`` and ``A^T C B^T``. The polish moves filters and core together down the exact full-batch loss, which is also
a function of the statistics alone.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg as sla
import scipy.optimize
import torch
from jaxtyping import Float

from .choices import DEFAULTS
from .filters import make_filters, predictive_analysis, predictive_synthesis
from .nn import FilterBank
from .regression import RidgePath, leading_eigen
from .stats import WindowStats


def fit_bank(
    stats: WindowStats,
    n_filters: int = 8,
    kernel_size: int = 24,
    stride: int | None = None,
    *,
    n_synthesis: int | None = None,
    synthesis_size: int | None = None,
    hop: int | None = None,
    rank: int | None = None,
    core: str = DEFAULTS.core,
    alpha: float = 1e-3,
    init: str = DEFAULTS.filters,
    trainable: bool = True,
    path: RidgePath | None = None,
) -> FilterBank:
    """A bank with its filters from ``init`` and its core the exact minimiser of the penalised training loss.

    Args:
        stats: training statistics, normalised the way the bank shall normalise (``stats.norm``).
        n_filters, kernel_size, stride, n_synthesis, synthesis_size, hop, rank, core: see
            :class:`neurips26.filterbank_tsf.nn.FilterBank`.
        alpha: penalty of the core, in units of the mean diagonal of the projected Gram matrix.
        init: ``"predictive"`` takes the leading eigenvectors of the diagonal blocks of ``G`` for the analysis and of
            the fitted outputs' covariance for the synthesis; otherwise a name for ``make_filters``.
        trainable: whether the filters are parameters of the layer.
        path: an eigendecomposition of ``G`` to reuse for the fitted outputs.

    Returns:
        the bank, in float32 parameters.
    """
    bank = FilterBank(
        stats.lookback, stats.horizon, n_filters, kernel_size, stride, n_synthesis, synthesis_size, hop, rank,
        core, "dct" if init == "predictive" else init, trainable, stats.norm,
    ).double()  # fmt: skip
    if init == "predictive":
        weight = (path or RidgePath(stats)).weight(max(alpha, 1e-4))
        analysis = predictive_analysis(stats, bank.n_filters, bank.kernel_size)
        synthesis = predictive_synthesis(stats, weight, bank.n_synthesis, bank.synthesis_size)
    else:
        analysis = make_filters(init, bank.n_filters, bank.kernel_size)
        synthesis = make_filters(init, bank.n_synthesis, bank.synthesis_size)
    with torch.no_grad():
        bank.analysis.copy_(torch.from_numpy(analysis))
        bank.synthesis.copy_(torch.from_numpy(synthesis))
    solve_core(bank, stats, alpha)
    return bank.float()


def solve_core(bank: FilterBank, stats: WindowStats, alpha: float) -> None:
    """Put into ``bank`` the core that minimises the penalised training loss for its present filters (in place)."""
    a, b = bank.analysis_matrix(), bank.synthesis_matrix()
    gram, cross = a.T @ stats.gram @ a, a.T @ stats.cross @ b.T
    outer = b @ b.T
    if bank.core_kind in ("dense", "lowrank"):
        factors = _unstructured(gram, cross, outer, alpha, bank.rank if bank.core_kind == "lowrank" else None)
    else:
        factors = [_paired(bank, gram, cross, outer, alpha)]
    with torch.no_grad():
        for parameter, value in zip(bank.core, factors):
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(value)))


def _unstructured(
    gram: np.ndarray, cross: np.ndarray, outer: np.ndarray, alpha: float, rank: int | None
) -> list[np.ndarray]:
    """Ridge, or reduced-rank regression, of ``y B^T (B B^T)^{-1/2}`` on the coefficients."""
    values, vectors = sla.eigh(outer, check_finite=False)
    keep = values > 1e-10 * values[-1]
    inverse_root = vectors[:, keep] / np.sqrt(values[keep])  # synthesis coefficients of orthonormal directions
    target = cross @ inverse_root
    penalised = gram + alpha * np.trace(gram) / len(gram) * np.eye(len(gram))
    full = _solve(penalised, target)
    if rank is None:
        return [full @ inverse_root.T]
    _, leading = leading_eigen(target.T @ full, min(rank, full.shape[1]))
    left, right = full @ leading, leading.T @ inverse_root.T
    missing = rank - left.shape[1]
    return [np.pad(left, ((0, 0), (0, missing))), np.pad(right, ((0, missing), (0, 0)))]


def _paired(bank: FilterBank, gram: np.ndarray, cross: np.ndarray, outer: np.ndarray, alpha: float) -> np.ndarray:
    """Cores that pair filter k with filter k: one joint least-squares problem over the frames.

    Unknown ``D_k`` (T_in x T_out): the normal equations couple filters j and k through the products of their synthesis
    Gram matrices, which vanish for orthonormal filters.
    """
    filters, frames, outputs = bank.n_filters, bank.frames_in, bank.frames_out
    gram = gram + alpha * np.trace(gram) / len(gram) * np.eye(len(gram))
    gram4 = gram.reshape(frames, filters, frames, filters)
    outer4 = outer.reshape(outputs, filters, outputs, filters)
    cross4 = cross.reshape(frames, filters, outputs, filters)
    pairs = np.arange(filters)
    right = cross4[:, pairs, :, pairs]  # filter, T_in, T_out
    if bank.core_kind == "shared":
        normal = np.einsum("akbj,pkqj->apbq", gram4, outer4, optimize=True)
        size = frames * outputs
        return _solve(normal.reshape(size, size), right.sum(0).reshape(-1)).reshape(frames, outputs)
    off = outer4.transpose(1, 3, 0, 2) - np.eye(filters)[:, :, None, None] * outer4[:, pairs, :, pairs][:, None]
    if np.abs(off).max() < 1e-10 * np.abs(outer4).max():  # orthogonal synthesis: one small problem a filter
        cores = []
        for k in range(filters):
            weighted = _solve(gram4[:, k, :, k], right[k])
            cores.append(_solve(outer4[:, k, :, k], weighted.T).T)
        return np.stack(cores)
    normal = np.einsum("akbj,pkqj->kapjbq", gram4, outer4, optimize=True)
    size = filters * frames * outputs
    return _solve(normal.reshape(size, size), right.reshape(-1)).reshape(filters, frames, outputs)


def _solve(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    try:
        return sla.solve(matrix, right, assume_a="pos", check_finite=False)
    except (np.linalg.LinAlgError, sla.LinAlgWarning):
        return np.linalg.pinv(matrix, hermitian=True) @ right


def polish(bank: FilterBank, stats: WindowStats, alpha: float = 0.0, iterations: int = 50) -> float:
    """Move filters and core together by L-BFGS on the exact training loss (in place); returns the final MSE.

    The loss is ``tr(Y^T Y) - 2 <W, C> + <W, G W> + alpha tau ||W||^2``. It never ends higher than it started: start
    from :func:`fit_bank`, since a random start gets stuck.
    """
    work = bank.double()
    tau = float(np.trace(stats.gram)) / stats.lookback
    gram, cross = torch.from_numpy(stats.gram), torch.from_numpy(stats.cross)
    energy, scale = float(np.trace(stats.target)), stats.count * stats.horizon
    parameters = [p for p in work.parameters() if p.requires_grad]
    sizes = [p.numel() for p in parameters]

    def load(flat: np.ndarray) -> None:
        with torch.no_grad():
            for p, part in zip(parameters, torch.from_numpy(flat).split(sizes)):
                p.copy_(part.view_as(p))

    def objective(flat: Float[np.ndarray, " p"]) -> tuple[float, np.ndarray]:
        load(flat)
        for p in parameters:
            p.grad = None
        weight = work.linear_map()
        loss = (
            energy - 2 * (weight * cross).sum() + (weight * (gram @ weight)).sum() + alpha * tau * weight.square().sum()
        )
        loss = loss / scale
        loss.backward()
        gradient = torch.cat([p.grad.flatten() for p in parameters])
        return float(loss.detach()), gradient.numpy()

    start = torch.cat([p.detach().flatten() for p in parameters]).numpy().copy()
    best = scipy.optimize.minimize(
        objective, start, jac=True, method="L-BFGS-B", options={"maxiter": iterations, "maxcor": 20}
    )
    load(np.asarray(best.x if best.fun <= objective(start)[0] else start))
    mse = stats.mse(work.double_map().numpy())
    bank.float()
    return mse
