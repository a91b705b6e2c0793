"""Each rival does what its paper says."""

from __future__ import annotations

import numpy as np
import pytest

from neurips26.felps import AdapterSlots, EngineModel, Policy, Request, Simulator, Workload


def bound(policy, slots=8):
    policy.bind(AdapterSlots(slots))
    return policy


def finish(policy, request, output=None):
    policy.slots.acquire(request.adapter)
    policy.on_scheduled(request, request.prompt_tokens, output or request.output_tokens, 0.0)
    policy.on_finished(request, 0.0)
    policy.slots.release(request.adapter)


def test_fcfs_admits_what_vllm_admits():
    """The example of vLLM's pull request 15422: four adapters fit, the fifth waits and nobody waits behind it."""
    policy = bound(Policy.make("fcfs"), 4)
    adapters = [1, 2, 3, 1, 3, 2, 4, 5, 5, 5, 5, 1, 1, 1, 2, 3]
    for i, adapter in enumerate(adapters, 1):
        policy.on_arrival(Request(i, adapter, 0.0, 1, 1), 0.0)
    admitted = []
    while (request := policy.peek(0.0)) is not None:
        policy.pop(0.0)
        policy.slots.acquire(request.adapter)
        admitted.append(request.id)
    assert admitted == [1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 15, 16]
    assert [r.id for r in policy.waiting_requests()] == [8, 9, 10, 11]


def test_strict_fcfs_stops_at_the_first_that_cannot_run():
    policy = bound(Policy.make("fcfs", mode="block"), 1)
    for i, adapter in enumerate([1, 1, 2, 1]):
        policy.on_arrival(Request(i, adapter, 0.0, 1, 1), 0.0)
    admitted = []
    while (request := policy.peek(0.0)) is not None:
        policy.pop(0.0)
        policy.slots.acquire(request.adapter)
        admitted.append(request.id)
    assert admitted == [0, 1]


def test_vtc_charges_prompts_at_admission_and_output_as_it_comes():
    policy = bound(Policy.make("vtc"))
    request = Request(0, 1, 0.0, 100, 50)
    policy.on_arrival(request, 0.0)
    assert policy.counter[1] == 0
    policy.pop(0.0)
    assert policy.counter[1] == 100
    policy.on_scheduled(request, 100, 1, 0.0)
    policy.on_scheduled(request, 0, 4, 0.0)
    assert policy.counter[1] == 110
    policy.on_preempted(request, 0.0)
    policy.pop(0.0)
    assert policy.counter[1] == 110  # its prompt was paid


def test_vtc_lifts_a_returning_client():
    policy = bound(Policy.make("vtc"))
    for i in range(40):
        policy.on_arrival(Request(i, 1, 0.0, 100, 50), 0.0)
    for _ in range(20):
        request = policy.pop(0.0)
        finish(policy, request)
    assert policy.counter[1] == 20 * 200
    for i in range(40, 60):
        policy.on_arrival(Request(i, 2, 0.0, 100, 50), 0.0)
    assert policy.counter[2] == 20 * 200
    order = []
    for _ in range(20):
        request = policy.pop(0.0)
        order.append(request.adapter)
        finish(policy, request)
    # the one who was away gets no burst: never more than one request ahead
    balance = np.cumsum([1 if a == 2 else -1 for a in order])
    assert np.abs(balance).max() <= 1


def test_vtc_lifts_to_the_last_that_left_when_nobody_waits():
    policy = bound(Policy.make("vtc"))
    request = Request(0, 1, 0.0, 100, 50)
    policy.on_arrival(request, 0.0)
    policy.pop(0.0)
    finish(policy, request)
    policy.on_arrival(Request(1, 2, 0.0, 10, 10), 0.0)
    assert policy.counter[2] == 200


def test_vtc_keeps_its_published_bound():
    """Two backlogged clients on one engine: |difference| <= 2 max(w_p L_input, w_q M) with M the tokens that fit."""
    rng = np.random.default_rng(0)
    n, longest, fits = 200, 60, 400
    prompts, outputs = rng.integers(5, longest + 1, n), rng.integers(5, 60, n)
    workload = Workload(np.zeros(n), np.arange(n) % 2 + 1, prompts, outputs)
    sim = Simulator(EngineModel.preset("a100-llama-7b"), 2, 16, 512, fits, sample_every=0.05)
    result = sim.run(workload, Policy.make("vtc"), horizon=6.0)
    backlogged = (result.sample_arrived - result.sample_served)[:, 1:].min(axis=1) > longest + 2 * 60
    gap = np.abs(result.sample_served[:, 1] - result.sample_served[:, 2])[backlogged]
    assert len(gap) > 20
    assert gap.max() <= 2 * max(longest, 2 * fits)


def test_drr_serves_a_quantum_at_a_time_and_never_saves_up():
    policy = bound(Policy.make("drr", quantum=400.0))
    for i in range(24):
        policy.on_arrival(Request(i, 1 + i % 2, 0.0, 100, 50), 0.0)
    order = []
    for _ in range(24):
        request = policy.pop(0.0)
        order.append(request.adapter)
        finish(policy, request)
    # 400 pays for two requests of 200; at 0 the turn passes
    assert order == [1, 1, 2, 2] * 6
    assert max(policy.deficit.values()) <= 400


def test_drr_large_debts_are_worked_off_in_whole_rounds():
    policy = bound(Policy.make("drr", quantum=10.0))
    for i in range(4):
        policy.on_arrival(Request(i, 1 + i % 2, 0.0, 1000, 5), 0.0)
    first = policy.pop(0.0)
    finish(policy, first)
    second = policy.pop(0.0)
    assert (first.adapter, second.adapter) == (1, 2)
    finish(policy, second)
    assert policy.peek(0.0) is not None
    assert 0 < max(policy.deficit.values()) <= 10


def test_affinity_takes_the_longest_resident_queue():
    policy = bound(Policy.make("affinity"), 2)
    for i, adapter in enumerate([1, 2, 2, 3, 3, 3]):
        policy.on_arrival(Request(i, adapter, 0.0, 10, 10), 0.0)
    policy.slots.acquire(1)
    policy.slots.release(1)
    assert policy.pop(0.0).adapter == 1
    assert policy.peek(0.0).adapter == 3


def test_dlora_credit_brings_a_bypassed_adapter_to_the_front():
    policy = bound(Policy.make("dlora", threshold=1000.0), 1)
    for i in range(20):
        policy.on_arrival(Request(i, 1, 0.0, 100, 50), 0.0)
    policy.slots.acquire(1)
    policy.slots.release(1)
    policy.on_arrival(Request(99, 2, 0.0, 100, 50), 0.0)
    order = []
    for _ in range(8):
        request = policy.pop(0.0)
        order.append(request.adapter)
        finish(policy, request)
    # 200 a request: after six of them 1200 > 1000 have overtaken adapter 2
    assert order == [1] * 6 + [2, 1][:2]


def test_dlpm_serves_residents_while_they_have_deficit():
    policy = bound(Policy.make("dlpm", quantum=500.0), 1)
    for i in range(12):
        policy.on_arrival(Request(i, 1 + i % 2, 0.0, 100, 50), 0.0)
    order = []
    for _ in range(12):
        request = policy.pop(0.0)
        order.append(request.adapter)
        finish(policy, request)
    # 500 pays for three of 200 (the third makes it negative): 1 1 1, 2 2 2, then both refill from -100 to 400: two each
    assert order[:10] == [1, 1, 1, 2, 2, 2, 2, 2, 1, 1]


def test_sjf_by_oracle_and_by_learning():
    oracle = bound(Policy.make("sjf", estimator="oracle"))
    for i, output in enumerate([50, 10, 30]):
        oracle.on_arrival(Request(i, 1, 0.0, 10, output), 0.0)
    assert [oracle.pop(0.0).id for _ in range(3)] == [1, 2, 0]
    learned = bound(Policy.make("sjf"))
    request = Request(0, 2, 0.0, 10, 5)
    learned.on_arrival(request, 0.0)
    learned.pop(0.0)
    finish(learned, request)
    learned.on_arrival(Request(1, 1, 0.0, 10, 5), 0.0)
    learned.on_arrival(Request(2, 2, 0.0, 10, 5), 0.0)
    assert learned.pop(0.0).id == 2


@pytest.mark.parametrize(("name", "option"), [("drr", "quantum"), ("dlpm", "quantum"), ("dlora", "threshold")])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_bad_parameters_are_named(name, option, value):
    with pytest.raises(ValueError, match=option):
        Policy.make(name, **{option: value})
