"""Effects of the claims: pure functions of recorded cells and a level."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neurips26.shared import stats

__all__ = [
    "asymptotic_ratio",
    "rank_correlation",
    "slope_in_d",
    "slope_in_m",
    "slope_in_n",
    "threshold_slope",
    "worst_coverage",
    "worst_ratio",
]

_DRAWS = 2_000
_SEED = 20_260_102

Interval = tuple[float, float, float]


def _bootstrap(table: np.ndarray, level: float, statistic: Callable[[np.ndarray], np.ndarray]) -> Interval:
    """Percentile interval of a statistic of a table ``(conditions, seeds)``, seeds drawn anew within each condition.

    ``statistic`` maps ``(..., conditions, seeds)`` to ``(...)``.
    """
    rng = np.random.default_rng(_SEED)
    rows, seeds = table.shape
    draws = rng.integers(0, seeds, (_DRAWS, rows, seeds))
    values = statistic(np.take_along_axis(np.broadcast_to(table, draws.shape), draws, axis=2))
    low, high = np.quantile(values, [0.5 - level / 2, 0.5 + level / 2])
    return float(statistic(table[None])[0]), float(low), float(high)


def _table(cells: Sequence[dict[str, Any]], key: Callable[[dict[str, Any]], Any]) -> tuple[list[Any], np.ndarray]:
    groups: dict[Any, list[float]] = defaultdict(list)
    for c in cells:
        groups[key(c)].append(c["value"])
    names = sorted(groups)
    return names, np.array([groups[k] for k in names])


def _slope(cells: Sequence[dict[str, Any]], factor: str, level: float) -> Interval:
    """Slope of log RMS error on the log of a factor; the interval resamples the draws of each size."""
    sizes, table = _table([c for c in cells if c["method"] == "lad"], lambda c: c["factors"][factor])
    x = np.log(np.array(sizes, dtype=float))
    x -= x.mean()

    def fit(t: np.ndarray) -> np.ndarray:
        return 0.5 * np.log((t**2).mean(axis=-1)) @ x / (x @ x)

    return _bootstrap(table, level, fit)


def slope_in_m(cells: list[dict[str, Any]], level: float) -> Interval:
    """Exponent of LAD's RMS error in the number of signals."""
    return _slope(cells, "m", level)


def slope_in_n(cells: list[dict[str, Any]], level: float) -> Interval:
    """Exponent of LAD's RMS error in the number of sources."""
    return _slope(cells, "n", level)


def slope_in_d(cells: list[dict[str, Any]], level: float) -> Interval:
    """Exponent of LAD's RMS error in the dimension."""
    return _slope(cells, "d", level)


def asymptotic_ratio(cells: list[dict[str, Any]], level: float) -> Interval:
    """RMS error in units of ``sqrt(pi/2) sqrt(n d) / m``, geometric mean over the conditions."""
    chosen = [
        {**c, "value": c["value"] * c["factors"]["m"] / np.sqrt(np.pi / 2 * c["factors"]["n"] * c["factors"]["d"])}
        for c in cells
        if c["method"] == "lad"
    ]
    _, table = _table(chosen, lambda c: (c["factors"]["n"], c["factors"]["d"], c["factors"]["m"]))
    return _bootstrap(table, level, lambda t: np.exp(0.5 * np.log((t**2).mean(axis=-1)).mean(axis=-1)))


def threshold_slope(cells: list[dict[str, Any]], level: float) -> Interval:
    """Exponent in ``n d`` of the number of signals at which the median error falls through 1."""
    sizes, table = _table(
        [c for c in cells if c["method"] == "crossing"], lambda c: (c["factors"]["n"], c["factors"]["d"])
    )
    x = np.log([n * d for n, d in sizes])
    x = x - x.mean()
    return _bootstrap(np.log(table), level, lambda t: np.median(t, axis=-1) @ x / (x @ x))


def worst_ratio(cells: list[dict[str, Any]], level: float) -> Interval:
    """Largest ratio over the conditions of the mixture's error to the best rival's, geometric means over seeds.

    The rival is the method with the smallest geometric mean in that condition: it is chosen after the fact, against us.
    """
    conditions = sorted({c["factors"]["condition"] for c in cells})
    rivals = sorted({c["method"] for c in cells} - {"npmle"})
    worst: Interval | None = None
    for condition in conditions:
        mine = [c for c in cells if c["factors"]["condition"] == condition]
        logs = {
            m: np.log([c["value"] for c in sorted(mine, key=lambda c: c["seed"]) if c["method"] == m])
            for m in ["npmle", *rivals]
        }
        best = min(rivals, key=lambda m: logs[m].mean())
        # Bonferroni over the conditions: the worst of several is looked at.
        effect = stats.mean_interval(list(logs["npmle"] - logs[best]), 1 - (1 - level) / len(conditions))
        if worst is None or effect[0] > worst[0]:
            worst = effect
    assert worst is not None
    e, low, high = np.exp(worst)
    return float(e), float(low), float(high)


def worst_coverage(cells: list[dict[str, Any]], level: float) -> Interval:
    """Coverage in the noise law where it is farthest from 95%; each draw's share of covered coefficients is one value."""
    ours = [c for c in cells if c["method"] == "npmle"]
    laws = sorted({c["factors"]["law"] for c in ours})
    shares = {law: [c["value"] for c in ours if c["factors"]["law"] == law] for law in laws}
    law = max(laws, key=lambda k: abs(float(np.mean(shares[k])) - 0.95))
    return stats.bootstrap(shares[law], 1 - (1 - level) / len(laws))


def rank_correlation(cells: list[dict[str, Any]], level: float) -> Interval:
    """Spearman correlation of our source weights with the published precisions, one cell a supernova and quantity."""
    by = {
        name: {c["factors"]["item"]: c["value"] for c in cells if c["method"] == name}
        for name in ("source weight", "published precision")
    }
    items = sorted(by["source weight"])
    return stats.spearman([by["source weight"][i] for i in items], [by["published precision"][i] for i in items], level)
