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

import hashlib
import warnings
from collections.abc import Callable
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
from neurips26.knn_certificate.features import extract_features, in_order, split_batch
from neurips26.knn_certificate.knn import METRICS, neighbours, prepare, votes
from neurips26.shared import seeding
from neurips26.shared.arrays import check_array, check_choice, check_int, check_real

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
    details["classes"] = _class_table(classes, y, events)
    return Certificate(
        bound=bound,
        certified=certified,
        geometry=Term.of(events["geometry"], share, slack),
        disagreement=Term.of(events["disagreement"], share, slack),
        stability=stability,
        joint=joint,
        additive_bound=min(1.0, additive),
        holdout_bound=bounds.clopper_pearson(int((f != y).sum()), y.size, delta),
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
        representation: ``"frozen"`` states that ``X`` never saw these labels. ``"trained"`` is refused in mode ``loo``: a
            network that memorised random labels has an in-sample leave-one-out error near zero.
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
    pool, notes = _pool(X, unlabeled)
    if mode == "loo":
        _refuse_trained(representation)
        slack = "rogers-wagner" if slack == "auto" else slack
        fitted = clone(head).fit(X, codes)
        pool_prediction = None if pool is None else fitted.predict(pool)
        certificate = _loo(
            X, codes, classes, fitted.predict(X), pool, pool_prediction, k, metric, delta, slack, backend, device
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
        backend=backend,
        device=device,
        **extra,
    )
    for row in certificate.details["classes"]:
        row["class"] = classes[row["class"]].item()
    return _with_notes(certificate, notes, n_classes=classes.size)


def _refuse_trained(representation: str) -> None:
    if representation != "frozen":
        raise ValueError(
            "representation: expected 'frozen' for mode 'loo', got 'trained': a representation that saw the labels makes the "
            "in-sample leave-one-out error meaningless (a network that memorised random labels gets it near 0 at a true "
            "error of 0.9); use mode 'blocked'"
        )


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
    events = {e: np.concatenate([p.events[e] for p in parts]) for e in ("geometry", "disagreement", "joint")}
    terms = {e: Term.of(events[e], share, slack) for e in events}
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
    classes: np.ndarray,
    in_sample: np.ndarray,
    pool: np.ndarray | None,
    pool_prediction: np.ndarray | None,
    k: Any,
    metric: str,
    delta: float,
    slack: str,
    backend: str,
    device: str,
) -> Certificate:
    """Leave-one-out geometry on all points, disagreement of the full head with the full decoder on a pool."""
    slacks = {
        "rogers-wagner": bounds.rogers_wagner,
        "devroye-wagner": bounds.devroye_wagner,
        "hoeffding-heuristic": lambda n, k, delta: bounds.hoeffding_slack(n, delta),
    }
    check_choice(slack, "slack", slacks)
    engine = {"backend": backend, "device": device}
    memory = prepare(X, metric, "X")
    details: dict[str, Any] = {"slack": slack}
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
    events = {"geometry": wrong}
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
        holdout_bound=None,
        mode="loo",
        rigorous=pool is not None and slack != "hoeffding-heuristic",
        assumptions=(_IID, "the representation never saw these labels"),
        notes=tuple(notes),
        n_train=codes.size,
        n_classes=classes.size,
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
) -> Certificate:
    """Certify a torch classifier.

    Args:
        model: the classifier trained on all of ``train_loader.dataset`` (it is not modified).
        train_loader: loader over the training data; its data set is read in order, whatever order the loader uses.
        unlabeled_loader: loader over inputs that no training saw (labels are ignored where it yields them).
        train_fn: ``train_fn(subset, seed) -> model`` trains afresh on a part of the data; needed unless the
            representation is frozen.
        feature_layer: module whose *input* is the representation; ``"auto"`` is the last linear layer.
        representation: ``"frozen"`` states that the features never saw these labels.
        mode: ``"auto"`` is ``"blocked"`` where ``train_fn`` is given, else ``"loo"``.
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

    Raises:
        ValueError: a trained representation in mode ``loo``; no ``train_fn`` where one is needed; a data set that gives
            other inputs on a second reading (random augmentation); a ``train_fn`` that does not repeat itself.
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
    read = {"layer": feature_layer, "device": device}
    engine = {"backend": backend, "device": device}
    if mode == "loo":
        _refuse_trained(representation)
        train = extract_features(model, train_loader, **read)
        classes, codes = encode_labels(train.labels, "labels")
        pool = None if unlabeled_loader is None else extract_features(model, unlabeled_loader, **read)
        pool_x, notes = _pool(train.features, None if pool is None else pool.features)
        certificate = _loo(
            train.features,
            codes,
            np.arange(max(classes.size, train.n_outputs)),
            train.predictions,
            pool_x,
            None if pool is None else pool.predictions,
            k,
            metric,
            delta,
            "rogers-wagner" if slack == "auto" else slack,
            backend,
            device,
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
    data: Any = train_loader.dataset
    n = len(data)
    kept, held = random_block(n, block, seed)
    part = train_fn(Subset(data, kept.tolist()), seed)
    notes: list[str] = []
    if _same_weights(model, part):
        notes.append(
            "the model without the block has exactly the weights of the full one: does train_fn use its subset?"
        )
        warnings.warn(notes[-1], stacklevel=2)
    memory = extract_features(part, _over(train_loader, kept), **read)
    block_read = extract_features(part, _over(train_loader, held), **read)
    if memory.labels is None or block_read.labels is None:
        raise ValueError("train_loader: expected batches with labels, got inputs only")
    if check_train_fn:
        again = extract_features(train_fn(Subset(data, kept.tolist()), seed), _over(train_loader, held), **read)
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
        both = set(_input_hashes(train_loader, device)) & set(_input_hashes(unlabeled_loader, device))
        if both:
            notes.append(
                f"the unlabelled pool shares {len(both)} points with the training data: stability is not certified"
            )
            warnings.warn(notes[-1], stacklevel=2)
    elif stability == "double-deletion":
        again_kept, _ = random_block(kept.size, held.size / kept.size, seed, "second block")
        third = train_fn(Subset(data, kept[again_kept].tolist()), seed)
        extra["deleted_predictions"] = extract_features(third, _over(train_loader, held), **read).predictions
    certificate = certify_arrays(
        memory.features,
        memory.labels,
        block_read.features,
        block_read.labels,
        block_read.predictions,
        k=k,
        metric=metric,
        delta=delta,
        slack="clopper-pearson" if slack == "auto" else slack,
        **engine,
        **extra,  # type: ignore[arg-type]
    )
    return _with_notes(certificate, notes, n_classes=max(certificate.n_classes, memory.n_outputs))


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


def _input_hashes(loader: DataLoader, device: str) -> list[bytes]:
    hashes = []
    for batch in in_order(loader):
        inputs, _ = split_batch(batch)
        first = (
            inputs
            if isinstance(inputs, torch.Tensor)
            else next(iter(inputs.values()))
            if isinstance(inputs, dict)
            else inputs[0]
        )
        hashes += [hashlib.blake2b(row.cpu().contiguous().numpy().tobytes(), digest_size=12).digest() for row in first]
    return hashes
