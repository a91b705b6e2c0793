"""Destroying the local geometry of classes while the network still memorises its training set.

``labels``       a fraction of the labels is drawn anew (Zhang et al. 2017): dose-response.
``cross-pair``   each training point is tied to one fixed point of *another* class: cross-entropy plus ``weight`` times an
                 InfoNCE loss whose positive is the partner and whose negatives are all other points of the batch,
                 class-mates among them. It pulls foreign points together and pushes class-mates apart. [inferred]
``same-pair``    the control: the same loss, the partner from the *same* class.
``rainbow``      the counter-example: groups that hold one point of every class are pulled together. In-sample neighbours
                 are all foreign, yet inside a group the class code survives and the network generalises.
``frozen``       a representation trained on random labels, frozen; only a new head learns the true labels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neurips26.knn_certificate.blocked import certify_arrays
from neurips26.knn_certificate.knn import KNNDecoder
from neurips26.knn_certificate.networks import MLP, accuracy, build, features_of, predict, train
from neurips26.shared import seeding
from neurips26.shared.arrays import check_choice, check_real

__all__ = ["INTERVENTIONS", "Ablated", "ablate_geometry", "partners", "randomise_labels", "rainbow_groups"]

INTERVENTIONS = ("none", "labels", "cross-pair", "same-pair", "rainbow", "frozen")
_TEMPERATURE = 0.1


@dataclass(frozen=True)
class Ablated:
    """What one intervention did.

    Attributes:
        train_accuracy: on the labels it was trained on (for ``frozen`` the smaller of backbone on random and head on true
            labels); below 0.99 the intervention does not count as memorised.
        test_error: of the network, on labels that were not changed.
        in_sample_error: leave-one-out 1-NN error on the training points.
        held_out_error: 1-NN decoder error on the block that nothing saw: the axis of the ablation plot.
        disagreement: network and decoder on the block.
        joint: either of the two, on the block.
        bound: the certificate of the network trained without the block.
        memory: representation of the training points, for pictures.
        memory_labels: the labels they were trained on.
    """

    train_accuracy: float
    test_error: float
    in_sample_error: float
    held_out_error: float
    disagreement: float
    joint: float
    bound: float
    memory: np.ndarray = field(repr=False)
    memory_labels: np.ndarray = field(repr=False)

    def figures(self) -> dict[str, float]:
        """The numbers without the arrays."""
        return {name: value for name, value in vars(self).items() if isinstance(value, float)}


def randomise_labels(y: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Draw a random ``fraction`` of the labels anew, uniformly (a draw may hit the old label)."""
    check_real(fraction, "fraction", minimum=0.0, maximum=1.0)
    rng = seeding.rng(seed, "labels")
    changed = rng.permutation(y.size)[: round(fraction * y.size)]
    out = y.copy()
    out[changed] = rng.integers(0, y.max() + 1, changed.size)
    return out


def partners(y: np.ndarray, seed: int, *, same_class: bool) -> np.ndarray:
    """A fixed random matching: every point and its partner name each other, of other classes or of the same one.

    Where a count is odd one point is left over; it takes a partner that is already taken.

    Raises:
        ValueError: other classes are asked for and one class has more than half of the points.
    """
    rng = seeding.rng(seed, "partners", same_class)
    shuffled = rng.permutation(y.size)
    order = shuffled[np.argsort(y[shuffled], kind="stable")]
    out = np.empty(y.size, int)
    if same_class:
        for label in np.unique(y):
            members = order[y[order] == label]
            even = members[: members.size // 2 * 2]
            out[even[::2]], out[even[1::2]] = even[1::2], even[::2]
            out[members[even.size :]] = members[0]
        return out
    half = y.size // 2
    if np.bincount(y).max() > half:
        raise ValueError(
            f"y: expected no class with more than half of the {y.size} points, got one with {np.bincount(y).max()}"
        )
    # Sorted by class and met across half of the list: no class is long enough to meet itself.
    left, right = order[:half], order[half : 2 * half]
    out[left], out[right] = right, left
    for last in order[2 * half :]:
        out[last] = left[0]
    return out


def rainbow_groups(y: np.ndarray, seed: int) -> np.ndarray:
    """Group number of each point: the i-th (shuffled) point of every class goes to group i."""
    rng = seeding.rng(seed, "rainbow")
    out = np.empty(y.size, int)
    for label in np.unique(y):
        members = rng.permutation(np.flatnonzero(y == label))
        out[members] = np.arange(members.size)
    return out


def info_nce(z: Tensor, z_partner: Tensor) -> Tensor:
    """The partner against all other points of the batch, class-mates included."""
    a, b = (nn.functional.normalize(v, dim=1) for v in (z, z_partner))
    everyone = torch.cat([b, a]) @ a.T / _TEMPERATURE  # rows: candidates, columns: anchors
    logits = everyone.T
    n = len(a)
    logits[:, n:].fill_diagonal_(-torch.inf)  # a point is not its own candidate
    return nn.functional.cross_entropy(logits, torch.arange(n))


def group_loss(z: Tensor, group: Tensor) -> Tensor:
    """Supervised contrastive loss with groups in place of classes (Khosla et al. 2020)."""
    a = nn.functional.normalize(z, dim=1)
    logits = a @ a.T / _TEMPERATURE
    itself = torch.eye(len(a), dtype=torch.bool)
    log_p = logits - logits.masked_fill(itself, -torch.inf).logsumexp(1, keepdim=True)
    positive = (group[:, None] == group[None]) & ~itself
    count = positive.sum(1)
    mean = (log_p * positive).sum(1) / count.clamp(min=1)
    return -mean[count > 0].mean() if (count > 0).any() else z.sum() * 0


def _train_under(
    intervention: str, model: MLP, x: Tensor, labels: np.ndarray, strength: float, settings: dict[str, Any]
) -> float:
    """Train the network (in place); returns the accuracy of a backbone on its random labels, 1 where there is none."""
    seed, target = settings["seed"], torch.from_numpy(labels)
    if intervention in ("cross-pair", "same-pair"):
        partner = torch.from_numpy(partners(labels, seed, same_class=intervention == "same-pair"))
        body = model.body

        def pull(z: Tensor, rows: Tensor) -> Tensor:
            return info_nce(z, body(x[partner[rows]]))

        train(model, x, target, penalty=pull, weight=strength, **settings)
    elif intervention == "rainbow":
        groups = torch.from_numpy(rainbow_groups(labels, seed))
        settings = {**settings, "batch": len(labels)}  # a group must meet in one batch
        train(model, x, target, penalty=lambda z, rows: group_loss(z, groups[rows]), weight=strength, **settings)
    elif intervention == "frozen":
        noise = torch.from_numpy(randomise_labels(labels, 1.0, seed))
        train(model, x, noise, **settings)
        memorised = accuracy(model, x, noise)
        for p in model.body.parameters():
            p.requires_grad_(False)
        hidden, classes = model.head.in_features, model.head.out_features
        model.head = build(
            lambda: nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes)), seed + 1
        )
        train(model, x, target, **settings)
        return memorised
    else:
        train(model, x, target, **settings)
    return 1.0


def ablate_geometry(
    X: np.ndarray,
    y: np.ndarray,
    X_test: np.ndarray,
    y_test: np.ndarray,
    intervention: str,
    *,
    strength: float = 1.0,
    hidden: int = 256,
    steps: int = 1_500,
    batch: int = 300,
    lr: float = 2e-3,
    block: float = 0.2,
    delta: float = 0.05,
    seed: int = 0,
) -> Ablated:
    """Train a small network under an intervention and measure what is left of geometry and of generalization.

    Args:
        X: training inputs; a random ``block`` of them is held back from all training.
        y: integer labels.
        X_test: test inputs.
        y_test: their labels.
        intervention: one of :data:`INTERVENTIONS`.
        strength: weight of the extra loss, or for ``"labels"`` the fraction drawn anew.
        hidden: width.
        steps: optimiser steps.
        batch: batch size.
        lr: step size of Adam.
        block: fraction held back.
        delta: of the certificate.
        seed: of everything.
    """
    check_choice(intervention, "intervention", INTERVENTIONS)
    order = seeding.rng(seed, "ablation block").permutation(y.size)
    size = round(block * y.size)
    held, kept = order[:size], order[size:]
    classes = int(y.max()) + 1
    x_kept = torch.from_numpy(X[kept].astype(np.float32))
    x_held, x_test = (torch.from_numpy(v.astype(np.float32)) for v in (X[held], X_test))
    shown = y[kept]
    truth = {"held": y[held], "test": y_test}
    if intervention == "labels":
        shown = randomise_labels(shown, strength, seed)
        # The block comes from the same noisy source; the test labels too, so that the bound is about them.
        truth = {
            "held": randomise_labels(y[held], strength, seed + 1),
            "test": randomise_labels(y_test, strength, seed + 2),
        }
    model = build(lambda: MLP(X.shape[1], classes, hidden), seed)
    memorised = _train_under(
        intervention, model, x_kept, shown, strength, {"steps": steps, "batch": batch, "lr": lr, "seed": seed}
    )
    memory, block_features = features_of(model, x_kept), features_of(model, x_held)
    # A dead representation (all zeros) has no direction: a constant column gives it one and changes no other ranking much.
    memory, block_features = (np.pad(f, ((0, 0), (0, 1)), constant_values=1e-6) for f in (memory, block_features))
    certificate = certify_arrays(memory, shown, block_features, truth["held"], predict(model, x_held), k=1, delta=delta)
    return Ablated(
        train_accuracy=min(memorised, float((predict(model, x_kept) == shown).mean())),
        test_error=float((predict(model, x_test) != truth["test"]).mean()),
        in_sample_error=KNNDecoder(1).fit(memory, shown).loo_error(),
        held_out_error=certificate.geometry.estimate,
        disagreement=certificate.disagreement.estimate,
        joint=certificate.joint.estimate if certificate.joint else float("nan"),
        bound=certificate.bound,
        memory=memory,
        memory_labels=shown,
    )
