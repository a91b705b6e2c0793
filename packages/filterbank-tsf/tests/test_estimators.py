"""Estimators: values, forms of input, and one clear error for every bad input."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import estimator_checks

from neurips26.filterbank_tsf.estimators import (
    AutoFilterBank,
    DeepFilterBankForecaster,
    FilterBankForecaster,
    ReducedRankForecaster,
)
from neurips26.filterbank_tsf.frames import parse
from neurips26.filterbank_tsf.regression import reduced_rank
from neurips26.filterbank_tsf.stats import WindowStats

ALL = [
    ReducedRankForecaster(48, 24),
    FilterBankForecaster(48, 24),
    FilterBankForecaster(48, 24, solver="polish", core="depthwise", alpha=1e-3),
    FilterBankForecaster(48, 24, solver="adam", epochs=2),
    DeepFilterBankForecaster(48, 24, epochs=1, alpha=1e-3),
    AutoFilterBank(48, 24),
]
LINEAR = ALL[:2]


@pytest.fixture(scope="module")
def z():
    t = np.arange(600)
    clean = np.stack([np.sin(2 * np.pi * t / 24), 5 + 2 * np.cos(2 * np.pi * t / 12)], 1)
    return clean + 0.05 * np.random.default_rng(0).normal(size=clean.shape)


@pytest.mark.parametrize("model", ALL, ids=lambda m: f"{type(m).__name__}-{getattr(m, 'solver', '')}")
def test_forecasts_a_noisy_cycle_and_behaves_like_an_estimator(model, z):
    model = clone(model)
    with pytest.raises(NotFittedError):
        model.predict(z)
    model.fit(z[:500])
    forecast = model.predict(z[:500])
    assert forecast.shape == (24, 2)
    assert np.abs((forecast - z[500:524]) / z.std(0)).max() < 0.6 and model.score(z[400:]) > -0.06
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(z[:500]), forecast)
    assert clone(model).get_params() == clone(clone(model)).get_params()
    assert clone(model).set_params(lookback=50).lookback == 50
    assert model.predict(z[:500], horizon=5).shape == (5, 2)


@pytest.mark.bad_input  # sklearn sets every parameter to -1 and to an object: only fit may complain
@pytest.mark.parametrize("model", [ALL[i] for i in (0, 1, 4, 5)], ids=lambda m: type(m).__name__)
def test_the_estimator_checks_of_sklearn_that_concern_forecasters(model):
    """Those about parameters; the others feed a matrix of samples and labels, which no forecaster takes."""
    for check in ("parameters_default_constructible", "get_params_invariance", "set_params", "no_attributes_set_in_init",
                  "estimator_repr", "estimator_cloneable", "do_not_raise_errors_in_init_or_set_params"):  # fmt: skip
        getattr(estimator_checks, f"check_{check}")(type(model).__name__, clone(model))


def test_fit_is_the_closed_form(z):
    model = ReducedRankForecaster(48, 24, rank=3, alpha=0.1).fit(z)
    scaled = (z - z.mean(0)) / z.std(0)
    fit = reduced_rank(WindowStats.from_series(scaled, 48, 24).normalised("mean"), 3, 0.1)
    assert np.allclose(model.coef_, fit.weight, atol=1e-8) and model.coef_.shape == (48, 24)
    assert np.allclose(model.analysis_ @ model.synthesis_, model.coef_) and model.rank_ == 3
    chosen = ReducedRankForecaster(48, 24).fit(z[:400], z[400:])
    assert chosen.rank_ in chosen.rank_curve_.ranks and chosen.alpha_ in chosen.rank_curve_.alphas


def test_channel_modes(z):
    each = ReducedRankForecaster(48, 24, rank=2, alpha=0.1, channel_mode="individual").fit(z)
    alone = [ReducedRankForecaster(48, 24, rank=2, alpha=0.1).fit(z[:, c]) for c in (0, 1)]
    assert each.coef_.shape == (2, 48, 24)
    for c in (0, 1):
        assert np.allclose(each.coef_[c], alone[c].coef_, atol=1e-8)
        assert np.allclose(each.predict(z)[:, c], alone[c].predict(z[:, c]))
    grouped = ReducedRankForecaster(48, 24, rank=2, alpha=0.1, channel_mode="grouped", groups=["a", "a"]).fit(z)
    shared = ReducedRankForecaster(48, 24, rank=2, alpha=0.1).fit(z)
    assert np.allclose(grouped.predict(z), shared.predict(z))


def test_partial_fit_is_the_fit_on_both(z):
    model = ReducedRankForecaster(48, 24, rank=3, alpha=0.1).fit(z[:300])
    scaled = (z - model.mean_) / model.std_
    model.partial_fit(z[300:])
    both = WindowStats.from_series(scaled[:300], 48, 24).merge(WindowStats.from_series(scaled[300:], 48, 24))
    assert np.allclose(model.coef_, reduced_rank(both.normalised("mean"), 3, 0.1).weight, atol=1e-8)


@pytest.mark.parametrize("model", LINEAR, ids=lambda m: type(m).__name__)
def test_every_form_of_input_gives_the_same_numbers(model, z):
    polars = pytest.importorskip("polars")
    expected = clone(model).fit(z).predict(z)
    index = pd.date_range("2024-03-25", periods=600, freq="h", tz="Europe/Berlin")  # over a change to summer time
    wide = pd.DataFrame(z, index=index, columns=["a", "b"])
    got = clone(model).fit(wide).predict(wide)
    assert np.allclose(got.to_numpy(), expected) and list(got.columns) == ["a", "b"]
    assert got.index[0] == index[-1] + pd.Timedelta("1h") and len(got) == 24
    long = wide.reset_index(names="ds").melt("ds", var_name="unique_id", value_name="y")
    got = clone(model).fit(long).predict(long)
    assert np.allclose(got["y"].to_numpy().reshape(2, 24).T, expected) and list(got.columns) == ["unique_id", "ds", "y"]
    got = clone(model).fit(polars.from_pandas(long)).predict(polars.from_pandas(long))
    assert isinstance(got, polars.DataFrame) and np.allclose(got["y"].to_numpy().reshape(2, 24).T, expected)
    one = clone(model).fit(z[:, 0]).predict(z[:, 0])
    assert one.shape == (24,)
    assert np.allclose(clone(model).fit(np.asfortranarray(z)).predict(z[::-1][::-1]), expected)
    assert np.allclose(clone(model).fit(z.astype(object)).predict(z.astype(np.float32)), expected, atol=1e-4)


def test_series_of_unequal_length(z):
    parts = [pd.DataFrame({"unique_id": n, "ds": np.arange(k), "y": z[:k, 0]}) for n, k in (("a", 600), ("b", 400))]
    long = pd.concat(parts)
    out = ReducedRankForecaster(48, 24, rank=2, alpha=0.1).fit(long).predict(long)
    assert out["ds"].tolist() == [*range(600, 624), *range(400, 424)]


def test_missing_values_can_be_masked(z):
    holed = z.copy()
    holed[200:203, 0] = np.nan
    model = ReducedRankForecaster(48, 24, rank=4, alpha=0.1, missing="mask").fit(holed)
    assert (
        np.abs(model.predict(holed) - ReducedRankForecaster(48, 24, rank=4, alpha=0.1).fit(z).predict(z)).max() < 0.05
    )


def test_without_a_norm_there_is_an_intercept(z):
    level = z + np.array([100.0, -40.0])
    model = ReducedRankForecaster(48, 24, rank=4, alpha=1e-3, norm="none").fit(z[:300])
    lifted = ReducedRankForecaster(48, 24, rank=4, alpha=1e-3, norm="none").fit(level[:300])
    assert np.allclose(lifted.predict(level[:300]), model.predict(z[:300]) + np.array([100.0, -40.0]))
    scaled = (z[:300] - model.mean_) / model.std_
    stats = WindowStats.from_series(scaled, 48, 24)
    fit = reduced_rank(stats.centred(), 4, 1e-3).weight
    bias = stats.total[48:] / stats.count - stats.total[:48] / stats.count @ fit
    assert np.allclose(model.coef_, fit) and np.allclose(model.intercept_, bias)
    assert np.allclose(model.predict(z[:300]), (scaled[-48:].T @ fit + bias).T * model.std_ + model.mean_)
    trend = np.arange(300.0)  # without the intercept a short look-back could not know where it stands
    chosen = ReducedRankForecaster(8, 4, norm="none").fit(trend)
    assert np.abs(chosen.predict(trend) - np.arange(300, 304)).max() < 1
    assert not ReducedRankForecaster(48, 24, rank=2, alpha=0.1).fit(z).intercept_.any()


def test_rank_within_one_standard_error(z):
    model = ReducedRankForecaster(48, 24, rank="one_se").fit(z)
    by_val = ReducedRankForecaster(48, 24, rank="val").fit(z)
    assert model.rank_ <= by_val.rank_ or model.rank_ in (2, 4)  # two sinusoids: a rank of four at most is needed
    assert np.abs(model.predict(z[:500]) - by_val.predict(z[:500])).max() < 0.3


def test_recursion_is_asked_for(z):
    model = ReducedRankForecaster(48, 24, rank=4, alpha=0.01).fit(z[:500])
    with pytest.raises(ValueError, match="horizon=30 is longer than the fitted horizon=24"):
        model.predict(z[:500], horizon=30)
    longer = model.predict(z[:500], horizon=60, recursive=True)
    assert np.allclose(longer[:24], model.predict(z[:500]))
    assert np.allclose(longer[24:48], model.predict(np.concatenate([z[:500], longer[:24]])))


def frame(**changes):
    index = changes.pop("index", pd.date_range("2024-01-01", periods=100, freq="h"))
    return pd.DataFrame({"a": np.sin(np.arange(100.0)), "b": np.cos(np.arange(100.0)), **changes}, index=index)


@pytest.mark.bad_input
def test_bad_series():
    good = pd.date_range("2024-01-01", periods=100, freq="h")
    model = ReducedRankForecaster(8, 4, rank=1, alpha=0.1)
    cases = [
        (np.zeros((100, 0)), "y has no channel"),
        (np.zeros((2, 3, 4)), r"\(T,\) or \(T, C\)"),
        (np.zeros(11), r"y has 11 rows.*8 \+ 4 = 12"),
        (frame(a=np.where(np.arange(100) == 7, np.nan, 1.0)), "column 'a' holds nan at row 7"),
        (frame(b=np.where(np.arange(100) == 9, np.inf, 1.0)), "column 'b' holds inf at row 9"),
        (frame(index=good[:50].append(good[49:99])), "duplicate time stamp 2024-01-03 01:00:00"),
        (frame(index=good[::-1]), "go back at row 1"),
        (frame(index=good[:99].append(good[[99]] + pd.Timedelta("7min"))), "irregular"),
        (frame(index=pd.Index([f"x{i}" for i in range(100)])), "DatetimeIndex"),
        (pd.DataFrame({"unique_id": ["a"], "ds": [0]}), "y is missing"),
        (pd.DataFrame({"unique_id": ["a"], "y": [0.0]}), "ds is missing"),
    ]
    for bad, message in cases:
        with pytest.raises(ValueError, match=message):
            model.fit(bad)
    for bad in (frame(a=["text"] * 100), np.array(["a", "b"] * 10), np.zeros(30, dtype=complex)):
        with pytest.raises(TypeError, match="numbers"):
            model.fit(bad)
    with pytest.warns(RuntimeWarning, match=r"scaled by 1: channel \[1\]"):
        assert np.isfinite(model.fit(frame(b=3.0)).predict(frame(b=3.0))).all(axis=None)


@pytest.mark.bad_input
def test_bad_settings_and_predictions(z):
    for changes, message in (
        (dict(lookback=0), "lookback must be a positive integer"),
        (dict(horizon=2.5), "horizon must be a positive integer"),
        (dict(rank="auto"), "rank must be a positive integer, None, 'val' or 'one_se'"),
        (dict(rank=0, alpha=0.1), "rank must be a positive integer"),
        (dict(alpha=-1.0, rank=2), "alpha must be a finite number >= 0"),
        (dict(alpha="cv"), "alpha must be"),
        (dict(norm="median"), "norm must be"),
        (dict(channel_mode="mix"), "channel_mode must be"),
        (dict(channel_mode="grouped", groups=["a"]), "groups must name a group for each of 2 channels, got 1"),
        (dict(missing="fill"), "missing must be"),
    ):
        with pytest.raises(ValueError, match=message):
            ReducedRankForecaster(48, 24).set_params(**changes).fit(z)
    with pytest.raises(ValueError, match="solver must be"):
        FilterBankForecaster(48, 24, solver="sgd").fit(z)
    with pytest.raises(ValueError, match="rank='one_se' needs series of one length"):
        long = pd.concat(
            [pd.DataFrame({"unique_id": n, "ds": np.arange(k), "y": z[:k, 0]}) for n, k in (("a", 600), ("b", 500))]
        )
        ReducedRankForecaster(48, 24, rank="one_se").fit(long)
    with pytest.raises(ValueError, match="too few to hold out"):
        ReducedRankForecaster(48, 24).fit(z[:80])
    model = ReducedRankForecaster(48, 24, rank=2, alpha=0.1).fit(z)
    for y, message in (
        (z[:40], "y_last has 40 rows, a forecast needs lookback=48"),
        (z[:, 0], "y_last has 1 channels, fitted with 2"),
    ):
        with pytest.raises(ValueError, match=message):
            model.predict(y)
    holed = z.copy()
    holed[-3, 1] = np.nan
    with pytest.raises(ValueError, match="y_last: column 1 holds nan at row 45"):
        model.predict(holed)
    with pytest.raises(ValueError, match="horizon must be a positive integer"):
        model.predict(z, horizon=0)
    with pytest.warns(RuntimeWarning, match="clipped to 24"):
        ReducedRankForecaster(48, 24, rank=99, alpha=0.1).fit(z)
    with pytest.raises(ValueError, match="missing='mask' is not possible with gradient training"):
        DeepFilterBankForecaster(48, 24, missing="mask").fit(holed)


def test_parse_names_what_it_sees():
    panel = parse(pd.Series([1.0, 2.0, 3.0], name="load"))
    assert (panel.kind, panel.names, panel.series[0].shape) == ("wide", ["load"], (3, 1))
