"""The mixture estimator: limits that are known exactly, monotone climb, groups, inference."""

import numpy as np
import pytest

from neurips26.subset_of_signals import npmle, simulate
from neurips26.subset_of_signals.npmle import _posterior, scale_grid


@pytest.fixture(scope="module")
def sample():
    return simulate.subset_of_signals(2000, 500, 4, noise="uniform-log", seed=11)


def test_likelihood_never_falls(sample):
    path = npmle(sample.X, sample.y).path
    assert np.diff(path).min() >= -1e-8 * abs(path[0])


@pytest.mark.parametrize("law", simulate.NOISE_LAWS)
def test_top_of_the_likelihood(law):
    """No gradient is left: the score of the coefficients is zero, and no scale's share could grow with profit."""
    s = simulate.subset_of_signals(1500, 400, 3, noise=law, seed=2)
    fit = npmle(s.X, s.y)
    assert fit.converged and fit.n_iter <= 60
    density = np.exp(-0.5 * (fit.residuals[:, None] / fit.scales) ** 2) / (fit.scales * np.sqrt(2 * np.pi))
    f = density @ fit.mixing
    assert np.log(f).sum() == pytest.approx(fit.log_likelihood, rel=1e-12)
    gain = (density / f[:, None]).sum(axis=0) - 1500
    assert gain.max() <= 1e-3 and np.abs(gain[fit.mixing > 1e-6]).max() < 0.01
    precision = (density * fit.mixing) @ fit.scales**-2.0 / f
    score = s.X.T @ (precision * fit.residuals)
    np.testing.assert_allclose(score / np.sqrt((precision[:, None] * s.X**2).sum(axis=0)), 0, atol=1e-5)


def test_agrees_with_plain_em():
    """The textbook's EM, many times as long, climbs the same peak and ends just below."""
    s = simulate.subset_of_signals(400, 150, 2, noise="worst-case", seed=4)
    fit = npmle(s.X, s.y)
    b, mixing = np.linalg.lstsq(s.X, s.y)[0], np.full(fit.scales.size, 1 / fit.scales.size)
    for _ in range(4000):
        density = np.exp(-0.5 * ((s.y - s.X @ b)[:, None] / fit.scales) ** 2) / (fit.scales * np.sqrt(2 * np.pi))
        p = density * mixing
        value = np.log(p.sum(axis=1)).sum()
        p /= p.sum(axis=1, keepdims=True)
        w = p @ fit.scales**-2.0
        b, mixing = np.linalg.solve(s.X.T @ (w[:, None] * s.X), s.X.T @ (w * s.y)), p.mean(axis=0)
    assert value <= fit.log_likelihood < value + 0.1
    np.testing.assert_allclose(fit.coef, b, atol=0.05 * np.sqrt(np.diag(fit.covariance)).min())


def test_one_scale_is_least_squares(sample):
    fit = npmle(sample.X, sample.y, scales=[3.0])
    np.testing.assert_allclose(fit.coef, np.linalg.lstsq(sample.X, sample.y)[0], rtol=1e-8, atol=1e-8)


def test_known_groups_give_weighted_least_squares():
    """Large groups tell their own scale: the limit is least squares weighted by the groups' variances."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(20), 400)
    sigma = np.where(groups < 6, 1.0, 30.0)
    X = rng.normal(size=(8000, 3))
    y = X @ [1.0, -1.0, 2.0] + sigma * rng.normal(size=8000)
    fit = npmle(X, y, groups=groups, scales=[1.0, 30.0])
    w = 1 / sigma**2
    expected = np.linalg.solve(X.T @ (w[:, None] * X), X.T @ (w * y))
    np.testing.assert_allclose(fit.coef, expected, atol=1e-9)
    np.testing.assert_allclose(fit.source_weights, w, rtol=1e-9)


def test_groups_of_one_are_no_groups(sample):
    alone = npmle(sample.X, sample.y, groups=np.arange(2000))
    np.testing.assert_allclose(alone.coef, npmle(sample.X, sample.y).coef, atol=1e-10)


def test_all_signals_cost_next_to_nothing():
    errors = []
    for seed in range(10):
        s = simulate.subset_of_signals(1500, 1500, 4, seed=seed)
        ols = np.linalg.lstsq(s.X, s.y)[0]
        errors.append((np.linalg.norm(npmle(s.X, s.y).coef - s.beta), np.linalg.norm(ols - s.beta)))
    ours, theirs = np.sqrt((np.array(errors) ** 2).mean(axis=0))
    assert ours <= 1.02 * theirs


def test_posterior_is_bayes_rule():
    scales, mixing = np.array([0.5, 2.0]), np.array([0.3, 0.7])
    r = np.array([0.1, -3.0])
    density = mixing * np.exp(-(r[:, None] ** 2) / (2 * scales**2)) / (scales * np.sqrt(2 * np.pi))
    p = density / density.sum(axis=1, keepdims=True)
    got = _posterior(r**2, np.ones(2), np.ones(2), scales, mixing, cut=1.0)
    assert got.log_likelihood == pytest.approx(np.log(density.sum(axis=1)).sum())
    np.testing.assert_allclose(got.mass, p.sum(axis=0))
    np.testing.assert_allclose(got.precision, p @ scales**-2.0)
    np.testing.assert_allclose(got.spread, p @ scales**-4.0 - (p @ scales**-2.0) ** 2)
    np.testing.assert_allclose(got.small, p[:, 0])


def test_grid_holds_the_signal_scale():
    grid = scale_grid(0.2, 1e4, 40, floor=0.3)
    assert grid.size == 40 and grid[0] == pytest.approx(0.06) and grid[-1] == pytest.approx(1e4)
    assert np.abs(grid / 0.2 - 1).min() < 1e-12
    assert scale_grid(1.0, 5.0, 1) == pytest.approx([1.0])


def test_mixture_finds_the_signals():
    s = simulate.subset_of_signals(4000, 1000, 3, seed=5)
    fit = npmle(s.X, s.y)
    assert fit.n_signals == pytest.approx(1000, rel=0.1)
    assert fit.signal_probability[s.signal].mean() > 0.85 > 0.05 > fit.signal_probability[~s.signal].mean()
    assert fit.mixing.sum() == pytest.approx(1.0)


def test_scale_equivariance(sample):
    base = npmle(sample.X, sample.y).coef
    for c in (1e6, 1e-6):  # rounding differs: the same optimum to within the stopping rule
        np.testing.assert_allclose(npmle(sample.X, c * sample.y, signal_scale=c).coef / c, base, atol=1e-7)


def test_standard_errors_leave_each_source_out():
    """One scale is least squares, whose sandwich with residuals from fits without the source is HC3."""
    rng = np.random.default_rng(9)
    X = rng.normal(size=(40, 3))
    y = X @ [1.0, 2.0, 3.0] + rng.normal(size=40) * (1 + np.arange(40) / 10)
    inverse = np.linalg.inv(X.T @ X)
    left_out = (y - X @ inverse @ X.T @ y) / (1 - np.einsum("ij,jk,ik->i", X, inverse, X))
    expected = inverse @ (X.T * left_out**2) @ X @ inverse
    np.testing.assert_allclose(npmle(X, y, scales=[2.0]).covariance, expected, rtol=1e-8)


@pytest.mark.slow
def test_intervals_cover():
    """95% intervals of 4 coefficients over 120 draws: a standard error of 1% allows 92% to 98%."""
    hits = []
    for seed in range(120):
        s = simulate.subset_of_signals(600, 250, 4, seed=1000 + seed)
        fit = npmle(s.X, s.y, n_starts=1)
        hits.append(np.abs(fit.coef - s.beta) <= 1.96 * np.sqrt(np.diag(fit.covariance)))
    assert 0.92 <= np.mean(hits) <= 0.98


def test_exact_fit_has_no_division_by_zero():
    X = np.random.default_rng(0).normal(size=(50, 2))
    fit = npmle(X, X @ [1.0, 2.0])
    np.testing.assert_allclose(fit.coef, [1.0, 2.0], atol=1e-8)
    assert np.isfinite(fit.covariance).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"signal_scale": 0.0}, "^signal_scale: expected a finite number > 0"),
        ({"n_starts": 4}, "^n_starts: expected an integer"),
        ({"scales": [0.0, 1.0]}, "^scales: expected numbers > 0, got 0"),
        ({"groups": [1, 2]}, r"^groups: expected shape \(2000,\)"),
    ],
)
def test_one_clear_error(sample, settings, message):
    with pytest.raises(ValueError, match=message):
        npmle(sample.X, sample.y, **settings)
