"""A small diffusion transformer as the frozen flow: 32x32 coloured, styled, placed faces, and control by sets of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from torch import Tensor

from neurips26.reference_guidance.baselines import RIVALS
from neurips26.reference_guidance.control import Curve
from neurips26.reference_guidance.face_experiments import FACE_TARGETS, attribute_control, faces_and_judges
from neurips26.reference_guidance.flows import MeanFlow, fit_flow
from neurips26.reference_guidance.spg import DiTMean
from neurips26.shared.arrays import check_choice

__all__ = ["DIT_CURVE", "SIDE", "DiTFlow", "dit_control", "dit_flow"]

#: Pixels of a face across.
SIDE = 32
#: Optimiser steps, samples a step, highest learning rate.
STEPS, BATCH, RATE = 2000, 32, 2e-3
#: Points of the strength curve that are drawn.
DIT_CURVE: Curve = [("quadratic", 2.0, "mean"), ("bell", 1.0, "mean")]


class DiTFlow(MeanFlow):
    """A DiT over patches of 4x4 pixels, 64 tokens of a 32x32 image: 1.4 M parameters as it stands.

    Args:
        side: pixels across.
        dim: width.
        depth: blocks.
        heads: of the attention.
        time_dim: width of the time embedding.
    """

    def __init__(self, side: int = SIDE, dim: int = 144, depth: int = 4, heads: int = 4, time_dim: int = 96) -> None:
        super().__init__()
        self.net = DiTMean(3, side, side, 4, dim, depth, heads, time_dim)

    def mean(self, x: Tensor, t: Tensor, prompt: Tensor | None = None) -> Tensor:
        """Endpoint mean at samples ``x`` (b, 3, side, side) and times ``t`` (b,); it knows no prompts."""
        if prompt is not None:
            raise ValueError(f"prompt: expected none, this flow knows no prompts, got {tuple(prompt.shape)}")
        # Sines of t in [0, 1] as it is hardly turn: all but the fastest stay linear in it. Over 100 t they tell times apart
        # from the first steps of a short training on.
        return self.net(x, 100 * t)


@cache
def dit_flow(path: Path, seed: int, steps: int = STEPS) -> DiTFlow:
    """A flow over coloured, styled, placed faces of 30 people, without prompts."""
    images = faces_and_judges(path, SIDE)[0].images
    return fit_flow(DiTFlow, images, steps, seed, batch=BATCH, times="logit-normal", rate=RATE)


def dit_control(path: Path, trained: int, seed: int, name: str, n: int = 32) -> dict[str, dict[str, float]]:
    """One attribute by a bank of 20 that mixes all others, its rivals at the settings chosen on 16x16 faces.

    Args:
        path: the photographs.
        trained: seed of the frozen flow.
        seed: of the bank and of the noise.
        name: tint (red), style (sketch) or layout (left half).
        n: samples a method.
    """
    check_choice(name, "name", FACE_TARGETS)
    _, pool, judges = faces_and_judges(path, SIDE)
    flow, target = dit_flow(path, trained), FACE_TARGETS[name][0]
    return attribute_control(flow, pool, judges[name], name, target, seed, n, RIVALS[name], curve=DIT_CURVE)
