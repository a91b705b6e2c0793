"""Small real and generated data sets with labels by attribute: what the claims are measured on."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits, make_moons
from torch import Tensor

from neurips26.shared import seeding

__all__ = [
    "STYLES",
    "TINTS",
    "cats_and_dogs",
    "digits",
    "faces",
    "join",
    "labelled_moons",
    "moons",
    "photographs",
    "split",
]

TINTS = {"red": (1.0, 0.45, 0.45), "green": (0.45, 1.0, 0.45), "blue": (0.45, 0.45, 1.0)}
STYLES = ("photo", "sketch", "negative")
LAYOUTS = ("full", "left", "right")


@dataclass(frozen=True)
class Split:
    """Images (n, c, h, w) in [-1, 1] with labels (n,) by attribute."""

    images: Tensor
    labels: dict[str, Tensor]

    def __len__(self) -> int:
        return len(self.images)

    def where(self, **wanted: int) -> Tensor:
        """Indices of the images with these attribute values."""
        keep = torch.ones(len(self), dtype=torch.bool)
        for name, value in wanted.items():
            keep &= self.labels[name] == value
        return keep.nonzero().flatten()

    def take(self, index: Tensor) -> Split:
        """A part of it."""
        return Split(self.images[index], {k: v[index] for k, v in self.labels.items()})


def digits() -> Split:
    """scikit-learn's 1,797 handwritten digits, 8x8, from inside its wheel."""
    data = load_digits()
    images = torch.from_numpy(data.images / 8.0 - 1.0).float()[:, None]
    return Split(images, {"digit": torch.from_numpy(data.target).long()})


def split(data: Split, test: float, seed: int) -> tuple[Split, Split]:
    """Random train and test parts."""
    order = torch.from_numpy(seeding.rng(seed, "split").permutation(len(data)))
    cut = round(test * len(data))
    return data.take(order[cut:]), data.take(order[:cut])


def moons(n: int, seed: int) -> Split:
    """Two moons as points (n, 2); label 1 is the lower moon."""
    points, label = make_moons(n, noise=0.05, random_state=seed)
    points = (points - np.array([0.5, 0.25])) / np.array([0.87, 0.5])
    return Split(torch.from_numpy(points).float(), {"moon": torch.from_numpy(label).long()})


def labelled_moons(seed: int) -> Split:
    """The authors' two moons for sparse labels: 500 points with noise 0.08, each axis brought to [-1.2, 1.2]."""
    points, label = make_moons(500, noise=0.08, random_state=seed)
    low, high = points.min(0), points.max(0)
    points = 1.2 * (2 * (points - low) / (high - low) - 1)
    return Split(torch.from_numpy(points).float(), {"moon": torch.from_numpy(label).long()})


def photographs(path: Path, side: int = 16, copy: int = 0) -> Split:
    """The Olivetti faces in grey, averaged down to ``side`` pixels; attribute ``person``.

    ``copy`` 0 is the photographs as they are. Others are to train on: odd ones are mirrored, and from 2 on each photograph
    is shifted at random by up to 3 of its 64 pixels.
    """
    with np.load(path) as file:
        images, person = file["images"], file["identity"]
    factor, size = images.shape[1] // side, images.shape[1]
    x = torch.from_numpy(images.astype(np.float32) / 255.0)[:, None]
    if copy % 2:
        x = x.flip(-1)
    if copy >= 2:
        down, right = torch.from_numpy(seeding.rng(copy, "shift").integers(0, 7, (2, len(x))))
        windows = torch.nn.functional.pad(x, (3, 3, 3, 3), mode="replicate").unfold(2, size, 1).unfold(3, size, 1)
        x = windows[torch.arange(len(x)), :, down, right]
    x = torch.nn.functional.avg_pool2d(x, factor)
    return Split(x * 2 - 1, {"person": torch.from_numpy(person.astype(np.int64))})


def join(parts: list[Split]) -> Split:
    """Several sets as one."""
    labels = {k: torch.cat([p.labels[k] for p in parts]) for k in parts[0].labels}
    return Split(torch.cat([p.images for p in parts]), labels)


def cats_and_dogs(path: Path, side: int = 16) -> tuple[Split, Split]:
    """CIFAR-10's cats (0) and dogs (1), averaged down to ``side`` pixels: the training and the test photographs."""
    parts: dict[str, tuple[list[np.ndarray], list[int]]] = {"train": ([], []), "test": ([], [])}
    with zipfile.ZipFile(path) as archive:
        for name in sorted(n for n in archive.namelist() if n.endswith(".jpg")):
            part, species, _ = name.split("/")
            with Image.open(io.BytesIO(archive.read(name))) as image:
                small = image.convert("RGB").resize((side, side), Image.Resampling.BOX)
            parts[part][0].append(np.asarray(small))
            parts[part][1].append(int(species == "dog"))
    found = []
    for images, species in parts.values():
        x = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 127.5 - 1
        found.append(Split(x, {"species": torch.tensor(species)}))
    return found[0], found[1]


def faces(grey: Split) -> Split:
    """Every photograph in 3 tints x 3 styles x 3 layouts: four independent attributes (with ``person``)."""
    x = (grey.images + 1) / 2
    gy, gx = torch.gradient(x, dim=(2, 3))
    sketch = 1 - (3.0 * (gx.square() + gy.square()).sqrt()).clamp(0, 1)
    styled = torch.stack([x, sketch, 1 - x], 1)  # n, style, 1, h, w
    half = torch.nn.functional.avg_pool2d(styled.flatten(0, 1), (1, 2)).unflatten(0, styled.shape[:2])
    blank = torch.zeros_like(half)
    placed = torch.stack([styled, torch.cat([half, blank], -1), torch.cat([blank, half], -1)], 2)
    tint = torch.tensor(list(TINTS.values()))[:, :, None, None]
    images = placed[:, :, :, None] * tint  # n, style, layout, tint, 3, h, w
    n = len(grey)
    style, layout, colour = torch.meshgrid(torch.arange(3), torch.arange(3), torch.arange(3), indexing="ij")
    labels = {k: v.flatten().repeat(n) for k, v in (("style", style), ("layout", layout), ("tint", colour))}
    labels["person"] = grey.labels["person"].repeat_interleave(27)
    return Split(images.flatten(0, 3) * 2 - 1, labels)
