"""Effects of the claims: pure functions of recorded cells and a level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from neurips26.shared import stats

__all__ = ["held_out_rank_correlation", "size_rank_correlation", "smallest_shift", "worst_violation_rate"]

Interval = tuple[float, float, float]
_DRAWS = 2_000


def worst_violation_rate(cells: list[dict[str, Any]], level: float) -> Interval:
    """Share of repeats with risk above the bound, in the proved protocol that fails most; exact binomial interval."""
    worst: Interval | None = None
    cells = [c for c in cells if c["method"] == "bound - risk"]  # others have no proof, or must fail
    protocols = sorted({c["factors"]["protocol"] for c in cells})
    for protocol in protocols:
        margins = [c["value"] for c in cells if c["factors"]["protocol"] == protocol]
        failed = sum(margin < 0 for margin in margins)
        rate = stats.clopper_pearson(failed, len(margins), 1 - (1 - level) / len(protocols))
        if worst is None or rate[0] > worst[0]:
            worst = rate
    assert worst is not None
    return worst


def _by_seed(cells: Sequence[dict[str, Any]], x: str, y: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each seed the pairs over conditions of two quantities, conditions that did not memorise left out."""
    out = []
    for seed in sorted({c["seed"] for c in cells}):
        mine = [c for c in cells if c["seed"] == seed and c["factors"].get("train_accuracy", 1.0) >= 0.99]
        a = {c["factors"]["condition"]: c["value"] for c in mine if c["method"] == x}
        b = {c["factors"]["condition"]: c["value"] for c in mine if c["method"] == y}
        keys = sorted(a)
        out.append((np.array([a[k] for k in keys]), np.array([b[k] for k in keys])))
    return out


def _pooled_rank(cells: list[dict[str, Any]], x: str, y: str, level: float) -> Interval:
    """Rank correlation over all conditions and seeds; the interval resamples seeds, whose conditions belong together."""
    pairs = [p for p in _by_seed(cells, x, y) if p[0].size]

    def rank(chosen: Sequence[int]) -> float:
        a, b = (np.concatenate([pairs[i][j] for i in chosen]) for j in (0, 1))
        ra, rb = (_midrank(v) for v in (a, b))
        if ra.std() == 0 or rb.std() == 0:
            return 0.0
        return float(np.corrcoef(ra, rb)[0, 1])

    rng = np.random.default_rng(20_260_103)
    draws = [rank(rng.integers(0, len(pairs), len(pairs)).tolist()) for _ in range(_DRAWS)]
    low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2])
    return rank(range(len(pairs))), float(low), float(high)


def _midrank(v: np.ndarray) -> np.ndarray:
    """Ranks, ties at the middle of theirs."""
    _, inverse, counts = np.unique(v, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


def held_out_rank_correlation(cells: list[dict[str, Any]], level: float) -> Interval:
    """Rank correlation of the held-out 1-NN decoder error with the network's test error, memorised runs only."""
    return _pooled_rank(cells, "held-out decoder", "test error", level)


def size_rank_correlation(cells: list[dict[str, Any]], level: float) -> Interval:
    """Rank correlation of the certificate with the number of training points."""
    return _pooled_rank(cells, "n", "certificate", level)


def smallest_shift(cells: list[dict[str, Any]], level: float) -> Interval:
    """Smallest increase, over the interventions, of the term that the intervention is aimed at; Bonferroni over them."""
    kinds = sorted({c["factors"]["intervention"] for c in cells})
    worst: Interval | None = None
    for kind in kinds:
        shifts = [c["value"] for c in cells if c["factors"]["intervention"] == kind and c["method"] == "target shift"]
        got = stats.mean_interval(shifts, 1 - (1 - level) / len(kinds))
        if worst is None or got[0] < worst[0]:
            worst = got
    assert worst is not None
    return worst
