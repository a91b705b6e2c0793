"""A pretrained model as a frozen encoder of images or sentences, for the command line and for quick looks.

``timm:NAME`` reads a folder of images with one folder a class, ``hf:NAME_OR_FOLDER`` such a folder or a CSV file with the
columns ``text`` and ``label``. Weights come from where timm or transformers keeps them, or from a local file or folder.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from neurips26.shared import progress
from neurips26.shared.arrays import check_int

__all__ = ["embed", "read_items"]

_IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


def read_items(path: str | Path, *, labelled: bool = True) -> tuple[list[Any], np.ndarray | None]:
    """Image files (paths) or sentences (text) in a fixed order, and their labels.

    Args:
        path: a folder of images, one folder a class (any depth where ``labelled`` is off), or a CSV file with a column
            ``text`` and, where ``labelled``, a column ``label``.
        labelled: whether labels are read.

    Raises:
        ValueError: no such path, no images, missing columns.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(f for f in path.rglob("*") if f.suffix.lower() in _IMAGES)
        if not files:
            raise ValueError(f"data: expected images ({', '.join(_IMAGES)}) under {path}, got none")
        if not labelled:
            return files, None
        loose = [f for f in files if f.parent == path]
        if loose:
            raise ValueError(f"data: expected one folder a class under {path}, got {loose[0].name} beside them")
        return files, np.array([f.relative_to(path).parts[0] for f in files])
    if not path.is_file():
        raise ValueError(f"data: expected a folder of images or a CSV file, got {str(path)!r}, which does not exist")
    with open(path, newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    columns = ("text", "label") if labelled else ("text",)
    if not rows or not set(columns) <= set(rows[0]):
        raise ValueError(
            f"data: expected columns {', '.join(columns)} in {path.name}, got {', '.join(rows[0]) if rows else 'no rows'}"
        )
    return [r["text"] for r in rows], np.array([r["label"] for r in rows]) if labelled else None


def embed(
    spec: str, items: list[Any], *, weights: str | Path | None = None, device: str = "cpu", batch: int = 64
) -> Float[np.ndarray, "n d"]:
    """Features of the items, a row each, by a pretrained model that is not trained further.

    Args:
        spec: ``timm:NAME``, or ``hf:NAME`` where the name may be a local folder.
        items: image paths or sentences.
        weights: a local file of weights for a timm model, in place of the published ones.
        device: torch device.
        batch: items a pass.

    Raises:
        ValueError: another kind of ``spec``; sentences for a timm model; a model that is not known or cannot be had.
        ImportError: the extra ``vision`` or ``text`` is missing.
    """
    check_int(batch, "batch", minimum=1)
    kind, _, name = spec.partition(":")
    images = bool(items) and isinstance(items[0], Path)
    if kind not in ("timm", "hf") or not name:
        raise ValueError(f"model: expected timm:NAME or hf:NAME, got {spec!r}")
    if kind == "timm" and not images:
        raise ValueError(f"data: expected a folder of images for {spec}, got sentences")
    if kind == "hf" and weights is not None:
        raise ValueError(f"weights: expected none beside {spec} (name a local folder instead), got {str(weights)!r}")
    make = _timm if kind == "timm" else _hf_images if images else _hf_text
    try:
        run = make(name, weights, device)
    except ImportError as error:
        extra = "vision" if images else "text"
        raise ImportError(
            f"model: expected the extra {extra!r} for {spec} (neurips26-knn-certificate[{extra}])"
        ) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"model: expected weights that {kind} finds, got {spec} ({str(error).splitlines()[0]})"
        ) from error
    out = []
    with torch.inference_mode():
        starts = range(0, len(items), batch)
        for start in progress.track(starts, f"features of {name}", len(starts)):
            out.append(run(items[start : start + batch]).float().cpu().numpy())
    return np.concatenate(out)


def _open(files: list[Path]) -> list[Any]:
    from PIL import Image

    opened = []
    for file in files:
        try:
            with Image.open(file) as image:
                opened.append(image.convert("RGB"))
        except OSError as error:
            raise ValueError(f"data: expected an image, got {file} ({error})") from error
    return opened


def _timm(name: str, weights: str | Path | None, device: str) -> Callable[[list[Any]], torch.Tensor]:
    import timm
    from timm.data.config import resolve_model_data_config
    from timm.data.transforms_factory import create_transform

    local: dict[str, Any] = {} if weights is None else {"pretrained_cfg_overlay": {"file": str(weights)}}
    model = timm.create_model(name, pretrained=True, num_classes=0, **local).eval().to(device)
    transform: Any = create_transform(**resolve_model_data_config(model), is_training=False)
    return lambda files: model(torch.stack([transform(image) for image in _open(files)]).to(device))


def _hf_images(name: str, weights: Any, device: str) -> Callable[[list[Any]], torch.Tensor]:
    from transformers import AutoImageProcessor, AutoModel

    processor, model = AutoImageProcessor.from_pretrained(name), AutoModel.from_pretrained(name).eval().to(device)

    def run(files: list[Any]) -> torch.Tensor:
        out = model(**processor(images=_open(files), return_tensors="pt").to(device))
        return out.last_hidden_state[:, 0]  # the class token

    return run


def _hf_text(name: str, weights: Any, device: str) -> Callable[[list[Any]], torch.Tensor]:
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(name), AutoModel.from_pretrained(name).eval().to(device)

    def run(sentences: list[Any]) -> torch.Tensor:
        tokens = tokenizer(sentences, padding=True, truncation=True, max_length=128, return_tensors="pt").to(device)
        mask = tokens["attention_mask"][:, :, None]
        hidden = model(**tokens).last_hidden_state
        return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)

    return run
