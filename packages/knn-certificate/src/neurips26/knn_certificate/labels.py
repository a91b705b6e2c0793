"""Labels of any kind as numbers from 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

__all__ = ["classes_of", "encode_labels"]


def encode_labels(y: Any, name: str = "labels", classes: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Classes and integer codes of labels given as any scalars (text too), or one-hot rows.

    Raises:
        ValueError: empty, more than one axis and not one-hot, missing values, numbers that are no labels, kinds that cannot be
            ordered, or a label outside ``classes``.
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
    if y.dtype.kind == "f" and (y != np.floor(y)).any():
        raise ValueError(f"{name}: expected class labels, got numbers with fractions, {y[y != np.floor(y)][0]}")
    if y.dtype.kind == "O":
        missing = [v for v in y if v is None or v != v]
        kinds = sorted({type(v).__name__ for v in y})
        if missing or len(kinds) > 1:
            got = f"{missing[0]!r}" if missing else f"kinds {', '.join(kinds)}"
            raise ValueError(f"{name}: expected labels of one kind and none missing, got {got}")
    if classes is None:
        classes, codes = np.unique(y, return_inverse=True)
        return classes, codes.astype(np.int64)
    at = np.searchsorted(classes, y)
    at[at == classes.size] = 0
    if not (classes[at] == y).all():
        raise ValueError(f"{name}: expected labels among the {classes.size} classes, got {y[classes[at] != y][0]!r}")
    return classes, at.astype(np.int64)


def classes_of(y: Any, name: str = "labels") -> np.ndarray:
    """The distinct labels, sorted."""
    return encode_labels(y, name)[0]
