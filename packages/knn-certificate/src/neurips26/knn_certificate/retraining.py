"""A model trained again on a part of its data, kept in a folder so that an interrupted certificate goes on from there."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

from neurips26.knn_certificate.features import digest, leaves, split_batch, weights_digest
from neurips26.shared.runs import atomic_path

__all__ = ["as_module", "over", "same_weights", "trained_on"]


def trained_on(
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
        return as_module(train_fn(subset, seed))
    state = hashlib.blake2b(rows.tobytes() + f"{seed} {_name_of(train_fn)}".encode(), digest_size=12)
    for batch in over(loader, rows):
        inputs, labels = split_batch(batch)
        state.update(digest(leaves(inputs)).encode())
        state.update(np.asarray(labels.cpu() if isinstance(labels, torch.Tensor) else labels).tobytes())
    kept = work / f"{weights_digest(model)}-{state.hexdigest()}.pt"
    if kept.exists():
        part = copy.deepcopy(model)
        part.load_state_dict(torch.load(kept, map_location="cpu", weights_only=True))
        return part
    part = as_module(train_fn(subset, seed))
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


def as_module(part: Any) -> nn.Module:
    """What ``train_fn`` returned, which has to be a torch module."""
    if not isinstance(part, nn.Module):
        raise TypeError(f"train_fn: expected it to return a torch module, got {type(part).__name__}")
    return part


def over(loader: DataLoader, indices: np.ndarray) -> DataLoader:
    """A loader over some points in order, with the batch size and collation of the given one."""
    return DataLoader(
        Subset(loader.dataset, indices.tolist()),
        batch_size=loader.batch_size or 256,
        shuffle=False,
        collate_fn=loader.collate_fn,
    )


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    """Whether two models are one and the same function by their weights."""
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[key].cpu(), right[key].cpu()) for key in left)
