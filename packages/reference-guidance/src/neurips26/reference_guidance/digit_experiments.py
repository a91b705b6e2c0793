"""Measurements on scikit-learn's digits: control by twenty examples, composition, and the two clocks."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

from neurips26.reference_guidance.bank import ReferenceBank
from neurips26.reference_guidance.baselines import RIVALS, Rivals
from neurips26.reference_guidance.control import (
    BANK,
    TOPK,
    Curve,
    average,
    control,
    draw_noise,
    measured,
    pick,
    settings,
    trusted,
)
from neurips26.reference_guidance.flows import VectorFlow, sample_flow, train_flow
from neurips26.reference_guidance.guidance import ReferenceMeanGuidance
from neurips26.reference_guidance.metrics import AttributeClassifier, copy_distance, spread
from neurips26.reference_guidance.toys import digits, split
from neurips26.shared import seeding

__all__ = ["digit_composition", "digit_control", "digit_flow", "digit_judge", "released_and_true_time"]

#: Steps of the flow over digits; a quick run trains fewer, of a narrower network.
DIGIT_STEPS, QUICK_STEPS, QUICK_WIDTH = 400, 250, 192


@cache
def digit_judge() -> AttributeClassifier:
    """Which digit an image shows."""
    train, test = split(digits(), 0.3, 4)
    return AttributeClassifier((train.images, train.labels["digit"]), (test.images, test.labels["digit"]))


@cache
def digit_flow(seed: int, steps: int = DIGIT_STEPS, width: int = 384) -> VectorFlow:
    """A flow over the training digits."""
    train, _ = split(digits(), 0.3, 4)
    return train_flow(train.images, steps, seed, width, prompts=train.labels["digit"][:, None] + 1)


def digit_control(
    flow: VectorFlow, seed: int, per_class: int = 16, classes: int = 10, curve: Curve | None = None,
    rivals: Rivals | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Control of the digit by banks of 20 test digits, averaged over ``classes`` random classes."""
    judge, (_, test) = trusted(digit_judge(), "digits"), split(digits(), 0.3, 4)
    rows, held = [], []
    for c in _classes(seed, classes):
        pool = test.where(digit=c)
        inside = pick(pool, BANK, seed, c)
        real = test.images[pool[~torch.isin(pool, inside)]]
        bank = ReferenceBank.from_latents(test.images[inside])
        noise = draw_noise(per_class, (1, 8, 8), seed, c)
        row = control(flow, bank, judge, c, noise, seed + c, rivals or RIVALS["digits"], c + 1, curve)
        if curve is None:
            few = bank.subset(list(range(5)))
            sweep = {
                "k = 1": (settings(bank, 2.0, topk=1), 20), "k = 20": (settings(bank, 2.0, topk=None), 20),
                "M = 5": (settings(few, 2.0), 20), "10 steps": (settings(bank, 2.0), 10),
                "40 steps": (settings(bank, 2.0), 40),
            }  # fmt: skip
            for name, (g, steps) in sweep.items():
                x = sample_flow(flow, noise, g, steps)
                row[f"quadratic 2, {name}"] = measured(x, judge, c, bank)
        rows.append(row)
        held.append({"held out": measured(real, judge, c, bank) | {"spread": spread(real[:per_class])}})
    return average(rows) | average(held)


def _classes(seed: int, n: int) -> list[int]:
    return sorted(seeding.rng(seed, "classes").permutation(10)[:n].tolist())


SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


def digit_composition(flow: VectorFlow, seed: int, n: int = 120) -> dict[str, dict[str, float]]:
    """Share of ones among zeros and ones, by the share of ones in a bank of 20.

    Three means: the exact posterior with top 4 ("sum"), the released distance with all ("mean"), the plain average.
    """
    judge, (_, test) = digit_judge(), split(digits(), 0.3, 4)
    zero, one = (ReferenceBank.from_latents(test.images[pick(test.where(digit=c), BANK, seed, c)]) for c in (0, 1))
    noise = draw_noise(n, (1, 8, 8), seed, "composition")
    how: dict[str, dict[str, Any]] = {
        "sum": {"metric": "sum"}, "mean": {"topk": None}, "latent average": {"topk": None, "temperature": 1e12}
    }  # fmt: skip
    out: dict[str, dict[str, float]] = {k: {} for k in how}
    for name, options in how.items():
        for share in SHARES:
            g = settings(zero.mix(one, share), 2.0, **options)
            seen = judge.predict(sample_flow(flow, noise, g))
            ones, zeros = int((seen == 1).sum()), int((seen == 0).sum())
            out[name][f"{share:g}"] = ones / max(1, ones + zeros)
    return out


def released_and_true_time(
    flow: VectorFlow, seed: int, n: int = 24, shift: float = 3.0, classes: int = 10
) -> dict[str, dict[str, float]]:
    """The authors' pink-elephant setting (strength 0.5 quadratic, window .15-.95) on digits under a shifted schedule."""
    judge, (_, test) = digit_judge(), split(digits(), 0.3, 4)
    modes = {"true time": ("in_step", "sigma"), "step fraction": ("in_step", "step_fraction")}
    modes |= {"released": ("released", "step_fraction"), "released first": ("released_first", "step_fraction")}
    found: dict[str, dict[str, list[float]]] = {k: {"rate": [], "copy": []} for k in ["unguided", *modes]}
    for c in _classes(seed, classes):
        bank = ReferenceBank.from_latents(test.images[pick(test.where(digit=c), BANK, seed, c)])
        noise = draw_noise(n, (1, 8, 8), seed, "released", c)
        for name in found:
            g = None
            if name != "unguided":
                mode, time = modes[name]
                g = ReferenceMeanGuidance(bank, 0.5, "quadratic", (0.15, 0.95), TOPK, time=time, mode=mode)
            x = sample_flow(flow, noise, g, shift=shift)
            found[name]["rate"].append(judge.rate(x, c))
            found[name]["copy"].append(copy_distance(x, bank))
    return {k: {m: float(np.mean(v)) for m, v in row.items()} for k, row in found.items()}
