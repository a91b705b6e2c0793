"""What control and quality are measured with: attribute classifiers, copy distance, Frechet and kernel distances.

None of these distances is called FID: none uses Inception features.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from neurips26.reference_guidance.bank import ReferenceBank

__all__ = ["AttributeClassifier", "Judge", "NearestClassifier", "copy_distance", "frechet_distance", "kernel_distance"]
__all__ += ["oriented_gradients", "pixels", "pixels_and_squares", "spread"]


def pixels(x: Tensor) -> Tensor:
    """Pixels as features."""
    return x.flatten(1)


def pixels_and_squares(x: Tensor) -> Tensor:
    """Pixels and their squares: also tells mid-grey from black and white."""
    return torch.cat([x.flatten(1), x.flatten(1).square()], 1)


def oriented_gradients(x: Tensor, cell: int = 4, bins: int = 6) -> Tensor:
    """Histograms of gradient directions in cells of ``cell`` pixels, normalised over the image, and mean colours."""
    grey = x.mean(1)
    gy, gx = torch.gradient(grey, dim=(1, 2))
    size = (gx.square() + gy.square() + 1e-8).sqrt()
    angle = (torch.atan2(gy, gx) % torch.pi) / torch.pi * bins
    # every pixel shares its weight between the two nearest directions
    share = (1 - (angle[:, None] - torch.arange(bins, dtype=x.dtype)[:, None, None]).remainder(bins)).clamp_min(0)
    above = (angle[:, None] - torch.arange(bins, dtype=x.dtype)[:, None, None]).remainder(bins) - (bins - 1)
    share = share + above.clamp_min(0)
    cells = torch.nn.functional.avg_pool2d(share * size[:, None], cell).flatten(1)
    cells = cells / (cells.norm(dim=1, keepdim=True) + 1e-3)
    return torch.cat([4 * cells, torch.nn.functional.avg_pool2d(x, cell).flatten(1)], 1)


@runtime_checkable
class Judge(Protocol):
    """Decides which class an image shows; ``accuracy`` is measured on images it was not fitted to."""

    accuracy: float

    def predict(self, x: Tensor) -> Tensor:
        """Classes of images."""
        ...

    def rate(self, x: Tensor, target: Tensor | int) -> float:
        """Share of images classified as ``target``."""
        ...


class AttributeClassifier:
    """Logistic regression on features of an image."""

    def __init__(
        self, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], strength: float = 0.1,
        features: Callable[[Tensor], Tensor] = pixels,
    ) -> None:  # fmt: skip
        self.features = features
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an early stop of the solver shows in the reported accuracy
            self.model = LogisticRegression(C=strength, max_iter=60).fit(features(train[0]).numpy(), train[1].numpy())
        w, b = torch.from_numpy(self.model.coef_), torch.from_numpy(self.model.intercept_)
        if len(w) == 1:  # two classes share one row
            w, b = torch.cat([-w / 2, w / 2]), torch.cat([-b / 2, b / 2])
        self.weight, self.bias = w, b
        self.accuracy = self.rate(test[0], test[1])
        # size of the probe's gradient on real images: classifier guidance is scaled by it
        self.scale = float(self.gradient(test[0][:64], int(test[1][0])).flatten(1).norm(dim=1).mean())

    def predict(self, x: Tensor) -> Tensor:
        """Classes of images."""
        return torch.from_numpy(self.model.predict(self.features(x).numpy()))

    def rate(self, x: Tensor, target: Tensor | int) -> float:
        """Share of images classified as ``target``."""
        return float((self.predict(x) == target).double().mean())

    def gradient(self, x: Tensor, target: int) -> Tensor:
        """Gradient of the log probability of ``target`` (for the classifier-guidance baseline)."""
        row = int(self.model.classes_.tolist().index(target))
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            logits = self.features(x) @ self.weight.to(x.dtype).T + self.bias.to(x.dtype)
            (gradient,) = torch.autograd.grad(logits.log_softmax(1)[:, row].sum(), x)
        return gradient


class NearestClassifier:
    """The class of the nearest real image: for people, whom no linear rule on pixels tells apart."""

    def __init__(self, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> None:
        self.images, self.labels = train[0].flatten(1), train[1]
        self.accuracy = self.rate(test[0], test[1])

    def predict(self, x: Tensor) -> Tensor:
        """Classes of images."""
        return self.labels[torch.cdist(x.flatten(1), self.images).argmin(1)]

    def rate(self, x: Tensor, target: Tensor | int) -> float:
        """Share of images classified as ``target``."""
        return float((self.predict(x) == target).double().mean())


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


def spread(x: Tensor) -> float:
    """Mean Euclidean distance between two images of a set; 0 where all are the same."""
    return float(torch.pdist(x.flatten(1)).mean())


def _distance(metric: Any, real: Tensor, fake: Tensor) -> float:
    metric.update(real, real=True)
    metric.update(fake, real=False)
    value = metric.compute()
    return float(value[0] if isinstance(value, tuple) else value)


def frechet_distance(real: Tensor, fake: Tensor, features: nn.Module | None = None) -> float:
    """Frechet distance of two sets of images in (at most 64 orthogonal projections of) pixel space, or in ``features``."""
    from torchmetrics.image.fid import FrechetInceptionDistance  # its import takes seconds

    shape = tuple(real.shape[1:])
    metric = FrechetInceptionDistance(feature=features or _Flat(shape), normalize=True, input_img_size=shape)
    return _distance(metric, real, fake)


def kernel_distance(real: Tensor, fake: Tensor, seed: int = 0) -> float:
    """Kernel (MMD) distance with the cubic kernel in the same features."""
    from torchmetrics.image.kid import KernelInceptionDistance

    n = min(len(real), len(fake), 200)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        metric = KernelInceptionDistance(
            feature=_Flat(tuple(real.shape[1:])), subset_size=n, subsets=20, normalize=True
        )
        return _distance(metric, real, fake)
