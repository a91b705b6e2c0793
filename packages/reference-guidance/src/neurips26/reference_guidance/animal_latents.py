"""Cats and dogs as latents of a pretrained network: the photographs, their judge, and control of a flow over latents."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neurips26.reference_guidance.animals import FLOW_PART, photographs_and_judge, species_control
from neurips26.reference_guidance.baselines import RIVALS, Rivals
from neurips26.reference_guidance.control import Curve
from neurips26.reference_guidance.flows import MeanFlow
from neurips26.reference_guidance.latents import FeatureLatents
from neurips26.reference_guidance.metrics import Judge
from neurips26.reference_guidance.spg import DiTMean
from neurips26.reference_guidance.toys import Split, cats_and_dogs, join

__all__ = ["FrozenMean", "LatentAnimals", "PictureJudge", "latent_animals", "latent_control"]


@dataclass(eq=False)
class PictureJudge:
    """A judge of pictures, asked about latents.

    Attributes:
        judge: of pictures.
        latents: makes the pictures.
        accuracy: on pictures made of latents of photographs that neither was fitted to.
    """

    judge: Judge
    latents: FeatureLatents
    accuracy: float

    def predict(self, x: Tensor) -> Tensor:
        """Classes of latents (n, 32, 8, 8)."""
        return self.judge.predict(self.latents.decode(x))

    def rate(self, x: Tensor, target: Tensor | int) -> float:
        """Share of latents whose picture is classified as ``target``."""
        return float((self.predict(x) == target).double().mean())


@dataclass(frozen=True, eq=False)
class LatentAnimals:
    """What the rows in latents share.

    Attributes:
        latents: between pictures and latents; fitted to the photographs below.
        train: latents of the flow's 2,000 photographs and of their mirror images.
        test: latents of the 1,000 test photographs.
        judge: of the species.
        features: features of the judge, of pictures.
    """

    latents: FeatureLatents
    train: Split
    test: Split
    judge: PictureJudge
    features: torch.nn.Module


@cache
def latent_animals(path: Path) -> LatentAnimals:
    """Photographs at 32x32; the judge of the species is the one of the rows in pixels, fitted to other photographs."""
    train, test = cats_and_dogs(path, 32)
    own = train.take((torch.arange(len(train)) % 2 == FLOW_PART).nonzero().flatten())
    both = join([own, Split(own.images.flip(3), own.labels)])
    latents = FeatureLatents(both.images)
    judge = photographs_and_judge(path)[2]
    unseen = Split(latents.encode(test.images), test.labels)
    right = judge.predict(latents.decode(unseen.images)) == test.labels["species"]
    asked = PictureJudge(judge, latents, float(right.double().mean()))
    return LatentAnimals(latents, Split(latents.fitted, both.labels), unseen, asked, judge.body)


class FrozenMean(MeanFlow):
    """A trained :class:`DiTMean` as a frozen flow."""

    def __init__(self, model: DiTMean) -> None:
        super().__init__()
        self.model = model

    def mean(self, x: Tensor, t: Tensor, prompt: Tensor | None = None) -> Tensor:
        """Endpoint mean at samples ``x`` (b, 32, 8, 8) and times ``t`` (b,)."""
        return self.model(x, t)


def latent_control(
    path: Path, model: DiTMean, seed: int, sets: int = 3, n: int = 32, curve: Curve | None = None,
    rivals: Rivals | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Sets of 20 cats against sets of 20 dogs on a frozen DiT over latents; see :func:`animals.animal_control`."""
    animals, how = latent_animals(path), rivals or RIVALS["animal-latents"]
    return species_control(FrozenMean(model), animals.test, animals.judge, seed, how, sets, n, curve)
