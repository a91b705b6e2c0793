"""Closed forms against known answers, other solvers and their own identities."""

import warnings

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from neurips26.filterbank_tsf.rank import numerical_rank, rank_curve
from neurips26.filterbank_tsf.regression import (
    RidgePath,
    direct_weight_reduction,
    grid_losses,
    kronecker_als,
    leading_eigen,
    reduced_rank,
    residual_precision,
    ridge,
    shared_core,
)
from neurips26.filterbank_tsf.stats import WindowStats


def sample(series, lookback, horizon, norm="none"):
    return WindowStats.from_series(series, lookback, horizon).normalised(norm)


@pytest.fixture(scope="module")
def noisy():
    rng = np.random.default_rng(0)
    t = np.arange(600)[:, None]
    return np.sin(2 * np.pi * t / np.array([24, 12])) + 0.5 * rng.normal(size=(600, 2))


def test_sinusoids_are_forecast_exactly_with_two_ranks_each():
    t = np.arange(3000)
    for periods, rank in (((24,), 2), ((7, 24, 168), 6)):
        z = sum(np.sin(2 * np.pi * t / p + p) for p in periods)
        with pytest.warns(RuntimeWarning, match="minimum-norm"):
            weight = ridge(sample(z, 200, 48), 0.0)
        x, y = z[1000:1200], z[1200:1248]
        assert np.abs(x @ weight - y).max() < 1e-8
        assert numerical_rank(weight, 1e-7) == rank


def test_two_samples_are_enough_for_one_sinusoid():
    z = np.sin(2 * np.pi * np.arange(400) / 17)
    weight = ridge(sample(z, 2, 5), 0.0)
    assert np.abs(z[100:102] @ weight - z[102:107]).max() < 1e-8
    assert numerical_rank(weight, 1e-8) == 2


def test_linear_trend_under_the_norms():
    z = np.arange(100.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        last, plain = ridge(sample(z, 7, 5, "last"), 0.0), ridge(sample(z, 7, 5), 0.0)
    assert np.allclose((z[93:100] - 99) @ last + 99, np.arange(100, 105), atol=1e-8)
    assert numerical_rank(last, 1e-7) == 1 and numerical_rank(plain, 1e-7) == 2


def test_autoregression_of_order_one():
    rng = np.random.default_rng(1)
    noise, z = rng.normal(size=40_000), np.zeros(40_000)
    for t in range(1, len(z)):
        z[t] = 0.9 * z[t - 1] + noise[t]
    three_errors = 3 * np.sqrt((1 - 0.81) / len(z))
    weight = ridge(sample(z, 8, 1), 0.0)
    assert abs(weight[-1, 0] - 0.9) < three_errors and np.abs(weight[:-1]).max() < 0.03
    fit = reduced_rank(sample(z, 8, 4), 1)
    assert np.allclose(fit.weight[-1], 0.9 ** np.arange(1, 5), atol=0.03)
    assert np.abs(fit.weight[:-1]).max() < 0.05


@pytest.mark.parametrize("alpha", [0.0, 0.01, 1.0])
def test_objective_identity(noisy, alpha):
    stats = sample(noisy, 20, 9, "mean")
    path = RidgePath(stats)
    for rank in (1, 3, 9):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit = path.reduced_rank(alpha, rank)
        weight = fit.weight
        objective = stats.sse(weight) + alpha * path.tau * (weight**2).sum()
        assert objective == pytest.approx(np.trace(stats.target) - fit.mu[:rank].sum(), rel=1e-9)


def test_full_rank_is_ridge_and_loss_falls_with_rank(noisy):
    stats = sample(noisy, 20, 9)
    assert np.allclose(reduced_rank(stats, 9, 0.1).weight, ridge(stats, 0.1), atol=1e-10)
    losses = [stats.sse(reduced_rank(stats, r, 0.0).weight) for r in range(1, 10)]
    assert np.all(np.diff(losses) <= 1e-9)
    for r in range(1, 10):
        assert losses[r - 1] <= stats.sse(direct_weight_reduction(ridge(stats, 0.0), r).weight) + 1e-9


def test_ridge_equals_sklearn(noisy):
    stats = sample(noisy, 20, 9)
    w = np.concatenate([np.lib.stride_tricks.sliding_window_view(c, 29) for c in noisy.T])
    tau = np.trace(stats.gram) / 20
    other = Ridge(alpha=0.3 * tau, fit_intercept=False).fit(w[:, :20], w[:, 20:])
    assert np.allclose(ridge(stats, 0.3), other.coef_.T, atol=1e-6)
    centred = Ridge(alpha=1e-3 * tau, fit_intercept=True).fit(w[:, :20], w[:, 20:])
    mine = stats.centred()
    tau_c = np.trace(mine.gram) / 20
    assert np.allclose(ridge(mine, 1e-3 * tau / tau_c), centred.coef_.T, atol=1e-6)


@pytest.mark.parametrize("gamma", [False, True])
def test_rank_two_equals_alternating_least_squares(gamma):
    rng = np.random.default_rng(3)
    x, noise = rng.normal(size=(200, 12)), rng.normal(size=(200, 8))
    y = x @ rng.normal(size=(12, 8)) + noise
    w = np.concatenate([x, y], 1)
    stats = WindowStats(w.T @ w, w.sum(0), 200.0, 12, 8)
    weighting = residual_precision(stats, 1e-9) if gamma else np.eye(8)
    a = rng.normal(size=(12, 2))
    for _ in range(3000):
        z = x @ a
        b = np.linalg.lstsq(z, y, rcond=None)[0]
        a = np.linalg.lstsq(x, y @ weighting @ b.T @ np.linalg.inv(b @ weighting @ b.T), rcond=None)[0]
    fit = reduced_rank(stats, 2, 0.0, weighting if gamma else None).weight
    assert np.allclose(fit, a @ np.linalg.lstsq(x @ a, y, rcond=None)[0], atol=1e-6)


def test_last_equals_mean_without_penalty():
    z = np.random.default_rng(4).normal(size=(500, 2)).cumsum(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        last, mean = ridge(sample(z, 16, 6, "last"), 0.0), ridge(sample(z, 16, 6, "mean"), 0.0)
    x = z[100:116, 0]
    assert np.allclose((x - x[-1]) @ last + x[-1], (x - x.mean()) @ mean + x.mean(), atol=1e-6)


def test_revin_cancels_for_a_linear_map(noisy):
    weight = ridge(sample(noisy, 20, 9, "mean"), 0.1)
    x = noisy[50:70, 0]
    mu, sd = x.mean(), x.std() + 1e-5
    assert np.allclose(mu + sd * (((x - mu) / sd) @ weight), mu + (x - mu) @ weight, atol=1e-12)


def test_rank_curve_equals_direct_evaluation(noisy):
    train, val = sample(noisy[:400], 20, 9, "mean"), sample(noisy[400:], 20, 9, "mean")
    curve = rank_curve(train, {"val": val}, (1, 2, 4, 9), (0.01, 1.0))
    for i, alpha in enumerate(curve.alphas):
        for j, rank in enumerate(curve.ranks):
            weight = reduced_rank(train, rank, alpha).weight
            assert curve.losses["val"][i, j] == pytest.approx(val.mse(weight), rel=1e-9)
            assert curve.losses["train"][i, j] == pytest.approx(train.mse(weight), rel=1e-9)
        assert curve.full["val"][i] == pytest.approx(val.mse(ridge(train, alpha)), rel=1e-9)


def test_shared_core_is_the_best_kronecker_product(noisy):
    stats = sample(noisy, 24, 12)
    core = shared_core(stats, 4)
    best = stats.sse(np.kron(core, np.eye(4)))
    rng = np.random.default_rng(5)
    for _ in range(20):
        assert stats.sse(np.kron(core + 1e-3 * rng.normal(size=core.shape), np.eye(4))) >= best
    assert numerical_rank(shared_core(stats, 4, rank=2)) == 2
    losses = [stats.sse(np.kron(*kronecker_als(stats, 4, 0.0, iterations=n))) for n in (0, 1, 2, 10)]
    assert losses[0] == pytest.approx(best) and np.all(np.diff(losses) <= best * 1e-9)
    with pytest.raises(ValueError, match="period=5 must divide"):
        shared_core(stats, 5)


def test_alternating_least_squares_finds_a_kronecker_product():
    rng = np.random.default_rng(6)
    x = rng.normal(size=(500, 24))
    truth = np.kron(rng.normal(size=(6, 3)), rng.normal(size=(4, 4)) + 3 * np.eye(4))
    w = np.concatenate([x, x @ truth], 1)
    found = np.kron(*kronecker_als(WindowStats(w.T @ w, w.sum(0), 500.0, 24, 12), 4, 0.0))
    assert np.allclose(found, truth, atol=1e-6)


def test_balanced_banks_are_the_same_map(noisy):
    fit = reduced_rank(sample(noisy, 20, 9), 4, 0.1)
    even = fit.balanced()
    assert np.allclose(even.weight, fit.weight)
    assert np.allclose(even.analysis.T @ even.analysis, even.synthesis @ even.synthesis.T)


@pytest.mark.parametrize(("size", "rank"), [(60, 10), (200, 12), (200, 150), (30, 30)])
def test_leading_eigenvectors_equal_those_of_the_whole_decomposition(size, rank):
    rng = np.random.default_rng(size)
    x = rng.normal(size=(2 * size, size)) * np.exp(-np.arange(size) / 20)
    values, vectors = np.linalg.eigh(x.T @ x)
    mu, found = leading_eigen(x.T @ x, rank)
    assert np.allclose(mu, values[::-1][:rank], rtol=1e-9, atol=1e-12 * values[-1])
    assert np.allclose(found.T @ found, np.eye(rank), atol=1e-10)
    assert np.allclose(np.abs((found * vectors[:, ::-1][:, :rank]).sum(0))[:8], 1.0)
    assert (found[np.abs(found).argmax(0), np.arange(rank)] > 0).all()
    for degenerate in (np.eye(size), np.zeros((size, size)), np.diag([2.0, 1.0, *[0.0] * (size - 2)])):
        mu, found = leading_eigen(degenerate, rank)
        assert np.allclose(found.T @ found, np.eye(rank), atol=1e-10) and np.allclose(degenerate @ found, found * mu)


@pytest.mark.parametrize(("lookback", "horizon"), [(12, 40), (40, 12), (30, 30)])
def test_grid_losses_equal_the_slow_path(lookback, horizon):
    """Fits by solving the normal equations and the decomposition of the fitted values; losses by the plain formula."""
    z = np.random.default_rng(5).normal(size=(500, 2)).cumsum(0)
    train, held = (
        WindowStats.from_series(z[a:b], lookback, horizon).normalised("mean") for a, b in ((0, 350), (350, 500))
    )
    alphas, ranks = (1e-4, 1e-2, 1.0), (1, 3, 8, 12)
    for alpha, (_, fit, [(by_rank, full)]) in zip(alphas, grid_losses(RidgePath(train), [held], alphas, ranks)):
        penalised = train.gram + alpha * np.trace(train.gram) / lookback * np.eye(lookback)
        weight = np.linalg.solve(penalised, train.cross)
        assert full == pytest.approx(held.mse(weight), rel=1e-9)
        root = np.linalg.cholesky(penalised).T
        right = np.linalg.svd(root @ weight)[2]
        for loss, rank in zip(by_rank, ranks):
            slow = weight @ right[:rank].T @ right[:rank]
            assert loss == pytest.approx(held.mse(slow), rel=1e-9)
            assert np.allclose(fit.truncated(rank).weight, slow, atol=1e-7 * np.abs(weight).max())


def test_limits_and_warnings(noisy):
    stats = sample(noisy, 20, 9)
    with pytest.warns(RuntimeWarning, match=r"clipped to 9"):
        assert reduced_rank(stats, 50, 0.1).rank == 9
    with pytest.raises(ValueError, match="alpha must be"):
        ridge(stats, -1.0)
    with pytest.raises(ValueError, match="rank must be a positive"):
        reduced_rank(stats, 0, 0.1)
    with pytest.raises(ValueError, match="output_weight must be positive definite"):
        reduced_rank(stats, 2, 0.1, -np.eye(9))
    constant = sample(np.ones((100, 1)), 8, 4)
    with pytest.warns(RuntimeWarning, match="minimum-norm"):
        assert np.allclose(np.ones(8) @ ridge(constant, 0.0), 1.0)
