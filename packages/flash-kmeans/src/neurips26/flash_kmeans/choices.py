"""Every choice that the paper's text does not settle, in one place, with its alternatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["DEFAULTS", "Choices"]


@dataclass(frozen=True)
class Choices:
    """Choices of ours; the defaults are what every figure in `results/` was measured with.

    The two most consequential ones, `local_trials` and `stop`, are varied in the record: cells of the claim `same-quality`.

    Attributes:
        slab_rows: largest unit of work of a thread. It depends on the shape alone, never on the number of threads, so
            that results do not either. Alternative: one share a thread (results would depend on the machine).
        check_every: on a GPU, iterations between two looks at the convergence flag (each look waits for the device). On
            a CPU it is 1.
        oversampling: `k-means||` draws about this many times K candidates a round (Bahmani et al. 2012 use 0.5 to 2).
        rounds: rounds of `k-means||` (5 in Bahmani et al. 2012).
        local_trials: candidates a step of greedy k-means++; `None` is `2 + floor(ln K)` (Arthur and Vassilvitskii 2007;
            scikit-learn).
        init_rows: with a memory limit, k-means++ and k-means|| look at a uniform sample of at most this many rows.
        stop: which squared centroid shift is compared with `tol * mean(var(x))`: the sum over clusters (as scikit-learn does)
            or the largest one (stops earlier).
        chunk_rows: rows of one host-to-device copy (2^20 in the authors' code).
        rounding: safety factor on the proven rounding bound of `precision="certified"`.
    """

    slab_rows: int = 16_384
    check_every: int = 5
    oversampling: float = 2.0
    rounds: int = 5
    local_trials: int | None = None
    init_rows: int = 1 << 18
    stop: Literal["sum", "max"] = "sum"
    chunk_rows: int = 1 << 20
    rounding: float = 1.0


DEFAULTS = Choices()
