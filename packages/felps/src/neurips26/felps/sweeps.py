"""Sweeps that several claims look at: which settings, seeds and data a tier runs, the runs themselves, tables and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from neurips26.felps import experiments as ex
from neurips26.felps.compare import label, pareto
from neurips26.felps.metrics import RunResult
from neurips26.felps.plots import latency_by_popularity, service_over_time, slot_occupancy, weight_sweep
from neurips26.felps.policy import Policy
from neurips26.shared.claims import DataUse, Measurement
from neurips26.shared.context import Context
from neurips26.shared.runs import Cells

QUICK = [
    *({"policy": "felps", "mode": "drain", "weight": w} for w in (0.0, 0.1, 0.3, 0.5, 1.0)),
    {"policy": "fcfs", "mode": "skip"},
    {"policy": "vtc", "mode": "drain"},
    {"policy": "drr", "mode": "drain", "quantum": 8000.0},
    {"policy": "dlpm", "mode": "drain", "quantum": 2000.0},
    {"policy": "affinity", "mode": "skip"},
]
TRACE_NAMES = {"conv": "Azure conversation trace", "code": "Azure code trace", "arena": "LMSYS arena trace"}
SEEDS = 5
FAIR_SEEDS = 12


def traces(ctx: Context) -> tuple[str, ...]:
    """The quick tier looks at one trace."""
    return ("arena",) if ctx.tier == "quick" else ex.TRACES


def settings(ctx: Context) -> list[dict[str, Any]]:
    """What a sweep of this tier runs."""
    return QUICK if ctx.tier == "quick" else ex.sweep()


def seeds(ctx: Context) -> list[int]:
    """Seeds on which whole sweeps are run."""
    return ctx.seeds(5 if ctx.tier == "quick" else SEEDS)


def data_used(ctx: Context, names: tuple[str, ...]) -> list[DataUse]:
    """The traces, or what stands in for those that this machine lacks."""
    return [DataUse(t, "real") if ctx.data(t) else DataUse("synthetic gamma arrivals", "generated") for t in names]


def unit(ctx: Context, trace: str, i: int, seed: int) -> dict[str, dict[str, float]]:
    """Figures of every setting of the sweep on one seed of a trace."""

    def all_settings() -> dict[str, dict[str, float]]:
        return {label(s): ex.run(ctx.data, trace, seed, i, s) for s in settings(ctx)}

    # Several claims look at the same runs; each keeps its own first cell for the re-run check.
    shared = Cells(ctx.directory / "cells" / "sweeps")
    return ctx.cell({"sweep": trace, "seed": seed}, lambda: shared.get(f"{trace} {seed}", all_settings))


def units(ctx: Context) -> list[tuple[str, int, dict[str, dict[str, float]]]]:
    """(trace, seed, figures of every setting) of every run unit."""
    jobs = [(trace, i, seed) for trace in traces(ctx) for i, seed in enumerate(seeds(ctx))]
    return [(trace, seed, unit(ctx, trace, i, seed)) for trace, i, seed in ctx.track(jobs, "sweeps")]


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


def front_pictures(ctx: Context, units: list[tuple[str, int, dict[str, dict[str, float]]]]) -> list[Path]:
    """A picture of fairness and throughput for each trace."""
    figures = []
    for trace in traces(ctx):
        rows = [
            {"label": name, "setting": setting_of(name), "seed": seed} | values
            for t, seed, unit in units
            if t == trace
            for name, values in unit.items()
        ]
        origin = TRACE_NAMES[trace] if ctx.data(trace) else f"generated workload in place of the {TRACE_NAMES[trace]}"
        title = f"{origin}, means of {len(seeds(ctx))} seeds"
        figures.append(pareto(rows, ctx.figure(f"front-{trace}.png"), title=title))
    return figures


def run_pictures(ctx: Context) -> list[Path]:
    """Service over time, slots, and latencies of one reported run of the conversation trace."""
    trace, seed = "conv", ctx.seeds(1)[0]
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


def extended(
    ctx: Context, name: str, settings: list[dict[str, Any]]
) -> list[tuple[str, int, dict[str, dict[str, float]]]]:
    """Figures of some settings alone on more seeds than whole sweeps are run on."""
    jobs = [(trace, i, seed) for trace in ex.TRACES for i, seed in enumerate(ctx.seeds(FAIR_SEEDS))]
    units = []
    for trace, i, seed in ctx.track(jobs, name):

        def figures(trace: str = trace, i: int = i, seed: int = seed) -> dict[str, dict[str, float]]:
            return {label(s): ex.run(ctx.data, trace, seed, i, s) for s in settings}

        units.append((trace, seed, ctx.cell({name: trace, "seed": seed}, figures)))
    ctx.note(
        "five seeds left it open whether FELPS beats the fair schedulers; extended to twelve, for all methods alike and with "
        "the criteria unchanged: every window of the Azure traces is met twice, with other adapters"
    )
    return units


def trend(ctx: Context, metric: str) -> Measurement:
    """A figure over the weight, and its picture."""
    quick = ctx.tier == "quick"
    trace = "arena" if quick else "conv"
    weights = [float(s["weight"]) for s in QUICK if "weight" in s] if quick else list(ex.WEIGHTS)
    settings = [{"policy": "felps", "mode": "drain", "weight": w} for w in weights]
    cells = []
    seeds = ctx.seeds(5 if ctx.tier == "quick" else 2 * SEEDS)
    for i, seed in enumerate(ctx.track(seeds, "weights")):
        key = {"weights": trace, "seed": seed}

        def figures(i: int = i, seed: int = seed) -> list[dict[str, float]]:
            shared = Cells(ctx.directory / "cells" / "sweeps")
            return shared.get(
                f"weights {trace} {seed}", lambda: [ex.run(ctx.data, trace, seed, i, s) for s in settings]
            )

        rows = ctx.cell(key, figures)
        cells += [
            {"factors": {"trace": trace, "weight": w}, "seed": seed, "method": "felps", "value": row[metric]}
            for w, row in zip(weights, rows)
        ]
    figure = weight_sweep(cells, metric, ctx.figure(f"weight-{metric}.png"))
    return Measurement(cells=cells, seeds=seeds, data=data_used(ctx, (trace,)), figures=[figure])
