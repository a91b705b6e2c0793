"""The abstract's claims, and what a scheduler of this kind must keep to be used, each as a test."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from neurips26.felps import experiments as ex
from neurips26.felps import live, sweeps
from neurips26.felps.compare import label
from neurips26.felps.decision_cost import admission_cost
from neurips26.felps.felps import FELPSPolicy
from neurips26.felps.policy import Policy
from neurips26.felps.simulator import Simulator
from neurips26.felps.tuning import sensitivity, tune_modes, tune_plug_in, tune_weight, tune_weight_against_skip
from neurips26.felps.workload import Workload
from neurips26.shared.claims import Claim, Criterion, DataUse, Measurement, Series, measures
from neurips26.shared.context import Context
from neurips26.shared.seeding import rng

GRIDS = (tune_modes, tune_weight, tune_weight_against_skip, tune_plug_in, sensitivity)
"""The registry looks in this module for grids as it does for claims."""
NO_FIGURE = "none: only the abstract was at hand, which prints no figure"


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
    units = sweeps.units(ctx)
    areas = [
        ex.front_areas({n: (sweeps.method_of(n), f["jain"], f["throughput"]) for n, f in rows.items()})
        for _, _, rows in units
    ]
    names = [name for name in areas[0] if name != "felps"]
    best = max(names, key=lambda name: np.mean([a[name] for a in areas]))
    loads = [
        ctx.cell({"offered": t, "seed": s}, lambda t=t, s=s, i=i: ex.offered_load(ctx.data(t), t, s, i))
        for t in sweeps.traces(ctx)
        for i, s in enumerate(sweeps.seeds(ctx))
    ]
    per_trace = np.array(loads).reshape(len(sweeps.traces(ctx)), -1).mean(axis=1)
    ctx.note(
        "offered load over what the engine delivers with a slot for every adapter: "
        + ", ".join(f"{t} {v:.2f}" for t, v in zip(sweeps.traces(ctx), per_trace))
    )
    figures = sweeps.front_pictures(ctx, units)
    if ctx.tier != "quick":
        figures += sweeps.run_pictures(ctx)
    return Measurement(
        ours=Series({"weights": list(ex.WEIGHTS)}, [a["felps"] + 1e-6 for a in areas]),
        baselines={name: Series({"sweep": "own parameter"}, [a[name] + 1e-6 for a in areas]) for name in names},
        compared_to=best,
        seeds=[seed for _, seed, _ in units],
        data=sweeps.data_used(ctx, sweeps.traces(ctx)),
        figures=figures,
        tuned_by=None if ctx.tier == "quick" else "modes",
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
            "method": sweeps.method_of(name),
            "value": values[metric],
        }
        for trace, seed, rows in sweeps.units(ctx)
        for name, values in rows.items()
        for metric in sweeps.SHOWN
    ]
    for line in sweeps.where_rivals_win(cells):
        ctx.note(line)
    return Measurement(cells=cells, seeds=sweeps.seeds(ctx), data=sweeps.data_used(ctx, ex.TRACES), tuned_by="modes")


WEIGHT = 0.2


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
    for trace, seed, rows in sweeps.extended(ctx, "fair schedulers", [ours, *theirs]):
        for rival in map(label, theirs):
            for metric in ("jain", "throughput"):
                factors = {"trace": trace, "rival": rival, "metric": metric}
                value = rows[label(ours)][metric] / rows[rival][metric]
                cells.append({"factors": factors, "seed": seed, "method": "felps", "value": value})
    return Measurement(
        cells=cells, seeds=ctx.seeds(sweeps.FAIR_SEEDS), data=sweeps.data_used(ctx, ex.TRACES), tuned_by="weight"
    )


SKIP_WEIGHT = 0.5


def _against_skip(ctx: Context, metric: str) -> Measurement:
    ours, theirs, cells = [], [], []
    felps, vtc = {"policy": "felps", "mode": "drain", "weight": SKIP_WEIGHT}, {"policy": "vtc", "mode": "skip"}
    units = sweeps.extended(ctx, "VTC that skips", [felps, vtc])
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
        data=sweeps.data_used(ctx, ex.TRACES),
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
    return sweeps.trend(ctx, "loads_per_s")


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
    return sweeps.trend(ctx, "gap")


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
        ours=Series({"runs": 9 + 9 * 5}, [total / 60 / 2]),
        seeds=[seed],
        cells=cells,
        data=sweeps.data_used(ctx, ("conv",)),
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
