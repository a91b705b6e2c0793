"""C6: time and memory of adaptation on the robot."""

from __future__ import annotations

from typing import Any

import numpy as np

from neurips26.shared.claims import Claim, Criterion, Measurement, Series, measures
from neurips26.shared.context import Context
from neurips26.shared.launch import launch

from .. import pictures
from ..latency import latency
from .cells import CHECKPOINT, ONBOARD, shipped


@measures(
    Claim(
        id="real-time",
        statement="A control tick with an update fits the 50 Hz loop with room to spare on one core",
        paper_value="fully on-device on a Unitree Go2 (no figure)",
        scope="proxy",
        metric="99th percentile of the CPU time of a tick with an update",
        unit="ms",
        direction="lower",
        criterion=Criterion("bound", at_most=10.0),
        rerun_tolerance=None,
    ),
    tiers=("quick", "cpu", "gpu"),
)
def real_time(ctx: Context) -> Measurement:
    """Five repetitions; the median tick stands beside the 99th percentile."""
    repeats, ticks = 5, 200 if ctx.tier == "quick" else 2000
    quantiles = np.arange(1, 200) / 2  # per cent, 50 and 99 among them

    def measured(seed: int) -> dict[str, Any]:
        row = latency(shipped(), ticks, seed)
        return row | {k: np.round(1e3 * np.percentile(row[k], quantiles), 4) for k in ("with", "without")}

    rows = [ctx.cell({"repeat": s, "ticks": ticks}, lambda s=s: measured(s)) for s in ctx.seeds(repeats)]
    ms = lambda r, q, k="with": float(r[k][2 * q - 1])  # noqa: E731
    cells = [
        {"factors": {"quantile": q, "tick": k}, "seed": s, "method": "tempo", "value": ms(r, q, k)}
        for s, r in zip(ctx.seeds(repeats), rows)
        for q in (50, 99)
        for k in ("with", "without")
    ]
    figure = pictures.latencies(rows, ctx.figure("latency.png"))
    ctx.note(
        f"recompilations after warm-up: {sum(r['recompiled'] for r in rows)}; compile {max(r['compile'] for r in rows):.1f} s"
    )
    return Measurement(
        Series({"batch": 32, "update_every": 4, "capacity": 512}, [ms(r, 99) for r in rows]),
        {},
        None,
        ctx.seeds(repeats),
        cells,
        ONBOARD,
        [figure],
        reason=f"median {np.median([ms(r, 50) for r in rows]):.2f} ms",
    )


@measures(
    Claim(
        id="memory",
        statement="Adaptation needs less than 4 MB of data beyond the frozen policy, however long it runs",
        paper_value="fully on-device on a Unitree Go2 (no figure)",
        scope="proxy",
        metric="arrays alive in the process beyond the frozen policy's, plus growth of its resident set over 10,000 ticks",
        unit="MB",
        direction="lower",
        criterion=Criterion("bound", at_most=4.0),
        rerun_tolerance=None,
    ),
    tiers=("cpu", "gpu"),
)
def resident_memory(ctx: Context) -> Measurement:
    """Fresh processes, one with the frozen policy and one that adapts, five pairs. The whole resident set, most of it the
    compiler's, stands beside."""
    repeats, ticks, target = 5, 10_000, "neurips26.tempo.footprint:footprint"
    pairs = []
    for seed in ctx.track(ctx.seeds(repeats), "pairs of processes"):
        pair = {
            method: ctx.cell(
                {"repeat": seed, "ticks": ticks, "method": method},
                lambda method=method, seed=seed: launch(target, 1, (CHECKPOINT, method, ticks, seed), timeout=300.0)[0],
            )
            for method in ("frozen", "tempo")
        }
        pairs.append(pair)
    cells = [
        {"factors": {"part": part}, "seed": seed, "method": method, "value": round(float(value), 4)}
        for seed, pair in zip(ctx.seeds(repeats), pairs, strict=True)
        for method, found in pair.items()
        for part, value in found.items()
    ]
    extra = [p["tempo"]["arrays"] - p["frozen"]["arrays"] + p["tempo"]["growth"] for p in pairs]
    mean = {m: {k: float(np.mean([p[m][k] for p in pairs])) for k in pairs[0][m]} for m in ("frozen", "tempo")}
    return Measurement(
        Series({"method": "tempo", "capacity": 512, "ticks": ticks}, [round(v, 4) for v in extra]),
        {
            "frozen": Series({"method": "frozen", "ticks": ticks}, [round(p["frozen"]["growth"], 4) for p in pairs]),
        },
        None,
        ctx.seeds(repeats),
        cells,
        ONBOARD,
        reason=f"arrays {mean['tempo']['arrays']:.2f} MB, growth {mean['tempo']['growth']:.2f} MB (frozen "
        f"{mean['frozen']['growth']:.2f}), slope {mean['tempo']['slope']:.3f} MB per 1000 ticks; the resident set is "
        f"{mean['tempo']['resident']:.0f} MB, that of a process with the frozen policy {mean['frozen']['resident']:.0f}: JAX "
        "compiles the update on the robot",
    )
