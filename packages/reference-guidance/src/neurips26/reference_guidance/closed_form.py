"""Measurements on flows in closed form, without a network: exactness, two moons, sparse labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from neurips26.reference_guidance.bank import ReferenceBank
from neurips26.reference_guidance.bridge import euler_sample
from neurips26.reference_guidance.control import draw_noise, pick, settings
from neurips26.reference_guidance.flows import sample_flow
from neurips26.reference_guidance.posterior import reference_mean
from neurips26.reference_guidance.steering import SparseLabelSteering, draw_by_label, label_posterior
from neurips26.reference_guidance.toys import Split, digits, labelled_moons, moons
from neurips26.shared import seeding

__all__ = ["exactness", "moons_composition", "moons_labels", "sparse_labels"]


def moons_composition(seed: int, n: int = 256) -> dict[str, float]:
    """Share of samples on moon 1 of the closed-form flow, by the share of moon 1 in the bank."""
    data = moons(1000, seed)
    judge = _nearest(data)
    noise, out = draw_noise(n, (2,), seed), {}
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        ones = round(40 * share)
        index = torch.cat([pick(data.where(moon=1), ones, seed), pick(data.where(moon=0), 40 - ones, seed)])
        refs = data.images[index]
        x = euler_sample(lambda x, t, refs=refs: reference_mean(x, refs, float(t[0]))[0], noise, 30)
        out[f"{share:g}"] = float((judge(x) == 1).double().mean())
    return out


def _nearest(data: Split) -> Any:
    label = data.labels["moon"]
    return lambda x: label[torch.cdist(x, data.images).argmin(1)]


def sparse_labels(
    seed: int, per_class: tuple[int, ...] = (1, 2, 5, 10, 20, 50), n: int = 64
) -> dict[str, dict[str, float]]:
    """Accuracy of class-conditional samples from M labelled zeros and ones; no network.

    As the authors do with MNIST: every pixel standardised over the database, samples judged by their 5 nearest images.

    Args:
        seed: of labels and noise.
        per_class: numbers M of labelled images a class.
        n: samples a class.

    Returns:
        by M: accuracy unconditionally ("none"), with soft labels, and with the true labels of all ("hard").
    """
    points, label = _zeros_and_ones()
    out: dict[str, dict[str, float]] = {}
    for m in per_class:
        chosen = torch.cat([pick((label == c).nonzero().flatten(), m, seed, c) for c in (0, 1)])
        steering = {r: _steering(points, label, chosen, r) for r in ("none", "soft", "hard")}
        out[str(m)] = {rule: _accuracy(s, points, label, seed, n, 5) for rule, s in steering.items()}
    return out


def _steering(points: Tensor, label: Tensor, chosen: Tensor, rule: str) -> SparseLabelSteering:
    rest = torch.ones(len(points), dtype=torch.bool)
    rest[chosen] = False
    known = torch.arange(len(points)) if rule == "hard" else chosen
    return SparseLabelSteering(points[rest], points[known], label[known], rule)


def _accuracy(
    steering: SparseLabelSteering, points: Tensor, label: Tensor, seed: int, n: int, neighbours: int
) -> float:
    """Share of samples of both classes whose nearest points are mostly of the class asked for."""
    right = []
    for c in (0, 1):
        x = steering.sample(draw_noise(n, tuple(points.shape[1:]), seed, "labels", c), c)
        right.append(_votes(x, points, label, neighbours) == c)
    return float(torch.cat(right).double().mean())


def _votes(x: Tensor, points: Tensor, label: Tensor, neighbours: int) -> Tensor:
    near = torch.cdist(x.double(), points.double()).topk(neighbours, largest=False).indices
    return (label[near].double().mean(1) > 0.5).long()


def _zeros_and_ones() -> tuple[Tensor, Tensor]:
    data = digits()
    both = data.take((data.labels["digit"] < 2).nonzero().flatten())
    x = both.images.flatten(1)
    return (x - x.mean(0)) / (x.std(0) + 1e-6), both.labels["digit"]


def moons_labels(
    seed: int, per_class: tuple[int, ...] = (1, 2, 5, 10, 20, 50), n: int = 400
) -> dict[str, dict[str, float]]:
    """Accuracy of samples drawn from a database of two moons by the labels of M points a moon.

    As the authors do: a point is drawn with a weight that grows with its soft label at t = 0.92 and jittered, and a sample
    is judged by its 15 nearest points. Their flow of MNIST is measured beside it on the same points.

    Returns:
        by M: accuracy without labels ("none"), with soft labels, with the true labels of all ("hard"), and along a flow.
    """
    data = labelled_moons(seed)
    points, label = data.images, data.labels["moon"]
    out: dict[str, dict[str, float]] = {}
    for m in per_class:
        chosen = torch.cat([pick((label == c).nonzero().flatten(), m, seed, c) for c in (0, 1)])
        soft = label_posterior(points, points[chosen], label[chosen])
        right: dict[str, list[Tensor]] = {"none": [], "soft": [], "hard": []}
        for c in (0, 1):
            weight = {"none": torch.ones(len(points)), "soft": soft[:, c].square(), "hard": (label == c).double()}
            for rule, w in weight.items():
                x = draw_by_label(points, w, n, seeding.rng(seed, "draw", rule, c))
                right[rule].append(_votes(x, points, label, 15) == c)
        out[str(m)] = {k: float(torch.cat(v).double().mean()) for k, v in right.items()}
        flow = _steering(points, label, chosen, "soft")
        out[str(m)]["soft, along a flow"] = _accuracy(flow, points, label, seed, 64, 15)
    return out


def exactness(seed: int) -> dict[str, float]:
    """Guiding the empirical flow of A towards B with beta 1 is the flow of B; guiding it towards A changes nothing.

    Through the guided scheduler, as in a pipeline, with the exact posterior over all references.
    """
    data = digits().images
    a, b = (data[pick(torch.arange(len(data)), 60, seed, name)] for name in ("a", "b"))
    noise = draw_noise(16, (1, 8, 8), seed)

    def trajectory(refs: Tensor, towards: Tensor | None = None) -> Tensor:
        states = []

        def velocity(x: Tensor, t: Tensor) -> Tensor:
            states.append(x)
            return (x - reference_mean(x, refs, float(t[0]))[0]) / (1 - float(t[0]))

        guidance = None
        if towards is not None:
            bank = ReferenceBank.from_latents(towards)
            guidance = settings(bank, 1.0, "constant", metric="sum", topk=None)
        end = sample_flow(velocity, noise, guidance)
        return torch.stack([*states, end])

    pairs = {"drift": (a, b), "idle": (a, a)}
    return {k: float((trajectory(s, e) - trajectory(e)).abs().max()) for k, (s, e) in pairs.items()}
