"""What a decision and a sweep cost."""

from __future__ import annotations

import time
from typing import Any

from neurips26.felps import experiments as ex
from neurips26.felps import sweeps
from neurips26.felps.claims.common import NO_FIGURE
from neurips26.felps.compare import label
from neurips26.felps.decision_cost import admission_cost
from neurips26.felps.policy import Policy
from neurips26.felps.workload import Workload
from neurips26.shared.claims import Claim, Criterion, DataUse, Measurement, Series, measures
from neurips26.shared.context import Context


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
