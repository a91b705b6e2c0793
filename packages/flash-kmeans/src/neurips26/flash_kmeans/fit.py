"""`kmeans`: one clustering of rows in memory, on a device, on disk or spread over processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from neurips26.flash_kmeans.arguments import EMPTY, METRICS, PRECISIONS, check_weights, like, target_device
from neurips26.flash_kmeans.checkpoint import Checkpoint
from neurips26.flash_kmeans.choices import DEFAULTS, Choices
from neurips26.flash_kmeans.engine import CpuEngine, Engine
from neurips26.flash_kmeans.loop import KMeansResult, LoopState, lloyd
from neurips26.flash_kmeans.rows import Rows, UnitRows, rows_of
from neurips26.shared.arrays import check_choice, check_int, check_real

__all__ = ["kmeans"]


def kmeans(
    x: Any, k: int, *, weights: Any = None, init: Any = "k-means++", n_init: int = 1, max_iter: int = 25, tol: float = 1e-4,
    metric: Literal["euclidean", "cosine"] = "euclidean", precision: str = "certified", empty: str = "relocate",
    deterministic: bool = True, center: bool = True, on_zero: Literal["assign", "raise"] = "assign", check_finite: bool = True,
    device: Any = None, chunk_rows: int | None = None, memory_limit: int | None = None, threads: int | None = None,
    seed: Any = None, checkpoint: Any = None, checkpoint_every: int = 1, resume: bool = False,
    process_group: Any = None, verbose: int = 0, choices: Choices = DEFAULTS,
) -> KMeansResult:  # fmt: skip
    """Cluster the rows of `x` by exact Lloyd iterations.

    Args:
        x: `(N, D)` points: numpy, torch (any device), memory map, path of a `.npy` file, or a list of those. float64
            and integers of 32 bits or more are computed in float64, everything else in float32.
        k: number of clusters, `1 <= k <= N`.
        weights: `(N,)` non-negative; a point of weight 0 gets a label but moves no centroid.
        init: `"k-means++"`, `"k-means||"` (for large K), `"random"`, an array `(K, D)` or `f(x, k, generator)`.
        n_init: runs from different starts; the one of lowest inertia is returned.
        max_iter: largest number of iterations.
        tol: converged when the squared shift of the centroids is at most `tol` times the mean variance of a feature;
            negative: never.
        metric: `"euclidean"`, or `"cosine"` (points and centroids on the unit sphere).
        precision: what tensor cores may round, see the README; the CPU always computes in full precision.
        empty: what happens to a cluster that lost its points: `"relocate"` to the farthest point, `"keep"`, `"raise"`, `"drop"`.
        deterministic: on a GPU, sum without atomics.
        center: subtract the data mean inside the kernels (no copy is made), so that an offset costs no precision.
        on_zero: under cosine, a row of zeros gets label 0 and moves nothing (`"assign"`), or is an error (`"raise"`).
        check_finite: refuse NaN and infinity.
        device: where to compute; default: where `x` is. `"cuda"` without a GPU is an error.
        chunk_rows: rows held at once (out-of-core data, and host data on a GPU).
        memory_limit: bytes the computation may hold beyond the label, weight and distance of each point; memory maps are then
            read through their file.
        threads: CPU threads; default `torch.get_num_threads()`. The result does not depend on it.
        seed: int, `numpy.random.Generator`, or `None`.
        checkpoint: path of a file written atomically every `checkpoint_every` iterations; `resume=True` goes on from it.
        checkpoint_every: iterations between two writes.
        resume: continue from `checkpoint` if it exists. The result is bitwise that of an uninterrupted run.
        process_group: `torch.distributed` group over which the rows are spread; every rank returns the same centroids,
            and the labels of its own rows.
        verbose: print each iteration's inertia.
        choices: see `Choices`.

    Raises:
        ValueError: a bad argument, named with what was expected and what came.
        TypeError: an argument of the wrong kind.
        EmptyClusterError: with `empty="raise"`.
    """
    _check_options(k, n_init, max_iter, tol, metric, precision, empty, on_zero)
    _check_sizes(chunk_rows=chunk_rows, memory_limit=memory_limit, threads=threads)
    _check_checkpoint(checkpoint, checkpoint_every, resume, n_init)
    where = target_device(x, device)
    if where.type == "cuda" and checkpoint is None and process_group is None and not verbose:
        from neurips26.flash_kmeans import gpu_engine

        if gpu_engine.fits(x, where, chunk_rows, memory_limit):
            return gpu_engine.kmeans_resident(
                x, k, where, weights=weights, init=init, n_init=n_init, max_iter=max_iter, tol=tol, metric=metric,
                precision=precision, empty=empty, deterministic=deterministic, center=center, on_zero=on_zero,
                check_finite=check_finite, choices=choices,
                seed=int(seed.integers(2**62)) if isinstance(seed, np.random.Generator) else seed,
            )  # fmt: skip
    family = x if isinstance(x, torch.Tensor) else None
    rows = rows_of(
        x if family is None else family.detach().cpu(),
        through_file=memory_limit is not None,
        allow_empty=process_group is not None,
    )
    engine = _engine(
        UnitRows(rows) if metric == "cosine" else rows, k, where, process_group, threads=threads, precision=precision,
        deterministic=deterministic, weights=check_weights(weights, rows.n, partial=process_group is not None),
        unit=metric == "cosine", center=center, chunk_rows=chunk_rows, memory_limit=memory_limit,
        check_finite=check_finite, choices=choices,
    )  # fmt: skip
    if on_zero == "raise" and metric == "cosine" and engine.zero_rows > 0:
        raise ValueError("x: expected rows with a direction for metric='cosine', got a row of zeros")
    store = None
    if checkpoint is not None:
        store = Checkpoint(checkpoint, checkpoint_every, resume, engine, (k, metric, empty, float(tol), center))
    generator = seed if isinstance(seed, np.random.Generator) else np.random.default_rng(seed)
    final, inertia, state, labels = _best_run(
        engine, partial(_start, engine, init, generator, choices, memory_limit, store), n_init, max_iter=max_iter, tol=tol,
        empty=empty, choices=choices, checkpoint=store, verbose=verbose,
    )  # fmt: skip
    if empty == "drop":
        final, labels = _drop(engine, final, labels)
    return KMeansResult(
        centroids=like(final, family), labels=like(labels, family), inertia=inertia, n_iter=state.n_iter,
        converged=state.converged, history=state.history, path=engine.path, n_rechecked=getattr(engine, "n_rechecked", 0),
    )  # fmt: skip


def _check_options(
    k: Any, n_init: Any, max_iter: Any, tol: Any, metric: Any, precision: Any, empty: Any, on_zero: Any
) -> None:
    check_int(k, "k", minimum=1)
    check_int(n_init, "n_init", minimum=1)
    check_int(max_iter, "max_iter", minimum=1)
    check_real(tol, "tol")
    check_choice(metric, "metric", METRICS)
    check_choice(precision, "precision", PRECISIONS)
    check_choice(empty, "empty", EMPTY)
    check_choice(on_zero, "on_zero", ("assign", "raise"))


def _check_sizes(**sizes: Any) -> None:
    for name, value in sizes.items():
        if value is not None:
            check_int(value, name, minimum=1)


def _check_checkpoint(checkpoint: Any, every: Any, resume: bool, n_init: int) -> None:
    check_int(every, "checkpoint_every", minimum=1)
    if resume and checkpoint is None:
        raise ValueError("resume: expected checkpoint=path as well, got resume=True alone")
    if checkpoint is not None and n_init > 1:
        raise ValueError(f"n_init: expected 1 with a checkpoint, got {n_init}")


def _engine(
    rows: Rows, k: int, where: torch.device, process_group: Any, *, threads: int | None, precision: str, deterministic: bool,
    **options: Any,
) -> Engine:  # fmt: skip
    """The engine for a device, wrapped where the rows are spread over processes."""
    total = rows.n
    if process_group is not None:
        from neurips26.flash_kmeans.distributed import DistributedEngine, total_rows

        total = total_rows(rows.n, process_group)
    if k > total:
        raise ValueError(f"k: expected at most the number of points N={total}, got K={k}")
    engine: Engine
    if where.type == "cuda":
        from neurips26.flash_kmeans.gpu_engine import GpuEngine

        engine = GpuEngine(rows, k, where, precision=precision, deterministic=deterministic, **options)
    else:
        engine = CpuEngine(rows, k, threads=threads, **options)
    return engine if process_group is None else DistributedEngine(engine, process_group)


def _start(
    engine: Engine, init: Any, generator: np.random.Generator, choices: Choices, memory_limit: int | None,
    store: Checkpoint | None,
) -> np.ndarray:  # fmt: skip
    """First centroids; zeros where a checkpoint is about to replace them."""
    if store is not None and store.found:
        return np.zeros((engine.k, engine.d))
    if memory_limit is not None:  # the sample that the first centroids are drawn from may take half of it
        held = max(engine.k, memory_limit // (2 * engine.d * engine.rows.dtype.itemsize))
        choices = replace(choices, init_rows=min(choices.init_rows, held))
    return engine.first_centroids(init, generator, choices, sample=memory_limit is not None)


def _best_run(
    engine: Engine, start: Callable[[], np.ndarray], n_init: int, **options: Any
) -> tuple[np.ndarray, float, LoopState, np.ndarray]:
    """Centroids, inertia, state and labels of the first run of lowest inertia."""

    def run(number: int) -> tuple[np.ndarray, float, LoopState, np.ndarray]:
        first = start()
        if number:  # the labels of the run before may be the best ones
            engine.labels = np.full_like(engine.labels, -1)
        return (*lloyd(engine, first, **options), engine.labels)

    return min(map(run, range(n_init)), key=lambda found: found[1])


def _drop(engine: Engine, centroids: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Leave out clusters without points and renumber the rest."""
    kept = engine.sum(np.bincount(labels, minlength=len(centroids)).astype(np.float64)) > 0
    return centroids[kept], (np.cumsum(kept, dtype=np.int32) - 1)[labels].astype(np.int32)
