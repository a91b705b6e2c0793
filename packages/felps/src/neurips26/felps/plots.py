"""Pictures of a run: who is served, who holds the slots, who waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neurips26.felps.metrics import RunResult
from neurips26.shared.plots import figure


def service_over_time(runs: Mapping[str, RunResult], path: Path) -> Path:
    """Delivered service stacked by adapter (popular ones at the bottom), and served fractions, one column a run."""
    with figure(path, 2, len(runs), (3.0, 2.2)) as axes:
        axes = np.asarray(axes).reshape(2, len(runs))
        for column, (name, run) in enumerate(runs.items()):
            order = np.argsort(-run.sample_arrived[-1], kind="stable")
            order = order[run.sample_arrived[-1][order] > 0]
            axes[0, column].stackplot(run.sample_time, run.sample_served.T[order] / 1e3, linewidth=0)
            axes[0, column].set(title=name, ylabel="service / 1000" if column == 0 else "")
            axes[1, column].plot(run.sample_time, run.served_fraction()[:, order], lw=0.7)
            axes[1, column].set(xlabel="seconds", ylabel="served fraction" if column == 0 else "", ylim=(0, 1.02))
    return path


def slot_occupancy(run: RunResult, path: Path, until: float = 60.0) -> Path:
    """Which adapter holds which slot; every start of a bar is a load. The run needs ``record_slots=True``."""
    slots = int(run.engine["max_loras"])
    with figure(path, size=(7.0, 0.3 * slots + 1.0)) as axes:
        colours = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#7F7F7F", "#F0E442")
        for slot in range(slots):
            events = [(t, adapter) for t, s, adapter, _ in run.slot_events if s == slot and t < until]
            for (start, adapter), (end, _) in zip(events, [*events[1:], (min(until, run.makespan), 0)]):
                axes.broken_barh(
                    [(start, end - start)], (slot - 0.4, 0.8), color=colours[adapter % len(colours)], ec="white", lw=0.5
                )
                if end - start > until / 25:
                    axes.text(start + until / 300, slot, str(adapter), fontsize=6, va="center", color="white")
        axes.set(
            xlabel="seconds",
            ylabel="slot",
            yticks=range(slots),
            title="adapters in their slots; every bar begins with a load",
        )
    return path


def latency_by_popularity(runs: Mapping[str, RunResult], path: Path) -> Path:
    """Distribution of the time to first token, by quartile of adapter popularity (most requests first)."""
    with figure(path, 1, len(runs), (3.0, 2.4)) as axes:
        axes = np.atleast_1d(axes)
        for ax, (name, run) in zip(axes, runs.items()):
            ids, counts = np.unique(run.workload.adapter, return_counts=True)
            quartile = np.empty(len(ids), dtype=int)
            quartile[np.argsort(-counts, kind="stable")] = np.arange(len(ids)) * 4 // len(ids)
            of_request = quartile[np.searchsorted(ids, run.workload.adapter)]
            counted = ~(run.rejected | run.aborted) & (run.workload.arrival <= run.makespan)
            for q in range(4):
                waits = np.sort(run.ttft()[of_request[counted] == q])
                if len(waits):
                    ax.step(
                        waits,
                        np.arange(1, len(waits) + 1) / len(waits),
                        label=("most popular", "2nd", "3rd", "least popular")[q],
                    )
            ax.set(title=name, xlabel="time to first token / s", ylabel="share of requests" if ax is axes[0] else "")
        axes[0].legend(fontsize=6)
    return path


def weight_sweep(cells: Sequence[Mapping[str, Any]], metric: str, path: Path) -> Path:
    """A figure over the weight, one line a seed."""
    with figure(path) as axes:
        for seed in sorted({c["seed"] for c in cells}):
            mine = sorted((c["factors"]["weight"], c["value"]) for c in cells if c["seed"] == seed)
            axes.plot(*zip(*mine), "-o", ms=3, lw=0.8, color="#0072B2", alpha=0.6)
        axes.set(xlabel="weight", ylabel=metric.replace("_", " "))
    return path
