"""What a policy needs to live inside an engine that has its own request objects and its own waiting queue.

``PolicyQueue`` has the methods of vLLM's ``RequestQueue``: the engine peeks, checks that the request fits, and pops; what
it pops but cannot run it gives back. ``Books`` turns an engine's token counts into charges. Neither imports the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from neurips26.felps.policy import Policy
from neurips26.felps.request import Request
from neurips26.felps.slots import AdapterSlots


@dataclass(slots=True)
class Entry:
    """An open request of the engine and what is known of its progress."""

    native: Any
    request: Request
    charged: int = 0  # prompt positions below this are charged or were found in a cache
    pinned: bool = False
    loaded: bool = False  # its last admission loaded the adapter


class PolicyQueue:
    """A waiting queue that offers what the policy chooses.

    Truth value and length differ on purpose: true means that a request may be offered in this step (requests of drained
    adapters are hidden), the length counts all waiting ones, so that an engine never stops with work left.

    Args:
        policy: who goes first.
        slots: the engine's adapter slots, or a mirror of them.
        translate: native request -> ``Request``.
        clock: the current time; read once per step (``new_step``), so that what was peeked is what is popped.
    """

    def __init__(
        self, policy: Policy, slots: AdapterSlots, translate: Callable[[Any], Request], clock: Callable[[], float]
    ) -> None:
        self.policy, self.slots, self.translate, self.clock = policy, slots, translate, clock
        self.entries: dict[str | int, Entry] = {}
        self.now = clock()
        policy.bind(slots)

    def new_step(self) -> None:
        """An engine step begins."""
        self.now = self.clock()

    # The engine's queue interface ------------------------------------------------------------------------------------
    def add_request(self, native: Any) -> None:
        """A request arrives (or, known already, comes back for another turn)."""
        self.new_step()
        request = self.translate(native)
        entry = self.entries.get(request.id)
        if entry is None:
            self.policy.on_arrival(request, self.now)
            self.entries[request.id] = Entry(native, request)
        else:
            self._unpin(entry)
            self.policy.on_preempted(entry.request, self.now)

    def peek_request(self) -> Any:
        """The request to try next."""
        request = self.policy.peek(self.now)
        if request is None:
            raise IndexError("peek from a queue that offers nothing in this step")
        return self.entries[request.id].native

    def pop_request(self) -> Any:
        """Take it; its adapter is pinned from now on."""
        request = self.policy.pop(self.now)
        entry = self.entries[request.id]
        self._pin(entry)
        return entry.native

    def prepend_request(self, native: Any) -> None:
        """A running request was preempted: it waits at the head of its adapter's queue."""
        entry = self._entry(native)
        self._unpin(entry)
        self.policy.on_preempted(entry.request, self.now)

    def prepend_requests(self, natives: Iterable[Any]) -> None:
        """Popped requests that could not run after all: back to where they were."""
        for native in natives:
            entry = self._entry(native)
            if entry.pinned and entry.loaded:
                self.slots.cancel(entry.request.adapter)
                entry.pinned = False
            else:
                self._unpin(entry)
            self.policy.on_preempted(entry.request, self.now)

    def remove_request(self, native: Any) -> None:
        """A waiting request leaves the queue (its books are closed by ``finished``)."""
        request = self._entry(native).request
        self.policy.withdraw(request)

    def remove_requests(self, natives: Iterable[Any]) -> None:
        """Those of the requests that wait here leave the queue."""
        for native in natives:
            if self._key(native) in self.entries:
                self.remove_request(native)

    def __bool__(self) -> bool:
        return self.policy.peek(self.now) is not None

    def __len__(self) -> int:
        return self.policy.waiting

    def __iter__(self) -> Iterator[Any]:
        return (self.entries[request.id].native for request in self.policy.waiting_requests())

    # What the engine reports beside -----------------------------------------------------------------------------------
    def scheduled(self, native: Any, start: int, end: int) -> None:
        """Positions ``[start, end)`` of a running request were processed; those in the prompt are charged once.

        Positions before ``start`` that were never charged came out of a prefix cache.
        """
        entry = self._entry(native)
        if not entry.pinned:  # admitted past this queue
            self._pin(entry)
        prompt = entry.request.prompt_tokens
        cached = min(start, prompt) - entry.charged
        if cached > 0:
            entry.charged += cached
            self.policy.on_cached(entry.request, cached, self.now)
        fresh = max(0, min(end, prompt) - max(start, entry.charged))
        repeated = max(0, min(end, entry.charged) - start)
        entry.charged += fresh
        if fresh or repeated:
            self.policy.on_scheduled(entry.request, fresh, 0, self.now, repeated)

    def emitted(self, native: Any, tokens: int) -> None:
        """A request got ``tokens`` output tokens."""
        if tokens:
            self.policy.on_scheduled(self._entry(native).request, 0, tokens, self.now)

    def finished(self, native: Any, aborted: bool) -> None:
        """A request ended, from whatever state."""
        entry = self.entries.pop(self._key(native), None)
        if entry is not None:
            self._unpin(entry)
            self.policy.on_finished(entry.request, self.now, "abort" if aborted else "stop")

    # Inner parts -----------------------------------------------------------------------------------------------------
    @staticmethod
    def _key(native: Any) -> str | int:
        return native.request_id

    def _entry(self, native: Any) -> Entry:
        entry = self.entries.get(self._key(native))
        if entry is None:
            raise KeyError(f"request {self._key(native)!r} was never added to this queue")
        return entry

    def _pin(self, entry: Entry) -> None:
        entry.loaded, _ = self.slots.acquire(entry.request.adapter)
        entry.pinned = True

    def _unpin(self, entry: Entry) -> None:
        if entry.pinned:
            self.slots.release(entry.request.adapter)
            entry.pinned = False
