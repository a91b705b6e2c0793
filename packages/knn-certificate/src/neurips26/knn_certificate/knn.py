"""Exact k nearest neighbours, leave-one-out by index, with ties that come out the same on every backend.

Neighbours are found in two passes. The first scores every pair by ``a'b - ||b||^2 / 2`` in float32, one matrix product a
tile of queries and memory, and keeps the ``k`` best and a margin. That expansion cancels when features are large
compared with their differences, so the features are centred first, and the rounding of a score is bounded. The second
pass measures only what that bound leaves open: neighbours whose scores are closer than it are ordered by exact
differences in float64, and a query whose margin is closer than it to the ``k``-th neighbour is searched again.

Ties: of equal distances the lower index comes first; of equal votes the label whose nearest voter comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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

#: Candidates kept beyond k.
_MARGIN = 16
#: Queries and memory points of one tile of scores (float32: 32 MiB), whatever the number of points.
_ROWS, _COLUMNS = 512, 16_384
#: Scores that share one maximum when the best ones are picked.
_GROUP = 16
#: Entries of one array of exact differences (float64: 16 MiB).
_EXACT_ENTRIES = 1 << 21


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
    n, d = memory.shape
    loo = queries is None
    answering = n - 1 if loo else n
    check_int(k, "k", minimum=1)
    if k > answering:
        raise ValueError(f"k: expected at most {answering} (the points that may answer), got {k}")
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
    make = {"torch": _torch_search, "numpy": _numpy_search, "faiss": _faiss_search}[backend]
    search = make((base / unit).astype(np.float32), (half / unit**2).astype(np.float32), device)
    slack = _slack(
        length / unit, widest / unit, d, np.float32, summed={"torch": "half", "faiss": "both"}.get(backend, "")
    )
    result = np.empty((asked.shape[0], k), np.int64)
    for start in range(0, asked.shape[0], _ROWS):
        at = slice(start, start + _ROWS)
        rows = asked[at]
        own = np.arange(start, start + rows.shape[0]) if loo else None
        ids, scores = search((rows / unit).astype(np.float32), keep, own)
        result[at], doubt = _settle(base, rows, ids, scores, slack[at], k, complete=keep == answering)
        if doubt.size:
            result[start + doubt] = _exact_rows(base, half, rows[doubt], None if own is None else own[doubt], k)
    return result


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


def _torch_search(small: np.ndarray, half: np.ndarray, device: str) -> Any:
    n = len(small)
    scored = (_scored_on_cpu if torch.device(device).type == "cpu" else _scored_on_device)(small, half, device)

    def find(rows: np.ndarray, keep: int, own: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        parts = []
        for left in range(0, n, _COLUMNS):
            scores = scored(rows, left)
            if own is not None:
                mine = np.flatnonzero((own >= left) & (own < left + scores.shape[1]))
                scores[torch.from_numpy(mine), torch.from_numpy(own[mine] - left)] = -torch.inf
            values, at = _largest(scores, min(keep, scores.shape[1]))
            parts.append((values, at + left))
        values, at = (torch.cat(p, dim=1) for p in zip(*parts))
        values, order = torch.topk(values, keep, dim=1)
        return at.gather(1, order).cpu().numpy(), values.cpu().numpy()

    return find


def _scored_on_cpu(small: np.ndarray, half: np.ndarray, device: str) -> Any:
    """A tile of scores by NumPy's product, often the faster one on a CPU; its last column carries ``-|b|^2 / 2``."""
    points = np.hstack([small, -half[:, None]])

    def scored(rows: np.ndarray, left: int) -> torch.Tensor:
        asked = np.hstack([rows, np.ones((len(rows), 1), np.float32)])
        return torch.from_numpy(asked @ points[left : left + _COLUMNS].T)

    return scored


def _scored_on_device(small: np.ndarray, half: np.ndarray, device: str) -> Any:
    points, minus = torch.from_numpy(small).to(device), -torch.from_numpy(half).to(device)

    def scored(rows: np.ndarray, left: int) -> torch.Tensor:
        at = slice(left, left + _COLUMNS)
        with _full_precision():
            return torch.addmm(minus[at], torch.from_numpy(rows).to(device), points[at].T)

    return scored


def _largest(scores: torch.Tensor, keep: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and positions of the ``keep`` largest of each row.

    All of them lie in the ``keep`` groups with the largest maxima, so most scores are only ever looked at for a maximum.
    """
    m, n = scores.shape
    groups = n // _GROUP
    if groups <= 2 * keep:
        return torch.topk(scores, keep, dim=1, sorted=False)
    # Group j holds the positions j, j + groups, j + 2 groups, …: maxima of whole vectors.
    table = scores[:, : groups * _GROUP].view(m, _GROUP, groups)
    held = torch.topk(table.amax(dim=1), keep, dim=1, sorted=False).indices
    inside = table.gather(2, held[:, None, :].expand(m, _GROUP, keep)).reshape(m, _GROUP * keep)
    at = (held[:, None, :] + groups * torch.arange(_GROUP, device=scores.device)[:, None]).reshape(m, _GROUP * keep)
    rest = torch.arange(groups * _GROUP, n, device=scores.device).expand(m, -1)
    inside, at = torch.cat([inside, scores[:, groups * _GROUP :]], dim=1), torch.cat([at, rest], dim=1)
    values, order = torch.topk(inside, keep, dim=1, sorted=False)
    return values, at.gather(1, order)


@contextmanager
def _full_precision() -> Iterator[None]:
    """float32 products in float32: no TF32 on a GPU, whatever the program has asked for."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _numpy_search(small: np.ndarray, half: np.ndarray, device: str) -> Any:
    def find(rows: np.ndarray, keep: int, own: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        scores = rows @ small.T - half
        if own is not None:
            scores[np.arange(rows.shape[0]), own] = -np.inf
        at = np.argpartition(scores, -keep, axis=1)[:, -keep:]
        return _sorted(at, np.take_along_axis(scores, at, axis=1), keep)

    return find


def _faiss_search(small: np.ndarray, half: np.ndarray, device: str) -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ImportError(
            "backend: expected faiss to be installed for 'faiss'; install neurips26-knn-certificate[faiss]"
        ) from error
    index = faiss.IndexFlatL2(small.shape[1])
    index.add(small)

    def find(rows: np.ndarray, keep: int, own: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        squares, at = index.search(rows, keep + int(own is not None))
        scores = -0.5 * squares
        if own is not None:
            scores[at == own[:, None]] = -np.inf
        return _sorted(at, scores, keep)

    return find


def _sorted(at: np.ndarray, scores: np.ndarray, keep: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-scores, axis=1, kind="stable")[:, :keep]
    return np.take_along_axis(at, order, axis=1), np.take_along_axis(scores, order, axis=1)


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
