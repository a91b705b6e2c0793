"""What the GPU tier measures. Every function takes a `Scale`, so that the same code runs in small on a CPU (Triton's interpreter)
as a rehearsal, whose times mean nothing and are thrown away."""

from __future__ import annotations

import statistics
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from neurips26.flash_kmeans.gpu_assign import assign_kernel, split_assign_kernel
from neurips26.flash_kmeans.gpu_engine import GpuEngine, device_loop, prepare
from neurips26.flash_kmeans.gpu_plan import ARCHITECTURES, Device, plan_update
from neurips26.flash_kmeans.gpu_update import launch_update
from neurips26.flash_kmeans.precision import assign_points

__all__ = ["STEPS", "Scale", "added_bytes", "full_scale", "rehearsal"]

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
    """Assignment against the materialised product at B=32, N=65,536, K=1024, D=128, float16; `certified` beside `fast`."""
    b, n, k, d = (scale.size(32, 2), scale.size(65_536, 64), scale.size(1024, 16), scale.size(128, 16))
    values: Values = {"ours": [], "materialised": [], "ours, certified": []}
    for seed in scale.seeds:
        x = _points(scale, b, n, d, torch.float16, seed)
        c = x[:, :k].float().contiguous()
        values["ours"].append(_seconds(scale, assign_points, x, c, precision="fast"))
        values["materialised"].append(_seconds(scale, _materialised, x, c))
        values["ours, certified"].append(_seconds(scale, assign_points, x, c, precision="certified"))
    return values


def _ours(x: torch.Tensor, start: torch.Tensor, iterations: int) -> Any:
    """A fit of ours; it ends with one more assignment, so that labels belong to the centroids."""
    variance = torch.ones(len(x), device=x.device)
    return device_loop(
        x, start, max_iter=iterations, tol=-1.0, variance=variance, metric="euclidean", precision="fast", empty="keep",
        deterministic=True,
    )  # fmt: skip


def _reference(x: torch.Tensor, start: torch.Tensor, iterations: int) -> torch.Tensor:
    """The same fit in PyTorch: all scores in memory, the argmin, and sums by a scatter."""
    b, n, d = x.shape
    k, centroids, wide = start.shape[1], start, x.reshape(b * n, d).float()
    first = torch.arange(b, device=x.device)[:, None] * k
    ones = torch.ones(b * n, device=x.device)
    for _ in range(iterations):
        rows = (_materialised(x, centroids) + first).reshape(-1)
        sums, mass = _scatter(b * k, rows, wide), torch.zeros(b * k, device=x.device).index_add_(0, rows, ones)
        fresh = sums / mass.clamp_min(1)[:, None]
        centroids = torch.where((mass > 0)[:, None], fresh, centroids.reshape(b * k, d)).view(b, k, d)
    return centroids


def _fits() -> dict[str, Callable[[torch.Tensor, torch.Tensor, int], Any]]:
    """Ours, the reference, and the authors' package where it is installed."""
    found: dict[str, Callable[[torch.Tensor, torch.Tensor, int], Any]] = {"ours": _ours, "materialised": _reference}
    try:
        from flash_kmeans import batch_kmeans_Euclid
    except ImportError:
        return found

    def authors(x: torch.Tensor, start: torch.Tensor, iterations: int) -> Any:
        return batch_kmeans_Euclid(x, start.shape[1], max_iters=iterations, tol=-1.0, init_centroids=start.to(x.dtype))

    return {**found, "authors": authors}


def _end_to_end(scale: Scale, shapes: list[tuple[int, int, int, int]]) -> Values:
    """Fits of `shapes` `(B, N, K, D)`, float16, tolerance off, from the same centroids: geometric mean over the shapes."""
    fits = _fits()
    values: Values = {name: [] for name in fits}
    for seed in scale.seeds:
        times: Values = {name: [] for name in fits}
        for b, n, k, d in shapes:
            x = _points(scale, b, n, d, torch.float16, seed)
            start = x[:, :k].float().contiguous()
            for name, fit in fits.items():
                times[name].append(_seconds(scale, fit, x, start, scale.iterations))
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


def _compiled() -> int:
    """Variants of the assignment kernels that this process has compiled (none in the interpreter)."""
    found = [
        entry
        for kernel in (assign_kernel, split_assign_kernel)
        for entry in getattr(kernel, "device_caches", {}).values()
    ]
    return sum(len(entry[0]) for entry in found)


def first_calls(scale: Scale) -> Values:
    """Latency of fresh shapes: 50 pairs (N, K) at D=64, ten a seed, one iteration each, after another shape has been seen.

    Raises:
        RuntimeError: the shapes made the launcher compile more than four variants of the assignment.
    """
    fits = _fits()
    values: Values = {name: [] for name in fits if name != "materialised"}
    before = _compiled()
    for seed in scale.seeds:
        rng = np.random.default_rng(seed)
        high, count = (5000, 10) if scale.shrink == 1 else (600, 2)
        shapes = [(int(rng.integers(500, high)), int(rng.integers(8, 64))) for _ in range(count)]
        for name, row in values.items():
            total = 0.0
            for i, (n, k) in enumerate([(777, 9), *shapes]):
                x = _points(scale, 1, n, 64, torch.float16, seed)
                start = x[:, :k].float().contiguous()
                _sync(scale)
                begin = time.perf_counter()
                fits[name](x, start, 1)
                _sync(scale)
                total += time.perf_counter() - begin if i else 0.0
            row.append(total / count)
    if (made := _compiled() - before) > 4:
        raise RuntimeError(f"first calls: expected at most 4 variants of the assignment for fresh shapes, got {made}")
    return values


def _scatter(k: int, rows: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Sums by atomics."""
    return torch.zeros(k, x.shape[1], device=x.device).index_add_(0, rows, x)


def update_skew(scale: Scale) -> Values:
    """The update with Zipf(1.2) sizes, with equal sizes, and a scatter by atomics (`index_add_`) on the Zipf sizes."""
    n, k, d = scale.size(8_000_000, 512), scale.size(1024, 16), scale.size(128, 16)
    values: Values = {"zipf": [], "equal sizes": [], "index_add_": []}
    share = np.arange(1, k + 1) ** -1.2
    for seed in scale.seeds:
        rng = np.random.default_rng(seed)
        x = _points(scale, 1, n, d, torch.float16, seed)
        plan = plan_update(n, k, d, 2, Device.current() if x.is_cuda else ARCHITECTURES[90])
        skewed = torch.from_numpy(rng.permutation(k)[rng.choice(k, n, p=share / share.sum())].astype(np.int32)).to(
            x.device
        )[None]
        equal = torch.from_numpy(rng.integers(0, k, n, dtype=np.int32)).to(x.device)[None]
        wide = x[0].float()
        values["zipf"].append(_seconds(scale, launch_update, x, skewed, k, plan))
        values["equal sizes"].append(_seconds(scale, launch_update, x, equal, k, plan))
        rows = skewed[0].long()
        values["index_add_"].append(_seconds(scale, _scatter, k, rows, wide))
    return values


class _Allocations(TorchDispatchMode):
    """Bytes of the tensors that PyTorch makes inside, at their highest: what a device's allocator would count."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def _freed(self, key: int, size: int) -> None:
        self.live -= size
        self._known.discard(key)

    def _see(self, values: Any, new: bool) -> None:
        for storage in [t.untyped_storage() for t in tree_leaves(values) if isinstance(t, torch.Tensor)]:
            key, size = storage._cdata, storage.nbytes() if new else 0
            if key not in self._known:
                self._known.add(key)
                self.live += size
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self._freed, key, size)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._see((args, kwargs), new=False)
        out = func(*args, **(kwargs or {}))
        self._see(out, new=True)
        return out


def added_bytes(call: Callable[[], Any], where: str) -> int:
    """Memory that a call adds at its peak: the allocator's count on a GPU, PyTorch's tensors elsewhere."""
    if where == "cuda":
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - held
    with _Allocations() as count:
        call()
    return count.peak


def memory(scale: Scale) -> Values:
    """Peak device memory of an assignment over the bytes of its inputs, at N=4M, K=4096, D=128, float16."""
    x = _points(scale, 1, scale.size(4_000_000), 128, torch.float16, 0)
    c = x[:, : scale.size(4096)].float().contiguous()
    inputs = x.nbytes + c.nbytes
    return {"peak / input": [1 + added_bytes(lambda: assign_points(x, c, precision="fast"), scale.device) / inputs]}


#: Shapes (B, N, K, D) of which none is a multiple of a tile.
ODD = ((1, 1, 1, 3), (2, 65, 63, 3), (3, 130, 65, 17), (3, 7, 1000, 16), (1, 257, 66, 320), (1, 70, 9, 513))


def certified(scale: Scale) -> Values:
    """Labels of `certified` that differ from `ieee` or are not nearest in float64 (up to ties within 1e-6): on a million rows and
    on odd shapes, for each storage type.

    Raises:
        RuntimeError: sums of the update differ from those of a scatter in float64, or from their own repetition.
    """
    large = (1, scale.size(1_000_000, 512), scale.size(1024, 32), scale.size(256, 32))
    found: Values = {"mismatches": [], "share re-evaluated": [], "excess inertia of fast": []}
    for b, n, k, d in (large, *(ODD if scale.shrink == 1 else ODD[:3])):
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            x = _points(scale, b, n, d, dtype, 7)
            c = _points(scale, b, k, d, torch.float32, 8) if n < k else x[:, :k].float().contiguous() * 0.5
            sure, fast = (assign_points(x, c, precision=p, distances=True) for p in ("certified", "fast"))
            exact = assign_points(x, c, precision="ieee")
            wrong = (sure.labels != exact.labels) | ~_nearest(x, c, sure.labels)
            found["mismatches"].append(float(wrong.sum()))
            found["share re-evaluated"].append(float(sure.n_rechecked.sum()) / (b * n))
            assert sure.distances is not None and fast.distances is not None
            excess = fast.distances.sum(dtype=torch.float64) / sure.distances.sum(dtype=torch.float64) - 1
            found["excess inertia of fast"].append(float(excess) if k < n else 0.0)
            _check_sums(x, sure.labels, k)
    return found


def _nearest(x: torch.Tensor, c: torch.Tensor, labels: torch.Tensor, rows: int = 1 << 18) -> torch.Tensor:
    """Whether the labels `(B, N)` are nearest in float64, or tie with the nearest to within 1e-6."""
    wide, out = c.double(), torch.empty(labels.shape, dtype=torch.bool, device=x.device)
    norms = wide.square().sum(-1)
    for begin in range(0, x.shape[1], rows):
        part = x[:, begin : begin + rows].double()
        scores = norms[:, None] - 2 * part @ wide.transpose(1, 2)
        mine = scores.gather(-1, labels[:, begin : begin + rows].long()[..., None])[..., 0]
        tie = 1e-6 * (norms.amax() + part.square().sum(-1))
        out[:, begin : begin + rows] = mine - scores.amin(-1) <= tie
    return out


def _check_sums(x: torch.Tensor, labels: torch.Tensor, k: int) -> None:
    b, n, d = x.shape
    plan = plan_update(n, k, d, x.element_size(), Device.current() if x.is_cuda else ARCHITECTURES[90])
    (sums, mass), (again, _) = (launch_update(x, labels, k, plan) for _ in range(2))
    rows = (labels.long() + torch.arange(b, device=x.device)[:, None] * k).reshape(-1)
    exact = torch.zeros(b * k, d, dtype=torch.float64, device=x.device).index_add_(0, rows, x.reshape(-1, d).double())
    size = torch.zeros_like(exact).index_add_(0, rows, x.reshape(-1, d).double().abs())
    if bool(((sums.view(-1, d) - exact).abs() > 1e-5 * size + 1e-6).any()) or float(mass.sum()) != b * n:
        raise RuntimeError(f"update: sums differ from a scatter in float64 for B={b}, N={n}, K={k}, D={d}, {x.dtype}")
    if not torch.equal(sums, again):
        raise RuntimeError(f"update: two runs differ for B={b}, N={n}, K={k}, D={d}, {x.dtype}")


def overlap(scale: Scale) -> Values:
    """One iteration over host data in chunks, the copies alone, and the arithmetic alone, in turns, once a seed."""
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
    one = torch.from_numpy(x[:chunk]).to(scale.device)[None]
    centroids = torch.from_numpy(c.astype(np.float32)).to(scale.device)[None]
    plan = plan_update(chunk, k, d, 4)

    def work() -> None:
        out = assign_points(one, centroids, precision="fast", distances=True)
        launch_update(one, out.labels, k, plan)

    values: Values = {"together": [], "longer of the two": []}
    for _ in scale.seeds:
        values["together"].append(_seconds(scale, lambda: engine.step(c)))
        copies = _seconds(scale, lambda: [len(points) for _, points in engine.stream])
        values["longer of the two"].append(max(copies, _seconds(scale, work) * n / chunk))
    return values


def online(scale: Scale) -> Values:
    """Attention values of a video model, `(2, 37440, 32, 128)` bfloat16: one warm iteration with K=293 of its 64 problems, read
    in place (a batch has one stride, hence one call for each of the two clips)."""
    tokens, heads, d = scale.size(37_440, 64), scale.size(32, 2), scale.size(128, 16)
    x = _points(scale, 2, tokens * heads, d, torch.bfloat16, 0).view(2, tokens, heads, d)
    clips = [clip.transpose(0, 1) for clip in x]
    starts = [clip[:, : scale.size(293)].float().contiguous() for clip in clips]
    ready = [prepare(clip, "euclidean", check_finite=False)[0] for clip in clips]
    return {"seconds": [_seconds(scale, lambda: [_ours(clip, start, 1) for clip, start in zip(ready, starts)])]}


#: Steps by name, in the order of `benchmarks/gpu.py`.
STEPS: dict[str, Callable[[Scale], Values]] = {
    "certified": certified, "assignment": assignment, "end to end": end_to_end, "small segments": small_segments,
    "first calls": first_calls, "update and skew": update_skew, "memory": memory, "overlap": overlap, "online": online,
}  # fmt: skip
