# ruff: noqa: E402  the imports come after the checks for optional packages
"""The baselines against values computed by hand: two clients, 2 x 2, rank one, weights 1/4 and 3/4."""

from unittest import mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("flwr")
pytest.importorskip("peft")

from neurips26.shared.federated import (
    AdapterState,
    Client,
    ClientUpdate,
    FedConfig,
    LoraFactors,
    LoraSpec,
    MixedRanksError,
    Setup,
    run_federated,
)
from neurips26.shared.federated.methods import METHODS
from neurips26.shared.federated.methods.averaging import norm

A = [torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])]
B = [torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [1.0]])]
P = (0.25, 0.75)
EXACT = torch.tensor([[0.25, 0.0], [0.0, 0.75]])


def begun(name, ranks=(1, 1), alpha=1.0, **options):
    method = METHODS[name](**options)
    method.begin(Setup({"w": (2, 2)}, LoraSpec(ranks, alpha), {}, seed=3, num_clients=len(ranks)))
    return method


def updates(method, a=A, b=B, fields=None, weights=P):
    fields = fields or method.uplink
    out = []
    for pid in range(len(b)):
        tensors = {"A/w": a[pid], "B/w": b[pid]}
        out.append(ClientUpdate(pid, weights[pid], 1, {k: v for k, v in tensors.items() if k[0] in fields}))
    return out


def product(method):
    return method.global_model().delta("w")


def test_fedit_multiplies_the_means():
    method = begun("fedit")
    method.aggregate(1, updates(method))
    torch.testing.assert_close(product(method), torch.tensor([[0.0625, 0.1875], [0.1875, 0.5625]]))


def test_fedprox_pulls_towards_what_was_received():
    start = {"A/w": A[0], "B/w": torch.zeros(2, 1)}
    parameters = {"A/w": A[1].clone().requires_grad_(), "B/w": B[0].clone().requires_grad_()}
    client = mock.Mock(spec=Client, parameters=parameters, start=start)
    loss = begun("fedprox", mu=0.5).extra_loss(client)
    assert float(loss.detach()) == pytest.approx(0.5 / 2 * (2 + 1))  # |A - A'|^2 = 2, |B - B'|^2 = 1
    loss.backward()
    assert parameters["A/w"].grad.tolist() == [[-0.5, 0.5]] and parameters["B/w"].grad.tolist() == [[0.5], [0.0]]
    config = FedConfig(task_options={"n": 8, "num_clients": 2}, ranks=(2, 2), rounds=2, lr=0.1, optimizer="sgd")
    plain, none, strong = (
        run_federated(config.replace(method=name, method_options=options)).final["delta/layer"]
        for name, options in (("fedit", {}), ("fedprox", {"mu": 0.0}), ("fedprox", {"mu": 5.0}))
    )
    assert torch.equal(plain, none) and strong.norm() < 0.9 * plain.norm()


def test_zeropad_is_fedit_at_equal_ranks_and_shrinks_what_one_client_owns():
    method = begun("zeropad")
    method.aggregate(1, updates(method))
    torch.testing.assert_close(product(method), torch.tensor([[0.0625, 0.1875], [0.1875, 0.5625]]))
    method = begun("zeropad", ranks=(1, 2))
    a2, b2 = torch.eye(2), torch.eye(2)
    method.aggregate(1, updates(method, [A[0], a2], [B[0], b2]))
    torch.testing.assert_close(product(method), torch.diag(torch.tensor([1.0, 0.5625])))


def test_fedex_residual_makes_fedit_exact():
    method = begun("fedex")
    method.aggregate(1, updates(method))
    torch.testing.assert_close(method.base["w"], torch.tensor([[0.1875, -0.1875], [-0.1875, 0.1875]]))
    torch.testing.assert_close(product(method), EXACT)


def test_flora_stacks_to_the_exact_sum_also_with_mixed_ranks_and_scaling():
    method = begun("flora")
    method.aggregate(1, updates(method))
    torch.testing.assert_close(product(method), EXACT)
    method = begun("flora", ranks=(1, 2), alpha=2.0)
    a, b = torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [3.0, 1.0]])
    method.aggregate(1, updates(method, [A[0], a], [B[0], b]))
    torch.testing.assert_close(product(method), 2 * (0.25 * B[0] @ A[0] + 0.75 * b @ a))


def test_flexlora_sends_the_top_triplets():
    method = begun("flexlora")
    method.aggregate(1, updates(method))
    torch.testing.assert_close(product(method), EXACT)
    sent = AdapterState.from_tensors(method.downlink(2, 0).tensors)
    torch.testing.assert_close(sent.delta("w"), torch.tensor([[0.0, 0.0], [0.0, 0.75]]))
    method = begun("flexlora", ranks=(1, 2), alpha=4.0)
    method.aggregate(1, updates(method, [A[0], torch.eye(2)], [B[0], torch.diag(torch.tensor([0.0, 1.0]))]))
    sent = AdapterState.from_tensors(method.downlink(2, 1).tensors, 4.0)
    torch.testing.assert_close(sent.delta("w"), 4 * EXACT)


def test_hetlora_weighs_by_the_norm_of_the_product():
    assert norm(AdapterState({"w": LoraFactors(A[0], B[0])})) == pytest.approx(1.0)
    method = begun("hetlora")
    method.aggregate(1, updates(method))
    torch.testing.assert_close(method.state.factors["w"].A, torch.tensor([[0.5, 0.5]]))
    method.aggregate(2, updates(method, b=[3 * B[0], B[1]]))
    torch.testing.assert_close(method.state.factors["w"].A, torch.tensor([[0.75, 0.25]]))


def test_hetlora_prunes_a_client_whose_tail_shrank():
    """gamma 1/2, a strong penalty on the tail: rank 4 becomes 2 in the same reply, which is half as long, and 1 after it."""
    config = FedConfig(
        method="hetlora", method_options={"gamma": 0.5, "lam": 10.0}, task_options={"n": 16, "num_clients": 2},
        ranks=(4, 2), rounds=5, lr=0.02, optimizer="sgd", grad_clip=None, local_steps=2,
    )  # fmt: skip
    result = run_federated(config)
    sent = [result.meter.total("up", round=t, client=0) // (4 * 2 * 16) for t in range(1, 6)]
    assert sent[0] == 4  # B starts at zero, so does the tail, and it can only grow
    assert sent == sorted(sent, reverse=True) and sent[-1] == 1
    assert all(not row["failures"] for row in result.rounds)
    method = begun("hetlora", ranks=(2, 1))
    assert method.problem(1, 0, {"A/w": A[0], "B/w": B[0]}, {"rank": 1}) is None
    assert "expected shape" in method.problem(1, 0, {"A/w": A[0], "B/w": B[0]}, {})
    assert "its rank is 3" in method.problem(1, 0, {}, {"rank": 3})


def test_ffa_averages_b_under_one_a():
    method = begun("ffa", ranks=(1, 2))
    common = method.state.factors["w"].A
    method.aggregate(1, updates(method, b=[B[0], torch.eye(2)]))
    exact = 0.25 * B[0] @ common[:1] + 0.75 * common
    torch.testing.assert_close(product(method), exact)
    assert "A/w" not in method.downlink(2, 0).tensors


def test_fedsa_averages_a_alone():
    method = begun("fedsa")
    method.aggregate(1, updates(method))
    torch.testing.assert_close(method.downlink(2, 0).tensors["A/w"], torch.tensor([[0.25, 0.75]]))
    assert "B/w" not in method.downlink(2, 0).tensors


def test_rolora_alternates_and_sends_what_changed():
    method = begun("rolora")
    method.aggregate(1, updates(method, fields="B"))
    assert list(method.downlink(2, 0).tensors) == ["B/w"]
    torch.testing.assert_close(method.state.factors["w"].B, torch.tensor([[0.25], [0.75]]))
    method.aggregate(2, updates(method, fields="A"))
    torch.testing.assert_close(product(method), torch.tensor([[0.0625, 0.1875], [0.1875, 0.5625]]))
    assert list(method.downlink(3, 0).tensors) == ["A/w"]


def test_fedplora_averages_a_module_over_those_that_trained_it():
    method = begun("fedplora", ranks=(1, 2))
    mine = method.selected(1, 0)[0]
    method.aggregate(1, updates(method, [A[0], torch.eye(2)], [B[0], torch.eye(2)]))
    got = method.state.factors["w"]
    both = 0.25 * A[0][0] + 0.75 * torch.eye(2)[mine]
    torch.testing.assert_close(got.A[mine], both)
    torch.testing.assert_close(got.A[1 - mine], torch.eye(2)[1 - mine])


def test_fedplora_can_weigh_those_that_trained_a_module_alike():
    method = begun("fedplora", ranks=(1, 2), plain=True)
    mine = method.selected(1, 0)[0]
    method.aggregate(1, updates(method, [A[0], torch.eye(2)], [B[0], torch.eye(2)]))
    torch.testing.assert_close(method.state.factors["w"].A[mine], 0.5 * A[0][0] + 0.5 * torch.eye(2)[mine])


def test_florana_is_never_worse_than_the_means_and_finds_the_best_rank_one():
    method = begun("florana", sweeps=200)
    method.aggregate(1, updates(method))
    assert float((product(method) - EXACT).norm()) == pytest.approx(0.25, abs=1e-4)  # the singular value left out
    torch.manual_seed(0)
    a, b = torch.randn(3, 2, 5), torch.randn(3, 4, 2)
    p = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    exact = torch.einsum("k,kmr,krn->mn", p.float(), b, a)
    mean = torch.einsum("k,kmr->mr", p.float(), b) @ torch.einsum("k,krn->rn", p.float(), a)
    na, nb = METHODS["florana"]()._surrogates(a.double(), b.double(), p)
    assert float((nb @ na - exact).norm()) < float((mean - exact).norm())


@pytest.mark.parametrize("name", ["fedit", "fedprox", "rolora", "fedsa", "fedex", "florana"])
def test_methods_of_one_rank_refuse_mixed_ranks_by_name(name):
    with pytest.raises(MixedRanksError, match=f"{name}: expected one"):
        begun(name, ranks=(1, 2))


@pytest.mark.parametrize("name", ["fedit", "flora", "fedex", "ffa", "flexlora", "zeropad", "florana"])
def test_equal_clients_give_what_one_gives(name):
    """Exact methods (and means of equal things) reproduce the common update."""
    method = begun(name, ranks=(1, 1))
    a, b = torch.tensor([[0.6, 0.8]]), torch.tensor([[2.0], [-1.0]])
    if name == "ffa":
        a = method.state.factors["w"].A
    method.aggregate(1, updates(method, [a, a], [b, b]))
    torch.testing.assert_close(product(method), b @ a, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_learns_and_every_byte_is_as_in_the_table(name):
    n, r, rounds = 16, 2, 4
    clients = 1 if name == "centralized" else 3
    config = FedConfig(
        method=name, task_options={"n": n, "num_clients": clients}, ranks=(r,) * clients, rounds=rounds, lr=0.1,
        optimizer="sgd", grad_clip=None, client_eval_every=rounds, eval_every=rounds,
    )  # fmt: skip
    result = run_federated(config)
    if METHODS[name].has_global and name != "head-only":
        assert result.metric("loss") < 0.995
    assert result.metric("loss", "tuned") <= result.metric("loss", "received") * 1.01
    a, b = 4 * r * n, 4 * r * n
    up = {"local": 0, "head-only": 0, "ffa": b, "fedsa": a, "rolora": b}.get(name, a + b)
    down = {
        "local": 0, "head-only": 0, "ffa": b, "fedsa": a, "rolora": a, "flora": 3 * (a + b),
        "fedex": (a + b) + min(4 * (a + b), 4 * n * n),
    }.get(name, a + b)  # fmt: skip
    for pid in range(clients):
        assert result.meter.total("up", round=3, client=pid, purpose="train") == up
        assert result.meter.total("down", round=3, client=pid, purpose="train") == down
