"""Every choice the published abstract does not settle, with the alternatives that were open."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CHOICES", "Choices"]


@dataclass(frozen=True)
class Choices:
    """Settings of the mixture estimator and of the truncation family.

    The abstract names no algorithm, so all of this is ours. The two that matter most are the floor of the scale grid and
    its number of points; the tune record holds a run over both.

    Attributes:
        scale_floor: smallest scale of the mixture as a multiple of ``signal_scale``. Alternatives: 0.1, 0.3, 0.9. Without
            a floor the likelihood is unbounded: a fit through ``d`` sources can give them scale zero; with 0.1 a few
            sources near the fit still win so much weight that 95% intervals cover 89% at n = 600. Chosen on tuning draws;
            nearer to one it leaves no room for a scale that is told, or read off, too high.
        grid_size: scales of the mixture, log-spaced. Alternatives: 10, 20, 80.
        truncation_start: quantile of ``|r|`` at which the truncated average starts its window.
        truncation_shrink: factor between windows. Alternatives: 0.5 (faster, may skip the good window), 0.9.
        truncation_window: last window, in signal scales. Three keeps 99.7% of the signals.
        tukey_constant: bisquare constant with 95% efficiency under one scale.
        huber_constant: Huber constant with 95% efficiency under one scale.
    """

    scale_floor: float = 0.6
    grid_size: int = 40
    truncation_start: float = 0.9
    truncation_shrink: float = 0.7
    truncation_window: float = 3.0
    tukey_constant: float = 4.685
    huber_constant: float = 1.345


CHOICES = Choices()
