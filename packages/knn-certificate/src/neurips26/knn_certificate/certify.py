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

import warnings
from collections.abc import Callable
from dataclasses import dataclass
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
from neurips26.knn_certificate.features import Extracted, digest, extract_features, in_order, leaves, split_batch
from neurips26.knn_certificate.heads import checked_pool, coarser, with_notes
from neurips26.knn_certificate.knn import METRICS
from neurips26.knn_certificate.labels import encode_labels
from neurips26.knn_certificate.leave_one_out import certify_loo, holdout_of_head, refuse_trained
from neurips26.knn_certificate.retraining import as_module, over, same_weights, trained_on
from neurips26.knn_certificate.search import check_device
from neurips26.shared.arrays import check_choice, check_int, check_real

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
    given = _Given(model, train_loader, unlabeled_loader, train_fn, block, seed, feature_layer, device, work)
    asked = {"k": k, "metric": metric, "delta": delta}
    engine = {"backend": backend, "device": device}
    if mode == "loo":
        refuse_trained(representation)
        return _leave_one_out(given, asked, "rogers-wagner" if slack == "auto" else slack, engine)
    asked["slack"] = "clopper-pearson" if slack == "auto" else slack
    return _blocked(given, stability, check_train_fn, asked, engine)


@dataclass(frozen=True)
class _Given:
    """The classifier, its data, and how it is read and trained again."""

    model: nn.Module
    loader: DataLoader
    pool_loader: DataLoader | None
    train_fn: Callable[[Any, int], nn.Module] | None
    block: float
    seed: int
    layer: str
    device: str
    work: Path | None

    def read(self, model: nn.Module, loader: DataLoader) -> Extracted:
        """Features, labels and outputs in order."""
        return extract_features(model, loader, self.layer, self.device, shards=self.work)

    def trained(self, rows: np.ndarray) -> nn.Module:
        """The model trained on some rows, from the folder ``work`` where it was finished there."""
        assert self.train_fn is not None
        return trained_on(self.train_fn, self.loader, rows, self.seed, self.model, self.work)


def _leave_one_out(given: _Given, asked: dict[str, Any], slack: str, engine: dict[str, Any]) -> Certificate:
    """All points serve the decoder of a frozen representation."""
    train = given.read(given.model, given.loader)
    codes = _as_outputs(train)
    pool = None if given.pool_loader is None else given.read(given.model, given.pool_loader)
    pool_x, notes = checked_pool(train.features, None if pool is None else pool.features, stacklevel=5)
    certificate = certify_loo(
        train.features,
        codes,
        train.n_outputs,
        train.predictions,
        pool_x,
        None if pool is None else pool.predictions,
        _reference(given, train, codes),
        **asked,
        slack=slack,
        engine=engine,
    )
    return with_notes(certificate, notes)


def _reference(given: _Given, train: Extracted, codes: np.ndarray) -> tuple[np.ndarray, str]:
    """Errors on a block, for plain hold-out, and whose they are. With ``train_fn`` the features must not move."""
    if given.train_fn is None:
        head = LogisticRegression(max_iter=1000)
        errors = holdout_of_head(train.features, codes, head, given.block, given.seed)
        return errors, "of a logistic head on these features"
    kept, held = random_block(codes.size, given.block, given.seed)
    again = given.read(given.trained(kept), given.loader)
    if not np.allclose(again.features, train.features, rtol=1e-3, atol=1e-4 * float(np.abs(train.features).max())):
        raise ValueError(
            "representation: expected features that stay as they are when train_fn trains without a block, they "
            "moved: the representation is not frozen; use mode 'blocked'"
        )
    return again.predictions[held] != codes[held], f"of the model without {given.block:.0%} of the points"


def _blocked(
    given: _Given, stability: str, check_train_fn: bool, asked: dict[str, Any], engine: dict[str, Any]
) -> Certificate:
    """A random block that the retrained model has not seen."""
    if given.train_fn is None:
        raise ValueError(
            "train_fn: expected a function (subset, seed) -> model for mode 'blocked', got None: points that the network "
            "was trained on certify nothing"
        )
    if stability == "auto":
        stability = "unlabeled" if given.pool_loader is not None else "none"
    if stability == "unlabeled" and given.pool_loader is None:
        raise ValueError("unlabeled_loader: expected a loader for stability 'unlabeled', got None")
    in_order(given.loader)  # refuses a data set without length and index
    kept, held = random_block(len(given.loader.dataset), given.block, given.seed)  # type: ignore[arg-type]
    part = given.trained(kept)
    notes: list[str] = []
    if same_weights(given.model, part):
        notes.append(
            "the model without the block has exactly the weights of the full one: does train_fn use its subset?"
        )
    memory, block = (given.read(part, over(given.loader, rows)) for rows in (kept, held))
    memory_labels, block_labels = _as_outputs(memory), _as_outputs(block)
    if check_train_fn:
        _check_repeats(given, kept, held, block.predictions)
    evidence: dict[str, Any] = {}
    if stability == "unlabeled":
        evidence["pool_predictions"], shared = _on_pool(given, part)
        notes += shared
    elif stability == "double-deletion":
        again_kept, _ = random_block(kept.size, held.size / kept.size, given.seed, "second block")
        third = given.trained(kept[again_kept])
        evidence["deleted_predictions"] = given.read(third, over(given.loader, held)).predictions
    for note in notes:
        warnings.warn(note, stacklevel=3)
    certificate = certify_arrays(
        memory.features, memory_labels, block.features, block_labels, block.predictions, **asked, **engine, **evidence
    )
    return with_notes(certificate, notes, n_classes=max(certificate.n_classes, memory.n_outputs))


def _check_repeats(given: _Given, kept: np.ndarray, held: np.ndarray, predictions: np.ndarray) -> None:
    """Train on the same part once more and demand the same predictions."""
    assert given.train_fn is not None
    repeated = as_module(given.train_fn(Subset(given.loader.dataset, kept.tolist()), given.seed))
    again = extract_features(repeated, over(given.loader, held), given.layer, given.device)
    different = int((again.predictions != predictions).sum())
    if different:
        raise ValueError(
            f"train_fn: expected the same model for the same subset and seed, got {different} other predictions of {held.size}"
        )


def _on_pool(given: _Given, part: nn.Module) -> tuple[tuple[np.ndarray, np.ndarray], list[str]]:
    """Predictions of both models on the pool, and a note where it shares points with the training data."""
    assert given.pool_loader is not None
    whole, other = (given.read(m, given.pool_loader).predictions for m in (given.model, part))
    both = _shared_inputs(given.loader, given.pool_loader)
    if not both:
        return (whole, other), []
    return (whole, other), [
        f"the unlabelled pool shares {len(both)} points with the training data: stability is not certified"
    ]


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
