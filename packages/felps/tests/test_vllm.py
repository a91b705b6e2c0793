"""The plug-in inside a real vLLM engine (runs in the environment that benchmarks/vllm_env.sh makes)."""

from __future__ import annotations

import os

import numpy as np
import pytest

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


def test_same_text_as_the_default_scheduler_and_the_policy_s_order(lab):
    r, engines, paths, *_ = lab
    outcomes = {name: r.replay(engine, rows(), paths) for name, engine in engines.items()}
    assert outcomes["felps"]["texts"] == outcomes["default"]["texts"] == outcomes["fcfs"]["texts"]
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


def test_aborts_leave_nothing_behind(lab):
    r, engines, paths, *_ = lab
    outcome = r.replay(engines["felps"], rows(seed=1), paths, {3: 0.0, 20: 0.0, 25: 0.02})
    queue = r.scheduler_of(engines["felps"]).waiting
    assert len(outcome["finish"]) == 27
    assert len(queue) == 0 and not queue.entries and not queue.slots.pinned
    assert all(v == 0 for v in queue.policy.ledger.outstanding.values())


def test_preemption_keeps_the_text(lab):
    r, engines, paths, model, options = lab
    small = r.build_engine(model, options | {"num_gpu_blocks_override": 12}, {"weight": 0.1, "prior_output": 10.0})
    outcome = r.replay(small, rows(seed=2), paths)
    reference = r.replay(engines["default"], rows(seed=2), paths)
    assert outcome["texts"] == reference["texts"]
    assert outcome["preemptions"] > 0
