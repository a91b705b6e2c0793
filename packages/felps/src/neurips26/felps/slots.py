"""Adapter slots in accelerator memory: who is resident, who is pinned, who has to leave.

An adapter is *pinned* while a running request uses it and cannot be evicted; a resident adapter without a running
request is idle and evictable. Eviction is an axis of its own, independent of the admission policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from neurips26.felps.request import BASE
from neurips26.shared.arrays import check_choice, check_int

EVICTIONS = ("lru", "lfu", "cost", "served")


@runtime_checkable
class ResidencyListener(Protocol):
    """Whoever must know when an adapter enters or leaves memory (a policy)."""

    def on_adapter_loaded(self, adapter: int) -> None:
        """It entered."""
        ...

    def on_adapter_evicted(self, adapter: int) -> None:
        """It left."""
        ...


class AdapterSlots:
    """``M`` slots (vLLM's ``max_loras``) with pinning and a pluggable eviction rule.

    Args:
        capacity: number of slots ``M >= 1``.
        eviction: which idle adapter leaves when a slot is needed: ``lru`` the least recently used, ``lfu`` the least
            often loaded or used, ``cost`` the lowest ``uses * load cost`` (Chameleon's idea without the size term),
            ``served`` the one whose work has been served furthest (largest served fraction, asks ``score``).
        load_cost: seconds to load each adapter, used by ``cost``; missing adapters cost 1.
        score: adapter -> served fraction, used by ``served``.
    """

    def __init__(
        self,
        capacity: int,
        eviction: str = "lru",
        load_cost: Mapping[int, float] | None = None,
        score: Callable[[int], float] | None = None,
    ) -> None:
        self.capacity = check_int(capacity, "max_loras", minimum=1)
        self.eviction = check_choice(eviction, "eviction", EVICTIONS)
        self.load_cost = dict(load_cost or {})
        self.score = score
        self.listener: ResidencyListener | None = None
        self.loads = 0
        self.hits = 0
        self.version = 0  # changes with every pin, load and eviction, so that decisions made before are known to be old
        self._slot_of: dict[int, int] = {}  # insertion order is recency, oldest first
        self._pins: dict[int, int] = {}
        self._uses: dict[int, int] = {}
        self._free = list(range(capacity - 1, -1, -1))

    @property
    def resident(self) -> tuple[int, ...]:
        """Resident adapters, least recently used first (the base model is not listed)."""
        return tuple(self._slot_of)

    @property
    def pinned(self):
        """Adapters of running requests (a live view)."""
        return self._pins.keys()

    @property
    def has_room(self) -> bool:
        """True when an absent adapter could enter now: a free slot or an idle resident exists."""
        return len(self._pins) < self.capacity

    def holds(self, adapter: int) -> bool:
        """True for resident adapters and the base model."""
        return adapter == BASE or adapter in self._slot_of

    def slot_of(self, adapter: int) -> int | None:
        """Index of the adapter's slot, None when absent."""
        return self._slot_of.get(adapter)

    def acquire(self, adapter: int) -> tuple[bool, int | None]:
        """Pin ``adapter`` for one more running request. Returns (had to be loaded, evicted adapter or None)."""
        if adapter == BASE:
            return False, None
        self.version += 1
        self._uses[adapter] = self._uses.get(adapter, 0) + 1
        loaded, victim = False, None
        if adapter in self._slot_of:
            self.hits += 1
            self.touch(adapter)
        else:
            if not self._free:
                victim = self._choose_victim()
                self._release_slot(victim)
            self._slot_of[adapter] = self._free.pop()
            self.loads += 1
            loaded = True
            if self.listener is not None:
                self.listener.on_adapter_loaded(adapter)
        self._pins[adapter] = self._pins.get(adapter, 0) + 1
        return loaded, victim

    def release(self, adapter: int) -> None:
        """One running request of ``adapter`` ended; the last one unpins it and makes it the most recently used."""
        if adapter == BASE:
            return
        self.version += 1
        left = self._pins[adapter] - 1
        if left:
            self._pins[adapter] = left
        else:
            del self._pins[adapter]
            self.touch(adapter)

    def touch(self, adapter: int) -> None:
        """The adapter is used: it becomes the most recent one."""
        if adapter in self._slot_of:
            self._slot_of[adapter] = self._slot_of.pop(adapter)

    def forget(self, adapter: int) -> None:
        """Drop an idle resident without a successor (a failed load, or an adapter unloaded by its owner)."""
        if adapter in self._pins:
            raise ValueError(f"adapter {adapter} is in use by a running request and cannot be dropped")
        if adapter in self._slot_of:
            self._release_slot(adapter)

    def cancel(self, adapter: int) -> None:
        """Undo an ``acquire`` whose load failed: the pin goes, and the adapter is not counted as resident."""
        self.release(adapter)
        if adapter != BASE and adapter not in self._pins:
            self.loads -= 1
            self.forget(adapter)

    def _release_slot(self, adapter: int) -> None:
        self.version += 1
        self._free.append(self._slot_of.pop(adapter))
        if self.listener is not None:
            self.listener.on_adapter_evicted(adapter)

    def _choose_victim(self) -> int:
        idle = [adapter for adapter in self._slot_of if adapter not in self._pins]
        if not idle:
            raise RuntimeError("no adapter slot can be freed: every resident adapter has a running request")
        if self.eviction == "lru":
            return idle[0]
        if self.eviction == "lfu":
            return min(idle, key=lambda adapter: self._uses.get(adapter, 0))
        if self.eviction == "cost":
            return min(idle, key=lambda adapter: self._uses.get(adapter, 0) * self.load_cost.get(adapter, 1.0))
        if self.score is None:
            raise ValueError("eviction='served' needs a policy that keeps served fractions (felps)")
        return max(idle, key=self.score)
