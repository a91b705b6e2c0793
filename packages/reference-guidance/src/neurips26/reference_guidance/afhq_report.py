"""What the AFHQv2 runs are judged by: FID and KID, LPIPS diversity, and the nearest references of a few samples.

Pictures of a set are compared with the decoded photographs of that set, as the authors do. A measure whose network is not
at hand is left out, with the reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neurips26.reference_guidance.bank import ReferenceBank
from neurips26.reference_guidance.image_metrics import (
    WeightsMissing,
    inception_distances,
    inception_features,
    lpips_diversity,
    nearest_in_pixels,
    read_pixels,
)
from neurips26.reference_guidance.images import list_images

__all__ = ["SHOWN", "measures", "nearest_sheet", "rows_of"]

#: Samples shown beside their nearest references (the authors' number).
SHOWN = 8


def rows_of(bank: ReferenceBank, among: ReferenceBank) -> list[int]:
    """Where the references of a set stand in the whole bank, by species and file name."""
    place = {key: i for i, key in enumerate(zip(among.labels, among.names))}
    return [place[key] for key in zip(bank.labels, bank.names)]


def measures(
    pictures: dict[str, Path], photographs: Path, rows: dict[str, list[int]], device: str, download: bool
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """FID, KID and LPIPS diversity by set, and the Inception features they were computed from.

    Args:
        pictures: folder of the pictures of each set.
        photographs: folder of all decoded photographs.
        rows: which of them each set holds.
        device: of the networks.
        download: fetch missing weights.
    """
    found: dict[str, Any] = {label: {} for label in pictures}
    missing: dict[str, str] = {}
    features: dict[str, Tensor] = {}
    try:
        features = {"photographs": inception_features(photographs, device, download)}
        for label, folder in pictures.items():
            features[label] = inception_features(folder, device, download)
            found[label] |= inception_distances(features["photographs"][rows[label]], features[label])
    except (ImportError, WeightsMissing) as error:
        missing["FID and KID"] = str(error)
    try:
        for label, folder in pictures.items():
            found[label] |= lpips_diversity(folder, device, download=download)
    except (ImportError, WeightsMissing) as error:
        missing["LPIPS diversity"] = str(error)
    return found | ({"not measured": missing} if missing else {}), features


def nearest_sheet(
    path: Path, latents: Tensor, folder: Path, bank: ReferenceBank, photographs: list[Path],
    features: tuple[Tensor, Tensor] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The first samples of a set beside its nearest references: in latents, in pixels and, where given, in features.

    Args:
        path: of the picture.
        latents: of the first samples.
        folder: of the pictures of all samples.
        bank: the set.
        photographs: decoded photographs of the set, in the order of ``bank``.
        features: of the samples and of the photographs.

    Returns:
        by space the nearest reference of each sample and the mean distance to it.
    """
    from neurips26.reference_guidance.pictures import contact_sheet  # loads plotting

    samples = read_pixels(list_images(folder)[: len(latents)])
    nearest = {"latents": bank.nearest(latents.float()), "pixels": nearest_in_pixels(samples, photographs)}
    if features is not None:
        distance, index = torch.cdist(features[0][: len(latents)].double(), features[1].double()).min(1)
        nearest["Inception features"] = (index, distance)
    sheet = [("sample", samples)]
    for space, (index, _) in nearest.items():
        sheet.append((f"nearest in {space}", read_pixels([photographs[i] for i in index.tolist()])))
    contact_sheet(path, sheet, "samples and their nearest references")
    return {
        space: {"nearest": [bank.names[i] for i in index.tolist()], "distance": float(distance.mean())}
        for space, (index, distance) in nearest.items()
    }
