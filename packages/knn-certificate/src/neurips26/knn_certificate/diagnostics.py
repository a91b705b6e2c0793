"""What the terms are made of: classes, neighbours, collapse, dimension, hubs; and whether the data are exchangeable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from neurips26.knn_certificate.blocked import certify_arrays
from neurips26.knn_certificate.heads import row_hashes
from neurips26.knn_certificate.knn import neighbours, prepare
from neurips26.knn_certificate.labels import encode_labels
from neurips26.shared.arrays import check_array, check_int

__all__ = [
    "Exchangeability",
    "GeometryMonitor",
    "exchangeability",
    "hubness",
    "intrinsic_dimension",
    "neural_collapse",
    "why",
]


def neural_collapse(features: Any, labels: Any) -> float:
    """NC1 (Papyan, Han & Donoho 2020): ``trace(S_W pinv(S_B)) / C``; 0 when every class is a point."""
    x = check_array(features, "features", shape=("n", "d"), dtype=float)
    classes, y = encode_labels(labels)
    means = np.stack([x[y == c].mean(axis=0) for c in range(classes.size)])
    centred = means - means.mean(axis=0)
    between = centred.T @ centred / classes.size
    gap = x - means[y]
    within = gap.T @ gap / y.size
    return float(np.trace(within @ np.linalg.pinv(between, hermitian=True)) / classes.size)


def intrinsic_dimension(features: Any, *, discard: float = 0.1) -> float:
    """TwoNN (Facco et al. 2017): the dimension from ratios of second to first neighbour distance.

    The maximum-likelihood form after leaving the largest ``discard`` of the ratios out (censored), points with a twin
    at distance zero not counted.
    """
    x = check_array(features, "features", shape=("n", "d"), dtype=float)
    ids = neighbours(x, None, 2)
    first, second = (np.linalg.norm(x - x[ids[:, j]], axis=1) for j in (0, 1))
    ratio = np.sort(np.log(second[first > 0] / first[first > 0]))
    if ratio.size < 10:
        raise ValueError(f"features: expected at least 10 points without a twin, got {ratio.size}")
    keep = max(int(ratio.size * (1 - discard)), 2)
    total = ratio[:keep].sum() + (ratio.size - keep) * ratio[keep - 1]
    return float(keep / total) if total > 0 else float("inf")


def hubness(features: Any, k: int = 10, metric: str = "cosine") -> float:
    """Skewness of how often a point is among the k nearest of others (Radovanovic et al. 2010); 0 without hubs."""
    x = prepare(features, metric)
    return float(stats.skew(np.bincount(neighbours(x, None, k).ravel(), minlength=len(x))))


def why(
    memory_features: Any, memory_labels: Any, point: Any, k: int = 5, metric: str = "cosine"
) -> list[tuple[int, Any]]:
    """The neighbours that decide about a point: index in the memory and label, nearest first."""
    check_int(k, "k", minimum=1)
    base = prepare(memory_features, metric, "memory_features")
    asked = prepare(np.atleast_2d(np.asarray(point, dtype=float)), metric, "point")
    labels = np.asarray(memory_labels)
    return [(int(i), labels[i].item()) for i in neighbours(base, asked, k)[0]]


@dataclass(frozen=True)
class Exchangeability:
    """Whether two sets look like draws from one distribution.

    Attributes:
        auc: of a cross-validated linear classifier that tells the sets apart by features; 0.5 = it cannot.
        p_features: p-value of that (Mann-Whitney).
        p_labels: p-value that the label frequencies are equal (chi-square), ``None`` without labels.
        shared: points that are in both sets.
        sorted_labels: the first set's labels come in long runs: blocks must be random.
    """

    auc: float
    p_features: float
    p_labels: float | None
    shared: int
    sorted_labels: bool

    @property
    def doubtful(self) -> bool:
        """Something speaks against exchangeability at the 1% level."""
        return self.p_features < 0.01 or (self.p_labels is not None and self.p_labels < 0.01) or self.shared > 0


def exchangeability(
    first: Any, second: Any, first_labels: Any = None, second_labels: Any = None, *, seed: int = 0
) -> Exchangeability:
    """Test whether the training data and the data a bound will be read for come from one distribution.

    A certificate is about the distribution its points were drawn from. An official test set that was written by other
    people, or balanced by hand, is not a draw from it.

    Args:
        first: features of the first set.
        second: features of the second set.
        first_labels: labels of the first set.
        second_labels: labels of the second set.
        seed: of the folds.
    """
    a = check_array(first, "first", shape=("n", "d"), dtype=float)
    b = check_array(second, "second", shape=(None, a.shape[1]), dtype=float)
    x, t = np.vstack([a, b]), np.r_[np.zeros(len(a), int), np.ones(len(b), int)]
    scale = x.std(axis=0)
    x = (x - x.mean(axis=0)) / np.where(scale > 0, scale, 1)
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    score = cross_val_predict(LogisticRegression(C=0.1, max_iter=500), x, t, cv=folds, method="decision_function")
    test = stats.mannwhitneyu(score[t == 1], score[t == 0], alternative="greater")
    p_labels, in_runs = None, False
    if first_labels is not None:
        classes, y = encode_labels(first_labels, "first_labels")
        changes = int((y[1:] != y[:-1]).sum())
        expected = (y.size - 1) * (1 - float(((np.bincount(y) / y.size) ** 2).sum()))
        in_runs = changes < 0.5 * expected
        if second_labels is not None:
            both = np.unique(np.concatenate([np.asarray(first_labels), np.asarray(second_labels)]))
            counts = [
                np.bincount(encode_labels(v, "labels", both)[1], minlength=both.size)
                for v in (first_labels, second_labels)
            ]
            p_labels = float(stats.chi2_contingency(np.stack(counts)).pvalue) if both.size > 1 else None
        del classes
    return Exchangeability(
        auc=float(test.statistic / (len(a) * len(b))),
        p_features=float(test.pvalue),
        p_labels=p_labels,
        shared=len(row_hashes(a) & row_hashes(b)),
        sorted_labels=in_runs,
    )


@dataclass
class GeometryMonitor:
    """Terms along training: call it after an epoch with the features and predictions of held-out points.

    ``monitor(memory_features, memory_labels, block_features, block_labels, block_predictions)`` appends one row with the
    estimates and the bound of the network at that moment; ``rows`` is the learning curve.
    """

    k: int = 5
    metric: str = "cosine"
    delta: float = 0.05
    rows: list[dict[str, float]] = field(default_factory=list)
    certify: Callable[..., Any] | None = None

    def __call__(self, *arrays: Any) -> dict[str, float]:
        """Certify this moment and append the row."""
        c = (self.certify or certify_arrays)(*arrays, k=self.k, metric=self.metric, delta=self.delta)
        row = {
            "step": float(len(self.rows)),
            "geometry": c.geometry.estimate,
            "disagreement": c.disagreement.estimate,
            "joint": c.joint.estimate,
            "bound": c.bound,
        }
        self.rows.append(row)
        return row


def project(features: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n 2"]:
    """Two principal components, for pictures."""
    x = features - features.mean(axis=0)
    return x @ np.linalg.svd(x, full_matrices=False)[2][:2].T
