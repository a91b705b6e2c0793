"""Many policies on many workloads: a table of figures, the front they span, and the area under it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neurips26.felps.policy import Policy
from neurips26.felps.simulator import Simulator
from neurips26.felps.workload import Workload
from neurips26.shared.arrays import check_array
from neurips26.shared.grid import Grid
from neurips26.shared.plots import figure

Setting = Mapping[str, Any]
"""Name of a policy and its arguments: ``{"policy": "felps", "weight": 0.2}``."""


def label(setting: Setting) -> str:
    """``felps weight=0.2``."""
    options = [f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in setting.items() if k != "policy"]
    return " ".join([str(setting["policy"]), *options])


def build(setting: Setting) -> Policy:
    """A fresh policy of a setting."""
    options = dict(setting)
    return Policy.make(options.pop("policy"), **options)


def compare(
    workloads: Workload | Sequence[Workload],
    policies: Iterable[Setting],
    simulator: Simulator,
    directory: str | os.PathLike[str] | None = None,
    horizon: float | None = None,
) -> list[dict[str, Any]]:
    """Run every policy on every workload.

    Args:
        workloads: one or several (seeds, windows).
        policies: settings.
        simulator: the engine.
        directory: keep finished runs here; a sweep that was interrupted continues after them.
        horizon: end of every run; ``None``: the workload's own duration, which keeps an overloaded engine overloaded (where
            everything arrives at once: until everything is served).

    Returns:
        a row a run: the setting, ``label``, ``seed`` (position of the workload) and all figures of ``RunResult.metrics``.
    """
    workloads = [workloads] if isinstance(workloads, Workload) else list(workloads)
    cells = [{"policy": dict(setting), "seed": seed} for setting in policies for seed in range(len(workloads))]

    def run(policy: dict[str, Any], seed: int) -> dict[str, float]:
        workload = workloads[seed]
        return simulator.run(workload, build(policy), horizon=horizon or workload.duration or None).metrics()

    if directory is None:
        rows = [{"factors": cell, "value": run(**cell)} for cell in cells]
    else:
        rows = Grid(Path(directory)).run(cells, run, "policies")
    return [
        {"label": label(row["factors"]["policy"]), "setting": row["factors"]["policy"], "seed": row["factors"]["seed"]}
        | row["value"]
        for row in rows
    ]


def dominated(points: Any) -> np.ndarray:
    """Which points ``[n, 2]`` (larger is better in both) are dominated by another one."""
    points = check_array(points, "points", shape=("n", 2), dtype=np.float64)
    better = (points[None] >= points[:, None]).all(-1) & (points[None] > points[:, None]).any(-1)
    return better.any(axis=1)


def hypervolume(points: Any, reference: Any) -> float:
    """Area dominated by points ``[n, 2]`` above ``reference``; larger is better in both coordinates."""
    points = check_array(points, "points", shape=("n", 2), dtype=np.float64)
    reference = check_array(reference, "reference", shape=(2,), dtype=np.float64)
    above = points[(points > reference).all(axis=1)]
    area, height = 0.0, reference[1]
    for x, y in above[np.lexsort((above[:, 1], above[:, 0]))[::-1]]:
        if y > height:
            area += (x - reference[0]) * (y - height)
            height = y
    return float(area)


def pareto(
    rows: Sequence[Mapping[str, Any]],
    path: str | os.PathLike[str],
    x: str = "throughput",
    y: str = "jain",
    title: str = "",
    highlight: str = "felps",
) -> Path:
    """Draw the mean of every setting, one curve a policy, ``highlight`` with its weights where there is room; save a PNG."""
    means: dict[str, dict[str, tuple[float, float, Setting]]] = {}
    for name in dict.fromkeys(row["label"] for row in rows):
        mine = [row for row in rows if row["label"] == name]
        point = tuple(float(np.mean([row[axis] for row in mine])) for axis in (x, y))
        means.setdefault(mine[0]["setting"]["policy"], {})[name] = (*point, mine[0]["setting"])
    path = Path(path)
    with figure(path, size=(5.6, 3.8)) as axes:
        for policy, points in sorted(means.items(), key=lambda item: item[0] != highlight):
            xs, ys = [p[0] for p in points.values()], [p[1] for p in points.values()]
            ours = policy == highlight
            style = "-o" if ours else "s"
            axes.plot(
                xs, ys, style, label=policy, ms=5 if ours else 4, zorder=3 if ours else 2, alpha=1 if ours else 0.75
            )
        axes.set(
            xlabel="delivered cost units / s" if x == "throughput" else x,
            ylabel="Jain index of served fractions" if y == "jain" else y,
            title=title,
        )
        axes.legend(ncols=2, fontsize=7)
        axes.margins(0.08)
        axes.autoscale_view()
        shown: list[np.ndarray] = []
        for px, py, setting in means.get(highlight, {}).values():
            place = axes.transData.transform((px, py)) * 72 / axes.figure.dpi  # in points, as letters are
            # The curve tells the weights between two labels; labels on top of each other tell nothing.
            if "weight" in setting and all(np.abs(place - other).max() > 14 for other in shown):
                shown.append(place)
                halo = {"boxstyle": "square,pad=0.05", "fc": "white", "ec": "none", "alpha": 0.7}
                axes.annotate(
                    f"{setting['weight']:g}", (px, py), xytext=(5, 5), textcoords="offset points", fontsize=7, bbox=halo
                )
    return path


def paired(rows: Sequence[Mapping[str, Any]], name: str, metric: str) -> list[float]:
    """Values of one setting by seed."""
    return [float(row[metric]) for row in sorted((r for r in rows if r["label"] == name), key=lambda r: r["seed"])]
