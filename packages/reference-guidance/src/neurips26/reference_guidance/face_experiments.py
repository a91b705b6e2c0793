"""Measurements on real faces: colour, style, structure and identity by small sets of references."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch

from neurips26.reference_guidance.bank import ReferenceBank
from neurips26.reference_guidance.baselines import CHOSEN, RIVALS, Rivals
from neurips26.reference_guidance.control import (
    BANK,
    CURVE,
    Curve,
    average,
    control,
    draw_noise,
    measured,
    pick,
    trusted,
)
from neurips26.reference_guidance.flows import MeanFlow, VectorFlow, train_flow
from neurips26.reference_guidance.metrics import AttributeClassifier, Judge, NearestClassifier, pixels_and_squares
from neurips26.reference_guidance.toys import Split, faces, join, photographs
from neurips26.shared import seeding

__all__ = ["FACE_TARGETS", "attribute_control", "face_control", "faces_and_judges", "identity_control", "mixed_flow"]
__all__ += ["people_and_judge", "people_flow"]


#: Optimiser steps of the two flows.
FACE_STEPS, PEOPLE_STEPS = 2400, 250
#: Mirrored and shifted copies that the flow of plain faces is trained on, the photographs among them. Of 280 photographs as
#: they are it learns each by heart, and then strays from a set it does not know towards one that it does.
COPIES = 6


@cache
def faces_and_judges(path: Path, side: int = 16) -> tuple[Split, Split, dict[str, Judge]]:
    """Faces with attributes: 30 people to train on, photographs 5 to 9 of the other ten for banks, and the judges.

    Tint, style and layout are judged by rules fitted to the 30 people and tested on the other ten. A person is the one
    of the nearest image among photographs 0 to 4 (which no bank holds).
    """
    every = faces(photographs(path, side))
    known, early = every.labels["person"] < 30, torch.arange(len(every)) // 27 % 10 < 5
    train, bank = every.take(known.nonzero().flatten()), every.take((~known & ~early).nonzero().flatten())
    some = pick(torch.arange(len(train)), 1500, 1, "judge")
    judges: dict[str, Judge] = {}
    for name in ("tint", "style", "layout"):
        judges[name] = AttributeClassifier(
            (train.images[some], train.labels[name][some]),
            (bank.images, bank.labels[name]),
            features=pixels_and_squares,
        )
    seen = every.take((~known & early).nonzero().flatten())
    judges["person"] = NearestClassifier((seen.images, seen.labels["person"]), (bank.images, bank.labels["person"]))
    return train, bank, judges


@cache
def mixed_flow(path: Path, seed: int, steps: int = FACE_STEPS) -> VectorFlow:
    """A flow over coloured, styled, placed faces of 30 people."""
    train, _, _ = faces_and_judges(path)
    prompts = torch.stack([train.labels["tint"] + 1, train.labels["style"] + 4, train.labels["layout"] + 7], 1)
    return train_flow(train.images, steps, seed, 512, prompts, batch=64, times="logit-normal")


#: What banks have in common: red, a sketch, the left half; a person is another one at every seed.
FACE_TARGETS = {"tint": (0, 1), "style": (1, 5), "layout": (1, 8)}
FACE_ATTRIBUTES = (*FACE_TARGETS, "person")


def face_control(
    path: Path, trained: int, seed: int, n: int = 64, names: tuple[str, ...] = FACE_ATTRIBUTES,
    curve: Curve | None = None, rivals: Rivals | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Colour (red), style (sketch), structure (left half) and identity by banks of 20 that mix all other attributes.

    Args:
        path: the photographs.
        trained: seed of the frozen flow.
        seed: of banks and noise, and of the person.
        n: samples a method.
        names: attributes.
        curve, rivals: see :func:`control`.
    """
    _, pool, judges = faces_and_judges(path)
    flow = mixed_flow(path, trained)
    out: dict[str, Any] = {}
    wanted: dict[str, tuple[int, int | None]] = {**FACE_TARGETS, "person": (30 + seed % 10, None)}
    for name in names:
        target, prompt = wanted[name]
        how = rivals or RIVALS[name]
        out[name] = attribute_control(flow, pool, judges[name], name, target, seed, n, how, prompt, curve)
    return out


def attribute_control(
    flow: MeanFlow, pool: Split, judge: Judge, name: str, target: int, seed: int, n: int, rivals: Rivals,
    prompt: int | None = None, curve: Curve | None = None,
) -> dict[str, dict[str, float]]:  # fmt: skip
    """Control by a bank of 20 that share one value of one attribute, beside up to 80 other real images that do.

    Args:
        flow: the frozen flow.
        pool: images that it never saw.
        judge: of the attribute.
        name: of the attribute.
        target: the value that the bank shares.
        seed: of bank and noise.
        n: samples a method.
        rivals, prompt, curve: see :func:`control`.
    """
    wanted = pool.where(**{name: target})
    inside = pick(wanted, BANK, seed, name)
    bank, noise = ReferenceBank.from_latents(pool.images[inside]), draw_noise(n, pool.images.shape[1:], seed, name)
    found = control(flow, bank, trusted(judge, name), target, noise, seed, rivals, prompt, curve)
    rest = pick(wanted[~torch.isin(wanted, inside)], 80, seed, name, "rest")
    return found | {"held out": measured(pool.images[rest], judge, target, bank)}


@cache
def people_and_judge(path: Path) -> tuple[Split, Split, AttributeClassifier]:
    """Plain grey faces: seven photographs a person to train on, three unseen ones."""
    grey = photographs(path)
    order = torch.arange(len(grey)) % 10
    train, unseen = grey.take((order < 7).nonzero().flatten()), grey.take((order >= 7).nonzero().flatten())
    judge = AttributeClassifier(
        (train.images, train.labels["person"]), (unseen.images, unseen.labels["person"]), strength=1.0
    )
    return train, unseen, judge


@cache
def people_flow(path: Path, seed: int) -> VectorFlow:
    """A flow over plain faces: seven photographs of each of 40 people."""
    grey = join([photographs(path, copy=c) for c in range(COPIES)])
    known = (torch.arange(len(grey)) % 10 < 7).nonzero().flatten()  # ten photographs a person, in order, in every copy
    return train_flow(grey.images[known], PEOPLE_STEPS, seed, 512)


def identity_control(
    path: Path, trained: int, seed: int, people: int = 20, n: int = 8, curve: Curve | None = None,
    rivals: Rivals | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Identity on plain faces by the three photographs of a person that the flow never saw.

    Args:
        path: the photographs.
        trained: seed of the frozen flow.
        seed: of people and noise.
        people: how many of them, each with a bank of their own.
        n: samples a person.
        curve, rivals: see :func:`control`; the chosen strength is on the curve.
    """
    curve = [*CURVE, ("quadratic", CHOSEN["strength"]["people"], "mean")] if curve is None else curve
    train, unseen, judge = people_and_judge(path)
    trusted(judge, "people")
    flow, shape = people_flow(path, trained), tuple(train.images.shape[1:])
    rows, held = [], []
    for p in seeding.rng(seed, "people").permutation(40)[:people].tolist():
        bank = ReferenceBank.from_latents(unseen.images[unseen.where(person=p)])
        how = rivals or RIVALS["people"]
        rows.append(control(flow, bank, judge, p, draw_noise(n, shape, seed, p), seed + p, how, curve=curve))
        # other real photographs of the person, to the bank; the judge is tested on the unseen ones
        real = train.images[train.where(person=p)]
        held.append({"held out": measured(real, judge, p, bank) | {"rate": judge.rate(bank.latents, p)}})
    return average(rows) | average(held)
