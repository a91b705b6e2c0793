"""Effects of claims over several traces: pure functions of a record's cells.

The independent unit is a window of a trace. Figures of a window's seeds are averaged first, and intervals are Student's over
windows. What has to hold on every trace is judged by the trace where it is least.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import numpy as np

from neurips26.shared.stats import paired_t, spearman

Cells = list[dict[str, Any]]
Groups = dict[Any, list[float]]


def over_windows(values: Iterable[tuple[Hashable, int, float]]) -> Groups:
    """Means over the seeds of every window: (group, window, value) -> group -> one value a window."""
    table: dict[Any, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for group, window, value in values:
        table[group][window].append(value)
    return {group: [float(np.mean(v)) for _, v in sorted(windows.items())] for group, windows in table.items()}


def least(groups: Groups, level: float) -> tuple[float, float, float]:
    """Smallest mean of several groups of independent values, with an interval for it.

    The smallest lower end is below the smallest mean as surely as that group's own end is below its mean. An upper end is
    above it only if no group's is too low by chance, so the upper ends share the error.
    """
    lower = [paired_t(values, level)[:2] for values in groups.values()]
    upper = [paired_t(values, 1 - (1 - level) / len(groups))[2] for values in groups.values()]
    return min(mean for mean, _ in lower), min(low for _, low in lower), min(upper)


def advantages(cells: Cells, scale: Callable[[float], float] = float) -> Groups:
    """Trace -> window -> figure of FELPS less that of the best other method of the same run, both on ``scale``."""
    runs: dict[tuple[str, int, int], dict[str, float]] = defaultdict(dict)
    for cell in cells:
        factors = cell["factors"]
        runs[factors["trace"], factors["window"], cell["seed"]][cell["method"]] = cell["value"]
    return over_windows(
        (trace, window, scale(by["felps"]) - max(scale(v) for method, v in by.items() if method != "felps"))
        for (trace, window, _), by in runs.items()
    )


def difference_on_worst_trace(cells: Cells, level: float) -> tuple[float, float, float]:
    """Mean over windows of FELPS less the best other method of the run, on the trace where it is least."""
    return least(advantages(cells), level)


def ratio_on_worst_trace(cells: Cells, level: float) -> tuple[float, float, float]:
    """Geometric mean over windows of FELPS over the best other method of the run, on the trace where it is least."""
    effect, low, high = np.exp(least(advantages(cells, np.log), level))
    return float(effect), float(low), float(high)


def rival_advantages(cells: Cells) -> Groups:
    """(trace, rival, metric) -> window -> logarithm of ours over the rival's. A cell's value is the ratio of one seed."""
    return over_windows(
        (
            tuple(cell["factors"][k] for k in ("trace", "rival", "metric")),
            cell["factors"]["window"],
            np.log(cell["value"]),
        )
        for cell in cells
    )


def smallest_advantage(cells: Cells, level: float) -> tuple[float, float, float]:
    """Smallest over traces, rivals and figures of (ours / rival) - 1, geometric mean over windows, with its interval."""
    effect, low, high = np.expm1(least(rival_advantages(cells), level))
    return float(effect), float(low), float(high)


def is_claimed(setting: str) -> bool:
    """Whether a label is FELPS with a weight of at most 0.5, the half of its range that is claimed against all rivals."""
    return setting.startswith("felps ") and float(setting.rsplit("weight=", 1)[1].split()[0]) <= 0.5


def dominating_points(cells: Cells, level: float) -> tuple[float, float, float]:
    """How many pairs (rival's point, FELPS point with weight at most 0.5) show dominance in both figures, over all traces.

    The lower end counts the pairs in which the interval of the rival's advantage lies above zero in both figures, the upper
    end those in which its mean over windows does, noise or not.
    """
    points: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(lambda: defaultdict(dict))
    figures = (
        (tuple(cell["factors"][k] for k in ("trace", "setting", "metric")), cell["factors"]["window"], cell["value"])
        for cell in cells
        if cell["factors"]["metric"] in ("jain", "throughput")
    )
    for (trace, setting, metric), values in over_windows(figures).items():
        points[trace][setting][metric] = values
    sure = possible = 0
    for by_setting in points.values():
        rivals = [theirs for name, theirs in by_setting.items() if not name.startswith("felps ")]
        for ours in (figures for name, figures in by_setting.items() if is_claimed(name)):
            for theirs in rivals:
                ahead = [paired_t(np.subtract(theirs[m], ours[m]), level) for m in ("jain", "throughput")]
                possible += all(mean > 0 for mean, _, _ in ahead)
                sure += all(low > 0 for _, low, _ in ahead)
    return float(sure), float(sure), float(possible)


def weight_trend(cells: Cells, level: float) -> tuple[float, float, float]:
    """Rank correlation of the weight with a figure, one a seed, and the interval of their mean over windows."""
    curves: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for cell in cells:
        curves[cell["factors"]["window"], cell["seed"]].append((cell["factors"]["weight"], cell["value"]))
    correlations = ((None, window, spearman(*np.array(sorted(c)).T)[0]) for (window, _), c in curves.items())
    mean, low, high = paired_t(over_windows(correlations)[None], level)
    return mean, max(low, -1.0), min(high, 1.0)
