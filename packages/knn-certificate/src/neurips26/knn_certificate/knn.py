"""Exact k nearest neighbours, leave-one-out by index, with ties that come out the same on every backend.

Neighbours are found in two passes. The first (:mod:`.search`; leave-one-out on many points: :mod:`.triangle`) scores
every pair by products in float32 and keeps the ``k`` best and a margin. That expansion cancels when features are large
compared with their differences, so the features are centred first, and the rounding of a score is bounded. The second
pass measures only what that bound leaves open: neighbours whose scores are closer than it are ordered by exact
differences in float64, and a query whose margin is closer than it to the ``k``-th neighbour is searched again.

Ties: of equal distances the lower index comes first; of equal votes the label whose nearest voter comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from neurips26.knn_certificate import triangle
from neurips26.knn_certificate.search import BACKENDS, PRECISIONS, check_device, coarse_first, searches
from neurips26.knn_certificate.triangle import Found
from neurips26.shared.arrays import check_array, check_choice, check_int

__all__ = ["BACKENDS", "METRICS", "KNNDecoder", "neighbours", "vote"]

METRICS = ("cosine", "euclidean", "standardised", "whitened")

#: Candidates kept beyond k.
_MARGIN = 16
#: Queries of one tile of scores.
_ROWS = 512
#: Entries of one array of exact differences (float64: 16 MiB).
_EXACT_ENTRIES = 1 << 21


def prepare(features: Any, metric: str, name: str = "features", like: Any = None) -> Float[np.ndarray, "n d"]:
    """Features as float64 rows between which Euclidean distance is the metric.

    Args:
        features: ``(n, d)``.
        metric: ``"cosine"`` (rows of unit length), ``"euclidean"``, ``"standardised"`` (every feature in units of its spread,
            constant ones left out) or ``"whitened"`` (uncorrelated features of unit spread: Mahalanobis' distance).
        name: of the argument, for errors.
        like: features whose spread counts for the last two, the memory's; default: these.

    Raises:
        ValueError: NaN or infinite entries; a row of zeros under the cosine metric; all rows equal is allowed.
    """
    check_choice(metric, "metric", METRICS)
    x = _rows(features, name)
    if metric == "cosine":
        # By powers of two, exactly: squares of 1e200 are no numbers.
        x = np.ldexp(x, -np.frexp(np.abs(x).max(axis=1, keepdims=True))[1])
        length = np.linalg.norm(x, axis=1)
        if (length == 0).any():
            raise ValueError(
                f"{name}: expected rows of positive length for the cosine metric, got zeros in row {length.argmin()}"
            )
        return x / length[:, None]
    if metric == "euclidean":
        return x
    base = x if like is None else _rows(like, name)
    # Each feature in a unit of its own, near one.
    unit = -np.frexp(np.abs(base).max(axis=0))[1]
    x, base = np.ldexp(x, unit), np.ldexp(base, unit)
    centre = base.mean(axis=0)
    if metric == "standardised":
        spread = base.std(axis=0)
        used = spread > 1e-12
        return (x[:, used] - centre[used]) / spread[used]
    _, spread, axes = np.linalg.svd((base - centre) / np.sqrt(base.shape[0]), full_matrices=False)
    used = spread > 1e-10 * spread.max(initial=0.0)
    return (x - centre) @ (axes[used] / spread[used, None]).T


def _rows(features: Any, name: str) -> Float[np.ndarray, "n d"]:
    if isinstance(features, torch.Tensor):
        kind = torch.float64 if features.dtype == torch.float64 else torch.float32
        features = features.detach().to("cpu", kind).numpy()
    return check_array(features, name, shape=("n", "d"), dtype=np.float64)


def neighbours(
    memory: Float[np.ndarray, "n d"],
    queries: Float[np.ndarray, "m d"] | None,
    k: int,
    *,
    backend: str = "torch",
    device: str = "cpu",
    precision: str = "float32",
) -> Int[np.ndarray, "m k"]:
    """Indices into ``memory`` of the ``k`` nearest points (Euclidean), nearest first, ties to the lower index.

    Args:
        memory: points that answer.
        queries: points that ask; ``None`` asks for each memory point among all *others*, left out by its index, so that
            an exact duplicate of it counts as the neighbour it is.
        k: neighbours, at most the number of points that may answer.
        backend: library of the first pass.
        device: torch device of the first pass.
        precision: of the products of the first pass, ``"float16"`` and ``"bfloat16"`` with backend ``"torch"`` alone. The
            neighbours are the same; half precision pays on a GPU.

    Raises:
        ValueError: ``k`` larger than the number of points that may answer.
    """
    check_choice(backend, "backend", BACKENDS)
    check_device(device)
    check_choice(precision, "precision", PRECISIONS if backend == "torch" else PRECISIONS[:1])
    n, d = memory.shape
    loo = queries is None
    answering = n - 1 if loo else n
    check_int(k, "k", minimum=1)
    if k > answering:
        raise ValueError(f"k: expected at most {answering} (the points that may answer), got {k}")
    memory, queries = _moderate(memory, queries)
    # Differences do not move with the origin, rounding does.
    centre = memory.mean(axis=0)
    base = memory - centre
    asked = base if queries is None else queries - centre
    half = 0.5 * np.einsum("ij,ij->i", base, base)
    length = np.sqrt(np.einsum("ij,ij->i", asked, asked))
    widest = float(np.sqrt(2 * half.max()))
    # float32 has 38 decades: numbers near one stay clear of both ends.
    unit = max(widest, float(length.max(initial=0.0))) or 1.0
    keep = min(k + _MARGIN, answering)
    points, halves = np.empty((n, d), np.float32), (half / unit**2).astype(np.float32)
    np.divide(base, unit, out=points, casting="same_kind")
    summed = ""
    if loo and backend == "torch" and precision == "float32" and device == "cpu" and triangle.worthwhile(n, keep):
        found = triangle.nearest_others(points, halves, keep)
    else:
        find = searches(backend)(points, halves, device)
        if precision != "float32":
            find = coarse_first(find, points, halves, device, precision)
        summed = {"torch": "half", "faiss": "both"}.get(backend, "")
        found = _by_blocks(find, asked, unit, keep, loo)
    slack = _slack(length / unit, widest / unit, d, np.float32, summed=summed)
    result = np.empty((asked.shape[0], k), np.int64)
    for at, ids, scores, short in found:
        result[at], doubt = _settle(base, asked[at], ids, scores, slack[at], k, complete=keep == answering)
        again = at[np.union1d(doubt, short)]
        if again.size:
            result[again] = _exact_rows(base, half, asked[again], again if loo else None, k)
    return result


def _moderate(memory: np.ndarray, queries: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Both in another unit where squares of their numbers leave the range of float64."""
    largest = max(float(max(x.max(initial=0.0), -x.min(initial=0.0))) for x in (memory, queries) if x is not None)
    if largest == 0.0 or 1e-100 < largest < 1e100:
        return memory, queries
    unit = -int(np.frexp(largest)[1])
    return np.ldexp(memory, unit), None if queries is None else np.ldexp(queries, unit)


def _by_blocks(find: Any, asked: np.ndarray, unit: float, keep: int, loo: bool) -> Iterator[Found]:
    """The candidates of all queries, a block of them at a time."""
    for start in range(0, asked.shape[0], _ROWS):
        rows = (asked[start : start + _ROWS] / unit).astype(np.float32)
        at = np.arange(start, start + rows.shape[0])
        ids, scores = find(rows, keep, at if loo else None)
        yield Found(at, ids, scores, np.empty(0, np.int64))


def _slack(length: np.ndarray, widest: float, d: int, dtype: Any, *, summed: str = "") -> np.ndarray:
    """How far two scores must lie apart for their order to be certain, a number a query.

    A product of ``d`` terms with rounded entries errs by at most ``(d + 2) u |a| |b|``, whatever the order of its sum
    (``u`` is the unit roundoff); halving, rounding and subtracting ``|b|^2 / 2`` adds a few ``u`` of the result. Where
    ``|b|^2 / 2`` (``summed="half"``) or ``|a|^2`` too (``"both"``) are terms of the same sum, they count with the product.
    The order of two scores is safe beyond twice the error of one.
    """
    u = float(np.finfo(dtype).eps) / 2
    size = length * widest
    if summed:
        size = size + 0.5 * widest**2 + (0.5 * length**2 if summed == "both" else 0.0)
    return 2 * u * ((d + 8) * size + 4 * widest**2)


def _settle(
    base: np.ndarray,
    rows: np.ndarray,
    ids: np.ndarray,
    scores: np.ndarray,
    slack: np.ndarray,
    k: int,
    *,
    complete: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """The ``k`` nearest of the candidates in their true order, and the rows for which the candidates do not suffice.

    Candidates come nearest first. A *run* is a stretch of them in which each is within ``slack`` of the next: runs are in
    their true order, only inside one it is open. Where the run of the ``k``-th reaches the last candidate, points that
    were not kept may belong to it.
    """
    near = scores[:, :-1] - scores[:, 1:] <= slack[:, None]
    run = np.zeros(scores.shape, np.int64)
    np.cumsum(~near, axis=1, out=run[:, 1:])
    last = run[:, k - 1]
    doubt = np.flatnonzero(run[:, -1] == last) if not complete else np.empty(0, np.int64)
    linked = np.zeros(scores.shape, bool)
    linked[:, :-1] |= near
    linked[:, 1:] |= near
    linked &= run <= last[:, None]
    linked[doubt] = False
    i, j = np.nonzero(linked)
    if i.size:
        chosen = ids[i, j]
        exact = np.empty(i.size)
        step = max(1, _EXACT_ENTRIES // base.shape[1])
        for start in range(0, i.size, step):
            at = slice(start, start + step)
            gap = base[chosen[at]] - rows[i[at]]
            exact[at] = np.einsum("ij,ij->i", gap, gap)
        # A row's runs keep their places; inside a run the exact distance decides, then the index.
        ids[i, j] = chosen[np.lexsort((chosen, exact, run[i, j], i))]
    return ids[:, :k], doubt


def _exact_rows(base: np.ndarray, half: np.ndarray, rows: np.ndarray, own: np.ndarray | None, k: int) -> np.ndarray:
    """The search in float64: products first, exact differences for all points that their rounding leaves open."""
    n, d = base.shape
    length = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    slack = _slack(length, float(np.sqrt(2 * half.max())), d, np.float64)
    result = np.empty((rows.shape[0], k), np.int64)
    step = max(1, _EXACT_ENTRIES // n)
    for start in range(0, rows.shape[0], step):
        block = rows[start : start + step]
        scores = block @ base.T - half
        if own is not None:
            scores[np.arange(block.shape[0]), own[start : start + step]] = -np.inf
        limit = np.partition(scores, n - k, axis=1)[:, n - k]
        for i, row in enumerate(block):
            near = np.flatnonzero(scores[i] >= limit[i] - slack[start + i])
            gap = base[near] - row
            order = np.argsort(np.einsum("ij,ij->i", gap, gap), kind="stable")[:k]
            result[start + i] = near[order]
    return result


def vote(labels: Int[np.ndarray, "m k"], ks: list[int]) -> dict[int, Int[np.ndarray, " m"]]:
    """Majority label of the first ``k`` neighbours for every ``k`` asked; ties go to the label met first.

    Args:
        labels: labels of the neighbours, nearest first, as numbers from 0.
        ks: numbers of voters.
    """
    m = labels.shape[0]
    classes = int(labels.max(initial=0)) + 1
    at = labels + classes * np.arange(m)[:, None]
    result = {}
    for k in ks:
        counts = np.bincount(at[:, :k].ravel(), minlength=m * classes)
        # The first voter whose label has the largest count: the majority, and of equal ones the label met first.
        result[k] = labels[np.arange(m), counts[at[:, :k]].argmax(axis=1)]
    return result


def votes(memory_labels: np.ndarray, indices: np.ndarray, ks: list[int]) -> dict[int, np.ndarray]:
    """:func:`vote` over labels of any kind, by blocks of rows, so that the table of counts stays small."""
    classes, codes = np.unique(memory_labels, return_inverse=True)
    out = {k: np.empty(indices.shape[0], memory_labels.dtype) for k in ks}
    step = max(1, (1 << 21) // classes.size)
    for start in range(0, indices.shape[0], step):
        for k, decided in vote(codes[indices[start : start + step]], ks).items():
            out[k][start : start + step] = classes[decided]
    return out


class KNNDecoder(ClassifierMixin, BaseEstimator):
    """The parameter-free decoder of the certificate: majority of the k nearest memory points.

    Args:
        k: voters.
        metric: ``"cosine"``, ``"euclidean"``, ``"standardised"`` or ``"whitened"`` by the memory's spread: see
            :func:`prepare`.
        backend: library of the first pass; the answer is the same for all.
        device: torch device of the first pass.
        precision: of the first pass' products; the answer is the same for all.
    """

    def __init__(self, k=5, metric="cosine", backend="torch", device="cpu", precision="float32"):
        self.k = k
        self.metric = metric
        self.backend = backend
        self.device = device
        self.precision = precision

    def fit(self, X, y):
        """Remember ``X`` (``(n, d)``) and its labels (any scalars)."""
        check_int(self.k, "k", minimum=1)
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.memory_ = prepare(X, self.metric, "X")
        self.features_ = X
        if self.k > X.shape[0]:
            raise ValueError(f"k: expected at most {X.shape[0]} (the memory), got {self.k}")
        self.classes_, self.codes_ = np.unique(y, return_inverse=True)
        return self

    def predict(self, X):
        """Labels for new points."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return self._decided(prepare(X, self.metric, "X", like=self.features_))

    def loo_predict(self):
        """Label of each memory point by the k nearest *other* ones, left out by index."""
        check_is_fitted(self)
        return self._decided(None)

    def _decided(self, queries):
        engine = {"backend": self.backend, "device": self.device, "precision": self.precision}
        return self.classes_[votes(self.codes_, neighbours(self.memory_, queries, self.k, **engine), [self.k])[self.k]]

    def loo_error(self) -> float:
        """Leave-one-out error rate on the memory."""
        return float(np.mean(self.loo_predict() != self.classes_[self.codes_]))
