"""From arrays, from frozen features or from a torch model to a certificate.

Three protocols:

* **blocked** (i.i.d. data and nothing else): hold a random block ``B`` back, train on ``S' = S \\ B``, count the joint event
  on ``B`` and, for the network of all data, stability on an unlabelled pool that no training saw. With probability
  ``1 - delta``: ``R(f_S) <= CP(joint, delta/2) + CP(f_S != f_S', delta/2)``. Without a pool the bound is for ``f_S'``.
* **double deletion** (no pool): also train on ``S'' = S' \\ B'`` and count ``f_S' != f_S''`` on ``B``, one union of three
  events at the full ``delta``; assumes that deleting a second block changes predictions at least as often as the first.
* **loo** (the representation never saw these labels): leave-one-out k-NN error on all ``n`` points with a distribution-free
  slack, and disagreement on an unlabelled pool.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.utils.data import DataLoader, Subset

from neurips26.knn_certificate import bounds
from neurips26.knn_certificate.certificate import Certificate, Term
from neurips26.knn_certificate.choices import CHOICES
from neurips26.knn_certificate.features import (
    Extracted,
    digest,
    extract_features,
    in_order,
    split_batch,
    tensors_of,
    weights_digest,
)
from neurips26.knn_certificate.knn import METRICS, neighbours, prepare, votes
from neurips26.shared import seeding
from neurips26.shared.arrays import check_array, check_choice, check_int, check_real
from neurips26.shared.runs import atomic_path

__all__ = ["certify", "certify_arrays", "certify_features", "choose_k", "encode_labels"]

Slack = Literal["clopper-pearson", "kl", "hoeffding"]
LooSlack = Literal["rogers-wagner", "devroye-wagner", "hoeffding-heuristic"]

_IID = "the points are independent draws from the distribution the error is about"


def encode_labels(y: Any, name: str = "labels", classes: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Classes and integer codes of labels given as any scalars (text too), or one-hot rows.

    Raises:
        ValueError: empty, more than one axis and not one-hot, missing values, or a label outside ``classes``.
    """
    y = y.detach().cpu().numpy() if isinstance(y, torch.Tensor) else np.asarray(y)
    if y.ndim == 2 and y.shape[1] > 1:
        if not (np.isin(y, (0, 1)).all() and (y.sum(axis=1) == 1).all()):
            raise ValueError(f"{name}: expected one label a row or one-hot rows, got shape {y.shape}")
        y = y.argmax(axis=1)
    y = y.ravel() if y.ndim == 2 else y
    if y.ndim != 1 or y.size == 0:
        raise ValueError(f"{name}: expected one label a row, got shape {y.shape}")
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise ValueError(f"{name}: expected labels, got {y[~np.isfinite(y)][0]}")
    if classes is None:
        classes, codes = np.unique(y, return_inverse=True)
        return classes, codes.astype(np.int64)
    at = np.searchsorted(classes, y)
    at[at == classes.size] = 0
    if not (classes[at] == y).all():
        raise ValueError(f"{name}: expected labels among the {classes.size} classes, got {y[classes[at] != y][0]!r}")
    return classes, at.astype(np.int64)


def choose_k(
    memory: np.ndarray, codes: np.ndarray, grid: tuple[int, ...] = CHOICES.k_grid, **engine: Any
) -> tuple[int, dict[int, float]]:
    """The ``k`` with the smallest leave-one-out error on the memory alone, and the error of each; ties to the smaller.

    Entries of the grid beyond the memory are dropped with a warning.
    """
    usable = [k for k in grid if k <= memory.shape[0] - 1]
    if len(usable) < len(grid):
        warnings.warn(
            f"k: {sorted(set(grid) - set(usable))} dropped, the memory has {memory.shape[0]} points", stacklevel=3
        )
    if not usable:
        raise ValueError(
            f"k: expected at most {memory.shape[0] - 1} (the memory without the point itself), got {list(grid)}"
        )
    decided = votes(codes, neighbours(memory, None, max(usable), **engine), usable)
    errors = {k: float((decided[k] != codes).mean()) for k in usable}
    return min(errors, key=lambda k: (errors[k], k)), errors


def certify_arrays(
    memory_features: Any,
    memory_labels: Any,
    block_features: Any,
    block_labels: Any,
    block_predictions: Any,
    *,
    pool_predictions: tuple[Any, Any] | None = None,
    deleted_predictions: Any = None,
    k: int | Literal["auto"] = "auto",
    metric: str = CHOICES.metric,
    delta: float = 0.05,
    slack: Slack = "clopper-pearson",
    backend: str = "torch",
    device: str = "cpu",
) -> Certificate:
    """The blocked certificate from arrays that you made: training and splitting are yours.

    Args:
        memory_features: last-layer features of ``S'`` under ``f'``, shape ``(n, d)``.
        memory_labels: labels of ``S'``.
        block_features: features of the block ``B`` under ``f'``; ``f'`` must not have seen ``B``.
        block_labels: labels of ``B``.
        block_predictions: predictions of ``f'`` on ``B``.
        pool_predictions: predictions of ``(f, f')`` on an unlabelled pool that neither saw: the bound is then for ``f``.
        deleted_predictions: predictions on ``B`` of ``f''``, trained with a second block deleted (double deletion).
        k: neighbours, or chosen by leave-one-out on the memory alone.
        metric: ``"cosine"`` or ``"euclidean"``.
        delta: probability with which the bound may fail.
        slack: binomial limit.
        backend: k-NN backend.
        device: torch device of the k-NN search.

    Raises:
        ValueError: NaN or infinite or constant features, shapes that do not fit, labels of the block outside the
            memory's and predictions' classes, ``k`` larger than the memory.
    """
    check_real(delta, "delta", minimum=0.0, maximum=1.0, inclusive=False)
    check_choice(slack, "slack", bounds.SLACKS)
    check_choice(metric, "metric", METRICS)
    if pool_predictions is not None and deleted_predictions is not None:
        raise ValueError("deleted_predictions: expected None beside pool_predictions, got both")
    memory = prepare(memory_features, metric, "memory_features")
    block = prepare(block_features, metric, "block_features")
    _not_constant(memory, "memory_features")
    if block.shape[1] != memory.shape[1]:
        raise ValueError(
            f"block_features: expected {memory.shape[1]} columns as in memory_features, got {block.shape[1]}"
        )
    labels = [memory_labels, block_labels, block_predictions, deleted_predictions, *(pool_predictions or ())]
    everything = np.concatenate([np.unique(_raw(v)) for v in labels if v is not None])
    classes = np.unique(everything)
    code = {}
    for name, value, n in (
        ("memory_labels", memory_labels, memory.shape[0]),
        ("block_labels", block_labels, block.shape[0]),
        ("block_predictions", block_predictions, block.shape[0]),
        ("deleted_predictions", deleted_predictions, block.shape[0]),
    ):
        if value is None:
            continue
        code[name] = encode_labels(value, name, classes)[1]
        if code[name].size != n:
            raise ValueError(f"{name}: expected {n} entries, got {code[name].size}")
    engine = {"backend": backend, "device": device}
    details: dict[str, Any] = {"slack": slack}
    if k == "auto":
        k, details["loo_errors"] = choose_k(memory, code["memory_labels"], **engine)
    check_int(k, "k", minimum=1)
    decided = votes(code["memory_labels"], neighbours(memory, block, k, **engine), [k])[k]
    y, f = code["block_labels"], code["block_predictions"]
    events = {"geometry": decided != y, "disagreement": f != decided}
    events["joint"] = events["geometry"] | events["disagreement"]
    notes, assumptions = (
        [],
        [_IID, "the block was drawn at random and neither f' nor k, metric or layer was chosen with it"],
    )
    if block.shape[0] < CHOICES.small_block:
        notes.append(f"only {block.shape[0]} certification points: slack dominates")
        warnings.warn(notes[-1], stacklevel=2)
    absent = np.setdiff1d(y, code["memory_labels"])
    if absent.size:
        notes.append(f"classes without a memory point, always decoded wrongly: {classes[absent][:5].tolist()}")
    stability, share, certified = None, delta, "the network trained without the block"
    if pool_predictions is not None:
        full, part = (encode_labels(p, "pool_predictions", classes)[1] for p in pool_predictions)
        if full.shape != part.shape:
            raise ValueError(f"pool_predictions: expected two arrays of one length, got {full.size} and {part.size}")
        share = delta / 2
        events["stability"] = full != part
        stability = Term.of(events["stability"], share, slack)
        certified = "the network trained on all data"
        assumptions.append("no training saw the unlabelled pool")
        details["stability"], details["stability_in_bound"] = "unlabeled", True
    elif deleted_predictions is not None:
        events["stability"] = code["deleted_predictions"] != f
        events["joint"] = events["joint"] | events["stability"]
        stability = Term.of(events["stability"], delta, slack)
        certified = "the network trained on all data"
        assumptions.append(
            "deleting a second block changes predictions at least as often as deleting the first (monotone stability)"
        )
        details["stability"], details["stability_in_bound"] = "double-deletion", False
    joint = Term.of(events["joint"], share, slack)
    bound = min(
        1.0, joint.upper + (stability.upper if stability is not None and details["stability_in_bound"] else 0.0)
    )
    parts = 2 + (stability is not None)
    additive = sum(
        bounds.upper(int(events[e].sum()), events[e].size, delta / parts, slack) for e in events if e != "joint"
    )
    events["holdout"] = f != y
    notes += _memorised(details.get("loo_errors", {}).get(k), events["geometry"])
    details["classes"] = _class_table(classes, y, events)
    return Certificate(
        bound=bound,
        certified=certified,
        geometry=Term.of(events["geometry"], share, slack),
        disagreement=Term.of(events["disagreement"], share, slack),
        stability=stability,
        joint=joint,
        additive_bound=min(1.0, additive),
        holdout_bound=bounds.clopper_pearson(int(events["holdout"].sum()), y.size, delta),
        mode="blocked",
        rigorous=True,
        assumptions=tuple(assumptions),
        notes=tuple(notes),
        n_train=memory.shape[0],
        n_classes=classes.size,
        k=int(k),
        metric=metric,
        delta=delta,
        details=details,
        events=events,
    )


def _memorised(in_sample: float | None, wrong: np.ndarray) -> list[str]:
    """A note where the memory's own leave-one-out error lies below all that the block allows for (at 99%)."""
    right = int(wrong.size - wrong.sum())
    low = 1 - bounds.clopper_pearson(right, wrong.size, 0.01)
    if in_sample is None or in_sample >= low:
        return []
    return [
        f"leave-one-out on the training points reads {in_sample:.3f}, the block {wrong.mean():.3f}: the representation has "
        "adapted to its own labels, only the block counts"
    ]


def _raw(y: Any) -> np.ndarray:
    y = y.detach().cpu().numpy() if isinstance(y, torch.Tensor) else np.asarray(y)
    return encode_labels(y)[0]


def _not_constant(x: np.ndarray, name: str) -> None:
    if x.shape[0] > 1 and (x == x[0]).all():
        raise ValueError(
            f"{name}: expected features that differ between points, got one constant row {x.shape[0]} times"
        )


def _class_table(classes: np.ndarray, y: np.ndarray, events: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    n = np.bincount(y, minlength=classes.size)
    rows = {e: np.bincount(y, events[e], classes.size) for e in ("geometry", "disagreement", "joint")}
    return [
        {"class": classes[c].item(), "n": int(n[c]), **{e: float(rows[e][c] / n[c]) for e in rows}}
        for c in np.flatnonzero(n)
    ]


def random_block(n: int, fraction: float, seed: int, name: str = "block") -> tuple[np.ndarray, np.ndarray]:
    """A random split of ``n`` points: kept and held back, both sorted. Never the first or last ones: files are sorted."""
    check_real(fraction, "block", minimum=0.0, maximum=1.0, inclusive=False)
    size = round(n * fraction)
    if not 1 <= size < n - 1:
        raise ValueError(f"block: expected a fraction that leaves points on both sides of {n}, got {fraction}")
    order = seeding.rng(seed, "certificate", name).permutation(n)
    return np.sort(order[size:]), np.sort(order[:size])


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
        metric: ``"cosine"`` or ``"euclidean"``.
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
    X = check_array(X.detach().cpu().float().numpy() if isinstance(X, torch.Tensor) else X, "X", shape=("n", "d"))
    classes, codes = encode_labels(y, "y")
    if codes.size != X.shape[0]:
        raise ValueError(f"y: expected {X.shape[0]} labels as rows of X, got {codes.size}")
    if classes.size < 2:
        raise ValueError(f"y: expected at least 2 classes, got {classes.size}")
    _not_constant(X, "X")
    head = LogisticRegression(max_iter=1000) if head is None else head
    engine = {"backend": backend, "device": device}
    _refuse_trained(representation)
    pool, notes = _pool(X, unlabeled)
    if mode == "loo":
        slack = "rogers-wagner" if slack == "auto" else slack
        fitted = clone(head).fit(X, codes)
        pool_prediction = None if pool is None else fitted.predict(pool)
        reference = _holdout_of_head(X, codes, head, block, seed), f"of the head without {block:.0%} of the points"
        certificate = _loo(
            X, codes, classes.size, fitted.predict(X), pool, pool_prediction, reference, k, metric, delta, slack, engine
        )
        return _with_notes(certificate, notes)
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
    return _with_notes(certificate, notes, n_classes=classes.size)


def _refuse_trained(representation: str) -> None:
    if representation != "frozen":
        raise ValueError(
            "representation: expected 'frozen', got 'trained': on features that saw the labels the leave-one-out error is "
            "meaningless (a network that memorised random labels gets it near 0 at a true error of 0.9) and no block is "
            "held out; use certify(model, loader, train_fn=...) in mode 'blocked'"
        )


def _holdout_of_head(X: np.ndarray, codes: np.ndarray, head: Any, block: float, seed: int) -> np.ndarray:
    """Errors on a random block of the head fitted without it: what plain hold-out would have counted."""
    kept, held = random_block(codes.size, block, seed)
    return clone(head).fit(X[kept], codes[kept]).predict(X[held]) != codes[held]


def _pool(X: np.ndarray, unlabeled: Any) -> tuple[np.ndarray | None, list[str]]:
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


def _with_notes(certificate: Certificate, notes: list[str], n_classes: int | None = None) -> Certificate:
    fields = {name: getattr(certificate, name) for name in certificate.__dataclass_fields__}
    fields["notes"] = certificate.notes + tuple(notes)
    fields["rigorous"] = certificate.rigorous and not any("not certified" in note for note in notes)
    if n_classes is not None:
        fields["n_classes"] = n_classes
    return Certificate(**fields)


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
        assumptions=(_IID, "the folds were drawn at random"),
        notes=("the limits of single terms pool dependent folds: the bound does not use them",),
        n_train=codes.size - codes.size // folds,
        n_classes=classes.size,
        k=parts[0].k,
        metric=metric,
        delta=delta,
        details={"slack": slack, "fold_sizes": [p.geometry.n for p in parts], "fold_k": [p.k for p in parts]},
        events=events,
    )


def _loo(
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
    slacks = {
        "rogers-wagner": bounds.rogers_wagner,
        "devroye-wagner": bounds.devroye_wagner,
        "hoeffding-heuristic": lambda n, k, delta: bounds.hoeffding_slack(n, delta),
    }
    check_choice(slack, "slack", slacks)
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
        int(wrong.sum()), codes.size, share, slack, min(1.0, float(wrong.mean()) + slacks[slack](codes.size, k, share))
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
        certified="the head trained on all data",
        geometry=geometry,
        disagreement=disagreement,
        stability=None,
        joint=None,
        additive_bound=total,
        holdout_bound=bounds.clopper_pearson(int(reference[0].sum()), reference[0].size, delta),
        mode="loo",
        rigorous=pool is not None and slack != "hoeffding-heuristic",
        assumptions=(_IID, "the representation never saw these labels"),
        notes=tuple(notes),
        n_train=codes.size,
        n_classes=n_classes,
        k=int(k),
        metric=metric,
        delta=delta,
        details=details,
        events=events,
    )


def certify(
    model: nn.Module,
    train_loader: DataLoader,
    *,
    unlabeled_loader: DataLoader | None = None,
    train_fn: Callable[[Any, int], nn.Module] | None = None,
    feature_layer: str = CHOICES.layer,
    representation: Literal["trained", "frozen"] = "trained",
    mode: Literal["auto", "blocked", "loo"] = "auto",
    k: int | Literal["auto"] = "auto",
    metric: str = CHOICES.metric,
    delta: float = 0.05,
    block: float = CHOICES.block,
    stability: Literal["auto", "unlabeled", "double-deletion", "none"] = "auto",
    slack: str = "auto",
    seed: int = 0,
    device: str = "auto",
    backend: str = "torch",
    check_train_fn: bool = False,
    work: str | Path | None = None,
) -> Certificate:
    """Certify a torch classifier.

    Args:
        model: the classifier trained on all of ``train_loader.dataset`` (it is not modified).
        train_loader: loader over the training data; its data set is read in order, whatever order the loader uses. Labels
            are the numbers of the model's outputs, or one-hot rows.
        unlabeled_loader: loader over inputs that no training saw (labels are ignored where it yields them).
        train_fn: ``train_fn(subset, seed) -> model`` trains afresh on a part of the data; needed unless the
            representation is frozen.
        feature_layer: module whose *input* is the representation; ``"auto"`` is the last linear layer.
        representation: ``"frozen"`` states that the features never saw these labels.
        mode: ``"auto"`` is ``"blocked"`` where ``train_fn`` is given, else ``"loo"``. With ``train_fn`` mode ``loo`` checks
            that the features stay as they are when the model is trained without the block.
        k: neighbours or ``"auto"``.
        metric: ``"cosine"`` or ``"euclidean"``.
        delta: probability with which the bound may fail.
        block: fraction held back.
        stability: see :func:`certify_features`; with ``"none"`` the bound is for the model without the block.
        slack: see :func:`certify_features`.
        seed: of splits, and passed to ``train_fn``.
        device: where the models run; ``"auto"`` is CUDA where there is one.
        backend: k-NN backend.
        check_train_fn: train the block's model twice and demand equal predictions (one more training).
        work: folder for retrained weights and features; a certificate that was interrupted continues from it. What
            belongs to another model, split or data set is not used.

    Raises:
        ValueError: a trained representation in mode ``loo``; no ``train_fn`` where one is needed; a data set that gives
            other inputs on a second reading (random augmentation); a ``train_fn`` that does not repeat itself; labels that
            are not outputs of the model.
        TypeError: a data set without length and index.
    """
    check_choice(mode, "mode", ("auto", "blocked", "loo"))
    check_choice(representation, "representation", ("trained", "frozen"))
    check_choice(stability, "stability", ("auto", "unlabeled", "double-deletion", "none"))
    check_choice(metric, "metric", METRICS)
    check_real(delta, "delta", minimum=0.0, maximum=1.0, inclusive=False)
    if mode == "auto":
        mode = "blocked" if train_fn is not None or representation == "trained" else "loo"
    device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    work = None if work is None else Path(work)
    read = {"layer": feature_layer, "device": device, "shards": work}
    engine = {"backend": backend, "device": device}
    data: Any = train_loader.dataset
    if mode == "loo":
        _refuse_trained(representation)
        train = extract_features(model, train_loader, **read)
        codes = _as_outputs(train)
        pool = None if unlabeled_loader is None else extract_features(model, unlabeled_loader, **read)
        pool_x, notes = _pool(train.features, None if pool is None else pool.features)
        if train_fn is None:
            head = LogisticRegression(max_iter=1000)
            reference = (
                _holdout_of_head(train.features, codes, head, block, seed),
                "of a logistic head on these features",
            )
        else:
            kept, held = random_block(codes.size, block, seed)
            part = _trained(train_fn, data, kept, seed, model, work)
            again = extract_features(part, train_loader, **read)
            if not np.allclose(
                again.features, train.features, rtol=1e-3, atol=1e-4 * float(np.abs(train.features).max())
            ):
                raise ValueError(
                    "representation: expected features that stay as they are when train_fn trains without a block, they "
                    "moved: the representation is not frozen; use mode 'blocked'"
                )
            reference = again.predictions[held] != codes[held], f"of the model without {block:.0%} of the points"
        certificate = _loo(
            train.features,
            codes,
            train.n_outputs,
            train.predictions,
            pool_x,
            None if pool is None else pool.predictions,
            reference,
            k,
            metric,
            delta,
            "rogers-wagner" if slack == "auto" else slack,
            engine,
        )
        return _with_notes(certificate, notes)
    if train_fn is None:
        raise ValueError(
            "train_fn: expected a function (subset, seed) -> model for mode 'blocked', got None: points that the network "
            "was trained on certify nothing"
        )
    if stability == "auto":
        stability = "unlabeled" if unlabeled_loader is not None else "none"
    if stability == "unlabeled" and unlabeled_loader is None:
        raise ValueError("unlabeled_loader: expected a loader for stability 'unlabeled', got None")
    in_order(train_loader)  # refuses a data set without length and index
    kept, held = random_block(len(data), block, seed)
    part = _trained(train_fn, data, kept, seed, model, work)
    notes: list[str] = []
    if _same_weights(model, part):
        notes.append(
            "the model without the block has exactly the weights of the full one: does train_fn use its subset?"
        )
        warnings.warn(notes[-1], stacklevel=2)
    memory = extract_features(part, _over(train_loader, kept), **read)
    block_read = extract_features(part, _over(train_loader, held), **read)
    memory_labels, block_labels = _as_outputs(memory), _as_outputs(block_read)
    if check_train_fn:
        repeated = train_fn(Subset(data, kept.tolist()), seed)
        again = extract_features(repeated, _over(train_loader, held), feature_layer, device)
        if not (again.predictions == block_read.predictions).all():
            raise ValueError(
                "train_fn: expected the same model for the same subset and seed, got "
                f"{int((again.predictions != block_read.predictions).sum())} "
                f"other predictions of {held.size}"
            )
    extra: dict[str, Any] = {}
    if stability == "unlabeled":
        assert unlabeled_loader is not None
        whole, other = (extract_features(m, unlabeled_loader, **read) for m in (model, part))
        extra["pool_predictions"] = (whole.predictions, other.predictions)
        both = _input_hashes(train_loader) & _input_hashes(unlabeled_loader)
        if both:
            notes.append(
                f"the unlabelled pool shares {len(both)} points with the training data: stability is not certified"
            )
            warnings.warn(notes[-1], stacklevel=2)
    elif stability == "double-deletion":
        again_kept, _ = random_block(kept.size, held.size / kept.size, seed, "second block")
        third = _trained(train_fn, data, kept[again_kept], seed, model, work)
        extra["deleted_predictions"] = extract_features(third, _over(train_loader, held), **read).predictions
    certificate = certify_arrays(
        memory.features,
        memory_labels,
        block_read.features,
        block_labels,
        block_read.predictions,
        k=k,
        metric=metric,
        delta=delta,
        slack="clopper-pearson" if slack == "auto" else slack,
        **engine,
        **extra,  # type: ignore[arg-type]
    )
    return _with_notes(certificate, notes, n_classes=max(certificate.n_classes, memory.n_outputs))


def _as_outputs(read: Extracted) -> np.ndarray:
    """Labels as numbers of the model's outputs."""
    if read.labels is None:
        raise ValueError("train_loader: expected batches with labels, got inputs only")
    y = read.labels
    if y.ndim == 2 and y.shape[1] == read.n_outputs:
        return encode_labels(y, "labels", np.arange(read.n_outputs))[1]
    y = y.ravel() if y.ndim == 2 and y.shape[1] == 1 else y
    whole = y.ndim == 1 and (y.dtype.kind in "iub" or (y.dtype.kind == "f" and (y == np.floor(y)).all()))
    if not whole or y.min() < 0 or y.max() >= read.n_outputs:
        got = f"shape {y.shape}" if y.ndim != 1 else f"{np.unique(y)[[0, -1]].tolist()} at the ends"
        raise ValueError(
            f"labels: expected numbers 0 to {read.n_outputs - 1} of the model's outputs, or one-hot rows, got {got}"
        )
    return y.astype(np.int64)


def _trained(
    train_fn: Callable[[Any, int], nn.Module],
    data: Any,
    rows: np.ndarray,
    seed: int,
    model: nn.Module,
    work: Path | None,
) -> nn.Module:
    """The model trained on ``rows``, from ``work`` where it was finished there for this full model and this split."""
    subset = Subset(data, rows.tolist())
    if work is None:
        return train_fn(subset, seed)
    split = hashlib.blake2b(rows.tobytes() + str(seed).encode(), digest_size=12).hexdigest()
    kept = work / f"{weights_digest(model)}-{split}.pt"
    if kept.exists():
        part = copy.deepcopy(model)
        part.load_state_dict(torch.load(kept, map_location="cpu", weights_only=True))
        return part
    part = train_fn(subset, seed)
    with atomic_path(kept) as temporary:
        torch.save(part.state_dict(), temporary)
    return part


def _over(loader: DataLoader, indices: np.ndarray) -> DataLoader:
    """A loader over some points in order, with the batch size and collation of the given one."""
    return DataLoader(
        Subset(loader.dataset, indices.tolist()),
        batch_size=loader.batch_size or 256,
        shuffle=False,
        collate_fn=loader.collate_fn,
    )


def _same_weights(a: nn.Module, b: nn.Module) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[key].cpu(), right[key].cpu()) for key in left)


def _input_hashes(loader: DataLoader) -> set[str]:
    """Digests of the inputs, all tensors of a point together."""
    return {digest(point) for batch in in_order(loader) for point in zip(*tensors_of(split_batch(batch)[0]))}
