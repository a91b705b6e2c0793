"""Exact assignment: the nearest centroid of each point, without ever holding all distances."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch

from neurips26.flash_kmeans.arguments import METRICS, PRECISIONS, check_weights, like, target_device
from neurips26.flash_kmeans.cpu_assign import kernel_assign
from neurips26.flash_kmeans.cpu_kernels import kernels
from neurips26.flash_kmeans.rows import UnitRows, check_labels, largest_square, raise_out_of_range, rows_of, summarise
from neurips26.shared.arrays import check_choice

__all__ = ["assign", "inertia"]


def assign(
    x: Any, c: Any, *, metric: Literal["euclidean", "cosine"] = "euclidean", precision: str = "certified",
    return_distance: bool = False, out: Any = None, check_finite: bool = True,
) -> Any:  # fmt: skip
    """Nearest of the centroids `c` `(K, D)` for each point of `x` `(N, D)`; the lowest index at a tie.

    Args:
        x: points; see `kmeans` for what is accepted. CUDA tensors are assigned by the Triton kernels.
        c: centroids, finite.
        metric: `"euclidean"` or `"cosine"`.
        precision: see the README; the CPU always computes in full precision.
        return_distance: also return the squared distance (cosine: `1 - cos`) of each point to its centroid.
        out: int32 array or tensor `(N,)` that receives the labels.
        check_finite: refuse NaN and infinity in `x` (inside `torch.compile` and CUDA graphs nobody looks at values).

    Returns:
        `(N,)` int32 labels in the family of `x`, or `(labels, distances)`.

    Raises:
        ValueError: shapes that do not fit, values that are not finite, an unknown metric.
    """
    check_choice(metric, "metric", METRICS)
    check_choice(precision, "precision", PRECISIONS)
    if isinstance(x, torch.Tensor) and (torch.compiler.is_compiling() or x.device.type == "cuda"):
        from neurips26.flash_kmeans import ops

        return ops.assign(x, torch.as_tensor(c, device=x.device), metric, precision, return_distance, out, check_finite)
    target_device(x, None)
    family = x if isinstance(x, torch.Tensor) else None
    rows = rows_of(x)
    centroids = as_centroids(c, rows.d, rows.dtype)
    if check_finite:
        mean = summarise(rows).mean
        if metric == "euclidean":
            _check_centroids(centroids, mean)
    if metric == "cosine":
        rows, centroids = UnitRows(rows), UnitRows(rows_of(centroids)).read(0, len(centroids))
    labels = _target(out, rows.n)
    best = kernel_assign(rows, centroids, metric == "cosine", labels)
    if out is not None:
        labels_out = out
    else:
        labels_out = like(labels, family)
    if not return_distance:
        return labels_out
    if metric == "cosine":
        return labels_out, like(np.maximum(1 + best / 2, 0), family)
    return labels_out, like(_distances(rows, centroids, labels), family)


def inertia(x: Any, c: Any, labels: Any = None, *, weights: Any = None, metric: str = "euclidean") -> float:
    """Sum of squared distances (cosine: of `1 - cos`) of the points to their nearest centroid, or to that of `labels`."""
    rows = rows_of(x)
    weight = check_weights(weights, rows.n)
    if labels is None or metric == "cosine":
        if labels is not None:
            raise ValueError("labels: expected None with metric='cosine', got labels")
        distance = np.asarray(assign(x, c, metric=metric, return_distance=True)[1])
    else:
        centroids = as_centroids(c, rows.d, rows.dtype)
        distance = _distances(rows, centroids, check_labels(labels, rows.n, len(centroids)))
        if not np.isfinite(distance).all():
            summarise(rows)  # names a row that is not finite, or out of range
            raise_out_of_range(f"c: the label of row {int(np.argmax(~np.isfinite(distance)))}", rows.dtype, "above")
    wide = distance.astype(np.float64)
    return float(wide.sum() if weight is None else wide @ weight)


def as_centroids(c: Any, d: int, dtype: np.dtype, name: str = "c") -> np.ndarray:
    """Checked, contiguous centroids of the compute type."""
    array = np.asarray(c.detach().cpu().to(torch.float64) if isinstance(c, torch.Tensor) else c)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name}: expected numbers, got dtype {array.dtype}")
    if array.ndim != 2 or array.shape[1] != d or not len(array):
        raise ValueError(f"{name}: expected shape (K, D={d}), got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(
            f"{name}: expected finite numbers, got NaN or infinity in row {int(np.argmax(~np.isfinite(array).all(1)))}"
        )
    with np.errstate(over="ignore"):
        centroids = np.ascontiguousarray(array, dtype=dtype)
    if not np.isfinite(centroids).all():
        raise_out_of_range(f"{name}: row {int(np.argmax(~np.isfinite(centroids).all(1)))}", dtype, "above")
    return centroids


def _check_centroids(centroids: np.ndarray, mean: np.ndarray) -> None:
    """Refuse centroids so far apart, or so far from the points' `mean` `(D,)`, that squared distances overflow."""
    with np.errstate(over="ignore"):
        wide = np.vstack([centroids, mean]).astype(np.float64) - centroids.mean(axis=0, dtype=np.float64)
        over = ~(np.square(wide).sum(axis=1) <= largest_square(centroids.dtype))
    if over.any():
        raise_out_of_range(f"c: row {min(int(np.argmax(over)), len(centroids) - 1)}", centroids.dtype, "above")


def _target(out: Any, n: int) -> np.ndarray:
    if out is None:
        return np.full(n, -1, np.int32)
    array = out.numpy() if isinstance(out, torch.Tensor) and out.device.type == "cpu" else out
    if (
        not isinstance(array, np.ndarray)
        or array.dtype != np.int32
        or array.shape != (n,)
        or not array.flags.c_contiguous
    ):
        raise ValueError(
            f"out: expected a contiguous int32 array of shape (N={n},), got {getattr(out, 'dtype', type(out))}"
            f" {getattr(out, 'shape', '')}"
        )
    return array


def _distances(rows: Any, centroids: np.ndarray, labels: np.ndarray) -> np.ndarray:
    out = np.empty(rows.n, rows.dtype)
    for start, block in rows.blocks(8192):
        kernels(rows.dtype).distance(
            block, centroids, labels[start : start + len(block)], out[start : start + len(block)]
        )
    return out
