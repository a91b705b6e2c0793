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
        self.centred, self.weights = engine.centred, engine.weights
        self.n, self.first_row = self._places(engine.n)
        shapes: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(shapes, (engine.k, engine.d, str(engine.dtype), engine.unit), group=group)
        if len(set(shapes)) > 1:
            raise ValueError(f"x: expected the same K, D, type and metric on every rank, got {shapes}")
        self.weighted = _reduce(np.array([float(engine.weights is not None)]), group)[0] > 0
        self._share_summary()

    def _places(self, count: int) -> tuple[int, int]:
        """Sum of `count` over the ranks, and over the ranks before this one."""
        counts = np.zeros(dist.get_world_size(self.group))
        counts[self.rank] = count
        counts = _reduce(counts, self.group).astype(np.int64)
        return int(counts.sum()), int(counts[: self.rank].sum())

    def _share_summary(self) -> None:
        """Mean, variance and scatter of all rows instead of this rank's; the centre of the rank's engine follows."""
        local, n = self.engine.summary, self.engine.n
        mean = _reduce(local.mean * n, self.group) / self.n
        around = n * self.d * local.variance + n * float(np.square(local.mean - mean).sum())
        self.centre = mean.astype(self.dtype) if self.centred else self.engine.centre
        self.engine.centre = self.centre
        scatter = local.mass if self.unit else scatter_about(self.rows, self.centre, self.engine.weights)
        total = _reduce(np.array([around, scatter, local.zero_rows, local.mass]), self.group)
        if total[3] <= 0:
            raise ValueError("weights: expected at least one positive number on some rank, got all zeros")
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

    def newest_common(self, held: list[int]) -> int | None:
        """See `Engine.newest_common`."""
        everyone: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(everyone, held, group=self.group)
        common = set.intersection(*map(set, everyone))
        if not common and any(everyone):
            raise ValueError(
                f"checkpoint: expected one iteration that all ranks hold, got {everyone}; remove the files"
            )
        return max(common, default=None)

    def wait(self) -> None:
        """See `Engine.wait`."""
        _reduce(np.zeros(1), self.group)

    def first_centroids(
        self, init: Any, generator: np.random.Generator, choices: Choices, *, sample: bool
    ) -> np.ndarray:
        """See `Engine.first_centroids`; all ranks draw with rank 0's generator."""
        state = [generator.bit_generator.state if self.rank == 0 else None]
        dist.broadcast_object_list(
            state, src=dist.get_global_rank(self.group, 0) if self.group is not None else 0, group=self.group
        )
        generator.bit_generator.state = state[0]
        if callable(init):
            raise ValueError("init: expected a name or an array with a process group, got a function")
        if not isinstance(init, str):
            return initial_centroids(self.rows, self.k, init, generator)
        if init == "random":
            allowed = None if not self.weighted else np.flatnonzero(self._mass() > 0)
            total = self.n if allowed is None else self._places(len(allowed))[0]
            if total < self.k:
                raise ValueError(f"weights: expected at least K={self.k} positive weights, got {total}")
            return self._gather(generator.choice(total, self.k, replace=False), allowed)[0].astype(np.float64)
        wanted = np.arange(self.n)
        if self.n > choices.init_rows:
            wanted = np.sort(generator.choice(self.n, choices.init_rows, replace=False))
        points, weights = self._gather(wanted)
        return initial_centroids(
            ArrayRows(points), self.k, init, generator, weights=weights, centre=self.centre, choices=choices
        )

    def _mass(self) -> np.ndarray:
        """Weights of this rank's rows."""
        return np.ones(self.engine.n) if self.weights is None else self.weights

    def _gather(self, wanted: np.ndarray, allowed: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray | None]:
        """Rows and weights at the given places of all ranks' rows (of their `allowed` rows), on every rank."""
        count = self.engine.n if allowed is None else len(allowed)
        before = self._places(count)[1]
        mine = (wanted >= before) & (wanted < before + count)
        local = wanted[mine] - before if allowed is None else allowed[wanted[mine] - before]
        table = np.zeros((len(wanted), self.d + 1))
        if len(local):
            table[mine, :-1] = self.rows.take(local)
            table[mine, -1] = self._mass()[local]
        table = _reduce(table, self.group)
        return np.ascontiguousarray(table[:, :-1], dtype=self.dtype), table[:, -1] if self.weighted else None


def fit_shards(shards: list[np.ndarray], jobs: list[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """In a group of `len(shards)` gloo processes, cluster `shards[rank]` once for each job `(k, options)`; an error is a result
    too. An option `weights` is a list with the weights of each rank's rows."""
    from neurips26.flash_kmeans.fit import kmeans

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found, rank = [], dist.get_rank()
    try:
        for k, options in jobs:
            mine = {**options, "weights": options["weights"][rank]} if "weights" in options else options
            try:
                r = kmeans(shards[rank], k, process_group=dist.group.WORLD, **mine)
                found.append({"centroids": r.centroids, "labels": r.labels, "inertia": r.inertia, "n_iter": r.n_iter})
            except ValueError as error:
                found.append({"error": str(error)})
        return found
    finally:
        dist.destroy_process_group()
