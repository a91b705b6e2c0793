"""Lloyd's loop, the same for every engine, and its result."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neurips26.flash_kmeans import checkpoint as checkpoints
from neurips26.flash_kmeans.choices import DEFAULTS, Choices
from neurips26.flash_kmeans.engine import Engine, Step

__all__ = ["ConvergenceWarning", "EmptyClusterError", "KMeansResult", "LoopState", "lloyd"]


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
class LoopState:
    """What a loop carries from one iteration to the next, and what a checkpoint holds."""

    centroids: np.ndarray  # (K, D) float64, relative to the engine's centre
    n_iter: int = 0
    converged: bool = False
    history: list[float] = field(default_factory=list)


def lloyd(
    engine: Engine, centroids: np.ndarray, *, max_iter: int, tol: float, empty: str = "relocate", choices: Choices = DEFAULTS,
    checkpoint: checkpoints.Checkpoint | None = None, verbose: int = 0,
) -> tuple[np.ndarray, float, LoopState]:  # fmt: skip
    """Iterate from `centroids` (absolute) and finish with an assignment to what is returned.

    Returns:
        Final centroids `(K, D)` in the compute type, inertia, and the state of the loop. Labels are in `engine.labels`.
    """
    state = LoopState(unit_rows(centroids) if engine.unit else centroids - engine.centre)
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
        return np.where((mass > 0)[:, None], unit_rows(sums, old), old), moved
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
            stacklevel=6,
        )
    return sums, mass, moved


def unit_rows(vectors: np.ndarray, fallback: np.ndarray | None = None) -> np.ndarray:
    """Rows scaled to length one; a zero row becomes `fallback`'s (or stays zero)."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled = vectors / np.where(length > 0, length, 1)
    return scaled if fallback is None else np.where(length > 0, scaled, fallback)
