# ruff: noqa: D102  the overridden hooks are documented once, in Policy
"""FELPS: proportional fairness plus a residency bonus, one weight between them.

Maximising ``sum_a W_a log S_a`` under a capacity gives ``S_a`` proportional to ``W_a``; its greedy scheduler serves the
adapter with the largest ``W_a / S_a = 1 / rho_a``. The bounded form ``f_a = 1 - rho_a`` has the same order and gives the
weight a unit: with ``P_a = f_a + lambda * e_a`` an absent adapter ``b`` displaces a resident ``a`` exactly when
``rho_a - rho_b > lambda``. Lambda is the gap of served fractions that is tolerated before a load is paid for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from neurips26.felps.choices import Choices
from neurips26.felps.ledger import Ledger, OutputEstimator
from neurips26.felps.policy import Policy, Rank
from neurips26.felps.request import BASE, Request
from neurips26.shared.arrays import check_choice, check_real

_DIGITS = 12  # priorities closer than this are a tie: rounding must not decide who pays for a load


def resolve_weight(weight: float | None, alpha: float | None) -> float:
    """The weight ``lambda >= 0`` from either spelling, ``lambda`` itself or ``alpha = lambda / (1 + lambda)``."""
    if weight is not None and alpha is not None:
        raise ValueError("give weight or alpha, not both")
    if alpha is not None:
        alpha = check_real(alpha, "alpha", minimum=0.0)
        if alpha >= 1:
            raise ValueError(f"alpha: expected a number in [0, 1), got {alpha}")
        return alpha / (1.0 - alpha)
    return check_real(Choices.weight if weight is None else weight, "weight", minimum=0.0)


def _load_costs(costs: Mapping[int | str, float] | None) -> dict[int, float]:
    """Seconds by adapter id; JSON, and so vLLM's configuration, knows ids as text only."""
    if not isinstance(costs, Mapping) or not costs:
        raise ValueError(f"residency='cost' needs load_cost, the seconds to load each adapter, got {costs!r}")
    try:
        table = {int(adapter): check_real(seconds, "load_cost", minimum=0.0) for adapter, seconds in costs.items()}
    except ValueError as error:
        raise ValueError(f"load_cost: expected adapter id -> seconds, got {costs!r} ({error})") from None
    if not max(table.values()) > 0.0:
        raise ValueError("load_cost: expected an adapter that takes time to load, got 0 for all")
    return table


@Policy.register("felps")
class FELPSPolicy(Policy):
    """Fairness-aware efficient LoRA priority scheduling.

    Args:
        weight: ``lambda``; 0 is proportional fairness alone, from 1 on residency comes first (larger values act as 1
            under the default form). Default 0.2.
        alpha: the same knob as ``lambda / (1 + lambda)``; give one of the two.
        form: fairness term: ``deficit`` ``1 - rho``; ``ratio`` ``(W/S) / max_b (W_b/S_b)``; ``log`` ``log((W+1)/(S+1))``.
        mode, input_price, output_price, max_draining: see ``Policy``; ``drain`` is the default here.
        half_life: seconds after which old service counts half; ``None`` keeps all history.
        estimator, prior_output, ewma_rate: prediction of unknown output lengths, see ``OutputEstimator``.
        residency: ``binary`` (resident or not) or ``cost`` (an absent adapter keeps ``1 - load cost / largest``).
        load_cost: seconds to load each adapter, needed by ``residency="cost"``.
        charge_recompute: also charge tokens computed again after a preemption.
        charge_cached: also charge prompt tokens found in a prefix cache.
        commit: count what running requests will still get as served already. Otherwise an adapter at the head of the
            order takes every sequence that is free before its first token is booked.
    """

    uses_expected = True

    def __init__(
        self,
        weight: float | None = None,
        *,
        alpha: float | None = None,
        form: str = Choices.form,
        mode: str = Choices.mode,
        half_life: float | None = Choices.half_life,
        input_price: float = Choices.input_price,
        output_price: float = Choices.output_price,
        estimator: str = Choices.estimator,
        prior_output: float = Choices.prior_output,
        ewma_rate: float = Choices.ewma_rate,
        residency: str = Choices.residency,
        load_cost: Mapping[int | str, float] | None = None,
        max_draining: int | None = Choices.max_draining,
        charge_recompute: bool = Choices.charge_recompute,
        charge_cached: bool = Choices.charge_cached,
        commit: bool = Choices.commit,
    ) -> None:
        super().__init__(mode, input_price, output_price, max_draining)
        self.form = check_choice(form, "form", ("deficit", "ratio", "log"))
        self.residency = check_choice(residency, "residency", ("binary", "cost"))
        self.weight = resolve_weight(weight, alpha)
        switches = {"charge_recompute": charge_recompute, "charge_cached": charge_cached, "commit": commit}
        for name, switch in switches.items():
            if not isinstance(switch, bool):
                raise TypeError(f"{name}: expected true or false, got {switch!r}")
        self.charge_recompute, self.charge_cached, self.commit = switches.values()
        self.load_cost = _load_costs(load_cost) if residency == "cost" else {}
        self._dearest = max(self.load_cost.values(), default=0.0)
        self.ledger = Ledger(
            self.input_price, self.output_price, OutputEstimator(estimator, prior_output, ewma_rate), half_life
        )
        # Orders that move with time or with other adapters cannot be kept in a heap: these rare options rank all anew.
        self._rank_all = form == "ratio" or (half_life is not None and (residency == "cost" or form == "log"))

    # Terms -----------------------------------------------------------------------------------------------------------
    def served_fraction(self, adapter: int) -> float:
        """``rho_a``, with what running requests will still get counted as served when ``commit``."""
        return self.ledger.promised_fraction(adapter) if self.commit else self.ledger.served_fraction(adapter)

    def fairness(self, adapter: int) -> float:
        """``f_a``."""
        if self.form == "deficit":
            return 1.0 - self.served_fraction(adapter)
        if self.form == "log":
            work = self.ledger.workload(adapter)
            return math.log((work + 1.0) / (work * self.served_fraction(adapter) + 1.0))
        rho = self.served_fraction(adapter)
        return 1.0 if rho <= self._least else self._least / rho

    def efficiency(self, adapter: int, resident: bool) -> float:
        """``e_a``."""
        if resident or adapter == BASE:
            return 1.0
        if self.residency == "binary":
            return 0.0
        return 1.0 - self.load_cost.get(adapter, self._dearest) / self._dearest

    def priority(self, adapter: int, resident: bool | None = None) -> float:
        """``P_a = f_a + lambda e_a``."""
        resident = self.slots.holds(adapter) if resident is None else resident
        return self.fairness(adapter) + self.weight * self.efficiency(adapter, resident)

    def set_weight(self, weight: float) -> None:
        """Change ``lambda`` while serving."""
        self.weight = resolve_weight(weight, None)
        self.touch_all()

    # Policy ----------------------------------------------------------------------------------------------------------
    def rank(self, adapter: int, resident: bool) -> Rank:
        # Equal priorities: the resident one stays (a gap must exceed lambda), except that lambda = 0 knows no residency.
        gain = self.weight * self.efficiency(adapter, resident)
        stays = 0 if resident or self.weight == 0.0 else 1
        return (-round(self.fairness(adapter) + gain, _DIGITS), stays, *self.head_order(adapter), adapter)

    def key(self, adapter: int, resident: bool) -> Rank:
        if resident or self.ledger.half_life is None or self._rank_all:
            return self.rank(adapter, resident)
        # Nothing of an absent adapter runs: the order of S / B among them is that of rho and does not move with time.
        return (self.ledger.odds(adapter), *self.head_order(adapter), adapter)

    def prepare(self) -> None:
        if self._rank_all:
            waiting = [adapter for adapter, queue in self.queues.items() if len(queue)]
            self._least = min(map(self.served_fraction, waiting), default=1.0)
            self._dirty.update(waiting)
        elif self.ledger.half_life is not None:
            self._dirty.update(self.slots.resident)

    def clock_moved(self, now: float) -> None:
        if self.ledger.advance(now):
            self.touch_all()
        elif self.ledger.half_life is not None:
            self._choice = None

    def arrived(self, request: Request) -> None:
        self.ledger.arrive(request)

    def admitted(self, request: Request) -> None:
        self.ledger.start(request.id)

    def preempted(self, request: Request, emitted: int | None, prompt_left: int | None) -> None:
        self.ledger.stop(request.id, emitted, prompt_left)

    def charged(self, adapter: int, prefill: int, decode: int, within: int) -> None:
        self.ledger.charge(adapter, prefill, decode, within)

    def progressed(self, request: Request, prefill: int, decode: int, recomputed: int) -> None:
        self.ledger.progress(request.id, prefill, decode, recomputed if self.charge_recompute else 0)

    def cached(self, request: Request, tokens: int) -> None:
        self.ledger.skip_prompt(request.id, tokens, self.charge_cached)

    def ended(self, request: Request, reason: str, emitted: int | None, prompt_left: int | None) -> None:
        self.ledger.close(request.id, reason != "abort", emitted, prompt_left)

    _least = 1.0

    def describe(self) -> dict[str, Any]:
        settings = super().describe() | {"weight": self.weight, "estimator": self.ledger.estimator.kind}
        if self.form != Choices.form:
            settings["form"] = self.form
        if self.ledger.half_life is not None:
            settings["half_life"] = self.ledger.half_life
        if self.commit != Choices.commit:
            settings["commit"] = self.commit
        if self.residency != Choices.residency:
            settings["residency"] = self.residency
        return settings

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"weight": self.weight, "ledger": self.ledger.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.weight = resolve_weight(state["weight"], None)
        self.ledger.load_state_dict(state["ledger"])
        self.now = self.ledger.now
        self.touch_all()
