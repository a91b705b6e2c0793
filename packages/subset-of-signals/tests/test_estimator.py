"""The scikit-learn contract, equivariances, real data, inputs that cannot be served."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from neurips26.subset_of_signals import (
    OneScaleWarning,
    SubsetOfSignalsRegressor,
    bounds,
    lad,
    npmle,
    robust,
    simulate,
)
from neurips26.subset_of_signals.regressor import METHODS
from neurips26.subset_of_signals.scale import estimate_scale

warnings.filterwarnings("ignore", category=OneScaleWarning)


@parametrize_with_checks([SubsetOfSignalsRegressor("npmle"), SubsetOfSignalsRegressor("lad")])
def test_scikit_learn_contract(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.mark.slow
@parametrize_with_checks([SubsetOfSignalsRegressor(m) for m in ("truncation", "trimming", "tukey", "huber")])
def test_scikit_learn_contract_of_the_baselines(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.fixture(scope="module")
def sample():
    return simulate.subset_of_signals(1200, 400, 3, seed=3)


@pytest.mark.parametrize("method", [m for m in METHODS if m != "auto"])
def test_every_method_is_equivariant(sample, method):
    def fit(X, y, scale=1.0):
        return SubsetOfSignalsRegressor(method, signal_scale=scale, n_signals=400, random_state=0).fit(X, y)

    X, y = sample.X, sample.y
    base = fit(X, y)
    shifted = fit(X, y + X @ [1.0, -2.0, 3.0] + 5.0)
    np.testing.assert_allclose(shifted.coef_, base.coef_ + [1.0, -2.0, 3.0], atol=1e-5)
    assert shifted.intercept_ == pytest.approx(base.intercept_ + 5.0, abs=1e-5)
    np.testing.assert_allclose(fit(X, 1e6 * y, 1e6).coef_ / 1e6, base.coef_, rtol=1e-6, atol=1e-8)
    # scaling by a power of two is exact in floating point
    np.testing.assert_allclose(fit(X * [1.0, 8.0, 0.25], y).coef_ * [1.0, 8.0, 0.25], base.coef_, atol=1e-5)


@pytest.mark.parametrize("method", ["npmle", "lad"])
def test_sparse_is_dense(sample, method):
    thin = np.where(np.abs(sample.X) > 0.5, sample.X, 0.0)
    dense = SubsetOfSignalsRegressor(method).fit(thin, sample.y)
    np.testing.assert_allclose(
        SubsetOfSignalsRegressor(method).fit(sparse.csr_matrix(thin), sample.y).coef_, dense.coef_, atol=1e-4
    )


def test_recovers_where_least_squares_cannot(sample):
    ols = LinearRegression().fit(sample.X, sample.y)
    ours = SubsetOfSignalsRegressor().fit(sample.X, sample.y)
    assert np.linalg.norm(ours.coef_ - sample.beta) < 0.25 < 10 < np.linalg.norm(ols.coef_ - sample.beta)
    assert ours.n_signals_ == pytest.approx(400, rel=0.15)
    assert ours.effective_signals_ == pytest.approx(400, rel=0.15)
    assert (ours.source_weights_[sample.signal].mean() > 20 * ours.source_weights_[~sample.signal].mean()).all()
    low, high = ours.conf_int().T
    assert ((low[:3] < sample.beta) & (sample.beta < high[:3])).all()
    assert "signals: about" in ours.summary()


def test_scale_is_read_off_the_data(sample):
    """The default: no unit has to be given, and whatever it is nothing is said about it."""
    for unit in (1e-12, 0.01, 1.0, 1e12):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = SubsetOfSignalsRegressor().fit(sample.X, unit * sample.y)
        assert 0.9 < found.signal_scale_ / unit < 1.4
        assert np.linalg.norm(found.coef_ / unit - sample.beta) < 0.25
        assert found.n_signals_ == pytest.approx(400, rel=0.15)


@pytest.mark.parametrize("law", ["two-level", "uniform-log", "worst-case"])
def test_the_scale_read_off_lies_a_little_above_the_best_sources(law):
    for seed in range(3):
        s = simulate.subset_of_signals(3_000, 700, 3, noise=law, seed=seed)
        told = SubsetOfSignalsRegressor(signal_scale=1.0, fit_intercept=False).fit(s.X, s.y)
        ours = SubsetOfSignalsRegressor(fit_intercept=False).fit(s.X, s.y)
        assert 0.95 < ours.signal_scale_ < 1.6
        # sources a little above the scale may count too
        assert 0.75 * 700 < ours.n_signals_ < 1.5 * (s.sigma <= ours.signal_scale_).sum()
        assert np.linalg.norm(ours.coef_ - told.coef_) < 0.3 * told.bse_.max()


def test_scale_of_residuals():
    rng = np.random.default_rng(12)
    r = np.concatenate([rng.normal(size=300), 50.0 * rng.normal(size=900)])
    base = estimate_scale(r, 3)
    assert 0.9 < base < 1.4
    assert estimate_scale(-1e9 * r[::-1], 3) == pytest.approx(1e9 * base)
    assert estimate_scale(r, 3, np.full(r.size, 2.0)) == pytest.approx(estimate_scale(np.tile(r, 2), 3))
    assert estimate_scale(np.zeros(9), 2) == 1.0
    assert estimate_scale(np.append(np.zeros(100), r), 3) == np.abs(r).min()  # a hundred sources without noise
    assert 0.8 < estimate_scale(np.append(np.zeros(3), r), 3) < 1.4  # the three that a fit passes through
    assert 4.5 < estimate_scale(5.0 * rng.normal(size=2_000), 2) < 5.5  # one scale


def test_a_scale_of_other_data_is_said(sample):
    for factor, found in (
        (1e3, "about [0-5] of 1200 sources are that good"),
        (1e-5, "the signals' noise is about 0.0"),
    ):
        with pytest.warns(UserWarning, match=f"^signal_scale: 1 is not the scale of these data .*{found}"):
            SubsetOfSignalsRegressor(signal_scale=1.0).fit(sample.X, factor * sample.y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SubsetOfSignalsRegressor(signal_scale=1.0).fit(sample.X, sample.y)


def test_columns_of_the_summary_stay_apart(sample):
    small = SubsetOfSignalsRegressor(signal_scale=1e-7).fit(sample.X * 1e5, -1e-7 * sample.y)
    rows = small.summary().splitlines()[1:5]
    assert all(len(row.split()) == 6 for row in rows) and "e-1" in rows[0]


def test_one_scale_is_said():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    with pytest.warns(OneScaleWarning, match="ordinary least squares is efficient"):
        model = SubsetOfSignalsRegressor().fit(X, X @ [1.0, 2.0] + rng.normal(size=400))
    assert model.one_scale_ and "least squares is efficient" in model.summary()


def test_pipeline_and_search(sample):
    search = GridSearchCV(
        make_pipeline(StandardScaler(), SubsetOfSignalsRegressor("lad")),
        {"subsetofsignalsregressor__method": ["lad", "tukey"]},
        cv=2,
    ).fit(sample.X, sample.y)
    assert search.predict(sample.X).shape == (1200,)


def test_leverage(sample):
    X, y = sample.X.copy(), sample.y.copy()
    X[7] = 1e4
    with pytest.warns(UserWarning, match="row 7 of X has leverage 1.00"):
        pulled = SubsetOfSignalsRegressor("lad").fit(X, y)
    trimmed = SubsetOfSignalsRegressor("lad", leverage_trim=0.5).fit(X, y)
    assert trimmed.source_weights_[7] == 0.0
    assert np.linalg.norm(trimmed.coef_ - sample.beta) < np.linalg.norm(pulled.coef_ - sample.beta)


@pytest.mark.parametrize(("n", "m"), [(2000, 500), (8000, 2000)])
def test_effective_signals(n, m):
    """Two levels: the signals are counted, and LAD's error follows from the count."""
    for seed in range(3):
        s = simulate.subset_of_signals(n, m, 3, seed=seed)
        model = SubsetOfSignalsRegressor("lad", signal_scale=1.0, fit_intercept=False).fit(s.X, s.y)
        assert model.effective_signals_ == pytest.approx(m, rel=0.12)
        assert model.error_bound(asymptotic=True) == pytest.approx(bounds.asymptotic_error(n, 3, m), rel=0.15)
        scaled = bounds.effective_signals(1e-6 * model.residuals_, 3, 1e-6)
        assert scaled[0] == model.effective_signals_


def test_error_bounds_are_attributes_of_the_fit(sample):
    model = SubsetOfSignalsRegressor("lad", fit_intercept=False, n_signals=400, signal_scale=2.0).fit(
        sample.X, sample.y
    )
    assert model.error_bound(asymptotic=True) == pytest.approx(2 * 1.2533 * np.sqrt(1200 * 3) / 400, rel=1e-3)
    assert model.error_bound() == np.inf  # the theorem is silent at this size


@pytest.mark.parametrize(
    ("settings", "data", "message"),
    [
        ({"method": "ransac"}, {}, "^method: expected one of 'auto', 'npmle', .* got 'ransac'"),
        ({"signal_scale": -1.0}, {}, "^signal_scale: expected a finite number > 0"),
        ({"n_signals": 5000}, {}, "^n_signals: expected an integer >= 4 and <= 1200, got 5000"),
        ({"n_signals": 2}, {}, "^n_signals: expected an integer >= 4 and <= 1200, got 2"),
        ({"method": "lad"}, {"groups": np.zeros(1200)}, "^groups: expected None for method 'lad'"),
        ({}, {"groups": np.zeros(3)}, r"^groups: expected shape \(1200,\), got \(3,\)"),
        (
            {},
            {"groups": np.array([None, "a"] * 600, object)},
            "^groups: expected a label for every source, got missing",
        ),
        ({}, {"groups": np.r_[np.nan, np.ones(1199)]}, "^groups: expected a label for every source, got missing"),
        ({}, {"groups": np.array([1, "a"] * 600, object)}, "^groups: expected labels of one kind"),
        ({}, {"sample_weight": -np.ones(1200)}, "^sample_weight: expected numbers >= 0"),
        ({"grid_size": 0}, {}, "^grid_size: expected an integer >= 1, got 0"),
        ({"max_iter": 0}, {}, "^max_iter: expected an integer >= 1, got 0"),
        ({"method": "huber", "max_iter": 0}, {}, "^max_iter: expected an integer >= 1, got 0"),
        ({"n_starts": 7}, {}, "^n_starts: expected an integer >= 1 and <= 3, got 7"),
        ({"tol": -1.0}, {}, "^tol: expected a finite number > 0"),
        ({"signal_scale": "large"}, {}, "^signal_scale: expected a number, got 'large'"),
        ({"signal_scale": float("nan")}, {}, "^signal_scale: expected a finite number > 0"),
        ({"leverage_trim": -1.0}, {}, "^leverage_trim: expected a finite number > 0"),
        ({}, {"X": 1e200}, "^X: expected numbers up to 1e\\+150, got .*e\\+200: take another unit"),
        ({"method": "lad"}, {"y": 1e200}, "^y: expected numbers up to 1e\\+150"),
        ({"leverage_trim": 1e-9}, {}, "^leverage_trim: expected a limit that leaves rows, got 1e-09"),
    ],
)
def test_one_clear_error(sample, settings, data, message):
    data = dict(data)
    X, y = data.pop("X", 1.0) * sample.X, data.pop("y", 1.0) * sample.y
    with pytest.raises((ValueError, TypeError), match=message):
        SubsetOfSignalsRegressor(**settings).fit(X, y, **data)


@pytest.mark.parametrize("method", ["npmle", "lad"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_none(method, bad):
    rng = np.random.default_rng(9)
    X, y = rng.normal(size=(40, 2)), rng.normal(size=40)
    for name, (a, b) in {"X": (np.where(np.arange(40)[:, None] == 3, bad, X), y), "y": (X, np.r_[bad, y[1:]])}.items():
        with pytest.raises(ValueError, match=f"^Input {name} contains (NaN|infinity)"):
            SubsetOfSignalsRegressor(method).fit(a, b)
        if method == "npmle":
            with pytest.raises(ValueError, match=f"^{name}: expected finite numbers, got {bad} at index"):
                npmle(a, b)


@pytest.mark.parametrize("method", ["npmle", "lad"])
def test_columns_that_say_nothing(method):
    """A constant column beside the intercept costs a warning; a design of zeros has no fit without one."""
    rng = np.random.default_rng(10)
    X = rng.normal(size=(90, 2))
    y = X @ [1.0, 2.0] + np.where(np.arange(90) < 45, 0.1, 30.0) * rng.normal(size=90)
    with pytest.warns(ConvergenceWarning, match="rank 3 of 4"):
        model = SubsetOfSignalsRegressor(method, signal_scale=0.1).fit(np.column_stack([X, np.full(90, 5.0)]), y)
    np.testing.assert_allclose(model.coef_[:2], [1.0, 2.0], atol=0.15)
    with pytest.raises(ValueError, match="^X: expected at least one column that is not all zero, got none"):
        SubsetOfSignalsRegressor(method, fit_intercept=False).fit(np.zeros((90, 2)), y)


def test_labels_of_groups_are_of_any_kind():
    rng = np.random.default_rng(11)
    X, y = rng.normal(size=(60, 2)), rng.normal(size=60)
    plain = SubsetOfSignalsRegressor().fit(X, y, groups=np.arange(60) % 3).coef_
    for names in (["猫", "b", ""], [2.5, 7.0, -1.0]):
        labels = [names[i % 3] for i in range(60)]
        np.testing.assert_allclose(SubsetOfSignalsRegressor().fit(X, y, groups=labels).coef_, plain, atol=1e-12)


@pytest.mark.parametrize("method", ["npmle", "lad"])
def test_numbers_of_any_dtype(method):
    rng = np.random.default_rng(5)
    X, y = rng.integers(-9, 10, (200, 2)), rng.integers(-30, 31, 200)
    plain = SubsetOfSignalsRegressor(method, signal_scale=5.0).fit(X.astype(float), y.astype(float))
    for kind in (object, np.int16, np.float32):
        other = SubsetOfSignalsRegressor(method, signal_scale=5.0).fit(X.astype(kind), y.astype(kind))
        np.testing.assert_allclose(other.coef_, plain.coef_, atol=1e-9)
    with pytest.raises(ValueError, match="could not convert string to float|Unable to convert|dtype"):
        SubsetOfSignalsRegressor(method).fit(np.array([["a", "b"], ["c", "d"]], dtype=object), [0.0, 1.0])


@pytest.mark.parametrize("method", ["npmle", "lad"])
def test_fewer_sources_than_columns(method):
    """The fit of minimum norm, with a warning: it passes through every source."""
    rng = np.random.default_rng(6)
    X, y = rng.normal(size=(4, 7)), rng.normal(size=4)
    with pytest.warns(ConvergenceWarning, match="rank 4 of 7"):
        model = SubsetOfSignalsRegressor(method, fit_intercept=False).fit(X, y)
    np.testing.assert_allclose(model.coef_, np.linalg.pinv(X) @ y, atol=1e-6)


@pytest.mark.parametrize("method", ["npmle", "lad", "truncation", "trimming", "tukey", "huber"])
def test_constant_and_exact_responses(method):
    X = np.random.default_rng(7).normal(size=(80, 2))
    flat = SubsetOfSignalsRegressor(method).fit(X, np.full(80, 3.0))
    np.testing.assert_allclose([*flat.coef_, flat.intercept_], [0.0, 0.0, 3.0], atol=1e-8)
    exact = SubsetOfSignalsRegressor(method).fit(np.vstack([X, X]), np.tile(X @ [2.0, -1.0], 2))
    np.testing.assert_allclose(exact.coef_, [2.0, -1.0], atol=1e-8)
    assert np.isfinite(exact.bse_).all()


def test_too_few_steps_are_said(sample):
    with pytest.warns(ConvergenceWarning, match="npmle: not converged after 3 passes; the best iterate is returned"):
        model = SubsetOfSignalsRegressor(max_iter=3).fit(sample.X, sample.y)
    assert not model.converged_ and "NOT CONVERGED" in model.summary()
    assert np.linalg.norm(model.coef_ - sample.beta) < 0.5


def test_extreme_units(sample):
    base = SubsetOfSignalsRegressor(signal_scale=1.0).fit(sample.X, sample.y).coef_
    for c in (1e12, 1e-12):
        again = SubsetOfSignalsRegressor(signal_scale=c).fit(sample.X, c * sample.y)
        np.testing.assert_allclose(again.coef_ / c, base, rtol=1e-6, atol=1e-9)


def test_groups_share_a_noise_level():
    rng = np.random.default_rng(8)
    groups = np.repeat(np.arange(150), 4)
    sigma = np.where(np.arange(150) < 50, 1.0, 300.0)[groups]
    X = rng.normal(size=(600, 2))
    y = X @ [1.0, -2.0] + sigma * rng.normal(size=600)
    together = SubsetOfSignalsRegressor(signal_scale=1.0).fit(X, y, groups=groups)
    weights = together.source_weights_.reshape(150, 4)
    assert (weights == weights[:, :1]).all() and together.converged_
    assert together.signal_probability_[sigma == 1.0].mean() > 0.97
    assert together.signal_probability_[sigma > 1.0].mean() < 0.02
    alone = SubsetOfSignalsRegressor(signal_scale=1.0).fit(X, y)
    assert (together.bse_ < alone.bse_).all()


def test_column_response_is_converted_with_a_warning(sample):
    with pytest.warns(DataConversionWarning):
        SubsetOfSignalsRegressor("lad").fit(sample.X, sample.y[:, None])


# peers and limits of the family


def test_engel_agrees_with_statsmodels():
    sm = pytest.importorskip("statsmodels.api")
    data = sm.datasets.engel.load_pandas().data
    X, y = data[["income"]].to_numpy(), data["foodexp"].to_numpy()
    ours = SubsetOfSignalsRegressor("lad", signal_scale=100.0).fit(X, y)
    assert (ours.intercept_, ours.coef_[0]) == (pytest.approx(81.4823, abs=1e-3), pytest.approx(0.5602, abs=1e-4))
    peer = sm.QuantReg(y, sm.add_constant(X)).fit(0.5)
    np.testing.assert_allclose([ours.intercept_, ours.coef_[0]], peer.params, rtol=1e-3)
    scale = 60.0
    fixed = robust.tukey(sm.add_constant(X), y, scale).coef
    r = y - sm.add_constant(X) @ fixed
    w = np.maximum(1 - (r / (4.685 * scale)) ** 2, 0) ** 2
    np.testing.assert_allclose(fixed, sm.WLS(y, sm.add_constant(X), weights=w).fit().params, rtol=1e-6)


def test_median_has_the_asymptotic_variance():
    """Intercept only, bad sources far away: variance (pi/2) n / m^2."""
    n, m = 1_000, 300
    rng = np.random.default_rng(0)
    y = np.where(np.arange(n) < m, 1.0, 1e6) * rng.normal(size=(2_000, n))
    got = np.median(y, axis=1).var() / (np.pi / 2 * n / m**2)
    assert got == pytest.approx(1.0, abs=0.08)
    assert bounds.asymptotic_error(n, 1, m) ** 2 == pytest.approx(np.pi / 2 * n / m**2)


def test_the_theorem_is_never_exceeded():
    n, d, m = 40_000, 2, 20_000
    limit = bounds.recovery_error(n, d, m)
    assert 0 < limit < 1
    errors = [
        np.linalg.norm(SubsetOfSignalsRegressor("lad", fit_intercept=False).fit(s.X, s.y).coef_ - s.beta)
        for s in (simulate.subset_of_signals(n, m, d, seed=i) for i in range(3))
    ]
    assert max(errors) < limit


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bounds.recovery_error(10, 2, 20), "^m: expected at most n = 10 signals, got 20"),
        (lambda: bounds.asymptotic_error(10, 4, 2), "^m: expected at least d = 4 signals, got 2"),
        (lambda: simulate.subset_of_signals(10, 20, 2), "^m: expected an integer >= 2 and <= 10, got 20"),
        (lambda: robust.iterative_trimming(np.ones((3, 1)), np.ones(3), 2.0), "^fraction: expected a finite number"),
        (
            lambda: robust.iterative_truncation(np.ones((3, 1)), np.ones(3), window=-1.0),
            "^window: expected a finite number > 0",
        ),
        (lambda: robust.huber(np.ones((3, 1)), np.ones(3), constant=0.0), "^constant: expected a finite number > 0"),
        (lambda: robust.tukey(np.ones((3, 1)), np.ones(3), constant=-1.0), "^constant: expected a finite number > 0"),
        (
            lambda: robust.tukey(np.ones((3, 1)), np.ones(3), sample_weight=np.zeros(3)),
            "^sample_weight: expected numbers >= 0",
        ),
        (
            lambda: lad(np.ones((3, 1)), np.ones(3), sample_weight=np.zeros(3)),
            "^sample_weight: expected at least one number > 0",
        ),
        (lambda: simulate.subset_of_signals(9, 5, 2, noise="loud"), "^noise: expected one of 'two-level'"),
        (
            lambda: simulate.subset_of_signals(9, 5, 2, noise=lambda rng, k: -np.ones(k)),
            "^noise: expected standard deviat",
        ),
    ],
)
@pytest.mark.bad_input
def test_impossible_sizes(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_trimming_finds_a_clean_majority():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(300, 2))
    y = X @ [1.0, -1.0]
    y[:100] += 1e3 * rng.normal(size=100)
    np.testing.assert_allclose(robust.iterative_trimming(X, y, 0.6, n_starts=5).coef, [1.0, -1.0], atol=1e-9)
    np.testing.assert_allclose(robust.iterative_truncation(X, y, 1e-3).coef, [1.0, -1.0], atol=1e-9)
