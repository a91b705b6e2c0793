"""Exact k-means without a distance matrix and without contention: Flash-KMeans (arXiv 2603.09229)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurips26.flash_kmeans.assign import assign, inertia
from neurips26.flash_kmeans.batched import batched_kmeans
from neurips26.flash_kmeans.choices import Choices
from neurips26.flash_kmeans.fit import kmeans
from neurips26.flash_kmeans.loop import ConvergenceWarning, EmptyClusterError, KMeansResult
from neurips26.flash_kmeans.update import update_centroids

if TYPE_CHECKING:
    from neurips26.flash_kmeans.estimator import KMeans

__all__ = [
    "Choices", "ConvergenceWarning", "EmptyClusterError", "KMeans", "KMeansResult", "assign", "batched_kmeans", "inertia",
    "kmeans", "update_centroids",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """`KMeans` brings scikit-learn with it; it is loaded when asked for."""
    if name == "KMeans":
        from neurips26.flash_kmeans.estimator import KMeans

        return KMeans
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
