"""The blocked certificate from arrays: events on a random block that neither the network nor its decoder saw.

With probability ``1 - delta``: ``R(f_S) <= CP(joint, delta/2) + CP(f_S != f_S', delta/2)``, the second limit from an unlabelled
pool; by double deletion one union of three events on the block at the full ``delta``; else the bound is for ``f_S'`` alone.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np

from neurips26.knn_certificate import bounds
from neurips26.knn_certificate.certificate import BLOCK, IID, MONOTONE, OF_ALL, POOL, WITHOUT_BLOCK, Certificate, Term
from neurips26.knn_certificate.choices import CHOICES
from neurips26.knn_certificate.knn import METRICS, neighbours, prepare, votes
from neurips26.knn_certificate.labels import classes_of, encode_labels
from neurips26.shared import seeding
from neurips26.shared.arrays import check_choice, check_int, check_real

__all__ = ["Slack", "certify_arrays", "choose_k", "not_constant", "random_block"]

Slack = Literal["clopper-pearson", "kl", "hoeffding"]
#: What the step to the network of all data assumes beyond a random block.
_FURTHER = {"unlabeled": (POOL,), "double-deletion": (MONOTONE,), "none": ()}


def random_block(n: int, fraction: float, seed: int, name: str = "block") -> tuple[np.ndarray, np.ndarray]:
    """A random split of ``n`` points: kept and held back, both sorted. Never the first or last ones: files are sorted."""
    check_real(fraction, "block", minimum=0.0, maximum=1.0, inclusive=False)
    size = round(n * fraction)
    if not 1 <= size < n - 1:
        raise ValueError(f"block: expected a fraction that leaves points on both sides of {n}, got {fraction}")
    order = seeding.rng(seed, "certificate", name).permutation(n)
    return np.sort(order[size:]), np.sort(order[:size])


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
        metric: ``"cosine"``, ``"euclidean"``, or the latter after the features were ``"standardised"`` or ``"whitened"`` by
            the memory's spread.
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
    memory, block = _prepared(memory_features, block_features, metric)
    labels = {
        "memory_labels": memory_labels,
        "block_labels": block_labels,
        "block_predictions": block_predictions,
        "deleted_predictions": deleted_predictions,
    }
    classes, code = _as_codes(labels, pool_predictions, memory.shape[0], block.shape[0])
    engine = {"backend": backend, "device": device}
    details: dict[str, Any] = {"slack": slack}
    if k == "auto":
        k, details["loo_errors"] = choose_k(memory, code["memory_labels"], **engine)
    check_int(k, "k", minimum=1)
    events = _events(votes(code["memory_labels"], neighbours(memory, block, k, **engine), [k])[k], code)
    notes = _notes(classes, code, events, details.get("loo_errors", {}).get(k))
    if block.shape[0] < CHOICES.small_block:
        notes.insert(0, f"only {block.shape[0]} certification points: slack dominates")
        warnings.warn(notes[0], stacklevel=2)
    by = "unlabeled" if pool_predictions is not None else "none" if deleted_predictions is None else "double-deletion"
    if by != "none":
        details["stability"], details["stability_in_bound"] = by, by == "unlabeled"
    details["classes"] = _class_table(classes, code["block_labels"], events)
    share = delta / 2 if by == "unlabeled" else delta
    terms = {e: Term.of(v, share, slack) for e, v in events.items() if e != "holdout"}
    added = terms["stability"].upper if by == "unlabeled" else 0.0
    one_by_one = [e for e in terms if e != "joint"]
    return Certificate(
        bound=min(1.0, terms["joint"].upper + added),
        certified=WITHOUT_BLOCK if by == "none" else OF_ALL,
        **{"stability": None, **terms},
        additive_bound=min(1.0, sum(Term.of(events[e], delta / len(one_by_one), slack).upper for e in one_by_one)),
        holdout_bound=Term.of(events["holdout"], delta, "clopper-pearson").upper,
        mode="blocked",
        rigorous=True,
        assumptions=(IID, BLOCK, *_FURTHER[by]),
        notes=tuple(notes),
        n_train=memory.shape[0],
        n_classes=classes.size,
        k=int(k),
        metric=metric,
        delta=delta,
        details=details,
        events=events,
    )


def _prepared(memory_features: Any, block_features: Any, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Features of memory and block, checked and scaled for the metric."""
    memory = prepare(memory_features, metric, "memory_features")
    block = prepare(block_features, metric, "block_features", like=memory_features)
    not_constant(memory, "memory_features")
    if block.shape[1] != memory.shape[1]:
        raise ValueError(
            f"block_features: expected {memory.shape[1]} columns as in memory_features, got {block.shape[1]}"
        )
    return memory, block


def _as_codes(
    labels: dict[str, Any], pool_predictions: tuple[Any, Any] | None, n_memory: int, n_block: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """All classes, and labels and predictions (those on the pool under ``full`` and ``part``) as numbers of them."""
    if pool_predictions is not None and len(pool_predictions) != 2:
        raise ValueError(
            f"pool_predictions: expected those of the full network and of the one without the block, got {len(pool_predictions)}"
        )
    labels = {name: value for name, value in labels.items() if value is not None}
    classes = _all_classes([*labels.items(), *(("pool_predictions", p) for p in pool_predictions or ())])
    code = {name: encode_labels(value, name, classes)[1] for name, value in labels.items()}
    for name, codes in code.items():
        n = n_memory if name == "memory_labels" else n_block
        if codes.size != n:
            raise ValueError(f"{name}: expected {n} entries, got {codes.size}")
    if pool_predictions is not None:
        full, part = (encode_labels(p, "pool_predictions", classes)[1] for p in pool_predictions)
        if full.shape != part.shape:
            raise ValueError(f"pool_predictions: expected two arrays of one length, got {full.size} and {part.size}")
        code["full"], code["part"] = full, part
    return classes, code


def _events(decided: np.ndarray, code: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the certificate counts; after a double deletion the joint event takes stability in."""
    y, f = code["block_labels"], code["block_predictions"]
    events = {"geometry": decided != y, "disagreement": f != decided}
    events["joint"] = events["geometry"] | events["disagreement"]
    if "full" in code:
        events["stability"] = code["full"] != code["part"]
    elif "deleted_predictions" in code:
        events["stability"] = code["deleted_predictions"] != f
        events["joint"] = events["joint"] | events["stability"]
    events["holdout"] = f != y
    return events


def _notes(
    classes: np.ndarray, code: dict[str, np.ndarray], events: dict[str, np.ndarray], in_sample: float | None
) -> list[str]:
    absent = np.setdiff1d(code["block_labels"], code["memory_labels"])
    notes = _memorised(in_sample, events["geometry"])
    if absent.size:
        notes.insert(0, f"classes without a memory point, always decoded wrongly: {classes[absent][:5].tolist()}")
    return notes


def _all_classes(labels: list[tuple[str, Any]]) -> np.ndarray:
    """Classes that occur anywhere, all of one kind: text or numbers."""
    found = {name: classes_of(value, name) for name, value in labels}
    kinds = {name: "text" if c.dtype.kind in "US" or isinstance(c[0], str) else "numbers" for name, c in found.items()}
    first = next(iter(kinds))
    other = next((name for name in kinds if kinds[name] != kinds[first]), None)
    if other:
        raise ValueError(f"{other}: expected {kinds[first]} as in {first}, got {kinds[other]}")
    return np.unique(np.concatenate(list(found.values())))


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


def not_constant(x: np.ndarray, name: str) -> None:
    """Refuse features that are one row again and again: nothing is nearer than anything else."""
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
