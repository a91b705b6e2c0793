"""The filter bank: its special cases, its two laws, its closed forms. Several frames wherever it matters."""

import math

import numpy as np
import pytest
import torch

from neurips26.filterbank_tsf.bank import fit_bank, polish, solve_core
from neurips26.filterbank_tsf.filters import fourier_filters, frequency_response, make_filters
from neurips26.filterbank_tsf.nn import DeepFilterBank, FilterBank, overlap_add
from neurips26.filterbank_tsf.rank import numerical_rank
from neurips26.filterbank_tsf.regression import reduced_rank, ridge, shared_core
from neurips26.filterbank_tsf.stats import WindowStats


@pytest.fixture(scope="module")
def stats():
    rng = np.random.default_rng(0)
    t = np.arange(1500)[:, None]
    z = np.sin(2 * np.pi * t / np.array([24, 12, 8])) + 0.3 * rng.normal(size=(1500, 3)).cumsum(0) / 10
    return WindowStats.from_series(z + 0.3 * rng.normal(size=z.shape), 96, 48).normalised("mean")


SETTINGS = [  # L, H, K, P, S, K2, Q, hop, r, core
    (96, 48, 4, 24, 24, 4, 24, 24, 5, "lowrank"),
    (96, 48, 4, 24, 24, 6, 24, 24, None, "dense"),
    (96, 48, 4, 12, 6, 4, 12, 12, 3, "lowrank"),
    (96, 48, 2, 24, 8, 2, 24, 12, None, "dense"),
    (96, 48, 4, 24, 24, 4, 24, 24, None, "depthwise"),
    (96, 48, 3, 24, 12, 3, 16, 16, None, "depthwise"),
    (96, 48, 4, 24, 24, 4, 24, 24, None, "shared"),
    (96, 48, 24, 24, 24, 24, 24, 24, None, "shared"),
    (96, 48, 30, 24, 24, 30, 24, 24, None, "shared"),
    (96, 48, 2, 24, 6, 2, 12, 6, None, "shared"),
    (100, 50, 4, 24, 24, 4, 24, 24, 7, "lowrank"),
    (100, 50, 3, 24, 10, 3, 20, 20, None, "depthwise"),
    (96, 48, 6, 96, 96, 6, 48, 48, 6, "lowrank"),
    (96, 48, 6, 96, 96, 6, 48, 48, None, "shared"),
    (97, 13, 4, 24, 24, 4, 13, 13, None, "dense"),
    (60, 90, 5, 12, 12, 5, 30, 30, 40, "lowrank"),
    (60, 90, 1, 12, 6, 1, 15, 15, None, "depthwise"),
    (60, 90, 1, 12, 6, 1, 15, 15, None, "shared"),
    (48, 96, 8, 8, 8, 8, 32, 32, None, "dense"),
    (48, 96, 10, 8, 4, 10, 12, 12, None, "depthwise"),
    (96, 48, 3, 24, 8, 4, 24, 12, 6, "lowrank"),
    (96, 60, 2, 24, 12, 3, 24, 6, None, "dense"),
    (96, 50, 2, 24, 6, 2, 20, 20, 4, "lowrank"),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_rank_law_and_cost_law(setting):
    lookback, horizon, k, p, s, k2, q, hop, r, core = setting
    bank = FilterBank(lookback, horizon, k, p, s, k2, q, hop, r, core, init="random", seed=3)
    weight = bank.double_map().numpy()
    assert numerical_rank(weight) == bank.effective_rank() == bank.rank_bound  # generic banks reach the bound
    t_in, t_out = math.ceil((lookback - p) / s) + 1, math.ceil(max(horizon - q, 0) / hop) + 1
    law = {
        "dense": min(k * t_in, k2 * t_out),
        "lowrank": min(k * t_in, k2 * t_out, r or 10**9),
        "depthwise": k * min(t_in, t_out),
        "shared": min(t_in, t_out) * min(k, p, q),
    }[core]
    assert bank.rank_bound <= law
    cost = {
        "dense": k * t_in * k2 * t_out,
        "lowrank": bank.rank * (k * t_in + k2 * t_out),
        "depthwise": k * t_in * t_out,
        "shared": k * t_in * t_out,
    }[core]
    assert bank.macs() == t_in * p * k + cost + t_out * q * k2
    x = torch.randn(5, lookback)
    level = x.mean(-1, keepdim=True)
    assert torch.allclose(bank(x), (x - level) @ torch.from_numpy(weight).float() + level, atol=1e-4)
    assert torch.allclose(bank.linear_map().double(), torch.from_numpy(weight), atol=1e-4)


def test_costs_by_hand():
    def macs(horizon, k, p, r):
        return FilterBank(504, horizon, k, p, rank=r).macs()

    assert (macs(96, 4, 12, 8), macs(96, 8, 24, 8), macs(96, 4, 24, 8)) == (4000, 6400, 3200)
    assert (macs(336, 8, 24, 8), macs(720, 4, 12, 8), macs(720, 8, 24, 12)) == (8960, 8160, 14688)
    assert FilterBank.from_factors(np.ones((512, 12)), np.ones((12, 96))).macs() == 12 * (512 + 96) + 12


def test_newest_sample_is_in_the_last_frame_and_the_left_is_padded():
    bank = FilterBank(10, 4, 1, 4, 4, norm="none")
    assert bank.frames_in == 3 and bank.padding == 2
    with torch.no_grad():
        bank.analysis.copy_(torch.tensor([[0.0, 0.0, 0.0, 1.0]]))
    x = torch.arange(10.0)
    assert bank.analyse(x).flatten().tolist() == [1.0, 5.0, 9.0]
    with torch.no_grad():
        bank.analysis.copy_(torch.tensor([[1.0, 1.0, 0.0, 0.0]]))
    assert bank.analyse(x + 5)[0, 0] == 10.0  # two copies of the oldest value


def test_overlap_add_by_hand():
    frames = torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    assert overlap_add(frames, 2).tolist() == [1.0, 2.0, 13.0, 20.0, 30.0]
    assert overlap_add(frames, 3).tolist() == [1.0, 2.0, 3.0, 10.0, 20.0, 30.0]
    assert overlap_add(frames, 1).tolist() == [1.0, 12.0, 23.0, 30.0]


def test_global_bank_is_reduced_rank_regression(stats):
    fit = reduced_rank(stats, 6, 0.01)
    bank = FilterBank.from_factors(fit.analysis, fit.synthesis)
    assert bank.frames_in == bank.frames_out == 1 and bank.rank_bound == 6
    assert np.allclose(bank.double_map().numpy(), fit.weight, atol=1e-6)


def test_full_linear_model(stats):
    weight = ridge(stats, 0.01)
    bank = FilterBank.from_linear(weight, 24)
    assert bank.frames_in == 4 and np.allclose(bank.double_map().numpy(), weight, atol=1e-6)


def test_shared_core_is_sparsetsf_without_convolution(stats):
    core = shared_core(stats, 24, 0.01)
    bank = FilterBank.from_shared_core(core, 24)
    assert np.allclose(bank.double_map().numpy(), np.kron(core, np.eye(24)), atol=1e-6)


@pytest.mark.parametrize(("lookback", "horizon", "cut"), [(32, 16, 17), (30, 11, 6)])
def test_fits_with_and_without_its_low_pass_filter(lookback, horizon, cut):
    rng = np.random.default_rng(0)
    outputs = min(int(cut * (lookback + horizon) / lookback), (lookback + horizon) // 2 + 1)
    weight = rng.normal(size=(cut, outputs)) + 1j * rng.normal(size=(cut, outputs))
    bank = FilterBank.from_fits(weight, lookback, horizon).double()
    x = torch.randn(7, lookback, dtype=torch.double)
    level = x.mean(-1, keepdim=True)
    low = torch.fft.rfft(x - level)[:, :cut] @ torch.from_numpy(weight)
    full = torch.zeros(7, (lookback + horizon) // 2 + 1, dtype=torch.cdouble)
    full[:, :outputs] = low
    y = torch.fft.irfft(full, n=lookback + horizon)[:, lookback:] * (lookback + horizon) / lookback
    with torch.no_grad():
        assert torch.allclose(bank(x), y + level, atol=1e-5)


@pytest.mark.parametrize("core", ["dense", "lowrank", "depthwise", "shared"])
@pytest.mark.parametrize("hop", [24, 12])
def test_closed_form_is_the_best_core_over_several_frames(stats, core, hop):
    bank = fit_bank(stats, 3, 24, 12, synthesis_size=24, hop=hop, rank=4, core=core, alpha=0.0).double()
    assert bank.frames_in == 7 and bank.frames_out > 1
    solve_core(bank, stats, 0.0)
    best = stats.mse(bank.double_map().numpy())
    rng = np.random.default_rng(1)
    for _ in range(10):
        kept = [c.detach().clone() for c in bank.core]
        with torch.no_grad():
            for c in bank.core:
                c.add_(torch.from_numpy(1e-3 * rng.normal(size=c.shape)))
        assert stats.mse(bank.double_map().numpy()) >= best - 1e-12
        with torch.no_grad():
            for c, k in zip(bank.core, kept):
                c.copy_(k)


def test_frames_matter(stats):
    """A bank is not only a low-rank factorisation: every filter is used at every frame, and frames cannot be swapped."""
    noise, z = np.random.default_rng(5).normal(size=3000), np.zeros(3000)
    for i in range(1, len(z)):  # short memory on top of a period that is no multiple of a frame
        z[i] = 0.9 * z[i - 1] + noise[i]
    stats = WindowStats.from_series(z + 3 * np.sin(2 * np.pi * np.arange(3000) / 37), 96, 48).normalised("mean")
    bank = fit_bank(stats, 4, 24, rank=4, alpha=1e-3).double()
    weight = bank.double_map().numpy()
    blocks = bank.analysis.detach().numpy()
    for t in range(bank.frames_in):  # each block of W lies in the span of the four filters
        block = weight[24 * t : 24 * (t + 1)]
        assert np.allclose(block, blocks.T @ np.linalg.lstsq(blocks.T, block, rcond=None)[0], atol=1e-6)
        assert np.linalg.norm(block) > 1e-3
    free = reduced_rank(stats, 4, 1e-3).weight
    outside = free[:24] - blocks.T @ np.linalg.lstsq(blocks.T, free[:24], rcond=None)[0]
    assert np.linalg.norm(outside) > 1e-4  # an unconstrained low-rank fit does not
    swapped = FilterBank(96, 48, 4, 24, rank=4).double()
    swapped.load_state_dict(bank.state_dict())
    with torch.no_grad():
        swapped.core[0].copy_(bank.core[0].view(4, 4, -1).flip(0).flatten(0, 1))
    assert stats.mse(swapped.double_map().numpy()) > 1.05 * stats.mse(weight)
    assert stats.mse(weight) < stats.mse(fit_bank(stats, 1, 24, rank=4).double_map().numpy())


_Bank, _fit_bank, _solve_core = FilterBank, fit_bank, solve_core  # the mutants below take the places of these names


class LowRankOnly(FilterBank):
    """What a strided bank must not be: one low-rank map behind the bank's arguments, without frames."""

    def __init__(self, lookback, horizon, *sizes, init="dct", norm="mean", seed=0, **more):
        r = _Bank(lookback, horizon, *sizes, **more).rank_bound
        super().__init__(lookback, horizon, r, lookback, None, r, horizon, rank=r, init="random", norm=norm, seed=seed)


def in_name_only(stats, *sizes, rank, alpha, **more):
    """A closed form that shows frames and filters, but forecasts by reduced-rank regression."""
    bank = _fit_bank(stats, *sizes, rank=rank, alpha=alpha, **more)
    weight = torch.from_numpy(reduced_rank(stats, rank, alpha).weight)
    bank.double_map = lambda: weight
    return bank


def newest_frame_only(bank, *_):
    """A core that reads one frame."""
    with torch.no_grad():
        first = bank.core[0]
        if bank.core_kind in ("dense", "lowrank"):
            first = first.view(bank.frames_in, bank.n_filters, -1)
        frames = first.transpose(0, 1) if bank.core_kind == "depthwise" else first
        frames[:-1] = 0
    return bank


def all_frames_alike(bank, *_):
    """A core that adds the frames up before it looks at them."""
    with torch.no_grad():
        first = bank.core[0]
        if bank.core_kind in ("dense", "lowrank"):
            first = first.view(bank.frames_in, bank.n_filters, -1)
        frames = first.transpose(0, 1) if bank.core_kind == "depthwise" else first
        frames[:] = frames.mean(0, keepdim=True)
    return bank


def test_a_mere_low_rank_factorisation_would_not_pass(stats, monkeypatch):
    """Mutation: with something less in the place of the strided bank the tests of its frames fail."""
    with monkeypatch.context() as mutated:
        mutated.setitem(globals(), "FilterBank", LowRankOnly)
        for setting in (s for s in SETTINGS if s[3] < s[0]):  # the right rank, at another cost
            with pytest.raises(AssertionError):
                test_rank_law_and_cost_law(setting)
        with pytest.raises(AssertionError):
            test_newest_sample_is_in_the_last_frame_and_the_left_is_padded()
    with monkeypatch.context() as mutated:
        mutated.setitem(globals(), "fit_bank", in_name_only)
        with pytest.raises(AssertionError):
            test_frames_matter(stats)
    for spoil in (newest_frame_only, all_frames_alike):
        with monkeypatch.context() as mutated:
            mutated.setitem(globals(), "fit_bank", lambda *a, s=spoil, **k: s(_fit_bank(*a, **k)))
            mutated.setitem(globals(), "solve_core", lambda *a, s=spoil: s(a[0], _solve_core(*a)))
            with pytest.raises(AssertionError):
                test_frames_matter(stats)
            for core in ("dense", "lowrank", "depthwise", "shared"):
                with pytest.raises(AssertionError):
                    test_closed_form_is_the_best_core_over_several_frames(stats, core, 12)


def test_complete_filters_make_the_dense_bank_ridge_free_ols(stats):
    bank = fit_bank(stats, 24, 24, core="dense", alpha=0.0, init="dct").double()
    solve_core(bank, stats, 0.0)
    assert stats.mse(bank.double_map().numpy()) == pytest.approx(stats.mse(ridge(stats, 1e-12)), rel=1e-5)


def test_polish_goes_down_and_a_random_start_stays_behind(stats):
    bank = fit_bank(stats, 2, 24, rank=3, core="lowrank", alpha=1e-4)
    before = stats.mse(bank.double_map().numpy())
    after = polish(bank, stats, iterations=30)
    assert after < before
    assert after >= stats.mse(reduced_rank(stats, 3, 0.0).weight) - 1e-9  # the global bank is the bound


def test_filters():
    for init in ("dct", "haar", "db2", "random"):
        for size in (24, 32):
            f = make_filters(init, size, size, rng=np.random.default_rng(0))
            assert np.allclose(f @ f.T, np.eye(size), atol=1e-8), init
    assert np.allclose(make_filters("haar", 1, 8)[0], np.full(8, 8**-0.5))
    frequencies, gain = frequency_response(np.cos(2 * np.pi * np.arange(240) / 24)[None])
    assert frequencies[gain[0].argmax()] == pytest.approx(1 / 24, abs=1e-3)
    f = fourier_filters(12, 7)
    x = np.random.default_rng(0).normal(size=12)
    assert np.allclose(f[:7] @ x + 1j * (f[7:] @ x), np.fft.rfft(x))


def test_deep_stack_starts_at_the_closed_form(stats):
    bank = fit_bank(stats, 4, 24, rank=6)
    deep = DeepFilterBank(96, 48, bank, depth=3)
    x = torch.randn(9, 96)
    assert torch.allclose(deep(x), bank(x), atol=1e-6)
    deep(x).square().sum().backward()
    moved = [n for n, p in deep.named_parameters() if p.grad is not None and p.grad.abs().max() > 0]
    assert any("forecast" in n for n in moved) and any("bank.core" in n for n in moved)
    mixed = DeepFilterBank(96, 48, fit_bank(stats, 4, 24, rank=6), depth=2, channels=3)
    x = torch.randn(5, 3, 96)
    assert mixed(x).shape == (5, 3, 48) and torch.allclose(mixed(x), bank(x), atol=1e-6)
    with torch.no_grad():  # it is not one linear layer: after moving the last layers, superposition fails
        for block in deep.blocks:
            block.forecast.weight.normal_(0, 0.1)
            block.backcast.weight.normal_(0, 0.1)
    a, b = torch.randn(2, 1, 96)
    a, b = a - a.mean(), b - b.mean()
    assert not torch.allclose(deep(a + b), deep(a) + deep(b) - deep(torch.zeros(1, 96)), atol=1e-3)


def test_bfloat16_and_compile(stats):
    bank = fit_bank(stats, 4, 24, rank=6)
    x = torch.randn(16, 96)
    low = bank.to(torch.bfloat16)(x.bfloat16()).float()
    bank.float()
    assert (low - bank(x)).abs().max() < 0.1


def test_half_precision_takes_the_level_off_first(stats):
    bank = fit_bank(stats, 4, 24, rank=8)
    x = torch.randn(64, bank.lookback, generator=torch.Generator().manual_seed(0))
    expected = bank(x + 10.0) - 10.0
    assert (bank(x + 100.0) - 100.0 - (expected)).abs().max() < 1e-3  # float32, folded
    half = bank.bfloat16()((x + 10.0).bfloat16()).float() - 10.0
    rounded = (x + 10.0).bfloat16().float()
    assert (half - (bank.float()(rounded) - 10.0)).abs().max() < 0.1


@pytest.mark.slow
def test_compile(stats):
    bank = fit_bank(stats, 4, 24, 12, rank=6)
    x = torch.randn(16, 96)
    assert torch.allclose(torch.compile(bank)(x), bank(x), atol=1e-5)


@pytest.mark.bad_input
def test_bad_settings():
    for arguments, message in (
        (dict(kernel_size=0), "kernel_size must be a positive integer"),
        (dict(kernel_size=97), "kernel_size must be at most lookback=96"),
        (dict(kernel_size=12, stride=13), "stride must be at most kernel_size=12"),
        (dict(synthesis_size=12, hop=24), "hop must be at most synthesis_size=12"),
        (dict(core="sparse"), "core must be one of"),
        (dict(core="shared", n_filters=4, n_synthesis=5), "n_synthesis must equal n_filters=4"),
        (dict(rank=0), "rank must be a positive integer"),
        (dict(init="sinc"), "init must be"),
        (dict(norm="revin"), "norm must be"),
    ):
        with pytest.raises(ValueError, match=message):
            FilterBank(96, 48, **arguments)
    with pytest.raises(ValueError, match="lookback=96"):
        FilterBank(96, 48)(torch.zeros(3, 95))
    with pytest.raises(ValueError, match="depth"):
        DeepFilterBank(96, 48, depth=0)
