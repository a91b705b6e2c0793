"""Many small problems at once: `B` independent clusterings, each with its own convergence (heads of an attention layer)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch

from neurips26.flash_kmeans.arguments import EMPTY, METRICS, PRECISIONS, like, target_device
from neurips26.flash_kmeans.choices import DEFAULTS, Choices
from neurips26.flash_kmeans.cpu_assign import pool_of
from neurips26.flash_kmeans.cpu_kernels import kernels
from neurips26.flash_kmeans.init import initial_centroids
from neurips26.flash_kmeans.loop import EmptyClusterError, KMeansResult, unit_rows
from neurips26.flash_kmeans.rows import ArrayRows, UnitRows, check_range
from neurips26.shared.arrays import check_choice, check_int, check_real

__all__ = ["batched_kmeans"]


def batched_kmeans(
    x: Any, k: int, *, lengths: Any = None, weights: Any = None, init: Any = "k-means++", max_iter: int = 25, tol: float = 1e-4,
    metric: Literal["euclidean", "cosine"] = "euclidean", precision: str = "certified", empty: str = "relocate",
    deterministic: bool = True, check_finite: bool = True, device: Any = None, threads: int | None = None, seed: Any = None,
    choices: Choices = DEFAULTS,
) -> KMeansResult:  # fmt: skip
    """Cluster each of `B` problems into `k` clusters.

    Args:
        x: `(B, N, D)` array or tensor, or a list of `(N_b, D)` arrays. Strided views (`x.transpose(1, 2)`) are read in
            place where
            neighbouring features are neighbours in memory.
        k: clusters of each problem, at most its number of points.
        lengths: `(B,)`: only the first `lengths[b]` rows of problem b are points; labels of the rest are -1.
        weights: `(B, N)` non-negative.
        init: `"k-means++"`, `"k-means||"`, `"random"`, or an array `(B, K, D)`.
        max_iter: largest number of iterations.
        tol: as in `kmeans`, judged for each problem by itself: a problem that has converged does no more work and does not move.
        metric: `"euclidean"` or `"cosine"`.
        precision: see the README.
        empty: as in `kmeans`, except `"drop"` (the result is one array).
        deterministic: on a GPU, sum without atomics.
        check_finite: refuse NaN and infinity.
        device: where to compute; default: where `x` is.
        threads: CPU threads; default `torch.get_num_threads()`.
        seed: int, `numpy.random.Generator` or `None`.
        choices: see `Choices`.

    Returns:
        `KMeansResult` whose `centroids` are `(B, K, D)`, `labels` `(B, N)`, `inertia`, `n_iter` and `converged` `(B,)`;
        for a list of
        arrays, `labels` is a list.
    """
    check_int(k, "k", minimum=1)
    check_int(max_iter, "max_iter", minimum=1)
    check_real(tol, "tol")
    check_choice(metric, "metric", METRICS)
    check_choice(precision, "precision", PRECISIONS)
    check_choice(empty, "empty", [e for e in EMPTY if e != "drop"])
    ragged = isinstance(x, (list, tuple)) and len(x) > 0 and getattr(x[0], "ndim", 0) == 2
    if ragged:
        if lengths is not None:
            raise ValueError("lengths: expected None for a list of arrays, got lengths as well")
        family = x[0] if isinstance(x[0], torch.Tensor) else None
        lengths = [len(part) for part in x]
        x = _padded(x)
    else:
        family = x if isinstance(x, torch.Tensor) else None
    where = target_device(family if family is not None else x, device)
    if where.type == "cuda":
        from neurips26.flash_kmeans.gpu_engine import batched_on_gpu

        found = batched_on_gpu(
            x, k, lengths=lengths, weights=weights, init=init, max_iter=max_iter, tol=tol, metric=metric, precision=precision,
            empty=empty, deterministic=deterministic, check_finite=check_finite, where=where, seed=seed, choices=choices,
        )  # fmt: skip
        if not ragged:
            return found
        parts = [like(row[:size], family) for row, size in zip(found.labels, lengths)]
        return replace(found, centroids=like(found.centroids, family), labels=parts)
    points = _points(x)
    b, n, d = points.shape
    count = check_lengths(lengths, b, n, k)
    weight = check_batch_weights(weights, count, points.dtype, n)
    if metric == "cosine":
        points = np.stack([UnitRows(ArrayRows(p)).read(0, n) for p in points])
    mean, variance, zero = _summaries(points, count, weight, metric == "cosine", check_finite)
    centre = np.zeros((b, d), points.dtype) if metric == "cosine" else mean.astype(points.dtype)
    generator = seed if isinstance(seed, np.random.Generator) else np.random.default_rng(seed)
    start = _starts(points, count, k, init, generator, weight, centre, choices)
    problem = _Problem(points, count, weight, centre, metric == "cosine", threads or torch.get_num_threads(), zero)
    limits = tol * variance if tol >= 0 else None
    centroids, n_iter, converged = _lloyd(problem, start, max_iter, limits, empty, choices.stop)
    final = np.ascontiguousarray(centroids + centre[:, None], dtype=points.dtype)
    inertia = problem.finish(final)
    labels = [like(problem.labels[p, : count[p]], family) for p in range(b)] if ragged else like(problem.labels, family)
    return KMeansResult(like(final, family), labels, inertia, n_iter, converged, [], "cpu-batched")  # type: ignore[arg-type]


def _lloyd(
    problem: _Problem, start: np.ndarray, max_iter: int, limits: np.ndarray | None, empty: str, stop: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centroids relative to the centre, iterations and convergence of each problem; each has its own limit on the shift."""
    centroids = _unit_batch(start) if problem.unit else start - problem.centre[:, None]
    b = len(start)
    active = np.ones(b, np.int64)
    n_iter, converged = np.zeros(b, np.int64), np.zeros(b, bool)
    for iteration in range(max_iter):
        sums, weight_of, _, changed = problem.step(centroids, active)
        fresh, moved = _means(problem, centroids, sums, weight_of, active, empty)
        shift = np.square(fresh - centroids).sum(axis=2)
        rest = shift.sum(axis=1) if stop == "sum" else shift.max(axis=1)
        running = active.astype(bool)
        centroids = np.where(running[:, None, None], fresh, centroids)
        n_iter[running] += 1
        if limits is not None:
            still = running & ~moved & (((changed == 0) & (iteration > 0)) | (rest <= limits))
            converged |= still
            active[still] = 0
            if not active.any():
                break
    return centroids, n_iter, converged


class _Problem:
    """Buffers and steps of a batch on the CPU."""

    def __init__(self, points, count, weight, centre, unit, threads, zero) -> None:
        self.points, self.count, self.weight = points, count, weight
        self.centre, self.unit, self.zero = centre, unit, zero
        self.labels = np.full(points.shape[:2], -1, np.int32)
        self.best = np.zeros(points.shape[:2], points.dtype)
        self.threads = max(1, min(threads, len(points)))
        self.kernels = kernels(points.dtype)

    def step(self, centroids: np.ndarray, active: np.ndarray):
        """Sums, weights, scores and changed labels of each problem; problems that are not active are skipped."""
        b, k, d = centroids.shape
        given = np.ascontiguousarray(centroids, self.points.dtype)
        sums, mass = np.zeros((b, k, d)), np.zeros((b, k))
        changed, total = np.zeros(b, np.int64), np.zeros(b)

        def work(part: slice) -> None:
            weight = None if self.weight is None else self.weight[part]
            self.kernels.batch(
                self.points[part], self.count[part], active[part], self.centre[part], given[part], not self.unit,
                self.labels[part], self.best[part], changed[part], weight, sums[part], mass[part], total[part],
            )  # fmt: skip

        if self.threads == 1:
            work(slice(0, b))
        else:
            edges = np.linspace(0, b, self.threads + 1).astype(int)
            list(pool_of(self.threads).map(work, [slice(s, e) for s, e in pairwise(edges)]))
        if self.unit:
            mass[:, 0] -= np.where(active > 0, self.zero, 0)
        return sums, mass, total, changed

    def finish(self, final: np.ndarray) -> np.ndarray:
        """Labels of the returned centroids by the same arithmetic as `assign`, and the inertia of each problem."""
        b = len(final)
        centre = np.zeros_like(final[:, 0]) if self.unit else final.mean(axis=1, dtype=np.float64).astype(final.dtype)
        keep, self.centre = self.centre, centre
        relative = final.astype(np.float64) - centre[:, None]
        _, mass, total, _ = self.step(relative, np.ones(b, np.int64))
        self.centre = keep
        if self.unit:
            weights = self.count.astype(float) if self.weight is None else mass.sum(axis=1) + self.zero
            return np.maximum(weights + total / 2, 0)
        inertia = np.zeros(b)
        out = np.empty(self.points.shape[1], self.points.dtype)
        for p in range(b):
            rows = self.points[p, : self.count[p]]
            self.kernels.distance(rows, np.ascontiguousarray(final[p]), self.labels[p], out)
            wide = out[: len(rows)].astype(np.float64)
            inertia[p] = wide.sum() if self.weight is None else wide @ self.weight[p, : len(rows)]
        return inertia

    def distances(self, p: int, centroids: np.ndarray) -> np.ndarray:
        """Squared distances of problem `p` to centroids relative to its centre."""
        rows = self.points[p, : self.count[p]]
        out = np.empty(len(rows), self.points.dtype)
        self.kernels.distance(
            rows, np.ascontiguousarray(centroids + self.centre[p], self.points.dtype), self.labels[p], out
        )
        return out


def _means(problem: _Problem, old: np.ndarray, sums: np.ndarray, mass: np.ndarray, active: np.ndarray, empty: str):
    lost = (mass <= 0) & (active > 0)[:, None]
    moved = np.zeros(len(old), bool)
    if lost.any() and empty == "raise":
        p, k = np.argwhere(lost)[0]
        raise EmptyClusterError(f"empty: cluster {k} of problem {p} has no points")
    if empty == "relocate":
        for p in np.flatnonzero(lost.any(axis=1)):
            moved[p] = _relocate(problem, int(p), old[p], sums[p], mass[p])
    means = sums / np.where(mass > 0, mass, 1)[..., None]
    if problem.unit:
        length = np.linalg.norm(means, axis=2, keepdims=True)
        means = np.where(length > 0, means / np.where(length > 0, length, 1), old)
    return np.where((mass > 0)[..., None], means, old), moved


def _relocate(problem: _Problem, p: int, old: np.ndarray, sums: np.ndarray, mass: np.ndarray) -> bool:
    """Farthest different points of problem `p` go to its empty clusters (in place)."""
    distance = problem.distances(p, old)
    weight = np.ones(len(distance)) if problem.weight is None else problem.weight[p, : len(distance)].astype(np.float64)
    waiting, taken, moved = list(np.flatnonzero(mass <= 0)), set(), False
    for i in np.lexsort((np.arange(len(distance)), -distance)):
        if not waiting or distance[i] <= 0:
            break
        label, w = problem.labels[p, i], weight[i]
        point = problem.points[p, i].astype(np.float64) - problem.centre[p]
        if w <= 0 or mass[label] - w <= 1e-12 * w or point.tobytes() in taken:
            continue
        taken.add(point.tobytes())
        k = waiting.pop(0)
        sums[label] -= w * point
        mass[label] -= w
        sums[k], mass[k] = w * point, w
        moved = True
    return moved


def _points(x: Any) -> np.ndarray:
    if isinstance(x, torch.Tensor):
        if x.is_complex():
            raise TypeError(f"x: expected real numbers, got {x.dtype}")
        x = x.detach().cpu()
        x = (x if x.dtype in (torch.float32, torch.float64) else x.float()).numpy()
    try:
        points = np.asarray(x)
    except (ValueError, TypeError) as error:
        raise TypeError(f"x: expected an array of numbers, got {type(x).__name__} ({error})") from error
    if points.dtype.kind not in "biuf":
        raise TypeError(f"x: expected an array of real numbers, got dtype {points.dtype}")
    if points.ndim != 3 or 0 in points.shape:
        raise ValueError(f"x: expected three axes (B, N, D), none of length 0, got shape {points.shape}")
    dtype = np.float64 if points.dtype == np.float64 else np.float32
    in_place = points.dtype == dtype and points.strides[2] == points.itemsize and points.flags.aligned
    in_place &= all(s >= 0 and s % points.itemsize == 0 for s in points.strides)
    return points if in_place else np.ascontiguousarray(points, dtype=dtype)


def _padded(parts: Any) -> np.ndarray:
    arrays = [_points(part[None] if part.ndim == 2 else part)[0] for part in parts]
    if len({a.shape[1] for a in arrays}) > 1:
        raise ValueError(f"x: expected problems with one number of features, got {[a.shape[1] for a in arrays]}")
    out = np.zeros((len(arrays), max(len(a) for a in arrays), arrays[0].shape[1]), np.result_type(*arrays))
    for p, a in enumerate(arrays):
        out[p, : len(a)] = a
    return out


def check_batch_weights(weights: Any, count: np.ndarray, dtype: np.dtype, n: int) -> np.ndarray | None:
    """`(B, N)` weights: finite, non-negative, not all zero in a problem."""
    if weights is None:
        return None
    given = weights.detach().cpu() if isinstance(weights, torch.Tensor) else weights
    weight = np.ascontiguousarray(given, dtype=dtype)
    if weight.shape != (len(count), n) or not np.isfinite(weight).all() or weight.min() < 0:
        raise ValueError(
            f"weights: expected finite, non-negative numbers of shape (B={len(count)}, N={n}), got {weight.shape}"
        )
    lost = [p for p in range(len(count)) if not weight[p, : count[p]].any()]
    if lost:
        raise ValueError(f"weights: expected a positive weight in every problem, got none in problem {lost[0]}")
    return weight


def check_lengths(lengths: Any, b: int, n: int, k: int) -> np.ndarray:
    """`(B,)` int64 numbers of points of the problems, each at least K and at most N."""
    if lengths is None:
        count = np.full(b, n, np.int64)
    else:
        given = np.asarray(lengths.cpu() if isinstance(lengths, torch.Tensor) else lengths)
        if given.dtype.kind not in "iu" or given.shape != (b,):
            raise ValueError(f"lengths: expected (B={b},) integers, got {given.dtype} {given.shape}")
        count = np.ascontiguousarray(given, np.int64)
        if count.max() > n:
            raise ValueError(f"lengths: expected at most N={n}, got {count.max()} for problem {int(count.argmax())}")
    if k > count.min():
        raise ValueError(
            f"k: expected at most the number of points of every problem, got K={k}, N={count.min()} in {int(count.argmin())}"
        )
    return count


def _summaries(points, count, weight, unit, check):
    """Mean, mean variance and weight of the rows without a direction of each problem, in float64."""
    inside = np.arange(points.shape[1]) < count[:, None]
    with np.errstate(invalid="ignore", over="ignore"):
        wide = points.sum(axis=(1, 2), dtype=np.float64)
    if check and not np.isfinite(wide).all():
        bad = np.argwhere(~np.isfinite(points).all(axis=2) & inside)
        if len(bad):
            raise ValueError(
                f"x: expected finite numbers, got NaN or infinity in row {bad[0][1]} of problem {bad[0][0]}"
            )
    mean, variance = np.empty((len(points), points.shape[2])), np.empty(len(points))
    for p, c in enumerate(count):
        rows = points[p, :c]
        mean[p] = rows.mean(axis=0, dtype=np.float64)
        with np.errstate(over="ignore", under="ignore"):
            variance[p] = np.square(rows - mean[p].astype(rows.dtype)).mean(dtype=np.float64)
        if check:
            check_range(ArrayRows(rows), float(variance[p] * rows.size), mean[p], f"x: problem {p}")
    share = inside.astype(float) if weight is None else np.where(inside, weight, 0).astype(float)
    zero = (share * ~points.any(axis=2)).sum(axis=1) if unit else np.zeros(len(points))
    return mean, variance, zero


def _starts(points, count, k, init, generator, weight, centre, choices) -> np.ndarray:
    b, _, d = points.shape
    if not isinstance(init, str):
        given = np.asarray(init.detach().cpu() if isinstance(init, torch.Tensor) else init, dtype=np.float64)
        if given.shape != (b, k, d) or not np.isfinite(given).all():
            raise ValueError(f"init: expected finite centroids of shape (B={b}, K={k}, D={d}), got {given.shape}")
        return given
    rows = [ArrayRows(points[p, : count[p]]) for p in range(b)]
    return np.stack(
        [
            initial_centroids(
                rows[p],
                k,
                init,
                generator,
                weights=None if weight is None else weight[p, : count[p]],
                centre=centre[p],
                choices=choices,
            )
            for p in range(b)
        ]
    )


def _unit_batch(centroids: np.ndarray) -> np.ndarray:
    return np.stack([unit_rows(c) for c in centroids])
