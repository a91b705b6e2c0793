"""What the public functions ask of their arguments: the names they know, weights, and the device to compute on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

__all__ = ["EMPTY", "METRICS", "PRECISIONS", "check_weights", "like", "target_device"]

EMPTY = ("relocate", "keep", "raise", "drop")
METRICS = ("euclidean", "cosine")
PRECISIONS = ("ieee", "tf32x3", "fast", "certified")


def check_weights(weights: Any, n: int, name: str = "weights", *, partial: bool = False) -> np.ndarray | None:
    """`(N,)` float64 weights: finite, non-negative, not all zero (unless they are those of a part of the rows)."""
    if weights is None:
        return None
    values = np.asarray(weights.detach().cpu() if hasattr(weights, "detach") else weights, dtype=np.float64)
    if values.ndim == 0:
        values = np.full(n, float(values))
    if values.shape != (n,):
        raise ValueError(f"{name}: expected shape (N={n},), got {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError(
            f"{name}: expected finite numbers, got {values[~np.isfinite(values)][0]} at {int(np.argmax(~np.isfinite(values)))}"
        )
    if n and values.min() < 0:
        raise ValueError(f"{name}: expected non-negative numbers, got {values.min()} at {int(values.argmin())}")
    single = np.finfo(np.float32)
    outside = (values > 0) & ~((values >= single.tiny) & (values <= single.max / max(n, 1)))
    if outside.any():
        at = int(np.argmax(outside))
        raise ValueError(
            f"{name}: expected 0 or a number between {single.tiny:.2g} and {single.max / n:.2g}, got {values[at]} at {at}; "
            "only their ratios matter: scale them"
        )
    if n and not partial and not values.any():
        raise ValueError(f"{name}: expected at least one positive number, got all zeros")
    return values


def target_device(x: Any, device: Any) -> torch.device:
    """The device to compute on; asking for a GPU that is not there is an error, never a fallback."""
    try:
        where = (
            torch.device(device)
            if device is not None
            else (x.device if isinstance(x, torch.Tensor) else torch.device("cpu"))
        )
    except RuntimeError as error:
        raise ValueError(
            f"device: expected 'cpu' or 'cuda[:i]', got {device!r} ({str(error).splitlines()[0]})"
        ) from error
    if where.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (where.index or 0) >= count:
            raise ValueError(f"device: expected one of {count} GPUs of this machine, got {str(where)!r}")
    elif where.type != "cpu":
        raise ValueError(f"device: expected 'cpu' or 'cuda[:i]', got {str(where)!r}")
    return where


def like(values: np.ndarray, family: torch.Tensor | None) -> Any:
    """Numpy in, numpy out; torch in, torch out on the same device."""
    return values if family is None else torch.from_numpy(np.ascontiguousarray(values)).to(family.device)
