"""Small real and generated data, and small flows trained on them: what the claims are measured with on a CPU."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.models.embeddings import get_timestep_embedding
from PIL import Image
from sklearn.datasets import load_digits, make_moons
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from neurips26.reference_guidance.guidance import ReferenceMeanGuidance
from neurips26.reference_guidance.schedulers import guided_scheduler
from neurips26.shared import seeding

__all__ = [
    "STYLES",
    "TINTS",
    "VectorFlow",
    "cats_and_dogs",
    "digits",
    "faces",
    "labelled_moons",
    "moons",
    "noise_levels",
    "photographs",
    "sample_flow",
    "split",
    "train_flow",
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


def photographs(path: Path, side: int = 16) -> Split:
    """The Olivetti faces in grey, averaged down to ``side`` pixels; attribute ``person``."""
    with np.load(path) as file:
        images, person = file["images"], file["identity"]
    factor = images.shape[1] // side
    x = torch.from_numpy(images.astype(np.float32) / 255.0)
    x = torch.nn.functional.avg_pool2d(x[:, None], factor)
    return Split(x * 2 - 1, {"person": torch.from_numpy(person.astype(np.int64))})


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


#: The flow is trained at noise levels from this one up. Of the levels of 20 steps (1 to 0.054, then 0.001) only the last
#: lies below it.
LOWEST_SIGMA = 0.05


class VectorFlow(nn.Module):
    """A residual network over flattened images that predicts the endpoint mean ``mu``, handed out as ``v = (x - mu) / sigma``.

    To predict diffusers' ``v = noise - data`` itself, a network would have to carry all the noise of its input through its
    width; where that is smaller than the image, noise stays in the samples. ``prompt`` 0 is "no prompt"; other values
    stand for a label in words.
    """

    def __init__(self, shape: tuple[int, ...], width: int = 512, depth: int = 3, prompts: int = 1) -> None:
        super().__init__()
        self.shape = shape
        d = int(np.prod(shape))
        self.inside, self.outside = nn.Linear(d, width), nn.Linear(width, d)
        self.time = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width))
        self.prompt = nn.Embedding(prompts, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
            for _ in range(depth)
        )
        nn.init.zeros_(self.outside.weight)

    def mean(self, x: Tensor, t: Tensor, prompt: Tensor | None = None) -> Tensor:
        """Endpoint mean at samples ``x`` and times ``t`` from noise (0) to data (1)."""
        prompt = torch.zeros(len(x), dtype=torch.long) if prompt is None else prompt
        c = self.time(get_timestep_embedding(t * 100, 64)) + self.prompt(prompt)
        h = self.inside(x.flatten(1))
        for block in self.blocks:
            h = h + block(h + c)
        return self.outside(h).reshape(x.shape)

    def forward(self, x: Tensor, t: Tensor, prompt: Tensor | None = None) -> Tensor:
        """``v`` at samples ``x`` and times ``t``."""
        sigma = (1 - t).clamp_min(LOWEST_SIGMA).reshape(-1, *[1] * (x.ndim - 1))
        return (x - self.mean(x, t, prompt)) / sigma


def _warmed_up(average: Tensor, new: Tensor, count: Tensor | int) -> Tensor:
    """An exponential average (decay 0.995) that follows closely at first."""
    return torch.lerp(average, new, max(0.005, (1 + int(count)) ** -0.75))


def train_flow(
    images: Tensor, steps: int, seed: int, width: int = 512, prompts: Tensor | None = None, batch: int = 256,
    report: Callable[[int], object] | None = None,
) -> VectorFlow:  # fmt: skip
    """A frozen base flow: rectified flow matching with AdamW, cosine rate and a warmed-up weight average.

    Args:
        images: training set.
        steps: optimiser steps.
        seed: of weights, batches and noise.
        width: of the network.
        prompts: labels in words, (n, k) with one of k columns revealed at random, or nothing, at each step.
        batch: samples a step.
        report: called after each step.
    """
    g = torch.Generator().manual_seed(seeding.derive(seed, "flow") % 2**62)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = VectorFlow(tuple(images.shape[1:]), width, prompts=1 if prompts is None else int(prompts.max()) + 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4, fused=True)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)
    ema = AveragedModel(model, avg_fn=_warmed_up)
    for step in range(steps):
        index = torch.randint(len(images), (batch,), generator=g)
        x1, x0 = images[index], torch.randn(batch, *images.shape[1:], generator=g)
        t = (1 - LOWEST_SIGMA) * torch.rand(batch, generator=g)
        w = t.reshape(-1, *[1] * (x1.ndim - 1))
        said = None
        if prompts is not None:
            column = torch.randint(prompts.shape[1], (batch,), generator=g)
            said = prompts[index, column] * (torch.rand(batch, generator=g) < 0.5)
        # the loss in v, its weight 1 / sigma^2 capped: early steps, in which attributes are chosen, count as well
        loss = ((model.mean((1 - w) * x0 + w * x1, t, said) - x1) / (1 - w).clamp_min(0.3)).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        rate.step()
        ema.update_parameters(model)
        if report is not None:
            report(step + 1)
    return ema.module.eval().requires_grad_(False)


def noise_levels(steps: int, shift: float = 1.0) -> Tensor:
    """Noise levels at which diffusers' Euler scheduler takes its steps, with the 0 it ends at."""
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(steps)
    return scheduler.sigmas


@torch.no_grad()
def sample_flow(
    velocity: Callable[[Tensor, Tensor], Tensor],
    noise: Tensor,
    guidance: ReferenceMeanGuidance | None = None,
    steps: int = 20,
    shift: float = 1.0,
    start: int = 0,
) -> Tensor:
    """Samples of a flow through diffusers' Euler scheduler, guided as a pipeline is.

    Args:
        velocity: ``v`` at (x, t).
        noise: starting points.
        guidance: reference guidance, or none.
        steps: solver steps.
        shift: of the noise schedule.
        start: first step; later than 0 the input is ``noise`` mixed with an image already (SDEdit).
    """
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(steps)
    scheduler.set_begin_index(start)
    if guidance is not None:
        scheduler = guided_scheduler(scheduler, guidance)
    x = noise
    for index in range(start, steps):
        t = torch.full((len(x),), 1.0 - float(scheduler.sigmas[index]))
        x = scheduler.step(velocity(x, t), scheduler.timesteps[index], x, return_dict=False)[0]
    return x
