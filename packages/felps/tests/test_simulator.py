"""The simulator by closed forms and invariants."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from neurips26.felps import EngineModel, FELPSPolicy, Policy, Simulator, Workload, jain, proportional_shares
from neurips26.felps.simulator import _Loop

ENGINE = EngineModel(base=0.01, prefill_token=1e-4, decode_seq=1e-3, kv_token=1e-6, load=0.5)
ALL = ["fcfs", "vtc", "drr", "affinity", "dlora", "dlpm", "sjf", "felps"]


def make(*rows, **kw):
    """Rows of (arrival, adapter, prompt, output)."""
    arrival, adapter, prompt, output = (np.array(c) for c in zip(*rows))
    return Workload(arrival.astype(float), adapter, prompt, output, **kw)


def random_workload(seed=0, n=150, adapters=9, rate=6.0):
    rng = np.random.default_rng(seed)
    return Workload(
        np.sort(rng.uniform(0, n / rate, n)),
        rng.zipf(1.5, n) % adapters,
        rng.integers(1, 900, n),
        rng.integers(1, 120, n),
    )


def test_jain_and_proportional_shares():
    assert jain([1.0, 1.0, 1.0, 1.0]) == 1.0
    assert jain([1.0, 0.0, 0.0, 0.0]) == 0.25
    assert jain([4.0, 2.0]) == pytest.approx(0.9)
    assert jain([]) == 1.0 and jain([0.0, 0.0]) == 1.0
    assert proportional_shares([1.0, 2.0, 5.0], 16.0).tolist() == [1, 2, 5]
    assert proportional_shares([2.0, 4.0, 10.0], 8.0).tolist() == [1, 2, 5]
    assert proportional_shares([1.0, 2.0, 5.0], 4.0).tolist() == [0.5, 1.0, 2.5]


def test_one_request_by_closed_form():
    result = Simulator(ENGINE, 1).run(make((0.0, 0, 100, 4)), Policy.make("fcfs"))
    first = 0.01 + 100e-4
    decode = [0.01 + 1e-3 + 1e-6 * (100 + i) for i in (1, 2, 3)]
    assert result.first_token[0] == pytest.approx(first)
    assert result.finish[0] == pytest.approx(first + sum(decode))
    assert result.loads == 0 and result.steps == 4


def test_one_load_adds_exactly_its_cost():
    plain = Simulator(ENGINE, 1).run(make((0.0, 0, 100, 4)), Policy.make("fcfs"))
    loaded = Simulator(ENGINE, 1).run(make((0.0, 3, 100, 4)), Policy.make("fcfs"))
    assert loaded.finish[0] - plain.finish[0] == pytest.approx(0.5)
    ranked = Simulator(ENGINE.with_(load_per_rank=0.01, overlap=0.5), 1)
    slow = ranked.run(make((0.0, 3, 100, 4), ranks={3: 50}), Policy.make("fcfs"))
    assert slow.finish[0] - plain.finish[0] == pytest.approx((0.5 + 0.5) * 0.5)


def test_chunked_prefill_splits_a_prompt():
    sim = Simulator(ENGINE, 1, max_num_seqs=4, max_num_batched_tokens=64)
    result = sim.run(make((0.0, 0, 150, 1)), Policy.make("fcfs"))
    assert result.steps == 3
    assert result.finish[0] == pytest.approx(3 * 0.01 + 150e-4)
    whole = Simulator(ENGINE, 1, max_num_seqs=4, max_num_batched_tokens=64, chunked_prefill=False)
    assert whole.run(make((0.0, 0, 150, 1)), Policy.make("fcfs")).steps == 1


def test_all_tokens_are_delivered_and_service_equals_cost():
    workload = random_workload(n=60)
    for name, mode in itertools.product(ALL, ("skip", "block", "drain")):
        result = Simulator(ENGINE, 3, 8, 256, 3000).run(workload, Policy.make(name, mode=mode))
        assert (result.emitted == workload.output).all(), (name, mode)
        assert result.sample_served[-1].sum() == pytest.approx(workload.cost().sum())
        assert np.allclose(result.sample_arrived[-1], result.sample_served[-1])
        assert (np.diff(result.sample_time) > 0).all()
        assert (result.first_token >= workload.arrival).all()


def test_policy_books_agree_with_the_truth():
    """With known lengths W is what arrived, S what was delivered, at every sample; B is 0 when all is served."""
    workload = random_workload(1)
    policy = FELPSPolicy(0.2, estimator="oracle")
    seen = []

    class Spy(_Loop):
        def _sample(self):
            super()._sample()
            for a in workload.adapters:
                seen.append(
                    (policy.ledger.served(int(a)) - self.served[a], policy.ledger.workload(int(a)) - self.arrived[a])
                )
                assert 0 <= policy.served_fraction(int(a)) <= 1

    sim = Simulator(ENGINE, 2, 6, 256, 2500, sample_every=0.5)
    result = Spy(sim, workload, policy, np.inf, {}, {}, 10**6).run()
    assert result.preemptions > 0  # recomputed tokens are in the game
    assert len(seen) > 200 and np.abs(seen).max() < 1e-6
    assert all(value == 0 for value in policy.ledger.outstanding.values())


def test_estimated_books_agree_token_by_token():
    """Whole-step booking (counts per adapter) gives what booking every request and step gives."""
    workload = random_workload(2)

    class PerRequest(FELPSPolicy):
        def on_batch(self, charges, now):
            for adapter, prefill, decode, _ in charges:
                by_step.append((now, adapter, prefill, decode))
            super().on_batch(charges, now)

    by_step = []
    fast = FELPSPolicy(0.2, estimator="ewma", prior_output=30.0)
    sim = Simulator(ENGINE, 2, 6, 256, 5000)
    sim.run(workload, fast)
    slow = PerRequest(0.2, estimator="ewma", prior_output=30.0)
    sim.run(workload, slow)
    assert fast.ledger.state_dict() == slow.ledger.state_dict()
    assert sum(row[3] for row in by_step) == workload.output.sum()
    assert all(value == 0 for value in fast.ledger.outstanding.values())


def test_jumping_over_equal_steps_changes_nothing():
    workload = random_workload(3, n=70)
    for name in ("felps", "vtc", "fcfs"):
        sim = Simulator(ENGINE, 3, 8, 256, 4000)
        fast = sim.run(workload, Policy.make(name))
        # sampling at every step forbids jumps
        fine = Simulator(ENGINE, 3, 8, 256, 4000, sample_every=1e-4).run(workload, Policy.make(name))
        assert np.allclose(fast.finish, fine.finish, rtol=0, atol=1e-9)
        assert fast.loads == fine.loads and fast.steps == fine.steps


def test_never_more_adapters_than_slots_and_loads_are_misses():
    workload = random_workload(4, n=50)
    for name, mode in itertools.product(ALL, ("skip", "drain")):
        seen = []

        class Spy(_Loop):
            def admit(self, request, seen=seen):
                was = self.slots.holds(request.adapter)
                loaded, evicted = super().admit(request)
                assert loaded == (not was)
                assert evicted is None or evicted not in self.slots.pinned
                active = {run.request.adapter for run in self.by_id.values()} - {0}
                assert active <= set(self.slots.resident) and len(self.slots.resident) <= 3
                seen.append(loaded)
                return loaded, evicted

        sim = Simulator(ENGINE, 3, 8, 256, 4000)
        result = Spy(sim, workload, Policy.make(name, mode=mode), np.inf, {}, {}, 10**6).run()
        assert result.loads == sum(seen)
        roomy = Simulator(ENGINE, 50, 8, 256, 4000).run(workload, Policy.make(name, mode=mode))
        assert roomy.loads == len(set(workload.adapter.tolist()) - {0})


def test_skip_mode_conserves_work():
    """No step leaves room while a request that could run waits."""
    workload = random_workload(5, n=60)
    for name in ALL:

        class Spy(_Loop):
            def _admit(self):
                super()._admit()
                for request in self.policy.waiting_requests():
                    if self.slots.holds(request.adapter) or self.slots.has_room:
                        head = self.policy.peek(self.now)
                        assert head is not None and not self.can_admit(head)

        Spy(Simulator(ENGINE, 2, 6, 256, 4000), workload, Policy.make(name, mode="skip"), np.inf, {}, {}, 10**6).run()


def adversarial(n=120):
    """B arrives once, A again and again before its last request ends; one slot."""
    return make((0.0, 1, 10, 20), (0.001, 2, 10, 20), *((0.02 + 0.05 * i, 1, 10, 20) for i in range(n)))


def test_drain_mode_starves_nobody_and_skip_mode_does():
    engine = EngineModel(base=0.01, prefill_token=0.0, decode_seq=0.0, kv_token=0.0, load=0.01)
    workload = adversarial()
    for weight in (0.0, 0.2, 0.5, 0.9):
        result = Simulator(engine, 1, 4).run(workload, FELPSPolicy(weight, mode="drain"))
        assert result.first_token[1] < 5.0, weight
    starved = Simulator(engine, 1, 4).run(workload, FELPSPolicy(0.2, mode="skip"))
    assert starved.first_token[1] > 6.0  # only after the last of A


def test_service_follows_workload_under_pure_fairness():
    """Workloads 1:2:4:8 queued at once: served fractions stay within one request cost, with one slot and with four."""
    rows = [(0.0, adapter, 50, 25) for adapter, count in ((1, 10), (2, 20), (3, 40), (4, 80)) for _ in range(count)]
    for slots, seqs in ((1, 1), (4, 8)):
        sim = Simulator(ENGINE, slots, seqs, 512, 10_000, sample_every=0.2)
        # Several requests start in one step: only their committed work tells them apart.
        result = sim.run(make(*rows), FELPSPolicy(0.0, estimator="oracle", commit=seqs > 1))
        rho, waiting = result.served_fraction()[:, 1:], result.sample_waiting
        mid = (waiting > 5) & (np.nanmin(rho, axis=1) > 0.1)
        assert mid.sum() > 10
        one = 100 * (1 if seqs == 1 else 3)  # running requests of an adapter are committed
        bound = one / np.array([1000, 2000, 4000, 8000])
        assert (np.ptp(rho[mid], axis=1) <= bound.max() + 1e-9).all()
        shares = result.sample_served[mid][:, 1:]
        correlation = [np.corrcoef(row, [1, 2, 4, 8])[0, 1] for row in shares]
        assert np.mean(correlation) > 0.99


def test_gap_stays_below_weight_plus_one_request():
    rows = [(0.0, adapter, 50, 25) for adapter in (1, 2) for _ in range(60)]
    for weight in (0.0, 0.1, 0.3):
        sim = Simulator(ENGINE, 1, 1, 512, 10_000, sample_every=0.05)
        result = sim.run(make(*rows), FELPSPolicy(weight, mode="drain", estimator="oracle"))
        rho = result.served_fraction()[:, 1:]
        busy = rho.max(axis=1) < 1
        assert np.ptp(rho[busy], axis=1).max() <= weight + 100 / 6000 + 1e-9
        assert np.ptp(rho[busy], axis=1).max() > weight - 100 / 6000


def test_preemption_recomputes_and_charges_once():
    # 2 sequences of up to 100 tokens in 150 tokens of memory
    result = Simulator(ENGINE, 2, 4, 256, 150).run(make((0.0, 1, 50, 50), (0.0, 2, 50, 50)), Policy.make("felps"))
    assert result.preemptions >= 1
    assert result.emitted.tolist() == [50, 50]
    assert result.sample_served[-1].sum() == 2 * (50 + 100)


def test_too_long_for_the_memory_is_refused_and_blocks_nobody():
    result = Simulator(ENGINE, 2, 4, 256, 150).run(make((0.0, 1, 400, 5), (0.1, 1, 20, 5)), Policy.make("fcfs"))
    assert result.rejected.tolist() == [True, False]
    assert result.emitted.tolist() == [0, 5]
    assert result.metrics()["rejected"] == 1 and result.metrics()["requests"] == 1


def test_aborts_waiting_prefilling_and_decoding():
    workload = make((0.0, 1, 10, 200), (0.0, 1, 2000, 5), (0.0, 2, 10, 5), (0.0, 1, 10, 3))
    aborts = {0: 0.5, 1: 0.03, 2: 0.02}
    for name in ALL:
        sim = Simulator(EngineModel(0.01, 1e-6, 0.0, 0.0, 0.0), 1, 4, 128, 5000)
        policy = Policy.make(name)
        result = sim.run(workload, policy, aborts=aborts)
        assert result.aborted.tolist() == [True, True, True, False], name
        assert 40 < result.emitted[0] < 60 and result.emitted[1:].tolist() == [0, 0, 3]
        assert np.allclose(result.sample_arrived[-1], result.sample_served[-1]), name
    assert all(v == 0 for v in policy.ledger.outstanding.values())


def test_a_removed_adapter_ends_its_waiting_requests_and_finishes_the_running_ones():
    workload = make(
        (0.0, 1, 10, 40), (0.0, 2, 10, 40), (0.0, 1, 10, 40), (0.0, 1, 10, 40), (2.0, 1, 10, 3), (2.0, 2, 10, 3)
    )
    for name in ALL:
        policy = Policy.make(name, mode="drain")
        sim = Simulator(EngineModel(0.01, 0.0, 0.0, 0.0, 0.0), 2, 2, 64, 5000)
        result = sim.run(workload, policy, removals={1: 0.1})
        started = ~np.isnan(result.first_token)
        running = [i for i in (0, 2, 3) if started[i]]
        assert result.emitted[running].tolist() == [40] * len(running) and running, name  # who ran has finished
        assert result.aborted.tolist() == [not started[i] and i in (0, 2, 3) for i in range(6)], name
        assert result.rejected.tolist() == [False] * 4 + [True, False], name  # later ones are refused
        assert result.emitted[[1, 5]].tolist() == [40, 3], name
        assert policy.slots.resident == (2,) and not policy.slots.pinned, name
    assert all(v == 0 for v in policy.ledger.outstanding.values())


def test_a_removed_adapter_is_not_resumed_after_a_preemption():
    workload = make((0.0, 1, 60, 60), (0.0, 2, 60, 60))
    result = Simulator(EngineModel(0.01, 0.0, 0.0, 0.0, 0.0), 2, 2, 256, 150).run(
        workload, Policy.make("fcfs"), removals={2: 0.02}
    )
    assert result.preemptions == 1 and result.aborted.tolist() == [False, True]
    assert result.emitted[0] == 60 and 0 < result.emitted[1] < 60


def test_a_policy_that_admits_nobody_is_named():
    class Never(FELPSPolicy):
        def _choose(self):
            return None

    with pytest.raises(RuntimeError, match="'felps' admits none of 2"):
        Simulator(ENGINE, 1).run(make((0.0, 1, 10, 5), (0.0, 1, 10, 5)), Never())
    late = Simulator(ENGINE, 1).run(make((0.0, 1, 10, 5)), Never(), horizon=30.0)  # with an end it is only unfinished
    assert late.metrics()["unfinished"] == 1 and late.makespan == 30.0


def test_enough_slots_load_every_adapter_once():
    workload = random_workload(6)
    for name in ALL:
        assert Simulator(ENGINE, 10, 8, 256, 4000).run(workload, Policy.make(name)).loads == len(
            [a for a in workload.adapters if a]
        )


def test_an_abort_before_the_arrival_takes_effect_with_it():
    workload = make((0.0, 1, 10, 5), (1.0, 1, 10, 5), (1.5, 2, 10, 5))
    result = Simulator(ENGINE, 1, 4, 256).run(workload, Policy.make("felps"), aborts={1: 0.5})
    assert result.aborted.tolist() == [False, True, False] and result.emitted.tolist() == [5, 0, 5]


def test_unfinished_requests_are_counted_and_censored():
    workload = make(*((0.0, 1, 10, 1000) for _ in range(5)))
    result = Simulator(ENGINE, 1, 1, 256).run(workload, Policy.make("fcfs"), horizon=2.0)
    figures = result.metrics()
    assert figures["unfinished"] == 5 and figures["requests"] == 5
    assert figures["latency_mean"] == pytest.approx(result.makespan)
    assert result.makespan == pytest.approx(2.0, abs=0.05)
    assert result.emitted[0] > 100


def test_latency_metrics_by_hand():
    result = Simulator(ENGINE, 1, 1, 256).run(make((0.0, 0, 100, 1), (0.0, 0, 100, 3)), Policy.make("fcfs"))
    first = 0.02
    assert result.ttft() == pytest.approx([first, 2 * first])
    assert len(result.tpot()) == 1  # a single token has no pace
    assert result.tpot()[0] == pytest.approx(0.011 + 101.5e-6)
    assert result.goodput(0.03, 1.0) == pytest.approx(1 / result.makespan)


@pytest.mark.parametrize(
    ("kwargs", "name"),
    [
        (dict(horizon=-1.0), "horizon"),
        (dict(horizon=float("nan")), "horizon"),
        (dict(aborts={3: 0.0}), "aborts"),
        (dict(aborts={-1: 0.0}), "aborts"),
    ],
)
def test_bad_orders_are_named(kwargs, name):
    with pytest.raises(ValueError, match=name):
        Simulator(ENGINE).run(make((0.0, 1, 1, 1), (0.0, 1, 1, 1), (0.0, 1, 1, 1)), Policy.make("fcfs"), **kwargs)


def test_unknown_adapter_is_named():
    with pytest.raises(ValueError, match="adapter 7"):
        Simulator(ENGINE).run(make((0.0, 7, 1, 1)), Policy.make("fcfs"), known_adapters={1, 2})


@pytest.mark.parametrize(
    ("kwargs", "name"),
    [
        (dict(max_loras=0), "max_loras"),
        (dict(max_num_seqs=0), "max_num_seqs"),
        (dict(max_num_batched_tokens=8), "max_num_batched_tokens"),
        (dict(kv_tokens=0), "kv_tokens"),
        (dict(eviction="none"), "eviction"),
        (dict(sample_every=0.0), "sample_every"),
    ],
)
def test_bad_engine_settings_are_named(kwargs, name):
    with pytest.raises((ValueError, TypeError), match=name):
        Simulator(ENGINE, **kwargs)


def test_equal_arrivals_keep_their_order():
    workload = make(*((1.0, 1, 10, 1) for _ in range(6)))
    result = Simulator(ENGINE, 1, 1, 256).run(workload, Policy.make("fcfs"))
    assert (np.diff(result.finish) > 0).all()


def test_same_seed_same_bytes(tmp_path):
    for i in range(2):
        workload = Workload.synthetic(6, 5.0, 20.0, seed=4)
        result = Simulator(ENGINE, 2, 8, 256, 4000).run(workload, FELPSPolicy(0.2), horizon=20.0)
        result.save(tmp_path / f"{i}.json")
    assert (tmp_path / "0.json").read_bytes() == (tmp_path / "1.json").read_bytes()
    assert json.loads((tmp_path / "0.json").read_text())["policy"]["policy"] == "felps"


def test_evictions_are_an_axis_of_their_own():
    workload = random_workload(6)
    loads = {}
    for eviction in ("lru", "lfu", "cost", "served"):
        result = Simulator(ENGINE, 3, 4, 256, 4000, eviction).run(workload, FELPSPolicy(0.1))
        loads[eviction] = result.loads
        assert (result.emitted == workload.output).all()
    assert len(set(loads.values())) > 1
    with pytest.raises(ValueError, match="felps"):
        Simulator(ENGINE, 2, 4, 256, 4000, "served").run(workload, Policy.make("fcfs"))


def test_a_policy_serves_one_engine_only():
    load = Workload(np.zeros(2), np.array([1, 2]), np.full(2, 5), np.full(2, 3))
    policy = FELPSPolicy(0.2)
    simulator = Simulator(EngineModel.preset("a10g-llama-7b"), 2, 8, 256, 4000)
    simulator.run(load, policy)
    with pytest.raises(ValueError, match="policy: expected a fresh felps, got one that an engine has used"):
        simulator.run(load, policy)
