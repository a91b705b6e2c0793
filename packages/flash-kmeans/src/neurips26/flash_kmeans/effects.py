"""Effects that are functions of a claim's cells: pure, so that a verdict can be recomputed from a record."""

from __future__ import annotations

from typing import Any

import numpy as np

from neurips26.shared.stats import mean_interval

__all__ = ["growth_exponent", "grid_ratio", "worst_cell_ratio"]


def _log_ratios(cells: list[dict[str, Any]]) -> np.ndarray:
    """`(seeds, problems)`: log of ours over the best other method of the same problem and seed."""
    table: dict[tuple[int, str], dict[str, float]] = {}
    for cell in cells:
        key = (cell["seed"], repr(sorted(cell["factors"].items())))
        table.setdefault(key, {})[cell["method"]] = cell["value"]
    seeds, problems = sorted({s for s, _ in table}), sorted({p for _, p in table})
    out = np.empty((len(seeds), len(problems)))
    for i, s in enumerate(seeds):
        for j, p in enumerate(problems):
            row = dict(table[s, p])
            ours = row.pop("ours")
            out[i, j] = np.log(ours) - np.log(min(row.values()))
    return out


def grid_ratio(cells: list[dict[str, Any]], level: float) -> tuple[float, float, float]:
    """Geometric mean over the grid of ours over the best peer of each problem, with its interval over seeds."""
    effect = mean_interval(_log_ratios(cells).mean(axis=1).tolist(), level)
    return tuple(float(np.exp(v)) for v in effect)  # type: ignore[return-value]


def worst_cell_ratio(cells: list[dict[str, Any]], level: float) -> tuple[float, float, float]:
    """The same for the problem where it is largest (mean over seeds)."""
    ratios = _log_ratios(cells)
    effect = mean_interval(ratios[:, ratios.mean(axis=0).argmax()].tolist(), level)
    return tuple(float(np.exp(v)) for v in effect)  # type: ignore[return-value]


def growth_exponent(cells: list[dict[str, Any]], level: float) -> tuple[float, float, float]:
    """Exponent of time in the size that is farthest from 1, with its interval over seeds."""
    axes = sorted({c["factors"]["axis"] for c in cells})
    found = []
    for axis in axes:
        slopes = []
        for seed in sorted({c["seed"] for c in cells}):
            rows = [c for c in cells if c["seed"] == seed and c["factors"]["axis"] == axis]
            slopes.append(
                np.polyfit(np.log([c["factors"]["size"] for c in rows]), np.log([c["value"] for c in rows]), 1)[0]
            )
        found.append(mean_interval([float(s) for s in slopes], level))
    return max(found, key=lambda f: abs(f[0] - 1))
