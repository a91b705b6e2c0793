# ruff: noqa: E402  the imports come after the checks for optional packages
"""Whole runs: equal results whatever happens on the way, failures, private state, and Flower's own averaging as a peer."""

import errno
import os
import signal
import subprocess
import sys
import time
from unittest import mock

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("flwr")
pytest.importorskip("peft")

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from neurips26.shared.federated import (
    AdapterState,
    BadUpdateError,
    ConfigMismatchError,
    FedConfig,
    FedMethod,
    GlobalModel,
    InProcessGrid,
    MismatchedCodeError,
    Payload,
    PrivateLeakError,
    PrivateStore,
    build_task,
    checkpoint,
    client,
    load_result,
    make_client_app,
    run_federated,
    strategy,
)
from neurips26.shared.federated.methods import METHODS
from neurips26.shared.federated.records import sizes
from neurips26.shared.federated.server import serve
from neurips26.shared.federated.store import check_uplink
from neurips26.shared.federated.strategy import sample_clients
from neurips26.shared.federated.tasks import LinearTask
from neurips26.shared.runs import LockedError, lock

TASK = {"n": 8, "target_rank": 2, "num_clients": 4, "examples": 32, "head": True}
BASE = FedConfig(task_options=TASK, ranks=(2, 2, 2, 2), rounds=4, lr=0.1, optimizer="sgd", local_steps=3, eval_every=2)
MIXED = BASE.replace(method="flora", ranks=(1, 2, 2, 3))


def patched_method(name, method):
    return mock.patch.dict(client.METHODS, {name: method})


_finished = {}


def finished(config):
    """The result of an undisturbed run; several tests compare with the same one."""
    key = repr(sorted(config.to_run_config().items()))
    if key not in _finished:
        _finished[key] = run_federated(config)
    return _finished[key]


def same(a, b):
    return a.final.keys() == b.final.keys() and all(torch.equal(a.final[k], b.final[k]) for k in a.final)


@pytest.mark.parametrize("config", [BASE, MIXED, MIXED.replace(method="hetlora"), BASE.replace(method="rolora")])
def test_equal_settings_end_in_equal_bits_and_equal_bytes(config):
    one, two = finished(config), run_federated(config)
    assert same(one, two) and one.meter.rows == two.meter.rows
    assert not same(one, run_federated(config.replace(seed=1)))


def test_server_and_clients_work_on_as_many_threads_as_the_settings_say():
    before, seen = torch.get_num_threads(), []

    class Watch(METHODS["fedit"]):
        def reply(self, c):
            seen.append(torch.get_num_threads())
            return super().reply(c)

    try:
        for threads in (2, 1):
            with patched_method("fedit", Watch):
                run_federated(BASE.replace(rounds=1, threads=threads), callbacks=[lambda *_: seen.append(0)])
            assert seen == [threads] * 4 + [0] and torch.get_num_threads() == threads
            seen.clear()
    finally:
        torch.set_num_threads(before)


def test_order_of_replies_does_not_matter(monkeypatch):
    one = finished(BASE)
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


@pytest.mark.bad_input
def test_other_ways_to_take_part():
    config = BASE.replace(ranks=(2,) * 5, fraction_train=0.4)
    cyclic = config.replace(participation="cyclic")
    assert [sample_clients(cyclic, t) for t in (1, 2, 3, 4)] == [[0, 1], [2, 3], [0, 4], [1, 2]]
    fixed = config.replace(participation="schedule", schedule=((4, 0), (2,)))
    assert [sample_clients(fixed, t) for t in (1, 2, 3)] == [[0, 4], [2], [0, 4]]
    assert FedConfig.from_run_config(fixed.to_run_config()) == fixed
    coin = config.replace(participation="bernoulli")
    sizes = [len(sample_clients(coin, t)) for t in range(1, 400)]
    assert min(sizes) == 1 and np.mean(sizes) == pytest.approx(5 * 0.4 + 0.6**5, abs=0.15)
    with pytest.raises(ValueError, match="schedule: expected the clients of each round"):
        config.replace(schedule=((1,),))
    with pytest.raises(ValueError, match="schedule: expected a list of clients for each round, got 1"):
        FedConfig.from_run_config(coin.to_run_config() | {"participation": "schedule", "schedule": "[1, 2]"})
    with pytest.raises(ValueError, match="schedule: expected an integer >= 0 and <= 4"):
        config.replace(participation="schedule", schedule=((5,),))


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
    "kind",
    ["crash_before_train", "crash_before_save", "crash_after_train", "timeout", "nan_update", "corrupt_shape", "stale"],
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


def test_a_client_that_never_answers_is_named_and_the_run_goes_on(monkeypatch):
    """A reply that comes after the time limit is not there when the round ends: the same as none."""
    plain = InProcessGrid.send_and_receive

    def lossy(self, messages, *, timeout=None):
        replies = list(plain(self, messages, timeout=timeout))
        return replies[1:] if messages[0].metadata.group_id == "2" else replies

    monkeypatch.setattr(InProcessGrid, "send_and_receive", lossy)
    result = run_federated(MIXED)
    assert result.rounds[1]["failures"] == [[0, "silent", "no reply"]] and result.rounds[1]["replies"] == [1, 2, 3]
    assert result.rounds[2]["replies"] == [0, 1, 2, 3]


def test_replies_belong_to_the_message_that_they_answer(monkeypatch, caplog):
    """Error replies need not come from the client: a SuperLink answers for a node that is gone, and strangers may write."""
    caplog.set_level("WARNING", logger="neurips26.federated")
    plain = InProcessGrid.send_and_receive

    def told(message, error, **changed):
        reply = Message(error, reply_to=message)
        reply.metadata.__dict__.update({f"_{key}": value for key, value in changed.items()})
        return reply

    def lossy(self, messages, *, timeout=None):
        replies = list(plain(self, messages, timeout=timeout))
        if messages[0].metadata.group_id == "2":
            replies[1] = told(messages[1], Error(code=2, reason="node unavailable"), src_node_id=1)
            stranger = {"src_node_id": 5, "dst_node_id": 6, "reply_to_message_id": "another"}
            replies.append(told(messages[2], Error(code=0, reason="who am I"), **stranger))
        return replies[::-1]

    monkeypatch.setattr(InProcessGrid, "send_and_receive", lossy)
    result = run_federated(MIXED)
    assert result.rounds[1]["failures"] == [[1, "error", "node unavailable"]]
    assert result.rounds[1]["replies"] == [0, 2, 3] and result.rounds[2]["replies"] == [0, 1, 2, 3]
    assert "dropped a reply from node 5" in caplog.text


def test_a_client_that_crashed_before_saving_starts_from_its_last_state():
    """FedSA keeps B in private: the crashed round must leave no trace in it."""
    seen = {}

    class Watch(client.named("neurips26.shared.federated.methods:FedSA", "x")):
        def _received(self, c):
            state = super()._received(c)
            seen[c.round, c.pid] = state.factors["layer"].B.clone()
            return state

    with patched_method("fedsa", Watch):
        for kind, same_b in (("crash_before_save", True), ("crash_after_train", False)):
            run_federated(BASE.replace(method="fedsa", eval_every=0, faults=((2, 1, kind),)))
            assert torch.equal(seen[2, 1], seen[3, 1]) == same_b
            assert not torch.equal(seen[2, 0], seen[3, 0])


def test_a_bad_update_can_stop_the_run_and_is_named():
    with pytest.raises(BadUpdateError, match=r"round 2, client 3: .*/layer.* is not finite"):
        run_federated(BASE.replace(faults=((2, 3, "nan_update"),), on_bad_update="raise"))


def test_a_client_without_examples_and_one_with_fewer_than_a_batch():
    config = BASE.replace(task_options=TASK | {"empty": [2], "examples": 4}, batch_size=64)
    result = run_federated(config)
    assert all(row["replies"] == [0, 1, 3] and row["loss"] > 0 for row in result.rounds)


@pytest.mark.parametrize("name", sorted(name for name, m in METHODS.items() if m.mixed_ranks and name != "head-only"))
def test_ranks_of_zero_and_above_the_layers_width_take_part(name):
    """Nothing needs r <= min(m, n) but a frozen A of full rank; a client of rank 0 trains and sends the head."""
    result = run_federated(BASE.replace(method=name, ranks=(0, 1, 12, 3), rounds=3, client_eval_every=3, lr=0.02))
    assert not any(row["failures"] for row in result.rounds)
    assert all(bool(torch.isfinite(v).all()) for v in result.final.values())
    head, bias = 0 if name == "local" else 8 * 4, result.meter.total("up", round=2, client=0)
    assert bias == head
    if METHODS[name].has_global:
        assert result.metric("loss") < 1.2


def test_passes_over_the_examples_instead_of_a_number_of_steps():
    """With as many whole batches as steps the two are the same run."""
    config = BASE.replace(task_options=TASK | {"num_clients": 1}, ranks=(2,), rounds=2)
    n = build_task(config).num_examples(0)
    steps = config.replace(batch_size=4, local_steps=2 * (n // 4))
    assert same(run_federated(steps), run_federated(config.replace(batch_size=4, local_epochs=2, local_steps=1)))


def test_a_client_that_missed_rounds_has_the_same_base_as_one_that_did_not():
    seen = {}

    class Watch(client.named("neurips26.shared.federated.methods:FLoRA", "x")):
        def receive_base(self, c):
            base = super().receive_base(c)
            seen.setdefault(c.round, {})[c.pid] = base["layer"].clone()
            return base

    faults = tuple((t, 1, "crash_before_train") for t in (2, 3))
    with patched_method("flora", Watch):
        run_federated(MIXED.replace(rounds=5, faults=faults))
    for bases in seen.values():
        first = next(iter(bases.values()))
        assert all(torch.equal(first, other) for other in bases.values())


# --- private state ----------------------------------------------------------------------------------------------------


class Leaky(METHODS["fedsa"]):
    """FedSA that sends what it should keep."""

    def reply(self, c):
        payload = super().reply(c)
        payload.tensors |= c.model.adapters().to_tensors(("B",))
        return payload


def test_private_tensors_never_travel(monkeypatch):
    """A canary beside everything that a client keeps in private: its bytes are in no message that leaves a client."""
    canary = torch.full((16,), 1234.5678)
    planted, replies = [], []
    plain = PrivateStore.put

    def put(store, name, tensors, meta=None):
        plain(store, name, tensors, meta)
        plain(store, f"{name} canary", {"B/canary": canary}, {"note": "canary"})
        planted.append((store.pid, name))

    monkeypatch.setattr(PrivateStore, "put", put)
    old = InProcessGrid._answer
    monkeypatch.setattr(InProcessGrid, "_answer", lambda self, message: replies.append(r := old(self, message)) or r)
    for config in (BASE.replace(method="fedsa"), BASE.replace(method="rolora"), MIXED, MIXED.replace(method="local")):
        planted.clear()
        persist = METHODS[config.method].factors_outlive_round
        result = run_federated(config.replace(persist_optimizer=persist, optimizer="adamw", client_eval_every=2))
        assert not any(row["failures"] for row in result.rounds)
        assert {pid for pid, _ in planted} == {0, 1, 2, 3}
        assert {name for _, name in planted} > ({"optimizer"} if persist else set())
    raw = canary.numpy().tobytes()
    for reply in replies:
        for part in get_all_nested_objects(reply.content).values():
            body = part.deflate()
            assert raw not in body and b"canary" not in body


def test_a_method_that_sends_what_it_did_not_declare_is_stopped_by_name():
    with patched_method("fedsa", Leaky):
        result = run_federated(BASE.replace(method="fedsa", rounds=1))
    assert "PrivateLeakError: B/layer: not among the fields" in result.rounds[0]["failures"][0][2]
    with patched_method("fedsa", Leaky), mock.patch.object(client, "check_uplink"):  # a client without the check
        result = run_federated(BASE.replace(method="fedsa", rounds=1))
    assert result.rounds[0]["failures"][0][1] == "rejected" and result.rounds[0]["empty"]
    assert "B/layer: not among the fields" in result.rounds[0]["failures"][0][2]
    with pytest.raises(PrivateLeakError, match="B/w: not among the fields"):
        check_uplink({"A/w": torch.zeros(1), "B/w": torch.zeros(1)}, ("A", "head"))


# --- evaluation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedit", "flora", "fedsa"])
def test_three_columns_are_the_global_the_received_and_the_tuned_model(method):
    """By hand: what the clients hold after the round, on inputs of their own kind, and after the round that would come next."""
    config = BASE.replace(method=method, rounds=2, client_eval_every=2)
    result = run_federated(config)
    rows = {(r["round"], r["column"], r["client"]): r["value"] for r in result.history}
    personal = {(2, column, pid) for column in ("received", "tuned") for pid in range(4)}
    assert rows.keys() - personal == ({(t, "global", -1) for t in (0, 2)} if method != "fedsa" else set())
    task, seen = build_task(config), {}

    class Watch(METHODS[method]):
        def receive(self, c):
            super().receive(c)
            seen["received", c.round, c.pid] = task.evaluate(c.model, "test", c.pid)["loss"]

        def reply(self, c):
            seen["tuned", c.round, c.pid] = task.evaluate(c.model, "test", c.pid)["loss"]
            return super().reply(c)

    with patched_method(method, Watch):
        longer = run_federated(config.replace(rounds=3, client_eval_every=0))
    assert all(rows[2, column, pid] == seen[column, 3, pid] for _, column, pid in personal)
    # An evaluation at the clients leaves no trace in the run.
    assert same(longer, run_federated(config.replace(rounds=3, client_eval_every=1)))
    if method == "fedit":  # no personal state: what a client receives is the global model
        layer = task.model().module["layer"]
        task.model().set_adapters(AdapterState())
        task.model().set_delta({"layer": result.final["delta/layer"]})
        task.model().set_head({"layer.bias": result.final["head/layer.bias"]})
        fresh = torch.randn(100_000, task.n, generator=torch.Generator().manual_seed(0)) * task.variances.sqrt()
        for pid in range(4):  # against the client's own target, on inputs that no client has trained on
            truth = fresh @ task.targets[pid].T
            loss = (layer(fresh) - truth).square().sum() / truth.square().sum()
            assert rows[2, "received", pid] == pytest.approx(float(loss), rel=0.02)


def test_personal_metrics_have_a_plain_and_a_weighted_mean_and_a_price(tmp_path):
    result = run_federated(BASE.replace(client_eval_every=2), out_dir=tmp_path)
    rows = [r for r in result.history if r["column"] == "tuned" and r["round"] == 4]
    values, sizes = [r["value"] for r in rows], [result.examples[r["client"]] for r in rows]
    task = build_task(BASE)
    assert sizes == [task.num_examples(pid) for pid in range(4)] and len(set(sizes)) > 1
    assert result.metric("loss", "tuned") == pytest.approx(np.mean(values))
    assert result.metric("loss", "tuned", weighting="examples") == pytest.approx(np.average(values, weights=sizes))
    # Bytes until a loss was reached: evaluations are after rounds 0, 2 and 4.
    losses = dict(zip(*result.curve("loss"), strict=True))
    one_round = result.meter.total("up", round=1, purpose="train") / 1e6
    assert result.megabytes_to("loss", losses[2], "up") == pytest.approx(2 * one_round)
    assert result.megabytes_to("loss", 2.0, "down") == 0 and result.megabytes_to("loss", 0.0, "up") is None
    assert load_result(tmp_path).metric("loss", "tuned", weighting="examples") == pytest.approx(
        np.average(values, weights=sizes)
    )


# --- other kinds of state ---------------------------------------------------------------------------------------------


class MaskedBias(FedMethod):
    """Not LoRA at all: a bias vector, of which each client sends the half that it moved most, and a mask."""

    name, uplink, mixed_ranks = "masked-bias", ("bias", "mask"), True

    def begin(self, setup):
        super().begin(setup)
        self.bias = setup.head["layer.bias"].clone()

    def downlink(self, round, pid):
        return Payload({"bias/layer": self.bias})

    def receive(self, c):
        c.model.set_delta(None)
        c.model.set_adapters(AdapterState())
        c.model.set_head({"layer.bias": c.received.tensors["bias/layer"]})

    def trained_fields(self, c):
        return ("head",)

    def reply(self, c):
        bias = c.model.head()["layer.bias"]
        moved = (bias - c.received.tensors["bias/layer"]).abs()
        mask = moved >= moved.median()
        return Payload({"bias/layer": torch.where(mask, bias, 0.0), "mask/layer": mask})

    def aggregate(self, round, updates):
        share = sum(u.weight * u.tensors["mask/layer"] for u in updates)
        total = sum(u.weight * u.tensors["bias/layer"] for u in updates)
        self.bias = torch.where(share > 0, total / share.clamp(min=1e-9), self.bias)

    def global_model(self):
        return GlobalModel(adapters=AdapterState({}, {"layer.bias": self.bias}))

    def state_dict(self):
        return {"bias/layer": self.bias}, {}

    def load_state_dict(self, tensors, config):
        self.bias = tensors["bias/layer"]


def test_a_method_of_other_parameters_uses_the_same_transport_meter_and_resume(tmp_path):
    config = BASE.replace(method="masked-bias")
    with patched_method("masked-bias", MaskedBias):
        whole = run_federated(config)
        assert whole.meter.total("up", round=1, client=0) == 8 * 4 + 8 * 1
        assert whole.meter.total("down", round=1, client=0) == 8 * 4
        assert whole.final["head/layer.bias"].abs().sum() > 0
        run_federated(config.replace(rounds=2), out_dir=tmp_path)
        assert same(whole, run_federated(config, out_dir=tmp_path, resume=True))


def test_flowers_local_differential_privacy_goes_around_methods_that_return_what_they_got():
    from flwr.clientapp.mod import LocalDpMod

    def run(config, noise):
        mods = [LocalDpMod(1e6, 1.0, 1.0 / noise, 1e-2)] if noise else []
        return serve(config, InProcessGrid(make_client_app(config.to_run_config(), mods), 4))

    config = BASE.replace(rounds=1)
    plain, little, much = run(config, 0), run(config, 1e-6), run(config, 1e-2)
    far = [(r.final["head/layer.bias"] - plain.final["head/layer.bias"]).norm() for r in (little, much)]
    assert 0 < far[0] < 1e-4 < far[1]
    # Flora sends back other keys than it got. The mod's refusal answers the client's reply: it names no message that the
    # server sent, and no client as its sender.
    failures = run(MIXED.replace(rounds=1), 1e-6).rounds[0]["failures"]
    assert [f[:2] for f in failures] == [[pid, "error"] for pid in range(4)]


def test_a_folder_of_private_state_that_another_run_used_changes_nothing(tmp_path):
    """Client 1 misses the rounds in between: what it kept of the other run's round 6 is no base for this one."""

    def run(config, folder):
        nodes = {pid: {"state-dir": str(folder)} for pid in range(4)}
        return serve(config, InProcessGrid(make_client_app(config.to_run_config()), 4, nodes))

    run(MIXED.replace(rounds=6), tmp_path / "used")
    schedule = ((0, 1, 2, 3), *((0, 2, 3),) * 5, (0, 1, 2, 3))
    config = MIXED.replace(rounds=7, seed=1, participation="schedule", schedule=schedule)
    used, fresh = (run(config, tmp_path / name) for name in ("used", "fresh"))
    assert not any(row["failures"] for row in used.rounds)
    assert used.history == fresh.history
    assert all(torch.equal(value, fresh.final[key]) for key, value in used.final.items())


def test_a_reply_to_another_run_is_rejected(monkeypatch):
    plain = InProcessGrid._answer

    def answer(self, message):
        reply = plain(self, message)
        if reply.has_content() and message.metadata.message_type == "train":
            json_of = reply.content["config"]
            json_of["json"] = str(json_of["json"]).replace('"run": "', '"run": "other')
        return reply

    monkeypatch.setattr(InProcessGrid, "_answer", answer)
    (row,) = run_federated(BASE.replace(rounds=1)).rounds
    assert [why.startswith("it answers another run (other") for _, _, why in row["failures"]] == [True] * 4


@pytest.mark.parametrize("method", ["flora", "fedit"])
def test_moments_of_factors_that_start_anew_are_refused(method):
    config = MIXED.replace(method=method, ranks=(2, 2, 2, 2), rounds=1, optimizer="adamw", persist_optimizer=True)
    if method == "fedit":
        run_federated(config)
        return
    with pytest.raises(ValueError, match="persist_optimizer: expected false with flora"):
        run_federated(config)


def test_a_clients_own_loss_is_the_risk_for_its_own_target():
    task = LinearTask(n=8, target_rank=2, num_clients=2, examples=16, spread=0.5)
    model = task.model()
    model.set_adapters(AdapterState())
    for pid in (0, 1):
        model.set_delta({"layer": task.targets[pid]})
        assert task.evaluate(model, "test", pid)["loss"] == pytest.approx(0, abs=1e-6)
        gap = (task.targets[0] - task.targets[1]).square() * task.variances
        whole = task.targets[1 - pid].square() * task.variances
        assert task.evaluate(model, "test", 1 - pid)["loss"] == pytest.approx(float(gap.sum() / whole.sum()), rel=1e-4)


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
    assert PrivateStore(RecordDict(), 7, 3, tmp_path, run="other").get("b") is None
    (tmp_path / "7" / "0" / "b-2.safetensors").write_bytes(b"torn")
    assert torch.equal(again.get("b")[0]["B/w"], value)


# --- resume -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [BASE, MIXED, BASE.replace(method="rolora"), BASE.replace(method="fedex")])
def test_resume_ends_in_the_same_bits(config, tmp_path):
    whole = finished(config)
    run_federated(config.replace(rounds=2), out_dir=tmp_path)
    resumed = run_federated(config, out_dir=tmp_path, resume=True)
    assert same(whole, resumed) and whole.meter.total("down") == resumed.meter.total("down")


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, caplog):
    caplog.set_level("WARNING", logger="neurips26.federated")
    whole = finished(BASE)
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


def test_a_full_disk_leaves_the_older_checkpoints_whole(tmp_path, monkeypatch):
    whole = finished(BASE)
    plain = checkpoint.atomic_write_bytes

    def full(path, data):
        if path.name == "round-00003.safetensors":
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(path, data)

    monkeypatch.setattr(checkpoint, "atomic_write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        run_federated(BASE, out_dir=tmp_path)
    assert [p.name for p in sorted((tmp_path / "checkpoints").glob("*.json"))] == [
        "round-00001.json",
        "round-00002.json",
    ]
    monkeypatch.undo()
    assert same(whole, run_federated(BASE, out_dir=tmp_path, resume=True))


def test_an_interrupt_and_another_one_leave_a_run_that_can_be_resumed(tmp_path, monkeypatch):
    """Ctrl-C between rounds, then Ctrl-C in the middle of a client's work: no error reply, no lock left behind."""

    def interrupt(round, strategy):
        if round == 2:
            raise KeyboardInterrupt

    whole = finished(BASE)
    with pytest.raises(KeyboardInterrupt):
        run_federated(BASE, out_dir=tmp_path, callbacks=[interrupt])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(client, "train_locally", lambda *args: interrupt(2, None))
        run_federated(BASE, out_dir=tmp_path, resume=True)
    assert same(whole, run_federated(BASE, out_dir=tmp_path, resume=True))


def test_what_is_saved_loads_to_the_same_model(tmp_path):
    """Merged base, adapters and head together: the saved change of the weights gives the recorded loss again."""
    for config in (MIXED, BASE, MIXED.replace(method="fedplora")):
        folder = tmp_path / config.method
        result = run_federated(config, out_dir=folder)
        saved = load_result(folder)
        assert same(result, saved) and saved.meter.rows == result.meter.rows
        task = build_task(config)
        model = task.model()
        model.set_adapters(AdapterState())
        model.set_delta({key[6:]: value for key, value in saved.final.items() if key.startswith("delta/")})
        model.set_head({key[5:]: value for key, value in saved.final.items() if key.startswith("head/")})
        assert task.evaluate(model, "test")["loss"] == pytest.approx(result.metric("loss"), rel=1e-5)


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


@pytest.mark.slow
def test_the_simulation_on_ray_ends_in_the_same_bits(tmp_path):
    """The same apps in Flower's simulation, two clients in actors of their own.

    In a process of its own: Ray pickles the client app, and functions that the annotation checker has wrapped resist that.
    """
    pytest.importorskip("ray")
    config = MIXED.replace(task_options=TASK | {"num_clients": 2}, ranks=(1, 3), rounds=2)
    code = (
        "from neurips26.shared.federated import FedConfig, run_federated\n"
        f"run_federated(FedConfig.from_run_config({config.to_run_config()!r}), 'ray', {str(tmp_path)!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    parallel, here = load_result(tmp_path), run_federated(config)
    assert same(here, parallel)
    columns = ("round", "client", "direction", "tensor_bytes", "record_bytes")
    assert [[row[c] for c in columns] for row in here.meter.rows] == [
        [row[c] for c in columns] for row in parallel.meter.rows
    ]


def test_a_simulation_that_ray_does_not_start_says_what_to_do(monkeypatch):

    def crash(**_):
        try:
            raise Exception("The current node timed out during startup. This could happen because ...")
        except Exception as error:
            raise RuntimeError("An error was encountered. Ending simulation.") from error

    monkeypatch.setitem(sys.modules, "flwr.simulation", mock.Mock(run_simulation=crash))
    with pytest.raises(RuntimeError, match="Ray did not start in the 30 seconds .* or use backend='sequential'"):
        run_federated(BASE, "ray")


# --- settings and messages --------------------------------------------------------------------------------------------


def test_run_configuration_there_and_back():
    config = MIXED.replace(faults=((1, 2, "timeout"),), head_lr=0.5, method_options={})
    assert FedConfig.from_run_config(config.to_run_config()) == config
    with pytest.raises(ValueError, match="unknown key 'local-step' .did you mean 'local-steps'"):
        FedConfig.from_run_config({"local-step": 3})
    with pytest.raises(ValueError, match="expected JSON for ranks, got '4,4'"):
        FedConfig.from_run_config({"ranks": "4,4"})
    with pytest.raises(ValueError, match="kind: expected one of 'crash_before_train'"):
        FedConfig.from_run_config({"faults": '[[1, 2, "fire"]]'})
    with pytest.raises(ValueError, match="eval_every: expected an integer >= 0"):
        FedConfig.from_run_config({"eval-every": -1})
    with pytest.raises(ValueError, match="ranks: expected one for each of the task's 4 clients, got 3"):
        run_federated(BASE.replace(ranks=(2, 2, 2)))
    with pytest.raises(ValueError, match="method: nothing importable is named 'no.such:Thing'"):
        run_federated(BASE.replace(method="no.such:Thing"))
    with pytest.raises(ValueError, match="backend: expected one of 'sequential', 'ray'"):
        run_federated(BASE, backend="rays")


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "key, value, match",
    [
        ("faults", "3", "faults: expected a list, got 3"),
        ("faults", "[[1, 2]]", r"faults: expected \[round, client, kind\] each, got \(1, 2\)"),
        ("faults", '[[1, 9, "timeout"]]', "faults: expected an integer >= 0 and <= 3, got 9"),
        ("faults", '[[0, 1, "timeout"]]', "round: expected an integer >= 1, got 0"),
        ("faults", '[[1, 2, "fire"]]', "kind: expected one of 'crash_before_train'"),
        ("eval-every", -1, "eval_every: expected an integer >= 0, got -1"),
        ("eval-every", "often", "expected JSON for eval-every, got 'often'"),
        ("eval-every", 1.5, "eval_every: expected an integer, got 1.5"),
        ("client-eval-every", -2, "client_eval_every: expected an integer >= 0"),
        ("ranks", "4", "ranks: expected a list, got 4"),
        ("ranks", "[]", "ranks: expected one rank a client, got none"),
        (
            "schedule",
            "[[1]]",
            "schedule: expected the clients of each round with participation='schedule', and only then",
        ),
        ("task-options", "[1]", r"task_options: expected a table, got \(1,\)"),
        ("method-options", "7", "method_options: expected a table, got 7"),
        ("persist-optimizer", "1", "persist_optimizer: expected true or false, got 1"),
        ("local-epochs", "0", "local_epochs: expected an integer >= 1"),
        ("method", "", "method: expected a name, got ''"),
        ("rounds", "-1", "rounds: expected an integer >= 0"),
        ("fraction-train", "1.5", "fraction_train: expected a finite number >= 0 and <= 1"),
        ("min-train-nodes", "5", "min_train_nodes: expected an integer >= 1 and <= 4"),
        ("on-bad-update", "ignore", "on_bad_update: expected one of 'reject', 'raise'"),
        ("lr", "NaN", "lr: expected a finite number >= 0"),
        ("optimizer", "adam", "optimizer: expected one of 'adamw', 'sgd', got 'adam' .did you mean 'adamw'"),
    ],
)
def test_a_bad_setting_is_refused_at_once_and_named(key, value, match):
    with pytest.raises((ValueError, TypeError), match=match):
        FedConfig.from_run_config(BASE.to_run_config() | {key: value})


@pytest.mark.parametrize(
    "key, match", [("method_options", "got an unexpected keyword argument 'depth'"), ("task_options", "'depth'")]
)
def test_options_that_a_method_or_task_does_not_have_are_named(key, match):
    with pytest.raises(ValueError, match=f"{key}: .*{match}"):
        run_federated(BASE.replace(**{key: getattr(BASE, key) | {"depth": 3}}))


def test_other_code_on_a_client_is_refused(monkeypatch):
    monkeypatch.setattr(strategy, "digest_of", lambda config: "another")
    with pytest.raises(MismatchedCodeError, match="install the same version of the package on every node"):
        run_federated(BASE)


def test_another_version_on_a_client_is_refused(monkeypatch):
    monkeypatch.setattr(strategy, "versions_of", lambda config: {"neurips26-shared": "0.0.9"})
    with pytest.raises(
        MismatchedCodeError, match=r"client 0 .* has neurips26-shared 0\.1\.0, the server neurips26-shared 0\.0\.9"
    ):
        run_federated(BASE)


def test_the_server_app_tells_of_every_round_and_of_the_end(tmp_path, monkeypatch):
    """In Flower's own log, which is what ``flwr run --stream`` shows."""
    from neurips26.shared.federated import server

    told = []
    monkeypatch.setattr(server, "flower_log", lambda level, text: told.append(text))
    config = BASE.replace(faults=((2, 1, "timeout"),), client_eval_every=4)
    defaults = config.to_run_config() | {"out-dir": str(tmp_path)}
    grid = InProcessGrid(make_client_app(defaults), 4)
    server.make_server_app(defaults)(grid, Context(1, 1, {}, RecordDict(), {}))
    assert told[0].startswith("round 1 of 4: 4 of 4 clients, training loss ") and "MB up" in told[0]
    assert "3 of 4 clients" in told[1] and ", global loss 0." in told[1]
    assert told[1].endswith("; client 1 error: client 1 did not answer in round 2")
    result = load_result(tmp_path)
    assert told[4] == "fedit, 4 rounds, 4 clients"
    assert told[5] == f"global loss {result.metric('loss'):.4f}"
    assert told[7] == f"mean of the clients' tuned loss {result.metric('loss', 'tuned'):.4f}"
    assert told[-1] == f"history, bytes and final arrays are in {tmp_path}"


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
