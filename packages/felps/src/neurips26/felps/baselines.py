# ruff: noqa: D102  the overridden hooks are documented once, in Policy
"""The schedulers FELPS is compared with, behind the same interface, each with all three slot modes.

All of them see the same requests, slots and events; none sees a request's true output length except ``sjf`` when it is
told to (``estimator="oracle"``).
"""

from __future__ import annotations

import math
from typing import Any

from neurips26.felps.choices import Choices
from neurips26.felps.ledger import OutputEstimator
from neurips26.felps.policy import LAST, Policy, Rank
from neurips26.felps.request import BASE, Request
from neurips26.shared.arrays import check_real


@Policy.register("fcfs")
class FCFSPolicy(Policy):
    """First come, first served. ``skip`` passes over requests whose adapter cannot enter, as vLLM does since 0.8.3
    (pull request 15422); ``block`` is the strict form with head-of-line blocking.
    """

    uses_service = False

    def rank(self, adapter: int, resident: bool) -> Rank:
        return (*self.head_order(adapter), adapter)


@Policy.register("affinity")
class AffinityPolicy(Policy):
    """Greedy efficiency: resident adapters first, the longest queue first among equals."""

    uses_service = False

    def rank(self, adapter: int, resident: bool) -> Rank:
        queue = self.queues.get(adapter)
        length = 0 if queue is None else len(queue)
        return (0 if resident else 1, -length, *self.head_order(adapter), adapter)


@Policy.register("sjf")
class SJFPolicy(Policy):
    """Shortest job first by (predicted) cost, across adapters and inside each."""

    uses_service = False

    def __init__(self, estimator: str = "ewma", mode: str = "skip", **common: Any) -> None:
        super().__init__(mode, **common)
        self.estimator = OutputEstimator(estimator, Choices.prior_output, Choices.ewma_rate)
        self._cost: dict[int | str, float] = {}
        self._emitted: dict[int | str, int] = {}

    def request_order(self, request: Request) -> float:
        cost = self.input_price * request.prompt_tokens + self.output_price * self.estimator.predict(request)
        self._cost[request.id] = cost
        return cost

    def rank(self, adapter: int, resident: bool) -> Rank:
        queue = self.queues.get(adapter)
        if queue is None or not len(queue):
            return (LAST, 2, LAST, adapter)
        returned, _, sequence, request = queue.head()
        return (self._cost[request.id], returned, sequence, adapter)

    def progressed(self, request: Request, prefill: int, decode: int, recomputed: int) -> None:
        self._emitted[request.id] = self._emitted.get(request.id, 0) + decode

    def ended(self, request: Request, reason: str, emitted: int | None, prompt_left: int | None) -> None:
        self._cost.pop(request.id, None)
        counted = self._emitted.pop(request.id, 0)
        if reason != "abort":
            self.estimator.observe(request.adapter, counted if emitted is None else emitted)

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"estimator": self.estimator.kind}


@Policy.register("vtc")
class VTCPolicy(Policy):
    """Virtual token counters (Sheng et al., OSDI 2024), an adapter taken as a client.

    The counter is charged with ``w_p n`` at admission and ``w_q`` per output token as it comes; the smallest counter
    with a waiting request goes first. An adapter that becomes backlogged is lifted to the smallest counter of the
    backlogged ones, or, when nobody is, to that of the adapter which left the queue last.
    """

    def __init__(self, mode: str = "skip", **common: Any) -> None:
        super().__init__(mode, **common)
        self.counter: dict[int, float] = {}
        self._paid: set[int | str] = set()
        self._last_left: int | None = None

    def rank(self, adapter: int, resident: bool) -> Rank:
        return (self.counter.get(adapter, 0.0), *self.head_order(adapter), adapter)

    def arrived(self, request: Request) -> None:
        adapter = request.adapter
        queue = self.queues.get(adapter)
        if queue is not None and len(queue):
            return
        backlogged = [self.counter.get(other, 0.0) for other, q in self.queues.items() if len(q)]
        if backlogged:
            floor = min(backlogged)
        else:
            floor = 0.0 if self._last_left is None else self.counter.get(self._last_left, 0.0)
        self.counter[adapter] = max(self.counter.get(adapter, 0.0), floor)

    def admitted(self, request: Request) -> None:
        adapter = request.adapter
        if not len(self.queues[adapter]):
            self._last_left = adapter
        if request.id not in self._paid:  # a preempted request paid for its prompt before
            self._paid.add(request.id)
            self.counter[adapter] = self.counter.get(adapter, 0.0) + self.input_price * request.prompt_tokens

    def charged(self, adapter: int, prefill: int, decode: int, within: int) -> None:
        self.counter[adapter] = self.counter.get(adapter, 0.0) + self.output_price * decode

    def ended(self, request: Request, reason: str, emitted: int | None, prompt_left: int | None) -> None:
        self._paid.discard(request.id)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"counter": {str(adapter): value for adapter, value in self.counter.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.counter = {int(adapter): float(value) for adapter, value in state["counter"].items()}
        self.touch_all()


@Policy.register("drr")
class DRRPolicy(Policy):
    """Deficit round robin over the backlogged adapters, output tokens charged as they come (VTC artifact's variant).

    The adapter at the front is served while its deficit counter is positive; otherwise it gains ``quantum`` and goes to
    the back. Nothing is added to a positive counter, so no adapter can save up turns.

    Args:
        quantum: cost units added per turn.
    """

    def __init__(self, quantum: float = 2000.0, mode: str = "skip", **common: Any) -> None:
        super().__init__(mode, **common)
        self.quantum = check_real(quantum, "quantum", minimum=0.0, inclusive=False)
        self.deficit: dict[int, float] = {}
        self._turn: dict[int, int] = {}
        self._turns = 0
        self._paid: set[int | str] = set()

    def rank(self, adapter: int, resident: bool) -> Rank:
        return (self._turn.get(adapter, LAST), adapter)

    def _to_back(self, adapter: int) -> None:
        self._turns += 1
        self._turn[adapter] = self._turns

    def arrived(self, request: Request) -> None:
        adapter = request.adapter
        queue = self.queues.get(adapter)
        if queue is None or not len(queue):
            self.deficit.setdefault(adapter, self.quantum)
            self._to_back(adapter)

    def prepare(self) -> None:
        self._flush()
        while True:
            tops = [heap.top() for heap in (self._resident_heap, self._absent_heap)]
            front = min((a for a in tops if a is not None), key=self._turn.__getitem__, default=None)
            if front is None or self.deficit[front] > 0:
                return
            owing = [adapter for adapter, queue in self.queues.items() if len(queue)]
            if all(self.deficit[adapter] <= 0 for adapter in owing):
                # Everybody owes: play the rounds in which nobody can be served at once.
                rounds = min(math.ceil(-self.deficit[adapter] / self.quantum) for adapter in owing) - 1
                for adapter in owing:
                    self.deficit[adapter] += max(0, rounds) * self.quantum
            self.deficit[front] += self.quantum
            self._to_back(front)
            self._dirty.add(front)
            self._flush()

    def admitted(self, request: Request) -> None:
        if request.id not in self._paid:
            self._paid.add(request.id)
            self.deficit[request.adapter] -= self.input_price * request.prompt_tokens

    def charged(self, adapter: int, prefill: int, decode: int, within: int) -> None:
        self.deficit[adapter] = self.deficit.get(adapter, 0.0) - self.output_price * decode

    def ended(self, request: Request, reason: str, emitted: int | None, prompt_left: int | None) -> None:
        self._paid.discard(request.id)

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"quantum": self.quantum}


@Policy.register("dlpm")
class DLPMPolicy(Policy):
    """Deficit longest prefix match (arXiv 2501.14312) with "longest prefix" replaced by "adapter resident".

    Adapters with a positive deficit counter may be served, resident ones first, then by arrival; when no waiting adapter
    has any deficit left, every waiting adapter gains ``quantum``. The strongest rival in idea: fairness and locality.
    """

    def __init__(self, quantum: float = 8000.0, mode: str = "skip", **common: Any) -> None:
        super().__init__(mode, **common)
        self.quantum = check_real(quantum, "quantum", minimum=0.0, inclusive=False)
        self.deficit: dict[int, float] = {}
        self._paid: set[int | str] = set()

    def rank(self, adapter: int, resident: bool) -> Rank:
        broke = 0 if self.deficit.get(adapter, self.quantum) > 0 else 1
        return (broke, 0 if resident else 1, *self.head_order(adapter), adapter)

    def arrived(self, request: Request) -> None:
        self.deficit.setdefault(request.adapter, self.quantum)

    def prepare(self) -> None:
        self._flush()
        tops = [heap.top() for heap in (self._resident_heap, self._absent_heap)]
        if all(top is None or self.deficit[top] <= 0 for top in tops):
            waiting = [adapter for adapter, queue in self.queues.items() if len(queue)]
            if waiting:
                richest = max(self.deficit[adapter] for adapter in waiting)
                rounds = math.floor(-richest / self.quantum) + 1
                for adapter in waiting:
                    self.deficit[adapter] += rounds * self.quantum
                self._dirty.update(waiting)

    def admitted(self, request: Request) -> None:
        if request.id not in self._paid:
            self._paid.add(request.id)
            self.deficit[request.adapter] -= self.input_price * request.prompt_tokens

    def charged(self, adapter: int, prefill: int, decode: int, within: int) -> None:
        self.deficit[adapter] = self.deficit.get(adapter, self.quantum) - self.output_price * decode

    def ended(self, request: Request, reason: str, emitted: int | None, prompt_left: int | None) -> None:
        self._paid.discard(request.id)

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"quantum": self.quantum}


@Policy.register("dlora")
class DLoRAPolicy(Policy):
    """Resident adapters first, with dLoRA's credit (OSDI 2024) against starvation.

    While an adapter waits it gains credit for the service that overtakes it; above ``threshold`` cost units it goes to
    the front, most credit first. Its credit is spent when it is admitted.
    """

    def __init__(self, threshold: float = 20000.0, mode: str = "skip", **common: Any) -> None:
        super().__init__(mode, **common)
        self.threshold = check_real(threshold, "threshold", minimum=0.0, inclusive=False)
        self._delivered = 0.0
        self._mark: dict[int, float] = {}  # total delivered service when the adapter's credit was last zero

    def credit(self, adapter: int) -> float:
        return self._delivered - self._mark.get(adapter, self._delivered)

    def rank(self, adapter: int, resident: bool) -> Rank:
        if not resident and adapter != BASE and self.credit(adapter) > self.threshold:
            return (0, 0, self._mark[adapter], *self.head_order(adapter), adapter)
        if not resident:
            return (1, 1, self._mark.get(adapter, self._delivered), *self.head_order(adapter), adapter)
        return (1, 0, *self.head_order(adapter), adapter)

    def key(self, adapter: int, resident: bool) -> Rank:
        # Credit grows with time, its order among absent adapters does not: the earliest mark has the most.
        return self.rank(adapter, True) if resident else self.rank(adapter, False)[2:]

    def arrived(self, request: Request) -> None:
        queue = self.queues.get(request.adapter)
        if queue is None or not len(queue):
            self._mark[request.adapter] = self._delivered

    def admitted(self, request: Request) -> None:
        self._mark[request.adapter] = self._delivered

    def charged(self, adapter: int, prefill: int, decode: int, within: int) -> None:
        self._delivered += self.input_price * prefill + self.output_price * decode

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"threshold": self.threshold}
