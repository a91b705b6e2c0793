"""Exact k nearest neighbours, leave-one-out by index, with ties that come out the same on every backend.

Neighbours are found in two passes. The first ranks by ``||b||^2 - 2 a'b`` in float32, one matrix product a block of
queries. That expansion cancels when features are large compared with their differences, so the features are centred
first and the ``k`` best plus a margin are ranked again by exact differences in float64. Where the first pass' rounding
could have left a neighbour outside the margin, the row is searched again in float64.

Ties: of equal distances the lower index comes first; of equal votes the label whose nearest voter comes first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from neurips26.shared.arrays import check_array, check_choice, check_int

__all__ = ["BACKENDS", "METRICS", "KNNDecoder", "neighbours", "vote"]

METRICS = ("cosine", "euclidean")
BACKENDS = ("torch", "numpy", "faiss")

#: Candidates beyond k that the second pass ranks.
_MARGIN = 16
#: Entries of one block of first-pass scores (float32: 64 MiB).
_BLOCK_ENTRIES = 1 << 24


def prepare(features: Any, metric: str, name: str = "features") -> Float[np.ndarray, "n d"]:
    """Features as float64 rows, of unit length for the cosine metric.

    Raises:
        ValueError: NaN or infinite entries; a row of zeros under the cosine metric; all rows equal is allowed.
    """
    check_choice(metric, "metric", METRICS)
    if isinstance(features, torch.Tensor):
        features = (
            features.detach().to("cpu", torch.float64 if features.dtype == torch.float64 else torch.float32).numpy()
        )
    x = check_array(features, name, shape=("n", "d"), dtype=np.float64)
    if metric == "cosine":
        length = np.linalg.norm(x, axis=1)
        if (length == 0).any():
            raise ValueError(
                f"{name}: expected rows of positive length for the cosine metric, got zeros in row {length.argmin()}"
            )
        x = x / length[:, None]
    return x


def neighbours(
    memory: Float[np.ndarray, "n d"],
    queries: Float[np.ndarray, "m d"] | None,
    k: int,
    *,
    backend: str = "torch",
    device: str = "cpu",
) -> Int[np.ndarray, "m k"]:
    """Indices into ``memory`` of the ``k`` nearest points (Euclidean), nearest first, ties to the lower index.

    Args:
        memory: points that answer.
        queries: points that ask; ``None`` asks for each memory point among all *others*, left out by its index, so that
            an exact duplicate of it counts as the neighbour it is.
        k: neighbours, at most the number of points that may answer.
        backend: library of the first pass.
        device: torch device of the first pass.

    Raises:
        ValueError: ``k`` larger than the number of points that may answer.
    """
    check_choice(backend, "backend", BACKENDS)
    n = memory.shape[0]
    loo = queries is None
    answering = n - 1 if loo else n
    check_int(k, "k", minimum=1)
    if k > answering:
        raise ValueError(f"k: expected at most {answering} (the points that may answer), got {k}")
    # Differences do not move with the origin, rounding does.
    centre = memory.mean(axis=0)
    base = memory - centre
    asked = base if queries is None else queries - centre
    keep = min(k + int(loo) + _MARGIN, n)
    search = {"torch": _torch_search, "numpy": _numpy_search, "faiss": _faiss_search}[backend]
    result = np.empty((asked.shape[0], k), np.int64)
    squares = np.einsum("ij,ij->i", base, base)
    # Rounding of one first-pass score: products of d terms of this size in float32.
    scale = float(np.sqrt(squares.max())) if n else 0.0
    small = base.astype(np.float32)
    step = max(1, _BLOCK_ENTRIES // n)
    find = search(small, squares, device)
    for start in range(0, asked.shape[0], step):
        rows = asked[start : start + step]
        ids = np.sort(find(rows.astype(np.float32), keep), axis=1)
        own = np.arange(start, start + rows.shape[0]) if loo else None
        order, outside = _rank(base, rows, ids, own, k)
        result[start : start + step] = order
        if keep < n:
            reach = np.sqrt(np.einsum("ij,ij->i", rows, rows)) + scale
            doubt = np.flatnonzero(
                outside - _kth(base, rows, order) <= 4 * np.finfo(np.float32).eps * rows.shape[1] ** 0.5 * reach**2
            )
            for i in doubt:
                result[start + i] = _exact_row(base, rows[i], None if own is None else int(own[i]), k)
    return result


def _kth(base: np.ndarray, rows: np.ndarray, order: np.ndarray) -> np.ndarray:
    gap = rows - base[order[:, -1]]
    return np.einsum("ij,ij->i", gap, gap)


def _rank(
    base: np.ndarray, rows: np.ndarray, ids: np.ndarray, own: np.ndarray | None, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """The ``k`` nearest candidates by exact differences, and the squared distance of the farthest candidate."""
    exact = np.empty(ids.shape)
    chunk = max(1, (1 << 23) // (ids.shape[1] * rows.shape[1]))
    for i in range(0, rows.shape[0], chunk):
        gap = base[ids[i : i + chunk]] - rows[i : i + chunk, None, :]
        exact[i : i + chunk] = np.einsum("ijk,ijk->ij", gap, gap)
    outside = exact.max(axis=1)
    if own is not None:
        exact[ids == own[:, None]] = np.inf
    # Candidates are sorted by index, so a stable sort sends ties to the lower index.
    order = np.argsort(exact, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(ids, order, axis=1), outside


def _exact_row(base: np.ndarray, row: np.ndarray, own: int | None, k: int) -> np.ndarray:
    gap = base - row
    exact = np.einsum("ij,ij->i", gap, gap)
    if own is not None:
        exact[own] = np.inf
    # The k smallest and everything tied with the last of them, then a stable sort by index.
    limit = np.partition(exact, k - 1)[k - 1]
    near = np.flatnonzero(exact <= limit)
    return near[np.argsort(exact[near], kind="stable")[:k]]


def _torch_search(small: np.ndarray, squares: np.ndarray, device: str) -> Any:
    points = torch.from_numpy(small).to(device)
    half = torch.from_numpy(0.5 * squares).to(device, torch.float32)

    def find(rows: np.ndarray, keep: int) -> np.ndarray:
        scores = torch.addmm(-half, torch.from_numpy(rows).to(device), points.T)  # larger is nearer
        return torch.topk(scores, keep, dim=1, sorted=False).indices.cpu().numpy()

    return find


def _numpy_search(small: np.ndarray, squares: np.ndarray, device: str) -> Any:
    half = (0.5 * squares).astype(np.float32)

    def find(rows: np.ndarray, keep: int) -> np.ndarray:
        scores = half - rows @ small.T
        if keep == scores.shape[1]:
            return np.broadcast_to(np.arange(keep), scores.shape).copy()
        return np.argpartition(scores, keep - 1, axis=1)[:, :keep]

    return find


def _faiss_search(small: np.ndarray, squares: np.ndarray, device: str) -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ImportError(
            "backend: expected faiss to be installed for 'faiss'; install neurips26-knn-certificate[faiss]"
        ) from error
    index = faiss.IndexFlatL2(small.shape[1])
    index.add(small)
    return lambda rows, keep: index.search(rows, keep)[1]


def vote(labels: Int[np.ndarray, "m k"], ks: list[int]) -> dict[int, Int[np.ndarray, " m"]]:
    """Majority label of the first ``k`` neighbours for every ``k`` asked; ties go to the label met first.

    Args:
        labels: labels of the neighbours, nearest first.
        ks: numbers of voters.
    """
    m, most = labels.shape
    # For each neighbour: how many of those before it, and it, share its label. The label of the largest such count
    # wins, and among equal final counts the one whose first voter is nearest.
    same = labels[:, :, None] == labels[:, None, :]
    first = same.argmax(axis=2)  # position of the label's first voter
    result = {}
    for k in ks:
        counts = same[:, :k, :k].sum(axis=2)
        # Count first, then nearness of the first voter.
        rank = counts * (most + 1) - first[:, :k]
        result[k] = labels[np.arange(m), rank.argmax(axis=1)]
    return result


def votes(memory_labels: np.ndarray, indices: np.ndarray, ks: list[int]) -> dict[int, np.ndarray]:
    """:func:`vote` by blocks of rows, so that the table of comparisons stays small."""
    out = {k: np.empty(indices.shape[0], memory_labels.dtype) for k in ks}
    step = max(1, (1 << 24) // indices.shape[1] ** 2)
    for start in range(0, indices.shape[0], step):
        for k, decided in vote(memory_labels[indices[start : start + step]], ks).items():
            out[k][start : start + step] = decided
    return out


class KNNDecoder(ClassifierMixin, BaseEstimator):
    """The parameter-free decoder of the certificate: majority of the k nearest memory points.

    Args:
        k: voters.
        metric: ``"cosine"`` (rows are scaled to unit length) or ``"euclidean"``.
        backend: library of the first pass; the answer is the same for all.
        device: torch device of the first pass.
    """

    def __init__(self, k=5, metric="cosine", backend="torch", device="cpu"):
        self.k = k
        self.metric = metric
        self.backend = backend
        self.device = device

    def fit(self, X, y):
        """Remember ``X`` (``(n, d)``) and its labels (any scalars)."""
        check_int(self.k, "k", minimum=1)
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.memory_ = prepare(X, self.metric, "X")
        if self.k > X.shape[0]:
            raise ValueError(f"k: expected at most {X.shape[0]} (the memory), got {self.k}")
        self.classes_, self.codes_ = np.unique(y, return_inverse=True)
        return self

    def predict(self, X):
        """Labels for new points."""
        check_is_fitted(self)
        X = prepare(validate_data(self, X, dtype=np.float64, reset=False), self.metric, "X")
        ids = neighbours(self.memory_, X, self.k, backend=self.backend, device=self.device)
        return self.classes_[votes(self.codes_, ids, [self.k])[self.k]]

    def loo_predict(self):
        """Label of each memory point by the k nearest *other* ones, left out by index."""
        check_is_fitted(self)
        ids = neighbours(self.memory_, None, self.k, backend=self.backend, device=self.device)
        return self.classes_[votes(self.codes_, ids, [self.k])[self.k]]

    def loo_error(self) -> float:
        """Leave-one-out error rate on the memory."""
        return float(np.mean(self.loo_predict() != self.classes_[self.codes_]))
