"""Other ways to bound the error of the same network, to show what they say at this size.

Both bounds are about the margin or the average over perturbed weights of a multilayer perceptron; neither needs a
held-out point, and both are vacuous on networks of practical size.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from neurips26.knn_certificate.networks import predict
from neurips26.knn_certificate.weight_noise import perturbed

__all__ = ["pac_bayes_bound", "spectral_bound"]


def _layers(model: nn.Module) -> list[Tensor]:
    return [m.weight.detach() for m in model.modules() if isinstance(m, nn.Linear)]


def spectral_bound(model: nn.Module, X: Tensor, y: Tensor, delta: float = 0.05) -> float:
    """Leading terms of the spectrally normalised margin bound (Bartlett, Foster & Telgarsky 2017, theorem 1.1), unclipped.

    ``mean(margin <= g) + R log(W) ||X||_F / (g n) + sqrt(log(1/delta)/n)`` minimised over the margin ``g``, with
    ``R = prod s_i (sum (||W_i^T||_{2,1} / s_i)^{2/3})^{3/2}``, reference matrices zero and constants one (the theorem's
    are larger).
    """
    weights = _layers(model)
    spectral = [float(torch.linalg.matrix_norm(w, 2)) for w in weights]
    mixed = [float(w.norm(dim=1).sum()) for w in weights]
    R = math.prod(spectral) * sum((m / s) ** (2 / 3) for m, s in zip(mixed, spectral)) ** 1.5
    with torch.inference_mode():
        z = model(X)
    own = z.gather(1, y[:, None]).squeeze(1)
    margin = (own - z.scatter(1, y[:, None], -torch.inf).max(1).values).numpy()
    n, width = len(X), max(max(w.shape) for w in weights)
    best = math.inf
    for g in np.quantile(margin, np.linspace(0, 1, 40)):
        if g > 0:
            complexity = R * math.log(width) * float(X.norm()) / (g * n)
            best = min(best, float((margin <= g).mean()) + complexity + math.sqrt(math.log(1 / delta) / n))
    return best


def pac_bayes_bound(
    model: nn.Module, initial: nn.Module, X: Tensor, y: Tensor, delta: float = 0.05, draws: int = 20
) -> float:
    """PAC-Bayes-kl bound of the *perturbed* network with an isotropic Gaussian prior at the initial weights.

    The noise is chosen from 12 scales (the bound pays for the choice). It bounds the average network under noise, not
    the unmodified one.
    """
    n = len(X)
    shift = sum(float((p - q).detach().pow(2).sum()) for p, q in zip(model.parameters(), initial.parameters()))
    scales = np.geomspace(0.003, 1.0, 12)
    best = 1.0
    for s in scales:
        generator_seed = int(1e6 * s)
        wrong = 0.0
        for draw in range(draws):
            noisy = _isotropic(model, float(s), generator_seed + draw)
            wrong += float((predict(noisy, X) != y.numpy()).mean()) / draws
        sampled = min(
            1.0, wrong + math.sqrt(math.log(2 * len(scales) / delta) / (2 * draws))
        )  # Monte Carlo over weights
        budget = (shift / (2 * s**2) + math.log(2 * math.sqrt(n) * len(scales) * 2 / delta)) / n
        best = min(best, _invert(sampled, budget))
    return best


def _isotropic(model: nn.Module, scale: float, seed: int) -> nn.Module:
    noisy = perturbed(model, 0.0, 0)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in noisy.parameters():
            p.add_(scale * torch.randn(p.shape, generator=generator))
    return noisy


def _invert(p: float, budget: float) -> float:
    """Largest ``q`` with ``kl(p, q) <= budget``, by bisection."""
    low, high = p, 1.0 - 1e-12
    for _ in range(40):
        q = (low + high) / 2
        value = (p * math.log(p / q) if p > 0 else 0.0) + ((1 - p) * math.log((1 - p) / (1 - q)) if p < 1 else 0.0)
        low, high = (q, high) if value <= budget else (low, q)
    return high
