"""Does the certificate fail no more often than it says? Repeated draws from a distribution whose risk is known.

The draws also hold a control that must fail: features that were trained on the labels and are called frozen all the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from neurips26.knn_certificate.blocked import certify_arrays, random_block
from neurips26.knn_certificate.heads import certify_features, fold_parts
from neurips26.knn_certificate.networks import MLP, build, features_of, predict, train
from neurips26.shared import seeding
from neurips26.shared.arrays import check_choice

__all__ = ["PROTOCOLS", "UNPROVED", "draw_classes", "one_repeat"]

#: Settings of :func:`certify_features` for every protocol with a proof (``"trained"`` goes by :func:`certify_arrays`), each with
#: a bound below 1: leave-one-out with a chosen ``k`` pays for six choices and has none below about 25,000 points (k = 10).
PROTOCOLS: dict[str, dict[str, Any]] = {
    "unlabeled": {"stability": "unlabeled"},
    "none": {"stability": "none"},
    "double-deletion": {"stability": "double-deletion"},
    "chosen-k": {"stability": "unlabeled", "k": "auto"},
    "folds": {"mode": "folds"},
    "trained": {},
    # At fewer points, or with more voters, these slacks exceed the bound of guessing.
    "loo": {"mode": "loo", "slack": "rogers-wagner", "k": 1, "n": 2_000},
    "loo-devroye-wagner": {"mode": "loo", "slack": "devroye-wagner", "k": 1, "n": 2_000},
}
#: Shown beside them: a slack without proof, and the control that must fail.
UNPROVED = {"loo-hoeffding": {"mode": "loo", "slack": "hoeffding-heuristic", "n": 2_000}, "misused": {}}


def draw_classes(n: int, classes: int, dimension: int, seed: int, *names: object) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian classes with random means of length about 2: a few percent to a quarter of Bayes error."""
    centres = seeding.rng(0, "class centres", classes, dimension).normal(size=(classes, dimension)) * (
        2.2 / np.sqrt(dimension)
    )
    rng = seeding.rng(seed, "points", *names)
    y = rng.integers(0, classes, n)
    return centres[y] + rng.normal(size=(n, dimension)), y


def one_repeat(seed: int, protocol: str, *, n: int = 400, test: int = 50_000, delta: float = 0.05) -> dict[str, float]:
    """One draw: the certificate's bound and the true risk of the classifier it is about.

    Args:
        seed: of the draw.
        protocol: one of :data:`PROTOCOLS` or :data:`UNPROVED`.
        n: training points (of the protocols that leave it open).
        test: fresh points that stand for the distribution.
        delta: promised probability of failure.
    """
    setting = dict({**PROTOCOLS, **UNPROVED}[check_choice(protocol, "protocol", (*PROTOCOLS, *UNPROVED))])
    if protocol == "misused":
        return _misused(seed, n, delta)
    X, y = draw_classes(setting.pop("n", n), 4, 8, seed, "train")
    pool, _ = draw_classes(300, 4, 8, seed, "pool")
    fresh, truth = draw_classes(test, 4, 8, seed, "test")
    if protocol == "trained":
        return _trained(seed, X, y, pool, fresh, truth, delta)
    with_pool = setting.get("mode") == "loo" or setting.get("stability") == "unlabeled"
    head = LinearDiscriminantAnalysis()
    c = certify_features(
        X,
        y,
        head=head,
        unlabeled=pool if with_pool else None,
        representation="frozen",
        metric="euclidean",
        delta=delta,
        block=0.3,
        seed=seed,
        **{"mode": "blocked", "k": 5, **setting},
    )
    parts = {"none": [random_block(len(y), 0.3, seed)[0]], "folds": [kept for kept, _ in fold_parts(len(y), 5, seed)]}
    heads = [head.fit(X[rows], y[rows]).predict(fresh) for rows in parts.get(protocol, [np.arange(len(y))])]
    return _row(c, float(np.mean([h != truth for h in heads])))


def _row(certificate: Any, risk: float) -> dict[str, float]:
    return {"bound": certificate.bound, "risk": risk, "holdout": float(certificate.holdout_bound or 1.0)}


def _trained(
    seed: int, X: np.ndarray, y: np.ndarray, pool: np.ndarray, fresh: np.ndarray, truth: np.ndarray, delta: float
) -> dict[str, float]:
    """A network trained from scratch, its decoder in its own last layer."""
    kept, held = random_block(len(y), 0.3, seed)
    x, t, u = torch.from_numpy(X).float(), torch.from_numpy(y), torch.from_numpy(pool).float()
    whole, part = (
        train(build(lambda: MLP(8, 4, 24), seed), x[rows], t[rows], steps=60, batch=64, lr=1e-2, seed=seed)
        for rows in (np.arange(len(y)), kept)
    )
    c = certify_arrays(
        features_of(part, x[kept]),
        y[kept],
        features_of(part, x[held]),
        y[held],
        predict(part, x[held]),
        pool_predictions=(predict(whole, u), predict(part, u)),
        k=5,
        delta=delta,
    )
    return _row(c, float((predict(whole, torch.from_numpy(fresh).float()) != truth).mean()))


def _misused(seed: int, n: int, delta: float) -> dict[str, float]:
    """Random labels and features that were trained on all of them (a discriminant projection), called frozen."""
    rng = seeding.rng(seed, "misused")
    X, y = rng.normal(size=(n, n // 2)), rng.integers(0, 4, n)
    features = LinearDiscriminantAnalysis().fit(X, y).transform(X)
    c = certify_features(
        features,
        y,
        head=LinearDiscriminantAnalysis(),
        representation="frozen",
        metric="euclidean",
        k=5,
        delta=delta,
        block=0.3,
        seed=seed,
    )
    return _row(c, 0.75)
