"""What guidance and the anchor cost, as ratios of CPU seconds."""

from __future__ import annotations

from typing import Any

from neurips26.reference_guidance import speed
from neurips26.shared import bench
from neurips26.shared.claims import Claim, Criterion, DataUse, Measurement, Series, measures
from neurips26.shared.context import Context


# Speed ----------------------------------------------------------------------------------------------------------------
def _speed(ctx: Context, name: str, setting: dict[str, Any]) -> Measurement:
    case = speed.CASES[name]
    pairs = ctx.cell({"pairs": case.repeats}, lambda: list(bench.ratio(*case.make(), repeats=case.repeats).pairs))
    return Measurement(
        ours=Series(setting, pairs), seeds=list(range(len(pairs))), data=[DataUse("random tensors", "generated")],
        cells=[{"factors": {"peer": case.peer}, "seed": i, "method": "ours", "value": v} for i, v in enumerate(pairs)],
    )  # fmt: skip


@measures(
    Claim(
        "speed-mean", "The reference mean of 1000 references of FLUX.2 at 768x768 costs little more than one product",
        "none: our bar", "proxy", "CPU time relative to one float64 product refs @ x", "1", "lower",
        Criterion("bound", at_most=speed.CASES["mean"].bar), rerun_tolerance=None,
    ),
    tiers=("cpu",),
)  # fmt: skip
def speed_mean(ctx: Context) -> Measurement:
    """M = 1000, D = 294,912, float64, top 4, norms at hand."""
    return _speed(ctx, "mean", {"M": 1000, "D": 294_912, "topk": 4})


@measures(
    Claim(
        "speed-pipeline", "Guidance costs a pipeline next to nothing", "none: our bar", "proxy",
        "CPU time of a guided tiny Flux2Klein pipeline relative to unguided", "1", "lower",
        Criterion("bound", at_most=speed.CASES["pipeline"].bar), rerun_tolerance=None,
    ),
    tiers=("cpu",),
)  # fmt: skip
def speed_pipeline(ctx: Context) -> Measurement:
    """Random weights, 64x96 pixels, 8 steps, 20 references; a real transformer only makes the share smaller."""
    return _speed(ctx, "pipeline", {"references": 20, "steps": 8})


@measures(
    Claim(
        "speed-anchor", "With its keys cached the anchor's cost no longer depends on encoding the set", "none: our bar",
        "proxy", "CPU time with cached keys relative to uncached at M = 4096", "1", "lower",
        Criterion("bound", at_most=speed.CASES["anchor"].bar), rerun_tolerance=None,
    ),
    tiers=("cpu",),
)  # fmt: skip
def speed_anchor(ctx: Context) -> Measurement:
    """The authors' anchor (dim 768) on 8x8x32 latents, one sample."""
    return _speed(ctx, "anchor", {"M": 4096, "dim": 768})
