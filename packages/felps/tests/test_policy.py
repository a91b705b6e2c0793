"""The FELPS rule by its values, then the properties every policy must have."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurips26.felps import BASE, AdapterSlots, FELPSPolicy, Policy, Request
from neurips26.felps.policy import RankHeap

ALL = ["fcfs", "vtc", "drr", "affinity", "dlora", "dlpm", "sjf", "felps"]


def bound(policy, slots=1, **kw):
    policy.bind(AdapterSlots(slots, **kw))
    return policy


def serve_one_by_one(policy, requests, now=0.0):
    """Run to completion, one request at a time; returns the adapters in the order of service."""
    for request in requests:
        policy.on_arrival(request, now)
    order = []
    while (request := policy.peek(now)) is not None:
        assert policy.pop(now) is request
        policy.slots.acquire(request.adapter)
        policy.on_scheduled(request, request.prompt_tokens, request.output_tokens, now)
        policy.on_finished(request, now)
        policy.slots.release(request.adapter)
        order.append(request.adapter)
    return order


def ten_each(adapters=(1, 2)):
    # c = 1 * 20 + 2 * 40 = 100
    return [Request(f"{a}-{i}", a, 0.0, 20, 40) for a in adapters for i in range(10)]


def word(order):
    return "".join("_AB"[a] for a in order)


def test_pure_fairness_alternates():
    order = serve_one_by_one(bound(FELPSPolicy(0.0, estimator="oracle")), ten_each())
    assert word(order) == "AB" * 10
    assert sum(x != y for x, y in itertools.pairwise(order)) == 19


def test_weight_one_serves_the_resident_adapter_to_the_end():
    assert word(serve_one_by_one(bound(FELPSPolicy(1.0, estimator="oracle")), ten_each())) == "A" * 10 + "B" * 10


def test_weight_is_the_tolerated_gap():
    # Both W = 1000, one request is 0.1 of it. A stays while rho_A - rho_B <= 0.25: three requests (0.3 exceeds it).
    # B then goes from 0 until rho_B - 0.3 > 0.25: six (0.6). A from 0.3 until rho_A - 0.6 > 0.25: six (0.9).
    # B from 0.6 to 1.0, four, never 0.25 ahead of 0.9; A has one left.
    order = serve_one_by_one(bound(FELPSPolicy(0.25, estimator="oracle")), ten_each())
    assert word(order) == "AAA" + "BBBBBB" + "AAAAAA" + "BBBB" + "A"


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_displaces_iff_the_gap_exceeds_the_weight(served_a, served_b, steps):
    """rho and lambda on a grid of 0.05, so that equality occurs often."""
    weight = steps / 20
    policy = bound(FELPSPolicy(weight, estimator="oracle"))
    for adapter, served in ((1, served_a), (2, served_b)):
        # 20 requests of cost 3 each: delivering k of them makes rho = k / 20; a 21st of the base adapter is not needed.
        for i in range(20):
            policy.on_arrival(Request((adapter, i).__repr__(), adapter, 0.0, 1, 1), 0.0)
        policy.ledger.charge(adapter, float(served), float(served), float(served))
        policy.touch(adapter)
    policy.slots.acquire(1)
    policy.slots.release(1)
    chosen = policy.peek(0.0).adapter
    if served_a - served_b > steps:
        assert chosen == 2
    elif weight > 0 or served_a < served_b:
        assert chosen == 1
    # weight 0 and equal fractions: the earlier head, which is adapter 1's
    else:
        assert chosen == (1 if served_a <= served_b else 2)


def test_alpha_is_the_same_knob():
    assert FELPSPolicy(alpha=0.2).weight == pytest.approx(0.25)
    assert FELPSPolicy(alpha=0.0).weight == 0.0
    assert FELPSPolicy().weight == 0.2
    assert FELPSPolicy(7.0).weight == 7.0


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("kwargs", "name"),
    [
        (dict(weight=float("nan")), "weight"),
        (dict(weight=-0.1), "weight"),
        (dict(weight=0.1, alpha=0.1), "weight or alpha"),
        (dict(alpha=1.0), "alpha"),
        (dict(half_life=0.0), "half_life"),
        (dict(half_life=-3.0), "half_life"),
        (dict(mode="wait"), "mode"),
        (dict(form="square"), "form"),
        (dict(estimator="magic"), "estimator"),
        (dict(prior_output=0.0), "prior_output"),
        (dict(ewma_rate=0.0), "ewma_rate"),
        (dict(residency="cost"), "load_cost"),
        (dict(residency="cost", load_cost={1: float("nan")}), "load_cost"),
        (dict(residency="cost", load_cost={"one": 0.1}), "load_cost"),
        (dict(residency="cost", load_cost={1: 0.0, 2: 0.0}), "load_cost"),
        (dict(weight="0.2"), "weight"),
        (dict(weight=True), "weight"),
        (dict(half_life="1 h"), "half_life"),
        (dict(commit="maybe"), "commit"),
        (dict(input_price=0.0), "input_price"),
        (dict(max_draining=0), "max_draining"),
    ],
)
def test_bad_settings_name_the_argument(kwargs, name):
    with pytest.raises((ValueError, TypeError), match=name):
        FELPSPolicy(**kwargs)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("kwargs", "name"),
    [
        (dict(prompt_tokens=0), "prompt_tokens"),
        (dict(max_tokens=0), "max_tokens"),
        (dict(max_tokens=-4), "max_tokens"),
        (dict(output_tokens=0), "output_tokens"),
        (dict(adapter=-1), "adapter"),
        (dict(prompt_tokens=float("nan")), "prompt_tokens"),
        (dict(arrival=float("nan")), "arrival"),
    ],
)
def test_bad_requests_name_the_field(kwargs, name):
    with pytest.raises(ValueError, match=name):
        Request(**(dict(id=1, adapter=1, arrival=0.0, prompt_tokens=3) | kwargs))


def test_a_misspelt_option_is_named_with_those_that_exist():
    with pytest.raises(ValueError, match="vtc: expected options among mode, .*, got 'wieght'"):
        Policy.make("vtc", wieght=1.0)
    with pytest.raises(ValueError, match="felps: expected options among weight, alpha"):
        Policy.make("felps", wieght=1.0)
    assert Policy.make("drr", quantum=5.0, mode="drain", max_draining=2).max_draining == 2


def test_unknown_policy_and_mode():
    with pytest.raises(ValueError, match=r"policy.*felps"):
        Policy.make("felpz")
    with pytest.raises(ValueError, match="max_loras"):
        AdapterSlots(0)
    with pytest.raises(ValueError, match="eviction"):
        AdapterSlots(1, "random")


# Accounting ----------------------------------------------------------------------------------------------------------


def test_ledger_conserves_work_and_follows_estimates():
    policy = bound(FELPSPolicy(0.2, estimator="fixed", prior_output=10.0))
    ledger = policy.ledger
    request = Request(1, 5, 0.0, 30, 25)
    policy.on_arrival(request, 0.0)
    assert ledger.workload(5) == 30 + 2 * 10
    policy.pop(0.0)
    policy.on_scheduled(request, 30, 1, 1.0)
    assert (ledger.served(5), ledger.outstanding[5]) == (32, 18)
    policy.on_scheduled(request, 0, 14, 2.0)  # passes the estimate of 10: five tokens were not expected
    assert (ledger.served(5), ledger.outstanding[5]) == (60, 0)
    assert ledger.served_fraction(5) == 1.0
    policy.on_scheduled(request, 0, 10, 3.0)
    policy.on_finished(request, 3.0)
    assert ledger.workload(5) == ledger.served(5) == 30 + 2 * 25


def test_shorter_than_estimated_is_trued_up_at_the_end():
    policy = bound(FELPSPolicy(0.2, estimator="fixed", prior_output=100.0))
    first, second = Request(1, 5, 0.0, 10, 4), Request(2, 5, 0.0, 10, 4)
    policy.on_arrival(first, 0.0)
    policy.on_arrival(second, 0.0)
    policy.pop(0.0)
    policy.on_scheduled(first, 10, 4, 0.0)
    policy.on_finished(first, 0.0)
    assert policy.ledger.served(5) == 18
    assert policy.ledger.outstanding[5] == 10 + 200  # the second request alone


def test_ewma_learns_per_adapter_and_respects_max_tokens():
    policy = bound(FELPSPolicy(estimator="ewma", prior_output=200.0, ewma_rate=0.1))
    request = Request(1, 3, 0.0, 1, 100)
    policy.on_arrival(request, 0.0)
    assert policy.ledger.expected(1) == 200
    policy.on_scheduled(request, 1, 100, 0.0)
    policy.on_finished(request, 0.0)
    assert policy.ledger.estimator.mean[3] == pytest.approx(200 + 0.1 * (100 - 200))
    policy.on_arrival(Request(2, 3, 0.0, 1, 1, max_tokens=50), 0.0)
    policy.on_arrival(Request(3, 3, 0.0, 1, 1), 0.0)
    policy.on_arrival(Request(4, 9, 0.0, 1, 1), 0.0)
    assert [policy.ledger.expected(i) for i in (2, 3, 4)] == [50, 190, 200]


def test_abort_leaves_service_and_takes_its_work():
    policy = bound(FELPSPolicy(estimator="oracle"))
    ledger = policy.ledger
    one, two, other = Request(1, 1, 0.0, 10, 10), Request(2, 1, 0.0, 10, 10), Request(3, 2, 0.0, 10, 10)
    for request in (one, two, other):
        policy.on_arrival(request, 0.0)
    before = ledger.served_fraction(2)
    policy.on_finished(two, 0.0, "abort")  # still waiting
    assert (ledger.served(1), ledger.outstanding[1], policy.waiting) == (0, 30, 2)
    policy.pop(0.0)
    policy.on_scheduled(one, 10, 2, 0.0)
    policy.on_finished(one, 0.0, "abort")  # in the middle
    assert (ledger.served(1), ledger.outstanding[1]) == (14, 0)
    assert ledger.served_fraction(2) == before
    assert 1 not in ledger.estimator.mean


def test_half_life_fades_service_not_backlog():
    policy = bound(FELPSPolicy(half_life=10.0, estimator="oracle"))
    for i in range(2):
        policy.on_arrival(Request(i, 1, 0.0, 100, 50), 0.0)
    policy.pop(0.0)
    policy.on_scheduled(Request(0, 1, 0.0, 100, 50), 100, 50, 0.0)
    assert policy.served_fraction(1) == 0.5
    policy.peek(10.0)
    assert policy.ledger.served(1) == pytest.approx(100)
    assert policy.served_fraction(1) == pytest.approx(100 / 300)
    policy.peek(5.0)  # a clock that runs backwards changes nothing
    assert policy.ledger.served(1) == pytest.approx(100)
    policy.peek(10_000.0)  # re-basing far beyond the float range of 2**t
    assert policy.ledger.served(1) == pytest.approx(0.0, abs=1e-200)


def test_half_life_heap_agrees_with_ranking_everything():
    generator = np.random.default_rng(3)
    policy = bound(FELPSPolicy(0.3, half_life=7.0, estimator="oracle"), slots=4)
    now = 0.0
    for count in range(300):
        now += float(generator.exponential(1.0))
        adapter = int(generator.integers(1, 12))
        policy.on_arrival(
            Request(count, adapter, now, int(generator.integers(1, 50)), int(generator.integers(1, 50))), now
        )
        if generator.random() < 0.7:
            chosen = policy.peek(now).adapter
            waiting = [a for a, q in policy.queues.items() if len(q)]
            assert chosen == min(waiting, key=lambda a: policy.rank(a, policy.slots.holds(a)))
            request = policy.pop(now)
            policy.slots.acquire(request.adapter)
            policy.on_scheduled(request, request.prompt_tokens, request.output_tokens, now)
            policy.on_finished(request, now)
            policy.slots.release(request.adapter)


def test_cached_and_recomputed_tokens_are_not_charged_unless_asked():
    for charged, expected in ((False, 4 + 2), (True, 10 + 2)):
        policy = bound(FELPSPolicy(charge_cached=charged, estimator="oracle"))
        request = Request(1, 1, 0.0, 10, 5)
        policy.on_arrival(request, 0.0)
        policy.pop(0.0)
        policy.on_cached(request, 6, 0.0)
        policy.on_scheduled(request, 4, 1, 0.0)
        assert policy.ledger.served(1) == expected
        assert policy.ledger.outstanding[1] == 8
    for charged, expected in ((False, 12), (True, 23)):
        policy = bound(FELPSPolicy(charge_recompute=charged, estimator="oracle"))
        request = Request(1, 1, 0.0, 10, 5)
        policy.on_arrival(request, 0.0)
        policy.pop(0.0)
        policy.on_scheduled(request, 10, 1, 0.0)
        policy.on_preempted(request, 0.0)
        policy.pop(0.0)
        policy.on_scheduled(request, 0, 0, 0.0, recomputed=11)
        assert policy.ledger.served(1) == expected


def test_cost_residency_prefers_the_cheap_load():
    policy = bound(FELPSPolicy(0.5, residency="cost", load_cost={1: 0.1, 2: 0.4}, estimator="oracle"), slots=1)
    for adapter in (2, 1):
        policy.on_arrival(Request(adapter, adapter, 0.0, 10, 10), 0.0)
    assert policy.efficiency(1, False) == pytest.approx(0.75)
    assert policy.efficiency(2, False) == 0.0
    assert policy.peek(0.0).adapter == 1
    assert FELPSPolicy(residency="cost", load_cost={"1": 0.1}).load_cost == {1: 0.1}  # JSON knows no other keys


def test_forms_have_one_order_at_weight_zero():
    orders = {}
    for form in ("deficit", "ratio", "log"):
        policy = bound(FELPSPolicy(0.0, form=form, estimator="oracle"))
        rng = np.random.default_rng(0)
        requests = [Request(i, int(rng.integers(1, 5)), 0.0, 200 + i, 300 + 7 * i) for i in range(60)]
        orders[form] = serve_one_by_one(policy, requests)
    assert orders["ratio"] == orders["deficit"]
    # the constant in the logarithm only decides among adapters that have had no service at all
    assert sorted(orders["log"][:4]) == sorted(orders["deficit"][:4]) == [1, 2, 3, 4]
    assert orders["log"][4:] == orders["deficit"][4:]


def test_state_survives_a_restart():
    policy = bound(FELPSPolicy(0.3, estimator="ewma"))
    serve_one_by_one(policy, ten_each())
    policy.set_weight(0.4)
    fresh = bound(FELPSPolicy())
    fresh.load_state_dict(policy.state_dict())
    assert fresh.weight == 0.4
    assert fresh.ledger.served(1) == policy.ledger.served(1) == 1000
    assert fresh.ledger.estimator.mean == policy.ledger.estimator.mean
    with pytest.raises(ValueError, match="vtc"):
        bound(Policy.make("vtc")).load_state_dict(policy.state_dict())


def test_weight_changes_while_serving():
    policy = bound(FELPSPolicy(1.0, estimator="oracle"))
    for request in ten_each():
        policy.on_arrival(request, 0.0)
    request = policy.pop(0.0)
    policy.slots.acquire(1)
    policy.on_scheduled(request, 20, 40, 0.0)
    policy.on_finished(request, 0.0)
    policy.slots.release(1)
    assert policy.peek(0.0).adapter == 1
    policy.set_weight(0.0)
    assert policy.peek(0.0).adapter == 2


# Slots and modes -----------------------------------------------------------------------------------------------------


def busy(mode, weight=0.1):
    """One slot, adapter 1 running with more waiting, adapter 2 waiting and far behind."""
    policy = bound(FELPSPolicy(weight, mode=mode, estimator="oracle"))
    for i in range(3):
        policy.on_arrival(Request(i, 1, 0.0, 10, 10), 0.0)
    policy.pop(0.0)
    policy.slots.acquire(1)
    policy.on_scheduled(Request(0, 1, 0.0, 10, 10), 10, 9, 0.0)
    policy.on_arrival(Request(9, 2, 0.0, 10, 10), 0.0)
    return policy


def test_modes_when_every_slot_is_pinned():
    assert busy("skip").peek(0.0).adapter == 1
    assert busy("block").peek(0.0) is None
    policy = busy("drain")
    assert policy.peek(0.0) is None  # adapter 1 is drained: nothing is admitted to it
    policy.on_finished(Request(0, 1, 0.0, 10, 10), 0.0)
    policy.slots.release(1)
    assert policy.peek(0.0).adapter == 2


def test_a_drain_mark_dies_with_its_reason():
    policy = busy("drain")
    assert policy.peek(0.0) is None
    policy.on_finished(Request(9, 2, 0.0, 10, 10), 0.0, "abort")
    assert policy.peek(0.0).adapter == 1
    # and with a weight that tolerates the gap
    policy = busy("drain")
    policy.set_weight(1.0)
    assert policy.peek(0.0).adapter == 1


def test_several_waiting_adapters_drain_several_victims_and_spare_the_others():
    policy = bound(FELPSPolicy(0.0, mode="drain", estimator="oracle"), slots=3)
    for adapter, done in ((1, 9), (2, 5), (3, 1)):
        for i in range(2):
            policy.on_arrival(Request((adapter * 10 + i), adapter, 0.0, 10, 10), 0.0)
        request = policy.pop(0.0)
        policy.slots.acquire(adapter)
        policy.on_scheduled(request, 10, done, 0.0)
    # rho: (10 + 2 done) / 60 = .467, .333, .2
    assert policy.peek(0.0).adapter == 3
    policy.on_arrival(Request(100, 4, 0.0, 10, 10), 0.0)
    assert policy.peek(0.0).adapter == 3  # adapter 1 drains for 4
    policy.on_arrival(Request(101, 5, 0.0, 10, 10), 0.0)
    assert policy.peek(0.0).adapter == 3  # and 2 for 5
    policy.on_arrival(Request(102, 6, 0.0, 10, 10), 0.0)
    assert policy.peek(0.0) is None
    policy.max_draining = 1
    policy.touch(1)
    assert policy.peek(0.0).adapter == 3


def test_base_model_needs_no_slot():
    policy = busy("drain")
    policy.on_arrival(Request(50, BASE, 0.0, 10, 10), 0.0)
    assert policy.peek(0.0).adapter == BASE


def test_preempted_requests_return_to_the_head_of_their_adapter():
    for name in ALL:
        policy = bound(Policy.make(name), slots=2)
        requests = [Request(i, 1, 0.0, 10, 10) for i in range(4)]
        for request in requests:
            policy.on_arrival(request, 0.0)
        first, second = policy.pop(0.0), policy.pop(0.0)
        # vLLM gives back the youngest first, so that the oldest ends up in front
        policy.on_preempted(second, 0.0)
        policy.on_preempted(first, 0.0)
        assert [policy.pop(0.0).id for _ in range(4)] == [0, 1, 2, 3]


def test_peek_is_stable_and_pop_returns_it():
    policy = busy("skip")
    assert policy.peek(0.0) is policy.peek(1.0)
    offered = policy.peek(1.0)
    assert policy.pop(1.0) is offered
    with pytest.raises(IndexError):
        bound(FELPSPolicy()).pop(0.0)
    with pytest.raises(RuntimeError, match="bind"):
        FELPSPolicy().peek(0.0)


def test_slots_evict_by_rule_and_never_a_pinned_adapter():
    slots = AdapterSlots(2)
    slots.acquire(1)
    slots.acquire(2)
    slots.release(1)
    assert slots.acquire(3) == (True, 1)
    with pytest.raises(RuntimeError, match="every resident"):
        slots.acquire(4)
    slots.release(2)
    slots.release(3)
    assert slots.acquire(2) == (False, None)  # touched: 3 is now the oldest
    slots.release(2)
    assert slots.acquire(4) == (True, 3)
    lfu = AdapterSlots(2, "lfu")
    for adapter in (1, 1, 2):
        lfu.acquire(adapter)
        lfu.release(adapter)
    assert lfu.acquire(3) == (True, 2)
    cost = AdapterSlots(2, "cost", load_cost={1: 0.1, 2: 5.0})
    for adapter in (1, 1, 2):
        cost.acquire(adapter)
        cost.release(adapter)
    assert cost.acquire(3) == (True, 1)
    served = AdapterSlots(2, "served", score={1: 0.2, 2: 0.9}.get)
    for adapter in (1, 2):
        served.acquire(adapter)
        served.release(adapter)
    assert served.acquire(3) == (True, 2)


def test_a_failed_load_is_not_resident():
    policy = bound(FELPSPolicy(estimator="oracle"), slots=1)
    policy.slots.acquire(1)
    policy.slots.cancel(1)
    assert policy.slots.resident == () and policy.slots.loads == 0 and policy.slots.has_room
    policy.slots.acquire(2)
    with pytest.raises(ValueError, match="in use"):
        policy.slots.forget(2)


def test_one_adapter_makes_all_policies_first_come_first_served():
    for name in ALL:
        policy = bound(Policy.make(name))
        requests = [Request(i, 1, 0.0, 10, 10) for i in range(12)]
        for request in requests:
            policy.on_arrival(request, 0.0)
        assert [policy.pop(0.0).id for _ in range(12)] == list(range(12)), name


def test_duplicate_ids_are_refused():
    policy = bound(FELPSPolicy())
    policy.on_arrival(Request(1, 1, 0.0, 5), 0.0)
    with pytest.raises(ValueError, match="already open"):
        policy.on_arrival(Request(1, 2, 0.0, 5), 0.0)
    assert policy.waiting == 1


def test_third_parties_can_register():
    @Policy.register("test-lifo")
    class Lifo(Policy):
        def rank(self, adapter, resident):
            return (-self.head_order(adapter)[1], adapter)

    try:
        policy = bound(Policy.make("test-lifo"), slots=2)
        for i in (1, 2):
            policy.on_arrival(Request(i, i, 0.0, 1, 1), 0.0)
        assert policy.pop(0.0).id == 2
        with pytest.raises(ValueError, match="already registered"):
            Policy.register("test-lifo")(FELPSPolicy)
    finally:
        Policy._registry.pop("test-lifo")


# The heap ------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 30), st.booleans()), max_size=200))
def test_rank_heap_is_a_sorted_dictionary(operations):
    heap, model = RankHeap(), {}
    for adapter, rank, remove in operations:
        if remove:
            heap.discard(adapter)
            model.pop(adapter, None)
        else:
            heap.set(adapter, (rank, adapter))
            model[adapter] = (rank, adapter)
        expected = sorted(model, key=model.get)
        assert list(heap.ordered()) == expected
        assert heap.top() == (expected[0] if expected else None)


def test_a_decision_does_not_scan_adapters_or_requests(monkeypatch):
    """Ranks worked out per admission do not grow with the number of adapters."""

    def ranks_per_admission(adapters):
        policy = bound(FELPSPolicy(0.2, estimator="oracle"), slots=8)
        for i in range(4 * adapters):
            policy.on_arrival(Request(i, 1 + i % adapters, 0.0, 10, 10), 0.0)
        policy.peek(0.0)
        calls = []
        inner = policy.rank
        monkeypatch.setattr(policy, "rank", lambda *a: calls.append(1) or inner(*a))
        for _ in range(100):
            request = policy.pop(0.0)
            policy.slots.acquire(request.adapter)
            policy.on_scheduled(request, 10, 1, 0.0)
            policy.on_finished(request, 0.0)
            policy.slots.release(request.adapter)
        return len(calls) / 100

    assert ranks_per_admission(1024) <= ranks_per_admission(64) + 1 <= 10


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("field", "value"),
    [("adapter", 1.5), ("prompt_tokens", 2.5), ("output_tokens", 3.5), ("max_tokens", "9"), ("adapter", None)],
)
def test_whole_numbers(field, value):
    fields = {"adapter": 1, "prompt_tokens": 5, "output_tokens": 3, "max_tokens": 9} | {field: value}
    with pytest.raises(ValueError, match=f"{field} must be a whole number"):
        Request(0, arrival=0.0, **fields)
