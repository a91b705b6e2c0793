"""What the GPU tier measures. Every function takes a `Scale`, so that the same code runs in small on a CPU (Triton's interpreter)
as a
rehearsal: figures of a rehearsal are thrown away."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from neurips26.flash_kmeans.gpu_engine import GpuEngine, device_loop, prepare
from neurips26.flash_kmeans.gpu_plan import ARCHITECTURES, Device, plan_update
from neurips26.flash_kmeans.gpu_update import launch_update
from neurips26.flash_kmeans.precision import assign_points

__all__ = ["STEPS", "Scale", "full_scale", "rehearsal"]

Values = dict[str, list[float]]


@dataclass(frozen=True)
class Scale:
    """Sizes of a run: `device`, a divisor of the published sizes, iterations, repeats, seeds."""

    device: str
    shrink: int
    iterations: int
    repeats: int
    seeds: tuple[int, ...]

    def size(self, n: int, least: int = 8) -> int:
        """A published size, made smaller for a rehearsal."""
        return max(least, n // self.shrink)


def full_scale(seeds: list[int]) -> Scale:
    """The published sizes on the GPU of this machine."""
    return Scale("cuda", 1, 20, 5, tuple(seeds))


def rehearsal() -> Scale:
    """Every step on the CPU, with the sizes divided by 1024."""
    return Scale("cpu", 1024, 1, 1, (0,))


def _sync(scale: Scale) -> None:
    if scale.device == "cuda":
        torch.cuda.synchronize()


def _seconds(scale: Scale, call: Callable[..., Any], *arguments: Any, **options: Any) -> float:
    """Median wall seconds of a call after one warm-up, waiting for the device on both sides."""
    call(*arguments, **options)
    readings = []
    for _ in range(scale.repeats):
        _sync(scale)
        start = time.perf_counter()
        call(*arguments, **options)
        _sync(scale)
        readings.append(time.perf_counter() - start)
    return statistics.median(readings)


def _points(scale: Scale, b: int, n: int, d: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator(device=scale.device)
    generator.manual_seed(seed)
    return torch.randn(b, n, d, generator=generator, device=scale.device, dtype=torch.float32).to(dtype)


def _materialised(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """The reference: all scores in memory, then the argmin."""
    scores = torch.baddbmm((c.float() ** 2).sum(-1)[:, None].to(x.dtype), x, c.to(x.dtype).transpose(1, 2), alpha=-2)
    return scores.argmin(-1)


def assignment(scale: Scale) -> Values:
    """Assignment against the materialised product at B=32, N=65,536, K=1024, D=128, float16."""
    b, n, k, d = (scale.size(32, 2), scale.size(65_536, 64), scale.size(1024, 16), scale.size(128, 16))
    values: Values = {"ours": [], "materialised": []}
    for seed in scale.seeds:
        x = _points(scale, b, n, d, torch.float16, seed)
        c = x[:, :k].float().contiguous()
        values["ours"].append(_seconds(scale, assign_points, x, c, precision="fast"))
        values["materialised"].append(_seconds(scale, _materialised, x, c))
    return values


def _authors() -> Callable[..., Any] | None:
    try:
        from flash_kmeans import batch_kmeans_Euclid
    except ImportError:
        return None
    return batch_kmeans_Euclid


def _end_to_end(scale: Scale, shapes: list[tuple[int, int, int, int]]) -> Values:
    """Fits of `shapes` `(B, N, K, D)`, float16, tolerance off, from the same centroids; the authors' package where installed."""
    authors = _authors()
    values: Values = {"ours": []} | ({"authors": []} if authors else {})
    for seed in scale.seeds:
        times: Values = {name: [] for name in values}
        for b, n, k, d in shapes:
            x = _points(scale, b, n, d, torch.float16, seed)
            start = x[:, :k].float().contiguous()

            def ours(x: torch.Tensor = x, start: torch.Tensor = start) -> Any:
                return device_loop(
                    x, start, max_iter=scale.iterations, tol=-1.0, variance=torch.ones(len(x), device=x.device),
                    metric="euclidean",
                    precision="fast", empty="keep", deterministic=True,
                )  # fmt: skip

            times["ours"].append(_seconds(scale, ours))
            if authors is not None:
                init = start.to(x.dtype)
                options = dict(max_iters=scale.iterations, tol=-1.0, init_centroids=init)
                times["authors"].append(_seconds(scale, authors, x, k, **options))
        for name, row in times.items():
            values[name].append(float(np.exp(np.mean(np.log(row)))))
    return values


def end_to_end(scale: Scale) -> Values:
    """The grid published with the authors' code: B 8 and 32, N 16k to 131k, K 100 and 1000, D 128."""
    shapes = [(b, n, k, 128) for b in (8, 32) for n in (16_384, 65_536, 131_072) for k in (100, 1000)]
    return _end_to_end(
        scale, [(scale.size(b, 1), scale.size(n, 64), scale.size(k, 4), scale.size(d, 16)) for b, n, k, d in shapes]
    )


def small_segments(scale: Scale) -> Values:
    """Few points a cluster: N / K of 4 and 8."""
    shapes = [(8, 32_768, 4096, 128), (8, 32_768, 8192, 128), (1, 131_072, 32_768, 64)]
    return _end_to_end(
        scale, [(scale.size(b, 1), scale.size(n, 64), scale.size(k, 8), scale.size(d, 16)) for b, n, k, d in shapes]
    )


def first_calls(scale: Scale) -> Values:
    """Latency of fresh shapes: 50 pairs (N, K) at D=64, each called once after one warm-up of another shape."""
    authors = _authors()
    values: Values = {"ours": []} | ({"authors": []} if authors else {})
    for seed in scale.seeds:
        rng = np.random.default_rng(seed)
        shapes = [
            (int(rng.integers(500, 5000)) // ((scale.shrink > 1 and 16) or 1), int(rng.integers(8, 64)))
            for _ in range(50)
        ]
        shapes = shapes[: 50 if scale.shrink == 1 else 2]
        for name in values:
            total = 0.0
            for n, k in [(777, 9), *shapes]:
                x = _points(scale, 1, max(n, k), 64, torch.float16, seed)
                start = x[:, :k].float().contiguous()
                _sync(scale)
                begin = time.perf_counter()
                if name == "ours":
                    assign_points(x, start, precision="fast")
                else:
                    assert authors is not None
                    authors(x, k, max_iters=1, tol=-1.0, init_centroids=start.to(x.dtype))
                _sync(scale)
                total += time.perf_counter() - begin if n != 777 else 0.0
            values[name].append(total / len(shapes))
    return values


def _scatter(k: int, rows: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Sums by atomics."""
    return torch.zeros(k, x.shape[1], device=x.device).index_add_(0, rows, x)


def update_skew(scale: Scale) -> Values:
    """The update with Zipf(1.2) sizes, with equal sizes, and a scatter by atomics (`index_add_`) on the Zipf sizes."""
    n, k, d = scale.size(8_000_000, 512), scale.size(1024, 16), scale.size(128, 16)
    values: Values = {"zipf": [], "equal sizes": [], "index_add_": []}
    for seed in scale.seeds:
        rng = np.random.default_rng(seed)
        x = _points(scale, 1, n, d, torch.float16, seed)
        plan = plan_update(n, k, d, 2, Device.current() if x.is_cuda else ARCHITECTURES[90])
        skewed = torch.from_numpy(rng.permutation(k)[np.minimum(rng.zipf(1.2, n), k) - 1].astype(np.int32)).to(
            x.device
        )[None]
        equal = torch.from_numpy(rng.integers(0, k, n, dtype=np.int32)).to(x.device)[None]
        wide = x[0].float()
        values["zipf"].append(_seconds(scale, launch_update, x, skewed, k, plan))
        values["equal sizes"].append(_seconds(scale, launch_update, x, equal, k, plan))
        rows = skewed[0].long()
        values["index_add_"].append(_seconds(scale, _scatter, k, rows, wide))
    return values


def memory(scale: Scale) -> Values:
    """Peak device memory of an assignment over the bytes of its inputs and outputs."""
    if scale.device != "cuda":
        return {"peak / input": [1.0]}
    x = _points(scale, 1, 4_000_000, 128, torch.float16, 0)
    c = x[:, :4096].float().contiguous()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    assign_points(x, c, precision="fast")
    _sync(scale)
    return {"peak / input": [torch.cuda.max_memory_allocated() / held]}


def certified(scale: Scale) -> Values:
    """Labels of `certified` that differ from `ieee` on a million rows, for each storage type."""
    n, k, d = scale.size(1_000_000, 512), scale.size(1024, 32), scale.size(256, 32)
    found: Values = {"mismatches": [], "share re-evaluated": []}
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        x = _points(scale, 1, n, d, dtype, 7)
        c = x[:, :k].float().contiguous() * 0.5
        sure, exact = assign_points(x, c, precision="certified"), assign_points(x, c, precision="ieee")
        found["mismatches"].append(float((sure.labels != exact.labels).sum()))
        found["share re-evaluated"].append(float(sure.n_rechecked.sum()) / n)
    return found


def overlap(scale: Scale) -> Values:
    """One iteration over host data in chunks, the copies alone, and the arithmetic alone."""
    from neurips26.flash_kmeans.choices import Choices
    from neurips26.flash_kmeans.rows import rows_of

    n, k, d = scale.size(16_000_000, 2048), scale.size(4096, 8), scale.size(128, 16)
    chunk = scale.size(1 << 20, 512)
    x = np.random.default_rng(0).standard_normal((n, d), dtype=np.float32)
    engine = GpuEngine(
        rows_of(x), k, torch.device(scale.device), precision="fast", deterministic=True, weights=None, unit=False, center=True,
        chunk_rows=chunk, memory_limit=None, check_finite=False, choices=Choices(),
    )  # fmt: skip
    c = x[:k].astype(np.float64) - engine.centre
    together = _seconds(scale, lambda: engine.step(c))
    copies = _seconds(scale, lambda: [len(points) for _, points in engine.stream])
    one = torch.from_numpy(x[:chunk]).to(scale.device)[None]
    centroids = torch.from_numpy(c.astype(np.float32)).to(scale.device)[None]
    plan = plan_update(chunk, k, d, 4)

    def work() -> None:
        out = assign_points(one, centroids, precision="fast", distances=True)
        launch_update(one, out.labels, k, plan)

    arithmetic = _seconds(scale, work) * n / chunk
    return {"together": [together], "longer of the two": [max(copies, arithmetic)]}


def online(scale: Scale) -> Values:
    """Attention values of a video model, `(2, 37440, 32, 128)` viewed as 64 problems without a copy: one warm iteration,
    K=293."""
    tokens, heads = scale.size(37_440, 64), scale.size(32, 2)
    x = _points(scale, 2, tokens * heads, 128 if scale.shrink == 1 else 16, torch.bfloat16, 0)
    view = (
        x.view(2, tokens, heads, -1).transpose(1, 2).flatten(0, 1)
        if heads == 1
        else x.view(2, tokens, heads, -1)[0].transpose(0, 1)
    )
    k = scale.size(293, 8)
    start = view[:, :k].float().contiguous()
    points, _, variance = prepare(view, "euclidean", check_finite=False)
    options: dict[str, Any] = dict(metric="euclidean", precision="fast", empty="keep", deterministic=True)
    return {
        "seconds": [
            _seconds(scale, lambda: device_loop(points, start, max_iter=1, tol=-1.0, variance=variance, **options))
        ]
    }


#: Steps by name, in the order of `benchmarks/gpu.py`.
STEPS: dict[str, Callable[[Scale], Values]] = {
    "certified": certified, "assignment": assignment, "end to end": end_to_end, "small segments": small_segments,
    "first calls": first_calls, "update and skew": update_skew, "memory": memory, "overlap": overlap, "online": online,
}  # fmt: skip
