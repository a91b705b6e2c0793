"""Kernel analysis: how well the leading directions of the look-back's kernel explain the target.

The window kernel is ``K_X = X X^T`` and the target kernel ``K_Y = Y Y^T``. Nothing here forms an ``N x N`` matrix: every
quantity is a function of the window statistics ``G``, ``C`` and ``Y^T Y``.
"""

from __future__ import annotations

import bisect
import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg as sla
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike

from .nn import FilterBank, InstanceNorm
from .stats import WindowStats


@dataclass(frozen=True)
class AlignmentCurve:
    """The spectral alignment of a task.

    Attributes:
        eigenvalues: ``lam_i`` of the feature Gram matrix, largest first.
        power: ``p_i``, share of ``tr(Y^T Y)`` explained by eigen-direction ``i``.
        target_energy: ``tr(Y^T Y)``.
        count: number of windows N.
    """

    eigenvalues: Float[np.ndarray, " k"]
    power: Float[np.ndarray, " k"]
    target_energy: float
    count: float

    @property
    def cumulative(self) -> Float[np.ndarray, " k"]:
        """``P(k)``: share of the target's energy that the top ``k`` directions explain; the last is R^2 of OLS."""
        return np.cumsum(self.power)

    @property
    def r_squared(self) -> float:
        """``P(L)``."""
        return float(self.power.sum())

    def k_at(self, share: float = 0.95, of: float | None = None) -> int:
        """The smallest ``k`` with ``P(k) >= share * of``, where ``of`` is ``P(L)`` unless given; one more than there are
        directions if no ``k`` is enough.
        """
        return int(np.searchsorted(self.cumulative, share * (self.r_squared if of is None else of) - 1e-15) + 1)

    @property
    def area(self) -> float:
        """Mean of ``P(k) / P(L)`` over ``k``: 1 when the first direction explains all that can be explained."""
        return float(np.mean(self.cumulative / self.r_squared)) if self.r_squared > 0 else 0.0


def alignment_curve(stats: WindowStats, features: Float[np.ndarray, "l k"] | None = None) -> AlignmentCurve:
    """Spectral alignment of the task, or of a model whose (linear) features are ``x A`` with ``A`` = ``features``."""
    gram, cross = stats.gram, stats.cross
    if features is not None:
        gram, cross = features.T @ gram @ features, features.T @ cross
    return _curve(gram, cross, float(np.trace(stats.target)), stats.count)


def feature_alignment(features: Float[np.ndarray, "n k"], targets: Float[np.ndarray, "n h"]) -> AlignmentCurve:
    """The same for any features, e.g. a deep network's last layer over ``n`` windows."""
    features, targets = np.asarray(features, dtype=float), np.asarray(targets, dtype=float)
    return _curve(features.T @ features, features.T @ targets, float((targets**2).sum()), len(features))


def _curve(gram: np.ndarray, cross: np.ndarray, energy: float, count: float) -> AlignmentCurve:
    values, vectors = sla.eigh(gram, driver="evd", check_finite=False)
    values, vectors = values[::-1], vectors[:, ::-1]
    keep = values > 1e-12 * max(values[0], np.finfo(float).tiny)
    power = ((vectors.T @ cross) ** 2).sum(1)
    power = np.where(keep, power / np.where(keep, values, 1.0), 0.0) / max(energy, np.finfo(float).tiny)
    return AlignmentCurve(np.maximum(values, 0.0), power, energy, count)


def cka(stats: WindowStats) -> float:
    """Linear kernel alignment ``<K_X, K_Y> / (||K_X|| ||K_Y||) = ||C||^2 / (||G|| ||Y^T Y||)``.

    Instance normalisation takes the place of the centring.
    """
    norm = np.linalg.norm
    return float(norm(stats.cross) ** 2 / (norm(stats.gram) * norm(stats.target)))


def learning_curve_gd(curve: AlignmentCurve, steps: ArrayLike, rate: float) -> Float[np.ndarray, " t"]:
    """Training loss (sum of squares) of full-batch gradient descent from zero after ``steps`` steps, in closed form.

    The step is ``W <- W + (rate / N) X^T (Y - X W)``; direction ``i`` is learnt as ``1 - (1 - rate lam_i / N)^t``.
    """
    decay = 1.0 - rate * curve.eigenvalues / curve.count
    learnt = 1.0 - decay[None, :] ** (2.0 * np.asarray(steps, dtype=float)[:, None])
    return curve.target_energy * (1.0 - learnt @ curve.power)


def steps_to_learn(curve: AlignmentCurve, share: float = 0.95) -> int:
    """Steps that full-batch gradient descent with the rate ``N / lam_1`` needs for ``share`` of what it can learn."""
    rate, goal = curve.count / curve.eigenvalues[0], curve.target_energy * (1.0 - share * curve.r_squared)

    def enough(steps: int) -> bool:
        return bool(learning_curve_gd(curve, [steps], rate)[0] <= goal)

    high = 1
    while not enough(high):
        high *= 2
    return high // 2 + 1 + bisect.bisect_left(range(high // 2 + 1, high), True, key=enough)


def bank_kernel(
    analysis: Float[np.ndarray, "l r"],
    synthesis: Float[np.ndarray, "r h"],
    x: Float[np.ndarray, "n l"],
    trace: bool = False,
) -> Float[np.ndarray, "n h n h"] | Float[np.ndarray, "n n"]:
    """Neural tangent kernel of the global bank ``f(x) = x A B`` between all pairs of rows of ``x``; ``trace`` sums over
    outputs.

    ``Theta(x, x') = (x . x') B^T B + (A^T x) . (A^T x') I_H``: the first term from A, the second from B.
    """
    coefficients = x @ analysis
    horizon = synthesis.shape[1]
    if trace:
        return (synthesis**2).sum() * (x @ x.T) + horizon * (coefficients @ coefficients.T)
    return np.einsum("nm,hk->nhmk", x @ x.T, synthesis.T @ synthesis) + np.einsum(
        "nm,hk->nhmk", coefficients @ coefficients.T, np.eye(horizon)
    )


def empirical_kernel(
    model: torch.nn.Module, x: Float[torch.Tensor, "n l"], trace: bool = False
) -> Float[np.ndarray, "n h n h"] | Float[np.ndarray, "n n"]:
    """Neural tangent kernel of any torch model by ``torch.func``; ``trace`` sums over outputs."""
    from torch.func import functional_call, jacrev, vmap

    parameters = {k: v.detach() for k, v in model.named_parameters() if v.requires_grad}

    def single(p: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
        return functional_call(model, p, (row[None],)).squeeze(0)

    jacobian: Callable = vmap(jacrev(single), in_dims=(None, 0))
    parts = [j.flatten(2) for j in jacobian(parameters, x).values()]  # n, h, parameters
    spec = "nhp,mhp->nm" if trace else "nhp,mkp->nhmk"
    return torch.stack([torch.einsum(spec, part, part) for part in parts]).sum(0).numpy()


def tangent_metric(bank: FilterBank) -> Float[np.ndarray, "l l"]:
    """``M`` of a bank's tangent kernel summed over outputs, ``Theta(x, x') = x^T M x'`` on normalised look-backs.

    The gradient of a linear forecaster is linear in its input, so the kernel between the unit look-backs is all of it.
    """
    plain = copy.deepcopy(bank)
    plain.norm = InstanceNorm("none")
    return np.asarray(empirical_kernel(plain, torch.eye(bank.lookback, dtype=bank.analysis.dtype), trace=True), float)


def metric_alignment(stats: WindowStats, metric: Float[np.ndarray, "l l"]) -> AlignmentCurve:
    """Spectral alignment of the kernel ``x^T M x'``, from the moments of all windows: that of the features ``M^{1/2} x``."""
    values, vectors = sla.eigh(metric, driver="evd", check_finite=False)
    return alignment_curve(stats, vectors * np.sqrt(np.maximum(values, 0.0)))


def phase_randomised(z: Float[np.ndarray, "t c"], rng: np.random.Generator) -> Float[np.ndarray, "t c"]:
    """A surrogate with the same periodogram and random phases: it keeps second moments, hence lag covariance and
    alignment, and destroys everything else.
    """
    spectrum = np.fft.rfft(z, axis=0)
    phase = rng.uniform(0.0, 2.0 * np.pi, size=(len(spectrum), 1))
    phase[0] = 0.0
    if len(z) % 2 == 0:
        phase[-1] = 0.0
    return np.fft.irfft(spectrum * np.exp(1j * phase), n=len(z), axis=0)


def time_shuffled(z: Float[np.ndarray, "t c"], rng: np.random.Generator) -> Float[np.ndarray, "t c"]:
    """A surrogate with the same values in random order: nothing is left to forecast but the mean."""
    return rng.permutation(z, axis=0)
