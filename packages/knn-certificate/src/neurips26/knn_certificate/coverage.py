"""Does the certificate fail no more often than it says? Repeated draws from a distribution whose risk is known."""

from __future__ import annotations

import numpy as np
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from neurips26.knn_certificate.blocked import random_block
from neurips26.knn_certificate.heads import certify_features
from neurips26.shared import seeding

__all__ = ["draw_classes", "one_repeat"]


def draw_classes(n: int, classes: int, dimension: int, seed: int, *names: object) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian classes with random means of length about 2: a few percent to a quarter of Bayes error."""
    centres = seeding.rng(0, "class centres", classes, dimension).normal(size=(classes, dimension)) * (
        2.2 / np.sqrt(dimension)
    )
    rng = seeding.rng(seed, "points", *names)
    y = rng.integers(0, classes, n)
    return centres[y] + rng.normal(size=(n, dimension)), y


def one_repeat(
    seed: int,
    protocol: str,
    *,
    n: int = 400,
    classes: int = 4,
    dimension: int = 8,
    test: int = 50_000,
    delta: float = 0.05,
) -> dict[str, float]:
    """One draw: the certificate's bound and the true risk of the classifier it is about.

    Args:
        seed: of the draw.
        protocol: ``"unlabeled"`` (bound for the head of all data), ``"none"`` (for the head without the block) or
            ``"double-deletion"``.
        n: training points.
        classes: number of classes.
        dimension: of the points.
        test: fresh points that stand for the distribution.
        delta: promised probability of failure.
    """
    X, y = draw_classes(n, classes, dimension, seed, "train")
    pool, _ = draw_classes(300, classes, dimension, seed, "pool")
    fresh, truth = draw_classes(test, classes, dimension, seed, "test")
    head = LinearDiscriminantAnalysis()
    certificate = certify_features(
        X,
        y,
        head=head,
        unlabeled=pool if protocol == "unlabeled" else None,
        mode="blocked",
        stability=protocol,  # type: ignore[arg-type]
        k=5,
        metric="euclidean",
        delta=delta,
        block=0.3,
        seed=seed,
    )
    if protocol == "none":
        kept, _ = random_block(n, 0.3, seed)
        X, y = X[kept], y[kept]
    risk = float((head.fit(X, y).predict(fresh) != truth).mean())
    return {"bound": certificate.bound, "risk": risk, "holdout": float(certificate.holdout_bound or 1.0)}
