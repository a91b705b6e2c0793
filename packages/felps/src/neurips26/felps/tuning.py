"""The grids behind every setting of the claims, on windows and adapter draws that no reported run touches."""

from __future__ import annotations

from typing import Any

import numpy as np

from neurips26.felps import experiments as ex
from neurips26.felps import live
from neurips26.felps.compare import label
from neurips26.shared.claims import Tuning, tunes
from neurips26.shared.context import Context

RIVALS = ("vtc", "drr", "dlpm", "dlora", "fcfs", "affinity", "sjf")


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
