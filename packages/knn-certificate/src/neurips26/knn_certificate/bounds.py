"""Upper confidence limits of an error rate: exact binomial, its two classical relaxations, and the leave-one-out bounds.

All are one-sided: with probability at least ``1 - delta`` the true rate does not exceed the value returned.
"""

from __future__ import annotations

import math

from scipy import optimize, stats

from neurips26.shared.arrays import check_choice, check_int, check_real

__all__ = ["SLACKS", "clopper_pearson", "devroye_wagner", "hoeffding", "kl_inverse", "rogers_wagner", "upper"]

#: Limits of a binomial rate, tightest first.
SLACKS = ("clopper-pearson", "kl", "hoeffding")


def _check(count: int, n: int, delta: float) -> None:
    check_int(n, "n", minimum=1)
    check_int(count, "count", minimum=0, maximum=n)
    check_real(delta, "delta", minimum=0.0, maximum=1.0, inclusive=False)


def clopper_pearson(count: int, n: int, delta: float = 0.05) -> float:
    """The exact limit: the largest rate at which ``count`` or fewer of ``n`` still have probability ``delta``."""
    _check(count, n, delta)
    return 1.0 if count == n else float(stats.beta.ppf(1 - delta, count + 1, n - count))


def kl_inverse(count: int, n: int, delta: float = 0.05) -> float:
    """Chernoff's limit: the largest ``q >= count/n`` with ``n kl(count/n, q) <= log(1/delta)``."""
    _check(count, n, delta)
    p = count / n
    if p == 1.0:
        return 1.0
    budget = math.log(1 / delta) / n

    def excess(q: float) -> float:
        value = (p * math.log(p / q) if p > 0 else 0.0) + (1 - p) * math.log((1 - p) / (1 - q))
        return value - budget

    return float(optimize.brentq(excess, p, 1 - 1e-15)) if excess(1 - 1e-15) > 0 else 1.0


def hoeffding(count: int, n: int, delta: float = 0.05) -> float:
    """``count/n + sqrt(log(1/delta) / (2 n))``, at most 1."""
    _check(count, n, delta)
    return min(1.0, count / n + hoeffding_slack(n, delta))


def hoeffding_slack(n: int, delta: float = 0.05) -> float:
    """``sqrt(log(1/delta) / (2 n))``."""
    return math.sqrt(math.log(1 / delta) / (2 * n))


def upper(count: int, n: int, delta: float = 0.05, slack: str = "clopper-pearson") -> float:
    """The limit named ``slack``."""
    check_choice(slack, "slack", SLACKS)
    return {"clopper-pearson": clopper_pearson, "kl": kl_inverse, "hoeffding": hoeffding}[slack](count, n, delta)


def rogers_wagner(n: int, k: int, delta: float = 0.05) -> float:
    """Slack of the leave-one-out error of k-NN: ``sqrt((6 k + 1) / (n delta))``.

    From ``E (R - R_loo)^2 <= (6 k + 1) / n`` (Rogers & Wagner 1978; Devroye, Gyorfi & Lugosi 1996, theorem 24.2) and
    Chebyshev: true for every distribution and dimension, and loose.
    """
    check_int(n, "n", minimum=1)
    check_int(k, "k", minimum=1)
    check_real(delta, "delta", minimum=0.0, maximum=1.0, inclusive=False)
    return math.sqrt((6 * k + 1) / (n * delta))


def devroye_wagner(n: int, k: int, delta: float = 0.05) -> float:
    """Slack by the smaller second moment ``1/n + 24 sqrt(k) / (n sqrt(2 pi))`` (Devroye & Wagner 1979) and Chebyshev."""
    check_int(n, "n", minimum=1)
    check_int(k, "k", minimum=1)
    check_real(delta, "delta", minimum=0.0, maximum=1.0, inclusive=False)
    return math.sqrt((1 / n + 24 * math.sqrt(k) / (n * math.sqrt(2 * math.pi))) / delta)
