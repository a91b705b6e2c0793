"""The queue adapter, driven as vLLM drives a queue; vLLM itself is not needed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from neurips26.felps import AdapterSlots, EngineModel, FELPSPolicy, Policy, Request, Simulator, Workload
from neurips26.felps.integrations.bridge import PolicyQueue
from neurips26.felps.simulator import _Loop

ALL = ["fcfs", "vtc", "drr", "affinity", "dlora", "dlpm", "sjf", "felps"]


@dataclass
class Native:
    request_id: str
    adapter: int
    prompt: int = 10
    output: int = 10


def queue(policy=None, slots=1, clock=lambda: 0.0):
    policy = policy or FELPSPolicy(0.1, estimator="fixed", prior_output=10.0)
    return PolicyQueue(
        policy, AdapterSlots(slots), lambda n: Request(n.request_id, n.adapter, 0.0, n.prompt, n.output), clock
    )


def test_truth_value_hides_what_is_drained_and_length_does_not():
    q = queue()
    first = Native("a", 1)
    for native in (first, Native("b", 1)):
        q.add_request(native)
    assert q.peek_request() is q.pop_request() is first
    q.scheduled(first, 0, 10)
    q.emitted(first, 9)
    q.add_request(Native("c", 2))
    assert not q and len(q) == 2  # adapter 1 is drained for adapter 2, whose slot is taken
    with pytest.raises(IndexError):
        q.peek_request()
    q.finished(first, aborted=False)
    assert q and q.peek_request().request_id == "c"
    assert [n.request_id for n in q] == ["b", "c"]


def test_given_back_requests_keep_their_place_and_undo_the_load():
    q = queue(slots=2)
    natives = [Native(str(i), 1) for i in range(3)]
    for native in natives:
        q.add_request(native)
    skipped = [q.pop_request(), q.pop_request()]
    assert q.slots.loads == 1
    q.prepend_requests(reversed(skipped))  # vLLM collects with appendleft and gives back from the left
    assert q.slots.loads == 1 or q.slots.resident == ()
    assert not q.slots.pinned
    assert [q.pop_request().request_id for _ in range(3)] == ["0", "1", "2"]


def test_preempted_requests_go_first_and_are_charged_once():
    q = queue(slots=2)
    native = Native("a", 1)
    q.add_request(native)
    q.add_request(Native("b", 1))
    q.pop_request()
    q.scheduled(native, 0, 10)
    q.emitted(native, 3)
    served = q.policy.ledger.served(1)
    assert served == 10 + 2 * 3
    q.prepend_request(native)
    assert not q.slots.pinned
    assert q.pop_request() is native
    q.scheduled(native, 0, 12)  # prompt and two outputs again
    assert q.policy.ledger.served(1) == served
    q.scheduled(native, 12, 13)
    q.emitted(native, 1)
    assert q.policy.ledger.served(1) == served + 2


def test_prefix_cache_hits_are_not_service():
    q = queue()
    native = Native("a", 1, prompt=100)
    q.add_request(native)
    q.pop_request()
    q.scheduled(native, 64, 100)
    assert q.policy.ledger.served(1) == 36
    assert q.policy.ledger.outstanding[1] == 20


def test_aborts_waiting_and_running():
    for name in ALL:
        q = queue(Policy.make(name), slots=1)
        running, waiting = Native("a", 1), Native("b", 2)
        q.add_request(running)
        q.add_request(waiting)
        q.pop_request()
        q.scheduled(running, 0, 10)
        q.remove_requests([waiting])
        q.finished(waiting, aborted=True)
        assert len(q) == 0 and not q
        q.finished(running, aborted=True)
        assert not q.slots.pinned and not q.entries
        q.finished(running, aborted=True)  # twice is harmless


def test_unknown_requests_are_named():
    with pytest.raises(KeyError, match="'x'"):
        queue().prepend_request(Native("x", 1))


def test_what_was_peeked_is_popped_though_time_passes():
    times = iter(range(1000))
    q = queue(FELPSPolicy(0.2, half_life=0.5, estimator="fixed"), slots=2, clock=lambda: float(next(times)))
    for i in range(6):
        q.add_request(Native(str(i), 1 + i % 3))
    while q:
        assert q.peek_request() is q.pop_request()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("mode", ["skip", "drain", "block"])
def test_queue_admits_what_the_simulator_admits(name, mode):
    """Play the simulator's events into the queue: the same requests are offered in the same order."""
    rng = np.random.default_rng(7)
    n = 80
    workload = Workload(
        np.sort(rng.uniform(0, 8.0, n)), rng.integers(1, 7, n), rng.integers(1, 60, n), rng.integers(1, 30, n)
    )
    now = [0.0]
    policy = Policy.make(name, mode=mode)
    q = PolicyQueue(policy, AdapterSlots(2), lambda native: native[1], lambda: now[0])

    class Handle(tuple):
        @property
        def request_id(self):
            return self[1].id

    handles = {}
    admitted = []

    class Mirror(_Loop):
        """Tells the queue what the simulator's own policy is told, one request at a time."""

        def _arrive(self, request):
            super()._arrive(request)
            now[0] = self.now
            handles[request.id] = Handle(("native", request))
            q.add_request(handles[request.id])

        def admit(self, request):
            now[0] = self.now
            q.new_step()
            assert q, f"the queue offers nothing, the simulator admits {request.id}"
            assert q.peek_request()[1].id == request.id
            q.pop_request()
            admitted.append(request.id)
            return super().admit(request)

    class Told(type(policy)):
        """The simulator's policy; passes per-request progress on to the queue."""

        def on_batch(self, charges, at):
            super().on_batch(charges, at)
            now[0] = at
            q.new_step()
            for adapter, prefill, decode, within in charges:
                q.policy.charged(adapter, prefill, decode, within)
                q.policy.touch(adapter)

        def on_finished(self, request, at, reason="stop", emitted=None, prompt_left=None):
            super().on_finished(request, at, reason, emitted, prompt_left)
            now[0] = at
            entry = q.entries.pop(request.id)
            q._unpin(entry)
            q.policy.on_finished(request, at, reason, emitted, prompt_left)

    engine = EngineModel(0.02, 1e-4, 1e-3, 0.0, 0.05)
    told = Told(mode=mode)  # pyright: ignore[reportAbstractUsage]
    Mirror(Simulator(engine, 2, 5, 64, 100_000), workload, told, np.inf, {}, {}, 10**6).run()
    assert len(admitted) == n
