"""Least absolute deviations (any quantile): an interior point, then an exact vertex with a proof that it is optimal.

The minimiser of ``sum_i rho_tau(y_i - x_i' b)`` is found in two stages.

1. *Interior point* (Frisch-Newton with Mehrotra's corrector, Portnoy & Koenker 1997) on the dual box problem
   ``max y'a  s.t.  X'a = (1 - tau) X'1,  0 <= a <= 1``. One weighted Gram matrix and one Cholesky factor an iteration.
   With many rows it first solves a sample, then the rows near that fit with all others summed into two (their section 5).
2. *Crossover.* With a few very noisy sources a relative duality gap of 1e-10 still leaves the coefficients in the third
   decimal: the gap is measured in units of the noise. So the rows far from the fit are folded into one linear term, and
   the simplex of Barrodale & Roberts pivots on the rows near it until the dual vector of the basis lies in its box.
   The result is a vertex that interpolates ``d`` rows, with its dual vector as a certificate.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy import linalg, sparse
from sklearn.exceptions import ConvergenceWarning

from neurips26.shared.arrays import check_array, check_int, check_real

__all__ = ["Certificate", "LADResult", "check_loss", "lad", "objective"]

#: Sums of squares of larger numbers overflow, squares of smaller ones vanish.
_SMALLEST, _LARGEST = 1e-150, 1e150
#: Rows handled at a time in weighted Gram matrices, so that a million rows need no second copy of X.
_BLOCK = 1 << 16
#: From this many rows on a sample is solved first.
_MANY = 20_000


@dataclass(frozen=True)
class Certificate:
    """Why a fit is optimal.

    Attributes:
        basis: the ``rank`` rows that the fit interpolates.
        dual: one multiplier a basis row; the fit is optimal when each lies in ``[tau - 1, tau]``.
        violation: by how much the worst multiplier leaves that box (0 when optimal).
        gap: primal minus dual objective, relative to the primal one.
        optimal: ``violation <= 1e-8``.
    """

    basis: Int[np.ndarray, " r"]
    dual: Float[np.ndarray, " r"]
    violation: float
    gap: float
    optimal: bool


@dataclass(frozen=True)
class LADResult:
    """A quantile fit: coefficients, residuals, objective, certificate and the work it took."""

    coef: Float[np.ndarray, " d"]
    residuals: Float[np.ndarray, " n"]
    objective: float
    certificate: Certificate
    n_iter: int
    n_pivots: int
    rank: int


def check_loss(residuals: Float[np.ndarray, " n"], tau: float = 0.5) -> Float[np.ndarray, " n"]:
    """``rho_tau(r) = r (tau - 1{r < 0})``; half the absolute value at ``tau = 0.5``."""
    return residuals * (tau - (residuals < 0))


def objective(X: Any, y: Float[np.ndarray, " n"], coef: Float[np.ndarray, " d"], tau: float = 0.5) -> float:
    """Sum of check losses; at ``tau = 0.5`` the sum of absolute residuals (the usual factor of 2 is put back)."""
    total = float(check_loss(np.asarray(y - X @ coef), tau).sum())
    return 2 * total if tau == 0.5 else total


def lad(
    X: Any,
    y: Any,
    tau: float = 0.5,
    *,
    sample_weight: Any = None,
    max_iter: int = 60,
    max_pivots: int = 10_000,
) -> LADResult:
    """Minimise ``sum_i w_i rho_tau(y_i - x_i' b)`` exactly.

    Args:
        X: design, shape ``(n, d)``, dense or CSR; no intercept is added.
        y: responses, shape ``(n,)``.
        tau: quantile in ``(0, 1)``; 0.5 is least absolute deviations.
        sample_weight: non-negative weights ``w``, shape ``(n,)``.
        max_iter: interior-point iterations.
        max_pivots: simplex pivots of the crossover.

    Returns:
        the vertex and its certificate. Where ``X`` has rank ``r < d`` (fewer rows than columns among
        others) the minimum-norm coefficients among the optimal fits of the reduced system, with a warning.

    Raises:
        ValueError: NaN or infinite input, shapes that do not fit, ``tau`` outside ``(0, 1)``.
    """
    check_real(tau, "tau", minimum=0.0, maximum=1.0, inclusive=False)
    check_int(max_iter, "max_iter", minimum=1)
    check_int(max_pivots, "max_pivots", minimum=1)
    y = check_array(y, "y", shape=("n",), dtype=float)
    X = as_design(X, y.size)
    check_size(y, "y")
    d = X.shape[1]
    y_given, X_given, keep = y, X, None
    if sample_weight is not None:
        w = check_array(sample_weight, "sample_weight", shape=y.shape, dtype=float)
        if (w < 0).any():
            raise ValueError(f"sample_weight: expected numbers >= 0, got {w.min()}")
        keep = np.flatnonzero(w > 0)
        if keep.size == 0:
            raise ValueError("sample_weight: expected at least one number > 0, got zeros")
        # rho is homogeneous: a weight scales its row.
        X, y = scale_rows(X[keep], w[keep]), y[keep] * w[keep]
    basis_map, rank = _reduce(X)
    if rank == 0:
        raise ValueError("X: expected at least one column that is not all zero, got none")
    if rank < d:
        warnings.warn(
            f"X has rank {rank} of {d} columns: the minimum-norm coefficients are returned", ConvergenceWarning, 3
        )
    Z = X @ basis_map
    # Units of y: the solver works on numbers near one, so 1e12 and 1e-12 give the same path.
    unit = float(np.abs(y).max()) or 1.0
    start, n_iter = _start(Z, y / unit, tau, max_iter)
    c, basis, dual, psi, pivots, ok = _crossover(Z, y / unit, start, tau, max_pivots)
    if not ok and n_iter > 0:
        # A sample may have led astray: all rows, then.
        start, more = _interior_point(Z, y / unit, tau, max_iter)
        n_iter += more
        c, basis, dual, psi, pivots, ok = _crossover(Z, y / unit, start, tau, max_pivots)
    if not ok:
        warnings.warn(f"lad: not certified after {pivots} pivots; the best vertex is returned", ConvergenceWarning, 3)
    coef = basis_map @ (c * unit)
    residuals = np.asarray(y_given - X_given @ coef)
    fitted = np.asarray(y - X @ coef)
    primal = float(check_loss(fitted, tau).sum())
    dual_value = float(psi @ y)  # X'psi = 0, so this bounds every fit's loss from below
    violation = float(np.maximum(np.maximum(dual - tau, tau - 1 - dual), 0).max())
    certificate = Certificate(
        basis=basis if keep is None else keep[basis],
        dual=dual,
        violation=violation,
        gap=(primal - dual_value) / max(primal, np.finfo(float).tiny) if primal > 0 else 0.0,
        optimal=violation <= 1e-8,
    )
    total = 2 * primal if tau == 0.5 else primal
    return LADResult(coef, residuals, total, certificate, n_iter, pivots, rank)


def as_design(X: Any, n: int | None = None) -> Any:
    """``X`` as a float array or CSR matrix after checking it."""
    if sparse.issparse(X):
        X = sparse.csr_matrix(X, dtype=float)
        check_array(X.data, "X", finite=True, allow_empty=True)
        if n is not None and X.shape[0] != n:
            raise ValueError(f"X: expected {n} rows as in y, got shape {X.shape}")
    else:
        X = check_array(X, "X", shape=(n, None), dtype=float)
    check_size(X, "X")
    return X


def check_size(values: Any, name: str) -> None:
    """Refuse numbers whose squares leave the range of float64, a column at a time."""
    if 0 in values.shape:
        return
    high, low = (np.ravel(v.toarray() if sparse.issparse(v) else v) for v in (values.max(axis=0), values.min(axis=0)))
    size = np.maximum(high, -low)
    if size.max() > _LARGEST:
        raise ValueError(f"{name}: expected numbers up to {_LARGEST:g}, got {size.max():g}: take another unit")
    small = (size > 0) & (size < _SMALLEST)
    if small.any():
        where = f" in column {int(small.argmax())}" if values.ndim == 2 else ""
        raise ValueError(
            f"{name}: expected zeros or numbers from {_SMALLEST:g} on, got at most {size[small.argmax()]:g}{where}: take "
            "another unit"
        )


def scale_rows(X: Any, w: np.ndarray) -> Any:
    """``diag(w) X`` for a dense or sparse design."""
    return sparse.diags_array(w) @ X if sparse.issparse(X) else X * w[:, None]


def gram(X: Any, q: np.ndarray | None = None) -> Float[np.ndarray, "d d"]:
    """``X' diag(q) X`` by blocks of rows."""
    if sparse.issparse(X):
        return np.asarray((X.T @ (X if q is None else scale_rows(X, q))).todense())
    d = X.shape[1]
    total = np.zeros((d, d))
    for start in range(0, X.shape[0], _BLOCK):
        rows = X[start : start + _BLOCK]
        total += rows.T @ (rows if q is None else rows * q[start : start + _BLOCK, None])
    return total


def sandwich(A: Float[np.ndarray, "d d"], B: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    """``A^-1 B A^-1`` whatever the units of the columns; NaN for coefficients that ``A`` says nothing about."""
    known = np.diag(A) > 0
    scale = np.zeros(len(A))
    scale[known] = 1 / np.sqrt(np.diag(A)[known])
    values, vectors = linalg.eigh(A * np.outer(scale, scale))
    told = values > 1e-13 * max(values[-1], np.finfo(float).tiny)
    inverse = (vectors[:, told] / values[told]) @ vectors[:, told].T
    out = (inverse @ (B * np.outer(scale, scale)) @ inverse) * np.outer(scale, scale)
    unknown = ~known | (np.abs(vectors[:, ~told]) > 1e-6).any(axis=1)
    out[unknown] = out[:, unknown] = np.nan
    return out


def _reduce(X: Any) -> tuple[np.ndarray, int]:
    """A map ``(d, r)`` onto well-scaled independent coordinates; the identity (scaled) at full rank."""
    second = gram(X)
    norms = np.sqrt(np.diag(second))
    scale = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
    values, vectors = linalg.eigh(second * np.outer(scale, scale))
    # Eigenvalues of a Gram matrix carry errors of d * eps; below that a direction is not there.
    if norms.min() > 0 and values[0] > 1e-11 * values[-1]:
        return np.diag(scale * np.sqrt(X.shape[0])), X.shape[1]
    _, singular, rows = (
        linalg.svd(_dense(X) * scale, full_matrices=False, lapack_driver="gesdd")
        if X.shape[0] * X.shape[1] < 5e7
        else (None, np.sqrt(np.maximum(values[::-1], 0)), vectors[:, ::-1].T)
    )
    rank = int((singular > 1e-10 * max(singular[0], 1e-300)).sum()) if singular[0] > 0 else 0
    if rank == X.shape[1]:
        return np.diag(scale * np.sqrt(X.shape[0])), rank
    # Minimum norm in the user's units: directions of the row space of X itself.
    row_space = linalg.orth((scale[:, None] > 0) * (rows[:rank].T / np.where(scale > 0, scale, 1)[:, None]))
    return row_space * (np.sqrt(X.shape[0]) / np.linalg.norm(X @ row_space, axis=0)), rank


def _dense(X: Any) -> np.ndarray:
    return X.toarray() if sparse.issparse(X) else X


def _factor(G: np.ndarray) -> Any:
    """Cholesky factor; near the end of the path the Gram matrix may lose a digit, so a small ridge is allowed."""
    ridge = 0.0
    while True:
        try:
            return linalg.cho_factor(G + ridge * np.eye(len(G)), check_finite=False)
        except linalg.LinAlgError:
            ridge = max(10 * ridge, 1e-14 * float(np.trace(G)) / len(G), 1e-300)


def _start(X: Any, y: np.ndarray, tau: float, max_iter: int) -> tuple[np.ndarray, int]:
    """Coefficients near the optimum and the interior-point iterations used, over both solves where there are two.

    Rows that a sample's fit leaves far away keep the sign of their residual, so all of one sign count as one row: their sum.
    Where too many of them change sides after all, all rows are solved.
    """
    n, d = X.shape
    size = _sample_size(n, d)
    if n < _MANY or 4 * size > n:
        return _interior_point(X, y, tau, max_iter)
    rows = np.sort(np.random.default_rng(0).choice(n, size, replace=False))
    b, used = _interior_point(X[rows], y[rows], tau, max_iter)
    r = np.asarray(y - X @ b)
    near = np.sort(np.argpartition(np.abs(r), 2 * size)[: 2 * size])
    side = np.sign(r)
    side[near] = 0.0
    sides = [(side == s).astype(float) for s in (1.0, -1.0) if (side == s).any()]
    sums = np.array([np.asarray(X.T @ s) for s in sides]).reshape(-1, d)
    stack = sparse.vstack([X[near], sparse.csr_matrix(sums)], format="csr") if sparse.issparse(X) else None
    reduced = np.vstack([X[near], sums]) if stack is None else stack
    b, more = _interior_point(reduced, np.concatenate([y[near], [float(s @ y) for s in sides]]), tau, max_iter)
    used += more
    if np.count_nonzero(side * np.asarray(y - X @ b) < 0) > size // 10:
        b, more = _interior_point(X, y, tau, max_iter)
        used += more
    return b, used


def _sample_size(n: int, d: int) -> int:
    """Rows of the sample: Portnoy & Koenker's balance of the two solves."""
    return int(np.ceil((n * d) ** (2 / 3)))


def _interior_point(X: Any, y: np.ndarray, tau: float, max_iter: int) -> tuple[np.ndarray, int]:
    """Frisch-Newton: coefficients near the optimum and the iterations used (Portnoy & Koenker 1997, section 4).

    Kept exactly feasible throughout: ``X'a = (1 - tau) X'1`` and ``y - X b = w - z`` with ``a, s = 1 - a, z, w > 0``.
    Only the complementarity ``z a = w s = 0`` is approached, so ``z'a + w's`` is the duality gap.
    """
    n = y.size
    a = np.full(n, 1.0 - tau)
    s = 1.0 - a
    b = linalg.cho_solve(_factor(gram(X)), X.T @ y)  # least squares
    r = y - X @ b
    floor = 1e-3 * float(np.abs(r).mean())
    if floor == 0.0:
        return b, 0  # the data lie on a plane
    z = np.maximum(-r, 0) + floor
    w = np.maximum(r, 0) + floor
    stop = 1e-9 * float(check_loss(r, tau).sum())
    for iteration in range(max_iter):
        mu = float(z @ a + w @ s)
        if mu <= stop:
            return b, iteration
        q = 1.0 / (z / a + w / s)
        factor = _factor(gram(X, q))
        # Affine step: aim at zero complementarity.
        t = w - z
        da = q * (t - X @ linalg.cho_solve(factor, X.T @ (q * t)))
        dz = -z - z / a * da
        dw = -w + w / s * da
        step_a = _step(a, da, s, -da)
        step_b = _step(z, dz, w, dw)
        ahead = (z + step_b * dz) @ (a + step_a * da) + (w + step_b * dw) @ (s - step_a * da)
        centre = mu * (ahead / mu) ** 3 / (2 * n)
        # Corrected step: second-order terms of the affine step, and a pull to the centre.
        eta_z = centre - z * a - da * dz
        eta_w = centre - w * s + da * dw
        t = eta_z / a - eta_w / s
        db = linalg.cho_solve(factor, X.T @ (q * t))
        da = q * (t - X @ db)
        dz = (eta_z - z * da) / a
        dw = (eta_w + w * da) / s
        step_a = _step(a, da, s, -da)
        step_b = _step(z, dz, w, dw)
        a += step_a * da
        s -= step_a * da
        b = b + step_b * db
        z += step_b * dz
        w += step_b * dw
    return b, max_iter


def _step(u: np.ndarray, du: np.ndarray, v: np.ndarray, dv: np.ndarray) -> float:
    """The longest step in ``(0, 1]`` that keeps ``u`` and ``v`` positive, a little short of the wall."""
    with np.errstate(divide="ignore", invalid="ignore"):
        worst = max(float((-du / u).max()), float((-dv / v).max()))
    return 1.0 if worst <= 0.9995 else 0.9995 / worst


def _crossover(
    X: Any, y: np.ndarray, start: np.ndarray, tau: float, max_pivots: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int, bool]:
    """From near the optimum to an optimal vertex: coefficients, basis, its duals, all duals, pivots, whether certified.

    Rows far from the fit keep the sign of their residual over the small distance that is left, so they enter as one
    linear term; at the vertex found their signs are checked, and rows that changed sides join the rows near it.
    """
    n, d = X.shape
    r = np.asarray(y - X @ start)
    rows = min(n, max(2_000, 60 * d))
    near = np.sort(np.argpartition(np.abs(r), rows - 1)[:rows]) if rows < n else np.arange(n)
    pivots = 0
    while True:
        outside = np.ones(n, bool)
        outside[near] = False
        pull = _pull(X, r, outside, tau)
        local = X[near].toarray() if sparse.issparse(X) else X[near]
        c, basis, dual, up, used, ok = _simplex(local, y[near], start, pull, tau, max_pivots - pivots)
        pivots += used
        after = np.asarray(y - X @ c)
        crossed = outside & (after * r < 0)
        if not ok or not crossed.any():
            psi = tau - (after < 0)
            psi[near] = np.where(up, tau, tau - 1.0)
            psi[near[basis]] = dual
            return c, near[basis], dual, psi, pivots, ok
        near = np.union1d(near, np.flatnonzero(crossed))
        start, r = c, after


def _pull(X: Any, r: np.ndarray, rows: np.ndarray, tau: float) -> np.ndarray:
    """``sum_i psi(r_i) x_i`` over the rows outside: minus the slope of their loss in ``b``."""
    psi = np.where(rows, tau - (r < 0), 0.0)
    return np.asarray(X.T @ psi)


def _simplex(
    X: np.ndarray, y: np.ndarray, start: np.ndarray, pull: np.ndarray, tau: float, max_pivots: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int, bool]:
    """Barrodale-Roberts pivots for ``sum rho_tau(y - X b) - pull'b`` from the vertex nearest to ``start``.

    ``up`` is the side of each row off the basis. A row with residual zero keeps the side it was given, which is what
    carries the walk through ties; where the walk still circles, a tiny shift of ``y`` breaks the ties, and the basis
    found is optimal for ``y`` itself because its dual vector does not depend on ``y``.
    """
    n, d = X.shape
    rng = np.random.default_rng(0)
    shifted = y
    tolerance = 1e-10
    total = 0
    for attempt in range(4):
        basis = _independent_rows(X, np.abs(shifted - X @ start), d)
        b = np.linalg.solve(X[basis], shifted[basis])
        r = shifted - X @ b
        r[basis] = 0.0
        up = r >= 0
        budget = max_pivots - total if attempt == 3 else min(max_pivots - total, 400 + 20 * d)
        for _ in range(max(budget, 1)):
            inverse = np.linalg.inv(X[basis])
            off = np.ones(n, bool)
            off[basis] = False
            dual = -(inverse.T @ (pull + X[off].T @ np.where(up[off], tau, tau - 1.0)))
            over = np.maximum(dual - tau, tau - 1.0 - dual)
            leaving = int(over.argmax())
            if over[leaving] <= tolerance:
                b = np.linalg.solve(X[basis], y[basis])
                return b, basis, dual, up, total, True
            total += 1
            # Push the leaving row to the side that lowers the loss and walk over the kinks on the way.
            side = 1.0 if dual[leaving] > tau else -1.0
            along = -side * inverse[:, leaving]  # b moves by t * along, the leaving residual becomes side * t
            rate = -(X @ along)  # change of each residual per unit of t
            closing = off & np.where(up, rate < -1e-13, rate > 1e-13)
            kinks = np.flatnonzero(closing)
            if kinks.size == 0:
                break
            at = np.abs(r[kinks] / rate[kinks])
            order = np.argsort(at, kind="stable")
            slope = -over[leaving] + np.cumsum(np.abs(rate[kinks[order]]))
            stop = min(int(np.searchsorted(slope, 0.0)), kinks.size - 1)
            entering = kinks[order[stop]]
            up[kinks[order[:stop]]] ^= True
            up[basis[leaving]] = side > 0
            basis[leaving] = entering
            b = np.linalg.solve(X[basis], shifted[basis])
            fresh = shifted - X @ b
            fresh[basis] = 0.0
            clear = np.abs(fresh) > 1e-12 * (1 + np.abs(shifted))
            up = np.where(clear, fresh > 0, up)
            r = fresh
        start = b
        shifted = y + 1e-11 * (10.0**attempt) * (np.abs(y).max() or 1.0) * rng.uniform(-1, 1, n)
        if total >= max_pivots:
            break
    return np.linalg.solve(X[basis], y[basis]), basis, dual, up, total, False


def _independent_rows(X: np.ndarray, distance: np.ndarray, d: int) -> np.ndarray:
    """``d`` rows, nearest to the fit first, that are linearly independent (Gram-Schmidt with a threshold)."""
    order = np.argsort(distance, kind="stable")
    scale = np.sqrt((X**2).sum(axis=1).mean())
    Q = np.zeros((d, d))
    chosen: list[int] = []
    # Ever smaller thresholds: well-conditioned bases first, any basis at last.
    for threshold in (1e-2, 1e-5, 1e-9, 0.0):
        for i in order:
            if len(chosen) == d:
                return np.array(chosen)
            v = X[i] - Q.T @ (Q @ X[i])
            v -= Q.T @ (Q @ v)
            length = float(np.linalg.norm(v))
            if length > threshold * scale and length > 0 and i not in chosen:
                Q[len(chosen)] = v / length
                chosen.append(int(i))
    return np.array(chosen)
