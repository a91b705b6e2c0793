"""Standard errors: units, how many times a row is taken, groups, and where nothing can be said."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from neurips26.subset_of_signals import SubsetOfSignalsRegressor, lad, lad_covariance, npmle, simulate
from neurips26.subset_of_signals.regressor import METHODS, OneScaleWarning

warnings.filterwarnings("ignore", category=OneScaleWarning)


@pytest.fixture(scope="module")
def sample():
    return simulate.subset_of_signals(800, 400, 2, bad=30.0, seed=5)


def fitted(method, X, y, **more):
    return SubsetOfSignalsRegressor(
        method, signal_scale=more.pop("signal_scale", 1.0), n_signals=400, random_state=0
    ).fit(X, y, **more)


@pytest.mark.parametrize("method", METHODS[1:])
def test_standard_errors_follow_the_units_of_the_columns(sample, method):
    base = fitted(method, sample.X, sample.y)
    far = fitted(method, sample.X * [2.0**30, 2.0**-40], sample.y)
    np.testing.assert_allclose(far.bse_ * [2.0**30, 2.0**-40, 1.0], base.bse_, rtol=1e-5)
    assert (base.bse_ > 0.02).all()


@pytest.mark.parametrize("method", METHODS[1:])
def test_a_column_far_from_zero(sample, method):
    """A time stamp: slope and standard error are those of the centred column."""
    X = sample.X * [1e5, 1.0]
    base, far = fitted(method, X, sample.y), fitted(method, X + [1.7e9, 0.0], sample.y)
    np.testing.assert_allclose(far.bse_[:2], base.bse_[:2], rtol=1e-3)
    assert far.bse_[2] == pytest.approx(1.7e9 * base.bse_[0], rel=0.05)


@pytest.mark.parametrize("method", METHODS[1:])
def test_a_row_taken_four_times_is_four_rows(sample, method):
    once = fitted(method, np.repeat(sample.X, 4, axis=0), np.repeat(sample.y, 4))
    if method == "trimming":
        once = SubsetOfSignalsRegressor(method, signal_scale=1.0, n_signals=1_600, random_state=0).fit(
            np.repeat(sample.X, 4, axis=0), np.repeat(sample.y, 4)
        )
    weighted = SubsetOfSignalsRegressor(
        method, signal_scale=1.0, n_signals=1_600 if method == "trimming" else 400, random_state=0
    ).fit(sample.X, sample.y, sample_weight=np.full(800, 4.0))
    # the mixture's leverages are of rows: of four alike they are a fourth each
    np.testing.assert_allclose(weighted.bse_, once.bse_, rtol=0.02)
    assert weighted.n_samples_ == once.n_samples_ == 3_200
    assert weighted.n_signals_ == pytest.approx(once.n_signals_, rel=0.01)


@pytest.mark.parametrize("unit", [1e-140, 1e140])
@pytest.mark.parametrize("method", METHODS[1:])
def test_standard_errors_follow_the_units_of_the_response(sample, method, unit):
    base = fitted(method, sample.X, sample.y)
    other = fitted(method, sample.X, unit * sample.y, signal_scale=unit)
    np.testing.assert_allclose(other.bse_ / unit, base.bse_, rtol=1e-4)
    np.testing.assert_allclose(other.coef_ / unit, base.coef_, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("run", [npmle, lad, lambda X, y: fitted("lad", X, y)])
def test_numbers_whose_squares_vanish_are_named(sample, run):
    with pytest.raises(ValueError, match="^X: expected zeros or numbers from 1e-150 on, got at most .* in column 1"):
        run(sample.X * [1.0, 1e-160], sample.y)
    with pytest.raises(ValueError, match="^y: expected zeros or numbers from 1e-150 on, got at most"):
        run(sample.X, 1e-200 * sample.y)


@pytest.mark.parametrize("count", [1, 3, 10, 40])
def test_intervals_with_few_groups(count):
    inside = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        groups = np.repeat(np.arange(count), 100)
        X = rng.normal(size=(groups.size, 3))
        y = X @ [1.0, 2.0, 3.0] + np.where(groups % 2, 5.0, 1.0) * rng.normal(size=groups.size)
        model = SubsetOfSignalsRegressor(fit_intercept=False, signal_scale=1.0).fit(X, y, groups=groups)
        low, high = model.conf_int().T
        inside.append((low < [1.0, 2.0, 3.0]) & (high > [1.0, 2.0, 3.0]))
    assert 0.9 <= np.mean(inside) <= 0.99


def test_large_groups_are_feasible_generalised_least_squares():
    rng = np.random.default_rng(3)
    groups = np.repeat(np.arange(8), 500)
    sigma = np.array([1.0, 20.0])[groups % 2]
    X = rng.normal(size=(groups.size, 2))
    y = X @ [1.0, -1.0] + sigma * rng.normal(size=groups.size)
    model = SubsetOfSignalsRegressor(fit_intercept=False, signal_scale=1.0).fit(X, y, groups=groups)
    weighted = np.linalg.inv(X.T @ (X / sigma[:, None] ** 2))
    np.testing.assert_allclose(model.coef_, weighted @ X.T @ (y / sigma**2), atol=0.01)
    np.testing.assert_allclose(model.bse_, np.sqrt(np.diag(weighted)), rtol=0.1)


@pytest.mark.parametrize("method", METHODS[1:])
@pytest.mark.parametrize("shape", [(3, 2), (5, 10)])
def test_nothing_is_known_without_more_rows_than_coefficients(method, shape):
    X = np.random.default_rng(4).normal(size=shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SubsetOfSignalsRegressor(method).fit(X, X[:, 0] + 1.0)
    assert np.isnan(model.bse_).all() and "nan" in model.summary()


def test_coefficients_without_a_source_near_the_fit_have_no_standard_error():
    rng = np.random.default_rng(6)
    X = np.column_stack([rng.normal(size=400), np.where(np.arange(400) < 200, 0.0, rng.normal(size=400))])
    y = X[:, 0] + np.where(np.arange(400) < 200, 1.0, 1e9) * rng.normal(size=400)
    covariance = lad_covariance(X, lad(X, y).residuals)
    assert 0 < covariance[0, 0] < 0.1 and np.isnan(covariance[1, 1])


def test_the_bound_is_stated_where_the_theorem_is(sample):
    for model, message in (
        (fitted("huber", sample.X, sample.y), "^method: expected a fit by 'lad', .* got 'huber'"),
        (fitted("lad", sample.X, sample.y), "^fit_intercept: expected False for the theorem"),
        (
            SubsetOfSignalsRegressor("lad", fit_intercept=False).fit(sample.X, sample.y),
            "^n_signals: expected the number of signals for the theorem",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            model.error_bound()


def test_a_generator_is_a_seed(sample):
    first, second = (
        SubsetOfSignalsRegressor("trimming", random_state=np.random.RandomState(7)).fit(sample.X, sample.y)
        for _ in range(2)
    )
    assert (first.coef_ == second.coef_).all()


def test_a_dropped_column_is_said_and_has_no_standard_error(sample):
    X = np.column_stack([sample.X, np.ones(800)])
    with pytest.warns(ConvergenceWarning, match="rank 3 of 4"):
        model = SubsetOfSignalsRegressor("lad", signal_scale=1.0).fit(X, sample.y)
    assert np.isfinite(model.bse_[:2]).all() and np.isnan(model.bse_[2:]).all()
