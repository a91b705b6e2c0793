"""Measuring control: how far a frozen flow follows a set, over a curve of strengths and beside the rivals."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neurips26.reference_guidance.bank import ReferenceBank
from neurips26.reference_guidance.baselines import RIVAL_GRID, Rivals, classified, prompted, sdedit
from neurips26.reference_guidance.flows import MeanFlow, sample_flow
from neurips26.reference_guidance.guidance import ExtrapolationWarning, ReferenceMeanGuidance
from neurips26.reference_guidance.metrics import AttributeClassifier, Judge, copy_distance, spread
from neurips26.shared import seeding

__all__ = ["BANK", "CURVE", "SHORT_CURVE", "STRENGTH_GRID", "TOPK", "Curve", "average", "control", "draw_noise"]
__all__ += ["measured", "pick", "setting", "settings", "settings_grid", "strength_of", "trusted"]

#: References in a bank and references kept at each step (the authors' M and k).
BANK, TOPK = 20, 4
#: Points of the strength curve: schedule, strength, metric.
Curve = list[tuple[str, float, str]]
#: Strength curves reported for every control claim.
CURVE: Curve = [
    ("quadratic", 0.5, "mean"), ("quadratic", 1.0, "mean"), ("quadratic", 1.5, "mean"), ("quadratic", 2.0, "mean"),
    ("bell", 0.5, "mean"), ("bell", 1.0, "mean"), ("constant", 0.5, "mean"), ("quadratic", 2.0, "sum"),
]  # fmt: skip
#: The points of the curve that a quick run draws.
SHORT_CURVE: Curve = [("quadratic", 1.0, "mean"), ("quadratic", 2.0, "mean"), ("bell", 0.5, "mean")]
#: Strengths of ours that the tuning grid tries, on the quadratic schedule.
STRENGTH_GRID = (1.0, 2.0, 4.0)


def draw_noise(n: int, shape: tuple[int, ...], seed: int, *names: object) -> Tensor:
    """``n`` starting points, a stream of their own for every name."""
    return torch.from_numpy(seeding.rng(seed, "noise", *names).standard_normal((n, *shape)).astype(np.float32))


def pick(index: Tensor, n: int, seed: int, *names: object) -> Tensor:
    """``n`` of the indices at random, none twice."""
    return index[torch.from_numpy(seeding.rng(seed, "bank", *names).permutation(len(index))[:n])]


def settings(
    bank: ReferenceBank, strength: float, schedule: str = "quadratic", **options: Any
) -> ReferenceMeanGuidance:
    """Guidance over the whole time with the authors' top 4; the strengths measured here extrapolate on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExtrapolationWarning)
        return ReferenceMeanGuidance(bank, strength, schedule, **{"topk": TOPK, "window": (0.0, 1.0)} | options)


def trusted(judge: Judge, name: str) -> Judge:
    """A judge that is right on more than nine of ten images it was not fitted to (the digits, faces and people).

    Raises:
        RuntimeError: it is not; what it says of samples would mean little.
    """
    if judge.accuracy <= 0.9:
        raise RuntimeError(f"judge of {name}: expected an accuracy above 0.9, got {judge.accuracy:.3f}")
    return judge


def setting(schedule: str, strength: float, metric: str) -> str:
    """Name of a point of the curve."""
    return f"{schedule} {strength:g}" + (" (sum)" if metric == "sum" else "")


def strength_of(name: str) -> float | None:
    """Strength of a point of the curve by its name; ``None`` for what is no such point."""
    number = name.partition(" ")[2].removesuffix(" (sum)")
    return float(number) if number.replace(".", "", 1).isdigit() else None


def measured(x: Tensor, judge: Judge, target: int, bank: ReferenceBank) -> dict[str, float]:
    """Rate of the attribute, distance to the nearest reference, spread."""
    return {"rate": judge.rate(x, target), "copy": copy_distance(x, bank), "spread": spread(x)}


def control(
    flow: MeanFlow, bank: ReferenceBank, judge: Judge, target: int, noise: Tensor, seed: int,
    rivals: Rivals, prompt: int | None = None, curve: Curve | None = None, probe: AttributeClassifier | None = None,
) -> dict[str, dict[str, float]]:  # fmt: skip
    """Rate of the attribute, copy distance and spread: unguided, over the strength curve, and for the rivals.

    Args:
        flow: the frozen flow.
        bank: the references.
        judge: of the attribute.
        target: the wanted class.
        noise: starting points, the same for every method.
        seed: of the references that are copied or noised.
        rivals: settings of the rivals.
        prompt: the attribute in words, where the flow knows prompts.
        curve: points of the strength curve; all of ``CURVE`` by default.
        probe: what classifier guidance follows; by default the judge itself, where it is an :class:`AttributeClassifier`.
    """
    probe = judge if probe is None and isinstance(judge, AttributeClassifier) else probe

    def guided(**options: Any) -> Tensor:
        return sample_flow(flow, noise, settings(bank, **options))

    found = {"unguided": sample_flow(flow, noise)}
    for schedule, strength, metric in CURVE if curve is None else curve:
        found[setting(schedule, strength, metric)] = guided(strength=strength, schedule=schedule, metric=metric)
    # averaging latents: the plain mean of the bank in place of the posterior mean
    found["latent average"] = guided(strength=rivals.average, temperature=1e12, topk=None)
    rng = seeding.rng(seed, "rivals")
    copies = bank.latents[torch.from_numpy(rng.integers(len(bank), size=len(noise)))]
    found["copy of a reference"] = copies
    found["SDEdit"] = sdedit(flow, copies, noise, rivals.sdedit)
    if probe is not None:
        found["classifier guidance"] = sample_flow(classified(flow, probe, target, rivals.classifier), noise)
    if prompt is not None:
        found["prompt"] = sample_flow(prompted(flow, prompt, rivals.prompt), noise)
    return {name: measured(x, judge, target, bank) for name, x in found.items()}


def average(rows: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Every metric of every method, averaged over rows of :func:`control`."""
    return {k: {m: float(np.mean([r[k][m] for r in rows])) for m in rows[0][k]} for k in rows[0]}


def settings_grid(
    measure: Callable[[Curve, Rivals], dict[str, Any]], strengths: tuple[float, ...] = STRENGTH_GRID
) -> dict[str, dict[str, Any]]:
    """Three settings of every method; by number of the setting and method: rate, copy distance, spread.

    Args:
        measure: a control experiment, given a strength curve of one point and the settings of the rivals.
        strengths: of ours, one a setting of the rivals.
    """
    found = {}
    for i, rivals in enumerate(RIVAL_GRID):
        curve = [("quadratic", strengths[i], "mean")]
        found[str(i)] = row = measure(curve, rivals)
        row["ours"] = row.pop(setting(*curve[0]))
    return found
