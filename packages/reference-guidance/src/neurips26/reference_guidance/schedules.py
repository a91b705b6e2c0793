"""Strength schedules ``beta_t`` and the window of steps in which guidance acts."""

from __future__ import annotations

from collections.abc import Callable

from neurips26.shared.arrays import check_choice, check_real

__all__ = ["SCHEDULES", "Schedule", "beta", "check_window", "in_window", "step_fraction"]

Schedule = str | Callable[[float], float]

#: The authors' three schedules as functions of ``t`` at strength 1. Their names for them: constant, bell, quadratic-decay.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda t: 1.0,
    "bell": lambda t: 4.0 * t * (1.0 - t),
    "quadratic": lambda t: (1.0 - t) ** 2,  # cancels the 1/(1-t) of the velocity correction
}


def beta(schedule: Schedule, strength: float | int, t: float) -> float:
    """``beta_t``: strength times the schedule at ``t``."""
    shape = SCHEDULES.get(schedule) if isinstance(schedule, str) else schedule
    if shape is None:
        check_choice(schedule, "schedule", SCHEDULES)  # raises, and names the three
        raise AssertionError
    return float(strength) * float(shape(t))


def step_fraction(step: int, steps: int) -> float:
    """Position of a step among ``steps``, 0 for the first and 1 for the last (1 where there is only one)."""
    return 1.0 if steps <= 1 else step / (steps - 1)


def in_window(step: int, steps: int, window: tuple[float, float]) -> bool:
    """Whether the step fraction lies in the closed window."""
    return window[0] <= step_fraction(step, steps) <= window[1]


def check_window(window: tuple[float | int, float | int]) -> tuple[float, float]:
    """The window as floats; both ends in [0, 1] and in order."""
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise ValueError(f"window: expected two step fractions (start, end), got {window!r}")
    start, end = (check_real(w, "window", minimum=0.0, maximum=1.0) for w in window)
    if start > end:
        raise ValueError(f"window: expected start <= end, got ({start}, {end})")
    return start, end
