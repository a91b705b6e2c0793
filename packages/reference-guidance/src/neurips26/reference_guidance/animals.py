"""Cats and dogs: photographs, a judge of the species, a flow over them, and its control by sets of either species."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import torch

from neurips26.reference_guidance.bank import ReferenceBank
from neurips26.reference_guidance.baselines import RIVALS, Rivals
from neurips26.reference_guidance.control import BANK, Curve, average, control, draw_noise, measured, pick
from neurips26.reference_guidance.flows import VectorFlow, train_flow
from neurips26.reference_guidance.metrics import AttributeClassifier, oriented_gradients
from neurips26.reference_guidance.toys import Split, cats_and_dogs

__all__ = ["SPECIES", "animal_control", "animal_flow", "photographs_and_judge"]

SPECIES = ("cat", "dog")
#: Steps of the flow.
ANIMAL_STEPS = 800


@cache
def photographs_and_judge(path: Path) -> tuple[Split, Split, AttributeClassifier]:
    """Training and test photographs, and a judge of the species (far from perfect at 16 pixels: see its accuracy)."""
    train, test = cats_and_dogs(path)
    judge = AttributeClassifier(
        (train.images, train.labels["species"]), (test.images, test.labels["species"]), 1.0, oriented_gradients
    )
    return train, test, judge


@cache
def animal_flow(path: Path, seed: int, steps: int = ANIMAL_STEPS) -> VectorFlow:
    """A flow over cats and dogs."""
    train, _, _ = photographs_and_judge(path)
    return train_flow(train.images, steps, seed, 512, prompts=train.labels["species"][:, None] + 1)


def animal_control(
    path: Path, trained: int, seed: int, sets: int = 3, n: int = 32, curve: Curve | None = None,
    rivals: Rivals | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Sets of 20 test cats against sets of 20 test dogs: how far the share judged a dog moves ("rate").

    For every method the rate is that share under dogs minus that share under cats, so a judge's bias cancels. Real cats
    and dogs give the most a method can reach ("held out").

    Args:
        path: the photographs.
        trained: seed of the frozen flow.
        seed: of sets and noise.
        sets: of each species; which twenty animals a set holds matters more than the noise.
        n: samples a set.
        curve, rivals: see :func:`control`.
    """
    train, test, judge = photographs_and_judge(path)
    flow, shape = animal_flow(path, trained), tuple(train.images.shape[1:])
    sides: list[list[dict[str, Any]]] = [[], []]
    for draw, species in itertools.product(range(sets), (0, 1)):
        pool = test.where(species=species)
        inside = pick(pool, BANK, seed, species, draw)
        bank, noise = ReferenceBank.from_latents(test.images[inside]), draw_noise(n, shape, seed, "animals", draw)
        # the target of the probe is the set's species; the rate counts dogs under both
        how = rivals or RIVALS["animals"]
        row = control(flow, bank, judge, species, noise, seed + draw, how, species + 1, curve)
        x = test.images[pick(pool[~torch.isin(pool, inside)], 200, seed, species, draw, "rest")]
        sides[species].append(row | {"held out": measured(x, judge, species, bank)})
    cats, dogs = (average(rows) for rows in sides)
    out = average([cats, dogs])
    for name, row in out.items():
        row["rate"] = dogs[name]["rate"] + cats[name]["rate"] - 1.0
    return out
