"""The estimators the two of ours are compared with: truncation, trimming and M-estimation, and the oracle.

All but the oracle see ``X`` and ``y`` alone; where one needs the signal scale or the fraction of signals it is an argument.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import linalg
from sklearn.exceptions import ConvergenceWarning

from neurips26.shared import seeding
from neurips26.shared.arrays import check_array, check_int, check_real
from neurips26.subset_of_signals.choices import CHOICES
from neurips26.subset_of_signals.lad import _factor, _reduce, as_design, gram, lad

__all__ = [
    "RobustResult",
    "feasible_gls",
    "huber",
    "iterative_trimming",
    "iterative_truncation",
    "oracle_wls",
    "tukey",
    "wls",
]


@dataclass(frozen=True)
class RobustResult:
    """Coefficients, the weights of the last fit, steps taken and whether they settled."""

    coef: Float[np.ndarray, " d"]
    weights: Float[np.ndarray, " n"]
    n_iter: int
    converged: bool


def wls(X: Any, y: Float[np.ndarray, " n"], weight: np.ndarray | None = None) -> Float[np.ndarray, " d"]:
    """Weighted least squares; minimum norm where the weighted design is short of rank."""
    M, _ = _reduce(X)
    Z = X @ M
    w = np.ones(y.size) if weight is None else weight
    G = gram(Z, w)
    diagonal = np.diag(G)
    if (diagonal > 0).all() and linalg.eigvalsh(G / np.sqrt(np.outer(diagonal, diagonal)))[0] > 1e-11:
        return M @ linalg.cho_solve(_factor(G), Z.T @ (w * y))
    return M @ (linalg.pinvh(G) @ (Z.T @ (w * y)))


def oracle_wls(X: Any, y: Any, sigma: Any) -> Float[np.ndarray, " d"]:
    """Weighted least squares with the true standard deviations: what nobody can beat, and nobody can run."""
    y = check_array(y, "y", shape=("n",), dtype=float)
    sigma = check_array(sigma, "sigma", shape=(y.size,), dtype=float)
    if (sigma <= 0).any():
        raise ValueError(f"sigma: expected numbers > 0, got {sigma.min()}")
    return wls(as_design(X, y.size), y, 1 / sigma**2)


def _prepare(X: Any, y: Any, sample_weight: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    y = check_array(y, "y", shape=("n",), dtype=float)
    X = as_design(X, y.size)
    w = (
        np.ones(y.size)
        if sample_weight is None
        else check_array(sample_weight, "sample_weight", shape=(y.size,), dtype=float)
    )
    if (w < 0).any() or not (w > 0).any():
        raise ValueError(f"sample_weight: expected numbers >= 0, not all zero, got a minimum of {w.min()}")
    return X, y, w


def _reweighted(
    X: Any,
    y: np.ndarray,
    w: np.ndarray,
    start: np.ndarray,
    weight_of: Callable[[np.ndarray], np.ndarray],
    max_iter: int,
    tol: float,
) -> RobustResult:
    """Iteratively reweighted least squares until no fitted value moves by more than ``tol`` of the step before last."""
    coef = start
    weights = w
    for iteration in range(1, max_iter + 1):
        weights = w * weight_of(np.asarray(y - X @ coef))
        new = wls(X, y, weights)
        moved = float(np.abs(X @ (new - coef)).max())
        size = float(np.abs(X @ new).max())
        coef = new
        if moved <= tol * max(size, np.finfo(float).tiny) or moved == 0.0:
            return RobustResult(coef, weights, iteration, True)
    return RobustResult(coef, weights, max_iter, False)


def _lad_start(X: Any, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return lad(X, y, sample_weight=w).coef


def huber(
    X: Any,
    y: Any,
    signal_scale: float = 1.0,
    *,
    constant: float = CHOICES.huber_constant,
    sample_weight: Any = None,
    max_iter: int = 500,
    tol: float = 1e-8,
) -> RobustResult:
    """Huber's estimator with its scale fixed to ``signal_scale`` (not to a spread of all residuals)."""
    X, y, w = _prepare(X, y, sample_weight)
    check_real(constant, "constant", minimum=0.0, inclusive=False)
    check_int(max_iter, "max_iter", minimum=1)
    bend = constant * check_real(signal_scale, "signal_scale", minimum=0.0, inclusive=False)
    return _reweighted(X, y, w, _lad_start(X, y, w), lambda r: bend / np.maximum(np.abs(r), bend), max_iter, tol)


def tukey(
    X: Any,
    y: Any,
    signal_scale: float = 1.0,
    *,
    constant: float = CHOICES.tukey_constant,
    sample_weight: Any = None,
    max_iter: int = 500,
    tol: float = 1e-8,
) -> RobustResult:
    """Tukey's bisquare with its scale fixed to ``signal_scale``, from the least absolute deviations fit."""
    X, y, w = _prepare(X, y, sample_weight)
    check_real(constant, "constant", minimum=0.0, inclusive=False)
    check_int(max_iter, "max_iter", minimum=1)
    reach = constant * check_real(signal_scale, "signal_scale", minimum=0.0, inclusive=False)
    return _reweighted(X, y, w, _lad_start(X, y, w), lambda r: np.maximum(1 - (r / reach) ** 2, 0) ** 2, max_iter, tol)


def iterative_truncation(
    X: Any,
    y: Any,
    signal_scale: float = 1.0,
    *,
    start: Any = "lad",
    window: float = CHOICES.truncation_window,
    shrink: float = CHOICES.truncation_shrink,
    sample_weight: Any = None,
    max_iter: int = 50,
) -> RobustResult:
    """Least squares on the sources inside a window around the fit, the window shrinking to ``window * signal_scale``.

    The regression form of Liang & Yuan's iterated truncated average. Good when the bad sources are far away; sources of
    moderate noise stay inside the window at full weight.

    Args:
        X: design.
        y: responses.
        signal_scale: standard deviation of the signals.
        start: ``"lad"``, ``"ols"`` or coefficients.
        window: last window in signal scales.
        shrink: factor between windows.
        sample_weight: weights of rows.
        max_iter: steps within one window.
    """
    X, y, w = _prepare(X, y, sample_weight)
    check_real(signal_scale, "signal_scale", minimum=0.0, inclusive=False)
    check_real(window, "window", minimum=0.0, inclusive=False)
    check_real(shrink, "shrink", minimum=0.0, maximum=1.0, inclusive=False)
    if isinstance(start, str):
        if start not in ("lad", "ols"):
            raise ValueError(f"start: expected 'lad', 'ols' or coefficients, got {start!r}")
        coef = _lad_start(X, y, w) if start == "lad" else wls(X, y, w)
    else:
        coef = check_array(start, "start", shape=(X.shape[1],), dtype=float)
    last = window * signal_scale
    r = np.abs(np.asarray(y - X @ coef))
    tau = max(float(np.quantile(r, CHOICES.truncation_start)), last)
    steps, inside = 0, np.ones(y.size, bool)
    while True:
        for _ in range(max_iter):
            now = np.abs(np.asarray(y - X @ coef)) <= tau
            if now.sum() < X.shape[1]:
                return RobustResult(coef, w * inside, steps, False)
            if steps and (now == inside).all():
                break
            inside = now
            coef = wls(X, y, w * inside)
            steps += 1
        if tau <= last:
            return RobustResult(coef, w * inside, steps, True)
        tau = max(last, shrink * tau)


def iterative_trimming(
    X: Any,
    y: Any,
    fraction: float,
    *,
    n_starts: int = 1,
    sample_weight: Any = None,
    max_iter: int = 200,
    seed: int = 0,
) -> RobustResult:
    """Least trimmed squares by concentration steps (Yuan & Liang's iterative trimming): keep the best ``fraction``.

    Args:
        X: design.
        y: responses.
        fraction: part of the sources to keep, in ``(0, 1]``.
        n_starts: 1 starts from least squares alone; more add starts from random sets of ``d + 1`` rows, and the
            smallest trimmed sum of squares wins.
        sample_weight: weights of rows.
        max_iter: steps of one start.
        seed: of the random starts.
    """
    X, y, w = _prepare(X, y, sample_weight)
    check_real(fraction, "fraction", minimum=0.0, maximum=1.0)
    check_int(n_starts, "n_starts", minimum=1)
    n, d = X.shape
    alike = bool((w == w[0]).all())
    keep = max(int(np.ceil(fraction * n)), min(d + 1, n))
    rng = seeding.rng(seed, "trimming")
    nothing = 1e-24 * float(y @ y)
    best: tuple[float, RobustResult] | None = None
    for attempt in range(n_starts):
        if attempt == 0:
            coef = wls(X, y, w)
        else:
            rows = rng.choice(n, min(d + 1, n), replace=False)
            coef = wls(X[rows], y[rows])
        kept = np.empty(0, int)
        settled = False
        steps = 0
        before = np.inf
        while steps < max_iter:
            steps += 1
            r2 = np.asarray(y - X @ coef) ** 2
            if alike:
                now = np.sort(np.argpartition(r2, keep - 1)[:keep])
            else:  # rows count as often as they are taken
                order = np.argsort(r2, kind="stable")
                enough = int(np.searchsorted(np.cumsum(w[order]), fraction * w.sum()))
                now = np.sort(order[: max(enough + 1, min(d + 1, n))])
            # Among ties (an exact fit leaves nothing but rounding) the set may change for ever, its sum does not.
            total = float(r2[now].sum())
            settled = (kept.size == now.size and bool((kept == now).all())) or abs(before - total) <= nothing
            if settled:
                break
            kept, before = now, total
            coef = wls(X[kept], y[kept], w[kept])
        weights = np.zeros(n)
        weights[kept] = w[kept]
        value = float(weights @ np.asarray(y - X @ coef) ** 2)
        if best is None or value < best[0]:
            best = value, RobustResult(coef, weights, steps, settled)
    assert best is not None
    return best[1]


def feasible_gls(X: Any, y: Any) -> Float[np.ndarray, " d"]:
    """Two-step least squares with variances fitted as ``exp(x' g)`` to the log of squared residuals (the textbook's)."""
    X, y, _ = _prepare(X, y, None)
    r = np.asarray(y - X @ wls(X, y))
    log_variance = np.log(np.maximum(r**2, 1e-300))
    ones = np.ones((y.size, 1))
    features = np.hstack([ones, X.toarray() if hasattr(X, "toarray") else X])
    fitted = features @ wls(features, log_variance)
    return wls(X, y, np.exp(-(fitted - fitted.mean())))
