"""Affine bridges between noise and data, and the identities that tie velocity, endpoint mean and step together.

Time ``t`` runs from noise (0) to data (1) and ``x_t = a_t x_1 + s_t x_0`` with ``x_0 ~ N(0, I)``. Diffusers counts
``sigma = 1 - t`` and its networks output ``v = noise - data = -u``. All conversions between the two live here.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Bridge", "LinearBridge", "VPBridge", "endpoint_mean", "euler_sample", "euler_step", "velocity_from_mean"]

Scalar = float | int | Tensor

#: Samplers and training of semi-parametric generators stay this far from both ends of time (the authors' value).
T_EPS = 1e-3


class Bridge(Protocol):
    """A pair of coefficients and their time derivatives."""

    def coefficients(self, t: Scalar) -> tuple[Tensor, Tensor]:
        """``(a_t, s_t)`` in float64."""
        ...

    def derivatives(self, t: Scalar) -> tuple[Tensor, Tensor]:
        """``(a'_t, s'_t)`` in float64."""
        ...


def _time(t: Scalar) -> Tensor:
    return torch.as_tensor(t, dtype=torch.float64)


class _AffineBridge:
    """The mean, velocity and prediction conversions that hold for every affine bridge."""

    def numbers(self, t: float) -> tuple[float, float]:
        """:meth:`coefficients` of one time as plain numbers: a sampler asks for them in every step."""
        a, s = self.coefficients(t)
        return float(a), float(s)

    def coefficients(self, t: Scalar) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def derivatives(self, t: Scalar) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def mean_from_velocity(self, u: Tensor, x: Tensor, t: Scalar) -> Tensor:
        """Endpoint mean ``E[x_1 | x_t = x] = (s u - s' x) / (a' s - s' a)`` of a velocity ``u = dx/dt``."""
        (a, s), (da, ds) = self._at(t, x)
        return (s * u - ds * x) / (da * s - ds * a)

    def velocity_from_mean(self, mu: Tensor, x: Tensor, t: Scalar) -> Tensor:
        """Velocity of an endpoint mean; the inverse of :meth:`mean_from_velocity` (``s_t > 0``)."""
        (a, s), (da, ds) = self._at(t, x)
        return da * mu + ds * (x - a * mu) / s

    def mean_from_noise(self, eps: Tensor, x: Tensor, t: Scalar) -> Tensor:
        """Endpoint mean of a noise prediction, ``(x - s eps) / a`` (``a_t > 0``)."""
        (a, s), _ = self._at(t, x)
        return (x - s * eps) / a

    def noise_from_mean(self, mu: Tensor, x: Tensor, t: Scalar) -> Tensor:
        """Noise prediction of an endpoint mean, ``(x - a mu) / s`` (``s_t > 0``)."""
        (a, s), _ = self._at(t, x)
        return (x - a * mu) / s

    def _at(self, t: Scalar, x: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        t = _time(t)
        if t.ndim == 1:
            t = t.reshape(-1, *[1] * (x.ndim - 1))

        def cast(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            dtype = x.dtype if x.dtype.is_floating_point else torch.float32
            return pair[0].to(x.device, dtype), pair[1].to(x.device, dtype)

        return cast(self.coefficients(t)), cast(self.derivatives(t))


@dataclass(frozen=True)
class LinearBridge(_AffineBridge):
    """Rectified flow: ``a = t``, ``s = 1 - t`` (the paper's bridge; the one of all diffusers flow pipelines)."""

    def numbers(self, t: float) -> tuple[float, float]:
        """``(t, 1 - t)``."""
        return t, 1.0 - t

    def coefficients(self, t: Scalar) -> tuple[Tensor, Tensor]:
        """``(t, 1 - t)``."""
        t = _time(t)
        return t, 1.0 - t

    def derivatives(self, t: Scalar) -> tuple[Tensor, Tensor]:
        """``(1, -1)``."""
        one = torch.ones_like(_time(t))
        return one, -one


@dataclass(frozen=True)
class VPBridge(_AffineBridge):
    """Variance-preserving cosine bridge: ``a = sin(pi t / 2)``, ``s = cos(pi t / 2)``, so ``a^2 + s^2 = 1``."""

    def coefficients(self, t: Scalar) -> tuple[Tensor, Tensor]:
        """``(sin, cos)`` of ``pi t / 2``."""
        angle = _time(t) * (math.pi / 2)
        return torch.sin(angle), torch.cos(angle)

    def derivatives(self, t: Scalar) -> tuple[Tensor, Tensor]:
        """Their derivatives."""
        angle = _time(t) * (math.pi / 2)
        return torch.cos(angle) * (math.pi / 2), -torch.sin(angle) * (math.pi / 2)

    def mean_from_v(self, v: Tensor, x: Tensor, t: Scalar) -> Tensor:
        """Endpoint mean of a v-prediction ``v = a eps - s x_1`` (the rotation of Salimans and Ho)."""
        (a, s), _ = self._at(t, x)
        return a * x - s * v


def endpoint_mean(x: Tensor, v: Tensor, sigma: Scalar) -> Tensor:
    """Endpoint mean ``x - sigma v`` of a diffusers flow prediction ``v = noise - data`` at noise level ``sigma``."""
    return x - _expand(sigma, x) * v


def velocity_from_mean(mu: Tensor, x: Tensor, sigma: Scalar) -> Tensor:
    """Diffusers' ``v = (x - mu) / sigma`` of an endpoint mean.

    Raises:
        ValueError: ``sigma`` is not above 0 everywhere.
    """
    if not bool((torch.as_tensor(sigma) > 0).all()):  # also refuses nan
        raise ValueError(f"sigma: expected noise levels above 0, got {sigma}")
    return (x - mu) / _expand(sigma, x)


def euler_step(x: Tensor, mu: Tensor, sigma: Scalar, sigma_next: Scalar) -> Tensor:
    """One Euler step written with the endpoint mean: ``(sigma'/sigma) x + (1 - sigma'/sigma) mu``.

    With ``sigma_next = 0`` it returns ``mu``: the last step of a sampler lands on the endpoint mean itself.
    """
    ratio = _expand(torch.as_tensor(sigma_next, dtype=torch.float64) / torch.as_tensor(sigma, dtype=torch.float64), x)
    return ratio * x + (1 - ratio) * mu


@torch.no_grad()
def euler_sample(mean: Any, noise: Tensor, steps: int = 20) -> Tensor:
    """Uniform Euler steps on [1e-3, 1 - 1e-3] of the flow whose endpoint mean is ``mean(x, t)`` with t of shape (b,)."""
    times = torch.linspace(T_EPS, 1 - T_EPS, steps + 1, dtype=torch.float64).tolist()
    x = noise
    for t, after in itertools.pairwise(times):
        mu = mean(x, torch.full((x.shape[0],), t, device=x.device, dtype=x.dtype))
        x = x + (after - t) / (1 - t) * (mu - x)
    return x


def _expand(value: Scalar, x: Tensor) -> Tensor:
    value = torch.as_tensor(value).to(x.device, x.dtype)
    return value.reshape(-1, *[1] * (x.ndim - 1)) if value.ndim == 1 else value
