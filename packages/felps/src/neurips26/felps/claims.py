"""The abstract's claims, and what a scheduler of this kind must keep to be used, each as a test."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from neurips26.felps import experiments as ex
from neurips26.felps import live
from neurips26.felps.compare import label, pareto
from neurips26.felps.felps import FELPSPolicy
from neurips26.felps.metrics import RunResult
from neurips26.felps.plots import latency_by_popularity, service_over_time, slot_occupancy, weight_sweep
from neurips26.felps.policy import Policy
from neurips26.felps.request import Request
from neurips26.felps.simulator import Simulator
from neurips26.felps.slots import AdapterSlots
from neurips26.felps.workload import Workload
from neurips26.shared.claims import Claim, Criterion, DataUse, Measurement, Series, Tuning, measures, tunes
from neurips26.shared.context import Context
from neurips26.shared.runs import Cells
from neurips26.shared.seeding import rng

RIVALS = ("vtc", "drr", "dlpm", "dlora", "fcfs", "affinity", "sjf")
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
NO_FIGURE = "none: only the abstract was at hand, which prints no figure"


def _traces(ctx: Context) -> tuple[str, ...]:
    return ("arena",) if ctx.tier == "quick" else ex.TRACES


def _settings(ctx: Context) -> list[dict[str, Any]]:
    return QUICK if ctx.tier == "quick" else ex.sweep()


def _seeds(ctx: Context) -> list[int]:
    return ctx.seeds(5 if ctx.tier == "quick" else SEEDS)


def _data(ctx: Context, traces: tuple[str, ...]) -> list[DataUse]:
    return [DataUse(t, "real") if ctx.data(t) else DataUse("synthetic gamma arrivals", "generated") for t in traces]


def _unit(ctx: Context, trace: str, i: int, seed: int) -> dict[str, dict[str, float]]:
    """Figures of every setting of the sweep on one seed of a trace."""

    def all_settings() -> dict[str, dict[str, float]]:
        return {label(s): ex.run(ctx.data, trace, seed, i, s) for s in _settings(ctx)}

    # Several claims look at the same runs; each keeps its own first cell for the re-run check.
    shared = Cells(ctx.directory / "cells" / "sweeps")
    return ctx.cell({"sweep": trace, "seed": seed}, lambda: shared.get(f"{trace} {seed}", all_settings))


def _units(ctx: Context) -> list[tuple[str, int, dict[str, dict[str, float]]]]:
    jobs = [(trace, i, seed) for trace in _traces(ctx) for i, seed in enumerate(_seeds(ctx))]
    return [(trace, seed, _unit(ctx, trace, i, seed)) for trace, i, seed in ctx.track(jobs, "sweeps")]


def _method(name: str) -> str:
    return name.split()[0]


# Tuning --------------------------------------------------------------------------------------------------------------


@tunes(
    "modes",
    "slot mode of every method: three modes times three values of its parameter, per trace, by hypervolume (development windows)",
)
def tune_modes(ctx: Context) -> Tuning:
    """On windows and adapter draws that the reported runs never touch."""
    cells, area = [], {}
    grid = ex.tuning_grid()
    for trace in ctx.track(ex.TRACES, "development windows"):
        for i, seed in enumerate(ctx.seeds(1)):

            def figures(trace: str = trace, seed: int = seed, i: int = i) -> dict[str, dict[str, float]]:
                return {label(s): ex.run(ctx.data, trace, seed, i, s, development=True) for s in grid}

            rows = ctx.cell({"trace": trace, "seed": seed}, figures)
            points = {
                name: (f"{s['policy']} {s['mode']}", rows[name]["jain"], rows[name]["throughput"])
                for s, name in ((s, label(s)) for s in grid)
            }
            for name, value in ex.front_areas(points).items():
                cells.append(
                    {"factors": {"trace": trace, "method": name}, "seed": seed, "method": name, "value": value}
                )
                area.setdefault((trace, *name.split()), []).append(value)
    chosen = {}
    for trace in ex.TRACES:
        for method in ("felps", *RIVALS):
            means = {mode: float(np.mean(area[trace, method, mode])) for mode in ("skip", "block", "drain")}
            best = max(means, key=means.__getitem__)
            chosen[f"{method} on {trace}"] = {"mode": best, "area": round(means[best], 4)}
    return Tuning(cells, chosen, "one development window a trace, nine settings a method with a parameter")


@tunes(
    "weight",
    "weight of FELPS that drains, against VTC and DRR that drain or block, by the smallest of its mean advantages in both "
    "figures over three traces (development windows)",
)
def tune_weight(ctx: Context) -> Tuning:
    """The figure of the claim it serves, on windows and adapter draws that the reported runs never touch."""
    weights = [w for w in ex.WEIGHTS if w <= 0.5]
    ours = [{"policy": "felps", "mode": "drain", "weight": w} for w in weights]
    theirs = [s for s in ex.rivals() if s["policy"] in ("vtc", "drr") and s["mode"] != "skip"]
    logs: dict[float, dict[tuple[str, str], list[float]]] = {w: {} for w in weights}
    cells = []
    jobs = [(trace, i, seed) for trace in ex.TRACES for i, seed in enumerate(ctx.seeds(3))]
    for trace, i, seed in ctx.track(jobs, "development windows"):

        def figures(trace: str = trace, i: int = i, seed: int = seed) -> dict[str, dict[str, float]]:
            return {label(s): ex.run(ctx.data, trace, seed, i, s, development=True) for s in ours + theirs}

        rows = ctx.cell({"trace": trace, "seed": seed}, figures)
        for w, mine in zip(weights, ours):
            for rival in theirs:
                for metric in ("jain", "throughput"):
                    value = float(np.log(rows[label(mine)][metric] / rows[label(rival)][metric]))
                    logs[w].setdefault((label(rival), metric), []).append(value)
                    factors = {"trace": trace, "weight": w, "rival": label(rival), "metric": metric}
                    cells.append({"factors": factors, "seed": seed, "method": "felps", "value": value})
    smallest = {w: min(float(np.mean(values)) for values in by.values()) for w, by in logs.items()}
    best = max(smallest, key=smallest.__getitem__)
    chosen = {"felps": {"weight": best}, "smallest advantage": {str(w): round(v, 4) for w, v in smallest.items()}}
    return Tuning(cells, chosen, "three development windows a trace; values are logarithms of ours over theirs")


def _widest_margin(figures: dict[float, dict[str, float]]) -> float:
    """The weight whose smaller margin over both criteria (0.03 of the Jain index, 97 % of the throughput) is largest."""
    return max(figures, key=lambda w: min(figures[w]["jain"] - 0.03, float(np.log(figures[w]["throughput"] / 0.97))))


@tunes(
    "weight-vtc-skip",
    "weight of FELPS that drains, against VTC that skips, by the smaller of its margins over both criteria (0.03 of the Jain "
    "index, 97 % of the throughput), over three traces (development windows)",
)
def tune_weight_against_skip(ctx: Context) -> Tuning:
    """The figures of the two claims it serves, on windows and adapter draws that the reported runs never touch."""
    settings = [{"policy": "felps", "mode": "drain", "weight": w} for w in ex.WEIGHTS]
    rival = {"policy": "vtc", "mode": "skip"}
    cells: list[dict[str, Any]] = []
    jobs = [(trace, i, seed) for trace in ex.TRACES for i, seed in enumerate(ctx.seeds(3))]
    for trace, i, seed in ctx.track(jobs, "development windows"):

        def figures(trace: str = trace, i: int = i, seed: int = seed) -> list[dict[str, float]]:
            return [ex.run(ctx.data, trace, seed, i, s, development=True) for s in [*settings, rival]]

        *ours, theirs = ctx.cell({"trace": trace, "seed": seed}, figures)
        for w, mine in zip(ex.WEIGHTS, ours):
            factors = {"trace": trace, "weight": w}
            for metric, value in (
                ("jain", mine["jain"] - theirs["jain"]),
                ("throughput", float(np.log(mine["throughput"] / theirs["throughput"]))),
            ):
                cells.append({"factors": factors | {"metric": metric}, "seed": seed, "method": "felps", "value": value})
    means = _means(cells)
    return Tuning(
        cells, {"felps": {"weight": _widest_margin(means)}, "by weight": _shown(means)},
        "three development windows a trace; Jain: ours less theirs; throughput: logarithm of ours over theirs",
    )  # fmt: skip


PLUG_IN_WEIGHTS = (0.0, 0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@tunes(
    "vllm-weight",
    "weight of the plug-in and how many slots it may drain at once, against first come, first served, by the smaller of its "
    "margins over both criteria (0.03 of the Jain index, 97 % of the throughput), each margin in units of its spread from window "
    "to window, in the simulator with vLLM's step times (development part of the arena trace)",
)
def tune_plug_in(ctx: Context) -> Tuning:
    """The figures of the two claims it serves; the replays in vLLM begin where this part of the trace ends."""
    settings = [{"weight": w, "max_draining": slots} for slots in (None, 1, 2) for w in PLUG_IN_WEIGHTS]
    gains: list[dict[str, list[float]]] = [{"jain": [], "throughput": []} for _ in settings]
    cells: list[dict[str, Any]] = []
    for seed in ctx.track(ctx.seeds(24), "development windows"):
        theirs, *ours = ctx.cell(
            {"seed": seed}, lambda seed=seed: live.vllm_forecast(ctx.data("arena"), seed, settings)
        )
        for setting, mine, gain in zip(settings, ours, gains):
            gain["jain"].append(mine["jain"] - theirs["jain"])
            gain["throughput"].append(float(np.log(mine["throughput"] / theirs["throughput"])))
            for metric, values in gain.items():
                factors = setting | {"metric": metric}
                cells.append({"factors": factors, "seed": seed, "method": "felps", "value": values[-1]})
    sureness = [_sureness(gain) for gain in gains]
    shown = {
        f"weight {s['weight']:g}, draining {s['max_draining'] or 'any'}": {
            "jain": round(float(np.mean(gain["jain"])), 4),
            "throughput": round(float(np.exp(np.mean(gain["throughput"]))), 4),
            "sureness": round(sure, 3),
        }
        for s, gain, sure in zip(settings, gains, sureness)
    }
    return Tuning(
        cells, {"felps": settings[int(np.argmax(sureness))], "by setting": shown},
        "24 windows; Jain: ours less the default's; throughput: logarithm of ours over the default's",
    )  # fmt: skip


def _sureness(gain: dict[str, list[float]]) -> float:
    """The smaller margin over both criteria, in standard deviations: an index and a logarithm have no unit in common."""
    bars = {"jain": 0.03, "throughput": float(np.log(0.97))}
    return min(float((np.mean(gain[m]) - bar) / max(np.std(gain[m], ddof=1), 1e-9)) for m, bar in bars.items())


def _means(cells: list[dict[str, Any]]) -> dict[float, dict[str, float]]:
    """Weight -> mean gain of the Jain index, and geometric mean of the kept throughput."""
    by: dict[float, dict[str, list[float]]] = {}
    for cell in cells:
        by.setdefault(cell["factors"]["weight"], {}).setdefault(cell["factors"]["metric"], []).append(cell["value"])
    return {
        w: {"jain": float(np.mean(v["jain"])), "throughput": float(np.exp(np.mean(v["throughput"])))}
        for w, v in by.items()
    }


def _shown(means: dict[float, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {str(w): {k: round(v, 4) for k, v in by.items()} for w, by in means.items()}


@tunes(
    "sensitivity",
    "the two choices that matter most: slot mode and estimate of unknown output lengths (FELPS, weight 0.2, development windows)",
)
def sensitivity(ctx: Context) -> Tuning:
    """Not a choice: how far the figures move when the choices of ``choices.py`` are made otherwise."""
    grid = [
        {"policy": "felps", "mode": mode, "weight": 0.2, "estimator": estimator}
        for mode in ("drain", "block", "skip")
        for estimator in ("ewma", "fixed", "oracle")
    ]
    cells, means = [], {}
    for trace in ctx.track(ex.TRACES, "sensitivity"):
        for i, seed in enumerate(ctx.seeds(2)):

            def figures(trace: str = trace, i: int = i, seed: int = seed) -> list[dict[str, float]]:
                return [ex.run(ctx.data, trace, seed, i, s, development=True) for s in grid]

            for setting, row in zip(grid, ctx.cell({"trace": trace, "seed": seed}, figures)):
                for metric in ("jain", "throughput", "loads_per_s"):
                    factors = {"trace": trace, "metric": metric} | {k: setting[k] for k in ("mode", "estimator")}
                    cells.append({"factors": factors, "seed": seed, "method": "felps", "value": row[metric]})
                    means.setdefault((setting["mode"], setting["estimator"], trace), {}).setdefault(metric, []).append(
                        row[metric]
                    )
    shown = {
        f"{mode}, {estimator}, {trace}": {metric: round(float(np.mean(v)), 3) for metric, v in by.items()}
        for (mode, estimator, trace), by in means.items()
    }
    return Tuning(cells, shown, "means of two development windows a trace; defaults are drain and ewma")


# Claim 1: a better front ---------------------------------------------------------------------------------------------


@measures(
    Claim(
        id="front-area",
        statement="sweeping its weight, FELPS spans a better front of fairness and throughput than any fixed-policy scheduler, "
        "each swept over its own parameter and modes",
        paper_value=NO_FIGURE,
        scope="proxy",
        metric="hypervolume of (Jain index of served fractions, throughput) over that of the best rival",
        unit="1",
        direction="higher",
        criterion=Criterion("ratio", at_least=1.0),
    )
)
def front_area(ctx: Context) -> Measurement:
    """Area over the worst point of a run unit; the rival compared with is the best in the mean of all units."""
    units = _units(ctx)
    areas = [
        ex.front_areas({n: (_method(n), f["jain"], f["throughput"]) for n, f in rows.items()}) for _, _, rows in units
    ]
    names = [name for name in areas[0] if name != "felps"]
    best = max(names, key=lambda name: np.mean([a[name] for a in areas]))
    figures = []
    for trace in _traces(ctx):
        rows = [
            {"label": name, "setting": _parse(name), "seed": seed} | values
            for t, seed, unit in units
            if t == trace
            for name, values in unit.items()
        ]
        origin = TRACE_NAMES[trace] if ctx.data(trace) else f"generated workload in place of the {TRACE_NAMES[trace]}"
        title = f"{origin}, means of {len(_seeds(ctx))} seeds"
        figures.append(pareto(rows, ctx.figure(f"front-{trace}.png"), title=title))
    loads = [
        ctx.cell({"offered": t, "seed": s}, lambda t=t, s=s, i=i: ex.offered_load(ctx.data(t), t, s, i))
        for t in _traces(ctx)
        for i, s in enumerate(_seeds(ctx))
    ]
    per_trace = np.array(loads).reshape(len(_traces(ctx)), -1).mean(axis=1)
    ctx.note(
        "offered load over what the engine delivers with a slot for every adapter: "
        + ", ".join(f"{t} {v:.2f}" for t, v in zip(_traces(ctx), per_trace))
    )
    if ctx.tier != "quick":
        figures += _pictures(ctx)
    return Measurement(
        ours=Series({"weights": list(ex.WEIGHTS)}, [a["felps"] + 1e-6 for a in areas]),
        baselines={name: Series({"sweep": "own parameter"}, [a[name] + 1e-6 for a in areas]) for name in names},
        compared_to=best,
        seeds=[seed for _, seed, _ in units],
        data=_data(ctx, _traces(ctx)),
        figures=figures,
        tuned_by=None if ctx.tier == "quick" else "modes",
    )


def _parse(name: str) -> dict[str, Any]:
    policy, *options = name.split()
    pairs = dict(option.split("=") for option in options)
    return {"policy": policy} | {
        k: float(v) if k in ("weight", "quantum", "threshold") else v for k, v in pairs.items()
    }


def _pictures(ctx: Context) -> list[Path]:
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


@measures(
    Claim(
        id="not-dominated",
        statement="no point of any rival's own sweep is better than a FELPS point of weight at most 0.5 in both fairness and "
        "throughput beyond the interval",
        paper_value=NO_FIGURE,
        scope="proxy",
        metric="pairs (rival's point, FELPS point) with dominance beyond the paired interval, over three traces",
        unit="pairs",
        direction="lower",
        criterion=Criterion(
            "bound", at_most=0.0, effect="neurips26.felps.effects:dominating_points", deterministic=True
        ),
    ),
    tiers=("cpu",),
)
def not_dominated(ctx: Context) -> Measurement:
    """The cells are the full table, VTC's own metrics beside ours."""
    cells = [
        {
            "factors": {"trace": trace, "setting": name, "metric": metric},
            "seed": seed,
            "method": _method(name),
            "value": values[metric],
        }
        for trace, seed, rows in _units(ctx)
        for name, values in rows.items()
        for metric in SHOWN
    ]
    for line in _where_rivals_win(cells):
        ctx.note(line)
    return Measurement(cells=cells, seeds=_seeds(ctx), data=_data(ctx, ex.TRACES), tuned_by="modes")


def _where_rivals_win(cells: list[dict[str, Any]]) -> list[str]:
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
                max((s for s in means if (_method(s) == "felps") == mine), key=lambda s: sign * means[s])
                for mine in (True, False)
            )
            if sign * means[rival] > sign * means[ours]:
                won.append(f"{metric} {means[rival]:.4g} ({rival}) against {means[ours]:.4g} ({ours})")
        lines.append(f"{trace}, measures in which a rival's best setting is ahead: " + ("; ".join(won) or "none"))
    return lines


WEIGHT = 0.2


def _extended(
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


@measures(
    Claim(
        id="beats-fair-schedulers",
        statement="at one weight of at most 0.5 FELPS is better in both figures than VTC that drains, VTC that blocks, and "
        "deficit round robin that drains or blocks, at each of its quanta",
        paper_value=NO_FIGURE,
        scope="proxy",
        metric="smallest advantage over the rivals and both figures (geometric mean over traces and seeds)",
        unit="1",
        direction="higher",
        criterion=Criterion("ratio", at_least=0.0, effect="neurips26.felps.effects:smallest_advantage"),
    ),
    tiers=("cpu",),
)
def beats_fair(ctx: Context) -> Measurement:
    """The smallest advantage decides; VTC and DRR that skip are in the full table."""
    ours = {"policy": "felps", "mode": "drain", "weight": WEIGHT}
    theirs = [s for s in ex.rivals() if s["policy"] in ("vtc", "drr") and s["mode"] != "skip"]
    cells = []
    for trace, seed, rows in _extended(ctx, "fair schedulers", [ours, *theirs]):
        for rival in map(label, theirs):
            for metric in ("jain", "throughput"):
                factors = {"trace": trace, "rival": rival, "metric": metric}
                value = rows[label(ours)][metric] / rows[rival][metric]
                cells.append({"factors": factors, "seed": seed, "method": "felps", "value": value})
    return Measurement(cells=cells, seeds=ctx.seeds(FAIR_SEEDS), data=_data(ctx, ex.TRACES), tuned_by="weight")


SKIP_WEIGHT = 0.5


def _against_skip(ctx: Context, metric: str) -> Measurement:
    ours, theirs, cells = [], [], []
    felps, vtc = {"policy": "felps", "mode": "drain", "weight": SKIP_WEIGHT}, {"policy": "vtc", "mode": "skip"}
    units = _extended(ctx, "VTC that skips", [felps, vtc])
    for trace, seed, rows in units:
        ours.append(rows[label(felps)][metric])
        theirs.append(rows[label(vtc)][metric])
        cells += [
            {"factors": {"trace": trace}, "seed": seed, "method": m, "value": v}
            for m, v in (("felps", ours[-1]), ("vtc", theirs[-1]))
        ]
    return Measurement(
        ours=Series({"policy": "felps", "weight": SKIP_WEIGHT}, ours),
        baselines={"vtc": Series({"policy": "vtc", "mode": "skip"}, theirs)},
        compared_to="vtc",
        seeds=[seed for _, seed, _ in units],
        cells=cells,
        data=_data(ctx, ex.TRACES),
        tuned_by="weight-vtc-skip",
    )


@measures(
    Claim(
        id="fairer-than-vtc-skip",
        statement="FELPS is fairer than VTC that skips by at least 0.03 of the Jain index",
        paper_value=NO_FIGURE,
        scope="proxy",
        metric="difference of the Jain index of served fractions, over three traces",
        unit="1",
        direction="higher",
        criterion=Criterion("difference", at_least=0.03),
    ),
    tiers=("cpu",),
)
def fairer_than_vtc_skip(ctx: Context) -> Measurement:
    """At the weight of the next claim."""
    return _against_skip(ctx, "jain")


@measures(
    Claim(
        id="as-fast-as-vtc-skip",
        statement="and keeps at least 97 % of that VTC's throughput at the same weight",
        paper_value=NO_FIGURE,
        scope="proxy",
        metric="throughput over that of VTC that skips, over three traces",
        unit="1",
        direction="higher",
        criterion=Criterion("ratio", at_least=0.97),
    ),
    tiers=("cpu",),
)
def as_fast_as_vtc_skip(ctx: Context) -> Measurement:
    """At the weight of the claim before."""
    return _against_skip(ctx, "throughput")


# Claim 2: any trade-off ----------------------------------------------------------------------------------------------


def _trend(ctx: Context, metric: str) -> Measurement:
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
    return Measurement(cells=cells, seeds=seeds, data=_data(ctx, (trace,)), figures=[figure])


@measures(
    Claim(
        id="loads-fall",
        statement="arbitrary trade-offs, efficiency end: adapter loads fall monotonically with the weight",
        paper_value=NO_FIGURE,
        scope="proxy",
        metric="Spearman correlation of weight and loads per second (nine weights, conversation trace)",
        unit="1",
        direction="lower",
        criterion=Criterion("monotone", at_most=-0.95, effect="neurips26.felps.effects:weight_trend"),
    )
)
def loads_fall(ctx: Context) -> Measurement:
    """One correlation a seed."""
    return _trend(ctx, "loads_per_s")


@measures(
    Claim(
        id="gap-rises",
        statement="arbitrary trade-offs, fairness end: the gap of served fractions rises monotonically with the weight",
        paper_value=NO_FIGURE,
        scope="proxy",
        metric="Spearman correlation of weight and mean gap between the largest and smallest served fraction",
        unit="1",
        direction="higher",
        criterion=Criterion("monotone", at_least=0.95, effect="neurips26.felps.effects:weight_trend"),
    ),
    tiers=("cpu",),
)
def gap_rises(ctx: Context) -> Measurement:
    """One correlation a seed."""
    return _trend(ctx, "gap")


# Claim 3: service in proportion to workload --------------------------------------------------------------------------


@measures(
    Claim(
        id="service-follows-workload",
        statement="with weight 0 and workloads 1 : 2 : 4 : 8, served fractions stay within one request's cost of each other",
        paper_value=NO_FIGURE,
        scope="scaled down",
        metric="largest gap of served fractions over (largest request cost / smallest workload), one slot and four slots",
        unit="1",
        direction="lower",
        criterion=Criterion("bound", at_most=1.0),
    )
)
def service_follows_workload(ctx: Context) -> Measurement:
    """Requests of random length, all queued at the start, served one after another."""

    def gap(seed: int, slots: int) -> dict[str, float]:
        generator = rng(seed, "felps", "proportional")
        adapter = np.repeat([1, 2, 3, 4], [20, 40, 80, 160])
        n = len(adapter)
        load = Workload(np.zeros(n), adapter, generator.integers(40, 80, n), generator.integers(10, 40, n))
        simulator = Simulator(ex.EngineModel.preset("a100-llama-7b"), slots, 1, 512, 10_000, sample_every=0.5)
        result = simulator.run(load, FELPSPolicy(0.0, estimator="oracle"))
        work = result.sample_arrived[0, 1:]
        rho = result.served_fraction()[:, 1:]
        started = rho.min(axis=1) > 0
        busy = started & (rho.max(axis=1) < 1)
        # Early on a single request is more than an adapter's share; from a tenth of the work on, shares can show.
        grown = busy & (result.sample_served.sum(axis=1) > 0.1 * work.sum())
        shares = [np.corrcoef(row, work)[0, 1] for row in result.sample_served[grown][:, 1:]]
        return {
            "gap": float(np.ptp(rho[rho.max(axis=1) < 1], axis=1).max() / (load.cost().max() / work.min())),
            "r": float(min(shares)),
        }

    seeds = ctx.seeds(5 if ctx.tier == "quick" else 10)
    values, correlations = [], []
    for seed in seeds:
        cells = [
            ctx.cell({"seed": seed, "slots": slots}, lambda seed=seed, slots=slots: gap(seed, slots))
            for slots in (1, 4)
        ]
        values.append(max(cell["gap"] for cell in cells))
        correlations.append(min(cell["r"] for cell in cells))
    least = min(correlations)
    ctx.note(f"correlation of service and workload, all backlogged, from a tenth of the work on: at least {least:.4f}")
    return Measurement(
        ours=Series({"weight": 0.0}, values), seeds=seeds, data=[DataUse("queued requests", "generated")]
    )


# Claim 4: the real engine --------------------------------------------------------------------------------------------


@measures(
    Claim(
        id="simulator-makespan",
        statement="calibrated on other traces, the simulator predicts the real engine's makespan on one it has not seen",
        paper_value=NO_FIGURE,
        scope="scaled down",
        metric="|simulated / real - 1| of the makespan, mean over policies (SmolLM2-135M, 6 adapters, 2 slots, CPU)",
        unit="1",
        direction="lower",
        criterion=Criterion("bound", at_most=0.10),
        rerun_tolerance=None,
    ),
    tiers=("cpu",),
)
def simulator_makespan(ctx: Context) -> Measurement:
    """Each trace is predicted by the simulator that the other seeds' traces calibrated."""
    rows = live.real_and_simulated(ctx)
    ctx.note(
        "five seeds left this undecided, and so did eight; the model's misfit was found on development windows: a CPU needs more "
        "time for two or three sequences than for four, and for each adapter in the batch. Calibration now fits one time a batch "
        "size and one an adapter, on other traces as before; the criterion is unchanged"
    )
    values = [
        float(np.mean([abs(r["simulated"]["makespan"] / r["real"]["makespan"] - 1) for r in row.values()]))
        for row in rows
    ]
    cells = [
        {
            "factors": {"policy": name, "source": source, "metric": metric},
            "seed": seed,
            "method": name,
            "value": r[source][metric],
        }
        for seed, row in zip(ctx.seeds(len(rows)), rows)
        for name, r in row.items()
        for source in ("real", "simulated")
        for metric in ("makespan", "loads", "jain")
    ]
    return Measurement(
        ours=Series({"model": "SmolLM2-135M"}, values), seeds=ctx.seeds(len(rows)), cells=cells,
        data=[DataUse("arena" if ctx.data("arena") else "synthetic", "real" if ctx.data("arena") else "generated")],
    )  # fmt: skip


@measures(
    Claim(
        id="simulator-order",
        statement="and puts the policies in the real engine's order of adapter loads",
        paper_value=NO_FIGURE,
        scope="scaled down",
        metric="Spearman correlation over policies of simulated and real loads",
        unit="1",
        direction="higher",
        criterion=Criterion("bound", at_least=0.8),
        rerun_tolerance=None,
    ),
    tiers=("cpu",),
)
def simulator_order(ctx: Context) -> Measurement:
    """The same runs."""
    rows = live.real_and_simulated(ctx)
    values = [live.rank_agreement(row, "loads") for row in rows]
    jains = [live.rank_agreement(row, "jain") for row in rows]
    ctx.note(f"the same for the Jain index: mean {np.mean(jains):.2f}")
    return Measurement(
        ours=Series({"model": "SmolLM2-135M"}, values), seeds=ctx.seeds(len(rows)), data=[DataUse("arena", "real")]
    )


@measures(
    Claim(
        id="mixed-batches",
        statement="a batch of four adapters times four requests decodes at least twice as fast as one adapter at a time",
        paper_value=NO_FIGURE,
        scope="scaled down",
        metric="tokens per CPU second, mixed batch over one adapter at a time",
        unit="1",
        direction="higher",
        criterion=Criterion("ratio", at_least=2.0),
        rerun_tolerance=None,
    ),
    tiers=("cpu",),
)
def mixed_batches(ctx: Context) -> Measurement:
    """Both in one process, in turns."""
    pairs = live.mixed_against_separate(ctx, 5)
    return Measurement(
        ours=Series({"batch": "4 adapters x 4 requests"}, [p[0] for p in pairs]),
        baselines={"one adapter at a time": Series({"batch": "4 requests"}, [p[1] for p in pairs])},
        seeds=ctx.seeds(5),
        data=[DataUse("made-up prompts", "generated")],
    )


# What a server needs -------------------------------------------------------------------------------------------------


def admission_cost(adapters: int, waiting: int, running: int, slots: int, seed: int, admissions: int = 150) -> float:
    """CPU seconds per admission of ``select`` in steady state: admit one, book a step of all running, finish one."""
    generator = rng(seed, "felps", "admission")
    policy = FELPSPolicy(0.2)
    policy.bind(AdapterSlots(slots))
    for i in range(waiting):
        policy.on_arrival(Request(i, 1 + int(generator.integers(adapters)), 0.0, 100), 0.0)
    active: list[Request] = []
    spent, now, fresh, measured = 0.0, 0.0, waiting, 0
    while measured < admissions:
        now += 0.05
        began = time.process_time()
        request = policy.peek(now)
        if request is not None:
            policy.pop(now)
            policy.slots.acquire(request.adapter)
            active.append(request)
        if len(active) >= running:  # filling the engine is not measured
            spent += time.process_time() - began
            measured += request is not None
        counts: dict[int, int] = {}
        for one in active:
            counts[one.adapter] = counts.get(one.adapter, 0) + 1
        policy.on_batch([(a, 0, c, c) for a, c in counts.items()], now)
        if len(active) >= running or request is None:
            done = active.pop(int(generator.integers(len(active))))
            policy.on_finished(done, now, "stop", 50, 0)
            policy.slots.release(done.adapter)
            policy.on_arrival(Request(fresh, 1 + int(generator.integers(adapters)), now, 100), now)
            fresh += 1
    return spent / measured


@measures(
    Claim(
        id="admission-cost",
        statement="an admission costs at most 200 microseconds with 1,000 adapters, 10,000 waiting and 256 running requests",
        paper_value=NO_FIGURE,
        scope="scaled down",
        metric="CPU time per admission, decisions of steps without one included",
        unit="us",
        direction="lower",
        criterion=Criterion("bound", at_most=200.0),
        rerun_tolerance=None,
    ),
    tiers=("cpu",),
)
def admission(ctx: Context) -> Measurement:
    """32 slots; the growth with the number of adapters is in the cells."""
    seeds = ctx.seeds(5)
    values = [
        ctx.cell({"adapters": 1000, "seed": s}, lambda s=s: admission_cost(1000, 10_000, 256, 32, s)) for s in seeds
    ]
    cells = [
        {
            "factors": {"adapters": a, "waiting": 10 * a},
            "seed": seeds[0],
            "method": "felps",
            "value": 1e6
            * ctx.cell({"adapters": a, "growth": True}, lambda a=a: admission_cost(a, 10 * a, 256, 32, seeds[0])),
        }
        for a in (250, 500, 1000, 2000)
    ]
    return Measurement(
        ours=Series({"slots": 32, "weight": 0.2}, [1e6 * v for v in values]), seeds=seeds, cells=cells,
        data=[DataUse("made-up requests", "generated")],
    )  # fmt: skip


@measures(
    Claim(
        id="hour-of-sweeps",
        statement="nine weights and five rivals on the whole hour of the conversation trace, every rival counted nine times, "
        "take at most ten minutes on two cores",
        paper_value=NO_FIGURE,
        scope="scaled down",
        metric="CPU minutes of 54 runs of 19,366 requests, divided by two",
        unit="min",
        direction="lower",
        criterion=Criterion("bound", at_most=10.0, deterministic=True),
        rerun_tolerance=None,
    ),
    tiers=("cpu",),
)
def hour_of_sweeps(ctx: Context) -> Measurement:
    """A rival has no weight: its one run stands for nine."""
    path = ctx.data("conv")
    seed = ctx.seeds(1)[0]
    load = ex.workload("conv", None, seed, 0) if path is None else Workload.from_azure_csv(path, 32, seed=seed)
    settings = [{"policy": "felps", "weight": w} for w in ex.WEIGHTS]
    settings += [{"policy": p, "mode": "drain"} for p in ("fcfs", "vtc", "drr", "dlpm")] + [{"policy": "affinity"}]

    def seconds(setting: dict[str, Any]) -> float:
        options = dict(setting)
        policy = Policy.make(str(options.pop("policy")), **options)
        began = time.process_time()
        ex.BENCH["conv"].simulator().run(load, policy, horizon=load.duration)
        return time.process_time() - began

    cells = []
    for setting in ctx.track(settings, "hours"):
        spent = ctx.cell({"hour": label(setting)}, lambda setting=setting: seconds(setting))
        cells.append(
            {
                "factors": {"setting": label(setting), "unit": "CPU s"},
                "seed": seed,
                "method": str(setting["policy"]),
                "value": spent,
            }
        )
    total = sum(c["value"] * (1 if c["method"] == "felps" else len(ex.WEIGHTS)) for c in cells)
    return Measurement(
        ours=Series({"runs": 9 + 9 * 5}, [total / 60 / 2]), seeds=[seed], cells=cells, data=_data(ctx, ("conv",))
    )


# Inside vLLM ---------------------------------------------------------------------------------------------------------


@measures(
    Claim(
        id="vllm-same-text",
        statement="under greedy decoding vLLM gives every request the same tokens with the plug-in as with its own scheduler",
        paper_value=NO_FIGURE,
        scope="scaled down",
        metric="requests whose tokens differ",
        unit="requests",
        direction="equal",
        criterion=Criterion("bound", at_most=0.0, deterministic=True),
        rerun_tolerance=None,
    ),
    tiers=("cpu",),
)
def vllm_same_text(ctx: Context) -> Measurement:
    """Adapters are exchanged and requests preempted on the way."""
    rows = live.vllm_outcomes(ctx)["rows"]
    return Measurement(
        ours=Series(
            {"requests": "110 a window, 512 more on the first seeds"} | live.PLUG_IN, [r["different"] for r in rows]
        ),
        seeds=ctx.seeds(len(rows)),
        data=live.vllm_data(ctx),
    )


MORE_WINDOWS = (
    "five windows, served in whole turns, left the throughput undecided; now 32 windows, both schedulers side by side, a step "
    "each in turn, with the criteria unchanged. A seed draws where its window begins, so that windows overlap"
)


@measures(
    Claim(
        id="vllm-fairer",
        statement="inside vLLM FELPS is fairer than the default scheduler by at least 0.03 of the Jain index",
        paper_value=NO_FIGURE,
        scope="scaled down",
        metric="difference of the Jain index of served fractions, arena trace replayed in vLLM 0.32 on the CPU",
        unit="1",
        direction="higher",
        criterion=Criterion("difference", at_least=0.03),
        rerun_tolerance=None,
    ),
    tiers=("cpu",),
)
def vllm_fairer(ctx: Context) -> Measurement:
    """The default scheduler is first come, first served and skips."""
    rows = live.vllm_outcomes(ctx)["rows"]
    ctx.note(MORE_WINDOWS)
    return live.vllm_measurement(ctx, rows, "jain")


@measures(
    Claim(
        id="vllm-as-fast",
        statement="and delivers at least 97 % of the default scheduler's throughput there",
        paper_value=NO_FIGURE,
        scope="scaled down",
        metric="throughput over that of the default scheduler (cost units per CPU second)",
        unit="1",
        direction="higher",
        criterion=Criterion("ratio", at_least=0.97),
        rerun_tolerance=None,
    ),
    tiers=("cpu",),
)
def vllm_as_fast(ctx: Context) -> Measurement:
    """The same runs."""
    reason = (
        "a slot that is drained for an absent adapter leaves places of the batch empty; the tuning record expects a ratio of "
        "0.99 with a spread of 0.02 from window to window, before any noise of the machine"
    )
    ctx.note(MORE_WINDOWS)
    return live.vllm_measurement(ctx, live.vllm_outcomes(ctx)["rows"], "throughput", reason)


@measures(
    Claim(
        id="vllm-scheduling-cost",
        statement="the plug-in adds at most 5 % of a step to vLLM's scheduling, with 256 requests waiting on average",
        paper_value=NO_FIGURE,
        scope="scaled down",
        metric="(scheduling time with the plug-in - default's) over the default's step, CPU seconds a step",
        unit="1",
        direction="lower",
        criterion=Criterion("bound", at_most=0.05),
        rerun_tolerance=None,
    ),
    tiers=("cpu",),
)
def vllm_scheduling_cost(ctx: Context) -> Measurement:
    """The step is that of a small model on one CPU core: a real model's is longer and the share smaller."""
    values = live.vllm_outcomes(ctx)["shares"]
    return Measurement(
        ours=Series({"waiting": 256}, values),
        seeds=ctx.seeds(len(values)),
        data=[DataUse("made-up requests", "generated")],
    )
