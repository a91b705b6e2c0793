"""The CPU engine gives every request what it would get alone."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

from neurips26.felps import FELPSPolicy, Policy, Simulator, Workload, calibrate  # noqa: E402
from neurips26.felps.engine import CPUEngine  # noqa: E402
from neurips26.shared.threads import limit  # noqa: E402

VOCABULARY = 97


def tiny(hidden=32):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    model.lm_head.weight.data.mul_(20.0)
    return model


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    from peft import LoraConfig, get_peft_model

    folder = tmp_path_factory.mktemp("adapters")
    paths = {}
    for adapter in range(1, 6):
        model = get_peft_model(
            tiny(), LoraConfig(r=2 + adapter, lora_alpha=8, target_modules=["q_proj", "v_proj", "o_proj"])
        )
        torch.manual_seed(adapter)
        for name, weight in model.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(weight, std=0.3)
        model.save_pretrained(folder / str(adapter))
        paths[adapter] = folder / str(adapter)
    return paths


@pytest.fixture(autouse=True)
def one_thread():
    with limit(1):
        yield


def engine(adapters, **kw):
    options = dict(max_loras=2, max_num_seqs=6, max_num_batched_tokens=64, max_length=80, max_rank=8)
    return CPUEngine(tiny(), adapters, target_modules=("q_proj", "v_proj", "o_proj"), **(options | kw))


def workload(n=24, adapters=5, seed=0):
    rng = np.random.default_rng(seed)
    return Workload(np.zeros(n), rng.integers(0, adapters + 1, n), rng.integers(3, 30, n), rng.integers(1, 25, n))


def alone(paths, adapter, prompt, output):
    from peft import PeftModel

    model = tiny()
    if adapter:
        model = PeftModel.from_pretrained(model, paths[adapter]).eval()
    with torch.inference_mode():
        out = model.generate(
            input_ids=torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=output,
            min_new_tokens=output, do_sample=False, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    return out[0, len(prompt) :].tolist()


def test_every_request_gets_its_own_text(adapters):
    """Mixed batches with exchanges of adapters and preemptions: token for token the text of a run alone."""
    load = workload()
    real = engine(adapters, kv_tokens=150)
    result = real.run(load, FELPSPolicy(0.2, estimator="oracle"))
    assert result.run.preemptions > 0 and result.run.loads >= 5
    assert (result.run.emitted == load.output).all()
    texts = set()
    for i in range(len(load)):
        prompt = real.prompt(i, int(load.prompt[i]))
        expected = alone(adapters, int(load.adapter[i]), prompt, int(load.output[i]))
        assert result.tokens[i] == expected, f"request {i} of adapter {load.adapter[i]}"
        texts.add(tuple(expected[:3]))
    assert len(texts) > 10  # the adapters and prompts really differ


def test_adapters_change_the_text(adapters):
    prompt = list(range(3, 20))
    same = {tuple(alone(adapters, adapter, prompt, 12)) for adapter in range(6)}
    assert len(same) >= 5


def test_policies_change_order_not_text(adapters):
    load = workload(seed=1)
    runs = {name: engine(adapters).run(load, Policy.make(name)) for name in ("fcfs", "vtc", "felps")}
    assert runs["fcfs"].tokens == runs["vtc"].tokens == runs["felps"].tokens
    order = {name: np.argsort(result.run.first_token, kind="stable").tolist() for name, result in runs.items()}
    assert order["fcfs"] != order["vtc"]


def test_same_admissions_as_the_simulator(adapters):
    """All arrivals at once: decisions depend on tokens, not on time, so the engine and the simulator must agree."""
    load = workload(24, seed=2)
    for name in ("vtc", "dlpm", "felps"):
        real = engine(adapters)
        result = real.run(load, Policy.make(name))
        batching = real.batching
        simulated = Simulator(
            calibrate(result.steps), batching.max_loras, batching.max_num_seqs, batching.max_num_batched_tokens,
            batching.kv_tokens, chunked_prefill=False,
        ).run(load, Policy.make(name))  # fmt: skip
        assert (
            np.argsort(result.run.first_token, kind="stable").tolist()
            == np.argsort(simulated.first_token, kind="stable").tolist()
        ), name
        assert result.run.loads == simulated.loads


def test_slot_limit_is_real(adapters):
    real = engine(adapters, max_loras=2)
    names = {name for m in real.model.modules() if hasattr(m, "lora_A") for name in m.lora_A}
    assert names == {"slot0", "slot1"}


def test_stop_token_ends_a_request(adapters):
    load = workload(6, seed=3)
    full = engine(adapters).run(load, Policy.make("fcfs"))
    stop = next(t[len(t) // 2] for t in full.tokens.values() if len(t) > 6)
    cut = engine(adapters).run(workload(6, seed=3), Policy.make("fcfs"), stop_at=[stop])
    for i, tokens in full.tokens.items():
        end = tokens.index(stop) + 1 if stop in tokens else len(tokens)
        assert cut.tokens[i] == tokens[:end]
    assert sum(map(len, cut.tokens.values())) < sum(map(len, full.tokens.values()))


def test_an_adapter_of_fewer_modules_keeps_nothing_of_its_predecessor(adapters, tmp_path):
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(tiny(), LoraConfig(r=3, lora_alpha=8, target_modules=["v_proj"]))
    torch.manual_seed(9)
    for name, weight in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(tmp_path / "narrow")
    paths = dict(adapters) | {2: tmp_path / "narrow"}
    load = Workload(np.zeros(2), np.array([1, 2]), np.array([6, 6]), np.array([8, 8]))
    real = engine(paths, max_loras=1)
    result = real.run(load, Policy.make("fcfs"))
    assert result.run.loads == 2
    assert result.tokens[1] == alone(paths, 2, real.prompt(1, 6), 8)


def test_broken_adapters_fail_alone(adapters, tmp_path):
    from peft import LoraConfig, get_peft_model

    broken = dict(adapters)
    broken[2] = tmp_path / "missing"
    shutil.copytree(adapters[3], tmp_path / "corrupt")
    (tmp_path / "corrupt" / "adapter_model.safetensors").write_bytes(b"not weights")
    broken[3] = tmp_path / "corrupt"
    foreign = get_peft_model(tiny(64), LoraConfig(r=4, target_modules=["q_proj", "v_proj", "o_proj"]))
    foreign.save_pretrained(tmp_path / "foreign")
    broken[4] = tmp_path / "foreign"
    shutil.copytree(adapters[5], tmp_path / "large")
    described = json.loads((tmp_path / "large" / "adapter_config.json").read_text())
    (tmp_path / "large" / "adapter_config.json").write_text(json.dumps(described | {"r": 64}))
    broken[5] = tmp_path / "large"
    shutil.copytree(adapters[1], tmp_path / "regex")
    described = json.loads((tmp_path / "regex" / "adapter_config.json").read_text())
    (tmp_path / "regex" / "adapter_config.json").write_text(json.dumps(described | {"target_modules": ".*_proj"}))
    broken[6] = tmp_path / "regex"
    adapter = np.array([1, 2, 3, 4, 5, 7, 0, 1, 2, 6])
    load = Workload(np.zeros(10), adapter, np.full(10, 5), np.full(10, 4))
    for name in ("fcfs", "felps", "vtc"):
        result = engine(broken).run(load, Policy.make(name))
        assert sorted(result.errors) == [1, 2, 3, 4, 5, 8, 9]
        for request, word in (
            (1, "readable"),
            (2, "does not fit|readable"),
            (3, "another base|fit"),
            (4, "rank"),
            (5, "not known"),
            (9, "list of names"),
        ):
            assert any(w in result.errors[request] for w in word.split("|")), result.errors[request]
        assert result.run.emitted.tolist() == [4, 0, 0, 0, 0, 0, 4, 4, 0, 0]
        assert result.run.loads == 1  # failed loads are not resident and not counted
        assert result.run.aborted.sum() == 7


def test_too_long_requests_are_refused_at_the_door(adapters):
    load = Workload(np.zeros(3), np.ones(3), np.array([70, 5, 40]), np.array([20, 4, 4]))
    result = engine(adapters).run(load, Policy.make("felps"))
    assert result.run.rejected.tolist() == [True, False, False] and result.run.emitted.tolist() == [0, 4, 4]
    assert list(result.errors) == [0] and "80 tokens" in result.errors[0]
    with pytest.raises(ValueError, match="prompts"):
        engine(adapters).run(workload(3), Policy.make("fcfs"), prompts={0: [1]})
    with pytest.raises(ValueError, match="prompts"):
        engine(adapters).run(workload(3), Policy.make("fcfs"), prompts={3: [1]})


def test_clients_that_leave_and_adapters_that_are_removed(adapters):
    """The others get the text they would have had; nothing stays pinned or owed."""
    load = workload(16, seed=4)
    load.adapter[:] = np.where(load.adapter == 0, 1, load.adapter)
    whole = engine(adapters).run(load, Policy.make("fcfs")).tokens
    policy = FELPSPolicy(0.2)
    victim = int(load.adapter[-1])
    result = engine(adapters).run(load, policy, aborts={0: 0.0, 5: 1e-4}, removals={victim: 1e-4})
    gone = set(np.flatnonzero(result.run.aborted).tolist())
    assert {0, 5} <= gone and (load.adapter[sorted(gone - {0, 5})] == victim).all()
    assert set(result.errors) == gone - {0, 5} and all("removed" in text for text in result.errors.values())
    for i in range(16):
        if i not in gone:
            assert result.tokens[i] == whole[i]
    assert all(v == 0 for v in policy.ledger.outstanding.values()) and not policy.slots.pinned
    assert victim not in policy.slots.resident
