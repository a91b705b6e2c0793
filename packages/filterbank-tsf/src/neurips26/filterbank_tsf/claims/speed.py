"""Speed and memory of statistics and closed forms."""

from __future__ import annotations

import numpy as np

from neurips26.shared.claims import Claim, Criterion, DataUse, Measurement, Series, measures
from neurips26.shared.context import Context

from .. import experiments as ex
from ..selection import chosen_rule
from .units import uses


@measures(Claim(
    id="statistics-speed",
    statement="The displacement recursion is ten times faster than blocked float64 accumulation (L = 512, H = 96)",
    paper_value="none: ours", scope="proxy", metric="CPU time / blocked accumulation", unit="1", direction="lower",
    criterion=Criterion("bound", at_most=0.1), rerun_tolerance=None,
))  # fmt: skip
def statistics_speed(ctx: Context) -> Measurement:
    """Interleaved pairs in one process, on as many rows as ETTh1 trains on (one of seven channels if quick, which is harder:
    what does not depend on the channels weighs more).
    """
    channels = 1 if ctx.tier == "quick" else 7
    pairs = ctx.cell("pairs", lambda: ex.statistics_pairs(5, channels))
    return Measurement(Series({"rows": 8640, "channels": channels}, pairs), seeds=list(range(5)),
                       data=[DataUse("random", "generated")])  # fmt: skip


@measures(Claim(
    id="benchmark-time",
    statement="The whole closed-form benchmark of ETTh1 by the rule that the main table reports (four horizons, three "
              "look-backs, every rank and penalty of the rule, blocked cross-validation included, exact test error) takes at "
              "most 15 CPU seconds",
    paper_value="none: ours", scope="proxy", metric="CPU time", unit="s", direction="lower",
    criterion=Criterion("bound", at_most=15), rerun_tolerance=None,
), tiers=("cpu",))  # fmt: skip
def benchmark_time(ctx: Context) -> Measurement:
    """Five repeats; absolute CPU seconds, so a slower machine may fail it."""
    name = ex.main_sets(ctx)[0]
    lookbacks = ex.dataset(name).spec.lookbacks
    ours = [ctx.cell(f"repeat-{i}", lambda: ex.closed_form_seconds(name, lookbacks)) for i in range(5)]
    other = ctx.cell("on validation", lambda: ex.closed_form_seconds(name, lookbacks, on_validation=True))
    ctx.note(f"with the whole grid and the smallest validation error in place of that rule: {other:.1f} CPU seconds")
    return Measurement(Series({"lookbacks": list(lookbacks), "rule": chosen_rule().name}, ours), seeds=list(range(5)),
                       data=uses([name]))  # fmt: skip


@measures(Claim(
    id="benchmark-speed",
    statement="The closed-form table by the rule that the main table reports, blocked cross-validation included, takes at most "
              "a twentieth of the time that DLinear by Adam needs for the same table",
    paper_value="lower computational cost than recent solutions (abstract, no figures)", scope="proxy",
    metric="CPU time / DLinear's, all four horizons at L = 512", unit="1", direction="lower",
    criterion=Criterion("ratio", at_most=0.05), rerun_tolerance=None,
), tiers=("cpu",))  # fmt: skip
def benchmark_speed(ctx: Context) -> Measurement:
    """Ours includes the fits on all blocks, every penalty and rank of the rule and the exact test error.

    DLinear's time is that of one pass, measured five times, times the passes that its recipe makes at each horizon (at
    most ten, three without gain end it), counted in one complete training.
    """
    name, lookback = ex.main_sets(ctx)[0], 512
    if name == "co2":
        lookback = 208
    seeds, lr = ctx.seeds(5), ex.RECIPES["dlinear"].rates[0]
    whole = ctx.cell("whole", lambda: [
        ex.peer_cell(name, h, "dlinear", lookback, lr, seeds[0], test=False) for h in ex.horizons(name)
    ])  # fmt: skip
    passes = [row["passes"] for row in whole]
    ours, theirs = [], []
    for seed in ctx.track(seeds, "closed form against DLinear by Adam"):
        ours.append(ctx.cell(f"ours-{seed}", lambda: ex.closed_form_seconds(name, (lookback,))))
        one = ctx.cell(f"dlinear-{seed}", lambda s=seed: ex.dlinear_pass_seconds(name, lookback, s))
        theirs.append(float(np.dot(one, passes)))
    ctx.note(f"closed-form table {np.median(ours):.2f} CPU seconds (median); DLinear's complete training "
             f"{sum(row['seconds'] for row in whole):.1f}, passes {passes}")  # fmt: skip
    return Measurement(Series({"lookback": lookback}, ours), {"DLinear by Adam": Series({"lr": lr}, theirs)},
                       "DLinear by Adam", seeds, data=uses([name]))  # fmt: skip


@measures(Claim(
    id="memory",
    statement="No window matrix is ever built: at L = H = 720 on ETTh1-size data less than 300 MiB above the imports",
    paper_value="none: ours", scope="proxy", metric="peak memory above imports and data", unit="MiB", direction="lower",
    criterion=Criterion("bound", at_most=300, deterministic=True), rerun_tolerance=None,
), tiers=("cpu",))  # fmt: skip
def memory(ctx: Context) -> Measurement:
    """Statistics, eigendecomposition and a rank-12 fit in a process of its own."""
    row = ctx.cell("ett", lambda: ex.memory(8640, 7, 720, 720, True))
    ctx.note(f"{row['peak']:.0f} MiB in all, of which the imports are the most")
    return Measurement(Series({"rows": 8640, "channels": 7}, [row["above"]]), seeds=[0],
                       data=[DataUse("random", "generated")])  # fmt: skip


@measures(Claim(
    id="electricity-size",
    statement="Statistics of 26,304 x 321 values at L = H = 720 take under two minutes of one CPU and 1.5 GB in all",
    paper_value="none: ours", scope="proxy", metric="CPU seconds", unit="s", direction="lower",
    criterion=Criterion("bound", at_most=120, deterministic=True), rerun_tolerance=None,
), tiers=("cpu",))  # fmt: skip
def electricity_size(ctx: Context) -> Measurement:
    """Generated data of that size; peak memory in the note and the cells."""
    row = ctx.cell("electricity", lambda: ex.memory(26_304, 321, 720, 720, False))
    ctx.note(f"peak memory of the process {row['peak']:.0f} MiB")
    # Over the memory bar the claim must fail whatever the time.
    value = row["seconds"] if row["peak"] < 1500e6 / 2**20 else 1e6
    cells = [{"factors": {}, "seed": 0, "method": k, "value": v} for k, v in row.items()]
    return Measurement(Series({}, [value]), seeds=[0], cells=cells, data=[DataUse("random", "generated")])
