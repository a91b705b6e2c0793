"""Standard errors of least absolute deviations under unequal noise, by kernel and by bootstrap.

The mixture estimator brings its own sandwich (:func:`neurips26.subset_of_signals.npmle.npmle`).
"""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from scipy import stats
from sklearn.exceptions import ConvergenceWarning

from neurips26.shared import seeding
from neurips26.shared.arrays import check_array, check_choice, check_int, check_real
from neurips26.subset_of_signals.bounds import effective_signals
from neurips26.subset_of_signals.lad import as_design, gram, lad, sandwich

__all__ = ["bootstrap_covariance", "lad_covariance"]


def lad_covariance(
    X: Any,
    residuals: Any,
    *,
    signal_scale: float = 1.0,
    tau: float = 0.5,
    method: Literal["powell", "iid"] = "powell",
    sample_weight: Any = None,
) -> Float[np.ndarray, "d d"]:
    """Covariance of a quantile fit, ``tau (1 - tau) H^-1 X'X H^-1`` with ``H = sum_i f_i(0) x_i x_i'``.

    Args:
        X: design of the fit.
        residuals: its residuals.
        signal_scale: standard deviation of the signals; the bandwidth of the kernel is tied to it, not to the spread of
            all residuals, which is that of the bad sources.
        tau: quantile.
        method: ``"powell"`` estimates ``H`` with a Gaussian kernel and allows unequal noise; ``"iid"`` is the textbook's
            one density for all, with Hall & Sheather's bandwidth from the whole spread, kept to show what it misses.
        sample_weight: how many times a row was taken (``"powell"`` alone).

    Returns:
        shape ``(d, d)``; zeros where the fit passes through every source, NaN for coefficients that the sources near the fit
        say nothing about.
    """
    check_choice(method, "method", ("powell", "iid"))
    check_real(signal_scale, "signal_scale", minimum=0.0, inclusive=False)
    r = check_array(residuals, "residuals", shape=("n",), dtype=float)
    X = as_design(X, r.size)
    n, d = X.shape
    if method == "iid":
        if sample_weight is not None:
            raise ValueError("sample_weight: expected None for method 'iid', got weights")
        z = stats.norm.ppf(tau)
        width = n ** (-1 / 3) * stats.norm.ppf(0.975) ** (2 / 3)
        width *= (1.5 * stats.norm.pdf(z) ** 2 / (2 * z**2 + 1)) ** (1 / 3)
        high, low = np.quantile(r, [min(tau + width, 0.999), max(tau - width, 0.001)])
        sparsity = max(high - low, np.finfo(float).tiny) / (min(tau + width, 0.999) - max(tau - width, 0.001))
        second = gram(X)
        return tau * (1 - tau) * sparsity**2 * sandwich(second, second)
    w = np.ones(n) if sample_weight is None else check_array(sample_weight, "sample_weight", shape=(n,), dtype=float)
    if not r.any():
        return np.zeros((d, d))
    # Silverman's rule for the number of sources that matter; the fit passes through d points, which say nothing.
    signals, _ = effective_signals(r, d, signal_scale, w)
    h = 1.06 * signal_scale * max(signals, 2) ** -0.2
    free = np.abs(r) > 1e-12 * float(np.abs(r).max())
    density = np.where(free, w * stats.norm.pdf(r / h), 0.0) * (w.sum() / max(w[free].sum(), 1.0))
    return tau * (1 - tau) * h**2 * sandwich(gram(X, density), gram(X, w))


def bootstrap_covariance(
    X: Any,
    y: Any,
    *,
    tau: float = 0.5,
    kind: Literal["pairs", "wild"] = "wild",
    repeats: int = 200,
    seed: int = 0,
) -> Float[np.ndarray, "d d"]:
    """Covariance of a quantile fit over bootstrap refits.

    ``"wild"`` keeps the design and gives each ``|r_i|`` a random side (Feng, He & Hu 2011), which keeps every source's own
    noise; ``"pairs"`` draws sources with replacement.
    """
    check_choice(kind, "kind", ("pairs", "wild"))
    check_int(repeats, "repeats", minimum=2)
    y = check_array(y, "y", shape=("n",), dtype=float)
    X = as_design(X, y.size)
    rng = seeding.rng(seed, "bootstrap", kind)
    fits = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        first = lad(X, y, tau)
        fitted, size = y - first.residuals, np.abs(first.residuals)
        for _ in range(repeats):
            if kind == "wild":
                side = np.where(rng.random(y.size) < 1 - tau, 2 * (1 - tau), -2 * tau)
                fits.append(lad(X, fitted + side * size, tau).coef)
            else:
                rows = rng.integers(0, y.size, y.size)
                fits.append(lad(X[rows], y[rows], tau).coef)
    return np.atleast_2d(np.cov(np.array(fits), rowvar=False))
