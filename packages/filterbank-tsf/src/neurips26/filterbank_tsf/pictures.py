"""The pictures of the record, each from numbers the claims have measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neurips26.shared.plots import BASELINE, COLOURS, OURS, figure

from .alignment import AlignmentCurve
from .filters import frequency_response


def rank_curves(path: Path, cells: Mapping[str, Mapping[str, Any]]) -> None:
    """Error against rank on the three parts, relative to full-rank ridge."""
    names = list(cells)
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    with figure(path, rows, columns, (2.7, 2.2)) as axes:
        for ax, name in zip(np.atleast_1d(axes).ravel(), names):
            cell = cells[name]
            for part, colour in zip(("train", "val", "test"), (COLOURS[6], BASELINE, OURS)):
                ax.plot(
                    cell["ranks"], np.array(cell[part]) / cell["full"][part], "o-", ms=2.5, color=colour, label=part
                )
            ax.axhline(1.0, color="k", lw=0.6)
            ax.set(xscale="log", title=name, xlabel="rank r", ylim=(0.95, 1.25))
        np.atleast_1d(axes).ravel()[0].set_ylabel("MSE / full rank")
        np.atleast_1d(axes).ravel()[0].legend()


def alignment_curves(
    path: Path, curves: Mapping[str, AlignmentCurve], scatter: Sequence[tuple[str, float, float]]
) -> None:
    """P(k) per data set, and alignment against what a linear forecaster reaches on the test part."""
    with figure(path, 1, 2) as (left, right):
        for name, curve in curves.items():
            left.plot(np.arange(1, len(curve.power) + 1), curve.cumulative, label=name)
        left.set(xscale="log", xlabel="k leading directions", ylabel="P(k), share of target explained")
        left.legend()
        for i, name in enumerate(dict.fromkeys(s[0] for s in scatter)):
            points = np.array([s[1:] for s in scatter if s[0] == name])
            right.plot(points[:, 0], points[:, 1], "o", ms=4, color=COLOURS[i], label=name)
        right.set(xlabel="alignment P(12), training part", ylabel="R² on the test part")
        right.legend()


def filters(path: Path, analysis: np.ndarray, synthesis: np.ndarray, period: int) -> None:
    """Analysis and synthesis filters with their frequency responses."""
    with figure(path, 2, 2) as axes:
        for row, (bank, title) in enumerate(((analysis, "analysis"), (synthesis, "synthesis"))):
            frequencies, gain = frequency_response(bank)
            for i, (taps, g) in enumerate(zip(bank, gain)):
                axes[row, 0].plot(taps, lw=1, color=COLOURS[i % 8])
                axes[row, 1].plot(frequencies * period, g, lw=1, color=COLOURS[i % 8])
            axes[row, 0].set(title=f"{title} filters", xlabel="sample (newest last)")
            axes[row, 1].set(title="magnitude", xlabel=f"cycles per {period} steps", xlim=(0, min(6, period / 2)))


def pareto(
    path: Path, cells: Mapping[str, Sequence[Mapping[str, Any]]], peers: Mapping[str, Mapping[str, Any]]
) -> None:
    """Multiply-adds against test error."""
    with figure(path, 1, len(cells)) as axes:
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
                ax.plot(row["macs"], row["mse"], "xP*"[j // 5], color=COLOURS[3 + j % 5], label=peer)
            best = min(p["test"] for p in points)
            ax.set(xscale="log", title=name, xlabel="multiply-adds a forecast", ylim=(best * 0.985, best * 1.15))
        np.atleast_1d(axes)[0].set_ylabel("test MSE")
        np.atleast_1d(axes)[0].legend(fontsize=7)


def overlays(
    path: Path, history: np.ndarray, truth: np.ndarray, forecasts: Mapping[str, np.ndarray], titles: Sequence[str]
) -> None:
    """Forecasts of a few windows over what came: ``history (n, L)``, ``truth (n, H)``."""
    with figure(path, 1, len(history), (3.6, 2.3)) as axes:
        for i, ax in enumerate(np.atleast_1d(axes)):
            shown = history[i, -truth.shape[1] * 2 :]
            ax.plot(np.arange(-len(shown), 0), shown, color="k", lw=0.7)
            ax.plot(np.arange(truth.shape[1]), truth[i], color="k", lw=0.7, alpha=0.5, label="what came")
            for (name, values), colour in zip(forecasts.items(), (OURS, BASELINE, COLOURS[2])):
                ax.plot(np.arange(truth.shape[1]), values[i], color=colour, lw=1.2, label=name)
            ax.set(title=titles[i], xlabel="step")
        np.atleast_1d(axes)[0].legend(fontsize=7)
