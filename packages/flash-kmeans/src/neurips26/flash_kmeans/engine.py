"""One Lloyd step over all points of this process. The loop knows nothing of blocks, threads or devices: an engine does.

`CpuEngine` walks over slabs of rows; each slab is assigned and summed by the generated kernels in one pass. Sums are
float64, and those of the slabs are added in the order of the slabs, whatever thread finished first: results are bitwise the
same for any number of threads and any chunk size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from neurips26.flash_kmeans.choices import DEFAULTS, Choices
from neurips26.flash_kmeans.cpu_assign import kernel_assign, pool_of
from neurips26.flash_kmeans.cpu_kernels import Scratch, kernels
from neurips26.flash_kmeans.init import initial_centroids
from neurips26.flash_kmeans.plan import cpu_plan
from neurips26.flash_kmeans.rows import Rows, summarise

__all__ = ["CpuEngine", "Engine", "Step"]


@dataclass
class Step:
    """What one pass over the points gives.

    Attributes:
        sums: `(K, D)` float64, sum of `w (x - centre)` of each cluster.
        mass: `(K,)` float64, sum of `w`.
        score: sum of `w` times the best score (`||c||^2 - 2 <x, c>`, or `-2 <x, c>` for cosine).
        changed: labels that differ from the pass before.
    """

    sums: np.ndarray
    mass: np.ndarray
    score: float
    changed: int


class Engine(ABC):
    """What the loop needs. Centroids passed to `step` are float64 and relative to `centre`."""

    path: str
    rows: Rows
    n: int
    k: int
    d: int
    dtype: np.dtype
    unit: bool
    centred: bool  # the centre is the mean of the points, else zero
    centre: np.ndarray
    weights: np.ndarray | None
    labels: np.ndarray
    tolerance_scale: float  # mean variance of a feature
    zero_rows: float  # weight of rows without a direction (cosine)
    scatter: float  # sum of w ||x - centre||^2; the sum of w for cosine

    @abstractmethod
    def first_centroids(
        self, init: Any, generator: np.random.Generator, choices: Choices, *, sample: bool
    ) -> np.ndarray:
        """First centroids, absolute, float64."""

    @abstractmethod
    def step(self, centroids: np.ndarray) -> Step:
        """Assign all points to `centroids` and sum them up."""

    @abstractmethod
    def farthest(self, centroids: np.ndarray, count: int) -> list[tuple[float, int, int, float, np.ndarray]]:
        """The `count` rows of positive weight farthest from their centroid: `(distance, index, label, weight, row - centre)`."""

    @abstractmethod
    def finish(self, centroids: np.ndarray) -> float:
        """Assign to the final centroids (absolute, in the compute type) and return the inertia."""

    def inertia(self, score: float) -> float:
        """The inertia that belongs to a step's score."""
        return max(0.0, self.scatter + (score / 2 if self.unit else score))

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum over all processes (the identity on one)."""
        return values

    def newest_common(self, held: list[int]) -> int | None:
        """The largest of the numbers that every process holds."""
        return max(held, default=None)

    def wait(self) -> None:
        """Return when every process has come here."""
        return


@dataclass
class _Worker:
    """Buffers of one thread."""

    scratch: Scratch
    sums: np.ndarray
    mass: np.ndarray
    best: np.ndarray


class CpuEngine(Engine):
    """The CPU path. `labels` `(N,)` int32 is kept between steps; nothing of size N x K exists."""

    def __init__(
        self, rows: Rows, k: int, *, weights: np.ndarray | None = None, unit: bool = False, center: bool = True,
        chunk_rows: int | None = None, memory_limit: int | None = None, threads: int | None = None, check_finite: bool = True,
        choices: Choices = DEFAULTS,
    ) -> None:  # fmt: skip
        self.rows, self.k, self.unit, self.choices = rows, k, unit, choices
        self.n, self.d, self.dtype = rows.n, rows.d, rows.dtype
        self.weights = None if weights is None else np.ascontiguousarray(weights, rows.dtype)
        self.summary = summarise(rows, self.weights, check_finite=check_finite)
        self.tolerance_scale, self.zero_rows = self.summary.variance, self.summary.zero_rows
        self.centred = center and not unit
        self.centre = self.summary.mean.astype(rows.dtype) if self.centred else np.zeros(rows.d, rows.dtype)
        offset = self.summary.mean - self.centre
        about = self.summary.squares + self.summary.mass * float(offset @ offset)
        self.scatter = self.summary.mass if unit else about
        self.threads = threads or torch.get_num_threads()
        self.plan = cpu_plan(
            rows.n, k, rows.d, rows.dtype.itemsize, self.threads, chunk_rows=chunk_rows, memory_limit=memory_limit,
            view=rows.view,
            choices=choices,
        )  # fmt: skip
        self.path = "cpu-tiny" if rows.d <= 16 else "cpu"
        self.kernels = kernels(rows.dtype)
        self.labels = np.full(rows.n, -1, np.int32)
        self._workers = [self._worker() for _ in range(self.plan.threads)]

    def _worker(self) -> _Worker:
        sums, mass = np.zeros((self.k, self.d)), np.zeros(self.k)
        return _Worker(self.kernels.scratch(self.d), sums, mass, np.empty(self.plan.piece_rows, self.dtype))

    def step(self, centroids: np.ndarray) -> Step:
        """See `Engine.step`."""
        packed = self.kernels.pack(np.ascontiguousarray(centroids, self.dtype), self.centre, norms=not self.unit)
        total = Step(np.zeros((self.k, self.d)), np.zeros(self.k), 0.0, 0)

        def work(worker: _Worker, start: int, block: np.ndarray) -> _Worker:
            stop = start + len(block)
            weights = None if self.weights is None else self.weights[start:stop]
            self.kernels.lloyd(
                block, packed, self.labels[start:stop], worker.best, weights, worker.sums, worker.mass, worker.scratch
            )
            return worker

        def hand_over(worker: _Worker) -> None:
            total.sums += worker.sums
            total.mass += worker.mass
            total.score += float(worker.scratch.total[0])
            total.changed += int(worker.scratch.changed[0])
            worker.sums[:] = 0
            worker.mass[:] = 0
            worker.scratch.total[0] = worker.scratch.changed[0] = 0

        slab, pieces = self.plan.slab_rows, self.rows.blocks(self.plan.piece_rows, self.plan.slab_rows)
        if self.plan.threads == 1:
            worker = self._workers[0]
            for start, block in pieces:
                work(worker, start, block)
                if (start + len(block)) % slab == 0 or start + len(block) == self.n:
                    hand_over(worker)
        else:
            free = deque(self._workers)
            running: deque[Future[_Worker]] = deque()
            pool = pool_of(self.plan.threads)
            for start, block in pieces:
                if not free:
                    worker = running.popleft().result()
                    hand_over(worker)
                    free.append(worker)
                running.append(pool.submit(work, free.popleft(), start, block))
            for future in running:
                hand_over(future.result())
        if self.unit:
            total.mass[0] -= (
                self.summary.zero_rows
            )  # rows without a direction carry the label 0 but belong to no cluster
        return total

    def distances(self, centroids: np.ndarray) -> np.ndarray:
        """Squared distance `(N,)` of each point to the centroid of its label; `centroids` are absolute."""
        centroids = np.ascontiguousarray(centroids, self.dtype)
        out = np.empty(self.n, self.dtype)
        for start, block in self.rows.blocks(min(self.plan.piece_rows, 8192)):
            part = slice(start, start + len(block))
            self.kernels.distance(block, centroids, self.labels[part], out[part])
        return out

    def farthest(self, centroids: np.ndarray, count: int) -> list[tuple[float, int, int, float, np.ndarray]]:
        """See `Engine.farthest`."""
        if self.n == 0:
            return []
        distance = self.distances(centroids + self.centre)
        if self.weights is not None:
            distance[self.weights <= 0] = -1
        count = min(count, self.n)
        cut = np.partition(distance, self.n - count)[self.n - count]
        order = np.flatnonzero(distance >= cut)  # all ties at the cut, so that the lowest index wins among them
        order = order[np.lexsort((order, -distance[order]))][:count]
        order = order[distance[order] > 0]
        points = self.rows.take(order) - self.centre
        weight = np.ones(len(order)) if self.weights is None else self.weights[order]
        return [
            (float(distance[i]), int(i), int(self.labels[i]), float(w), p.astype(np.float64))
            for i, w, p in zip(order, weight, points)
        ]

    def finish(self, centroids: np.ndarray) -> float:
        """See `Engine.finish`."""
        best = kernel_assign(
            self.rows, centroids, self.unit, self.labels, threads=self.plan.threads, piece=self.plan.piece_rows
        )
        value = np.maximum(1 + best / 2, 0) if self.unit else self.distances(centroids)
        total, block = 0.0, 1 << 16
        for start in range(0, self.n, block):  # float64 sums without a float64 copy of everything
            wide = value[start : start + block].astype(np.float64)
            total += float(wide.sum() if self.weights is None else wide @ self.weights[start : start + block])
        return total

    def first_centroids(
        self, init: Any, generator: np.random.Generator, choices: Choices, *, sample: bool
    ) -> np.ndarray:
        """See `Engine.first_centroids`."""
        return initial_centroids(
            self.rows, self.k, init, generator, weights=self.weights, centre=self.centre, choices=choices, sample=sample
        )
