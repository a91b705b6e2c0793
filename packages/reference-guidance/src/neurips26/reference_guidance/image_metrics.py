"""What full-scale runs are measured with: FID, KID, LPIPS diversity, nearest references, CLIP similarity.

Their networks are pretrained. Weights that are not on this machine are fetched only where the caller allows it; else
:class:`WeightsMissing` says which file is wanted, and where.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from neurips26.reference_guidance.images import list_images, to_tensor_range

__all__ = [
    "WeightsMissing",
    "clip_scores",
    "inception_distances",
    "inception_features",
    "lpips_diversity",
    "nearest_in_pixels",
    "random_pairs",
    "read_pixels",
]

#: Where clean-fid gets Inception from.
INCEPTION_URL = "https://nvlabs-fi-cdn.nvidia.com/stylegan2-ada-pytorch/pretrained/metrics/inception-2015-12-05.pt"


class WeightsMissing(ValueError):
    """Pretrained weights are not on this machine and may not, or cannot, be fetched."""


def _batches(items: list[Any], n: int = 16) -> Iterator[list[Any]]:
    for i in range(0, len(items), n):
        yield items[i : i + n]


def _weights(name: str, url: str, download: bool) -> Path:
    """Where torch keeps, or will keep, the file of this address."""
    path = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlparse(url).path).name
    if not path.exists() and not download:
        raise WeightsMissing(f"{name}: expected its weights at {path}; put {url} there, or allow the download")
    return path


# FID and KID ------------------------------------------------------------------------------------------------------------
def inception_features(folder: Path, device: str = "cpu", download: bool = False) -> Tensor:
    """Inception features (n, 2048) of a folder's pictures by name, resized as clean-fid does.

    Raises:
        ImportError: clean-fid is not installed (extra ``eval``).
        WeightsMissing: Inception's weights are not here.
    """
    from cleanfid import fid

    paths, workers = [str(p) for p in list_images(folder)], 8 if device.startswith("cuda") else 0
    found = fid.get_files_features(
        paths, _inception(device, download), num_workers=workers, device=torch.device(device), verbose=False
    )
    return torch.from_numpy(found)


def _inception(device: str, download: bool) -> Any:
    """The network of clean-fid, a TorchScript file, from torch's folder: clean-fid itself would read and write the system's
    temporary folder, where anybody could lay a program in its place."""
    from cleanfid.inception_torchscript import InceptionV3W

    path = _weights("Inception", INCEPTION_URL, download)
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(INCEPTION_URL, str(path))
    except OSError as error:
        raise WeightsMissing(f"Inception: {INCEPTION_URL} could not be fetched ({error})") from error
    return InceptionV3W(str(path.parent), download=False).to(torch.device(device)).eval()


class _AtHand(nn.Module):
    """Features that are computed already, for metrics that ask for a network."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.num_features = features

    def forward(self, x: Tensor) -> Tensor:
        return x


def inception_distances(real: Tensor, fake: Tensor, seed: int = 0) -> dict[str, float]:
    """FID and KID of two sets of Inception features; KID over 100 subsets of at most 1000, as clean-fid does."""
    from torchmetrics.image.fid import FrechetInceptionDistance
    from torchmetrics.image.kid import KernelInceptionDistance

    network, subset = _AtHand(real.shape[1]), min(len(real), len(fake), 1000)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found = {}
        for name, metric in (
            ("FID", FrechetInceptionDistance(feature=network)),
            ("KID", KernelInceptionDistance(feature=network, subsets=100, subset_size=subset)),
        ):
            metric.update(real, real=True)
            metric.update(fake, real=False)
            value = metric.compute()
            found[name] = float(value[0] if isinstance(value, tuple) else value)
    return found


# LPIPS ------------------------------------------------------------------------------------------------------------------
def random_pairs(n: int, pairs: int, seed: int) -> list[tuple[int, int]]:
    """Distinct pairs ``i < j`` of ``n`` items at random; all of them where there are no more than ``pairs``."""
    total = n * (n - 1) // 2
    picked = range(total) if total <= pairs else random.Random(seed).sample(range(total), pairs)
    found = []
    for k in picked:  # pair k of (0, 1), (0, 2), (1, 2), (0, 3), ...
        j = int((1 + (1 + 8 * k) ** 0.5) / 2)
        found.append((k - j * (j - 1) // 2, j))
    return found


@torch.no_grad()
def lpips_diversity(
    folder: Path, device: str = "cpu", pairs: int = 10_000, seed: int = 0, download: bool = False
) -> dict[str, float | int]:
    """Mean LPIPS (AlexNet) between pictures of a folder: 0 where all are the same.

    Raises:
        ImportError: torchvision is not installed (extra ``eval``).
        WeightsMissing: AlexNet's weights are not here.
        ValueError: fewer than two pictures.
    """
    paths = list_images(folder)
    if len(paths) < 2:
        raise ValueError(f"folder: expected at least two pictures in {folder}, got {len(paths)}")
    metric, chosen = _lpips(device, download), random_pairs(len(paths), pairs, seed)
    for batch in _batches(chosen, 32):
        left, right = (read_pixels([paths[pair[side]] for pair in batch]).to(device) for side in (0, 1))
        metric.update(left, right)
    return {"LPIPS diversity": float(metric.compute()), "pairs": len(chosen)}


def _lpips(device: str, download: bool) -> Any:
    """LPIPS of torchmetrics, which carries the weights of its linear layers; torchvision brings AlexNet's."""
    from torchmetrics.image.lpip import LearnedPerceptualImagePatchSimilarity
    from torchvision.models import AlexNet_Weights

    url = AlexNet_Weights.DEFAULT.url
    _weights("LPIPS", url, download)
    try:
        return LearnedPerceptualImagePatchSimilarity(net_type="alex").to(device)
    except OSError as error:
        raise WeightsMissing(f"LPIPS: {url} could not be fetched ({error})") from error


def read_pixels(paths: list[Path]) -> Tensor:
    """Pictures (n, 3, h, w) in [-1, 1]."""
    pictures = []
    for path in paths:
        with Image.open(path) as picture:
            pictures.append(picture.convert("RGB"))
    return torch.from_numpy(to_tensor_range(pictures))


# Nearest pictures and words ---------------------------------------------------------------------------------------------
def nearest_in_pixels(x: Tensor, paths: list[Path]) -> tuple[Tensor, Tensor]:
    """Which picture lies nearest to each of (b, 3, h, w) in [-1, 1], and its root-mean-square distance."""
    least, index = torch.full((len(x),), torch.inf), torch.zeros(len(x), dtype=torch.long)
    for start, batch in enumerate(_batches(paths)):
        distance, best = torch.cdist(x.flatten(1).float(), read_pixels(batch).flatten(1)).min(1)
        index = torch.where(distance < least, best + 16 * start, index)
        least = torch.minimum(distance, least)
    return index, least / x[0].numel() ** 0.5


@torch.no_grad()
def clip_scores(images: list[Image.Image], text: str, model: Any, processor: Any) -> list[float]:
    """Cosine similarity of images and a text under a CLIP of transformers."""
    scores = []
    for batch in _batches(images):
        inputs = processor(text=[text], images=batch, return_tensors="pt", padding=True).to(model.device)
        found = model(**inputs)
        a, b = (v / v.norm(dim=-1, keepdim=True) for v in (found.image_embeds, found.text_embeds))
        scores += (a @ b.T)[:, 0].float().cpu().tolist()
    return [float(s) for s in np.asarray(scores)]
