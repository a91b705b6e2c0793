"""Every choice that the published abstract leaves open, in one place, each with its alternatives.

The abstract fixes four things: a fairness term that adapts proportional fairness (service of each adapter in proportion
to its workload), an efficiency term that prefers adapters already in GPU memory, their weighted combination with an
adjustable weight, and a comparison on real workloads. The rest is ours.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Choices:
    """Defaults of ``FELPSPolicy``; the record's sensitivity run varies ``mode`` and ``estimator``."""

    weight: float = 0.2
    """lambda: tolerated gap of served fractions. No value is published; 0.2 was the knee of our development runs."""

    form: str = "deficit"
    """``deficit`` 1 - rho, bounded, so that lambda has a unit. Alternatives of the same order at lambda = 0: ``ratio``,
    ``log``. A constant in the denominator (W / (S + eps)) would starve adapters whose workload is below it."""

    mode: str = "drain"
    """Best adapter absent and all slots pinned: ``drain`` one slot. Alternatives: ``skip`` (lambda then hardly acts
    under load, because pinned adapters are refilled for ever), ``block`` (the whole batch drains)."""

    estimator: str = "ewma"
    """Unknown output lengths: moving average per adapter. Alternatives: ``max_tokens``, ``fixed``, ``oracle``."""

    prior_output: float = 200.0
    """Output tokens assumed before an adapter has finished a request: near the mean of public chat traces (211, 256)."""

    ewma_rate: float = 0.1
    """Weight of the newest output in the moving average: a memory of about ten requests."""

    half_life: float | None = None
    """Forgetting of delivered service in seconds. ``None``: the classic cumulative form."""

    input_price: float = 1.0
    """w_p, cost of a prompt token (VTC's convention)."""

    output_price: float = 2.0
    """w_q, cost of an output token (VTC's convention)."""

    residency: str = "binary"
    """Efficiency term: resident or not. Alternative ``cost``: an absent adapter keeps 1 - load cost / largest."""

    max_draining: int | None = None
    """Slots that may be drained at once. ``None``: one for each waiting adapter that is ahead."""

    charge_recompute: bool = False
    """Charge tokens that a preemption made the engine compute again. It is not the adapter's doing: no."""

    charge_cached: bool = False
    """Charge prompt tokens found in a prefix cache. They cost the engine nothing: no."""

    commit: bool = False
    """Count what running requests will still get as served, so that several requests admitted in one step do not all go to the
    adapter that was behind before it. On our development runs this cost throughput and gained no fairness: no."""
