"""What the paper's abstract leaves open, with our value and its alternatives."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Choices"]


@dataclass(frozen=True)
class Choices:
    """Every decision that is ours. The record tests the first two (`lr`, `alpha`) against alternatives.

    Attributes:
        lr: Adam's step size; tuned over {1e-5, 3e-5, 1e-4, 3e-4} with the same grid for every learning method. The grid
            chose 3e-5 or 1e-5, the smallest; smaller ones are the frozen policy.
        alpha: sharpness of the memory's priorities; 0 (uniform) and negative (easy first) are rows of the record.
        entropy_coef: lambda_H relative to s_Q and log N; alternatives {0, 0.03, 0.3, 1}.
        critic: an action-value critic on the onboard observation, categorical (C51) with clipped double Q. A
            state-value critic would
            give the actor no gradient; "the critic's predictive distribution" needs a distribution.
        priority: (v_max - v_i) + 2 % of the range; alternatives: rank-based priorities, critic entropy as the score.
        eviction: "fifo"; alternative "easiest".
        q_scale: Qbar divided by its standard deviation over nominal roll-outs, so that lambda_H transfers between
            robots.
        objective: mean action of the actor; alternative: reparameterised samples (`TTAConfig.stochastic`), for actors
            that come to `make_tta` with a `log_std`.
        protocol: "continual" (nothing is reset between episodes, our reading of "single device"); alternative
            "episodic".
        rough_friction: the rough ground keeps the flat task's friction 0.6 (Playground's own rough scene has 1.0), so
            that only the
            shape of the ground shifts.
        fall: an episode ends with a fall and earns nothing afterwards; learning goes on in the next one. Alternative:
            put the robot back on its legs within the episode and count per tick.
    """

    lr: float = 1e-5
    alpha: float = 0.6
    entropy_coef: float = 0.1
    critic: str = "categorical"
    priority: str = "distance from the easiest"
    eviction: str = "fifo"
    q_scale: str = "nominal standard deviation"
    objective: str = "mean action"
    protocol: str = "continual"
    rough_friction: float = 0.6
    fall: str = "ends the episode"
