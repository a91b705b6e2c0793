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
from neurips26.knn_certificate.blocked import certify_arrays, not_constant, random_block
from neurips26.knn_certificate.certificate import FOLDS, FROZEN, IID, Certificate, Term
from neurips26.knn_certificate.choices import CHOICES
from neurips26.knn_certificate.knn import METRICS
from neurips26.knn_certificate.labels import encode_labels
from neurips26.knn_certificate.leave_one_out import certify_loo, holdout_of_head, refuse_trained
from neurips26.shared import seeding
from neurips26.shared.arrays import check_array, check_choice, check_int, check_real

__all__ = ["certify_features", "checked_pool", "coarser", "fold_parts", "row_hashes", "with_notes"]


def certify_features(
    X: Any,
    y: Any,
    *,
    head: Any = None,
    unlabeled: Any = None,
    mode: Literal["auto", "blocked", "folds", "loo"] = "auto",
    representation: Literal["frozen", "trained"] | None = None,
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
        representation: has to be given. ``"frozen"`` states that ``X`` never saw these labels, which no computation can
            check, and stands among the certificate's assumptions. ``"trained"`` is refused: a network that memorised
            random labels has an in-sample leave-one-out error near zero, and a block that the representation was trained
            on is no block. For trained networks there is :func:`certify` with ``train_fn``.
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

    Raises:
        ValueError: a representation that is not stated to be frozen; a pool or its protocol in mode ``"folds"``, whose bound
            is for the heads of the folds; NaN, infinite or constant features; ``k`` larger than the memory.
        TypeError: a head that is no classifier.
    """
    check_choice(mode, "mode", ("auto", "blocked", "folds", "loo"))
    if representation is None:
        raise ValueError(
            "representation: expected 'frozen' (the features never saw these labels) or 'trained' (they did: refused), got None"
        )
    check_choice(representation, "representation", ("frozen", "trained"))
    check_choice(stability, "stability", ("auto", "unlabeled", "double-deletion", "none"))
    check_real(delta, "delta", minimum=0.0, maximum=1.0, inclusive=False)
    check_choice(metric, "metric", METRICS)
    if k != "auto":
        check_int(k, "k", minimum=1)
    if head is not None and not is_classifier(head):
        raise TypeError(f"head: expected an unfitted scikit-learn classifier, got {type(head).__name__}")
    given = X
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
    if mode == "folds" and (unlabeled is not None or stability not in ("auto", "none")):
        name, got = ("unlabeled", "features") if unlabeled is not None else ("stability", repr(stability))
        raise ValueError(f"{name}: expected none in mode 'folds' (its bound is for the folds' heads), got {got}")
    pool, notes = checked_pool(given if isinstance(given, torch.Tensor) else X, unlabeled)
    asked = {"k": k, "metric": metric, "delta": delta}
    if mode == "loo":
        slack = "rogers-wagner" if slack == "auto" else check_choice(slack, "slack", leave_one_out.SLACKS)
        fitted = clone(head).fit(X, codes)
        pool_prediction = None if pool is None else fitted.predict(pool)
        reference = holdout_of_head(X, codes, head, block, seed), f"of the head without {block:.0%} of the points"
        certificate = certify_loo(
            X,
            codes,
            classes.size,
            fitted.predict(X),
            pool,
            pool_prediction,
            reference,
            **asked,
            slack=slack,
            engine=engine,
        )
        return with_notes(certificate, notes)
    asked["slack"] = "clopper-pearson" if slack == "auto" else check_choice(slack, "slack", bounds.SLACKS)
    if mode == "folds":
        return _folds(X, codes, classes.size, head, folds, seed, asked, engine)
    certificate = _blocked(X, codes, head, pool, stability, block, seed, {**asked, **engine})
    for row in certificate.details["classes"]:
        row["class"] = classes[row["class"]].item()
    return with_notes(certificate, notes, n_classes=classes.size, frozen=True)


def _blocked(
    X: np.ndarray,
    codes: np.ndarray,
    head: Any,
    pool: np.ndarray | None,
    stability: str,
    block: float,
    seed: int,
    asked: dict[str, Any],
) -> Certificate:
    """A random block that the head has not seen."""
    if stability == "auto":
        stability = "unlabeled" if pool is not None else "none"
    if stability == "unlabeled" and pool is None:
        raise ValueError("unlabeled: expected features of a pool for stability 'unlabeled', got None")
    kept, held = random_block(codes.size, block, seed)
    part = clone(head).fit(X[kept], codes[kept])
    evidence: dict[str, Any] = {}
    if stability == "unlabeled":
        whole = clone(head).fit(X, codes)
        evidence["pool_predictions"] = (whole.predict(pool), part.predict(pool))
    elif stability == "double-deletion":
        again, _ = random_block(kept.size, held.size / kept.size, seed, "second block")
        evidence["deleted_predictions"] = clone(head).fit(X[kept[again]], codes[kept[again]]).predict(X[held])
    return certify_arrays(X[kept], codes[kept], X[held], codes[held], part.predict(X[held]), **asked, **evidence)


def _folds(
    X: np.ndarray,
    codes: np.ndarray,
    n_classes: int,
    head: Any,
    folds: int,
    seed: int,
    asked: dict[str, Any],
    engine: dict[str, Any],
) -> Certificate:
    """Mean over the folds' heads: each fold is an honest block for its own head, so each gets ``delta / folds``.

    The pooled count is *not* one binomial: the heads share data, so their errors depend on each other.
    """
    check_int(folds, "folds", minimum=2, maximum=codes.size // 2)
    share, slack = asked["delta"] / folds, asked["slack"]
    parts = []
    for kept, held in fold_parts(codes.size, folds, seed):
        f = clone(head).fit(X[kept], codes[kept]).predict(X[held])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="only .* certification points")
            parts.append(
                certify_arrays(X[kept], codes[kept], X[held], codes[held], f, **{**asked, "delta": share}, **engine)
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
        assumptions=(IID, FOLDS, FROZEN),
        notes=("the limits of single terms pool dependent folds: the bound does not use them",),
        n_train=codes.size - codes.size // folds,
        n_classes=n_classes,
        k=parts[0].k,
        metric=asked["metric"],
        delta=asked["delta"],
        details={"slack": slack, "fold_sizes": [p.geometry.n for p in parts], "fold_k": [p.k for p in parts]},
        events=events,
    )


def fold_parts(n: int, folds: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Random folds of ``n`` points: for each the points kept and those held back, sorted."""
    order = seeding.rng(seed, "certificate", "folds").permutation(n)
    return [(np.setdiff1d(order, held), np.sort(held)) for held in np.array_split(order, folds)]


def checked_pool(X: Any, unlabeled: Any, stacklevel: int = 3) -> tuple[np.ndarray | None, list[str]]:
    """The pool after checking it, and a note (and a warning) where it shares points with the training data."""
    if unlabeled is None:
        return None, []
    kind = coarser(X, unlabeled)
    pool = unlabeled.detach().cpu().float().numpy() if isinstance(unlabeled, torch.Tensor) else unlabeled
    pool = check_array(pool, "unlabeled", shape=(None, X.shape[1]))
    shared = len(row_hashes(X, kind) & row_hashes(pool, kind))
    if not shared:
        return pool, []
    note = f"the unlabelled pool shares {shared} points with the training data: stability is not certified"
    warnings.warn(note, stacklevel=stacklevel)
    return pool, [note]


def coarser(*sets: Any) -> torch.dtype:
    """The floating type with the fewest digits among arrays or tensors: numbers are equal if they are so in that type."""
    kinds = []
    for values in sets:
        kind = values.dtype if isinstance(values, torch.Tensor) else np.asarray(values).dtype
        known = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
        kinds.append(known.get(str(kind).removeprefix("torch."), torch.float64))
    return max(kinds, key=lambda kind: torch.finfo(kind).eps)


def row_hashes(x: Any, kind: torch.dtype = torch.float64) -> set[bytes]:
    """Digests of the rows as numbers of a type, to find points that two sets share."""
    rows = torch.as_tensor(x).detach().cpu().to(torch.float64).to(kind)
    rows = (rows + 0.0).contiguous().view(torch.uint8).numpy()  # no negative zeros
    return {hashlib.blake2b(row.tobytes(), digest_size=12).digest() for row in rows}


def with_notes(
    certificate: Certificate, notes: list[str], n_classes: int | None = None, *, frozen: bool = False
) -> Certificate:
    """The certificate with further notes; one that says "not certified" takes the flag ``rigorous`` away.

    Args:
        certificate: to change a copy of.
        notes: to add.
        n_classes: in place of the certificate's.
        frozen: add the assumption that the representation never saw the labels.
    """
    assumed = certificate.assumptions
    return replace(
        certificate,
        assumptions=(*assumed, FROZEN) if frozen and FROZEN not in assumed else assumed,
        notes=certificate.notes + tuple(notes),
        rigorous=certificate.rigorous and not any("not certified" in note for note in notes),
        n_classes=certificate.n_classes if n_classes is None else n_classes,
    )
