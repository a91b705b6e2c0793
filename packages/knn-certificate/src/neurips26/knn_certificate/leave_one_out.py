"""The leave-one-out certificate: all points serve the decoder, for a representation that never saw their labels.

Leave-one-out k-NN error on all ``n`` points with a distribution-free slack, and disagreement of head and decoder on an
unlabelled pool. On a representation that was trained on these labels the same count means nothing and is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone

from neurips26.knn_certificate import bounds
from neurips26.knn_certificate.blocked import choose_k, random_block
from neurips26.knn_certificate.certificate import FROZEN, HEAD_OF_ALL, IID, Certificate, Term
from neurips26.knn_certificate.knn import neighbours, prepare, votes
from neurips26.shared.arrays import check_choice, check_int

__all__ = ["SLACKS", "certify_loo", "holdout_of_head", "refuse_trained"]

#: Slack of the leave-one-out error: two that are proved, and the one that most tables use.
SLACKS = {
    "rogers-wagner": bounds.rogers_wagner,
    "devroye-wagner": bounds.devroye_wagner,
    "hoeffding-heuristic": lambda n, k, delta: bounds.hoeffding_slack(n, delta),
}


def refuse_trained(representation: str) -> None:
    """Raise unless the features are stated to be frozen."""
    if representation != "frozen":
        raise ValueError(
            "representation: expected 'frozen', got 'trained': on features that saw the labels the leave-one-out error is "
            "meaningless (a network that memorised random labels gets it near 0 at a true error of 0.9) and no block is "
            "held out; use certify(model, loader, train_fn=...) in mode 'blocked'"
        )


def holdout_of_head(X: np.ndarray, codes: np.ndarray, head: Any, block: float, seed: int) -> np.ndarray:
    """Errors on a random block of the head fitted without it: what plain hold-out would have counted."""
    kept, held = random_block(codes.size, block, seed)
    return clone(head).fit(X[kept], codes[kept]).predict(X[held]) != codes[held]


def certify_loo(
    X: np.ndarray,
    codes: np.ndarray,
    n_classes: int,
    in_sample: np.ndarray,
    pool: np.ndarray | None,
    pool_prediction: np.ndarray | None,
    reference: tuple[np.ndarray, str],
    k: Any,
    metric: str,
    delta: float,
    slack: str,
    engine: dict[str, Any],
) -> Certificate:
    """Leave-one-out geometry on all points, disagreement of the full head with the full decoder on a pool."""
    check_choice(slack, "slack", SLACKS)
    check_choice(
        metric, "metric", ("cosine", "euclidean")
    )  # the slacks count votes, not what else a point would change
    memory = prepare(X, metric, "X")
    details: dict[str, Any] = {"slack": slack, "holdout_of": reference[1]}
    notes, paid = [], 1
    if k == "auto":
        k, details["loo_errors"] = choose_k(memory, codes, **engine)
        paid = len(details["loo_errors"])
        notes.append(f"k was chosen on the same points: the bound pays for {paid} choices")
    check_int(k, "k", minimum=1)
    details["choices_paid"] = paid
    share = delta / 2 / paid if pool is not None else delta / paid
    g = votes(codes, neighbours(memory, None, k, **engine), [k])[k]
    wrong = g != codes
    geometry = Term(
        int(wrong.sum()), codes.size, share, slack, min(1.0, float(wrong.mean()) + SLACKS[slack](codes.size, k, share))
    )
    events = {"geometry": wrong, "holdout": reference[0]}
    if pool is not None and pool_prediction is not None:
        decided = votes(codes, neighbours(memory, prepare(pool, metric, "unlabeled"), k, **engine), [k])[k]
        events["disagreement"] = decided != pool_prediction
        disagreement = Term.of(events["disagreement"], delta / 2 / paid, "clopper-pearson")
    else:
        events["disagreement"] = g != in_sample
        count = int(events["disagreement"].sum())
        disagreement = Term(count, codes.size, delta, "none", count / codes.size)
        notes.append("no unlabelled pool: disagreement was counted on the head's own training points")
    if slack == "hoeffding-heuristic":
        notes.append("Hoeffding's slack is not proved for leave-one-out errors: they depend on each other")
    total = min(1.0, geometry.upper + disagreement.upper)
    return Certificate(
        bound=total,
        certified=HEAD_OF_ALL,
        geometry=geometry,
        disagreement=disagreement,
        stability=None,
        joint=None,
        additive_bound=total,
        holdout_bound=bounds.clopper_pearson(int(reference[0].sum()), reference[0].size, delta),
        mode="loo",
        rigorous=pool is not None and slack != "hoeffding-heuristic",
        assumptions=(IID, FROZEN),
        notes=tuple(notes),
        n_train=codes.size,
        n_classes=n_classes,
        k=int(k),
        metric=metric,
        delta=delta,
        details=details,
        events=events,
    )
