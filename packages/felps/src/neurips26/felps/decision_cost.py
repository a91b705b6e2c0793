"""What a decision of the policy costs, without an engine around it."""

from __future__ import annotations

import time

from neurips26.felps.felps import FELPSPolicy
from neurips26.felps.request import Request
from neurips26.felps.slots import AdapterSlots
from neurips26.shared.seeding import rng


def admission_cost(adapters: int, waiting: int, running: int, slots: int, seed: int, admissions: int = 150) -> float:
    """CPU seconds per admission of ``select`` in steady state: admit one, book a step of all running, finish one."""
    generator = rng(seed, "felps", "admission")
    policy = FELPSPolicy(0.2)
    policy.bind(AdapterSlots(slots))
    for i in range(waiting):
        policy.on_arrival(Request(i, 1 + int(generator.integers(adapters)), 0.0, 100), 0.0)
    active: list[Request] = []
    spent, now, fresh, measured = 0.0, 0.0, waiting, 0
    while measured < admissions:
        now += 0.05
        began = time.process_time()
        request = policy.peek(now)
        if request is not None:
            policy.pop(now)
            policy.slots.acquire(request.adapter)
            active.append(request)
        if len(active) >= running:  # filling the engine is not measured
            spent += time.process_time() - began
            measured += request is not None
        counts: dict[int, int] = {}
        for one in active:
            counts[one.adapter] = counts.get(one.adapter, 0) + 1
        policy.on_batch([(a, 0, c, c) for a, c in counts.items()], now)
        if len(active) >= running or request is None:
            done = active.pop(int(generator.integers(len(active))))
            policy.on_finished(done, now, "stop", 50, 0)
            policy.slots.release(done.adapter)
            policy.on_arrival(Request(fresh, 1 + int(generator.integers(adapters)), now, 100), now)
            fresh += 1
    return spent / measured
