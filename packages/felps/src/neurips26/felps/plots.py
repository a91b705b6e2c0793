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
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    with figure(path, 2, len(runs), (3.0, 2.2)) as axes:
        axes = np.asarray(axes).reshape(2, len(runs))
        for column, (name, run) in enumerate(runs.items()):
            order = np.argsort(-run.sample_arrived[-1], kind="stable")
            order = order[run.sample_arrived[-1][order] > 0]
            # Light to dark by popularity: 32 adapters have no 32 colours that an eye tells apart.
            colours = colormaps["viridis"](np.linspace(0.0, 1.0, len(order)))
            axes[0, column].stackplot(run.sample_time, run.sample_served.T[order] / 1e3, colors=colours, linewidth=0)
            axes[0, column].set(title=name, ylabel="delivered cost units / 1000" if column == 0 else "")
            for fractions, colour in zip(run.served_fraction().T[order], colours):
                axes[1, column].plot(run.sample_time, fractions, lw=0.8, color=colour, alpha=0.8)
            axes[1, column].set(xlabel="seconds", ylabel="served fraction" if column == 0 else "", ylim=(0, 1.02))
        scale = ScalarMappable(Normalize(1, len(order)), "viridis")
        axes[0, 0].figure.colorbar(scale, ax=axes[:, -1], label="adapter, most popular first", shrink=0.6)
    return path


def slot_occupancy(run: RunResult, path: Path, until: float = 60.0) -> Path:
    """Which adapter holds which slot; every start of a bar is a load. The run needs ``record_slots=True``."""
    slots = int(run.engine["max_loras"])
    with figure(path, size=(7.0, 0.3 * slots + 1.0)) as axes:
        light = ("#F0E442", "#56B4E9", "#E69F00")
        colours = ("#0072B2", "#009E73", "#CC79A7", "#D55E00", "#7F7F7F", *light)
        for slot in range(slots):
            events = [(t, adapter) for t, s, adapter, _ in run.slot_events if s == slot and t < until]
            for (start, adapter), (end, _) in zip(events, [*events[1:], (min(until, run.makespan), 0)]):
                colour = colours[adapter % len(colours)]
                axes.broken_barh([(start, end - start)], (slot - 0.4, 0.8), color=colour, ec="white", lw=0.5)
                if end - start > until / 45:
                    ink = "black" if colour in light else "white"
                    axes.text(start + until / 300, slot, str(adapter), fontsize=7, va="center", color=ink)
        axes.set(
            xlabel="seconds",
            ylabel="slot",
            yticks=range(slots),
            title="ids of the adapters in their slots; every bar begins with a load",
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
                        label=("most popular", "second", "third", "least popular")[q],
                    )
            ax.set(title=name, xlabel="time to first token / s", ylabel="share of requests" if ax is axes[0] else "")
        axes[0].legend(fontsize=7, title="quarter of the adapters", title_fontsize=7)
    return path


AXES = {"gap": "largest - smallest served fraction", "loads_per_s": "adapter loads / s"}


def weight_sweep(cells: Sequence[Mapping[str, Any]], metric: str, path: Path) -> Path:
    """A figure over the weight, one line a seed."""
    with figure(path) as axes:
        for seed in sorted({c["seed"] for c in cells}):
            mine = sorted((c["factors"]["weight"], c["value"]) for c in cells if c["seed"] == seed)
            axes.plot(*zip(*mine), "-o", ms=3, lw=0.8, color="#0072B2", alpha=0.6)
        axes.set(xlabel="weight", ylabel=AXES.get(metric, metric), title="one line a seed")
    return path
