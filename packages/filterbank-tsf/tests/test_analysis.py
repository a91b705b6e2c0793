"""Kernel and rank analysis against brute force on kernels, simulated descent and known ranks."""

import numpy as np
import pytest
import torch

from neurips26.filterbank_tsf.analysis import (
    alignment_curve,
    bank_kernel,
    cka,
    effective_rank,
    empirical_kernel,
    energy_rank,
    feature_alignment,
    intrinsic_rank,
    learning_curve_gd,
    metric_alignment,
    numerical_rank,
    one_standard_error,
    phase_randomised,
    spectrum,
    stable_rank,
    steps_to_learn,
    tangent_metric,
    time_shuffled,
)
from neurips26.filterbank_tsf.bank import fit_bank
from neurips26.filterbank_tsf.nn import DeepFilterBank, FilterBank
from neurips26.filterbank_tsf.regression import reduced_rank, ridge
from neurips26.filterbank_tsf.selection import blocked_cv
from neurips26.filterbank_tsf.stats import WindowStats


@pytest.fixture(scope="module")
def z():
    rng = np.random.default_rng(0)
    return np.sin(2 * np.pi * np.arange(500) / 12)[:, None] + 0.5 * rng.normal(size=(500, 1))


@pytest.fixture(scope="module")
def task(z):
    """Windows as matrices, and their statistics."""
    w = np.lib.stride_tricks.sliding_window_view(z[:, 0], 30)
    w = w - w[:, :20].mean(1, keepdims=True)
    return w[:, :20], w[:, 20:], WindowStats.from_series(z, 20, 10).normalised("mean")


def test_kernel_alignment_equals_the_kernels(task):
    x, y, stats = task
    kx, ky = x @ x.T, y @ y.T
    assert cka(stats) == pytest.approx((kx * ky).sum() / np.linalg.norm(kx) / np.linalg.norm(ky), rel=1e-9)


def test_spectral_alignment_is_projection_onto_kernel_eigenvectors(task):
    x, y, stats = task
    curve = alignment_curve(stats)
    u = np.linalg.svd(x, full_matrices=False)[0]
    shares = ((u.T @ y) ** 2).sum(1) / (y**2).sum()
    assert np.allclose(curve.power[:19], shares[:19], atol=1e-9)  # the mean takes one direction out
    residual = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    assert curve.r_squared == pytest.approx(1 - (residual**2).sum() / (y**2).sum(), rel=1e-9)
    k = curve.k_at(0.95)
    assert curve.cumulative[k - 1] >= 0.95 * curve.r_squared > curve.cumulative[k - 2]
    assert 0 < curve.area <= 1
    assert curve.k_at(0.5, curve.cumulative[2] * 2) == 3 and curve.k_at(1.0, 2.0) == len(curve.power) + 1


def test_alignment_of_features(task):
    x, y, stats = task
    a = np.random.default_rng(1).normal(size=(20, 5))
    by_map, by_values = alignment_curve(stats, a), feature_alignment(x @ a, y)
    assert np.allclose(by_map.power, by_values.power, atol=1e-10)
    fit = reduced_rank(stats, 3, 0.0 + 1e-9)
    low = alignment_curve(stats, fit.analysis)  # the features of a fitted bank hold all that the bank explains
    assert low.r_squared == pytest.approx(1 - stats.sse(fit.weight) / np.trace(stats.target), rel=1e-5)
    deep = DeepFilterBank(20, 10, fit_bank(stats, 2, 10, rank=2), depth=2, hidden=4, period=4)
    features = deep.features(torch.from_numpy(x).float()).detach().double().numpy()
    assert 0 < feature_alignment(features, y).r_squared <= 1 + 1e-6


def test_gradient_descent_learns_as_the_spectrum_says(task):
    x, y, stats = task
    curve = alignment_curve(stats)
    rate, weight, losses = 0.5 * len(x) / curve.eigenvalues[0], np.zeros((20, 10)), []
    for _ in range(30):
        losses.append(((y - x @ weight) ** 2).sum())
        weight += rate / len(x) * x.T @ (y - x @ weight)
    assert np.allclose(learning_curve_gd(curve, np.arange(30), rate), losses, rtol=1e-9)


def test_steps_to_learn_is_the_first_step_that_is_enough(task):
    curve = alignment_curve(task[2])
    rate = curve.count / curve.eigenvalues[0]
    for share in (0.1, 0.9, 0.99):
        steps = steps_to_learn(curve, share)
        before, after = learning_curve_gd(curve, [steps - 1, steps], rate)
        assert after <= curve.target_energy * (1 - share * curve.r_squared) < before


def test_tangent_kernel_of_the_global_bank():
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(8, 3)), rng.normal(size=(3, 4))
    x = rng.normal(size=(5, 8))
    whole = FilterBank(8, 4, 3, 8, None, 3, 4, core="shared", norm="none").double()
    with torch.no_grad():
        whole.analysis.copy_(torch.from_numpy(a.T))
        whole.synthesis.copy_(torch.from_numpy(b))
        whole.core[0].fill_(1.0)
    whole.core[0].requires_grad_(False)
    got = empirical_kernel(whole, torch.from_numpy(x))
    assert np.allclose(got, bank_kernel(a, b, x), atol=1e-10)
    by_hand = sum(np.multiply.outer(x[0][i] * b[j], x[1][i] * b[j]) for i in range(8) for j in range(3))
    by_hand = by_hand + (x[0] @ a) @ (x[1] @ a) * np.eye(4)
    assert np.allclose(got[0, :, 1], by_hand)
    traced = np.einsum("nhmh->nm", got)
    assert np.allclose(empirical_kernel(whole, torch.from_numpy(x), trace=True), traced)
    assert np.allclose(bank_kernel(a, b, x, trace=True), traced)


@pytest.mark.parametrize("core", ["dense", "lowrank", "depthwise", "shared"])
def test_tangent_kernel_of_a_bank_is_a_metric_of_look_backs(task, core):
    x, y, stats = task
    bank = FilterBank(20, 10, 3, 5, rank=2, core=core, seed=1).double()
    metric, few = tangent_metric(bank), slice(0, 400, 9)
    kernel = empirical_kernel(bank, torch.from_numpy(x[few]), trace=True)
    assert np.allclose(x[few] @ metric @ x[few].T, kernel, atol=1e-10)  # x has no level: the norm changes nothing
    curve = metric_alignment(stats, metric)
    values, vectors = np.linalg.eigh(x @ metric @ x.T)
    keep = values > 1e-9 * values[-1]
    powers = (((vectors.T @ y) ** 2).sum(1) / (y**2).sum())[keep][::-1]
    assert np.allclose(curve.eigenvalues[: keep.sum()], values[keep][::-1], rtol=1e-6)
    assert np.allclose(curve.power[: keep.sum()], powers, atol=1e-7)


def test_surrogates(z):
    rng = np.random.default_rng(3)
    copy = phase_randomised(z, rng)
    assert np.allclose(np.abs(np.fft.rfft(copy[:, 0])), np.abs(np.fft.rfft(z[:, 0])), atol=1e-8)
    assert not np.allclose(copy, z, atol=0.1)
    kept = alignment_curve(WindowStats.from_series(copy, 20, 10).normalised("mean"))
    base = alignment_curve(WindowStats.from_series(z, 20, 10).normalised("mean"))
    assert abs(kept.cumulative[5] - base.cumulative[5]) < 0.05
    shuffled = time_shuffled(z, rng)
    assert np.array_equal(np.sort(shuffled[:, 0]), np.sort(z[:, 0]))
    gone = alignment_curve(WindowStats.from_series(shuffled, 20, 10).normalised("mean"))
    assert gone.r_squared < 0.15 < base.r_squared


def test_selectors_find_the_known_rank():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(4000, 12))
    y = x @ rng.normal(size=(12, 3)) @ rng.normal(size=(3, 10)) + rng.normal(size=(4000, 10))

    def statistics(rows):
        w = np.concatenate([x[rows], y[rows]], 1)
        return WindowStats(w.T @ w, w.sum(0), float(len(w)), 12, 10)

    train, val = statistics(slice(0, 2000)), statistics(slice(2000, 4000))
    ranks = tuple(range(1, 11))
    assert intrinsic_rank(train, "val", val=val, ranks=ranks, alphas=(1e-6,)) == 3
    assert intrinsic_rank(train, "rsc", alphas=(1e-9,)) == 3
    assert intrinsic_rank(train, "energy:0.95", alphas=(1e-9,)) == 3
    folds = np.array([
        [statistics(slice(2000 + 400 * k, 2400 + 400 * k)).mse(reduced_rank(train, r, 1e-9).weight) for r in ranks]
        for k in range(5)
    ])  # fmt: skip
    assert intrinsic_rank(train, "one_se", folds=folds, ranks=ranks) == 3
    for method, message in (("val", "val: method='val' needs"), ("one_se", "folds: "), ("aic", "method must be")):
        with pytest.raises(ValueError, match=message):
            intrinsic_rank(train, method)


def test_one_standard_error_by_hand():
    # Rank 4 is best; rank 2 is worse by 0.1 +- 0.1 (paired), rank 1 by 1 +- 0.
    losses = np.array([[2.0, 1.0, 1.0], [3.0, 2.2, 2.0]])
    assert one_standard_error(losses, (1, 2, 4)) == 2
    assert one_standard_error(losses + np.array([[0.0, 0.5, 0.0], [0, 0.5, 0]]), (1, 2, 4)) == 4


def test_other_ranks():
    matrix = np.diag([2.0, 1.0, 0.0])
    assert stable_rank(matrix) == pytest.approx(5 / 4) and numerical_rank(matrix) == 2
    entropy = -(2 / 3 * np.log(2 / 3) + 1 / 3 * np.log(1 / 3))
    assert effective_rank(matrix) == pytest.approx(np.exp(entropy))
    assert effective_rank(np.eye(5)) == pytest.approx(5)
    assert energy_rank(np.array([8.0, 1.0, 1.0]), 0.8) == 1 and energy_rank(np.array([8.0, 1.0, 1.0]), 0.85) == 2
    with pytest.raises(ValueError, match="share must be in"):
        energy_rank(np.ones(3), 1.5)


def test_spectra_of_a_sinusoid_have_two_values(z):
    pure = WindowStats.from_series(np.sin(2 * np.pi * np.arange(500) / 12), 20, 10)
    for which in ("lookback", "joint"):
        values = spectrum(pure, which)
        assert (values > 1e-9 * values[0]).sum() == 2
    with pytest.raises(ValueError, match="which must be"):
        spectrum(pure, "target")


def test_blocked_cv_with_an_intercept(z):
    lifted = blocked_cv(z + 100.0, 6, 4, "none", ranks=(1, 4), alphas=(1e-6,), folds=4)
    level = blocked_cv(z, 6, 4, "none", ranks=(1, 4), alphas=(1e-6,), folds=4)
    assert np.allclose(lifted, level, rtol=1e-3)  # an intercept takes any level
    assert ridge(WindowStats.from_series(z, 6, 4), 1e-6).shape == (6, 4)
