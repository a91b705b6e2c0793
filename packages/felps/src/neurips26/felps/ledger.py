"""Service and workload of every adapter, with unknown output lengths and forgetting.

``S_a`` is service delivered (``w_p`` a prefilled token, ``w_q`` an emitted token), ``B_a`` outstanding work (estimated
cost of what is queued or running, less what was served of it), ``C_a`` the part of ``B_a`` that running requests will
still get, ``W_a = S_a + B_a`` the workload and ``rho_a = S_a / W_a`` the served fraction. Without forgetting and with
known lengths, ``W_a`` is exactly the work that arrived.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from neurips26.felps.request import Request
from neurips26.shared.arrays import check_choice, check_real

ESTIMATORS = ("ewma", "max_tokens", "oracle", "fixed")


class OutputEstimator:
    """Predicts a request's output length at arrival (``m_hat``).

    Args:
        kind: ``ewma`` a moving average of the adapter's finished outputs; ``max_tokens`` the client's cap;
            ``oracle`` the truth (simulation only); ``fixed`` the prior for all.
        prior: tokens assumed before an adapter has finished anything.
        rate: weight of the newest output in the moving average.
    """

    def __init__(self, kind: str = "ewma", prior: float = 200.0, rate: float = 0.1) -> None:
        self.kind = check_choice(kind, "estimator", ESTIMATORS)
        self.prior = check_real(prior, "prior_output", minimum=0.0, inclusive=False)
        self.rate = check_real(rate, "ewma_rate", minimum=0.0, maximum=1.0)
        if not self.rate:
            raise ValueError("ewma_rate: expected a number above 0, got 0: nothing would be learned")
        self.mean: dict[int, float] = {}

    def predict(self, request: Request) -> float:
        """``m_hat`` of a request that arrives now."""
        if self.kind == "oracle":
            if request.output_tokens is None:
                raise ValueError(f"estimator='oracle' needs output_tokens, request {request.id!r} has none")
            return float(request.output_tokens)
        if self.kind == "max_tokens":
            return float(request.max_tokens) if request.max_tokens is not None else self.prior
        guess = self.mean.get(request.adapter, self.prior) if self.kind == "ewma" else self.prior
        # Whole tokens: a request then has a definite step at which it outlives its estimate.
        guess = max(1.0, float(round(guess)))
        return guess if request.max_tokens is None else min(guess, float(request.max_tokens))

    def observe(self, adapter: int, output_tokens: int) -> None:
        """Learn from a finished output."""
        if self.kind == "ewma":
            old = self.mean.get(adapter, self.prior)
            self.mean[adapter] = old + self.rate * (output_tokens - old)


@dataclass(slots=True)
class _Open:
    adapter: int
    expected: float  # m_hat
    prompt_left: float
    emitted: int = 0
    running: bool = False


class Ledger:
    """Books of ``S_a``, ``B_a`` and the open requests.

    ``half_life`` in seconds makes ``S_a`` fade by half per half-life (``None``: never); ``B_a`` is real work and never
    fades. Service is stored inflated by ``2**(t / half_life)``, so that fading costs nothing and leaves the order of
    ``S_a / B_a`` between two changes as it is.
    """

    def __init__(
        self, input_price: float, output_price: float, estimator: OutputEstimator, half_life: float | None = None
    ) -> None:
        if half_life is not None:
            half_life = check_real(half_life, "half_life", minimum=0.0, inclusive=False)
        self.input_price, self.output_price = input_price, output_price
        self.estimator = estimator
        self.half_life = half_life
        self.now = 0.0
        self._epoch = 0.0
        self._scale = 1.0  # 2 ** ((now - epoch) / half_life)
        self._served: dict[int, float] = {}  # inflated by _scale at the time of charging
        self.outstanding: dict[int, float] = {}
        self.committed: dict[int, float] = {}  # C_a
        self._open_count: dict[int, int] = {}
        self._open: dict[int | str, _Open] = {}

    # Clock -----------------------------------------------------------------------------------------------------------
    def advance(self, now: float) -> bool:
        """Move the clock (never backwards). True when the inflated numbers were re-based and orders must be redone."""
        if now <= self.now:
            return False
        self.now = now
        if self.half_life is None:
            return False
        exponent = (now - self._epoch) / self.half_life
        if exponent > 200.0:  # far below the float range of 2**1023
            shrink = 2.0 ** -min(exponent, 1000.0)
            for adapter in self._served:
                self._served[adapter] *= shrink
            self._epoch, self._scale = now, 1.0
            return True
        self._scale = 2.0**exponent
        return False

    # Reading ---------------------------------------------------------------------------------------------------------
    def served(self, adapter: int) -> float:
        """``S_a`` now."""
        return self._served.get(adapter, 0.0) / self._scale

    def workload(self, adapter: int) -> float:
        """``W_a = S_a + B_a`` now."""
        return self.served(adapter) + self.outstanding.get(adapter, 0.0)

    def served_fraction(self, adapter: int) -> float:
        """``rho_a`` in [0, 1]; 1 for an adapter without workload."""
        served = self._served.get(adapter, 0.0) / self._scale
        work = served + self.outstanding.get(adapter, 0.0)
        return served / work if work > 0.0 else 1.0

    def promised_fraction(self, adapter: int) -> float:
        """``(S_a + C_a) / W_a``: the served fraction once everything that runs now is done; 1 without workload."""
        served = self._served.get(adapter, 0.0) / self._scale
        work = served + self.outstanding.get(adapter, 0.0)
        return min(1.0, (served + self.committed.get(adapter, 0.0)) / work) if work > 0.0 else 1.0

    def odds(self, adapter: int) -> float:
        """``S_a / B_a`` in inflated units: the same order as ``rho_a`` and unmoved by time."""
        outstanding = self.outstanding.get(adapter, 0.0)
        return self._served.get(adapter, 0.0) / outstanding if outstanding > 0.0 else math.inf

    def expected(self, request_id: int | str) -> float:
        """``m_hat`` of an open request."""
        return self._open[request_id].expected

    def adapters(self) -> list[int]:
        """All adapters that ever had work."""
        return sorted(self._served.keys() | self.outstanding.keys())

    # Writing ---------------------------------------------------------------------------------------------------------
    def arrive(self, request: Request) -> None:
        """A request arrived: its estimated cost is outstanding."""
        if request.id in self._open:
            raise ValueError(f"request id {request.id!r} is already open")
        entry = _Open(request.adapter, self.estimator.predict(request), float(request.prompt_tokens))
        self._open[request.id] = entry
        adapter = request.adapter
        cost = self.input_price * entry.prompt_left + self.output_price * entry.expected
        self.outstanding[adapter] = self.outstanding.get(adapter, 0.0) + cost
        self._open_count[adapter] = self._open_count.get(adapter, 0) + 1

    def start(self, request_id: int | str) -> None:
        """The request runs from now on: what is left of it is committed."""
        entry = self._open[request_id]
        if not entry.running:
            entry.running = True
            self._commit(entry, self._rest(entry, entry.emitted, entry.prompt_left))

    def stop(self, request_id: int | str, emitted: int | None = None, prompt_left: int | None = None) -> None:
        """The request waits again (preempted)."""
        entry = self._open[request_id]
        if entry.running:
            entry.running = False
            entry.emitted = entry.emitted if emitted is None else emitted
            entry.prompt_left = entry.prompt_left if prompt_left is None else float(prompt_left)
            self._commit(entry, -self._rest(entry, entry.emitted, entry.prompt_left))

    def _rest(self, entry: _Open, emitted: int, prompt_left: float) -> float:
        return self.input_price * prompt_left + self.output_price * max(0.0, entry.expected - emitted)

    def _commit(self, entry: _Open, cost: float) -> None:
        self.committed[entry.adapter] = max(0.0, self.committed.get(entry.adapter, 0.0) + cost)

    def charge(
        self, adapter: int, prefill: int | float, decode: int | float, within: int | float, unsettled: int | float = 0
    ) -> None:
        """Book tokens of all running requests of one adapter at once.

        ``within`` is how many of the ``decode`` tokens were still inside their requests' estimates (only those reduce
        ``B_a``); ``unsettled`` is service that pays for no outstanding work (recomputed tokens, when charged).
        """
        gained = self.input_price * (prefill + unsettled) + self.output_price * decode
        self._served[adapter] = self._served.get(adapter, 0.0) + gained * self._scale
        settled = self.input_price * prefill + self.output_price * within
        self.outstanding[adapter] = max(0.0, self.outstanding.get(adapter, 0.0) - settled)
        self.committed[adapter] = max(0.0, self.committed.get(adapter, 0.0) - settled)

    def progress(self, request_id: int | str, prefill: int, decode: int, unsettled: int = 0) -> int:
        """Book tokens of one request; returns its adapter."""
        entry = self._open[request_id]
        prefill = min(prefill, int(entry.prompt_left))
        within = min(float(decode), max(0.0, entry.expected - entry.emitted))
        entry.prompt_left -= prefill
        entry.emitted += decode
        self.charge(entry.adapter, prefill, decode, within, unsettled)
        return entry.adapter

    def skip_prompt(self, request_id: int | str, tokens: int, charged: bool) -> None:
        """Prompt tokens found in the prefix cache: no longer outstanding, and service only when ``charged``."""
        entry = self._open[request_id]
        tokens = min(tokens, int(entry.prompt_left))
        entry.prompt_left -= tokens
        cost = self.input_price * tokens
        self.outstanding[entry.adapter] = max(0.0, self.outstanding[entry.adapter] - cost)
        if entry.running:
            self._commit(entry, -cost)
        if charged:
            self._served[entry.adapter] = self._served.get(entry.adapter, 0.0) + cost * self._scale

    def close(
        self, request_id: int | str, learn: bool, emitted: int | None = None, prompt_left: int | None = None
    ) -> None:
        """End a request: what was estimated and not delivered leaves ``B_a``; delivered service stays in ``S_a``.

        Engines that book by adapter (``charge``) pass how far the request got; others leave that to ``progress``.
        """
        entry = self._open.pop(request_id)
        emitted = entry.emitted if emitted is None else emitted
        prompt_left = entry.prompt_left if prompt_left is None else prompt_left
        adapter = entry.adapter
        rest = self._rest(entry, emitted, prompt_left)
        if entry.running:
            self._commit(entry, -rest)
        self._open_count[adapter] -= 1
        if self._open_count[adapter] == 0:  # exactly: no rounding residue survives an idle moment
            self.outstanding[adapter] = self.committed[adapter] = 0.0
        else:
            self.outstanding[adapter] = max(0.0, self.outstanding[adapter] - rest)
        if learn:
            self.estimator.observe(adapter, emitted)

    # Persistence -----------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict:
        """Delivered service and learned lengths (open requests belong to the engine, which submits them again)."""
        return {
            "now": self.now,
            "served": {str(adapter): self.served(adapter) for adapter in self._served},
            "mean_output": {str(adapter): value for adapter, value in self.estimator.mean.items()},
        }

    def load_state_dict(self, state: dict) -> None:
        """Continue from ``state_dict``."""
        self.now = self._epoch = float(state["now"])
        self._scale = 1.0
        self._served = {int(adapter): float(value) for adapter, value in state["served"].items()}
        self.estimator.mean = {int(adapter): float(value) for adapter, value in state["mean_output"].items()}
