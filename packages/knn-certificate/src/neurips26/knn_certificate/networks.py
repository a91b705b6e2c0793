"""Small networks and their training, for the experiments: deterministic, full-batch or mini-batch, resumable by seed.

Nothing here is part of the certificate: :func:`neurips26.knn_certificate.certify` takes any classifier.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from neurips26.shared.arrays import check_int

__all__ = ["MLP", "AdamW", "SmallCNN", "accuracy", "features_of", "predict", "train"]

#: Extra loss of a batch: ``(features, indices of the batch in the data) -> scalar``.
Penalty = Callable[[Tensor, Tensor], Tensor]


class MLP(nn.Module):
    """Two hidden layers; the second's activations are the representation."""

    def __init__(self, inputs: int, classes: int, hidden: int = 256) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU())
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n c"]:
        """Logits."""
        return self.head(self.body(x))


class SmallCNN(nn.Module):
    """Three strided convolutions and a mean over positions, for 32 x 32 images on a CPU."""

    def __init__(self, classes: int = 10, width: int = 32) -> None:
        super().__init__()
        w = width
        self.body = nn.Sequential(
            nn.Conv2d(3, w, 3, stride=2, padding=1), nn.BatchNorm2d(w), nn.ReLU(),
            nn.Conv2d(w, 2 * w, 3, stride=2, padding=1), nn.BatchNorm2d(2 * w), nn.ReLU(),
            nn.Conv2d(2 * w, 4 * w, 3, stride=2, padding=1), nn.BatchNorm2d(4 * w), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(4 * w, classes)

    def forward(self, x: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n c"]:
        """Logits."""
        return self.head(self.body(x))


class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019), all parameters as one vector.

    ``torch.optim`` gives the same numbers, but its first step loads torch's compiler, which takes longer than these trainings.
    """

    def __init__(self, parameters: list[nn.Parameter], weight_decay: float = 0.0, betas: tuple = (0.9, 0.999)) -> None:
        self.parameters, self.weight_decay, self.betas, self.steps = parameters, weight_decay, betas, 0
        size = sum(p.numel() for p in parameters)
        self.mean, self.square = torch.zeros(size), torch.zeros(size)

    def step(self, loss: Tensor, lr: float) -> None:
        """One step of size ``lr`` down the gradient of ``loss``."""
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, self.parameters)])
        (a, b), self.steps = self.betas, self.steps + 1
        self.mean.lerp_(gradient, 1 - a)
        self.square.mul_(b).addcmul_(gradient, gradient, value=1 - b)
        scale = (self.square / (1 - b**self.steps)).sqrt_().add_(1e-8)
        move = (self.mean / scale).mul_(-lr / (1 - a**self.steps))
        with torch.no_grad():
            for p, m in zip(self.parameters, move.split([p.numel() for p in self.parameters])):
                p.mul_(1 - lr * self.weight_decay).add_(m.view_as(p))


def train(
    model: nn.Module,
    X: Tensor,
    y: Tensor,
    *,
    steps: int,
    batch: int = 256,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
    penalty: Penalty | None = None,
    weight: float = 0.0,
    seed: int = 0,
) -> nn.Module:
    """AdamW on cross-entropy plus ``weight * penalty``; batches without replacement, reshuffled each epoch, cosine decay.

    The penalty sees the representation (``model.body``) and which points the batch holds.
    """
    check_int(steps, "steps", minimum=1)
    generator = torch.Generator().manual_seed(seed)
    optimiser = AdamW([p for p in model.parameters() if p.requires_grad], weight_decay)
    body: Any = model.body
    head: Any = model.head
    n, done = len(X), 0
    model.train()
    while done < steps:
        for rows in torch.randperm(n, generator=generator).split(min(batch, n)):
            if len(rows) < 2 or done == steps:
                continue
            z = body(X[rows])
            loss = nn.functional.cross_entropy(head(z), y[rows])
            if penalty is not None and weight:
                loss = loss + weight * penalty(z, rows)
            optimiser.step(loss, lr * 0.5 * (1 + math.cos(math.pi * done / steps)))
            done += 1
    return model.eval()


def build(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A model whose initial weights depend on ``seed`` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


@torch.inference_mode()
def features_of(model: nn.Module, X: Tensor, batch: int = 2_000) -> np.ndarray:
    """The representation of all rows."""
    model.eval()
    body: Any = model.body
    return torch.cat([body(x) for x in X.split(batch)]).numpy()


@torch.inference_mode()
def predict(model: nn.Module, X: Tensor, batch: int = 2_000) -> np.ndarray:
    """Predicted classes of all rows."""
    model.eval()
    return torch.cat([model(x).argmax(1) for x in X.split(batch)]).numpy()


def accuracy(model: nn.Module, X: Tensor, y: Tensor) -> float:
    """Share of rows predicted as labelled."""
    return float((predict(model, X) == y.numpy()).mean())
