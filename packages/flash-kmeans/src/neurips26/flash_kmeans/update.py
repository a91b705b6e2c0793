"""Centroid update as segmented sums: no two writers of one sum, hence repeatable and contention-free."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from neurips26.flash_kmeans.arguments import check_weights, like
from neurips26.flash_kmeans.cpu_kernels import kernels
from neurips26.flash_kmeans.rows import BLOCK, Rows, check_labels, refuse_not_finite, rows_of
from neurips26.shared.arrays import check_int

__all__ = ["cluster_sums", "update_centroids"]


def update_centroids(
    x: Any,
    labels: Any,
    k: int,
    *,
    weights: Any = None,
    old: Any = None,
    deterministic: bool = True,
    return_mass: bool = False,
) -> Any:
    """Weighted mean of the points of each label.

    Args:
        x: `(N, D)` points.
        labels: `(N,)` integers in `0..k-1`. On a GPU rows with any other label are left out: a check would wait for the device.
        k: number of clusters.
        weights: `(N,)` non-negative.
        old: `(K, D)`: what an empty cluster keeps; default zeros.
        deterministic: on a GPU, sum without atomics (the CPU never uses any).
        return_mass: also return the weight of each cluster.

    Returns:
        `(K, D)` means in the family of `x` (float32, or float64 for float64 points), or `(means, mass)`.
    """
    check_int(k, "k", minimum=1)
    if isinstance(x, torch.Tensor) and (torch.compiler.is_compiling() or x.device.type == "cuda"):
        from neurips26.flash_kmeans import ops

        return ops.update_centroids(x, labels, k, weights, old, deterministic, return_mass)
    family = x if isinstance(x, torch.Tensor) else None
    rows = rows_of(x)
    sums, mass = cluster_sums(rows, check_labels(labels, rows.n, k), k, check_weights(weights, rows.n))
    if not np.isfinite(sums).all():
        refuse_not_finite(rows, "x")
        raise ValueError("x: expected sums of points that float64 can hold, got an overflow: scale the data")
    kept = (
        np.zeros((k, rows.d))
        if old is None
        else np.asarray(old.detach().cpu() if isinstance(old, torch.Tensor) else old, np.float64)
    )
    if kept.shape != (k, rows.d):
        raise ValueError(f"old: expected shape (K={k}, D={rows.d}), got {kept.shape}")
    if not np.isfinite(kept).all():
        raise ValueError(
            f"old: expected finite numbers, got NaN or infinity in row {int(np.argmax(~np.isfinite(kept).all(1)))}"
        )
    means = np.where((mass > 0)[:, None], sums / np.where(mass > 0, mass, 1)[:, None], kept).astype(rows.dtype)
    return (like(means, family), like(mass, family)) if return_mass else like(means, family)


def cluster_sums(rows: Rows, labels: np.ndarray, k: int, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Float64 sums `(K, D)` and weights `(K,)` of each label, rows in order."""
    engine = kernels(rows.dtype)
    weight = None if weights is None else np.ascontiguousarray(weights, rows.dtype)
    sums, mass = np.zeros((k, rows.d)), np.zeros(k)
    score, scratch, centre = np.zeros(min(rows.n, BLOCK), rows.dtype), engine.scratch(1), np.zeros(rows.d, rows.dtype)
    for start, block in rows.blocks(BLOCK):
        part = slice(start, start + len(block))
        engine.accumulate(
            block, centre, labels[part], None if weight is None else weight[part], sums, mass, score, scratch
        )
    return sums, mass
