"""What control and quality are measured with: attribute classifiers, copy distance, Frechet and kernel distances.

None of these distances is called FID: none uses Inception features.
"""

from __future__ import annotations

import warnings

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.kid import KernelInceptionDistance

from neurips26.reference_guidance.bank import ReferenceBank

__all__ = ["AttributeClassifier", "copy_distance", "frechet_distance", "kernel_distance"]


class AttributeClassifier:
    """Logistic regression on pixels; ``accuracy`` is measured on images it was not fitted to."""

    def __init__(self, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], strength: float = 0.1) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an early stop of the solver shows in the reported accuracy
            self.model = LogisticRegression(C=strength, max_iter=60).fit(train[0].flatten(1).numpy(), train[1].numpy())
        self.accuracy = self.rate(test[0], test[1])

    def predict(self, x: Tensor) -> Tensor:
        """Classes of images."""
        return torch.from_numpy(self.model.predict(x.flatten(1).numpy()))

    def rate(self, x: Tensor, target: Tensor | int) -> float:
        """Share of images classified as ``target``."""
        return float((self.predict(x) == target).double().mean())

    def gradient(self, x: Tensor, target: int) -> Tensor:
        """Gradient of the log probability of ``target`` (for the classifier-guidance baseline)."""
        w = torch.from_numpy(self.model.coef_).to(x.dtype)
        b = torch.from_numpy(self.model.intercept_).to(x.dtype)
        p = (x.flatten(1) @ w.T + b).softmax(1)
        row = int(self.model.classes_.tolist().index(target))
        return (w[row] - p @ w).reshape(x.shape)


def copy_distance(x: Tensor, bank: ReferenceBank) -> float:
    """Mean Euclidean distance to the nearest reference; 0 is a copy."""
    return float(bank.nearest(x)[1].mean()) * x[0].numel() ** 0.5


class _Flat(nn.Module):
    """Pixels as features, projected at random where there are too many for a covariance."""

    def __init__(self, shape: tuple[int, ...], features: int = 64) -> None:
        super().__init__()
        d = int(torch.tensor(shape).prod())
        g = torch.Generator().manual_seed(0)
        self.num_features = min(d, features)
        weight = torch.eye(d) if d <= features else torch.linalg.qr(torch.randn(d, features, generator=g))[0].T
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T


def _distance(metric: FrechetInceptionDistance | KernelInceptionDistance, real: Tensor, fake: Tensor) -> float:
    metric.update(real, real=True)
    metric.update(fake, real=False)
    value = metric.compute()
    return float(value[0] if isinstance(value, tuple) else value)


def frechet_distance(real: Tensor, fake: Tensor) -> float:
    """Frechet distance of two sets of images in (at most 64 orthogonal projections of) pixel space."""
    shape = tuple(real.shape[1:])
    metric = FrechetInceptionDistance(feature=_Flat(shape), normalize=True, input_img_size=shape)
    return _distance(metric, real, fake)


def kernel_distance(real: Tensor, fake: Tensor, seed: int = 0) -> float:
    """Kernel (MMD) distance with the cubic kernel in the same features."""
    n = min(len(real), len(fake), 200)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        metric = KernelInceptionDistance(
            feature=_Flat(tuple(real.shape[1:])), subset_size=n, subsets=20, normalize=True
        )
        return _distance(metric, real, fake)
