"""What the paper's abstract leaves open, with our value and its alternatives: the source of the package's defaults."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULTS", "Choices"]


@dataclass(frozen=True)
class Choices:
    """Every number and every rule that is ours. The record varies the first three.

    Four more are no settings. The critic is an action-value critic on the onboard observation, categorical (C51) with
    clipped double Q: a state-value critic would give the actor no gradient, and "the critic's predictive distribution"
    needs one. Qbar is divided by its standard deviation over nominal roll-outs, and the entropy by log N, so that
    lambda_H means the same for every robot. Rough ground keeps the flat task's friction (Playground's own rough scene
    has 1.0), so that only the shape of the ground shifts. An episode ends with a fall and earns nothing afterwards, and
    learning goes on in the next one (instead of putting the robot back on its legs and counting per tick).

    Attributes:
        lr: Adam's step size; the tune tier's grid has 1e-5 to 3e-4, the record's claim about stability goes up to 3e-3.
            Adam's customary 1e-4 loses return even where nothing has shifted.
        entropy_coef: lambda_H; the grid has 0, 0.03, 0.1, 0.3 and 1.
        alpha: sharpness of the memory's priorities; 0 (uniform), 0.3, 1 and negative (easy first) are rows of the record.
        batch_size: B observations an update.
        update_every: control ticks between updates.
        capacity: M entries of the memory.
        priority_floor: share of the score range that the easiest entry still gets. Alternatives to a priority by
            distance from the easiest: by rank, or by the critic's entropy.
        eviction: "fifo"; alternative "easiest".
        protocol: "continual" (nothing is reset between episodes, our reading of "single device"); alternative "episodic".
    """

    lr: float = 1e-5
    entropy_coef: float = 0.1
    alpha: float = 0.6
    batch_size: int = 32
    update_every: int = 4
    capacity: int = 512
    priority_floor: float = 0.02
    eviction: str = "fifo"
    protocol: str = "continual"


DEFAULTS = Choices()
