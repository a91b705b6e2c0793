"""Data of the model: ``n`` sources, ``m`` of them with unit noise, the others as bad as a law says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float

from neurips26.shared import seeding
from neurips26.shared.arrays import check_array, check_choice, check_int, check_real

__all__ = ["NOISE_LAWS", "Sample", "subset_of_signals"]

NOISE_LAWS = ("two-level", "uniform-log", "worst-case")

NoiseLaw = Literal["two-level", "uniform-log", "worst-case"] | Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True)
class Sample:
    """A drawn problem with its truth: what an estimator may see is ``X`` and ``y`` alone."""

    X: Float[np.ndarray, "n d"]
    y: Float[np.ndarray, " n"]
    beta: Float[np.ndarray, " d"]
    sigma: Float[np.ndarray, " n"]
    signal: Bool[np.ndarray, " n"]


def subset_of_signals(
    n: int,
    m: int,
    d: int,
    *,
    noise: NoiseLaw = "two-level",
    bad: float = 1000.0,
    design: np.ndarray | None = None,
    seed: int = 0,
) -> Sample:
    """Draw ``y = X beta + eps`` with ``eps_i ~ N(0, sigma_i^2)`` and ``m`` of the ``sigma_i`` equal to 1.

    Args:
        n: sources.
        m: signals.
        d: dimensions.
        noise: law of the other ``n - m`` standard deviations. ``"two-level"``: all equal to ``bad``; ``"uniform-log"``:
            ``log10`` uniform between 1 and ``10 bad``; ``"worst-case"``: all ``(n/m)^(2/3)``, mild enough to hide
            among the signals (Liang & Yuan's hard case); or a function ``(generator, count) -> standard deviations``.
        bad: scale of the bad sources.
        design: real rows to use for ``X``, shape ``(n, d)``; default independent standard normal ones.
        seed: of the draw.

    Raises:
        ValueError: ``m > n``, ``m < d``, an unknown law, negative standard deviations.
    """
    check_int(n, "n", minimum=1)
    check_int(d, "d", minimum=1)
    check_int(m, "m", minimum=d, maximum=n)
    check_real(bad, "bad", minimum=0.0)
    rng = seeding.rng(seed, "subset-of-signals", n, m, d)
    X = rng.standard_normal((n, d)) if design is None else check_array(design, "design", shape=(n, d), dtype=float)
    beta = rng.standard_normal(d)
    if callable(noise):
        others = check_array(noise(rng, n - m), "noise", shape=(n - m,), dtype=float, allow_empty=True)
        if (others < 0).any():
            raise ValueError(f"noise: expected standard deviations >= 0, got {others.min()}")
    else:
        check_choice(noise, "noise", NOISE_LAWS)
        others = {
            "two-level": lambda: np.full(n - m, bad),
            "uniform-log": lambda: 10 ** rng.uniform(0, np.log10(10 * bad), n - m),
            "worst-case": lambda: np.full(n - m, (n / m) ** (2 / 3)),
        }[noise]()
    order = rng.permutation(n)
    sigma = np.concatenate([np.ones(m), others])[order]
    y = X @ beta + sigma * rng.standard_normal(n)
    return Sample(X, y, beta, sigma, order < m)
