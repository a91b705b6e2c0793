"""Effects of claims that compare whole sweeps: pure functions of a record's cells."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from neurips26.shared.stats import paired_t, spearman

Cells = list[dict[str, Any]]


def _by_setting(cells: Cells) -> dict[tuple[str, str], dict[str, dict[int, float]]]:
    """(trace, setting) -> metric -> seed -> value."""
    table: dict[tuple[str, str], dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for cell in cells:
        factors = cell["factors"]
        table[factors["trace"], factors["setting"]][factors["metric"]][cell["seed"]] = cell["value"]
    return table


def dominating_points(cells: Cells, level: float) -> tuple[float, float, float]:
    """How many pairs (rival's point, FELPS point with weight at most 0.5) show dominance beyond noise, over all traces.

    A rival dominates beyond noise when the paired interval of its advantage lies above zero in both figures. The upper end
    counts the pairs in which it dominates in the mean of both figures, noise or not.
    """
    table = _by_setting(cells)
    sure = possible = 0
    for (trace, mine), ours in table.items():
        if not mine.startswith("felps ") or float(mine.rsplit("weight=", 1)[1].split()[0]) > 0.5:
            continue
        for (other_trace, rival), theirs in table.items():
            if other_trace != trace or rival.startswith("felps "):
                continue
            advantages = []
            for metric in ("jain", "throughput"):
                seeds = sorted(ours[metric])
                advantages.append(paired_t([theirs[metric][s] - ours[metric][s] for s in seeds], level))
            possible += all(mean > 0 for mean, _, _ in advantages)
            sure += all(low > 0 for _, low, _ in advantages)
    return float(sure), float(sure), float(sure)


def smallest_advantage(cells: Cells, level: float) -> tuple[float, float, float]:
    """Smallest over rivals and both figures of (ours / rival) - 1, geometric mean over traces and seeds, with its interval.

    Cells carry ``factors.rival`` and ``factors.metric``; the value is the ratio of one seed.
    """
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for cell in cells:
        if "rival" in cell["factors"]:
            groups[cell["factors"]["rival"], cell["factors"]["metric"]].append(float(np.log(cell["value"])))
    intervals = [tuple(float(np.expm1(v)) for v in paired_t(values, level)) for values in groups.values()]
    return min(i[0] for i in intervals), min(i[1] for i in intervals), min(i[2] for i in intervals)


def weight_trend(cells: Cells, level: float) -> tuple[float, float, float]:
    """Rank correlation of the weight with a figure, one a seed, and the interval of their mean."""
    seeds: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for cell in cells:
        seeds[cell["seed"]].append((cell["factors"]["weight"], cell["value"]))
    values = [spearman(*np.array(sorted(points)).T)[0] for points in seeds.values()]
    mean, low, high = paired_t(values, level)
    return mean, max(low, -1.0), min(high, 1.0)
