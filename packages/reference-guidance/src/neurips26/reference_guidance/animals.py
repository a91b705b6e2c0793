"""Cats and dogs at 16x16: photographs, a judge of the species, a flow over them, and its control by sets of a species."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import torch

from neurips26.reference_guidance.bank import ReferenceBank
from neurips26.reference_guidance.baselines import RIVALS, Rivals
from neurips26.reference_guidance.control import BANK, Curve, average, control, draw_noise, measured, pick
from neurips26.reference_guidance.conv_judge import ConvJudge
from neurips26.reference_guidance.flows import MeanFlow, VectorFlow, train_flow
from neurips26.reference_guidance.metrics import AttributeClassifier, Judge, oriented_gradients
from neurips26.reference_guidance.toys import Split, cats_and_dogs

__all__ = ["SPECIES", "animal_control", "animal_flow", "photographs_and_judge", "probe", "species_control"]

SPECIES = ("cat", "dog")
#: Of the training photographs, those with this remainder by two are the flow's.
FLOW_PART = 1
#: Steps of the flow.
ANIMAL_STEPS = 800


@cache
def photographs_and_judge(path: Path) -> tuple[Split, Split, ConvJudge]:
    """Photographs for the flow, others for sets and for comparison, and a judge of the species.

    Of the 4,000 training photographs every second one is the judge's and the others are the flow's, so that the judge
    knows none that a sample could be a copy of; the 1,000 test photographs tell its accuracy.
    """
    train, test = cats_and_dogs(path)
    order = torch.arange(len(train))
    flow, judged = (train.take((order % 2 == part).nonzero().flatten()) for part in (FLOW_PART, 1 - FLOW_PART))
    judge = ConvJudge((judged.images, judged.labels["species"]), (test.images, test.labels["species"]))
    return flow, test, judge


@cache
def probe(path: Path) -> AttributeClassifier:
    """What classifier guidance follows: a linear rule on gradients, fitted to the flow's photographs."""
    train, test, _ = photographs_and_judge(path)
    known, unseen = ((part.images, part.labels["species"]) for part in (train, test))
    return AttributeClassifier(known, unseen, 1.0, oriented_gradients)


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
    _, test, judge = photographs_and_judge(path)
    how = rivals or RIVALS["animals"]
    return species_control(animal_flow(path, trained), test, judge, seed, how, sets, n, curve, probe(path))


def species_control(
    flow: MeanFlow, test: Split, judge: Judge, seed: int, rivals: Rivals, sets: int, n: int, curve: Curve | None = None,
    probe: AttributeClassifier | None = None,
) -> dict[str, Any]:  # fmt: skip
    """See :func:`animal_control`; ``flow`` takes prompts (species + 1) where there is a ``probe``.

    Args:
        flow: the frozen flow over images or latents like those of ``test``.
        test: what sets are made of, and real ones to compare with.
        judge: of the species.
        seed, rivals, sets, n, curve, probe: see :func:`animal_control` and :func:`control`.
    """
    shape = tuple(test.images.shape[1:])
    sides: list[list[dict[str, Any]]] = [[], []]
    for draw, species in itertools.product(range(sets), (0, 1)):
        pool = test.where(species=species)
        inside = pick(pool, BANK, seed, species, draw)
        bank, noise = ReferenceBank.from_latents(test.images[inside]), draw_noise(n, shape, seed, "animals", draw)
        # the target of the probe is the set's species; the rate counts dogs under both
        said = None if probe is None else species + 1
        row = control(flow, bank, judge, species, noise, seed + draw, rivals, said, curve, probe)
        x = test.images[pick(pool[~torch.isin(pool, inside)], 200, seed, species, draw, "rest")]
        sides[species].append(row | {"held out": measured(x, judge, species, bank)})
    cats, dogs = (average(rows) for rows in sides)
    out = average([cats, dogs])
    for name, row in out.items():
        row["rate"] = dogs[name]["rate"] + cats[name]["rate"] - 1.0
    return out
