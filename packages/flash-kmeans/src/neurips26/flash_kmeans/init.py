"""First centroids: greedy k-means++, k-means||, distinct random points, an array, or a function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from neurips26.flash_kmeans.choices import DEFAULTS, Choices
from neurips26.flash_kmeans.cpu_assign import kernel_assign
from neurips26.flash_kmeans.cpu_kernels import kernels
from neurips26.flash_kmeans.rows import ArrayRows, Rows, largest_square, raise_out_of_range

__all__ = ["initial_centroids", "kmeans_parallel", "kmeans_plus_plus", "random_rows"]

#: Rows of one kernel call while candidates are tried: their distances stay in cache.
_PIECE = 16_384


def initial_centroids(
    rows: Rows, k: int, init: Any, generator: np.random.Generator, *, weights: np.ndarray | None = None, centre:
        np.ndarray | None = None,
    choices: Choices = DEFAULTS, sample: bool = False,
) -> np.ndarray:  # fmt: skip
    """`(K, D)` first centroids, absolute, float64.

    Args:
        rows: the points.
        k: number of centroids.
        init: `"k-means++"`, `"k-means||"`, `"random"`, an array `(K, D)`, or `f(x, k, generator) -> (K, D)`.
        generator: source of randomness.
        weights: `(N,)`; a point of weight zero is never chosen.
        centre: subtracted inside distances (the data mean), for precision.
        choices: see `Choices`.
        sample: draw `choices.init_rows` points first (out-of-core data).
    """
    if callable(init) or not isinstance(init, str):
        chosen = init(rows.read(0, rows.n), k, generator) if callable(init) else init
        chosen = np.asarray(chosen.detach().cpu() if hasattr(chosen, "detach") else chosen, dtype=np.float64)
        if chosen.shape != (k, rows.d):
            raise ValueError(f"init: expected shape (K={k}, D={rows.d}), got {chosen.shape}")
        if not np.isfinite(chosen).all():
            raise ValueError(
                f"init: expected finite numbers, got NaN or infinity in row {int(np.argmax(~np.isfinite(chosen).all(1)))}"
            )
        with np.errstate(over="ignore"):
            over = ~(np.square(chosen - (0 if centre is None else centre)).sum(axis=1) <= largest_square(rows.dtype))
        if over.any():
            raise_out_of_range(f"init: row {int(np.argmax(over))}", rows.dtype, "above")
        return chosen
    methods: dict[str, Callable] = {"k-means++": kmeans_plus_plus, "k-means||": kmeans_parallel, "random": random_rows}
    if init not in methods:
        raise ValueError(f"init: expected one of {', '.join(map(repr, methods))}, an array or a function, got {init!r}")
    if sample and init != "random" and rows.n > choices.init_rows:
        kept = np.sort(generator.choice(rows.n, choices.init_rows, replace=False))
        rows, weights = ArrayRows(rows.take(kept)), None if weights is None else weights[kept]
    centre = np.zeros(rows.d, rows.dtype) if centre is None else centre
    return methods[init](rows, k, generator, weights=weights, centre=centre, choices=choices).astype(np.float64)


def random_rows(
    rows: Rows, k: int, generator: np.random.Generator, *, weights=None, centre=None, choices=None
) -> np.ndarray:
    """K different rows, each with the same chance (rows of weight zero excepted)."""
    if weights is None:
        return rows.take(generator.choice(rows.n, k, replace=False))
    allowed = np.flatnonzero(weights > 0)
    if len(allowed) < k:
        raise ValueError(f"sample_weight: expected at least n_clusters={k} positive weights, got {len(allowed)}")
    return rows.take(allowed[generator.choice(len(allowed), k, replace=False)])


def kmeans_plus_plus(
    rows: Rows, k: int, generator: np.random.Generator, *, weights: np.ndarray | None = None, centre: np.ndarray,
    choices: Choices = DEFAULTS,
) -> np.ndarray:  # fmt: skip
    """Greedy k-means++ (Arthur and Vassilvitskii 2007): each step tries `2 + floor(ln K)` points drawn with probability
    proportional to `w d^2` and keeps the one that lowers the potential most."""
    trials = choices.local_trials or 2 + int(math.log(k))
    engine = kernels(rows.dtype)
    blocks = list(rows.blocks(_PIECE)) if rows.view else None
    norms = np.empty(rows.n, rows.dtype)
    for start, block in blocks or rows.blocks(_PIECE):
        shifted = block - centre
        norms[start : start + len(block)] = np.einsum("ij,ij->i", shifted, shifted)
    width = -(-max(trials, 1) // engine.centroids) * engine.centroids
    scratch = engine.scratch(rows.d)
    chosen = np.empty((k, rows.d), rows.dtype)
    if weights is None:
        first = int(generator.integers(rows.n))
    else:
        mass = np.cumsum(weights, dtype=np.float64)
        first = min(int(np.searchsorted(mass, generator.random() * mass[-1], side="right")), rows.n - 1)
    chosen[0] = rows.take(np.array([first]))[0]
    closest = np.full(rows.n, np.inf, rows.dtype)
    tried = np.empty((width, rows.n), rows.dtype)

    def distances(candidates: np.ndarray) -> None:
        packed = engine.pack(np.ascontiguousarray(candidates - centre, rows.dtype), centre)
        for start, block in blocks or rows.blocks(_PIECE):
            stop = start + len(block)
            engine.closest(block, packed, norms[start:stop], closest[start:stop], tried[:, start:stop], scratch)

    distances(chosen[:1])
    closest[:] = tried[0]
    closest[first] = 0
    for step in range(1, k):
        weighted = closest if weights is None else closest * weights
        mass = np.cumsum(weighted, dtype=np.float64)
        if not mass[-1] > 0:  # every point is a centroid already: fewer different points than K
            chosen[step:] = chosen[0]
            break
        picks = np.minimum(np.searchsorted(mass, generator.random(trials) * mass[-1], side="right"), rows.n - 1)
        candidates = rows.take(picks)
        distances(candidates)
        scores = tried[:trials].sum(axis=1, dtype=np.float64) if weights is None else tried[:trials] @ weights
        best = int(np.argmin(scores))
        chosen[step] = candidates[best]
        closest[:] = tried[best]
        closest[picks[best]] = 0  # exactly: its rounded distance to itself would let it be drawn again
    return chosen


def kmeans_parallel(
    rows: Rows, k: int, generator: np.random.Generator, *, weights: np.ndarray | None = None, centre: np.ndarray,
    choices: Choices = DEFAULTS,
) -> np.ndarray:  # fmt: skip
    """k-means|| (Bahmani et al. 2012): a few rounds, each drawing about `oversampling * K` points at once with probability
    proportional to `w d^2`; the candidates, weighted by the points nearest to them, are then reduced to K by weighted
    k-means++ and two Lloyd steps."""
    allowed = np.arange(rows.n) if weights is None else np.flatnonzero(weights > 0)
    picked = [int(allowed[generator.integers(len(allowed))])]
    closest = np.full(rows.n, np.inf)
    fresh = np.array(picked)
    for _ in range(choices.rounds):
        closest = np.minimum(closest, _squared_distance(rows, rows.take(fresh)))
        closest[fresh] = 0
        mass = closest if weights is None else closest * weights
        total = float(mass.sum())
        if not total > 0:
            break
        fresh = np.flatnonzero(generator.random(rows.n) < np.minimum(choices.oversampling * k * mass / total, 1.0))
        if not len(fresh):
            break
        picked.extend(int(i) for i in fresh)
    if len(picked) < k:  # a round can draw less than its share; the rest is uniform
        rest = np.setdiff1d(allowed, picked)
        more = min(k - len(picked), len(rest))
        picked.extend(int(i) for i in generator.choice(rest, more, replace=False))
    if len(picked) < k:
        picked.extend(picked[:1] * (k - len(picked)))
    candidates = rows.take(np.array(picked))
    labels = np.full(rows.n, -1, np.int32)
    kernel_assign(rows, candidates, False, labels)
    share = np.bincount(labels, weights, minlength=len(candidates)).astype(rows.dtype)
    small = ArrayRows(candidates)
    plain = Choices(local_trials=1 if k > 2048 else choices.local_trials)
    start = kmeans_plus_plus(small, k, generator, weights=share, centre=centre, choices=plain)
    for _ in range(2):
        nearest = np.full(small.n, -1, np.int32)
        kernel_assign(small, start, False, nearest)
        mass = np.bincount(nearest, share, minlength=k)
        sums = np.zeros((k, rows.d))
        np.add.at(sums, nearest, share[:, None].astype(np.float64) * candidates)
        start = np.where(mass[:, None] > 0, sums / np.maximum(mass, 1e-300)[:, None], start).astype(rows.dtype)
    return start


def _squared_distance(rows: Rows, centroids: np.ndarray) -> np.ndarray:
    """Distance of each row to the nearest of a few centroids."""
    labels = np.full(rows.n, -1, np.int32)
    kernel_assign(rows, centroids, False, labels)
    out = np.empty(rows.n, rows.dtype)
    engine = kernels(rows.dtype)
    for start, block in rows.blocks(_PIECE):
        engine.distance(
            block, np.ascontiguousarray(centroids), labels[start : start + len(block)], out[start : start + len(block)]
        )
    return out.astype(np.float64)
