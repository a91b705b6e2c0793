"""Lloyd on a GPU: a loop that stays on the device for data that fits, and an engine that streams chunks for data that
does not.

Centring: float32 points are moved by their mean before they are clustered, as on the CPU. Half-precision points are not:
the shift would round them, and what their 11 (or 8) bits can hold has no offset that float32 scores could not carry.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from neurips26.flash_kmeans.arguments import check_weights
from neurips26.flash_kmeans.choices import DEFAULTS, Choices
from neurips26.flash_kmeans.engine import Engine, Step
from neurips26.flash_kmeans.gpu_plan import ARCHITECTURES, Device, plan_update
from neurips26.flash_kmeans.gpu_update import launch_update
from neurips26.flash_kmeans.init import initial_centroids
from neurips26.flash_kmeans.loop import EmptyClusterError, KMeansResult
from neurips26.flash_kmeans.precision import Assigned, assign_points
from neurips26.flash_kmeans.rows import Rows, largest_square, raise_out_of_range, summarise
from neurips26.flash_kmeans.stream import ChunkStream

__all__ = ["GpuEngine", "batched_on_gpu", "device_loop", "device_plus_plus", "fits", "kmeans_resident"]

_SUPPORTED = (torch.float32, torch.float16, torch.bfloat16)
#: Bytes of the buffer in which variances are summed.
_PREPARE_BYTES = 64 << 20


def fits(x: Any, where: torch.device, chunk_rows: int | None, memory_limit: int | None) -> bool:
    """Whether `x` can lie on the device as a whole: it is there already, or takes less than half of what is free."""
    if chunk_rows is not None or memory_limit is not None or not hasattr(x, "shape"):
        return False
    if isinstance(x, torch.Tensor) and x.is_cuda:
        return True
    return math.prod(x.shape) * 4 < torch.cuda.mem_get_info(where)[0] // 2


def _tensor(x: Any) -> torch.Tensor:
    """Arrays with negative strides have no tensor; they are copied."""
    return x if isinstance(x, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(x))


def _facts(x: torch.Tensor) -> Device:
    return Device.current() if x.is_cuda else ARCHITECTURES[90]


def prepare(
    x: torch.Tensor, metric: str, *, lengths: torch.Tensor | None = None, center: bool = True, check_finite: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Points as the kernels take them: `(x', centre (B, D), mean variance (B,))` for `x` `(B, N, D)`.

    With `lengths` `(B,)` the rows beyond are no points: they become zeros and count nowhere.

    Raises:
        TypeError: a type that has no GPU path.
        ValueError: NaN or infinity, or squared distances to the mean that float32 cannot hold.
    """
    if x.dtype == torch.float64:
        raise TypeError(
            "x: expected float32, float16 or bfloat16 on a GPU, got float64 (the CPU computes it in float64)"
        )
    if x.dtype not in _SUPPORTED:
        if x.dtype in (torch.int32, torch.int64) and x.numel() and int(x.abs().max()) > 2**24:
            raise TypeError(
                f"x: expected integers up to 2^24 on a GPU, which computes in float32, got {int(x.abs().max())}"
            )
        x = x.float()
    b, n, d = x.shape
    count: torch.Tensor | int = n
    inside = None
    if lengths is not None:
        inside, count = torch.arange(n, device=x.device) < lengths[:, None], lengths[:, None]
        x = torch.where(inside[..., None], x, 0)
    if check_finite:
        bad = ~torch.isfinite(x.sum(dim=-1, dtype=torch.float32))
        if bool(bad.any()):
            bad &= ~torch.isfinite(x).all(dim=-1)  # finite rows whose sum overflows are judged by their range below
            if bool(bad.any()):
                problem, row = (int(v) for v in torch.nonzero(bad)[0])
                raise ValueError(f"x: expected finite numbers, got NaN or infinity in row {row} of problem {problem}")
    if metric == "cosine":
        x = torch.nn.functional.normalize(x.float(), dim=-1).to(x.dtype)
    mean = x.sum(dim=1, dtype=torch.float32) / count
    squares = torch.zeros(b, dtype=torch.float64, device=x.device)
    rows = max(1, _PREPARE_BYTES // (4 * b * d))
    for begin in range(0, n, rows):
        part = x[:, begin : begin + rows].float() - mean[:, None]
        if inside is not None:
            part *= inside[:, begin : begin + rows, None]
        squares += part.square_().sum(dim=(1, 2), dtype=torch.float64)
    size = (n if lengths is None else lengths) * d
    variance = (squares / size).float()
    if check_finite and metric != "cosine":
        _check_range(x, mean, squares, inside)
    if metric != "cosine" and center and x.dtype == torch.float32:
        return x - mean[:, None], mean, variance
    return x, torch.zeros_like(mean), variance


def _check_range(x: torch.Tensor, mean: torch.Tensor, squares: torch.Tensor, inside: torch.Tensor | None) -> None:
    """`rows.check_range` for a batch on the device; `squares` `(B,)` are the sums of squared distances to `mean` `(B, D)`."""
    single = np.dtype(np.float32)
    limit, tiny = largest_square(single), float(np.finfo(single).tiny)
    for p in torch.nonzero(~((squares >= tiny * x.shape[1]) & (squares <= limit))).flatten().tolist():
        rows = x[p].double() if inside is None else x[p][inside[p]].double()
        if not len(rows):
            continue
        each = (rows - mean[p]).square_().sum(dim=1)
        over = ~(each <= limit)
        if bool(over.any()):
            raise_out_of_range(f"x: problem {p}: row {int(torch.nonzero(over)[0])}", single, "above")
        if float(each.mean()) < tiny and bool((rows != rows[0]).any()):
            raise_out_of_range(f"x: problem {p}", single, "below")


def device_plus_plus(
    x: torch.Tensor, k: int, generator: torch.Generator, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Greedy k-means++ on the device for one problem `x` `(N, D)`: `(K, D)` float32.

    Draws by cumulative sum and search: `torch.multinomial` refuses more than 2^24 categories.
    """
    n, trials = x.shape[0], 2 + int(math.log(k))
    mass = torch.ones(n, device=x.device) if weights is None else weights.float()
    norms = torch.linalg.vector_norm(x, dim=1, dtype=torch.float32).square_()

    def draw(p: torch.Tensor, count: int) -> torch.Tensor:
        total = torch.cumsum(p.double(), 0)
        u = torch.rand(count, generator=generator, device=x.device, dtype=torch.float64) * total[-1]
        return torch.searchsorted(total, u, right=True).clamp_max_(n - 1)

    def distances(rows: torch.Tensor) -> torch.Tensor:
        candidates = x[rows].float()
        product = (x.float() if x.dtype == torch.float32 else x) @ candidates.to(x.dtype).T
        return (norms[:, None] - 2 * product.float() + norms[rows]).clamp_min_(0)

    chosen = torch.empty((k, x.shape[1]), dtype=torch.float32, device=x.device)
    first = draw(mass, 1)
    chosen[0] = x[first[0]].float()
    closest = distances(first)[:, 0]
    closest[first] = 0
    for step in range(1, k):
        picks = draw(closest * mass, trials)
        tried = torch.minimum(distances(picks), closest[:, None])
        best = (tried * mass[:, None]).sum(0, dtype=torch.float64).argmin()
        closest = tried[:, best]
        row = picks[best]
        closest[row] = 0
        chosen[step] = x[row].float()
    return chosen


def device_loop(
    x: torch.Tensor, start: torch.Tensor, *, max_iter: int, tol: float, variance: torch.Tensor, metric: str, precision: str,
        empty: str,
    deterministic: bool, weights: torch.Tensor | None = None, lengths: torch.Tensor | None = None, choices: Choices = DEFAULTS,
) -> dict[str, Any]:  # fmt: skip
    """Lloyd for a batch `x` `(B, N, D)` from `start` `(B, K, D)` float32; the host looks every `choices.check_every` iterations.

    A problem that has converged does not move any more. Empty clusters are dealt with when the host looks; until then they
    keep their centroid, and a problem with one is not declared converged. `lengths` `(B,)`: rows beyond belong to no cluster.
    """
    b, n, d = x.shape
    k, cosine = start.shape[1], metric == "cosine"
    facts = _facts(x)
    plan = plan_update(n, k, d, x.element_size(), facts)
    if lengths is not None:
        inside = torch.arange(n, device=x.device) < lengths[:, None]
        weights = inside.float() if weights is None else weights * inside
    centroids = torch.nn.functional.normalize(start, dim=-1) if cosine else start.clone()
    labels, before = (torch.full((b, n), -1, dtype=torch.int32, device=x.device) for _ in range(2))
    done = torch.zeros(b, dtype=torch.bool, device=x.device)
    n_iter = torch.zeros(b, dtype=torch.int64, device=x.device)
    rechecked = torch.zeros(b, dtype=torch.int64, device=x.device)
    for iteration in range(max_iter):
        before, labels = labels, before
        out = assign_points(
            x, centroids, cosine=cosine, precision=precision, labels=labels, device=facts, safety=choices.rounding
        )
        sums, mass = launch_update(x, labels, k, plan, weights=weights, deterministic=deterministic)
        rechecked += torch.where(done, 0, out.n_rechecked)
        look = (iteration + 1) % choices.check_every == 0 or iteration + 1 == max_iter
        lost = (mass <= 0).any(dim=1)
        moved = torch.zeros_like(done)
        if look and empty != "keep" and bool((lost & ~done).any()):
            moved = _fill(x, centroids, labels, sums, mass, lost & ~done, weights, empty)
        fresh = torch.where(
            (mass > 0)[..., None], sums / mass.clamp_min(torch.finfo(torch.float32).tiny)[..., None], centroids
        )
        if cosine:
            fresh = torch.where(
                fresh.any(dim=-1, keepdim=True), torch.nn.functional.normalize(fresh, dim=-1), centroids
            )
        shift = (fresh - centroids).square_().sum(-1)
        rest = shift.sum(-1) if choices.stop == "sum" else shift.amax(-1)
        centroids = torch.where(done[:, None, None], centroids, fresh)
        n_iter += ~done
        if tol >= 0:
            still = (rest <= tol * variance) | ((labels == before).all(dim=1) if iteration else torch.zeros_like(done))
            done = done | (still & ~moved & (~lost if empty == "relocate" else ~torch.zeros_like(lost)))
        # A question that cannot change anything is not asked: it would wait for the device.
        if look and tol >= 0 and iteration + 1 < max_iter and bool(done.all()):
            break
    out = assign_points(x, centroids, cosine=cosine, precision=precision, distances=True, labels=labels, device=facts)
    assert out.distances is not None
    distances = out.distances if weights is None else out.distances * weights
    if lengths is not None:
        labels = torch.where(inside, labels, -1)
    return {
        "centroids": centroids, "labels": labels, "inertia": distances.sum(dim=1, dtype=torch.float64), "n_iter": n_iter,
        "converged": done, "rechecked": rechecked + out.n_rechecked,
    }  # fmt: skip


def _fill(x, centroids, labels, sums, mass, lost, weights, empty) -> torch.Tensor:
    """Give the farthest points to empty clusters (in place in `sums` and `mass`); waits for the device, and happens rarely."""
    moved = torch.zeros_like(lost)
    for p in torch.nonzero(lost)[:, 0].tolist():
        waiting = torch.nonzero(mass[p] <= 0)[:, 0].tolist()
        if empty == "raise":
            raise EmptyClusterError(f"empty: cluster {waiting[0]} of problem {p} has no points")
        distance = (x[p].float() - centroids[p][labels[p].long()]).square_().sum(-1)
        if weights is not None:
            distance = torch.where(weights[p] > 0, distance, -1.0)
        size = min(4 * len(waiting) + 64, len(distance))
        values, order = torch.sort(distance, descending=True, stable=True)
        seen: set[bytes] = set()
        for value, row in zip(values[:size].tolist(), order[:size].tolist()):
            point = x[p, row].float()
            w = 1.0 if weights is None else float(weights[p, row])
            key, label = point.cpu().numpy().tobytes(), int(labels[p, row])
            if not waiting or value <= 0:
                break
            if key in seen or float(mass[p, label]) - w <= 0:
                continue
            seen.add(key)
            cluster = waiting.pop(0)
            sums[p, label] -= w * point
            mass[p, label] -= w
            sums[p, cluster], mass[p, cluster] = w * point, w
            moved[p] = True
    return moved


def _start(
    x: torch.Tensor, k: int, init: Any, centre: torch.Tensor, seed: Any, weights: torch.Tensor | None, count: list[int]
) -> torch.Tensor:
    """`(B, K, D)` first centroids on the device, relative to the centre."""
    b, _, d = x.shape
    if not isinstance(init, str):
        given = torch.as_tensor(
            np.asarray(init.detach().cpu() if hasattr(init, "detach") else init), dtype=torch.float64
        )
        given = given[None] if given.dim() == 2 else given
        if given.shape != (b, k, d) or not bool(torch.isfinite(given).all()):
            raise ValueError(
                f"init: expected finite centroids of shape (B={b}, K={k}, D={d}), got {tuple(given.shape)}"
            )
        return (given.to(x.device) - centre[:, None].double()).float().contiguous()
    if init not in ("k-means++", "random"):
        raise ValueError(f"init: expected 'k-means++', 'random' or an array for data on a GPU, got {init!r}")
    generator = torch.Generator(device=x.device)
    generator.manual_seed(int(np.random.default_rng(seed).integers(2**62)))
    starts = []
    for p in range(b):
        points, w = x[p, : count[p]], None if weights is None else weights[p, : count[p]]
        if init == "random":
            rows = torch.randperm(len(points), generator=generator, device=x.device)
            if w is not None:
                rows = rows[w[rows] > 0]
            if len(rows) < k:
                raise ValueError(f"weights: expected at least K={k} positive weights, got {len(rows)}")
            starts.append(points[rows[:k]].float())
        else:
            starts.append(device_plus_plus(points, k, generator, w))
    return torch.stack(starts)


def kmeans_resident(
    x: Any, k: int, where: torch.device, *, weights, init, n_init, max_iter, tol, metric, precision, empty, deterministic, center,
        on_zero,
    check_finite, seed, choices,
) -> Any:  # fmt: skip
    """`kmeans` for data on the device: a batch of one."""
    family = x if isinstance(x, torch.Tensor) else None
    tensor = _tensor(x).detach().to(where)
    if tensor.dim() != 2 or 0 in tensor.shape:
        raise ValueError(f"x: expected two axes (N, D), none of length 0, got shape {tuple(tensor.shape)}")
    if k > tensor.shape[0]:
        raise ValueError(f"k: expected at most the number of points N={tensor.shape[0]}, got K={k}")
    if callable(init):
        init = init(tensor, k, np.random.default_rng(seed))
    if empty == "drop":
        raise ValueError("empty: expected 'relocate', 'keep' or 'raise' on a GPU, got 'drop'")
    if on_zero == "raise" and metric == "cosine" and bool((tensor == 0).all(dim=1).any()):
        raise ValueError("x: expected rows with a direction for metric='cosine', got a row of zeros")
    given = check_weights(weights, tensor.shape[0])
    weight = None if given is None else torch.from_numpy(given).float().to(where)[None]
    points, centre, variance = prepare(tensor[None], metric, center=center, check_finite=check_finite)
    best: dict[str, Any] | None = None
    for run in range(n_init):
        start = _start(points, k, init, centre, None if seed is None else seed + run, weight, [points.shape[1]])
        found = device_loop(
            points, start, max_iter=max_iter, tol=tol, variance=variance, metric=metric, precision=precision, empty=empty,
            deterministic=deterministic, weights=weight, choices=choices,
        )  # fmt: skip
        if best is None or float(found["inertia"]) < float(best["inertia"]):
            best = found
    assert best is not None
    centroids, labels = best["centroids"][0] + centre[0], best["labels"][0]
    if family is None:
        centroids, labels = centroids.cpu().numpy(), labels.cpu().numpy()
    return KMeansResult(
        centroids,
        labels,
        float(best["inertia"]),
        int(best["n_iter"]),
        bool(best["converged"]),
        [],
        "triton",
        int(best["rechecked"]),
    )


def batched_on_gpu(
    x: Any, k: int, *, lengths, weights, init, max_iter, tol, metric, precision, empty, deterministic, check_finite, where, seed,
    choices,
) -> Any:  # fmt: skip
    """`batched_kmeans` for data on the device."""
    from neurips26.flash_kmeans.batched import check_batch_weights, check_lengths

    family = x if isinstance(x, torch.Tensor) else None
    tensor = _tensor(x).detach().to(where)
    if tensor.dim() != 3 or 0 in tensor.shape:
        raise ValueError(f"x: expected three axes (B, N, D), none of length 0, got shape {tuple(tensor.shape)}")
    count = check_lengths(lengths, *tensor.shape[:2], k)
    given = check_batch_weights(weights, count, np.dtype(np.float32), tensor.shape[1])
    weight = None if given is None else torch.from_numpy(given).to(where)
    inside = None if lengths is None else torch.from_numpy(count).to(where)
    points, centre, variance = prepare(tensor, metric, lengths=inside, check_finite=check_finite)
    start = _start(points, k, init, centre, seed, weight, count.tolist())
    found = device_loop(
        points, start, max_iter=max_iter, tol=tol, variance=variance, metric=metric, precision=precision, empty=empty,
        deterministic=deterministic, weights=weight, choices=choices, lengths=inside,
    )  # fmt: skip
    centroids, labels = found["centroids"] + centre[:, None], found["labels"]
    if family is None:
        centroids, labels = centroids.cpu().numpy(), labels.cpu().numpy()
    numbers = {name: found[name].cpu().numpy() for name in ("inertia", "n_iter", "converged")}
    return KMeansResult(centroids, labels, **numbers, path="triton-batched", n_rechecked=int(found["rechecked"].sum()))


class GpuEngine(Engine):
    """Points in host memory, streamed through the device: the copy of the next chunk runs beside the work on this one.

    Device memory: two chunks of points, the labels and scores of one, and a few `(K, D)` arrays; nothing grows with N.
    Labels come back to a pinned buffer on the host, and the host waits for the device once a pass.
    """

    def __init__(
        self, rows: Rows, k: int, where: torch.device, *, precision: str, deterministic: bool, weights: np.ndarray | None,
        unit: bool, center: bool, chunk_rows: int | None, memory_limit: int | None, check_finite: bool, choices: Choices,
    ) -> None:  # fmt: skip
        if rows.dtype == np.float64:
            raise TypeError(
                "x: expected float32, float16 or bfloat16 on a GPU, got float64 (the CPU computes it in float64)"
            )
        self.rows, self.k, self.unit, self.where, self.choices = rows, k, unit, where, choices
        self.n, self.d, self.dtype = rows.n, rows.d, rows.dtype
        self.weights = None if weights is None else np.ascontiguousarray(weights, np.float32)
        self.summary = summarise(rows, self.weights, check_finite=check_finite)
        self.centred = center and not unit
        self.centre = self.summary.mean.astype(np.float32) if self.centred else np.zeros(rows.d, np.float32)
        offset = self.summary.mean - self.centre
        self.scatter = self.summary.mass if unit else self.summary.squares + self.summary.mass * float(offset @ offset)
        self.tolerance_scale, self.zero_rows = self.summary.variance, self.summary.zero_rows
        self.precision, self.deterministic, self.n_rechecked = precision, deterministic, 0
        chunk = chunk_rows or choices.chunk_rows
        if memory_limit is not None:
            fixed, a_row = 4 * k * rows.d * 4, 2 * rows.d * 4 + 32
            if memory_limit < fixed + a_row:
                raise ValueError(
                    f"memory_limit: expected at least {fixed + a_row} bytes for K={k}, D={rows.d}, got {memory_limit}"
                )
            chunk = min(chunk, (memory_limit - fixed) // a_row)
        self.path = "triton-chunked"
        self.labels = np.full(rows.n, -1, np.int32)
        pinned = where.type == "cuda"
        self._fresh = torch.empty(rows.n, dtype=torch.int32, pin_memory=pinned)
        self._weights: torch.Tensor | None = None
        if self.weights is not None:
            self._weights = torch.from_numpy(self.weights).pin_memory() if pinned else torch.from_numpy(self.weights)
        self.stream = ChunkStream(rows, chunk, where)

    def _assigned(self, centroids: np.ndarray) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor | None, Assigned]]:
        """One pass: `(rows, points (1, n, D), weights (1, n), what was found)` of each chunk, for centroids relative to
        the centre; at the end the labels are on the host."""
        c = torch.from_numpy(np.ascontiguousarray(centroids, np.float32)).to(self.where)[None]
        shift = torch.from_numpy(self.centre).to(self.where)
        rechecked = torch.zeros((), dtype=torch.int64, device=self.where)
        for start, chunk in self.stream:
            points, part = chunk.sub_(shift)[None], slice(start, start + len(chunk))
            weights = None if self._weights is None else self._weights[part].to(self.where, non_blocking=True)[None]
            out = assign_points(
                points, c, cosine=self.unit, precision=self.precision, distances=True, safety=self.choices.rounding
            )
            self._fresh[part].copy_(out.labels[0], non_blocking=True)
            rechecked += out.n_rechecked.sum()
            yield part, points, weights, out
        self.n_rechecked += int(rechecked)  # waits for the device: the labels have arrived

    def step(self, centroids: np.ndarray) -> Step:
        """See `Engine.step`."""
        sums = torch.zeros((self.k, self.d), dtype=torch.float64, device=self.where)
        mass = torch.zeros(self.k, dtype=torch.float64, device=self.where)
        score = torch.zeros((), dtype=torch.float64, device=self.where)
        for _, points, weights, out in self._assigned(centroids):
            plan = plan_update(points.shape[1], self.k, self.d, 4, _facts(points))
            found, found_mass = launch_update(
                points, out.labels, self.k, plan, weights=weights, deterministic=self.deterministic
            )
            sums += found[0]
            mass += found_mass[0]
            assert out.distances is not None
            if self.unit:
                each = 2 * (out.distances - 1)
            else:
                each = out.distances - torch.linalg.vector_norm(points, dim=-1).square_()
            score += (each if weights is None else each * weights).sum(dtype=torch.float64)
        fresh = self._fresh.numpy()
        changed = int(np.count_nonzero(fresh != self.labels))
        self.labels = fresh.copy()
        result = Step(sums.cpu().numpy(), mass.cpu().numpy(), float(score), changed)
        if self.unit:
            result.mass[0] -= self.zero_rows
        return result

    def farthest(self, centroids: np.ndarray, count: int) -> list[tuple[float, int, int, float, np.ndarray]]:
        """See `Engine.farthest`."""
        distance = np.empty(self.n, np.float32)
        for part, _, _, out in self._assigned(centroids):
            assert out.distances is not None
            distance[part] = out.distances[0].cpu().numpy()
        if self.weights is not None:
            distance[self.weights <= 0] = -1
        order = np.lexsort((np.arange(self.n), -distance))[:count]
        order = order[distance[order] > 0]
        points = self.rows.take(order).astype(np.float64) - self.centre
        return [
            (
                float(distance[i]),
                int(i),
                int(self.labels[i]),
                1.0 if self.weights is None else float(self.weights[i]),
                p,
            )
            for i, p in zip(order, points)
        ]

    def finish(self, centroids: np.ndarray) -> float:
        """See `Engine.finish`."""
        total = torch.zeros((), dtype=torch.float64, device=self.where)
        for _, _, weights, out in self._assigned(centroids.astype(np.float64) - self.centre):
            assert out.distances is not None
            total += (out.distances if weights is None else out.distances * weights).sum(dtype=torch.float64)
        self.labels = self._fresh.numpy().copy()
        return float(total)

    def first_centroids(
        self, init: Any, generator: np.random.Generator, choices: Choices, *, sample: bool
    ) -> np.ndarray:
        """See `Engine.first_centroids`; data in host memory is sampled on the host."""
        return initial_centroids(
            self.rows, self.k, init, generator, weights=self.weights, centre=self.centre, choices=choices, sample=True
        )
