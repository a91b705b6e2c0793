"""Frank-LoRA against values from its formulas, and whole runs on the linear federation."""

import dataclasses
import itertools
from unittest import mock

import numpy as np
import pytest
import torch

from neurips26.frank_lora import (
    FrankLoRA,
    measure_snr,
    optimal_lr,
    rank_factor,
    sample_a,
    sampler,
    save_as_peft,
    snr_theory,
)
from neurips26.frank_lora.flops import adapter_flops
from neurips26.frank_lora.sampler import KINDS, checksum
from neurips26.shared.federated import (
    AdapterState,
    Client,
    ClientUpdate,
    FedConfig,
    LoraFactors,
    LoraModel,
    LoraSpec,
    Payload,
    PrivateStore,
    Setup,
    Task,
    run_federated,
)

FRANK = "neurips26.frank_lora.method:FrankLoRA"
TASK = {"n": 16, "target_rank": 4, "num_clients": 4, "examples": 64}
BASE = FedConfig(
    method=FRANK, task_options=TASK, ranks=(1, 2, 4, 8), rounds=4, lr=0.1, optimizer="sgd", grad_clip=None, eval_every=4
)


def begun(ranks, shapes=None, **options):
    method = FrankLoRA(**options)
    method.begin(Setup(shapes or {"w": (5, 6)}, LoraSpec(tuple(ranks), 1.0), {}, 11, len(ranks)))
    return method


# --- signal to noise --------------------------------------------------------------------------------------------------


def test_exact_noise_of_signs_by_enumeration():
    """n = 3, r = 1: over all 8 sign vectors, E ||G S - G||^2 = 2 ||G||^2."""
    g = torch.tensor([[1.0, -2.0, 0.5]])
    signs = [torch.tensor([s]) for s in itertools.product((-1.0, 1.0), repeat=3)]
    noise = np.mean([float(((g @ a.T) @ a - g).square().sum()) for a in signs])
    assert noise == pytest.approx(2 * float(g.square().sum()))
    assert snr_theory(1, 3, "rademacher") == pytest.approx(0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_measured_signal_to_noise_follows_the_formula(kind):
    g = torch.randn(40, 64, generator=torch.Generator().manual_seed(1))
    for r in (1, 4, 16):
        assert measure_snr(g, r, 200, kind) == pytest.approx(snr_theory(r, 64, kind), rel=0.08)


def test_signal_to_noise_is_linear_in_the_rank():
    g = torch.randn(40, 64, generator=torch.Generator().manual_seed(2))
    ranks = np.array([1, 2, 4, 8, 16, 32])
    measured = np.array([measure_snr(g, int(r), 300) for r in ranks])
    slope = (ranks @ measured) / (ranks @ ranks)
    assert slope * 65 == pytest.approx(1.0, abs=0.05)
    assert np.corrcoef(ranks, measured)[0, 1] ** 2 > 0.999


def test_averaging_clients_is_like_summing_their_ranks():
    """Eight clients of rank 4 have the noise of one of rank 32."""
    g = torch.randn(20, 32, generator=torch.Generator().manual_seed(3))

    def noise(clients, r, draws=300):
        total = 0.0
        for d in range(draws):
            step = sum((g @ (a := sample_a(d, "w", k, r, r, 32)).T) @ a for k in range(clients)) / clients
            total += float((step - g).square().sum())
        return total / draws

    assert noise(8, 4) / noise(1, 32) == pytest.approx(1.0, abs=0.1)


def test_best_step_and_rate_of_a_quadratic():
    """f(W) = ||W - W*||^2 / 2 shrinks per step by 1 - eta* in expectation at eta* = r / (r + n + 1), and not faster."""
    n = 32
    for r in (2, 8, 32):
        eta = optimal_lr(r, n)
        assert eta == pytest.approx(r / (r + n + 1))

        def contraction(step, r=r):
            g = torch.randn(16, n, generator=torch.Generator().manual_seed(4))
            left = [
                float((g - step * (g @ (a := sample_a(d, "q", 0, 0, r, n)).T) @ a).square().sum()) for d in range(600)
            ]
            return np.mean(left) / float(g.square().sum())

        assert contraction(eta) == pytest.approx(1 - eta, rel=0.03)
        assert contraction(2 * r / (r + n + 1) * 1.2) > 1  # above twice the best step it diverges
    assert optimal_lr(4, 4, kind="orthogonal") == 1.0


# --- sampler ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_is_normalised_and_a_function_of_its_names(kind):
    mean = torch.stack([a.T @ a for a in (sample_a(0, "w", 0, e, 4, 8, kind) for e in range(3000))]).mean(0)
    torch.testing.assert_close(mean, torch.eye(8), atol=0.12, rtol=0)
    assert torch.equal(sample_a(5, "w", 1, 2, 4, 8, kind), sample_a(5, "w", 1, 2, 4, 8, kind))


def test_entries_have_the_moments_of_their_distribution():
    """The 65536 values that an entry can take: mean 0, variance 1, and the kurtosis that the signal to noise has in it."""
    for kind, kurtosis in (("gaussian", 3.0), ("kaiming", 1.8), ("rademacher", 1.0)):
        values = sampler._values(kind).astype(np.float64)
        assert values.mean() == pytest.approx(0.0, abs=1e-9) and (values**2).mean() == pytest.approx(1.0, abs=1e-7)
        assert (values**4).mean() == pytest.approx(kurtosis, abs=0.01)
    from scipy.stats import kstest

    assert kstest(sample_a(3, "w", 0, 0, 64, 512).numpy().ravel() * 8, "norm").pvalue > 0.01


def test_other_names_other_a():
    a = sample_a(5, "w", 1, 2, 16, 64).flatten()
    for other in ((6, "w", 1, 2), (5, "v", 1, 2), (5, "w", 2, 2), (5, "w", 1, 3)):
        b = sample_a(*other, 16, 64).flatten()
        assert abs(np.corrcoef(a, b)[0, 1]) < 4 / (16 * 64) ** 0.5


def test_first_numbers_of_the_sampler_never_change():
    """A later version and another machine must draw the same A: pinned values."""
    a = sample_a(0, "w", 0, 0, 2, 3)
    assert a.tolist() == [
        [0.3514382839202881, 0.5848826766014099, 0.2912091314792633],
        [-0.11568847298622131, 0.49011343717575073, -0.12743651866912842],
    ]
    pinned = {"gaussian": 3556259560, "kaiming": 3468100222, "rademacher": 969582766}
    assert {kind: checksum(sample_a(0, "w", 0, 0, 8, 32, kind)) for kind in pinned} == pinned
    rows = sample_a(0, "w", 0, 0, 3, 3, "orthogonal")
    torch.testing.assert_close(rows @ rows.T, torch.eye(3), atol=1e-5, rtol=0)


# --- one step ---------------------------------------------------------------------------------------------------------


def linear_model(m=5, n=6):
    torch.manual_seed(0)
    return LoraModel(torch.nn.ModuleDict({"w": torch.nn.Linear(n, m, bias=False)}), ["w"])


def step(model, method, r, lr, x, y):
    from flwr.app import RecordDict

    received = Payload({}, {"through": 0, "since": 0, "entries": {}})
    client = Client(0, 1, r, 1.0, model, method.setup, PrivateStore(RecordDict(), 0, 1), received)
    method.receive(client)
    parameters = model.trainable(method.trained_fields(client))
    assert list(parameters) == ["B/w"]
    (0.5 * (model.module["w"](x) - y).square().sum()).backward()
    with torch.no_grad():
        for p in parameters.values():
            p -= lr * p.grad
    return method.reply(client)


def test_one_step_moves_the_weight_by_the_projected_gradient():
    model, method = linear_model(), begun([3])
    x, y = torch.randn(4, 6), torch.randn(4, 5)
    gradient = (x @ model.base["w"].T - y).T @ x
    sent = step(model, method, 3, 0.1, x, y)
    a = method.frozen_a("w", 0, 0, 3)
    assert list(sent.tensors) == ["B/w"] and sent.config == {"a": checksum(a)}
    torch.testing.assert_close(sent.tensors["B/w"] @ a, -0.1 * gradient @ a.T @ a, rtol=1e-5, atol=1e-6)


def test_orthogonal_a_of_full_rank_is_full_fine_tuning():
    model, method = linear_model(), begun([6], a_init="orthogonal")
    x, y = torch.randn(4, 6), torch.randn(4, 5)
    gradient = (x @ model.base["w"].T - y).T @ x
    sent = step(model, method, 6, 0.1, x, y)
    torch.testing.assert_close(
        sent.tensors["B/w"] @ method.frozen_a("w", 0, 0, 6), -0.1 * gradient, atol=1e-5, rtol=1e-5
    )


def test_aggregate_is_the_exact_weighted_sum_for_any_ranks():
    method = begun([1, 2, 3])
    b = [torch.randn(5, r) for r in (1, 2, 3)]
    p = (0.2, 0.3, 0.5)
    method.aggregate(1, [ClientUpdate(i, p[i], 1, {"B/w": b[i]}) for i in range(3)])
    exact = sum(p[i] * b[i] @ method.frozen_a("w", i, 0, i + 1) for i in range(3))
    torch.testing.assert_close(method.global_model().delta("w"), exact, rtol=1e-6, atol=1e-6)


def test_rates_follow_the_rank():
    def rates(lr_scaling, optimizer, shapes=(("w", (32, 32)),), module="w"):
        method = FrankLoRA(lr_scaling=lr_scaling)
        method.begin(Setup(dict(shapes), LoraSpec((4, 8, 16), 1.0), {}, 11, 3, optimizer))
        return [method.learning_rate(mock.Mock(spec=Client, rank=r), 1e-3, module) for r in (4, 8, 16)]

    assert rates("linear", "sgd") == pytest.approx([5e-4, 1e-3, 2e-3])
    assert rates("none", "sgd") == [1e-3] * 3
    # What each optimizer calls for.
    assert rates("auto", "sgd") == rates("linear", "sgd") == rates("linear", "adamw")
    assert rates("auto", "adamw") == pytest.approx([1e-3 * 0.5**0.5, 1e-3, 1e-3 * 2**0.5])
    # The exact rule looks at each module's own width.
    two = (("w", (32, 27)), ("v", (27, 20)))
    assert rank_factor("snr", 4, 27) == pytest.approx(4 / 32)
    assert rates("snr", "sgd", two, "w")[0] == pytest.approx(1e-3 * (4 / 32) / (8 / 36))
    assert rates("snr", "sgd", two, "v")[0] == pytest.approx(1e-3 * (4 / 25) / (8 / 29))


def test_modules_of_other_widths_train_with_their_own_rates():
    """One step of SGD on two layers: B moves by the gradient times the module's own rate."""
    from neurips26.shared.federated import client as harness

    torch.manual_seed(0)
    shapes = {"w": (5, 6), "v": (3, 5)}
    net = torch.nn.ModuleDict({name: torch.nn.Linear(n, m, bias=False) for name, (m, n) in shapes.items()})
    model, method = LoraModel(net, list(shapes)), FrankLoRA(lr_scaling="snr", r_ref=2)
    method.begin(Setup(shapes, LoraSpec((4,), 1.0), {}, 11, 1, "sgd"))
    received = Payload({}, {"through": 0, "since": 0, "entries": {}})
    client = Client(0, 1, 4, 1.0, model, method.setup, mock.Mock(spec=PrivateStore), received)
    client.private.get.return_value = None
    method.receive(client)
    x = torch.randn(4, 6)
    task = mock.Mock(spec=Task)
    task.num_examples.return_value = 4
    task.loss.side_effect = lambda *_: net["v"](net["w"](x)).square().sum()
    config = FedConfig(ranks=(4,), local_steps=1, lr=0.01, optimizer="sgd", grad_clip=None)
    parameters = model.trainable(("B",))
    task.loss().backward()
    wanted = {
        k: -0.01 * rank_factor("snr", 4, n) / rank_factor("snr", 2, n) * parameters[f"B/{k}"].grad
        for k, (_, n) in shapes.items()
    }
    harness.train_locally(client, method, task, config)
    for name, value in wanted.items():
        torch.testing.assert_close(client.model.adapters().factors[name].B, value, rtol=1e-5, atol=1e-8)


def test_what_adam_does_in_a_step_makes_its_best_rate_grow_with_the_root_of_the_rank():
    """The two moments of dW = -sign(G A^T) A behind the rule, against draws of A."""
    n, m = 256, 8
    g = torch.randn(m, n, generator=torch.Generator().manual_seed(5))
    for r in (1, 4, 16, 64):
        steps = [torch.sign(g @ (a := sample_a(d, "adam", 0, 0, r, n)).T) @ a for d in range(200)]
        along = np.mean([float((s * g).sum()) for s in steps])
        length = np.mean([float(s.square().sum()) for s in steps])
        assert along == pytest.approx((2 * r / np.pi) ** 0.5 * float(g.norm(dim=1).sum()), rel=0.05)
        assert length == pytest.approx(m * (n + 2 / np.pi * (r - 1)), rel=0.05)


def test_periods():
    assert [begun([2], resample_every=2).epoch(t) for t in (1, 2, 3, 4, 5)] == [0, 0, 1, 1, 2]
    assert begun([2], resample_every=0).epoch(99) == 0


# --- runs -------------------------------------------------------------------------------------------------------------


def test_it_learns_and_sends_b_alone():
    result = run_federated(BASE.replace(rounds=10))
    assert result.metric("loss") < 0.5
    for pid, r in enumerate(BASE.ranks):
        assert result.meter.total("up", round=3, client=pid, purpose="train") == 4 * 16 * r
    flora = run_federated(BASE.replace(method="flora", rounds=3))
    assert result.meter.total("up", round=2) * 2 == flora.meter.total("up", round=2)


def test_a_common_a_for_ever_is_ffa(monkeypatch):
    """With FFA's A and equal ranks, merging and restarting B at zero is the same path under SGD."""
    from neurips26.shared.federated.methods import initial_a

    config = BASE.replace(ranks=(4,) * 4, lr=0.3, rounds=5)
    ffa = run_federated(config.replace(method="ffa"))
    monkeypatch.setattr(FrankLoRA, "frozen_a", lambda self, module, pid, epoch, r: initial_a(0, module, r, 16))
    ours = run_federated(config.replace(method_options={"resample_every": 0}))
    torch.testing.assert_close(ours.final["delta/layer"], ffa.final["delta/layer"], atol=1e-6, rtol=1e-4)


def test_a_client_that_missed_rounds_catches_up_bit_for_bit(monkeypatch):
    seen = {}
    plain = FrankLoRA.receive_base

    def watched(self, client):
        base = plain(self, client)
        seen.setdefault(client.round, []).append(base["layer"].clone())
        return base

    monkeypatch.setattr(FrankLoRA, "receive_base", watched)
    faults = tuple((t, 1, "crash_before_train") for t in (2, 3)) + ((4, 3, "crash_after_train"),)
    run_federated(BASE.replace(rounds=6, faults=faults, fraction_train=0.75))
    assert all(torch.equal(bases[0], other) for bases in seen.values() for other in bases)


def test_downlink_is_the_smaller_of_factors_and_the_dense_change():
    method = begun([2, 2], {"w": (10, 10)})
    for t in range(1, 12):
        method.aggregate(t, [ClientUpdate(0, 1.0, 1, {"B/w": torch.randn(10, 2)})])
    here, gone = method.catch_up(0), method.catch_up(1)
    assert list(here.tensors) == ["11/B/0/w"] and here.config["since"] == 10
    assert list(gone.tensors) == ["dense/w"]


def test_the_log_draws_each_rounds_a_at_the_ranks_of_that_round():
    method = begun([2, 3])
    first = [torch.randn(5, 2), torch.randn(5, 3)]
    method.aggregate(1, [ClientUpdate(i, 0.5, 1, {"B/w": b}) for i, b in enumerate(first)])
    exact = sum(0.5 * b @ method.frozen_a("w", i, 0, b.shape[1]) for i, b in enumerate(first))
    method.setup = dataclasses.replace(method.setup, lora=LoraSpec((4, 1), 1.0))
    second = [torch.randn(5, 4), torch.randn(5, 1)]
    method.aggregate(2, [ClientUpdate(i, 0.5, 1, {"B/w": b}) for i, b in enumerate(second)])
    exact = exact + sum(0.5 * b @ method.frozen_a("w", i, 1, b.shape[1]) for i, b in enumerate(second))
    torch.testing.assert_close(method.global_model().delta("w"), exact, rtol=1e-5, atol=1e-6)


def test_the_rate_is_capped():
    client = mock.Mock(spec=Client, rank=16)
    method = begun([4, 8, 16], {"w": (32, 32)}, lr_max=1.2e-3)
    assert method.learning_rate(client, 1e-3, "w") == 1.2e-3


def test_the_command_line_prints_bytes_rates_and_settings(capsys):
    from neurips26.frank_lora.cli import main

    assert main(["bytes", "--ranks", "8", "8", "--m", "384", "--n", "384", "--modules", "12"]) == 0
    lines = {line[:28].strip(): line[28:].split() for line in capsys.readouterr().out.splitlines()}
    assert lines["frank"] == [f"{2 * 0.147456:.3f}", f"{4 * 0.147456:.3f}"]
    assert lines["hetlora, flexlora, zeropad"] == [f"{4 * 0.147456:.3f}"] * 2
    assert main(["settings"]) == 0 and "local-steps = 4" in capsys.readouterr().out
    assert main(["lr-sweep", "--rates", "0.1"]) == 0 and "0.1" in capsys.readouterr().out
    assert main(["serve", "--show", "--port", "40001"]) == 0
    told = capsys.readouterr().out
    assert "flower-superlink --insecure --simulation --isolation subprocess --host 127.0.0.1 --port 40001" in told
    assert "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT=40001 flwr run" in told


@pytest.mark.parametrize(
    "command, match",
    [
        ("bytes --ranks 4 -1", "ranks: expected an integer >= 1"),
        ("snr --n 0", "n: expected an integer >= 1"),
        ("compare --methods flor", "did you mean 'flora'"),
        ("compare --seeds 0", "seeds: expected an integer >= 1"),
        ("lr-sweep --rates -0.1", "rates: expected"),
        ("run nowhere.toml", "config: expected a TOML file, got 'nowhere.toml'"),
        ("adopt nowhere.json", "record: expected a tune record, got 'nowhere.json'"),
        ("report nowhere", "out: expected the folder of a finished run .*, got 'nowhere'"),
        ("serve --port 0", "port: expected an integer >= 1"),
    ],
)
def test_bad_arguments_of_the_command_line_are_named(command, match):
    from neurips26.frank_lora.cli import main

    with pytest.raises(ValueError, match=match):
        main(command.split())


def test_a_run_tells_of_every_round(tmp_path, capsys):
    from neurips26.frank_lora.cli import main

    path = tmp_path / "x.toml"
    path.write_text(
        'task-options = \'{"n": 8, "num_clients": 2}\'\nranks = "[2, 2]"\nfaults = \'[[2, 1, "timeout"]]\'\n'
    )
    out = str(tmp_path / "out")
    assert main(["run", str(path), "--out", out, "--set", "rounds", "2", "local-steps", "1", "eval-every", "1"]) == 0
    told = capsys.readouterr()
    first, second = told.err.splitlines()
    assert first.startswith("round 1 of 2: 2 of 2 clients, training loss ") and "global loss" in first
    assert "1 of 2 clients" in second and second.endswith("client 1 error: client 1 did not answer in round 2")
    assert "global loss" in told.out and f"final arrays are in {out}" in told.out
    assert main(["report", out, "--target", "2"]) == 0
    told = capsys.readouterr().out
    assert "round 2: client 1 error: client 1 did not answer in round 2" in told
    assert "loss 2: reached with 0.000 MB up and 0.000 MB down" in told  # before the first round
    assert main(["report", out, "--target", "0"]) == 0 and "loss 0: never reached" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"metric: expected one that was recorded \(loss\), got 'nope'"):
        main(["report", out, "--target", "0", "--metric", "nope"])


def test_a_port_that_is_taken_is_told(capsys):
    import socket

    from neurips26.frank_lora.cli import main

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"port: something listens on {port} already"):
            main(["serve", "--port", str(port)])


def test_resume_ends_in_the_same_bits(tmp_path):
    whole = run_federated(BASE)
    run_federated(BASE.replace(rounds=2), out_dir=tmp_path)
    again = run_federated(BASE, out_dir=tmp_path, resume=True)
    assert torch.equal(whole.final["delta/layer"], again.final["delta/layer"])


def test_two_hundred_small_updates_are_not_lost_under_a_bfloat16_base():
    layer = torch.nn.Linear(4, 4, bias=False).to(torch.bfloat16)
    torch.nn.init.constant_(layer.weight, 1.0)
    model = LoraModel(torch.nn.ModuleDict({"w": layer}), ["w"])
    method = begun([4], {"w": (4, 4)}, a_init="orthogonal")
    for t in range(1, 201):
        a = method.frozen_a("w", 0, method.epoch(t), 4)
        method.aggregate(t, [ClientUpdate(0, 1.0, 1, {"B/w": 1e-4 * torch.ones(4, 4) @ torch.linalg.inv(a)})])
    torch.testing.assert_close(method.base["w"], torch.full((4, 4), 0.02), atol=1e-5, rtol=0)
    method.global_model().install(model)
    assert float(layer.weight[0, 0]) == pytest.approx(1.02, abs=0.005)


# --- bad input --------------------------------------------------------------------------------------------------------


def test_ranks_above_the_width_name_the_module():
    with pytest.raises(ValueError, match="ranks: expected at most 6, the input width of w, got 7"):
        begun([2, 7])


def test_a_client_of_rank_zero_trains_the_head_only():
    with pytest.warns(UserWarning, match="rank 0 train the head only"):
        result = run_federated(BASE.replace(ranks=(0, 2, 2, 4), task_options=TASK | {"head": True}, rounds=2))
    assert result.meter.total("up", round=1, client=0) == 4 * 16
    assert result.rounds[0]["replies"] == [0, 1, 2, 3]


def test_another_a_on_the_client_is_noticed():
    method = begun([2])
    assert "differs from the server's" in method.problem(1, 0, {}, {"a": 1})
    assert method.problem(1, 0, {}, {"a": checksum(method.frozen_a("w", 0, 0, 2))}) is None


@pytest.mark.parametrize(
    "options, match",
    [
        ({"a_init": "normal"}, "a_init: expected one of 'gaussian'"),
        ({"lr_scaling": "cube"}, "lr_scaling: expected one of 'auto'"),
        ({"resample_every": -1}, "resample_every: expected an integer >= 0"),
        ({"server_lr": 0.0}, "server_lr: expected a finite number > 0"),
        ({"debias": True, "lr_max": 0.1}, "lr_max: expected none with debias"),
    ],
)
def test_bad_options_are_named(options, match):
    with pytest.raises(ValueError, match=match):
        FrankLoRA(**options)


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_operations_of_the_adapters():
    """By hand for four layers, in units of 2 T r n: forward 2 each; gradients of B, of A, and of what lies between."""
    got, unit = adapter_flops(64, 4, 32), 2 * 32 * 64 * 4
    assert got["both"] / unit == 4 * (2 + 2 + 1) + 3  # B^T dy everywhere; x's gradient through A in all layers but one
    assert got["B"] / unit == 4 * (2 + 1) + 3 + 3
    assert got["weight gradients, both"] / unit == 8 and got["weight gradients, B"] / unit == 4


def test_export_loads_in_peft_and_tells_its_error(tmp_path):
    from peft import PeftModel

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Linear(6, 5, bias=False)

        def forward(self, x):
            return self.w(x)

    torch.manual_seed(0)
    net, x = Net(), torch.randn(3, 6)
    plain = net(x).detach()
    delta = torch.randn(5, 2) @ torch.randn(2, 6)
    assert save_as_peft({"w": delta}, tmp_path / "a", 2)["w"] < 1e-6
    assert 0 < save_as_peft({"w": delta}, tmp_path / "b", 1)["w"] < 1
    loaded = PeftModel.from_pretrained(net, str(tmp_path / "a"))
    torch.testing.assert_close(loaded(x), plain + x @ delta.T, atol=1e-5, rtol=1e-4)


def test_adapters_with_mixed_module_ranks_are_refused():
    state = AdapterState(
        {"w": LoraFactors(torch.zeros(1, 6), torch.zeros(5, 1)), "v": LoraFactors(torch.zeros(2, 6), torch.zeros(5, 2))}
    )
    with pytest.raises(ValueError, match="expected one rank for all modules"):
        linear_model().set_adapters(state)
