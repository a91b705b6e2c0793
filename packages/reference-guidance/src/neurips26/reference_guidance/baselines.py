"""What guidance by a set is compared with: other ways to draw an attribute from the same frozen flow, and their settings."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from neurips26.reference_guidance.flows import MeanFlow, noise_levels, sample_flow
from neurips26.reference_guidance.metrics import AttributeClassifier

__all__ = ["CHOSEN", "RIVALS", "RIVAL_GRID", "Rivals", "classified", "prompted", "sdedit"]

#: ``v`` at samples and times.
Velocity = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Rivals:
    """Settings of the rivals, each the best of three on a tuning seed of the same data (grids "...-settings").

    Attributes:
        average: strength of latent averaging, on the quadratic schedule.
        sdedit: noise level a reference is brought to.
        classifier: strength of classifier guidance.
        prompt: weight of classifier-free guidance by the prompt.
    """

    average: float
    sdedit: float
    classifier: float = 1.0
    prompt: float = 1.0

    def of(self, method: str) -> dict[str, float]:
        """The setting of a method by its name in a row; empty where it has none."""
        return {
            "latent average": {"strength": self.average}, "SDEdit": {"level": self.sdedit},
            "classifier guidance": {"strength": self.classifier}, "prompt": {"weight": self.prompt},
        }.get(method, {})  # fmt: skip


CHOSEN = tomllib.loads((Path(__file__).parent / "configs" / "chosen.toml").read_text("utf-8"))
RIVALS = {name: Rivals(**values) for name, values in CHOSEN["rivals"].items()}
#: What the tuning grid tries, three settings each.
RIVAL_GRID = (Rivals(1.0, 0.5, 5.0, 1.0), Rivals(2.0, 0.7, 20.0, 2.0), Rivals(4.0, 0.85, 80.0, 4.0))


def sdedit(flow: Velocity, copies: Tensor, noise: Tensor, level: float) -> Tensor:
    """References noised to the level of the solver nearest to the wanted one, then denoised from there."""
    levels = noise_levels(20)
    start = int((levels - level).abs().argmin())
    sigma = float(levels[start])
    return sample_flow(flow, (1 - sigma) * copies + sigma * noise, start=start)


def classified(flow: Velocity, probe: AttributeClassifier, target: int, strength: float) -> Velocity:
    """Classifier guidance: the probe's gradient at the endpoint mean, relative to its size on real images."""

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        v, s = flow(x, t), (1 - t).reshape(-1, *[1] * (x.ndim - 1))
        return v - s * strength / probe.scale * probe.gradient(x - s * v, target)

    return velocity


def prompted(flow: MeanFlow, prompt: int, weight: float) -> Velocity:
    """Classifier-free guidance by the prompt; weight 1 is the prompt alone."""

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        said = torch.full((len(x),), prompt)
        if weight == 1.0:
            return flow(x, t, said)
        return torch.lerp(flow(x, t), flow(x, t, said), weight)

    return velocity
