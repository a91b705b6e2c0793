r"""Sparse-label steering: a few labelled references steer the flow of a large unlabelled database, without a network.

Soft labels spread from the labelled points to the database by a kernel whose width follows the noise level,

    log k_t(x_u, x_l) = -t^2 ||x_u - x_l||^2 / (4 s^2),   s = (1 - t) + 1e-4,   p(c | x_u, t) = sum_{l in c} k / sum_l k,

and the endpoint mean of class c is the posterior mean over the database and the labelled points of c, with
``log p(c | x_u, t)`` (0 for the labelled points of c) added to the log weights. That is the authors' experiment on MNIST.
Their two moons have no flow: :func:`label_posterior` and :func:`draw_by_label` weigh and draw points of the database.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from neurips26.reference_guidance.errors import EmptyBankError
from neurips26.reference_guidance.posterior import check_finite
from neurips26.shared.arrays import check_choice, check_int, check_real

__all__ = ["RULES", "SparseLabelSteering", "draw_by_label", "label_posterior"]

RULES = ("soft", "hard", "none")

#: The authors' constants: floor of the bandwidth, of the soft label, and of 1 - t in the velocity.
_WIDTH_FLOOR, _LABEL_FLOOR, _TIME_FLOOR = 1e-4, 1e-10, 1e-3


class SparseLabelSteering:
    """Class-conditional flow of a database in which few points have labels.

    Args:
        unlabelled: the database (n, d).
        labelled: labelled points (l, d).
        labels: their classes (l,).
        rule: ``"soft"`` (the method), ``"hard"`` (only the labelled points of the class) or ``"none"`` (unconditional).
    """

    def __init__(
        self,
        unlabelled: Float[Tensor, "n d"],
        labelled: Float[Tensor, "l d"],
        labels: Int[Tensor, " l"],
        rule: str = "soft",
    ) -> None:
        check_choice(rule, "rule", RULES)
        if len(unlabelled) == 0 or len(labelled) == 0:
            raise EmptyBankError(f"unlabelled, labelled: expected points, got {len(unlabelled)} and {len(labelled)}")
        if labels.shape != (len(labelled),):
            raise ValueError(f"labels: expected {len(labelled)}, one a labelled point, got shape {tuple(labels.shape)}")
        if unlabelled.shape[1:] != labelled.shape[1:]:
            raise ValueError(
                f"labelled: expected points like the unlabelled {tuple(unlabelled.shape[1:])}, got {tuple(labelled.shape[1:])}"
            )
        for name, points in (("unlabelled", unlabelled), ("labelled", labelled)):
            if not torch.isfinite(points).all():
                raise ValueError(f"{name}: expected finite numbers, got some that are not")
        self.unlabelled, self.labelled, self.labels = unlabelled.double(), labelled.double(), labels
        self.rule = rule
        self._gap = torch.cdist(self.unlabelled, self.labelled).square()

    def label_probability(self, target: int, t: float) -> Float[Tensor, " n"]:
        """``p(target | x_u, t)`` of every point of the database."""
        self._check(target)
        log_k = -(t**2) * self._gap / (4 * ((1 - t) + _WIDTH_FLOOR) ** 2)
        mine = log_k[:, self.labels == target].logsumexp(1)
        return (mine - log_k.logsumexp(1)).exp()

    def mean(self, z: Float[Tensor, "b d"], target: int, t: float) -> Float[Tensor, "b d"]:
        """Endpoint mean of the class at ``z``."""
        self._check(target)
        check_finite(z, "z")
        check_real(t, "t", minimum=0.0, maximum=1.0)
        own = self.labelled[self.labels == target]
        if self.rule == "hard":
            points, extra = own, torch.zeros(len(own), dtype=torch.float64)
        elif self.rule == "none":
            points = torch.cat([self.unlabelled, self.labelled])
            extra = torch.zeros(len(points), dtype=torch.float64)
        else:
            points = torch.cat([self.unlabelled, own])
            soft = self.label_probability(target, t).clamp_min(_LABEL_FLOOR).log()
            extra = torch.cat([soft, torch.zeros(len(own), dtype=torch.float64)])
        s = (1 - t) + _WIDTH_FLOOR
        w = (-torch.cdist(z.double(), t * points).square() / (2 * s**2) + extra).softmax(1)
        return (w @ points).to(z.dtype)

    def velocity(self, z: Float[Tensor, "b d"], target: int, t: float) -> Float[Tensor, "b d"]:
        """``(mean - z) / (1 - t)`` with the authors' floor."""
        return (self.mean(z, target, t) - z) / (1 - t + _TIME_FLOOR)

    def sample(self, noise: Float[Tensor, "b d"], target: int, times: int = 30) -> Float[Tensor, "b d"]:
        """Euler from ``t = 0.01`` to ``0.99`` over a uniform grid of times, the authors' 30 by default."""
        check_int(times, "times", minimum=2)
        z, grid = noise, torch.linspace(0.01, 0.99, times, dtype=torch.float64).tolist()
        for t, after in itertools.pairwise(grid):
            z = z + (after - t) * self.velocity(z, target, t)
        return z

    def _check(self, target: int) -> None:
        if not bool((self.labels == target).any()):
            known = sorted({int(c) for c in self.labels})
            raise ValueError(f"target: expected a class with labelled points ({known}), got {target}")


def label_posterior(
    points: Float[Tensor, "n d"], labelled: Float[Tensor, "l d"], labels: Int[Tensor, " l"], t: float = 0.92
) -> Float[Tensor, "n c"]:
    """Soft labels of a database at time ``t``: one Gaussian of width ``1.25 (1 - t) + 0.08 t`` a labelled point.

    Every class counts alike, however many labels it has. The widths and the time are those of the authors' two moons.
    """
    width = 1.25 * (1 - t) + 0.08 * t
    log_k = -torch.cdist(points.double(), labelled.double()).square() / (2 * width**2)
    classes = range(int(labels.max()) + 1)
    return torch.stack([log_k[:, labels == c].logsumexp(1) - (labels == c).sum().log() for c in classes], 1).softmax(1)


def draw_by_label(
    points: Float[Tensor, "n d"], weight: Float[Tensor, " n"], n: int, rng: np.random.Generator, jitter: float = 0.06
) -> Float[Tensor, "m d"]:
    """Points of a database drawn with these weights, each moved a little; the authors weigh by squared soft labels."""
    p = (weight.double() / weight.double().sum()).numpy()
    picked = points[torch.from_numpy(rng.choice(len(points), n, p=p))]
    return picked + torch.from_numpy(rng.normal(scale=jitter, size=tuple(picked.shape))).to(picked.dtype)
