"""The plug-in inside a real vLLM engine (runs in the environment that benchmarks/vllm_env.sh makes)."""

from __future__ import annotations

import os

import numpy as np
import pytest

from neurips26.felps import AdapterSlots, FELPSPolicy
from neurips26.shared.testing import needs

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    try:
        import vllm
    except ImportError:
        needs("vllm", False, "packages/felps/benchmarks/vllm_env.sh makes its environment")
    from neurips26.felps.integrations import replay_vllm as r
    from neurips26.felps.integrations.vllm import TESTED

    assert vllm.__version__.startswith(TESTED)
    folder = tmp_path_factory.mktemp("vllm")
    model = r.make_model(folder / "model", hidden=128, layers=2)
    paths = r.make_adapters(model, folder, 5, rank=4)
    options = {
        "max_loras": 2,
        "max_lora_rank": 8,
        "max_num_seqs": 4,
        "max_model_len": 256,
        "max_num_batched_tokens": 256,
    }
    engines = {
        name: r.build_engine(model, options, scheduler)
        for name, scheduler in (
            ("default", None),
            ("felps", {"weight": 0.1, "prior_output": 10.0}),
            ("fcfs", {"policy": "fcfs"}),
        )
    }
    return r, engines, paths, model, options


def rows(n=30, seed=0):
    rng = np.random.default_rng(seed)
    return [
        [0.0, int(a), int(p), int(o)]
        for a, p, o in zip(rng.integers(0, 6, n), rng.integers(4, 60, n), rng.integers(2, 20, n))
    ]


def of_adapters(texts, requests):
    """Texts of the requests that name an adapter.

    On the CPU vLLM 0.32 applies the last slot's adapter to base-model tokens that share a batch with adapters (index -1 taken
    as the last row: its pull request 48421), so that their text follows the company they are in, under any scheduler.
    """
    return {k: text for k, text in texts.items() if requests[int(k)][1]}


def test_same_text_as_the_default_scheduler_and_the_policy_s_order(lab):
    r, engines, paths, *_ = lab
    outcomes = {name: r.replay(engine, rows(), paths) for name, engine in engines.items()}
    texts = [of_adapters(outcome["texts"], rows()) for outcome in outcomes.values()]
    assert texts[0] == texts[1] == texts[2] and len(texts[0]) == 25
    assert len({tuple(t[:4]) for t in outcomes["default"]["texts"].values()}) > 15
    assert outcomes["fcfs"]["order"] == outcomes["default"]["order"]  # vLLM's own rule, through the plug-in
    assert outcomes["felps"]["order"] != outcomes["default"]["order"]
    for name in ("felps", "fcfs"):
        scheduler = r.scheduler_of(engines[name])
        assert len(scheduler.waiting) == 0 and not scheduler.waiting.entries and not scheduler.waiting.slots.pinned
    ledger = r.scheduler_of(engines["felps"]).waiting.policy.ledger
    work = {a: sum(p + 2 * o for _, b, p, o in rows() if b == a) for a in range(6)}
    assert {a: ledger.served(a) for a in work} == work
    assert all(v == 0 for v in ledger.outstanding.values())


def test_its_events_give_the_same_admissions_to_a_policy_outside(lab):
    """What vLLM told the policy, told to a fresh one with slots of its own: the same requests are offered, in order."""
    r, engines, paths, *_ = lab
    scheduler = r.scheduler_of(engines["felps"])
    scheduler.fresh_policy()
    scheduler.fresh_policy = lambda: None  # keep the spied queue
    try:
        queue = scheduler.waiting
        policy, slots, events = queue.policy, queue.slots, []
        start, depth = slots.resident, [0]
        told = ("on_arrival", "on_scheduled", "on_preempted", "on_finished", "on_cached", "withdraw", "pop")
        for target, names in ((policy, told), (slots, ("acquire", "release", "cancel"))):
            for name in names:
                inner = getattr(target, name)

                def spy(*args, _name=name, _inner=inner, **kwargs):
                    depth[0] += 1
                    try:
                        out = _inner(*args, **kwargs)
                    finally:
                        depth[0] -= 1
                    if depth[0] == 0:  # what a call does inside is its own business
                        events.append((_name, args, kwargs, out))
                    return out

                setattr(target, name, spy)
        r.replay(engines["felps"], rows(seed=3), paths, {4: 0.0, 11: 0.02})
    finally:
        del scheduler.fresh_policy
    scheduler.fresh_policy()
    other, mirror = FELPSPolicy(0.1, prior_output=10.0), AdapterSlots(2)
    for adapter in start:
        mirror.acquire(adapter)
        mirror.release(adapter)
    other.bind(mirror)
    admitted = 0
    for name, args, kwargs, out in events:
        got = getattr(mirror if name in ("acquire", "release", "cancel") else other, name)(*args, **kwargs)
        if name == "pop":
            assert got.id == out.id
            admitted += 1
    assert admitted >= 28  # two clients left, before or after their admission


def test_replays_side_by_side_change_no_text(lab):
    r, engines, paths, *_ = lab
    default, felps = r.in_turns([r.steps(engines[name], rows(seed=4), paths) for name in ("default", "felps")])
    alone = r.replay(engines["default"], rows(seed=4), paths)
    for outcome in (default, felps):
        assert of_adapters(outcome["texts"], rows(seed=4)) == of_adapters(alone["texts"], rows(seed=4))
        assert outcome["waiting_left"] == 0 and outcome["makespan"] > 0


def test_settings_of_another_kind_are_refused(lab, monkeypatch):
    r, engines, *_ = lab
    scheduler = r.scheduler_of(engines["felps"])
    for settings, named in (("vtc", "additional_config"), ({"policy": "vtc", "wieght": 1.0}, "wieght")):
        monkeypatch.setattr(scheduler.vllm_config, "additional_config", {"felps": settings})
        with pytest.raises(ValueError, match=named):
            scheduler.fresh_policy()


def test_aborts_leave_nothing_behind(lab):
    r, engines, paths, *_ = lab
    outcome = r.replay(engines["felps"], rows(seed=1), paths, {3: 0.0, 20: 0.0, 25: 0.02})
    queue = r.scheduler_of(engines["felps"]).waiting
    assert len(outcome["finish"]) == 27
    assert len(queue) == 0 and not queue.entries and not queue.slots.pinned
    assert all(v == 0 for v in queue.policy.ledger.outstanding.values())


def test_preemption_keeps_the_text(lab):
    r, engines, paths, model, options = lab
    # Four sequences of up to three blocks share six.
    memory = {"block_size": 32, "max_model_len": 96, "num_gpu_blocks_override": 7}
    small = r.build_engine(model, options | memory, {"weight": 0.1, "prior_output": 10.0})
    outcome = r.replay(small, rows(seed=2), paths)
    reference = r.replay(engines["default"], rows(seed=2), paths)
    assert of_adapters(outcome["texts"], rows(seed=2)) == of_adapters(reference["texts"], rows(seed=2))
    assert outcome["preemptions"] > 0
