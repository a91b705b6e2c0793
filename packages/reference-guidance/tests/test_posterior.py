import math

import numpy as np
import pytest
import torch

from neurips26.reference_guidance import (
    BankMismatchError,
    EmptyBankError,
    LinearBridge,
    VPBridge,
    endpoint_mean,
    reference_mean,
)
from neurips26.reference_guidance.bridge import euler_step, velocity_from_mean
from neurips26.reference_guidance.posterior import squared_norms


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


PAIR = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)


def test_two_references_in_one_dimension():
    x = torch.tensor([[0.25]], dtype=torch.float64)
    mu, stats = reference_mean(x, PAIR, 0.5)
    assert stats.logits.softmax(1)[0, 1].item() == pytest.approx(1 / (1 + math.exp(-1)), abs=1e-7)
    assert mu.item() == pytest.approx(math.tanh(0.5), abs=1e-7)
    assert ((mu - x) / 0.5).item() == pytest.approx(0.424234, abs=1e-6)
    p = 1 / (1 + math.exp(-1))
    assert stats.entropy.item() == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p), abs=1e-6)
    assert stats.top1.item() == pytest.approx(p, abs=1e-7)


@pytest.mark.parametrize("t", [0.1, 0.4, 0.7])
def test_mean_of_a_pair_is_a_tanh(t):
    x = torch.linspace(-1, 1, 9, dtype=torch.float64)[:, None]
    mu, _ = reference_mean(x, PAIR, t)
    torch.testing.assert_close(mu, torch.tanh(x * t / (1 - t) ** 2), rtol=1e-6, atol=1e-6)


def test_limits_in_time_and_temperature():
    refs, x = random(6, 5), random(3, 5, seed=1)
    torch.testing.assert_close(reference_mean(x, refs, 0.0)[0], refs.mean(0).expand(3, 5), atol=2e-3, rtol=0)
    torch.testing.assert_close(reference_mean(refs, refs, 1.0)[0], refs, atol=1e-8, rtol=0)
    hot, cold = (reference_mean(x, refs, 0.5, temperature=tau)[0] for tau in (1e12, 1e-9))
    torch.testing.assert_close(hot, refs.mean(0).expand(3, 5), atol=1e-9, rtol=0)
    torch.testing.assert_close(cold, refs[torch.cdist(x, 0.5 * refs).argmin(1)], atol=1e-12, rtol=0)


def test_metric_mean_is_the_sum_at_the_temperature_of_the_dimension():
    refs, x = random(6, 4, 5), random(3, 4, 5, seed=1)
    mean, total = reference_mean(x, refs, 0.6, metric="mean"), reference_mean(x, refs, 0.6, temperature=20.0)
    torch.testing.assert_close(mean[0], total[0], rtol=1e-13, atol=0)


def test_gaussian_data():
    m, s, t, n = 0.3, 0.7, 0.6, 200_000
    refs = m + s * random(n, 1)
    x = torch.tensor([[-0.2], [0.4], [0.9]], dtype=torch.float64)
    mu, stats = reference_mean(x, refs, t)
    exact = (m * (1 - t) ** 2 + s**2 * t * x) / ((1 - t) ** 2 + s**2 * t**2)
    # Monte-Carlo error of a self-normalised average: deviation over the root of the effective number
    torch.testing.assert_close(mu, exact, atol=5 * s / math.sqrt(float(stats.effective.min())), rtol=0)


def test_permutation_and_duplication():
    refs, x = random(6, 5), random(3, 5, seed=1)
    mu = reference_mean(x, refs, 0.4)[0]
    torch.testing.assert_close(reference_mean(x, refs[[3, 1, 5, 0, 2, 4]], 0.4)[0], mu)
    torch.testing.assert_close(reference_mean(x, refs.repeat(2, 1), 0.4)[0], mu)
    doubled = reference_mean(x, torch.cat([refs, refs[:1]]), 0.4)[0]
    prior = torch.tensor([2.0, 1, 1, 1, 1, 1], dtype=torch.float64).log()
    torch.testing.assert_close(doubled, reference_mean(x, refs, 0.4, log_prior=prior)[0])


def test_topk():
    refs, x = random(6, 5), random(3, 5, seed=1)
    dense, stats = reference_mean(x, refs, 0.4)
    assert torch.equal(reference_mean(x, refs, 0.4, topk=6)[0], dense)
    one, kept = reference_mean(x, refs, 0.4, topk=1)
    assert torch.equal(one, refs[torch.cdist(x, 0.4 * refs).argmin(1)])
    assert kept.indices is not None and torch.equal(kept.entropy, stats.entropy)
    three, kept = reference_mean(x, refs, 0.4, topk=3)
    w = kept.logits.softmax(1)
    order = w.argsort(1, descending=True)[:, :3]
    w3 = w.gather(1, order)
    expected = torch.einsum("bk,bkd->bd", w3 / w3.sum(1, keepdim=True), refs[order])
    torch.testing.assert_close(three, expected)
    with pytest.warns(UserWarning, match="topk: 9 is more than the 6"):
        assert torch.equal(reference_mean(x, refs, 0.4, topk=9)[0], dense)


@pytest.mark.parametrize("chunk", [1, 7, 50])
@pytest.mark.parametrize("topk", [None, 4])
def test_streamed_equals_dense(chunk, topk):
    refs, x = random(50, 33), random(3, 33, seed=1)
    mask = torch.rand(3, 50, generator=torch.Generator().manual_seed(2)) < 0.3
    mask[:, :8] = False  # a whole first block without an allowed reference
    for m in (None, mask):
        dense = reference_mean(x, refs, 0.9, topk=topk, mask=m)
        streamed = reference_mean(x, refs, 0.9, topk=topk, mask=m, chunk=chunk)
        torch.testing.assert_close(streamed[0], dense[0], atol=1e-9, rtol=0)
        torch.testing.assert_close(streamed[1].entropy, dense[1].entropy)


def test_float32_samples_at_the_dimension_of_flux():
    d, t = 294_912, 0.95
    refs, noise = random(4, d), random(1, d, seed=1)
    refs[1] = refs[0] + 2e-4 * refs[1]  # near enough that the weights are not all or nothing
    refs[2] = refs[0] - 2e-4 * refs[2]
    x = t * refs[:1] + (1 - t) * noise
    exact = (-(x - t * refs).square().sum(1) / (2 * ((1 - t) ** 2 + 1e-8))).softmax(0)
    got = reference_mean(x.float(), refs.float(), t)[1].logits.softmax(1)[0]
    assert 0.05 < exact[0] < 0.95
    torch.testing.assert_close(got, exact, atol=1e-3, rtol=0)
    naive = x.float().square().sum() - 2 * t * (refs.float() @ x.float()[0]) + t**2 * refs.float().square().sum(1)
    wrong = (-naive / (2 * (1 - t) ** 2)).double()
    true = -(x - t * refs).square().sum(1) / (2 * (1 - t) ** 2)
    assert ((wrong - wrong[0]) - (true - true[0])).abs().max() > 1  # what the float64 path is for


def test_per_element_time_agrees_with_one_time_and_with_the_definition():
    refs, x = random(6, 4, 5), random(3, 4, 5, seed=1)
    torch.testing.assert_close(
        reference_mean(x, refs, torch.full((3, 4, 1), 0.6))[0], reference_mean(x, refs, 0.6)[0], rtol=1e-6, atol=1e-6
    )
    t = torch.linspace(0.2, 0.8, 4, dtype=torch.float64)[:, None]
    l = -((x[:, None] - t * refs).square() / (2 * ((1 - t) ** 2 + 1e-8))).sum((2, 3))
    expected = torch.einsum("bm,mtc->btc", l.softmax(1), refs)
    torch.testing.assert_close(reference_mean(x, refs, t.expand(3, 4, 1))[0], expected)
    each = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)
    rows = torch.cat([reference_mean(x[i : i + 1], refs, float(each[i]))[0] for i in range(3)])
    torch.testing.assert_close(reference_mean(x, refs, each)[0], rows)


def test_patch_scope_is_a_global_softmax_a_token():
    refs, x = random(6, 4, 5), random(3, 4, 5, seed=1)
    got, stats = reference_mean(x, refs, 0.5, scope="patch", topk=2)
    for token in range(4):
        one, _ = reference_mean(x[:, token], refs[:, token], 0.5, topk=2)
        torch.testing.assert_close(got[:, token], one)
    assert stats.entropy.shape == (3, 4)
    spatial = reference_mean(x.mT.reshape(3, 5, 2, 2), refs.mT.reshape(6, 5, 2, 2), 0.5, scope="patch", topk=2)[0]
    torch.testing.assert_close(spatial.flatten(2).mT, got)


def test_patch_scope_in_blocks_of_tokens(monkeypatch):
    from neurips26.reference_guidance import posterior

    refs, x = random(6, 4, 5), random(3, 4, 5, seed=1)
    each = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)
    whole = [reference_mean(x, refs, t, scope="patch", topk=2) for t in (0.5, each)]
    monkeypatch.setattr(posterior, "_BLOCK", 60)  # two tokens at a time
    for t, (mu, stats) in zip((0.5, each), whole):
        part, theirs = reference_mean(x, refs, t, scope="patch", topk=2)
        torch.testing.assert_close(part, mu)
        torch.testing.assert_close(theirs.entropy, stats.entropy)


def test_masked_reference_has_no_influence():
    refs, x = random(6, 5), random(3, 5, seed=1)
    mask = torch.tensor([True, False, True, True, True, True])
    other = refs.clone()
    other[1] = 100.0
    assert torch.equal(reference_mean(x, refs, 0.4, mask=mask)[0], reference_mean(x, other, 0.4, mask=mask)[0])


def test_bad_input():
    refs, x = random(6, 5), random(3, 5)
    with pytest.raises(EmptyBankError, match="at least one reference, got 0"):
        reference_mean(x, refs[:0], 0.5)
    with pytest.raises(EmptyBankError, match="for sample 1"):
        reference_mean(x, refs, 0.5, mask=torch.tensor([[True] * 6, [False] * 6, [True] * 6]))
    with pytest.raises(ValueError, match="topk"):
        reference_mean(x, refs, 0.5, topk=0)
    with pytest.raises(ValueError, match="t: expected times"):
        reference_mean(x, refs, 1.5)
    with pytest.raises(ValueError, match="temperature"):
        reference_mean(x, refs, 0.5, temperature=0.0)
    with pytest.raises(ValueError, match=r"x: expected finite numbers, got nan at index \(1, 2\)"):
        reference_mean(
            x.index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(math.nan, dtype=torch.float64)), refs, 0.5
        )
    broken = refs.clone()
    broken[4, 3] = math.inf
    for options in ({}, {"chunk": 2}, {"topk": 2}, {"scope": "patch"}):
        with pytest.raises(ValueError, match=r"refs\[4\]: expected finite numbers, got inf at index \(3,\)"):
            reference_mean(x, broken, 0.5, **options)
    with pytest.raises((BankMismatchError, TypeError)):
        reference_mean(x, random(6, 4), 0.5)
    with pytest.raises(ValueError, match="metric"):
        reference_mean(x, refs, 0.5, metric="cosine")


@pytest.mark.parametrize("bridge", [LinearBridge(), VPBridge()])
def test_bridge_conversions(bridge):
    x, mu = random(3, 5), random(3, 5, seed=1)
    for t in (0.2, 0.7):
        u = bridge.velocity_from_mean(mu, x, t)
        torch.testing.assert_close(bridge.mean_from_velocity(u, x, t), mu)
        torch.testing.assert_close(bridge.mean_from_noise(bridge.noise_from_mean(mu, x, t), x, t), mu)
        a, s = bridge.coefficients(t)
        h = 1e-6
        (a2, s2), (da, ds) = bridge.coefficients(t + h), bridge.derivatives(t)
        assert float((a2 - a) / h) == pytest.approx(float(da), abs=1e-4)
        assert float((s2 - s) / h) == pytest.approx(float(ds), abs=1e-4)
    # one point: x_t = a d + s e moves with velocity a' d + s' e
    d, e, t = mu, random(3, 5, seed=2), 0.4
    (a, s), (da, ds) = bridge.coefficients(t), bridge.derivatives(t)
    torch.testing.assert_close(bridge.mean_from_velocity(da * d + ds * e, a * d + s * e, t), d)


def test_vp_v_prediction():
    b, d, e, t = VPBridge(), random(3, 5), random(3, 5, seed=1), 0.3
    a, s = b.coefficients(t)
    torch.testing.assert_close(b.mean_from_v(a * e - s * d, a * d + s * e, t), d)


def test_posterior_under_the_cosine_bridge():
    refs, x, t = random(6, 5), random(3, 5, seed=1), 0.3
    a, s = VPBridge().coefficients(t)
    w = (-(x[:, None] - a * refs).square().sum(2) / (2 * (s**2 + 1e-8))).softmax(1)
    torch.testing.assert_close(reference_mean(x, refs, t, bridge=VPBridge())[0], w @ refs)


def test_diffusers_convention():
    x, data, noise, sigma = random(2, 3), random(2, 3, seed=1), random(2, 3, seed=2), 0.3
    x = (1 - sigma) * data + sigma * noise
    v = noise - data
    torch.testing.assert_close(endpoint_mean(x, v, sigma), data)
    torch.testing.assert_close(velocity_from_mean(data, x, sigma), v)
    torch.testing.assert_close(euler_step(x, data, 0.3, 0.2), x + (0.2 - 0.3) * v)
    assert torch.equal(euler_step(x, data, 0.3, 0.0), data)


def test_velocity_of_the_peers():
    flow_matching = pytest.importorskip("flow_matching.path")
    from flow_matching.path.scheduler import CondOTScheduler

    path = flow_matching.AffineProbPath(scheduler=CondOTScheduler())
    refs, x, t = random(6, 5), random(3, 5, seed=1), 0.6
    mu = reference_mean(x, refs, t)[0]
    theirs = path.target_to_velocity(x_1=mu, x_t=x, t=torch.full((3, 1), t, dtype=torch.float64))
    torch.testing.assert_close(LinearBridge().velocity_from_mean(mu, x, t), theirs, atol=1e-5, rtol=0)


def test_velocity_of_torchcfm():
    matching = pytest.importorskip("torchcfm.conditional_flow_matching")
    refs, x, t = random(6, 5), random(3, 5, seed=1), 0.6
    mu, stats = reference_mean(x, refs, t)
    w = stats.logits.softmax(1)
    matcher, each = matching.ConditionalFlowMatcher(sigma=0.0), []
    for d in refs:  # its conditional velocity of the path that passes x on its way to this reference
        x0, x1 = (x - t * d) / (1 - t), d.expand(3, 5)
        each.append(matcher.compute_conditional_flow(x0, x1, t, x))
    theirs = torch.einsum("mb,mbd->bd", w.T, torch.stack(each))
    torch.testing.assert_close(LinearBridge().velocity_from_mean(mu, x, t), theirs, atol=1e-5, rtol=0)


@pytest.mark.bad_input
def test_input_of_the_wrong_kind():
    refs, x = random(6, 5), random(3, 5)
    for wrong, said in (
        ({"x": x.long()}, "x: expected floats .n, ...., got torch.int64"), ({"refs": refs[0]}, "refs: expected floats"),
        ({"norms": torch.zeros(1)}, "norms: expected 6 numbers"), ({"log_prior": torch.zeros(1)}, "log_prior: expected 6"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            reference_mean(**{"x": x, "refs": refs, "t": 0.5} | wrong)
    for wrong, said in (
        ({"x": x.numpy()}, "x: expected a tensor, got ndarray"), ({"log_prior": [0.0] * 6}, "log_prior: expected a tensor"),
        ({"mask": torch.ones(6, dtype=torch.long)}, "mask: expected a tensor of booleans, got torch.int64"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=said):
            reference_mean(**{"x": x, "refs": refs, "t": 0.5} | wrong)
    for sigma in (0.0, math.nan, torch.tensor([0.5, 0.0, 0.5])):
        with pytest.raises(ValueError, match="sigma: expected noise levels above 0"):
            velocity_from_mean(x, x, sigma)


def test_norms():
    refs = random(7, 3, 2)
    np.testing.assert_allclose(squared_norms(refs, 2), refs.flatten(1).square().sum(1))
