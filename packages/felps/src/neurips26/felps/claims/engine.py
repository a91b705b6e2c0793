"""The small real engine: the simulator predicts it, and mixed batches pay."""

from __future__ import annotations

import numpy as np

from neurips26.felps import live
from neurips26.felps.claims.common import NO_FIGURE
from neurips26.shared.claims import Claim, Criterion, DataUse, Measurement, Series, measures
from neurips26.shared.context import Context


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
        "six stretches of the arena trace that do not overlap, all after the part that development saw. A CPU needs more time "
        "for two or three sequences than for four, and some for each adapter in the batch: calibration fits one time a batch "
        "size and one an adapter"
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
        metric="Spearman correlation over four policies of simulated and real loads, mean over traces",
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
