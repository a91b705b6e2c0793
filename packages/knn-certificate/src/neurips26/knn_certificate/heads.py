"""Certificates of a head on frozen features: a block, cross-validated folds, or leave-one-out."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import clone, is_classifier
from sklearn.linear_model import LogisticRegression

from neurips26.knn_certificate import bounds, leave_one_out
from neurips26.knn_certificate.blocked import IID, certify_arrays, not_constant, random_block
from neurips26.knn_certificate.certificate import Certificate, Term
from neurips26.knn_certificate.choices import CHOICES
from neurips26.knn_certificate.knn import METRICS
from neurips26.knn_certificate.labels import encode_labels
from neurips26.knn_certificate.leave_one_out import certify_loo, holdout_of_head, refuse_trained
from neurips26.shared import seeding
from neurips26.shared.arrays import check_array, check_choice, check_int, check_real

__all__ = ["certify_features", "checked_pool", "row_hashes", "with_notes"]


def certify_features(
    X: Any,
    y: Any,
    *,
    head: Any = None,
    unlabeled: Any = None,
    mode: Literal["auto", "blocked", "folds", "loo"] = "auto",
    representation: Literal["frozen", "trained"] = "frozen",
    stability: Literal["auto", "unlabeled", "double-deletion", "none"] = "auto",
    k: int | Literal["auto"] = "auto",
    metric: str = CHOICES.metric,
    delta: float = 0.05,
    block: float = CHOICES.block,
    folds: int = 5,
    slack: str = "auto",
    seed: int = 0,
    backend: str = "torch",
    device: str = "cpu",
) -> Certificate:
    """Certify a head on frozen features (a foundation model's embeddings, or any fixed representation).

    Args:
        X: features, shape ``(n, d)``, that were made without ``y``.
        y: labels, shape ``(n,)``.
        head: an unfitted scikit-learn classifier; default logistic regression. It is fitted afresh on each part.
        unlabeled: features of a pool that is not part of ``X``; its labels are never asked for.
        mode: ``"blocked"`` (default), ``"folds"`` (mean of the ``folds`` cross-validated heads, shuffled, each at
            ``delta / folds``), or ``"loo"`` (all ``n`` points, leave-one-out; needs ``unlabeled`` to be rigorous).
        representation: ``"frozen"`` states that ``X`` never saw these labels. ``"trained"`` is refused: a network that
            memorised random labels has an in-sample leave-one-out error near zero, and a block that the representation
            was trained on is no block. For trained networks there is :func:`certify` with ``train_fn``.
        stability: how the step from the head without the block to the head with all data is paid for; ``"auto"``:
            ``"unlabeled"`` where a pool is given, else ``"none"`` (the bound is for the head without the block).
        k: neighbours, or ``"auto"``.
        metric: ``"cosine"``, ``"euclidean"``, or the latter after the features were ``"standardised"`` or ``"whitened"`` by
            the memory's spread (the last two not in mode ``"loo"``: leaving a point out would change them).
        delta: probability with which the bound may fail.
        block: fraction held back.
        folds: parts of mode ``"folds"``.
        slack: a binomial limit (``"clopper-pearson"``, ``"kl"``, ``"hoeffding"``), or in mode ``loo``
            ``"rogers-wagner"`` (proved), ``"devroye-wagner"`` (proved) or ``"hoeffding-heuristic"`` (not proved).
        seed: of all random splits.
        backend: k-NN backend.
        device: torch device of the k-NN search.
    """
    check_choice(mode, "mode", ("auto", "blocked", "folds", "loo"))
    check_choice(representation, "representation", ("frozen", "trained"))
    check_choice(stability, "stability", ("auto", "unlabeled", "double-deletion", "none"))
    check_real(delta, "delta", minimum=0.0, maximum=1.0, inclusive=False)
    check_choice(metric, "metric", METRICS)
    if k != "auto":
        check_int(k, "k", minimum=1)
    if head is not None and not is_classifier(head):
        raise TypeError(f"head: expected an unfitted scikit-learn classifier, got {type(head).__name__}")
    X = check_array(X.detach().cpu().float().numpy() if isinstance(X, torch.Tensor) else X, "X", shape=("n", "d"))
    classes, codes = encode_labels(y, "y")
    if codes.size != X.shape[0]:
        raise ValueError(f"y: expected {X.shape[0]} labels as rows of X, got {codes.size}")
    if classes.size < 2:
        raise ValueError(f"y: expected at least 2 classes, got {classes.size}")
    not_constant(X, "X")
    head = LogisticRegression(max_iter=1000) if head is None else head
    engine = {"backend": backend, "device": device}
    refuse_trained(representation)
    pool, notes = checked_pool(X, unlabeled)
    if mode == "loo":
        slack = "rogers-wagner" if slack == "auto" else check_choice(slack, "slack", leave_one_out.SLACKS)
        fitted = clone(head).fit(X, codes)
        pool_prediction = None if pool is None else fitted.predict(pool)
        reference = holdout_of_head(X, codes, head, block, seed), f"of the head without {block:.0%} of the points"
        certificate = certify_loo(
            X, codes, classes.size, fitted.predict(X), pool, pool_prediction, reference, k, metric, delta, slack, engine
        )
        return with_notes(certificate, notes)
    slack = "clopper-pearson" if slack == "auto" else slack
    check_choice(slack, "slack", bounds.SLACKS)
    if mode == "folds":
        return _folds(X, codes, classes, head, folds, k, metric, delta, slack, seed, backend, device)
    if stability == "auto":
        stability = "unlabeled" if pool is not None else "none"
    if stability == "unlabeled" and pool is None:
        raise ValueError("unlabeled: expected features of a pool for stability 'unlabeled', got None")
    kept, held = random_block(codes.size, block, seed)
    part = clone(head).fit(X[kept], codes[kept])
    extra: dict[str, Any] = {}
    if stability == "unlabeled":
        whole = clone(head).fit(X, codes)
        extra["pool_predictions"] = (whole.predict(pool), part.predict(pool))
    elif stability == "double-deletion":
        again, _ = random_block(kept.size, held.size / kept.size, seed, "second block")
        extra["deleted_predictions"] = clone(head).fit(X[kept[again]], codes[kept[again]]).predict(X[held])
    certificate = certify_arrays(
        X[kept],
        codes[kept],
        X[held],
        codes[held],
        part.predict(X[held]),
        k=k,
        metric=metric,
        delta=delta,
        slack=slack,  # type: ignore[arg-type]
        **engine,
        **extra,
    )
    for row in certificate.details["classes"]:
        row["class"] = classes[row["class"]].item()
    return with_notes(certificate, notes, n_classes=classes.size)


def _folds(
    X: np.ndarray,
    codes: np.ndarray,
    classes: np.ndarray,
    head: Any,
    folds: int,
    k: Any,
    metric: str,
    delta: float,
    slack: str,
    seed: int,
    backend: str,
    device: str,
) -> Certificate:
    """Mean over the folds' heads: each fold is an honest block for its own head, so each gets ``delta / folds``.

    The pooled count is *not* one binomial: the heads share data, so their errors depend on each other.
    """
    check_int(folds, "folds", minimum=2, maximum=codes.size // 2)
    order = seeding.rng(seed, "certificate", "folds").permutation(codes.size)
    share = delta / folds
    parts = []
    for held in np.array_split(order, folds):
        held = np.sort(held)
        kept = np.setdiff1d(order, held)
        f = clone(head).fit(X[kept], codes[kept]).predict(X[held])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="only .* certification points")
            parts.append(
                certify_arrays(
                    X[kept],
                    codes[kept],
                    X[held],
                    codes[held],
                    f,
                    k=k,
                    metric=metric,
                    delta=share,
                    slack=slack,  # type: ignore[arg-type]
                    backend=backend,
                    device=device,
                )
            )
    events = {e: np.concatenate([p.events[e] for p in parts]) for e in parts[0].events}
    terms = {e: Term.of(events[e], share, slack) for e in ("geometry", "disagreement", "joint")}
    return Certificate(
        bound=float(np.mean([p.joint.upper for p in parts if p.joint is not None])),
        certified=f"a head drawn at random from the {folds} cross-validated ones",
        **terms,
        stability=None,
        additive_bound=float(np.mean([p.additive_bound for p in parts])),
        holdout_bound=float(np.mean([p.holdout_bound for p in parts])),
        mode="folds",
        rigorous=True,
        assumptions=(IID, "the folds were drawn at random"),
        notes=("the limits of single terms pool dependent folds: the bound does not use them",),
        n_train=codes.size - codes.size // folds,
        n_classes=classes.size,
        k=parts[0].k,
        metric=metric,
        delta=delta,
        details={"slack": slack, "fold_sizes": [p.geometry.n for p in parts], "fold_k": [p.k for p in parts]},
        events=events,
    )


def checked_pool(X: np.ndarray, unlabeled: Any) -> tuple[np.ndarray | None, list[str]]:
    """The pool after checking it, and a note where it shares points with the training data."""
    if unlabeled is None:
        return None, []
    pool = unlabeled.detach().cpu().float().numpy() if isinstance(unlabeled, torch.Tensor) else unlabeled
    pool = check_array(pool, "unlabeled", shape=(None, X.shape[1]))
    shared = len(row_hashes(X) & row_hashes(pool.astype(X.dtype, copy=False)))
    if not shared:
        return pool, []
    note = f"the unlabelled pool shares {shared} points with the training data: stability is not certified"
    warnings.warn(note, stacklevel=3)
    return pool, [note]


def row_hashes(x: np.ndarray) -> set[bytes]:
    """Digests of the rows, to find points that two sets share."""
    x = np.ascontiguousarray(x)
    return {hashlib.blake2b(row.tobytes(), digest_size=12).digest() for row in x}


def with_notes(certificate: Certificate, notes: list[str], n_classes: int | None = None) -> Certificate:
    """The certificate with further notes; one that says "not certified" takes the flag ``rigorous`` away."""
    return replace(
        certificate,
        notes=certificate.notes + tuple(notes),
        rigorous=certificate.rigorous and not any("not certified" in note for note in notes),
        n_classes=certificate.n_classes if n_classes is None else n_classes,
    )
