"""The interface of a scheduling policy, and the admission rule all policies here share.

One policy object serves the simulator, the CPU engine and the vLLM plug-in. The engine reports events
(``on_arrival``, ``on_scheduled``, ``on_finished`` ...), owns the adapter slots, and asks ``peek`` / ``pop`` or
``select`` whom to admit next. A policy says how good each adapter is through ``rank`` (smaller is first); the rest is
common: first come, first served inside an adapter, two lazy heaps (resident and absent adapters) so that a decision
costs ``O(log A)``, and three ways to treat a best adapter that finds every slot pinned:

* ``skip``: take the next adapter that can run (vLLM's loop);
* ``block``: admit nobody until a slot frees;
* ``drain``: stop admitting to the worst pinned adapter that ranks behind it, so that one slot empties, and go on
  admitting to the others.
"""

# ruff: noqa: B027  hooks that most policies do not need are empty on purpose
from __future__ import annotations

import heapq
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, cast, runtime_checkable

from neurips26.felps.request import Request
from neurips26.felps.slots import AdapterSlots
from neurips26.shared.arrays import check_choice, check_int, check_real

MODES = ("skip", "block", "drain")
LAST = math.inf
Rank = tuple
Kind = TypeVar("Kind", bound=type)
"""A policy's class; ``register`` gives back the very class it got."""


@runtime_checkable
class EngineView(Protocol):
    """What ``select`` needs to know of an engine's step."""

    now: float

    def can_admit(self, request: Request) -> bool:
        """Sequence slot, token budget and KV memory suffice for this request now."""
        ...

    def admit(self, request: Request) -> tuple[bool, int | None]:
        """Take it: pin the adapter; returns (had to be loaded, evicted adapter or None)."""
        ...


@dataclass(frozen=True, slots=True)
class Admission:
    """One admitted request; ``load`` says its adapter had to be loaded, in place of ``evicted`` if that is not None."""

    request: Request
    load: bool
    evicted: int | None


class RequestQueue:
    """Waiting requests of one adapter: by ``order`` (arrival unless a policy says otherwise), returned ones first."""

    __slots__ = ("_heap", "_ids", "_returned")

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, int, Request]] = []
        self._ids: dict[int | str, int] = {}  # id -> sequence of its live entry
        self._returned = 0

    def __len__(self) -> int:
        return len(self._ids)

    def push(self, request: Request, order: float, sequence: int) -> None:
        """Queue a new request; ``sequence`` numbers arrivals."""
        self._ids[request.id] = sequence
        heapq.heappush(self._heap, (1, order, sequence, request))

    def push_front(self, request: Request) -> None:
        """A preempted request goes back to the head, in front of those given back before it."""
        self._returned -= 1
        self._ids[request.id] = self._returned
        heapq.heappush(self._heap, (0, float(self._returned), self._returned, request))

    def head(self) -> tuple[int, float, int, Request]:
        """First entry: (0 returned / 1 fresh, order, sequence, request)."""
        heap = self._heap
        while self._ids.get(heap[0][3].id) != heap[0][2]:
            heapq.heappop(heap)
        return heap[0]

    def pop(self) -> Request:
        """Take the first request out."""
        request = self.head()[3]
        heapq.heappop(self._heap)
        del self._ids[request.id]
        return request

    def remove(self, request_id: int | str) -> bool:
        """Take a request out wherever it stands; False when it is not here."""
        return self._ids.pop(request_id, None) is not None

    def __contains__(self, request_id: int | str) -> bool:
        return request_id in self._ids

    def __iter__(self) -> Iterator[Request]:
        return (entry[3] for entry in sorted(self._heap, key=lambda e: e[:3]) if self._ids.get(entry[3].id) == entry[2])


class RankHeap:
    """Adapters by rank with lazy deletion: ``O(log A)`` per change, stale entries dropped when met."""

    __slots__ = ("_heap", "_rank")

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, int]] = []
        self._rank: dict[int, Rank] = {}

    def set(self, adapter: int, rank: Rank) -> None:
        """Insert an adapter or change its rank."""
        if self._rank.get(adapter) != rank:
            self._rank[adapter] = rank
            heapq.heappush(self._heap, (rank, adapter))
            if len(self._heap) > 4 * len(self._rank) + 64:
                self._heap = [(rank, adapter) for adapter, rank in self._rank.items()]
                heapq.heapify(self._heap)

    def discard(self, adapter: int) -> None:
        """Remove an adapter if it is here."""
        self._rank.pop(adapter, None)

    def top(self) -> int | None:
        """The first adapter, None when empty."""
        heap, rank = self._heap, self._rank
        while heap:
            if rank.get(heap[0][1]) == heap[0][0]:
                return heap[0][1]
            heapq.heappop(heap)
        return None

    def ordered(self, excluded: set[int] | None = None) -> Iterator[int]:
        """Adapters best first; entries taken are put back when the iteration ends."""
        taken: list[tuple[Rank, int]] = []
        try:
            while self.top() is not None:
                entry = heapq.heappop(self._heap)
                taken.append(entry)
                del self._rank[entry[1]]  # hides duplicates of the same entry
                if excluded is None or entry[1] not in excluded:
                    yield entry[1]
        finally:
            for entry in taken:
                self._rank[entry[1]] = entry[0]
                heapq.heappush(self._heap, entry)

    def __contains__(self, adapter: int) -> bool:
        return adapter in self._rank

    def __len__(self) -> int:
        return len(self._rank)


def _options(policy: type) -> list[str]:
    """Names of the arguments that a policy's class takes, those it hands on to its base included."""
    names: list[str] = []
    for base in policy.__mro__:
        if "__init__" in vars(base):
            parameters = list(inspect.signature(base.__init__).parameters.values())[1:]
            names += [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break
    return names


class Policy(ABC):
    """Base class of all policies. Subclasses implement ``rank`` and the hooks they need.

    Args:
        mode: what to do when the best adapter finds every slot pinned: ``skip``, ``block`` or ``drain``.
        input_price: ``w_p``, cost of one prompt token. VTC's convention is 1.
        output_price: ``w_q``, cost of one output token. VTC's convention is 2.
        max_draining: how many pinned adapters may be drained at the same time (``None``: any number).
    """

    name: ClassVar[str] = ""
    uses_service: ClassVar[bool] = True
    """False for policies that never look at delivered tokens: engines may then skip reporting them."""
    uses_expected: ClassVar[bool] = False
    """True when ``charge`` wants to know which tokens were inside their requests' length estimates."""
    _registry: ClassVar[dict[str, type[Policy]]] = {}

    def __init__(
        self,
        mode: str = "skip",
        input_price: float = 1.0,
        output_price: float = 2.0,
        max_draining: int | None = None,
    ) -> None:
        self.mode = check_choice(mode, "mode", MODES)
        self.input_price = check_real(input_price, "input_price", minimum=0.0, inclusive=False)
        self.output_price = check_real(output_price, "output_price", minimum=0.0, inclusive=False)
        self.max_draining = None if max_draining is None else check_int(max_draining, "max_draining", minimum=1)
        self.now = 0.0
        self.slots: AdapterSlots | None = None
        self.queues: dict[int, RequestQueue] = {}
        self.waiting = 0
        self._resident_heap, self._absent_heap = RankHeap(), RankHeap()
        self._dirty: set[int] = set()
        self._sequence = 0
        self._choice: Request | None = None
        self._choice_version = -1

    # Registry --------------------------------------------------------------------------------------------------------
    @staticmethod
    def register(name: str) -> Callable[[Kind], Kind]:
        """Class decorator: make a policy known under ``name`` to the command line, the sweeps and the plug-in."""

        def add(cls: Kind) -> Kind:
            policy = cast("type[Policy]", cls)
            if Policy._registry.get(name, policy) is not policy:
                raise ValueError(f"a policy named {name!r} is already registered")
            policy.name = name
            Policy._registry[name] = policy
            return cls

        return add

    @staticmethod
    def make(name: str, **options: Any) -> Policy:
        """Build a registered policy (third parties register through the entry-point group ``felps.policies``)."""
        if name not in Policy._registry:
            from importlib.metadata import entry_points

            for point in entry_points(group="felps.policies"):
                if point.name == name:
                    Policy._registry[name] = point.load()
        if name not in Policy._registry:
            raise ValueError(f"policy must be one of {', '.join(sorted(Policy._registry))}, got {name!r}")
        policy = Policy._registry[name]
        known = _options(policy)
        for option in options:
            if option not in known:
                raise ValueError(f"{name}: expected options among {', '.join(known)}, got {option!r}")
        return policy(**options)

    # Engine side: events ---------------------------------------------------------------------------------------------
    def bind(self, slots: AdapterSlots) -> None:
        """Connect to the engine's slots; the policy then follows loads and evictions.

        Raises:
            ValueError: an engine has it already. A policy keeps its history: each run needs one of its own.
        """
        if self.slots is not None:
            raise ValueError(
                f"policy: expected a fresh {self.name or type(self).__name__}, got one that an engine has used"
            )
        self.slots = slots
        slots.listener = self
        for adapter in self.queues:
            self.touch(adapter)

    def on_arrival(self, request: Request, now: float) -> None:
        """A request enters the queue of its adapter."""
        self._advance(now)
        self.arrived(request)
        self._sequence += 1
        queue = self.queues.get(request.adapter)
        if queue is None:
            queue = self.queues[request.adapter] = RequestQueue()
        queue.push(request, self.request_order(request), self._sequence)
        self.waiting += 1
        self.touch(request.adapter)

    def on_scheduled(
        self, request: Request, prefill_tokens: int, decode_tokens: int, now: float, recomputed: int = 0
    ) -> None:
        """Tokens processed for one running request (``recomputed`` ones were processed before a preemption)."""
        self._advance(now)
        self.progressed(request, prefill_tokens, decode_tokens, recomputed)
        self.touch(request.adapter)

    def on_batch(self, charges: list[tuple[int, int, int, int]], now: float) -> None:
        """The same for a whole step at once: (adapter, prefill tokens, decode tokens, decode tokens inside estimates).

        Engines that use it pass ``emitted`` and ``prompt_left`` to ``on_finished`` and ``on_preempted``.
        """
        self._advance(now)
        for adapter, prefill, decode, within in charges:
            self.charged(adapter, prefill, decode, within)
            self._dirty.add(adapter)
        self._choice = None

    def on_preempted(
        self, request: Request, now: float, emitted: int | None = None, prompt_left: int | None = None
    ) -> None:
        """A running request lost its memory and waits again, at the head of its adapter's queue."""
        self._advance(now)
        self.preempted(request, emitted, prompt_left)
        queue = self.queues.setdefault(request.adapter, RequestQueue())
        queue.push_front(request)
        self.waiting += 1
        self.touch(request.adapter)

    def on_finished(
        self,
        request: Request,
        now: float,
        reason: str = "stop",
        emitted: int | None = None,
        prompt_left: int | None = None,
    ) -> None:
        """A request ended: ``stop`` or ``length``, or ``abort`` at any time, also while it waits."""
        self._advance(now)
        self.withdraw(request)
        self.ended(request, reason, emitted, prompt_left)
        self.touch(request.adapter)

    def withdraw(self, request: Request) -> None:
        """Take a waiting request out of its queue; its books stay open until ``on_finished``."""
        queue = self.queues.get(request.adapter)
        if queue is not None and queue.remove(request.id):
            self.waiting -= 1
            self.touch(request.adapter)

    def on_cached(self, request: Request, tokens: int, now: float) -> None:
        """Prompt tokens of ``request`` were found in a prefix cache and need no prefill."""
        self._advance(now)
        self.cached(request, tokens)
        self.touch(request.adapter)

    def on_adapter_loaded(self, adapter: int) -> None:
        """The adapter entered a slot."""
        self._absent_heap.discard(adapter)
        self.touch(adapter)

    def on_adapter_evicted(self, adapter: int) -> None:
        """The adapter left its slot."""
        self._resident_heap.discard(adapter)
        self.touch(adapter)

    # Engine side: decisions ------------------------------------------------------------------------------------------
    def peek(self, now: float) -> Request | None:
        """The request to admit next, or None when nobody may be admitted now. Stable until something changes."""
        if self.slots is None:
            raise RuntimeError("bind(slots) must be called before the first decision")
        self._advance(now)
        if self._choice is None or self._choice_version != self.slots.version:
            self._choice = None
            adapter = self._choose() if self.waiting else None
            if adapter is not None:
                self._choice = self.queues[adapter].head()[3]
                self._choice_version = self.slots.version
        return self._choice

    def pop(self, now: float) -> Request:
        """Take the request that ``peek`` offers out of the queue."""
        request = self.peek(now)
        if request is None:
            raise IndexError("no request may be admitted")
        self.queues[request.adapter].pop()
        self.waiting -= 1
        self.admitted(request)
        self.touch(request.adapter)
        return request

    def select(self, view: EngineView) -> Iterator[Admission]:
        """Admit until the engine is full. A request that does not fit ends the step: nobody overtakes a big one."""
        while (request := self.peek(view.now)) is not None and view.can_admit(request):
            self.pop(view.now)
            loaded, evicted = view.admit(request)
            yield Admission(request, loaded, evicted)

    def waiting_requests(self) -> Iterator[Request]:
        """All waiting requests, adapter by adapter."""
        for adapter in sorted(self.queues):
            yield from self.queues[adapter]

    # Policy side -----------------------------------------------------------------------------------------------------
    @abstractmethod
    def rank(self, adapter: int, resident: bool) -> Rank:
        """Sort key of an adapter at the current time; the smallest is served first."""

    def key(self, adapter: int, resident: bool) -> Rank:
        """Key inside one heap: the order of ``rank`` among equally resident adapters. Must not change with time."""
        return self.rank(adapter, resident)

    def request_order(self, request: Request) -> float:
        """Order inside an adapter, smaller first; equal ones by arrival."""
        return 0.0

    def arrived(self, request: Request) -> None:
        """Hook: a request arrives (it is not queued yet)."""

    def admitted(self, request: Request) -> None:
        """Hook: a request has left the queue and will run."""

    def cached(self, request: Request, tokens: int) -> None:
        """Hook: prompt tokens came out of a cache."""

    def preempted(self, request: Request, emitted: int | None, prompt_left: int | None) -> None:
        """Hook: a running request waits again."""

    def charged(self, adapter: int, prefill: int, decode: int, within: int) -> None:
        """Hook: tokens of one adapter were processed, ``within`` of the decoded ones inside their estimates."""

    def progressed(self, request: Request, prefill: int, decode: int, recomputed: int) -> None:
        """Hook: tokens of one request were processed."""
        self.charged(request.adapter, prefill, decode, decode)

    def ended(self, request: Request, reason: str, emitted: int | None, prompt_left: int | None) -> None:
        """Hook: a request finished or was aborted."""

    def prepare(self) -> None:
        """Called before a decision, for policies with rounds or refills."""

    def describe(self) -> dict[str, Any]:
        """Name and settings, as they go into a record."""
        settings: dict[str, Any] = {"policy": self.name, "mode": self.mode}
        if self.max_draining is not None:
            settings["max_draining"] = self.max_draining
        return settings

    def state_dict(self) -> dict[str, Any]:
        """What outlives a restart (queues do not: the engine submits its requests again)."""
        return {"policy": self.name}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``."""
        if state.get("policy") != self.name:
            raise ValueError(f"state belongs to policy {state.get('policy')!r}, this is {self.name!r}")

    # Machinery -------------------------------------------------------------------------------------------------------
    def _advance(self, now: float) -> None:
        if now > self.now:  # the clock never runs backwards, whatever the engine's does
            self.now = now
            self.clock_moved(now)

    def clock_moved(self, now: float) -> None:
        """Hook: the clock has advanced to ``now``."""

    def touch(self, adapter: int) -> None:
        """The rank of ``adapter`` may have changed."""
        self._dirty.add(adapter)
        self._choice = None

    def touch_all(self) -> None:
        """The rank of every waiting adapter may have changed."""
        self._dirty.update(adapter for adapter, queue in self.queues.items() if len(queue))
        self._choice = None

    def head_order(self, adapter: int) -> tuple[float, float]:
        """Arrival order of the head of an adapter's queue: (0 returned / 1 fresh, sequence); last when empty."""
        queue = self.queues.get(adapter)
        if queue is None or not len(queue):
            return (2, LAST)
        head = queue.head()
        return (head[0], head[2])

    def _flush(self) -> None:
        slots = self.slots
        for adapter in self._dirty:
            queue = self.queues.get(adapter)
            resident = slots.holds(adapter)
            heap = self._resident_heap if resident else self._absent_heap
            if queue is not None and len(queue):
                heap.set(adapter, self.key(adapter, resident))
            else:
                heap.discard(adapter)
        self._dirty.clear()

    def _choose(self) -> int | None:
        self.prepare()
        self._flush()
        best = self._resident_heap.top()
        absent = self._absent_heap.top()
        if absent is None:
            return best
        best_rank = (LAST,) if best is None else self.rank(best, True)
        if self.slots.has_room:
            return absent if self.rank(absent, False) < best_rank else best
        if self.mode == "skip" or self.rank(absent, False) > best_rank:
            return best
        if self.mode == "block":
            return None
        return self._drain(best, best_rank)

    def _drain(self, best: int | None, best_rank: Rank) -> int | None:
        """Every slot is pinned. Each absent adapter ahead of the best resident one empties one slot ranked behind it.

        Marks are worked out anew at each decision, so one ends as soon as its reason does.
        """
        drained: set[int] = set()
        pinned = {adapter: self.rank(adapter, True) for adapter in self.slots.pinned}
        limit = len(pinned) if self.max_draining is None else min(self.max_draining, len(pinned))
        for absent in self._absent_heap.ordered():
            rank = self.rank(absent, False)
            if rank > best_rank or len(drained) >= limit:
                break
            victim = max((a for a in pinned if a not in drained), key=pinned.__getitem__, default=None)
            if victim is None or pinned[victim] <= rank:
                break
            drained.add(victim)
            if victim == best:
                best = next(self._resident_heap.ordered(drained), None)
                best_rank = (LAST,) if best is None else self.rank(best, True)
        return best
