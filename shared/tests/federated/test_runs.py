# ruff: noqa: E402  the imports come after the checks for optional packages
"""Whole runs: equal results whatever happens on the way, failures, private state, and Flower's own averaging as a peer."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("flwr")
pytest.importorskip("peft")

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from neurips26.shared.federated import (
    BadUpdateError,
    ConfigMismatchError,
    FedConfig,
    InProcessGrid,
    MismatchedCodeError,
    PrivateLeakError,
    PrivateStore,
    client,
    make_client_app,
    run_federated,
    strategy,
)
from neurips26.shared.federated.records import sizes
from neurips26.shared.federated.store import check_uplink
from neurips26.shared.federated.strategy import sample_clients
from neurips26.shared.runs import LockedError, lock

TASK = {"n": 8, "target_rank": 2, "num_clients": 4, "examples": 32, "head": True}
BASE = FedConfig(task_options=TASK, ranks=(2, 2, 2, 2), rounds=4, lr=0.1, optimizer="sgd", local_steps=3, eval_every=2)
MIXED = BASE.replace(method="flora", ranks=(1, 2, 2, 3))


def same(a, b):
    return a.final.keys() == b.final.keys() and all(torch.equal(a.final[k], b.final[k]) for k in a.final)


@pytest.mark.parametrize("config", [BASE, MIXED, MIXED.replace(method="hetlora"), BASE.replace(method="rolora")])
def test_equal_settings_end_in_equal_bits_and_equal_bytes(config):
    one, two = run_federated(config), run_federated(config)
    assert same(one, two) and one.meter.rows == two.meter.rows
    assert not same(one, run_federated(config.replace(seed=1)))


def test_order_of_replies_does_not_matter(monkeypatch):
    one = run_federated(BASE)
    plain = InProcessGrid.send_and_receive
    monkeypatch.setattr(
        InProcessGrid, "send_and_receive", lambda self, m, *, timeout=None: list(plain(self, m, timeout=timeout))[::-1]
    )
    assert same(one, run_federated(BASE))


def test_sampling_is_by_partition_id_and_round():
    config = BASE.replace(ranks=(2,) * 10, fraction_train=0.3)
    drawn = [sample_clients(config, t) for t in range(1, 30)]
    assert all(len(d) == 3 and d == sorted(set(d)) for d in drawn) and len({tuple(d) for d in drawn}) > 10
    assert drawn == [sample_clients(config, t) for t in range(1, 30)]
    assert len(sample_clients(config.replace(fraction_train=0.0, min_train_nodes=2), 1)) == 2


def test_one_client_is_plain_peft_training_bit_for_bit():
    from peft import LoraConfig, inject_adapter_in_model

    from neurips26.shared.federated import build_task
    from neurips26.shared.federated.methods import initial_a
    from neurips26.shared.seeding import rng

    options = TASK | {"num_clients": 1, "examples": 128}
    config = BASE.replace(task_options=options, ranks=(2,), rounds=1, optimizer="adamw", lr=0.01)
    result = run_federated(config)
    task = build_task(config)
    layer = torch.nn.Linear(8, 8)
    torch.nn.init.zeros_(layer.weight), torch.nn.init.zeros_(layer.bias)
    model = torch.nn.ModuleDict({"layer": layer})
    inject_adapter_in_model(LoraConfig(r=2, lora_alpha=2, target_modules=["layer"]), model)
    lora = model["layer"]
    a, b = lora.lora_A["default"].weight, lora.lora_B["default"].weight
    with torch.no_grad():
        a.copy_(initial_a(0, "layer", 2, 8)), b.zero_()
    bias = lora.base_layer.bias.requires_grad_(True)
    optimizer = torch.optim.AdamW([{"params": [a, b]}, {"params": [bias]}], lr=0.01, weight_decay=0.0)
    order = rng(0, "batches", 1, 0).permutation(task.num_examples(0))
    for step in range(3):
        rows = order[16 * step : 16 * step + 16]
        loss = 0.5 * (lora(task._x[0][rows]) - task._y[0][rows]).square().sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([a, b, bias], 1.0)
        optimizer.step()
    assert torch.equal(result.final["delta/layer"], b.detach() @ a.detach())
    assert torch.equal(result.final["head/layer.bias"], bias.detach())


def test_fedit_agrees_with_flowers_own_fedavg():
    from flwr.serverapp.strategy import FedAvg

    from neurips26.shared.federated.method import ClientUpdate, Setup
    from neurips26.shared.federated.methods import FedIT
    from neurips26.shared.federated.model import LoraSpec

    InProcessGrid(make_client_app(BASE.to_run_config()), 1)
    g = torch.Generator().manual_seed(0)
    sent = [{"A/w": torch.randn(2, 5, generator=g), "B/w": torch.randn(4, 2, generator=g)} for _ in range(3)]
    examples = [10, 20, 30]
    replies = []
    for tensors, n in zip(sent, examples, strict=True):
        question = Message(RecordDict(), dst_node_id=7, message_type="train")
        content = RecordDict({"a": ArrayRecord(tensors), "m": MetricRecord({"num-examples": n})})
        replies.append(Message(content, reply_to=question))
    theirs, _ = FedAvg().aggregate_train(1, replies)
    method = FedIT()
    method.begin(Setup({"w": (4, 5)}, LoraSpec((2, 2, 2), 1.0), {}, 0, 3))
    method.aggregate(1, [ClientUpdate(i, n / 60, n, t) for i, (t, n) in enumerate(zip(sent, examples, strict=True))])
    ours = method.state.to_tensors()
    for key, value in theirs.to_torch_state_dict().items():
        torch.testing.assert_close(ours[key], value, atol=1e-6, rtol=1e-6)


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["crash_before_train", "crash_after_train", "timeout", "nan_update", "corrupt_shape", "stale"]
)
@pytest.mark.parametrize("config", [BASE, MIXED])
def test_a_failing_client_is_named_and_the_run_goes_on(kind, config):
    result = run_federated(config.replace(faults=((2, 1, kind),)))
    row = result.rounds[1]
    assert row["replies"] == [0, 2, 3] and row["failures"][0][0] == 1
    assert all(not r["failures"] for r in result.rounds[2:])
    assert all(bool(torch.isfinite(v).all()) for v in result.final.values())


def test_a_round_without_replies_keeps_the_model():
    faults = tuple((2, pid, "crash_before_train") for pid in range(4))
    result = run_federated(BASE.replace(rounds=2, eval_every=1, faults=faults))
    assert result.rounds[1]["empty"]
    assert result.metric("loss", round=2) == result.metric("loss", round=1)


def test_a_bad_update_can_stop_the_run_and_is_named():
    with pytest.raises(BadUpdateError, match=r"round 2, client 3: .*/layer.* is not finite"):
        run_federated(BASE.replace(faults=((2, 3, "nan_update"),), on_bad_update="raise"))


def test_a_client_without_examples_and_one_with_fewer_than_a_batch():
    config = BASE.replace(task_options=TASK | {"empty": [2], "examples": 4}, batch_size=64)
    result = run_federated(config)
    assert all(row["replies"] == [0, 1, 3] for row in result.rounds)


def test_a_client_that_missed_rounds_has_the_same_base_as_one_that_did_not():
    seen = {}

    class Watch(client.named("neurips26.shared.federated.methods:FLoRA", "x")):
        def receive_base(self, c):
            base = super().receive_base(c)
            seen.setdefault(c.round, {})[c.pid] = base["layer"].clone()
            return base

    import neurips26.shared.federated.client as module

    old = module.METHODS["flora"]
    module.METHODS["flora"] = Watch
    try:
        faults = tuple((t, 1, "crash_before_train") for t in (2, 3))
        run_federated(MIXED.replace(rounds=5, faults=faults))
    finally:
        module.METHODS["flora"] = old
    for bases in seen.values():
        first = next(iter(bases.values()))
        assert all(torch.equal(first, other) for other in bases.values())


# --- private state ----------------------------------------------------------------------------------------------------


def test_private_tensors_never_travel(monkeypatch):
    """A canary in the private store of every client: its bytes are in no reply."""
    canary = torch.full((16,), 1234.5678)
    raw = canary.numpy().tobytes()
    replies = []
    plain = PrivateStore.put
    monkeypatch.setattr(PrivateStore, "put", lambda s, n, t, m=None: plain(s, n, dict(t) | {"B/canary": canary}, m))
    old = InProcessGrid._answer

    def watched(self, message):
        reply = old(self, message)
        replies.append(reply)
        return reply

    monkeypatch.setattr(InProcessGrid, "_answer", watched)
    for method in ("fedsa", "rolora"):
        with contextlib.suppress(Exception):  # a canary in a method's own tensors may break it; it must not leak
            run_federated(BASE.replace(method=method))
    run_federated(MIXED.replace(method="local"))
    arrays = [
        a.data for r in replies if r.has_content() for rec in r.content.array_records.values() for a in rec.values()
    ]
    assert replies and all(raw not in data for data in arrays)
    with pytest.raises(PrivateLeakError, match="B/w: not among the fields"):
        check_uplink({"A/w": canary, "B/w": canary}, ("A", "head"))


def test_store_reads_earlier_rounds_only_and_survives_on_disk(tmp_path):
    value = torch.arange(3.0)
    PrivateStore(RecordDict(), 7, 1, tmp_path).put("b", {"B/w": value})
    PrivateStore(RecordDict(), 7, 2, tmp_path).put("b", {"B/w": 2 * value}, {"note": "x"})
    again = PrivateStore(RecordDict(), 7, 3, tmp_path)
    tensors, meta = again.get("b")
    assert torch.equal(tensors["B/w"], 2 * value) and meta == {"note": "x", "round": 2}
    assert torch.equal(PrivateStore(RecordDict(), 7, 2, tmp_path).get("b")[0]["B/w"], value)
    assert PrivateStore(RecordDict(), 7, 1, tmp_path).get("b") is None
    assert PrivateStore(RecordDict(), 8, 9, tmp_path).get("b") is None
    (tmp_path / "7" / "b-2.safetensors").write_bytes(b"torn")
    assert torch.equal(again.get("b")[0]["B/w"], value)


# --- resume -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [BASE, MIXED, BASE.replace(method="rolora"), BASE.replace(method="fedex")])
def test_resume_ends_in_the_same_bits(config, tmp_path):
    whole = run_federated(config)
    run_federated(config.replace(rounds=2), out_dir=tmp_path)
    resumed = run_federated(config, out_dir=tmp_path, resume=True)
    assert same(whole, resumed) and whole.meter.total("down") == resumed.meter.total("down")


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, caplog):
    whole = run_federated(BASE)
    run_federated(BASE.replace(rounds=3), out_dir=tmp_path)
    (tmp_path / "checkpoints" / "round-00003.safetensors").write_bytes(b"torn")
    assert same(whole, run_federated(BASE, out_dir=tmp_path, resume=True))
    assert "round-00003.safetensors: damaged" in caplog.text


def test_other_settings_or_another_run_in_the_folder_are_refused(tmp_path):
    run_federated(BASE.replace(rounds=1), out_dir=tmp_path)
    with pytest.raises(ConfigMismatchError, match=r"lr: 0.1 then, 0.2 now"):
        run_federated(BASE.replace(lr=0.2), out_dir=tmp_path, resume=True)
    with pytest.raises(FileExistsError, match="holds another run"):
        run_federated(BASE, out_dir=tmp_path)
    with lock(tmp_path), pytest.raises(LockedError):
        run_federated(BASE, out_dir=tmp_path, resume=True)


@pytest.mark.slow
def test_kill_9_in_a_round_and_resume(tmp_path):
    config = MIXED.replace(rounds=40, eval_every=0)
    code = (
        "from neurips26.shared.federated import FedConfig, run_federated\n"
        f"run_federated(FedConfig.from_run_config({config.to_run_config()!r}), out_dir={str(tmp_path)!r})"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while not list(tmp_path.glob("checkpoints/round-*.json")) and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "result.json").exists(), "the run was over before the kill"
    assert same(run_federated(config), run_federated(config, out_dir=tmp_path, resume=True))


# --- settings and messages --------------------------------------------------------------------------------------------


def test_run_configuration_there_and_back():
    config = MIXED.replace(faults=((1, 2, "timeout"),), head_lr=0.5, method_options={})
    assert FedConfig.from_run_config(config.to_run_config()) == config
    with pytest.raises(ValueError, match="unknown key 'local-step' .did you mean 'local-steps'"):
        FedConfig.from_run_config({"local-step": 3})
    with pytest.raises(ValueError, match="expected JSON for ranks, got '4,4'"):
        FedConfig.from_run_config({"ranks": "4,4"})
    with pytest.raises(ValueError, match="ranks: expected one for each of the task's 4 clients, got 3"):
        run_federated(BASE.replace(ranks=(2, 2, 2)))
    with pytest.raises(ValueError, match="method: nothing importable is named 'no.such:Thing'"):
        run_federated(BASE.replace(method="no.such:Thing"))
    with pytest.raises(ValueError, match="backend: expected one of 'sequential', 'ray'"):
        run_federated(BASE, backend="rays")


def test_other_code_on_a_client_is_refused(monkeypatch):
    monkeypatch.setattr(strategy, "digest_of", lambda config: "another")
    with pytest.raises(MismatchedCodeError, match="install the same version of the package on every node"):
        run_federated(BASE)


def test_two_nodes_with_one_partition_id_are_refused():
    from neurips26.shared.federated.server import serve

    app = make_client_app(BASE.to_run_config())
    grid = InProcessGrid(app, 4, {3: {"partition-id": 0}})
    with pytest.raises(ValueError, match="partition-id: expected each once, 0 is claimed"):
        serve(BASE, grid)


def test_messages_are_copies():
    """What a client does to what it got does not reach the server."""
    result = run_federated(BASE.replace(local_steps=0, rounds=2, eval_every=1))
    assert result.metric("loss", round=2) == pytest.approx(1.0)
    content = RecordDict({"c": ConfigRecord({"x": 1}), "a": ArrayRecord({"w": torch.zeros(4)})})
    assert sizes(content).tensor_bytes == 16
    assert np.isclose(result.metric("loss", round=1), 1.0)
