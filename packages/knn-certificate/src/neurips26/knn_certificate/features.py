"""Reading a network: features before the last layer, predictions and labels, aligned with the data set's order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from neurips26.shared import progress

__all__ = [
    "Extracted",
    "digest",
    "extract_features",
    "find_layer",
    "in_order",
    "leaves",
    "split_batch",
    "weights_digest",
]

_LABELS = ("labels", "label", "y", "target", "targets")


@dataclass(frozen=True)
class Extracted:
    """What a pass over a data set yields, row by row in its order."""

    features: Float[np.ndarray, "n d"]
    predictions: Int[np.ndarray, " n"]
    labels: np.ndarray | None
    n_outputs: int


def find_layer(model: nn.Module, layer: str = "auto") -> nn.Module:
    """The module whose input is the representation: the one named, or the last ``nn.Linear``.

    Raises:
        ValueError: no such module.
    """
    named = dict(model.named_modules())
    if layer != "auto":
        if layer not in named:
            raise ValueError(f"layer: expected the name of a module ({', '.join(list(named)[-5:])}, …), got {layer!r}")
        return named[layer]
    linear = [m for m in named.values() if isinstance(m, nn.Linear)]
    if not linear:
        raise ValueError("layer: expected a model with an nn.Linear, got none; name the layer")
    return linear[-1]


def split_batch(batch: Any) -> tuple[Any, Any]:
    """Inputs and labels (or ``None``) of a batch: a tensor; a mapping; inputs and labels; several inputs, then labels."""
    if hasattr(batch, "items"):
        items = dict(batch.items())
        key = next((k for k in _LABELS if k in items), None)
        labels = items.pop(key) if key else None
        return items, labels
    if isinstance(batch, (tuple, list)):
        if len(batch) == 1:
            return batch[0], None
        if len(batch) > 2:
            return tuple(batch[:-1]), batch[-1]
        texts = isinstance(batch[0], tuple) and all(isinstance(v, str) for v in batch[0])
        return list(batch[0]) if texts else batch[0], batch[-1]
    return batch, None


def in_order(loader: DataLoader) -> DataLoader:
    """A loader over the same data in the data set's order, every point once.

    Raises:
        TypeError: a data set without index: its rows cannot be aligned.
    """
    if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__getitem__"):
        raise TypeError(f"loader: expected a data set with length and index, got {type(loader.dataset).__name__}")
    return DataLoader(loader.dataset, batch_size=loader.batch_size or 256, shuffle=False, collate_fn=loader.collate_fn)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode (BatchNorm and dropout fixed) inside the block; every module's own mode afterwards."""
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def leaves(inputs: Any) -> list[Any]:
    """What a batch's inputs are made of: tensors, arrays, and lists with one entry a point (texts, say).

    Raises:
        ValueError: inputs of another kind: points could not be told apart.
    """
    parts = inputs.values() if isinstance(inputs, dict) else inputs if isinstance(inputs, tuple) else [inputs]
    found = [v for v in parts if v is not None]
    wrong = next((v for v in found if not isinstance(v, (torch.Tensor, np.ndarray, list, tuple))), None)
    if wrong is not None or not found:
        got = "nothing" if wrong is None else type(wrong).__name__
        raise ValueError(f"loader: expected batches of tensors, arrays or lists with one entry a point, got {got}")
    return found


def digest(values: Iterable[Any]) -> str:
    """Digest of tensors' bytes, and of whatever else there is by its text."""
    state = hashlib.blake2b(digest_size=12)
    for v in values:
        if isinstance(v, torch.Tensor):
            state.update(v.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            state.update((v.tobytes() if isinstance(v, np.ndarray) else repr(v).encode()) + b"\0")
    return state.hexdigest()


def weights_digest(model: nn.Module) -> str:
    """Digest of a model's weights and buffers."""
    return digest(v for v in model.state_dict().values() if isinstance(v, torch.Tensor))


def _run(model: nn.Module, inputs: Any, device: str) -> torch.Tensor:
    """Logits of a batch: inputs as one tensor, by position or by name; outputs bare, named or first of a tuple."""
    if isinstance(inputs, dict):
        out = model(**{k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in inputs.items()})
    elif isinstance(inputs, tuple):
        out = model(*(v.to(device) if isinstance(v, torch.Tensor) else v for v in inputs))
    else:
        out = model(inputs.to(device) if isinstance(inputs, torch.Tensor) else inputs)
    out = out.logits if hasattr(out, "logits") else out[0] if isinstance(out, tuple) else out
    if not isinstance(out, torch.Tensor) or out.ndim != 2 or out.shape[1] < 2:
        shape = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
        raise ValueError(f"model: expected logits of shape (batch, classes >= 2), got {shape}")
    return out


def _one_vector(before: torch.Tensor, after: Any, logits: torch.Tensor, layer: str) -> torch.Tensor:
    """The representation, a row a point; of a head that runs on every token, at the token whose output became the logits."""
    if before.ndim != 3 or not isinstance(after, torch.Tensor):
        return before.flatten(1)
    if after.ndim == 3 and after.shape[::2] == logits.shape:
        gap, at = (after - logits[:, None]).abs().amax(dim=2).min(dim=1)
        if gap.max() <= 1e-4 * (1 + logits.abs().max()):
            return before[torch.arange(len(before), device=before.device), at]
    raise ValueError(
        f"layer: expected {layer!r} to see one vector a point, got shape {tuple(before.shape)}; name another layer"
    )


def extract_features(
    model: nn.Module,
    loader: DataLoader,
    layer: str = "auto",
    device: str = "cpu",
    shards: Path | None = None,
) -> Extracted:
    """One pass in evaluation mode, without gradients, in the data set's order.

    Args:
        model: any classifier whose output is logits, an object with ``.logits`` or a tuple that starts with them.
        loader: read for its data set, batch size and collation; a shuffling loader is read in order all the same.
        layer: see :func:`find_layer`.
        device: where the model runs; it is put back where it was.
        shards: folder to keep finished batches in: an interrupted pass continues from there. What another model, layer or
            data set left in it is not used.

    Raises:
        ValueError: an empty data set; inputs that change between two readings (random augmentation); NaN features; outputs
            that are not one row of logits a point; a layer that sees several vectors a point.
    """
    target = find_layer(model, layer)
    ordered = in_order(loader)
    if len(ordered.dataset) == 0:  # type: ignore[arg-type]
        raise ValueError("loader: expected at least one point, got an empty data set")
    first, second = (split_batch(next(iter(ordered)))[0] for _ in range(2))
    if digest(leaves(first)) != digest(leaves(second)):
        raise ValueError(
            "loader: expected the same inputs on a second reading, got others: switch random augmentation off, features could "
            "not be matched with labels"
        )
    home = next((p.device for p in model.parameters()), torch.device("cpu"))
    folder = None if shards is None else Path(shards) / f"{weights_digest(model)}-{layer}"
    caught: list[tuple[torch.Tensor, Any]] = []
    hook = target.register_forward_hook(lambda _module, args, out: caught.append((args[0], out)))
    features, logits, labels = [], [], []
    try:
        model.to(device)
        with evaluating(model), torch.inference_mode():
            for number, batch in enumerate(progress.track(ordered, "features", len(ordered))):
                inputs, y = split_batch(batch)
                stored = None if folder is None else folder / f"{number:06d}-{digest(leaves(inputs))}.npz"
                if stored is not None and stored.exists():
                    with np.load(stored) as kept:
                        features.append(kept["features"])
                        logits.append(kept["logits"])
                else:
                    caught.clear()
                    out = _run(model, inputs, device)
                    if not caught:
                        raise ValueError(f"layer: expected {layer!r} to run in a forward pass, it did not")
                    features.append(_one_vector(*caught[-1], out, layer).float().cpu().numpy())
                    logits.append(out.float().cpu().numpy())
                    if stored is not None:
                        _write_shard(stored, features[-1], logits[-1])
                if y is not None:
                    labels.append(np.asarray(y.cpu() if isinstance(y, torch.Tensor) else y))
    finally:
        hook.remove()
        model.to(home)
    x, z = np.concatenate(features), np.concatenate(logits)
    for name, values in (("features", x), ("logits", z)):
        if not np.isfinite(values).all():
            wrong = int((~np.isfinite(values)).sum())
            raise ValueError(f"{name}: expected finite numbers, got {wrong} others from the model")
    return Extracted(x, z.argmax(axis=1), np.concatenate(labels) if labels else None, z.shape[1])


def _write_shard(path: Path, features: np.ndarray, logits: np.ndarray) -> None:
    from neurips26.shared.runs import atomic_path

    with atomic_path(path) as temporary:
        np.savez(temporary, features=features, logits=logits)
