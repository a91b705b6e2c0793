"""The scale of the signals, read off residuals where nobody gives it.

Residuals of a fit that bad sources do not spoil (least absolute deviations) are draws of the mixture of noise scales. Its
lower edge is the smallest scale that the data *need*: the largest ``s`` such that no law with all its scales at ``s`` and
above is rejected against the best law by a likelihood ratio. (The estimated mixing law itself often has a small part
far below the edge, a chance crowd of small residuals.)
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from scipy import stats

from neurips26.subset_of_signals.npmle import best_law

__all__ = ["estimate_scale"]

#: A scale fewer sources have than this many is not looked for, nor one below this part of their largest residual.
_FEWEST, _LOWEST = 5.0, 0.3
#: Scales of the law, and the relative width of a bin of residuals: a law is fitted to a histogram, whatever ``n`` is.
_SCALES, _BIN = 60, 0.02
#: What a scale more may gain by chance: a weight and a scale, 1% point of chi-square with two degrees of freedom.
_CHANCE = float(stats.chi2.ppf(0.99, 2))


def estimate_scale(residuals: Float[np.ndarray, " n"], p: int, weight: Float[np.ndarray, " n"] | None = None) -> float:
    """The smallest noise scale that the residuals need, a little above that of the best sources.

    Args:
        residuals: of a robust fit with ``p`` coefficients, which may pass through ``p`` of the sources.
        p: number of coefficients.
        weight: how many times a residual is taken.

    Returns:
        A standard deviation in the units of the residuals; 1 where all are zero.
    """
    size = np.abs(residuals)
    order = np.argsort(size)
    size, copies = size[order], np.ones(size.size) if weight is None else weight[order]
    if size[-1] == 0.0:
        return 1.0
    positive = size > 1e-12 * size[-1]
    total = float(copies.sum())
    fewest = max(p * math.log(max(total, 2.0)), _FEWEST)
    if (
        copies[~positive].sum() >= p + fewest
    ):  # many sources without any noise: what is better than the best of the others
        return float(size[positive][0])
    size, copies = size[positive], copies[positive]
    reach = float(size[min(int(np.searchsorted(np.cumsum(copies), fewest)), size.size - 1)])
    scales = np.geomspace(_LOWEST * reach, size[-1], _SCALES)
    # Far below the smallest scale all residuals are as likely.
    code = np.floor(np.log(np.maximum(size / scales[0], 0.01)) / _BIN).astype(np.int64)
    _, code = np.unique(code, return_inverse=True)
    number = np.bincount(code, copies)
    squares = np.bincount(code, copies * size**2) / number
    best = best_law(squares, number, scales)

    def enough(s: float) -> bool:
        return bool(2 * (best - best_law(squares, number, np.append(s, scales[scales > s]))) <= _CHANCE)

    low, high = 0, scales.size - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if enough(scales[middle]) else (low, middle)
    left, right = scales[low], scales[high]
    while right > 1.03 * left:
        middle = math.sqrt(left * right)
        left, right = (middle, right) if enough(middle) else (left, middle)
    return float(left)
