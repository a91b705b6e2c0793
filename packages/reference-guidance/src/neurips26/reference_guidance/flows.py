"""Small frozen flows: a network that predicts the endpoint mean, its training, and sampling as a pipeline samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.models.embeddings import get_timestep_embedding
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from neurips26.reference_guidance.guidance import ReferenceMeanGuidance
from neurips26.reference_guidance.schedulers import guided_scheduler
from neurips26.shared import seeding
from neurips26.shared.arrays import check_choice, check_real

__all__ = ["MeanFlow", "VectorFlow", "fit_flow", "noise_levels", "sample_flow", "train_flow"]

#: The flow is trained at noise levels from this one up. Of the levels of 20 steps (1 to 0.054, then 0.001) only the last
#: lies below it.
LOWEST_SIGMA = 0.05


class MeanFlow(nn.Module):
    """A network that predicts the endpoint mean ``mu``, handed out as ``v = (x - mu) / sigma``.

    To predict diffusers' ``v = noise - data`` itself, a network would have to carry all the noise of its input through its
    width; where that is smaller than the image, noise stays in the samples.
    """

    def mean(self, x: Tensor, t: Tensor, prompt: Tensor | None = None) -> Tensor:
        """Endpoint mean at samples ``x`` and times ``t`` from noise (0) to data (1)."""
        raise NotImplementedError

    def forward(self, x: Tensor, t: Tensor, prompt: Tensor | None = None) -> Tensor:
        """``v`` at samples ``x`` and times ``t``."""
        sigma = (1 - t).clamp_min(LOWEST_SIGMA).reshape(-1, *[1] * (x.ndim - 1))
        return (x - self.mean(x, t, prompt)) / sigma


Flow = TypeVar("Flow", bound=MeanFlow)


class VectorFlow(MeanFlow):
    """A residual network over flattened images; ``prompt`` 0 is "no prompt", other values stand for a label in words."""

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


def _warmed_up(average: Tensor, new: Tensor, count: Tensor | int) -> Tensor:
    """An exponential average (decay 0.995) that follows closely at first."""
    return torch.lerp(average, new, max(0.005, (1 + int(count)) ** -0.75))


def train_flow(
    images: Tensor, steps: int, seed: int, width: int = 512, prompts: Tensor | None = None, batch: int = 256,
    times: str = "uniform",
) -> VectorFlow:  # fmt: skip
    """A frozen residual network of this width over the images; see :func:`fit_flow`."""
    said = 1 if prompts is None else int(prompts.max()) + 1
    return fit_flow(
        lambda: VectorFlow(tuple(images.shape[1:]), width, prompts=said), images, steps, seed, prompts, batch, times
    )


def fit_flow(
    build: Callable[[], Flow], images: Tensor, steps: int, seed: int, prompts: Tensor | None = None, batch: int = 256,
    times: str = "uniform", rate: float = 2e-3,
) -> Flow:  # fmt: skip
    """A frozen base flow: rectified flow matching with AdamW, cosine rate and a warmed-up weight average.

    Args:
        build: makes the network, its weights drawn from torch's generator.
        images: training set (n, *shape).
        steps: optimiser steps.
        seed: of weights, batches and noise.
        prompts: labels in words, (n, k) with one of k columns revealed at random, or nothing, at each step.
        batch: samples a step.
        times: "uniform", or "logit-normal" (as Stable Diffusion 3 is trained): more of the middle, where a sample decides
            what it shows.
        rate: highest learning rate.
    """
    check_choice(times, "times", ("uniform", "logit-normal"))
    check_real(rate, "rate", minimum=0, inclusive=False)
    g = torch.Generator().manual_seed(seeding.derive(seed, "flow") % 2**62)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=1e-4, fused=True)
    cosine = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
    ema = AveragedModel(model, avg_fn=_warmed_up)
    for _ in range(steps):
        index = torch.randint(len(images), (batch,), generator=g)
        x1, x0 = images[index], torch.randn(batch, *images.shape[1:], generator=g)
        if times == "uniform":
            t = torch.rand(batch, generator=g)
        else:
            t = (torch.randn(batch, generator=g) - 0.3).sigmoid()
        t = (1 - LOWEST_SIGMA) * t
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
        cosine.step()
        ema.update_parameters(model)
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
