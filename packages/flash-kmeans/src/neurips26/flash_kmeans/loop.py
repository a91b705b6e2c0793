"""Lloyd's loop: the same for every engine, and `kmeans`, its functional front."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch

from neurips26.flash_kmeans import checkpoint as checkpoints
from neurips26.flash_kmeans.choices import DEFAULTS, Choices
from neurips26.flash_kmeans.engine import CpuEngine, Engine, Step
from neurips26.flash_kmeans.rows import UnitRows, rows_of
from neurips26.shared.arrays import check_choice, check_int, check_real

__all__ = ["ConvergenceWarning", "EmptyClusterError", "KMeansResult", "kmeans", "lloyd"]

EMPTY = ("relocate", "keep", "raise", "drop")
METRICS = ("euclidean", "cosine")
PRECISIONS = ("ieee", "tf32x3", "fast", "certified")


class ConvergenceWarning(UserWarning):
    """Fewer different points than clusters."""


class EmptyClusterError(ValueError):
    """A cluster lost its last point and `empty="raise"`."""


@dataclass(frozen=True)
class KMeansResult:
    """A clustering.

    Attributes:
        centroids: `(K, D)` in the input's family (numpy or torch) and compute type.
        labels: `(N,)` int32: the nearest of `centroids` for each point.
        inertia: sum of squared distances to them (cosine: sum of `1 - cos`), weighted.
        n_iter: iterations done.
        converged: whether labels or centroids had come to rest.
        history: inertia at the start of each iteration (empty where the loop stays on a GPU or runs over a batch).
        path: which kernels ran (`"cpu-tiny"`, `"cpu"`, `"triton-..."`).
        n_rechecked: rows that `precision="certified"` evaluated a second time (0 on the CPU, whose arithmetic is the reference).
    """

    centroids: Any
    labels: Any
    inertia: Any
    n_iter: Any
    converged: Any
    history: list[float] = field(default_factory=list)
    path: str = "cpu"
    n_rechecked: int = 0


@dataclass
class _State:
    """What a loop carries from one iteration to the next, and what a checkpoint holds."""

    centroids: np.ndarray  # (K, D) float64, relative to the engine's centre
    n_iter: int = 0
    converged: bool = False
    history: list[float] = field(default_factory=list)


def lloyd(
    engine: Engine, centroids: np.ndarray, *, max_iter: int, tol: float, empty: str = "relocate", choices: Choices = DEFAULTS,
    checkpoint: checkpoints.Checkpoint | None = None, verbose: int = 0,
) -> tuple[np.ndarray, float, _State]:  # fmt: skip
    """Iterate from `centroids` (absolute) and finish with an assignment to what is returned.

    Returns:
        Final centroids `(K, D)` in the compute type, inertia, and the state of the loop. Labels are in `engine.labels`.
    """
    state = _State(_unit(centroids) if engine.unit else centroids - engine.centre)
    if checkpoint is not None:
        checkpoint.restore(state, engine)
    limit = tol * engine.tolerance_scale if tol >= 0 else -1.0
    while state.n_iter < max_iter and not state.converged:
        step = engine.step(state.centroids)
        state.history.append(engine.inertia(step.score))
        if verbose:
            print(f"iteration {state.n_iter + 1}: inertia {state.history[-1]:.6g}")
        fresh, moved = _means(engine, state.centroids, step, empty)
        moved_by = fresh - state.centroids
        shift = np.einsum("kd,kd->k", moved_by, moved_by)
        state.centroids = fresh
        state.n_iter += 1
        if tol >= 0 and not moved:
            rest = float(shift.sum() if choices.stop == "sum" else shift.max())
            state.converged = (step.changed == 0 and state.n_iter > 1) or rest <= limit
        if checkpoint is not None:
            checkpoint.save(state, engine)
    final = np.ascontiguousarray(state.centroids + engine.centre, dtype=engine.dtype)
    inertia = engine.finish(final)
    if checkpoint is not None:
        checkpoint.done()
    return final, inertia, state


def _means(engine: Engine, old: np.ndarray, step: Step, empty: str) -> tuple[np.ndarray, bool]:
    """New centroids, and whether an empty cluster was given a point."""
    sums, mass = step.sums, step.mass
    lost = np.flatnonzero(mass <= 0)
    moved = False
    if len(lost) and empty == "raise":
        raise EmptyClusterError(f"empty: cluster {int(lost[0])} and {len(lost) - 1} more have no points")
    if len(lost) and empty == "relocate":
        sums, mass, moved = _relocate(engine, old, sums, mass, lost)
    if engine.unit:
        return np.where((mass > 0)[:, None], _unit(sums, old), old), moved
    if not len(lost):
        return np.divide(sums, mass[:, None], out=sums), moved
    return np.where((mass > 0)[:, None], sums / np.where(mass > 0, mass, 1)[:, None], old), moved


def _relocate(
    engine: Engine, centroids: np.ndarray, sums: np.ndarray, mass: np.ndarray, lost: np.ndarray
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Give each empty cluster the point farthest from its centroid: different points, none that would empty its own cluster."""
    sums, mass = sums.copy(), mass.copy()
    waiting, count, moved = list(lost), 4 * len(lost) + 64, False
    taken: set[bytes] = set()
    used: set[int] = set()
    while waiting:
        candidates = engine.farthest(centroids, count)
        for _, index, label, weight, point in candidates:
            if not waiting:
                break
            key = point.tobytes()
            if index in used or key in taken or mass[label] - weight <= 1e-12 * weight:
                continue
            used.add(index)
            taken.add(key)
            k = waiting.pop(0)
            sums[label] -= weight * point
            mass[label] -= weight
            sums[k], mass[k] = weight * point, weight
            moved = True
        if len(candidates) < count:
            break
        count *= 4
    if waiting:
        warnings.warn(
            f"fewer different points than clusters: {len(waiting)} of {len(mass)} clusters stay empty",
            ConvergenceWarning,
            stacklevel=4,
        )
    return sums, mass, moved


def _unit(vectors: np.ndarray, fallback: np.ndarray | None = None) -> np.ndarray:
    """Rows scaled to length one; a zero row becomes `fallback`'s (or stays zero)."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled = vectors / np.where(length > 0, length, 1)
    return scaled if fallback is None else np.where(length > 0, scaled, fallback)


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
    check_int(k, "k", minimum=1)
    check_int(n_init, "n_init", minimum=1)
    check_int(max_iter, "max_iter", minimum=1)
    check_real(tol, "tol")
    check_choice(metric, "metric", METRICS)
    check_choice(precision, "precision", PRECISIONS)
    check_choice(empty, "empty", EMPTY)
    check_choice(on_zero, "on_zero", ("assign", "raise"))
    for name, value in (("chunk_rows", chunk_rows), ("memory_limit", memory_limit), ("threads", threads)):
        if value is not None:
            check_int(value, name, minimum=1)
    check_int(checkpoint_every, "checkpoint_every", minimum=1)
    if resume and checkpoint is None:
        raise ValueError("resume: expected checkpoint=path as well, got resume=True alone")
    if checkpoint is not None and n_init > 1:
        raise ValueError(f"n_init: expected 1 with a checkpoint, got {n_init}")
    where = target_device(x, device)
    family = x if isinstance(x, torch.Tensor) else None
    if where.type == "cuda":
        from neurips26.flash_kmeans import gpu_engine

        resident = checkpoint is None and process_group is None and not verbose
        if resident and gpu_engine.fits(x, where, chunk_rows, memory_limit):
            if isinstance(seed, np.random.Generator):
                seed = int(seed.integers(2**62))
            return gpu_engine.kmeans_resident(
                x, k, where, weights=weights, init=init, n_init=n_init, max_iter=max_iter, tol=tol, metric=metric,
                precision=precision,
                empty=empty, deterministic=deterministic, center=center, on_zero=on_zero, check_finite=check_finite, seed=seed,
                choices=choices,
            )  # fmt: skip
    distributed = process_group is not None
    source = family.detach().cpu() if family is not None else x
    rows = rows_of(source, through_file=memory_limit is not None, allow_empty=distributed)
    if metric == "cosine":
        rows = UnitRows(rows)
    weight = check_weights(weights, rows.n, partial=distributed)
    generator = seed if isinstance(seed, np.random.Generator) else np.random.default_rng(seed)
    options: dict[str, Any] = dict(
        weights=weight, unit=metric == "cosine", center=center, chunk_rows=chunk_rows, memory_limit=memory_limit,
        check_finite=check_finite, choices=choices,
    )  # fmt: skip
    total = rows.n
    if distributed:
        from neurips26.flash_kmeans.distributed import total_rows

        total = total_rows(rows.n, process_group)
    if k > total:
        raise ValueError(f"k: expected at most the number of points N={total}, got K={k}")
    engine: Engine
    if where.type == "cuda":
        engine = gpu_engine.GpuEngine(rows, k, where, precision=precision, deterministic=deterministic, **options)
    else:
        engine = CpuEngine(rows, k, threads=threads, **options)
    if distributed:
        from neurips26.flash_kmeans.distributed import DistributedEngine

        engine = DistributedEngine(engine, process_group)
    if on_zero == "raise" and metric == "cosine" and engine.zero_rows > 0:
        raise ValueError("x: expected rows with a direction for metric='cosine', got a row of zeros")
    best: tuple[np.ndarray, float, _State] | None = None
    labels = engine.labels
    for run in range(n_init):
        store = None
        if checkpoint is not None:
            store = checkpoints.Checkpoint(
                checkpoint, checkpoint_every, resume, engine, (k, metric, empty, float(tol), center)
            )
        if store is not None and store.found:
            start = np.zeros((k, rows.d))
        else:
            seen = choices
            if memory_limit is not None:  # the sample that the first centroids are drawn from may take half of it
                rows_held = max(k, memory_limit // (2 * rows.d * rows.dtype.itemsize))
                seen = replace(choices, init_rows=min(choices.init_rows, rows_held))
            start = engine.first_centroids(init, generator, seen, sample=memory_limit is not None)
        if run:
            engine.labels = np.full(rows.n, -1, np.int32)
        final, inertia, state = lloyd(
            engine, start, max_iter=max_iter, tol=tol, empty=empty, choices=choices, checkpoint=store, verbose=verbose
        )
        if best is None or inertia < best[1]:
            best, labels = (final, inertia, state), engine.labels
    assert best is not None
    final, inertia, state = best
    if empty == "drop":
        final, labels = _drop(engine, final, labels)
    return KMeansResult(
        centroids=like(final, family), labels=like(labels, family), inertia=inertia, n_iter=state.n_iter,
        converged=state.converged, history=state.history, path=engine.path, n_rechecked=getattr(engine, "n_rechecked", 0),
    )  # fmt: skip


def _drop(engine: Engine, centroids: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Leave out clusters without points and renumber the rest."""
    kept = engine.sum(np.bincount(labels, minlength=len(centroids)).astype(np.float64)) > 0
    return centroids[kept], (np.cumsum(kept, dtype=np.int32) - 1)[labels].astype(np.int32)


def check_weights(weights: Any, n: int, name: str = "weights", *, partial: bool = False) -> np.ndarray | None:
    """`(N,)` float64 weights: finite, non-negative, not all zero (unless they are those of a part of the rows)."""
    if weights is None:
        return None
    values = np.asarray(weights.detach().cpu() if hasattr(weights, "detach") else weights, dtype=np.float64)
    if values.ndim == 0:
        values = np.full(n, float(values))
    if values.shape != (n,):
        raise ValueError(f"{name}: expected shape (N={n},), got {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError(
            f"{name}: expected finite numbers, got {values[~np.isfinite(values)][0]} at {int(np.argmax(~np.isfinite(values)))}"
        )
    if n and values.min() < 0:
        raise ValueError(f"{name}: expected non-negative numbers, got {values.min()} at {int(values.argmin())}")
    single = np.finfo(np.float32)
    outside = (values > 0) & ~((values >= single.tiny) & (values <= single.max / max(n, 1)))
    if outside.any():
        at = int(np.argmax(outside))
        raise ValueError(
            f"{name}: expected 0 or a number between {single.tiny:.2g} and {single.max / n:.2g}, got {values[at]} at {at}; "
            "only their ratios matter: scale them"
        )
    if n and not partial and not values.any():
        raise ValueError(f"{name}: expected at least one positive number, got all zeros")
    return values


def target_device(x: Any, device: Any) -> torch.device:
    """The device to compute on; asking for a GPU that is not there is an error, never a fallback."""
    try:
        where = (
            torch.device(device)
            if device is not None
            else (x.device if isinstance(x, torch.Tensor) else torch.device("cpu"))
        )
    except RuntimeError as error:
        raise ValueError(
            f"device: expected 'cpu' or 'cuda[:i]', got {device!r} ({str(error).splitlines()[0]})"
        ) from error
    if where.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (where.index or 0) >= count:
            raise ValueError(f"device: expected one of {count} GPUs of this machine, got {str(where)!r}")
    elif where.type != "cpu":
        raise ValueError(f"device: expected 'cpu' or 'cuda[:i]', got {str(where)!r}")
    return where


def like(values: np.ndarray, family: torch.Tensor | None) -> Any:
    """Numpy in, numpy out; torch in, torch out on the same device."""
    return values if family is None else torch.from_numpy(np.ascontiguousarray(values)).to(family.device)
