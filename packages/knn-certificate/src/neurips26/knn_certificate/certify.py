"""From a torch model to a certificate; from arrays: :mod:`.blocked`, from frozen features: :mod:`.heads`.

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
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.utils.data import DataLoader, Subset

from neurips26.knn_certificate import bounds, leave_one_out
from neurips26.knn_certificate.blocked import certify_arrays, random_block
from neurips26.knn_certificate.certificate import Certificate
from neurips26.knn_certificate.choices import CHOICES
from neurips26.knn_certificate.features import (
    Extracted,
    digest,
    extract_features,
    in_order,
    leaves,
    split_batch,
    weights_digest,
)
from neurips26.knn_certificate.heads import checked_pool, coarser, with_notes
from neurips26.knn_certificate.knn import METRICS
from neurips26.knn_certificate.labels import encode_labels
from neurips26.knn_certificate.leave_one_out import certify_loo, holdout_of_head, refuse_trained
from neurips26.knn_certificate.search import check_device
from neurips26.shared.arrays import check_choice, check_int, check_real
from neurips26.shared.runs import atomic_path

__all__ = ["certify"]


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
        metric: ``"cosine"``, ``"euclidean"``, or the latter after the features were ``"standardised"`` or ``"whitened"`` by
            the memory's spread (the last two not in mode ``"loo"``: leaving a point out would change them).
        delta: probability with which the bound may fail.
        block: fraction held back.
        stability: see :func:`certify_features`; with ``"none"`` the bound is for the model without the block.
        slack: see :func:`certify_features`.
        seed: of splits, and passed to ``train_fn``.
        device: where the models run; ``"auto"`` is CUDA where there is one.
        backend: k-NN backend.
        check_train_fn: train the block's model twice and demand equal predictions (one more training).
        work: folder for retrained weights and features; a certificate that was interrupted continues from it. What
            belongs to another model, split, data set (inputs or labels) or function ``train_fn`` is not used; settings that
            the function takes from outside itself are not seen: another folder for them.

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
    if k != "auto":
        check_int(k, "k", minimum=1)
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model: expected a torch module, got {type(model).__name__}; scikit-learn heads go to certify_features"
        )
    for name, loader in (("train_loader", train_loader), ("unlabeled_loader", unlabeled_loader)):
        if loader is not None and not isinstance(loader, DataLoader):
            raise TypeError(f"{name}: expected a torch DataLoader, got {type(loader).__name__}")
    if mode == "auto":
        mode = "blocked" if train_fn is not None or representation == "trained" else "loo"
    if slack != "auto":
        check_choice(slack, "slack", leave_one_out.SLACKS if mode == "loo" else bounds.SLACKS)
    device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else check_device(device)
    work = None if work is None else Path(work)
    read = {"layer": feature_layer, "device": device, "shards": work}
    engine = {"backend": backend, "device": device}
    data: Any = train_loader.dataset
    if mode == "loo":
        refuse_trained(representation)
        train = extract_features(model, train_loader, **read)
        codes = _as_outputs(train)
        pool = None if unlabeled_loader is None else extract_features(model, unlabeled_loader, **read)
        pool_x, notes = checked_pool(train.features, None if pool is None else pool.features)
        if train_fn is None:
            head = LogisticRegression(max_iter=1000)
            reference = (
                holdout_of_head(train.features, codes, head, block, seed),
                "of a logistic head on these features",
            )
        else:
            kept, held = random_block(codes.size, block, seed)
            part = _trained(train_fn, train_loader, kept, seed, model, work)
            again = extract_features(part, train_loader, **read)
            if not np.allclose(
                again.features, train.features, rtol=1e-3, atol=1e-4 * float(np.abs(train.features).max())
            ):
                raise ValueError(
                    "representation: expected features that stay as they are when train_fn trains without a block, they "
                    "moved: the representation is not frozen; use mode 'blocked'"
                )
            reference = again.predictions[held] != codes[held], f"of the model without {block:.0%} of the points"
        certificate = certify_loo(
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
        return with_notes(certificate, notes)
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
    part = _trained(train_fn, train_loader, kept, seed, model, work)
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
        repeated = _module(train_fn(Subset(data, kept.tolist()), seed))
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
        both = _shared_inputs(train_loader, unlabeled_loader)
        if both:
            notes.append(
                f"the unlabelled pool shares {len(both)} points with the training data: stability is not certified"
            )
            warnings.warn(notes[-1], stacklevel=2)
    elif stability == "double-deletion":
        again_kept, _ = random_block(kept.size, held.size / kept.size, seed, "second block")
        third = _trained(train_fn, train_loader, kept[again_kept], seed, model, work)
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
    return with_notes(certificate, notes, n_classes=max(certificate.n_classes, memory.n_outputs))


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
    loader: DataLoader,
    rows: np.ndarray,
    seed: int,
    model: nn.Module,
    work: Path | None,
) -> nn.Module:
    """The model trained on ``rows``, from ``work`` where it was finished there for all that this call is about."""
    subset = Subset(loader.dataset, rows.tolist())
    if work is None:
        return _module(train_fn(subset, seed))
    state = hashlib.blake2b(rows.tobytes() + f"{seed} {_name_of(train_fn)}".encode(), digest_size=12)
    for batch in _over(loader, rows):
        inputs, labels = split_batch(batch)
        state.update(digest(leaves(inputs)).encode())
        state.update(np.asarray(labels.cpu() if isinstance(labels, torch.Tensor) else labels).tobytes())
    kept = work / f"{weights_digest(model)}-{state.hexdigest()}.pt"
    if kept.exists():
        part = copy.deepcopy(model)
        part.load_state_dict(torch.load(kept, map_location="cpu", weights_only=True))
        return part
    part = _module(train_fn(subset, seed))
    with atomic_path(kept) as temporary:
        torch.save(part.state_dict(), temporary)
    return part


def _name_of(train_fn: Any) -> str:
    """Name and code of a function; of another callable, its type."""
    code = getattr(train_fn, "__code__", None)
    body = (
        "" if code is None else hashlib.blake2b(code.co_code + repr(code.co_names).encode(), digest_size=8).hexdigest()
    )
    return f"{getattr(train_fn, '__module__', '')} {getattr(train_fn, '__qualname__', type(train_fn).__name__)} {body}"


def _module(part: Any) -> nn.Module:
    if not isinstance(part, nn.Module):
        raise TypeError(f"train_fn: expected it to return a torch module, got {type(part).__name__}")
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


def _shared_inputs(*loaders: DataLoader) -> set[str]:
    """Digests of the inputs that both loaders have, all tensors of a point together, in the coarser of their types."""
    firsts = [leaves(split_batch(next(iter(in_order(loader))))[0]) for loader in loaders]
    kinds = [coarser(*v) if all(isinstance(x, torch.Tensor) for x in v) else None for v in zip(*firsts)]

    def hashes(loader: DataLoader) -> set[str]:
        found = set()
        for batch in in_order(loader):
            parts = zip(leaves(split_batch(batch)[0]), kinds)
            columns = [v if kind is None else v.to(torch.float64).to(kind) + 0.0 for v, kind in parts]
            found |= {digest(point) for point in zip(*columns)}
        return found

    return set.intersection(*map(hashes, loaders))
