"""Rows spread over processes: one all-reduce of `(K, D + 1)` sums an iteration, the same centroids on every rank.

Works with `gloo` on CPUs and `nccl` on GPUs. A rank may have no rows. From the same start the result is that of one process up to
the order of float64 additions; starts are drawn by rank 0's generator as if all rows lay in one process, in the order of the
ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from neurips26.flash_kmeans.choices import Choices
from neurips26.flash_kmeans.engine import Engine, Step
from neurips26.flash_kmeans.init import initial_centroids
from neurips26.flash_kmeans.rows import ArrayRows, scatter_about

__all__ = ["DistributedEngine", "fit_shards", "total_rows"]


def total_rows(n: int, group: Any) -> int:
    """Number of rows over all ranks."""
    return int(_reduce(np.array([float(n)]), group)[0])


def _reduce(values: np.ndarray, group: Any) -> np.ndarray:
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    tensor = torch.from_numpy(np.array(values, dtype=np.float64)).to(device)
    dist.all_reduce(tensor, group=group)
    return tensor.cpu().numpy()


class DistributedEngine(Engine):
    """Wraps the engine of this rank's rows; every method returns the same on all ranks, but `labels` are the rank's own."""

    def __init__(self, engine: Any, group: Any) -> None:
        if not dist.is_initialized():
            raise ValueError("process_group: expected torch.distributed to be initialised")
        self.engine, self.group = engine, group
        self.rank = dist.get_rank(group)
        self.path = f"{engine.path}-distributed"
        self.k, self.d, self.dtype, self.unit, self.rows = engine.k, engine.d, engine.dtype, engine.unit, engine.rows
        ranks = dist.get_world_size(group)
        sizes = np.zeros(ranks)
        sizes[self.rank] = engine.n
        sizes = _reduce(sizes, group).astype(np.int64)
        self.n, self.first_row = int(sizes.sum()), int(sizes[: self.rank].sum())
        shapes: list[Any] = [None] * ranks
        dist.all_gather_object(shapes, (engine.k, engine.d, str(engine.dtype), engine.unit), group=group)
        if len(set(shapes)) > 1:
            raise ValueError(f"x: expected the same K, D, type and metric on every rank, got {shapes}")
        self._share_summary()

    def _share_summary(self) -> None:
        """Mean, variance and scatter of all rows instead of this rank's; the centre of the rank's engine follows."""
        local, n = self.engine.summary, self.engine.n
        mean = _reduce(local.mean * n, self.group) / self.n
        around = n * self.d * local.variance + n * float(np.square(local.mean - mean).sum())
        moved = not self.unit and bool(self.engine.centre.any() or self.n > n)
        self.centre = mean.astype(self.dtype) if moved else self.engine.centre
        self.engine.centre = self.centre
        scatter = local.mass if self.unit else scatter_about(self.rows, self.centre, self.engine.weights)
        total = _reduce(np.array([around, scatter, local.zero_rows]), self.group)
        self.tolerance_scale = float(total[0]) / (self.n * self.d)
        self.scatter, self.zero_rows = float(total[1]), float(total[2])

    @property
    def labels(self) -> np.ndarray:  # type: ignore[override]
        """Labels of this rank's rows."""
        return self.engine.labels

    @labels.setter
    def labels(self, values: np.ndarray) -> None:
        self.engine.labels = values

    def step(self, centroids: np.ndarray) -> Step:
        """See `Engine.step`."""
        mine = self.engine.step(centroids)
        total = _reduce(np.concatenate([mine.sums.ravel(), mine.mass, [mine.score, mine.changed]]), self.group)
        size = self.k * self.d
        return Step(total[:size].reshape(self.k, self.d), total[size:-2], float(total[-2]), int(total[-1]))

    def farthest(self, centroids: np.ndarray, count: int) -> list[tuple[float, int, int, float, np.ndarray]]:
        """See `Engine.farthest`; indices count over all ranks."""
        mine = [(d, self.first_row + i, label, w, p) for d, i, label, w, p in self.engine.farthest(centroids, count)]
        everyone: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(everyone, mine, group=self.group)
        return sorted((row for part in everyone for row in part), key=lambda row: (-row[0], row[1]))[:count]

    def finish(self, centroids: np.ndarray) -> float:
        """See `Engine.finish`."""
        return float(_reduce(np.array([self.engine.finish(centroids)]), self.group)[0])

    def sum(self, values: np.ndarray) -> np.ndarray:
        """See `Engine.sum`."""
        return _reduce(values, self.group)

    def first_centroids(
        self, init: Any, generator: np.random.Generator, choices: Choices, *, sample: bool
    ) -> np.ndarray:
        """See `Engine.first_centroids`; all ranks draw with rank 0's generator."""
        state = [generator.bit_generator.state if self.rank == 0 else None]
        dist.broadcast_object_list(
            state, src=dist.get_global_rank(self.group, 0) if self.group is not None else 0, group=self.group
        )
        generator.bit_generator.state = state[0]
        if callable(init) or not isinstance(init, str):
            wanted = np.arange(0)
        elif init == "random":
            wanted = generator.choice(self.n, self.k, replace=False)
        elif self.n > choices.init_rows:
            wanted = np.sort(generator.choice(self.n, choices.init_rows, replace=False))
        else:
            wanted = np.arange(self.n)
        if callable(init):
            raise ValueError("init: expected a name or an array with a process group, got a function")
        if not isinstance(init, str):
            return initial_centroids(self.rows, self.k, init, generator)
        points, weights = self._gather(wanted)
        if init == "random":
            return points.astype(np.float64)
        return initial_centroids(
            ArrayRows(points), self.k, init, generator, weights=weights, centre=self.centre, choices=choices
        )

    def _gather(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Rows of the given global indices, on every rank."""
        weighted = _reduce(np.array([float(self.engine.weights is not None)]), self.group)[0] > 0
        table = np.zeros((len(wanted), self.d + 1))
        mine = (wanted >= self.first_row) & (wanted < self.first_row + self.engine.n)
        local = wanted[mine] - self.first_row
        if len(local):
            table[mine, :-1] = self.rows.take(local)
            table[mine, -1] = 1 if self.engine.weights is None else self.engine.weights[local]
        table = _reduce(table, self.group)
        return np.ascontiguousarray(table[:, :-1], dtype=self.dtype), table[:, -1] if weighted else None


def fit_shards(shards: list[np.ndarray], jobs: list[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """In a group of `len(shards)` gloo processes, cluster `shards[rank]` once for each job `(k, options)`; an error is a result
    too."""
    from neurips26.flash_kmeans.loop import kmeans

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = []
    try:
        for k, options in jobs:
            try:
                r = kmeans(shards[dist.get_rank()], k, process_group=dist.group.WORLD, **options)
                found.append({"centroids": r.centroids, "labels": r.labels, "inertia": r.inertia, "n_iter": r.n_iter})
            except ValueError as error:
                found.append({"error": str(error)})
        return found
    finally:
        dist.destroy_process_group()
