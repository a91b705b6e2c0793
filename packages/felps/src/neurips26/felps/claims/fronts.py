"""A better front of fairness and throughput than any fixed-policy scheduler."""

from __future__ import annotations

from typing import Any

import numpy as np

from neurips26.felps import effects, sweeps
from neurips26.felps import experiments as ex
from neurips26.felps.claims.common import NO_FIGURE, SIMULATED
from neurips26.felps.compare import label
from neurips26.shared.claims import Claim, Criterion, Measurement, Series, measures
from neurips26.shared.context import Context


@measures(
    Claim(
        id="front-area",
        statement="on every trace, sweeping its weight, FELPS spans a better front of fairness and throughput than the best "
        "fixed-policy scheduler, each swept over its own parameter and modes",
        paper_value=NO_FIGURE,
        scope="proxy",
        metric="hypervolume of (Jain index of served fractions, throughput) over that of the run's best rival, geometric mean "
        "over a trace's windows, on the trace where it is least" + SIMULATED,
        unit="1",
        direction="higher",
        criterion=Criterion("ratio", at_least=1.0, effect="neurips26.felps.effects:ratio_on_worst_trace"),
    )
)
def front_area(ctx: Context) -> Measurement:
    """Area over the worst point of a run unit; the rival compared with is the best of that run, whichever it is."""
    units = sweeps.units(ctx)
    areas = [
        ex.front_areas({n: (sweeps.method_of(n), f["jain"], f["throughput"]) for n, f in unit.rows.items()})
        for unit in units
    ]
    # Where all settings agree nobody has an area, and the ratio is one.
    areas = [{name: area + 1e-6 for name, area in by.items()} for by in areas]
    names = [name for name in areas[0] if name != "felps"]
    cells = [
        {"factors": {"trace": u.trace, "window": u.window}, "seed": u.seed, "method": name, "value": by[name]}
        for u, by in zip(units, areas)
        for name in by
    ]
    ctx.note(sweeps.by_trace(effects.advantages(cells, np.log), np.exp, "area over that of the best rival"))
    for trace in sweeps.traces(ctx):
        loads: dict[int, list[float]] = {}
        for _, i, seed in sweeps.jobs(ctx, (trace,)):
            key = {"offered": trace, "seed": seed}
            value = ctx.cell(key, lambda t=trace, s=seed, i=i: ex.offered_load(ctx.data(t), t, s, i))
            loads.setdefault(ex.window_of(trace, i), []).append(value)
        told = ", ".join(f"{np.mean(v):.2f}" for _, v in sorted(loads.items()))
        ctx.note(
            f"{trace}: offered load by window, over what the engine delivers with a slot for every adapter: {told}"
        )
    least = effects.ratio_on_worst_trace(cells, 0.99)[1]
    figures = sweeps.front_pictures(ctx, units)
    if ctx.tier != "quick":
        figures += sweeps.run_pictures(ctx)
    return Measurement(
        ours=Series(_sweep_setting(ctx), [by["felps"] for by in areas]),
        baselines={name: Series({"sweep": "own parameter, all modes"}, [by[name] for by in areas]) for name in names},
        seeds=[unit.seed for unit in units],
        cells=cells,
        data=sweeps.data_used(ctx, sweeps.traces(ctx)),
        figures=figures,
        reason="" if ctx.tier == "quick" or least >= 1.0 else NOTHING_TO_TRADE,
        tuned_by=None if ctx.tier == "quick" else "modes",
    )


NOTHING_TO_TRADE = (
    "on the code trace two windows of six offer no more than the engine delivers; all policies agree there, nothing is to "
    "be traded, and the ratio is one. The four others and every window of the other traces are above one"
)


def _sweep_setting(ctx: Context) -> dict[str, Any]:
    """FELPS in whole sweeps: all weights, the slot mode that tuning chose for the trace."""
    if ctx.tier == "quick":
        return {"policy": "felps", "mode": "drain"}
    modes = {trace: {"mode": mode} for trace, mode in ex.FELPS_MODE.items()}
    return {"policy": "felps", "weights": list(ex.WEIGHTS)} | modes


@measures(
    Claim(
        id="not-dominated",
        statement="on every trace no point of any rival's own sweep is better than a FELPS point of weight at most 0.5 in both "
        "fairness and throughput, even in the mean alone",
        paper_value=NO_FIGURE,
        scope="proxy",
        metric="pairs (rival's point, FELPS point) with dominance over a trace's windows: beyond the paired interval (lower "
        "end), in the mean (upper end)" + SIMULATED,
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
    units = sweeps.units(ctx)
    cells = [
        {
            "factors": {"trace": unit.trace, "window": unit.window, "setting": name, "metric": metric},
            "seed": unit.seed,
            "method": sweeps.method_of(name),
            "value": values[metric],
        }
        for unit in units
        for name, values in unit.rows.items()
        for metric in sweeps.SHOWN
    ]
    for line in sweeps.where_rivals_win(cells):
        ctx.note(line)
    alone = [sweeps.pairs_dominated(unit.rows) for unit in units]
    ctx.note("the values are the pairs in each run alone, noise and all; the effect is over windows")
    return Measurement(
        ours=Series(_sweep_setting(ctx), alone),
        cells=cells,
        seeds=[unit.seed for unit in units],
        data=sweeps.data_used(ctx, ex.TRACES),
        tuned_by="modes",
    )


A_TIE = (
    "ahead on the conversation trace alone. On the code trace VTC is as fair, and no slower in the windows that do "
    "not fill the engine; on the arena trace deficit round robin with a quantum of 64000 is as fast, faster where most is "
    "offered, and less fair. Tuning saw this coming: on development windows the smallest advantage was 0 at the best weight"
)


@measures(
    Claim(
        id="beats-fair-schedulers",
        statement="on every trace, at one weight of at most 0.5, FELPS is better in both figures than VTC that drains, VTC that "
        "blocks, and deficit round robin that drains or blocks, at each of its quanta",
        paper_value=NO_FIGURE,
        scope="proxy",
        metric="ours / rival - 1, geometric mean over a trace's windows, the smallest over traces, rivals and both figures"
        + SIMULATED,
        unit="1",
        direction="higher",
        criterion=Criterion("difference", at_least=0.0, effect="neurips26.felps.effects:smallest_advantage"),
    ),
    tiers=("cpu",),
)
def beats_fair(ctx: Context) -> Measurement:
    """The smallest advantage decides; VTC and DRR that skip are in the full table."""
    ours = {"policy": "felps", "mode": "drain", "weight": ex.WEIGHT}
    theirs = [s for s in ex.rivals() if s["policy"] in ("vtc", "drr") and s["mode"] != "skip"]
    cells, smallest = [], []
    units = sweeps.units_of(ctx, "fair schedulers", [ours, *theirs])
    for unit in units:
        ratios = {
            (rival, metric): unit.rows[label(ours)][metric] / unit.rows[rival][metric]
            for rival in map(label, theirs)
            for metric in ("jain", "throughput")
        }
        smallest.append(min(ratios.values()) - 1)
        for (rival, metric), value in ratios.items():
            factors = {"trace": unit.trace, "window": unit.window, "rival": rival, "metric": metric}
            cells.append({"factors": factors, "seed": unit.seed, "method": "felps", "value": value})
    groups = effects.rival_advantages(cells)
    for trace in ex.TRACES:
        _, rival, metric = min((key for key in groups if key[0] == trace), key=lambda key: np.mean(groups[key]))
        which = f"smallest advantage on {trace}: {metric}, against {rival}"
        ctx.note(sweeps.by_trace({trace: groups[trace, rival, metric]}, np.expm1, which))
    ctx.note("the values are the smallest advantage in each run alone, noise and all; the effect is over windows")
    return Measurement(
        ours=Series(ours, smallest),
        cells=cells,
        seeds=[unit.seed for unit in units],
        data=sweeps.data_used(ctx, ex.TRACES),
        reason="" if effects.smallest_advantage(cells, 0.99)[1] >= 0.0 else A_TIE,
        tuned_by="weight",
    )


NEAR_ONE = (
    "far above the bar in the mean of the conversation and arena traces; on the code trace VTC that skips has an index near 0.95 "
    "already, and FELPS gains half of what is left. No weight reached 0.03 there on development windows"
)
SWAPS = (
    "fairness is paid for with adapter loads, the more the more work is offered: 4 % of the throughput on the conversation "
    "trace; on the arena trace from 1 % in the window with an offered load of 1.10 to 24 % in that with 1.54. There the "
    "development windows had cost 1.5 %"
)


def _against_skip(ctx: Context, metric: str) -> Measurement:
    felps, vtc = {"policy": "felps", "mode": "drain", "weight": ex.SKIP_WEIGHT}, {"policy": "vtc", "mode": "skip"}
    units = sweeps.units_of(ctx, "VTC that skips", [felps, vtc])
    ours, theirs = ([unit.rows[label(setting)][metric] for unit in units] for setting in (felps, vtc))
    cells = [
        {"factors": {"trace": u.trace, "window": u.window}, "seed": u.seed, "method": method, "value": value}
        for u, *pair in zip(units, ours, theirs)
        for method, value in zip(("felps", "vtc"), pair)
    ]
    if metric == "jain":
        ctx.note(sweeps.by_trace(effects.advantages(cells), float, "Jain index, ours less VTC's"))
        met, why = effects.difference_on_worst_trace(cells, 0.99)[1] >= 0.03, NEAR_ONE
    else:
        ctx.note(sweeps.by_trace(effects.advantages(cells, np.log), np.exp, "throughput, ours over VTC's"))
        met, why = effects.ratio_on_worst_trace(cells, 0.99)[1] >= 0.97, SWAPS
    return Measurement(
        ours=Series(felps, ours),
        baselines={"vtc": Series(vtc, theirs)},
        compared_to="vtc",
        seeds=[unit.seed for unit in units],
        cells=cells,
        data=sweeps.data_used(ctx, ex.TRACES),
        reason="" if met else why,
        tuned_by="weight-vtc-skip",
    )


@measures(
    Claim(
        id="fairer-than-vtc-skip",
        statement="on every trace FELPS is fairer than VTC that skips by at least 0.03 of the Jain index",
        paper_value=NO_FIGURE,
        scope="proxy",
        metric="difference of the Jain index of served fractions, mean over a trace's windows, on the trace where it is least"
        + SIMULATED,
        unit="1",
        direction="higher",
        criterion=Criterion("difference", at_least=0.03, effect="neurips26.felps.effects:difference_on_worst_trace"),
    ),
    tiers=("cpu",),
)
def fairer_than_vtc_skip(ctx: Context) -> Measurement:
    """At the weight of the next claim."""
    return _against_skip(ctx, "jain")


@measures(
    Claim(
        id="as-fast-as-vtc-skip",
        statement="and on every trace keeps at least 97 % of that VTC's throughput at the same weight",
        paper_value=NO_FIGURE,
        scope="proxy",
        metric="throughput over that of VTC that skips, geometric mean over a trace's windows, on the trace where it is least"
        + SIMULATED,
        unit="1",
        direction="higher",
        criterion=Criterion("ratio", at_least=0.97, effect="neurips26.felps.effects:ratio_on_worst_trace"),
    ),
    tiers=("cpu",),
)
def as_fast_as_vtc_skip(ctx: Context) -> Measurement:
    """At the weight of the claim before."""
    return _against_skip(ctx, "throughput")
