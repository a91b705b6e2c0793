"""The grids behind every setting of the claims, on windows and adapter draws that no reported run touches."""

from __future__ import annotations

from typing import Any

import numpy as np

from neurips26.felps import effects, live
from neurips26.felps import experiments as ex
from neurips26.felps.compare import label
from neurips26.felps.policy import MODES
from neurips26.shared.claims import Tuning, tunes
from neurips26.shared.context import Context

ARENA_SEEDS = 12
"""A run of the arena trace costs a quarter of the others: four orders of each of its three development windows."""

Units = list[tuple[str, int, int]]


def _units(ctx: Context, azure: int) -> Units:
    """(trace, position of the seed, seed) of the development runs, ``azure`` windows of each Azure trace."""
    counts = {trace: ARENA_SEEDS if trace == "arena" else azure for trace in ex.TRACES}
    return [(trace, i, seed) for trace, count in counts.items() for i, seed in enumerate(ctx.seeds(count))]


def _figures(ctx: Context, units: Units, settings: list[dict[str, Any]]) -> list[tuple[str, int, int, dict[str, Any]]]:
    """(trace, window, seed, figures of every setting), on windows and adapter draws that no reported run touches."""
    found = []
    for trace, i, seed in ctx.track(units, "development windows"):

        def figures(trace: str = trace, i: int = i, seed: int = seed) -> dict[str, dict[str, float]]:
            return {label(s): ex.run(ctx.data, trace, seed, i, s, development=True) for s in settings}

        rows = ctx.cell({"trace": trace, "seed": seed}, figures)
        found.append((trace, ex.window_of(trace, i, development=True), seed, rows))
    return found


@tunes(
    "modes",
    "slot mode of every method: three modes times three values of its parameter, per trace, by hypervolume (development windows)",
)
def tune_modes(ctx: Context) -> Tuning:
    """FELPS is reported in the mode chosen here; every rival in all of its modes."""
    grid = ex.tuning_grid()
    cells: list[dict[str, Any]] = []
    area: dict[tuple[str, str], list[float]] = {}
    for trace, window, seed, rows in _figures(ctx, _units(ctx, 1), grid):
        points = {
            label(s): (f"{s['policy']} {s['mode']}", rows[label(s)]["jain"], rows[label(s)]["throughput"]) for s in grid
        }
        for name, value in ex.front_areas(points).items():
            factors = {"trace": trace, "window": window, "method": name}
            cells.append({"factors": factors, "seed": seed, "method": name, "value": value})
            area.setdefault((trace, name), []).append(value)
    chosen = {
        f"felps/{trace}": {"mode": max(MODES, key=lambda mode: np.mean(area[trace, f"felps {mode}"]))}
        for trace in ex.TRACES
    }
    best = "; ".join(
        f"{trace}: " + ", ".join(f"{mode} {np.mean(area[trace, f'felps {mode}']):.3f}" for mode in MODES)
        for trace in ex.TRACES
    )
    note = f"nine settings a method with a parameter; rivals keep all three modes in the reported sweeps. FELPS: {best}"
    return Tuning(cells, chosen, note)


@tunes(
    "weight",
    "weight of FELPS that drains, against VTC and DRR that drain or block, by the smallest of its mean advantages over traces, "
    "rivals and both figures (development windows)",
)
def tune_weight(ctx: Context) -> Tuning:
    """The figure of the claim it serves."""
    ours = {w: {"policy": "felps", "mode": "drain", "weight": w} for w in ex.WEIGHTS if w <= 0.5}
    theirs = [s for s in ex.rivals() if s["policy"] in ("vtc", "drr") and s["mode"] != "skip"]
    cells: list[dict[str, Any]] = []
    by_weight: dict[float, list[dict[str, Any]]] = {w: [] for w in ours}
    for trace, window, seed, rows in _figures(ctx, _units(ctx, 3), [*ours.values(), *theirs]):
        for w, mine in ours.items():
            for rival in map(label, theirs):
                for metric in ("jain", "throughput"):
                    ratio = rows[label(mine)][metric] / rows[rival][metric]
                    factors = {"trace": trace, "window": window, "rival": rival, "metric": metric}
                    by_weight[w].append({"factors": factors, "value": ratio})
                    factors = factors | {"weight": w}
                    cells.append({"factors": factors, "seed": seed, "method": "felps", "value": float(np.log(ratio))})
    smallest = {w: min(map(np.mean, effects.rival_advantages(rows).values())) for w, rows in by_weight.items()}
    told = ", ".join(f"{w:g}: {value:+.4f}" for w, value in smallest.items())
    return Tuning(
        cells, {"felps": {"weight": max(smallest, key=smallest.__getitem__)}},
        f"three development windows a trace; values are logarithms of ours over theirs. Smallest advantage by weight: {told}",
    )  # fmt: skip


Gains = dict[str, dict[str, float]]
"""Trace -> ``jain``: ours less theirs; ``throughput``: ours over theirs."""


def _margin(gains: Gains) -> float:
    """The smaller margin over both criteria (0.03 of the Jain index, 97 % of the throughput) on the worst trace."""
    return min(min(g["jain"] - 0.03, float(np.log(g["throughput"] / 0.97))) for g in gains.values())


@tunes(
    "weight-vtc-skip",
    "weight of FELPS that drains, against VTC that skips, by the smaller of its margins over both criteria (0.03 of the Jain "
    "index, 97 % of the throughput) on the worst trace (development windows)",
)
def tune_weight_against_skip(ctx: Context) -> Tuning:
    """The figures of the two claims it serves."""
    ours = {w: {"policy": "felps", "mode": "drain", "weight": w} for w in ex.WEIGHTS}
    rival = {"policy": "vtc", "mode": "skip"}
    cells: list[dict[str, Any]] = []
    for trace, window, seed, rows in _figures(ctx, _units(ctx, 3), [*ours.values(), rival]):
        theirs = rows[label(rival)]
        for w, setting in ours.items():
            mine = rows[label(setting)]
            factors = {"trace": trace, "window": window, "weight": w}
            for metric, value in (
                ("jain", mine["jain"] - theirs["jain"]),
                ("throughput", float(np.log(mine["throughput"] / theirs["throughput"]))),
            ):
                cells.append({"factors": factors | {"metric": metric}, "seed": seed, "method": "felps", "value": value})
    gains = _mean_gains(cells)
    told = "; ".join(
        f"{w:g}: " + ", ".join(f"{trace} {g['jain']:+.3f} {g['throughput']:.3f}" for trace, g in by.items())
        for w, by in gains.items()
    )
    return Tuning(
        cells, {"felps": {"weight": max(gains, key=lambda w: _margin(gains[w]))}},
        "three development windows a trace; Jain: ours less theirs; throughput: logarithm of ours over theirs. By weight (Jain, "
        f"ratio of throughputs): {told}",
    )  # fmt: skip


def _mean_gains(cells: list[dict[str, Any]]) -> dict[float, Gains]:
    """Weight -> trace -> mean gain of the Jain index, and geometric mean of the kept throughput."""
    factors = ((cell["factors"], cell["value"]) for cell in cells)
    groups = effects.over_windows(((f["weight"], f["trace"], f["metric"]), f["window"], value) for f, value in factors)
    gains: dict[float, Gains] = {}
    for (weight, trace, metric), values in groups.items():
        mean = float(np.mean(values))
        by_metric = gains.setdefault(weight, {}).setdefault(trace, {})
        by_metric[metric] = mean if metric == "jain" else float(np.exp(mean))
    return gains


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
    best = sorted(range(len(settings)), key=lambda k: -sureness[k])[:5]
    told = "; ".join(
        f"weight {settings[k]['weight']:g}, draining {settings[k]['max_draining'] or 'any'}: {np.mean(gains[k]['jain']):+.3f}, "
        f"{np.exp(np.mean(gains[k]['throughput'])):.3f}, {sureness[k]:.2f} deviations"
        for k in best
    )
    return Tuning(
        cells, {"felps": settings[best[0]]},
        "24 windows; Jain: ours less the default's; throughput: logarithm of ours over the default's. The five surest "
        f"(Jain, ratio of throughputs, smaller margin): {told}",
    )  # fmt: skip


def _sureness(gain: dict[str, list[float]]) -> float:
    """The smaller margin over both criteria, in standard deviations: an index and a logarithm have no unit in common."""
    bars = {"jain": 0.03, "throughput": float(np.log(0.97))}
    return min(float((np.mean(gain[m]) - bar) / max(np.std(gain[m], ddof=1), 1e-9)) for m, bar in bars.items())


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
    cells: list[dict[str, Any]] = []
    for trace, window, seed, rows in _figures(ctx, [unit for unit in _units(ctx, 2) if unit[1] < 2], grid):
        for setting in grid:
            for metric in ("jain", "throughput", "loads_per_s"):
                factors = {"trace": trace, "window": window, "metric": metric}
                factors |= {k: setting[k] for k in ("mode", "estimator")}
                value = rows[label(setting)][metric]
                cells.append({"factors": factors, "seed": seed, "method": "felps", "value": value})
    return Tuning(cells, {}, f"two development windows a trace; defaults are drain and ewma. Means: {_told(cells)}")


def _told(cells: list[dict[str, Any]]) -> str:
    """Mean Jain index and throughput of every mode and estimator, trace by trace."""
    groups: dict[tuple[str, str], dict[tuple[str, str], list[float]]] = {}
    for f, value in ((cell["factors"], cell["value"]) for cell in cells):
        groups.setdefault((f["mode"], f["estimator"]), {}).setdefault((f["trace"], f["metric"]), []).append(value)
    return "; ".join(
        f"{mode}, {estimator}: "
        + ", ".join(
            f"{trace} {np.mean(by[trace, 'jain']):.3f} {np.mean(by[trace, 'throughput']):.0f}" for trace in ex.TRACES
        )
        for (mode, estimator), by in groups.items()
    )
