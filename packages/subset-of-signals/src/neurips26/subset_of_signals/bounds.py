"""What theory says about the error: a certified bound with its constants, its asymptotic value, and lower bounds.

**Theorem (recovery by least absolute deviations).** Let ``x_i ~ N(0, I_d)`` and ``eps_i ~ N(0, sigma_i^2)`` be
independent, with at least ``m`` of the ``sigma_i`` at most 1. With probability at least ``1 - delta``,
``||b - beta*|| <= r*`` for every minimiser ``b`` of ``sum_i |y_i - x_i'b|``, where

    r* = (2 sqrt(n d) + sqrt(2 n log(2/delta)) + sqrt(m log(2/delta) / pi)) / (c m),   c = sqrt(2/pi) (sqrt 2 - 1),

provided ``r* <= 1``.

*Proof.* Put ``phi(u) = sum_i (|eps_i - x_i'u| - |eps_i|)``, which is convex with ``phi(0) = 0``; the minimiser sits
at ``u = b - beta*``. Fix ``r <= 1`` and look at the sphere ``||u|| = r``, where ``x_i'u ~ N(0, r^2)``.

1. *Every source helps on average, a signal visibly so.* ``h_i = E[|eps_i - x_i'u| - |eps_i| | eps_i]`` is at least 0 by
   Jensen, whatever ``sigma_i``. For a signal ``E h_i = sqrt(2/pi) (sqrt(sigma_i^2 + r^2) - sigma_i)``, which falls in
   ``sigma_i`` and is concave in ``r^2``, so it is at least ``sqrt(2/pi) (sqrt 2 - 1) r^2 = c r^2``.
2. *The m signals concentrate.* ``0 <= h_i <= r sqrt(2/pi)``, so Hoeffding gives, with probability ``1 - delta/2``,
   ``sum_signals h_i >= c m r^2 - r sqrt(2/pi) sqrt(m log(2/delta) / 2)``. ``h_i`` is the same for all ``u`` of the sphere.
3. *The sphere concentrates, given the noise.* By symmetrisation and the contraction principle (each summand is
   1-Lipschitz in ``x_i'u`` and vanishes at 0), ``E sup_u (E phi - phi) <= 2 E sup_u sum_i s_i x_i'u <= 2 r sqrt(n d)``.
   As a function of the Gaussian design the supremum is ``r sqrt n``-Lipschitz, so it exceeds its mean by
   ``r sqrt(2 n log(2/delta))`` with probability at most ``delta/2``.
4. Together ``phi(u) >= r (c m r - 2 sqrt(n d) - sqrt(2 n log(2/delta)) - sqrt(m log(2/delta)/pi)) > 0`` on the sphere
   of any radius ``r`` in ``(r*, 1]``, and by convexity the minimiser lies inside. ∎

The rate ``sqrt(n d) / m`` is the one the paper's abstract states, up to logarithms. Whether its estimator is this one
is not known.
"""

from __future__ import annotations

import math

import numpy as np

from neurips26.shared.arrays import check_int, check_real

__all__ = ["ASYMPTOTIC_CONSTANT", "asymptotic_error", "effective_signals", "lower_bound", "recovery_error", "threshold"]

#: ``sqrt(pi / 2)``: the RMS error of LAD is this times ``sqrt(n d) / m`` when the other sources are very noisy.
ASYMPTOTIC_CONSTANT = math.sqrt(math.pi / 2)

#: Curvature of a signal's expected loss, step 1 of the proof.
_CURVATURE = math.sqrt(2 / math.pi) * (math.sqrt(2) - 1)


def _check(n: int, d: int, m: int) -> None:
    check_int(n, "n", minimum=1)
    check_int(d, "d", minimum=1)
    check_int(m, "m", minimum=1)
    if m > n:
        raise ValueError(f"m: expected at most n = {n} signals, got {m}")
    if m < d:
        raise ValueError(f"m: expected at least d = {d} signals, got {m}")


def recovery_error(n: int, d: int, m: int, delta: float = 0.05) -> float:
    """The theorem's ``r*``; infinite where it exceeds 1 (the theorem is then silent).

    Args:
        n: sources.
        d: dimensions.
        m: sources with standard deviation at most 1.
        delta: probability with which the bound may fail.
    """
    _check(n, d, m)
    check_real(delta, "delta", minimum=0.0, maximum=1.0, inclusive=False)
    log = math.log(2 / delta)
    radius = (2 * math.sqrt(n * d) + math.sqrt(2 * n * log) + math.sqrt(m * log / math.pi)) / (_CURVATURE * m)
    return radius if radius <= 1 else math.inf


def asymptotic_error(n: int, d: int, m: int) -> float:
    """RMS error of LAD when the signals have unit variance and the rest are very noisy: ``sqrt(pi/2) sqrt(n d) / m``.

    The covariance of the sample median's generalisation is ``(pi/2) (n/m^2) I``: density ``m / (n sqrt(2 pi))`` at zero.
    """
    _check(n, d, m)
    return ASYMPTOTIC_CONSTANT * math.sqrt(n * d) / m


def threshold(n: int, d: int) -> float:
    """The number of signals ``sqrt(n d)`` at which recovery by LAD sets in."""
    _check(n, d, n)
    return math.sqrt(n * d)


def lower_bound(n: int, m: int) -> float:
    """Minimax order of the one-dimensional problem, without its constant (Liang & Yuan 2020).

    ``(n/m^4)^(1/2)`` for ``log n <= m <= n^(1/4)`` and ``(n/m^4)^(1/6)`` above. No estimator, of any running time, does
    better in the worst case over the unknown variances.
    """
    _check(n, 1, m)
    if m < math.log(n):
        return math.inf
    return (n / m**4) ** (1 / 2 if m <= n**0.25 else 1 / 6)


#: Share of a normal law within one standard deviation.
_WITHIN_ONE = math.erf(math.sqrt(0.5))


def effective_signals(
    residuals: np.ndarray, d: int, signal_scale: float = 1.0, sample_weight: np.ndarray | None = None
) -> tuple[int, float]:
    """The ``m`` that makes the rate ``sqrt(n d) s / m`` smallest where ``m`` is not known, and that value.

    If the ``k`` nearest sources are those within one standard deviation ``s = |r|_(k)``, they stand for ``m = k / 0.683``
    signals of scale ``s``. A scale below ``signal_scale`` earns nothing: near zero ``|r|_(k)`` is proportional to ``k``
    whatever ``m`` is, and the smallest ratio there is chance. ``k`` starts at ``4 d`` because a fit passes through ``d`` of
    the sources. ``sample_weight`` says how many times each source is there.
    """
    order = np.argsort(np.abs(residuals), kind="stable")
    size = np.maximum(np.abs(residuals)[order], signal_scale)
    count = np.arange(1.0, size.size + 1) if sample_weight is None else np.cumsum(sample_weight[order])
    first = min(int(np.searchsorted(count, 4 * d)), size.size - 1)
    m = np.minimum(count[first:] / _WITHIN_ONE, count[-1])
    promised = math.sqrt(count[-1] * d) * size[first:] / m
    best = int(promised.argmin())
    return round(float(m[best])), float(promised[best])
