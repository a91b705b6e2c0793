"""What the weight does: any trade-off, and at zero service in proportion to workload."""

from __future__ import annotations

import numpy as np

from neurips26.felps import experiments as ex
from neurips26.felps import sweeps
from neurips26.felps.claims.common import NO_FIGURE, SIMULATED
from neurips26.felps.felps import FELPSPolicy
from neurips26.felps.simulator import Simulator
from neurips26.felps.workload import Workload
from neurips26.shared.claims import Claim, Criterion, DataUse, Measurement, Series, measures
from neurips26.shared.context import Context
from neurips26.shared.seeding import rng


@measures(
    Claim(
        id="loads-fall",
        statement="arbitrary trade-offs, efficiency end: adapter loads fall monotonically with the weight",
        paper_value=NO_FIGURE,
        scope="proxy",
        metric="Spearman correlation of weight and loads per second (nine weights, conversation trace)" + SIMULATED,
        unit="1",
        direction="lower",
        criterion=Criterion("monotone", at_most=-0.95, effect="neurips26.felps.effects:weight_trend"),
    )
)
def loads_fall(ctx: Context) -> Measurement:
    """One correlation a seed, their mean a window."""
    return sweeps.trend(ctx, "loads_per_s")


@measures(
    Claim(
        id="gap-rises",
        statement="arbitrary trade-offs, fairness end: the gap of served fractions rises monotonically with the weight",
        paper_value=NO_FIGURE,
        scope="proxy",
        metric="Spearman correlation of weight and mean gap between the largest and smallest served fraction"
        + SIMULATED,
        unit="1",
        direction="higher",
        criterion=Criterion("monotone", at_least=0.95, effect="neurips26.felps.effects:weight_trend"),
    ),
    tiers=("cpu",),
)
def gap_rises(ctx: Context) -> Measurement:
    """One correlation a seed, their mean a window."""
    return sweeps.trend(ctx, "gap")


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
