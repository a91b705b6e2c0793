"""The pictures of the record, each from numbers the claims have measured. Legends stand beside the axes, never on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neurips26.shared.plots import BASELINE, COLOURS, OURS, figure

from .alignment import AlignmentCurve
from .filters import frequency_response

PEER_LABELS: dict[str, str] = {
    "dlinear": "DLinear by Adam", "fits": "FITS", "sparsetsf": "SparseTSF", "cyclenet": "CycleNet", "timebase": "TimeBase",
    "olinear": "OLinear", "rootpurge": "Root Purge",
}  # fmt: skip


def _legend(ax: Any) -> None:
    """The legend of one of the axes, right of the whole figure."""
    handles, labels = ax.get_legend_handles_labels()
    ax.figure.legend(handles, labels, loc="outside right center")


def rank_curves(path: Path, cells: Mapping[str, Mapping[str, Any]]) -> None:
    """Error against rank on the three parts, relative to full-rank ridge."""
    names = list(cells)
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    with figure(path, rows, columns, (2.7, 2.2)) as axes:
        grid = np.atleast_1d(axes).reshape(rows, columns)
        for ax, name in zip(grid.ravel(), names):
            cell = cells[name]
            for part, label, colour in (
                ("train", "training", COLOURS[6]),
                ("val", "validation", BASELINE),
                ("test", "test", OURS),
            ):
                ax.plot(
                    cell["ranks"], np.array(cell[part]) / cell["full"][part], "o-", ms=2.5, color=colour, label=label
                )
            ax.axhline(1.0, color="k", lw=0.6)
            ax.set(xscale="log", title=name, xlabel="rank r", ylim=(0.95, 1.25))
        for ax in grid.ravel()[len(names) :]:
            ax.set_axis_off()
        for ax in grid[:, 0]:
            ax.set_ylabel("MSE / full rank")
        _legend(grid[0, 0])


def alignment_curves(
    path: Path, curves: Mapping[str, AlignmentCurve], scatter: Sequence[tuple[str, float, float]]
) -> None:
    """P(k) per data set, and alignment against what a linear forecaster reaches on the test part."""
    with figure(path, 1, 2, (3.8, 2.8)) as (left, right):
        for (name, curve), colour in zip(curves.items(), COLOURS):
            left.plot(np.arange(1, len(curve.power) + 1), curve.cumulative, color=colour, label=name)
        title = "training part, shortest horizon"
        left.set(xscale="log", xlabel="k leading directions", ylabel="P(k), share of target explained", title=title)
        for i, name in enumerate(dict.fromkeys(s[0] for s in scatter)):
            points = np.array([s[1:] for s in scatter if s[0] == name])
            right.plot(points[:, 0], points[:, 1], "o", ms=4, color=COLOURS[i])
        right.set(
            xlabel="alignment P(12), training part", ylabel="R² on the test part", title="all horizons, two norms"
        )
        _legend(left)


def kernel_curves(
    path: Path, cells: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]], steps: np.ndarray
) -> None:
    """``P(k)`` of several kernels a data set, a line a seed, and what gradient descent has learnt after so many steps."""
    with figure(path, len(cells), 2, (3.8, 2.5)) as axes:
        for (left, right), (name, kernels) in zip(np.atleast_2d(axes), cells.items()):
            for (label, curves), colour in zip(kernels.items(), COLOURS):
                for i, curve in enumerate(curves):
                    line = {"color": colour, "lw": 0.9, "label": None if i else label}
                    left.plot(np.arange(1, len(curve["cumulative"]) + 1), curve["cumulative"], **line)
                    right.plot(steps, curve["learnt"], **line)
            left.set(xscale="log", title=name, xlabel="k leading directions", ylabel="P(k), share of target explained")
            right.set(
                xscale="log", title=f"{name}, gradient descent", xlabel="steps at rate N / λ₁",
                ylabel="share of target learnt",
            )  # fmt: skip
        _legend(np.atleast_2d(axes)[0, 0])


def filters(path: Path, analysis: np.ndarray, synthesis: np.ndarray, period: int) -> None:
    """Analysis and synthesis filters with their frequency responses."""
    with figure(path, 2, 2, (3.8, 2.5)) as axes:
        for row, (bank, title, step) in enumerate((
            (analysis, "analysis", "sample of a frame (newest last)"), (synthesis, "synthesis", "step of a frame"),
        )):  # fmt: skip
            frequencies, gain = frequency_response(bank)
            for i, (taps, g) in enumerate(zip(bank, gain)):
                axes[row, 0].plot(taps, lw=1.2, color=COLOURS[i % 8], label=f"filter {i + 1}")
                axes[row, 1].plot(frequencies * period, g, lw=1.2, color=COLOURS[i % 8])
            axes[row, 0].set(title=f"{title} filters", xlabel=step, ylabel="weight")
            axes[row, 1].set(
                title=f"frequency response, {title}", xlabel=f"cycles in {period} steps", ylabel="magnitude",
                xlim=(0, min(6, period / 2)),
            )  # fmt: skip
        _legend(axes[0, 0])


def pareto(
    path: Path, cells: Mapping[str, Sequence[Mapping[str, Any]]], peers: Mapping[str, Mapping[str, Any]]
) -> None:
    """Multiply-adds against test error; points more than 15 % above the best one are left out."""
    with figure(path, 1, len(cells), (3.6, 2.8)) as axes:
        for ax, (name, points) in zip(np.atleast_1d(axes), cells.items()):
            for i, kind in enumerate(("strided bank", "global bank", "linear (ridge)")):
                chosen = [p for p in points if p["kind"] == kind]
                ax.plot(
                    [p["macs"] for p in chosen],
                    [p["test"] for p in chosen],
                    "os^"[i],
                    ms=4,
                    color=COLOURS[i],
                    label=kind,
                )
            for j, (peer, row) in enumerate(peers.get(name, {}).items()):
                ax.plot(
                    row["macs"], row["mse"], "xP*"[j // 5], color=COLOURS[3 + j % 5], label=PEER_LABELS.get(peer, peer)
                )
            best = min([p["test"] for p in points] + [row["mse"] for row in peers.get(name, {}).values()])
            ax.axhline(1.01 * points[0]["test"], color="k", lw=0.6, ls=":", label="1 % above ridge")
            ax.set(xscale="log", title=name, xlabel="multiply-adds a forecast", ylim=(best * 0.985, best * 1.15))
        np.atleast_1d(axes)[0].set_ylabel("test MSE")
        _legend(np.atleast_1d(axes)[0])


def overlays(
    path: Path, history: np.ndarray, truth: np.ndarray, forecasts: Mapping[str, np.ndarray], titles: Sequence[str]
) -> None:
    """Forecasts of a few windows over what came: ``history (n, L)``, ``truth (n, H)``."""
    with figure(path, 1, len(history), (3.4, 2.4)) as axes:
        for i, ax in enumerate(np.atleast_1d(axes)):
            shown = history[i, -truth.shape[1] * 2 :]
            ax.plot(np.arange(-len(shown), 0), shown, color="k", lw=0.7, label="look-back (its end)")
            ax.plot(np.arange(truth.shape[1]), truth[i], color="k", lw=0.7, alpha=0.5, label="what came")
            for (name, values), colour in zip(forecasts.items(), (OURS, BASELINE, COLOURS[2])):
                ax.plot(np.arange(truth.shape[1]), values[i], color=colour, lw=1.2, label=name)
            ax.axvline(0, color="k", lw=0.5, ls=":")
            ax.set(title=titles[i], xlabel="step")
        np.atleast_1d(axes)[0].set_ylabel("scaled value")
        _legend(np.atleast_1d(axes)[0])
