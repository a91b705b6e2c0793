"""Sweeps that several claims look at: which settings, seeds and data a tier runs, the runs themselves, tables and pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from neurips26.felps import effects
from neurips26.felps import experiments as ex
from neurips26.felps.compare import label, pareto
from neurips26.felps.metrics import RunResult
from neurips26.felps.plots import latency_by_popularity, service_over_time, slot_occupancy, weight_sweep
from neurips26.felps.policy import Policy
from neurips26.shared.claims import DataUse, Measurement
from neurips26.shared.context import Context
from neurips26.shared.runs import Cells
from neurips26.shared.stats import paired_t

QUICK = [
    *({"policy": "felps", "mode": "drain", "weight": w} for w in (0.0, 0.1, 0.3, 0.5, 1.0)),
    {"policy": "fcfs", "mode": "skip"},
    {"policy": "vtc", "mode": "drain"},
    {"policy": "drr", "mode": "drain", "quantum": 8000.0},
    {"policy": "dlpm", "mode": "drain", "quantum": 2000.0},
    {"policy": "affinity", "mode": "skip"},
]
TRACE_NAMES = {"conv": "Azure conversation trace", "code": "Azure code trace", "arena": "LMSYS arena trace"}
FIRST_SEED = 100
"""Position of the first reported seed of a tier: earlier records showed what those before it give."""
REPEATS = 3
"""So many times the seeds of a whole sweep where a row needs a few settings only."""


class Unit(NamedTuple):
    """Figures of several settings on one seed of a window."""

    trace: str
    window: int
    seed: int
    rows: dict[str, dict[str, float]]


def traces(ctx: Context) -> tuple[str, ...]:
    """The quick tier looks at one trace."""
    return ("arena",) if ctx.tier == "quick" else ex.TRACES


def settings(ctx: Context, trace: str) -> list[dict[str, Any]]:
    """What a sweep of this tier runs."""
    return QUICK if ctx.tier == "quick" else ex.sweep(trace)


def seeds(ctx: Context, trace: str, repeats: int = 1) -> list[int]:
    """Seeds of a trace, windows in turn: as many for every window."""
    each = ex.SEEDS_A_WINDOW[trace]
    count = len(ex.WINDOWS[trace].reported) * (each // 2 if ctx.tier == "quick" else each * repeats)
    return ctx.seeds(FIRST_SEED + count)[FIRST_SEED:]


def jobs(ctx: Context, names: tuple[str, ...], repeats: int = 1) -> list[tuple[str, int, int]]:
    """(trace, position of the seed, seed) of every run unit."""
    return [(trace, i, seed) for trace in names for i, seed in enumerate(seeds(ctx, trace, repeats))]


def data_used(ctx: Context, names: tuple[str, ...]) -> list[DataUse]:
    """The traces, or what stands in for those that this machine lacks."""
    return [DataUse(t, "real") if ctx.data(t) else DataUse("synthetic gamma arrivals", "generated") for t in names]


def units(ctx: Context) -> list[Unit]:
    """Whole sweeps. Several claims look at the same runs; each keeps its own first cell for the re-run check."""
    shared = Cells(ctx.directory / "cells" / "sweeps")
    found = []
    for trace, i, seed in ctx.track(jobs(ctx, traces(ctx)), "sweeps"):

        def all_settings(trace: str = trace, i: int = i, seed: int = seed) -> dict[str, dict[str, float]]:
            return {label(s): ex.run(ctx.data, trace, seed, i, s) for s in settings(ctx, trace)}

        def once(key: str = f"{trace} {seed}", run: Callable = all_settings) -> dict[str, dict[str, float]]:
            return shared.get(key, run)

        found.append(Unit(trace, ex.window_of(trace, i), seed, ctx.cell({"sweep": trace, "seed": seed}, once)))
    return found


def units_of(ctx: Context, name: str, settings: list[dict[str, Any]]) -> list[Unit]:
    """A few settings alone, on more seeds a window than whole sweeps are run on."""
    found = []
    for trace, i, seed in ctx.track(jobs(ctx, ex.TRACES, REPEATS), name):

        def figures(trace: str = trace, i: int = i, seed: int = seed) -> dict[str, dict[str, float]]:
            return {label(s): ex.run(ctx.data, trace, seed, i, s) for s in settings}

        found.append(Unit(trace, ex.window_of(trace, i), seed, ctx.cell({name: trace, "seed": seed}, figures)))
    return found


def by_trace(groups: effects.Groups, shown: Callable[[float], float], what: str) -> str:
    """A line for the record: the mean of every trace with its interval over windows."""
    told = []
    for trace, values in groups.items():
        mean, low, high = map(shown, paired_t(values))
        told.append(f"{trace} {mean:.4g} [{low:.4g}, {high:.4g}] over {len(values)} windows")
    return f"{what}, trace by trace with 95 % intervals: " + "; ".join(told)


def method_of(name: str) -> str:
    """Policy in a label."""
    return name.split()[0]


def setting_of(name: str) -> dict[str, Any]:
    """The setting that a label was made of."""
    policy, *options = name.split()
    pairs = dict(option.split("=") for option in options)
    return {"policy": policy} | {
        k: float(v) if k in ("weight", "quantum", "threshold") else v for k, v in pairs.items()
    }


def front_pictures(ctx: Context, units: list[Unit]) -> list[Path]:
    """A picture of fairness and throughput for each trace."""
    figures = []
    for trace in traces(ctx):
        rows = [
            {"label": name, "setting": setting_of(name), "seed": unit.seed} | values
            for unit in units
            if unit.trace == trace
            for name, values in unit.rows.items()
        ]
        origin = TRACE_NAMES[trace] if ctx.data(trace) else f"generated workload in place of the {TRACE_NAMES[trace]}"
        title = f"{origin}, means of {len(ex.WINDOWS[trace].reported)} windows"
        figures.append(pareto(rows, ctx.figure(f"front-{trace}.png"), title=title))
    return figures


def run_pictures(ctx: Context) -> list[Path]:
    """Service over time, slots, and latencies of one reported run of the conversation trace."""
    trace, seed = "conv", seeds(ctx, "conv")[0]
    load = ex.workload(trace, ctx.data(trace), seed, 0)
    bench = ex.BENCH["generated" if ctx.data(trace) is None else trace]
    runs: dict[str, RunResult] = {}
    for setting in ({"policy": "felps", "weight": 0.2}, {"policy": "vtc", "mode": "drain"}, {"policy": "fcfs"}):
        simulator = bench.simulator(record_slots=True)
        options = dict(setting)
        runs[label(setting)] = simulator.run(
            load, Policy.make(str(options.pop("policy")), **options), horizon=load.duration
        )
    return [
        service_over_time(runs, ctx.figure("service.png")),
        slot_occupancy(runs["felps weight=0.2"], ctx.figure("slots.png"), until=60.0),
        latency_by_popularity(runs, ctx.figure("ttft.png")),
    ]


def pairs_dominated(rows: dict[str, dict[str, float]]) -> int:
    """Pairs (rival's point, FELPS point with weight at most 0.5) of one run in which the rival is ahead in both figures."""
    points = {name: (f["jain"], f["throughput"]) for name, f in rows.items()}
    ours = [point for name, point in points.items() if effects.is_claimed(name)]
    theirs = [point for name, point in points.items() if method_of(name) != "felps"]
    return sum(t[0] > o[0] and t[1] > o[1] for o in ours for t in theirs)


SHOWN = (
    "jain",
    "throughput",
    "windowed_jain_30s",
    "service_difference_mean",
    "latency_jain",
    "worst_adapter_ttft",
    "loads_per_s",
)


def where_rivals_win(cells: list[dict[str, Any]]) -> list[str]:
    """Per trace: measures in which the best setting of some rival beats the best of FELPS (means over seeds)."""
    values: dict[tuple[str, str, str], list[float]] = {}
    for cell in cells:
        f = cell["factors"]
        values.setdefault((f["trace"], f["metric"], f["setting"]), []).append(cell["value"])
    lines = []
    for trace in ex.TRACES:
        won = []
        for metric in SHOWN:
            sign = -1.0 if metric in ("service_difference_mean", "worst_adapter_ttft", "loads_per_s") else 1.0
            means = {s: float(np.mean(v)) for (t, m, s), v in values.items() if (t, m) == (trace, metric)}
            ours, rival = (
                max((s for s in means if (method_of(s) == "felps") == mine), key=lambda s: sign * means[s])
                for mine in (True, False)
            )
            if sign * means[rival] > sign * means[ours]:
                won.append(f"{metric} {means[rival]:.4g} ({rival}) against {means[ours]:.4g} ({ours})")
        lines.append(f"{trace}, measures in which a rival's best setting is ahead: " + ("; ".join(won) or "none"))
    return lines


def trend(ctx: Context, metric: str) -> Measurement:
    """A figure over the weight on the conversation trace, and its picture."""
    trace = "conv"
    weights = [float(s["weight"]) for s in QUICK if "weight" in s] if ctx.tier == "quick" else list(ex.WEIGHTS)
    settings = [{"policy": "felps", "mode": ex.FELPS_MODE[trace], "weight": w} for w in weights]
    shared = Cells(ctx.directory / "cells" / "sweeps")
    cells = []
    for _, i, seed in ctx.track(jobs(ctx, (trace,), REPEATS), "weights"):

        def figures(i: int = i, seed: int = seed) -> list[dict[str, float]]:
            return [ex.run(ctx.data, trace, seed, i, s) for s in settings]

        def once(key: str = f"weights {trace} {seed}", run: Callable = figures) -> list[dict[str, float]]:
            return shared.get(key, run)

        rows = ctx.cell({"weights": trace, "seed": seed}, once)
        factors = {"trace": trace, "window": ex.window_of(trace, i)}
        cells += [
            {"factors": factors | {"weight": w}, "seed": seed, "method": "felps", "value": row[metric]}
            for w, row in zip(weights, rows)
        ]
    figure = weight_sweep(cells, metric, ctx.figure(f"weight-{metric}.png"))
    seeds_used = sorted({cell["seed"] for cell in cells})
    return Measurement(cells=cells, seeds=seeds_used, data=data_used(ctx, (trace,)), figures=[figure])
