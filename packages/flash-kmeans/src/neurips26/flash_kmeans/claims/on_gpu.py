"""Claims at the paper's scale, which need a GPU."""

from __future__ import annotations

from functools import cache
from typing import Any

from neurips26.shared.claims import Claim, Criterion, DataUse, Measurement, Series, measures
from neurips26.shared.context import Context
from neurips26.shared.record import NotTestable


def _gpu_claim(
    id: str,
    statement: str,
    paper: str,
    metric: str,
    criterion: Criterion,
    unit: str = "s",
    scope: Any = "paper setting",
) -> Claim:
    return Claim(id, statement, paper, scope, metric, unit, "lower", criterion, needs=("gpu",), rerun_tolerance=None)


@cache
def _measured(step: str, seeds: tuple[int, ...]) -> dict[str, list[float]]:
    """Values of a step, kept: two claims look at the update."""
    from neurips26.flash_kmeans import gpu_bench

    return gpu_bench.STEPS[step](gpu_bench.full_scale(list(seeds)))


def _on_gpu(ctx: Context, step: str, ours: str, baseline: str | None, seeds: int = 5) -> Measurement:
    """Run one step of `gpu_bench` at full scale."""
    chosen = ctx.seeds(seeds)
    values = ctx.cell(step, lambda: _measured(step, tuple(chosen)))
    if baseline is not None and baseline not in values:
        raise NotTestable("the authors' package flash-kmeans 0.3.1 is not installed")
    others = {name: Series({}, v) for name, v in values.items() if name != ours and len(v) == len(values[ours])}
    return Measurement(ours=Series({"step": step}, values[ours]), baselines=others, compared_to=baseline, seeds=chosen,
                       data=[DataUse("standard normal points", "generated")])  # fmt: skip


@measures(
    _gpu_claim(
        "gpu-flash-assign", "Assignment without the distance matrix is several times faster than with it",
        "FlashAssign up to 21.2x (122.5 ms to 5.8 ms, H200)",
        "time of the assignment at B=32, N=65,536, K=1024, D=128, float16, ours / torch product and argmin",
        Criterion("ratio", at_most=0.2),
    ),
    tiers=("cpu", "gpu"),
)  # fmt: skip
def gpu_flash_assign(ctx: Context) -> Measurement:
    """The motivating shape; the time with certified labels is listed beside."""
    return _on_gpu(ctx, "assignment", "ours", "materialised")


@measures(
    _gpu_claim(
        "gpu-end-to-end", "A fit is as fast as the authors' own code on their grid",
        "up to 17.9x over the best baseline (H200)",
        "time of 20 iterations, geometric mean of the published grid, ours / flash-kmeans 0.3.1",
        Criterion("ratio", at_most=1 / 0.95),
    ),
    tiers=("cpu", "gpu"),
)  # fmt: skip
def gpu_end_to_end(ctx: Context) -> Measurement:
    """B 8 and 32, N 16k to 131k, K 100 and 1000, D 128, float16; the fit in PyTorch that holds the matrix is listed beside."""
    return _on_gpu(ctx, "end to end", "ours", "authors")


@measures(
    _gpu_claim(
        "gpu-small-segments", "Few points a cluster do not slow the update down", "none: beyond the published grid",
        "time of 20 iterations at N/K of 4 to 8, ours / flash-kmeans 0.3.1", Criterion("ratio", at_most=1 / 1.5), scope="proxy",
    ),
    tiers=("cpu", "gpu"),
)  # fmt: skip
def gpu_small_segments(ctx: Context) -> Measurement:
    """The work list reads each row once, whatever the sizes."""
    return _on_gpu(ctx, "small segments", "ours", "authors")


@measures(
    _gpu_claim(
        "gpu-first-call", "A new shape needs no new kernel: usable online", "heuristic 175x cheaper than exhaustive tuning",
        "mean latency of the first iteration on 50 fresh shapes, ten a seed, ours / flash-kmeans 0.3.1",
        Criterion("ratio", at_most=0.1), scope="proxy",
    ),
    tiers=("cpu", "gpu"),
)  # fmt: skip
def gpu_first_call(ctx: Context) -> Measurement:
    """N from 500 to 5,000, K from 8 to 64, D 64."""
    return _on_gpu(ctx, "first calls", "ours", "authors")


@measures(
    _gpu_claim(
        "gpu-sort-inverse", "The sorted update beats a scatter by atomics on skewed clusters",
        "Sort-Inverse Update up to 6.3x (H200)",
        "time of the update at N=8M, K=1024, D=128 with Zipf(1.2) sizes, ours / index_add_", Criterion("ratio", at_most=1 / 3),
    ),
    tiers=("cpu", "gpu"),
)  # fmt: skip
def gpu_sort_inverse(ctx: Context) -> Measurement:
    """The time on equal sizes is listed beside."""
    return _on_gpu(ctx, "update and skew", "zipf", "index_add_")


@measures(
    _gpu_claim(
        "gpu-skew", "The update does not slow down when most points fall into few clusters, where atomics contend",
        "Sort-Inverse Update up to 6.3x over atomic scatter (H200)",
        "time of the update at N=8M, K=1024, D=128 with Zipf(1.2) sizes / with equal sizes, both ours",
        Criterion("ratio", at_most=1.3), scope="proxy",
    ),
    tiers=("cpu", "gpu"),
)  # fmt: skip
def gpu_skew(ctx: Context) -> Measurement:
    """A claim about a GPU alone: a thread of a CPU adds row after row and contends with nobody. The scatter is listed beside."""
    return _on_gpu(ctx, "update and skew", "zipf", "equal sizes")


@measures(
    _gpu_claim(
        "gpu-certified", "Tensor cores and exact labels: a certificate repairs what rounding breaks", "exact",
        "labels that differ from full float32 or are not nearest in float64, a million rows and odd shapes, 3 storage types",
        Criterion("bound", at_most=0.0, deterministic=True), unit="labels",
    ),
    tiers=("cpu", "gpu"),
)  # fmt: skip
def gpu_certified(ctx: Context) -> Measurement:
    """The share of rows evaluated twice is listed beside; sums of the update are compared with a scatter in float64."""
    return _on_gpu(ctx, "certified", "mismatches", None, seeds=1)


@measures(
    _gpu_claim(
        "gpu-memory", "No distance matrix in device memory", "O(Nd + Kd) instead of O(NK)",
        "peak device memory of an assignment over its inputs, N=4M, K=4096, D=128 float16",
        Criterion("bound", at_most=1.05, deterministic=True), unit="1",
    ),
    tiers=("cpu", "gpu"),
)  # fmt: skip
def gpu_memory(ctx: Context) -> Measurement:
    """The matrix would take 65 GB."""
    return _on_gpu(ctx, "memory", "peak / input", None, seeds=1)


@measures(
    _gpu_claim(
        "gpu-overlap", "Copies of host data hide behind the arithmetic",
        "N=1e9, K=32,768, D=128: 41.4 s against 261.8 s an iteration",
        "time of an iteration over host data / the longer of copies and arithmetic alone",
        Criterion("ratio", at_most=1.15),
        scope="scaled down",
    ),
    tiers=("cpu", "gpu"),
)  # fmt: skip
def gpu_overlap(ctx: Context) -> Measurement:
    """N=16M, K=4096, D=128, float32, chunks of 2^20 rows."""
    return _on_gpu(ctx, "overlap", "together", "longer of the two")
