"""Estimators: values, forms of input, and one clear error for every bad input."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import estimator_checks

from neurips26.filterbank_tsf.bank import fit_bank
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


def long_frame(**series):
    parts = [pd.DataFrame({"unique_id": n, "ds": np.arange(len(v)), "y": v}) for n, v in series.items()]
    return pd.concat(parts, ignore_index=True)


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
        (frame().set_axis(["a", "a"], axis=1), "y: duplicate column 'a'"),
        (frame(index=good[:99].append(pd.DatetimeIndex([pd.NaT]))), "y: the time stamp is missing at row 99"),
        (pd.DataFrame({"unique_id": ["a", None], "ds": [0, 1], "y": [0.0, 1.0]}), "unique_id is missing at row 1"),
        (long_frame(a=np.zeros(20), b=np.zeros(11)), "y: series 'b' has 11 rows"),
        (
            long_frame(a=np.zeros(20), b=np.where(np.arange(20) == 3, np.nan, 1)),
            "series 'b': column 'y' holds nan at row 3",
        ),
    ]
    for bad, message in cases:
        with pytest.raises(ValueError, match=message):
            model.fit(bad)
    for bad in (frame(a=["text"] * 100), np.array(["a", "b"] * 10), np.zeros(30, dtype=complex)):
        with pytest.raises(TypeError, match="numbers"):
            model.fit(bad)
    with pytest.warns(RuntimeWarning, match=r"scaled by 1: channel \['b'\]"):
        assert np.isfinite(model.fit(frame(b=3.0)).predict(frame(b=3.0))).all(axis=None)
    with pytest.warns(RuntimeWarning, match=r"scaled by 1: channel \['two'\]"):
        model.fit(long_frame(one=np.arange(20.0), two=np.ones(20)))


@pytest.mark.bad_input
def test_bad_settings_and_predictions(z):
    for changes, message in (
        (dict(lookback=0), "lookback must be a positive integer"),
        (dict(horizon=2.5), "horizon must be a positive integer"),
        (dict(rank="auto"), "rank must be a positive integer, None, 'val' or 'one_se'"),
        (dict(rank=0, alpha=0.1), "rank must be a positive integer"),
        (dict(alpha=-1.0, rank=2), "alpha must be a finite number >= 0"),
        (dict(alpha="cv"), "alpha must be a finite number >= 0 or 'val', got 'cv'"),
        (dict(alpha=True), "alpha must be"),
        (dict(alpha=float("nan")), "alpha must be"),
        (dict(norm="median"), "norm must be"),
        (dict(channel_mode="mix"), "channel_mode must be"),
        (dict(channel_mode="grouped", groups=["a"]), "groups must name a group for each of 2 channels, got 1"),
        (dict(missing="fill"), "missing must be"),
    ):
        with pytest.raises(ValueError, match=message):
            ReducedRankForecaster(48, 24).set_params(**changes).fit(z)
    for changes, message in (
        (dict(solver="sgd"), "solver must be"),
        (dict(alpha="cv"), "alpha must be a finite number >= 0 or 'val', got 'cv'"),
        (dict(alpha=-0.1), "alpha must be a finite number >= 0 or 'val', got -0.1"),
        (dict(alpha=float("inf")), "alpha must be"),
        (dict(alpha=None), "alpha must be"),
        (dict(lookback=-3), "lookback must be a positive integer, got -3"),
        (dict(n_filters=0), "n_filters must be a positive integer"),
        (dict(rank=0), "rank must be a positive integer"),
        (dict(kernel_size=49), "kernel_size must be at most lookback=48"),
        (dict(stride=99), "stride must be at most kernel_size"),
        (dict(core="sparse"), "core must be one of"),
        (dict(init="sinc"), "init must be"),
        (dict(checkpoint="c.pt", channel_mode="individual"), "channel_mode must be 'shared', got 'individual'"),
    ):
        with pytest.raises(ValueError, match=message):
            FilterBankForecaster(48, 24).set_params(**changes).fit(z)
    for changes, message in (
        (dict(alpha="val"), "alpha must be a finite number >= 0, got 'val'"),
        (dict(depth=0), "depth must be a positive integer"),
        (dict(epochs=1.5), "epochs must be a positive integer"),
    ):
        with pytest.raises(ValueError, match=message):
            DeepFilterBankForecaster(48, 24).set_params(**changes).fit(z)
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
    with pytest.raises(
        ValueError, match="y_last: column 1 holds nan at row 597; a forecast needs the newest lookback=48"
    ):
        model.predict(holed)
    with pytest.raises(ValueError, match="horizon must be a positive integer"):
        model.predict(z, horizon=0)
    for clipped in (ReducedRankForecaster(48, 24, rank=99, alpha=0.1), ReducedRankForecaster(48, 24, rank=99)):
        with pytest.warns(RuntimeWarning, match="rank=99 is more than min") as told:
            assert clipped.fit(z).rank_ == 24 and clipped.rank == 99
        assert len(told) == 1 and clipped.analysis_.shape == (48, 24)
    with pytest.warns(RuntimeWarning, match="clipped to 24"):
        FilterBankForecaster(48, 24, rank=99, alpha=0.1).fit(z)
    with pytest.raises(ValueError, match="missing='mask' is not possible with gradient training"):
        DeepFilterBankForecaster(48, 24, missing="mask").fit(holed)


CHANNELS = ReducedRankForecaster(24, 12, rank=2, alpha=0.1, channel_mode="individual")


@pytest.mark.parametrize("mode", ["individual", "grouped"])
@pytest.mark.parametrize("form", ["wide", "long", "polars"])
def test_frames_are_matched_by_name(form, mode, z):
    """Other order, or only some of the channels: every forecast is that of its own channel."""
    polars = pytest.importorskip("polars")
    wide = pd.DataFrame({"a": z[:, 0], "b": 100 + 7 * z[:, 1], "c": -3 * z[:, 0] + z[:, 1]},
                        index=pd.date_range("2024-01-01", periods=600, freq="h"))  # fmt: skip

    def given(columns):
        if form == "wide":
            return wide[columns]
        long = wide[columns].reset_index(names="ds").melt("ds", var_name="unique_id", value_name="y")
        return polars.from_pandas(long) if form == "polars" else long

    def by_name(forecast):
        if form == "wide":
            return {c: forecast[c].to_numpy() for c in forecast.columns}
        got = forecast.to_pandas() if form == "polars" else forecast
        return {n: part["y"].to_numpy() for n, part in got.groupby("unique_id")}

    groups = {"a": "x", "b": "y", "c": "x"} if mode == "grouped" else None
    model = clone(CHANNELS).set_params(channel_mode=mode, groups=groups).fit(given(["a", "b", "c"]))
    expected = by_name(model.predict(given(["a", "b", "c"])))
    for columns in (["c", "a", "b"], ["b"], ["c", "b"]):
        got = by_name(model.predict(given(columns)))
        assert sorted(got) == sorted(columns)
        assert all(np.allclose(got[c], expected[c]) for c in columns)
        assert model.score(given(columns)) < 0
    assert model.score(given(["c", "a", "b"])) == pytest.approx(model.score(given(["a", "b", "c"])))
    # Going on with some channels in another order is going on with each of them.
    one, two = (clone(model).fit(given(["a", "b", "c"])) for _ in range(2))
    one.partial_fit(given(["c", "b"]))
    two.partial_fit(given(["b"])).partial_fit(given(["c"]))
    assert np.allclose(one.coef_, two.coef_)
    assert np.allclose(one.coef_[0], model.coef_[0]) == (mode == "individual")  # a and c share a map when grouped
    wide["d"] = wide["a"]
    for act, name in ((model.predict, "y_last"), (model.partial_fit, "y"), (model.score, "y")):
        with pytest.raises(ValueError, match=f"{name}: 'd' is not among the fitted channels, 'a', 'b', 'c'"):
            act(given(["a", "d"]))


def test_validation_rows_are_matched_by_name(z):
    wide = pd.DataFrame(z, index=pd.date_range("2024-01-01", periods=600, freq="h"), columns=["a", "b"])
    model = ReducedRankForecaster(48, 24, channel_mode="individual")
    straight = clone(model).fit(wide[:400], wide[400:])
    swapped = clone(model).fit(wide[:400], wide.loc[wide.index[400:], ["b", "a"]])
    assert straight.rank_ == swapped.rank_ and straight.alpha_ == swapped.alpha_
    assert np.allclose(straight.coef_, swapped.coef_)
    holed = wide[400:].copy()
    holed.iloc[5, 0] = np.nan
    for val, message in (
        (wide.loc[wide.index[400:], ["a"]], "val lacks the channel 'b'"),
        (wide[400:420], "val has 20 rows, but one forecast needs horizon = 24"),
        (z[400:, :1], "val has 1 channels, fitted with 2"),
        (holed, "val: column 'a' holds nan at row 5"),
    ):
        with pytest.raises(ValueError, match=message):
            clone(model).fit(wide[:400], val)


def test_every_group_keeps_its_own_choice(z):
    """One channel of noise, one clean cycle: their ranks and penalties differ and stay theirs when rows are added."""
    both = np.stack([z[:, 0], np.random.default_rng(1).normal(size=600)], 1)
    model = ReducedRankForecaster(48, 24, channel_mode="individual").fit(both[:500])
    alone = [ReducedRankForecaster(48, 24).fit(both[:500, c]) for c in (0, 1)]
    assert model.rank_ == [a.rank_ for a in alone] and model.alpha_ == [a.alpha_ for a in alone]
    assert model.rank_[0] != model.rank_[1] or model.alpha_[0] != model.alpha_[1]
    model.partial_fit(both[400:])
    for c in (0, 1):
        alone[c].partial_fit(both[400:, c])
        assert np.allclose(model.coef_[c], alone[c].coef_)
        assert np.allclose(model.analysis_[c] @ model.synthesis_[c], model.coef_[c])  # the banks are the present ones


@pytest.mark.parametrize("model", LINEAR, ids=lambda m: type(m).__name__)
def test_what_is_shown_after_partial_fit_is_what_forecasts(model, z):
    model = clone(model).fit(z[:400]).partial_fit(z[400:])
    shown = (
        model.bank_.double_map().numpy()
        if isinstance(model, FilterBankForecaster)
        else model.analysis_ @ model.synthesis_
    )
    assert np.allclose(shown, model.coef_)


def test_groups_by_name_need_every_channel(z):
    wide = pd.DataFrame(z, columns=["a", "b"])
    with pytest.raises(ValueError, match="groups has no group for the channel 'b'"):
        clone(CHANNELS).set_params(channel_mode="grouped", groups={"a": 0}).fit(wide)


def test_score_with_gaps(z):
    """One clear error, or with a mask the windows without gaps, as if there were no others."""
    model = ReducedRankForecaster(48, 24, rank=4, alpha=0.1).fit(z)
    holed = z.copy()
    holed[300, 1] = np.nan
    with pytest.raises(ValueError, match="y: column 1 holds nan at row 300"):
        model.score(holed)
    with pytest.raises(ValueError, match="y has 3 channels, fitted with 2"):
        model.score(np.zeros((200, 3)))
    with pytest.raises(ValueError, match=r"y has 71 rows, but one window needs lookback \+ horizon = 48 \+ 24 = 72"):
        model.score(z[:71])
    masked = clone(model).set_params(missing="mask").fit(z)
    scaled = (holed - masked.mean_) / masked.std_
    w = np.concatenate([np.lib.stride_tricks.sliding_window_view(c, 72) for c in scaled.T])
    w = w[np.isfinite(w).all(1)]
    x, y = w[:, :48] - w[:, :48].mean(1, keepdims=True), w[:, 48:] - w[:, :48].mean(1, keepdims=True)
    assert len(w) == 2 * (600 - 72 + 1) - 72
    assert masked.score(holed) == pytest.approx(-((y - x @ masked.coef_) ** 2).mean(), rel=1e-9)
    with pytest.raises(ValueError, match="y: no window of L \\+ H = 72 values is free of missing values"):
        masked.score(np.full((100, 2), np.nan))
    with pytest.raises(ValueError, match="y: no window of L \\+ H = 72"):
        masked.fit(np.where(np.arange(600)[:, None] % 50 == 0, np.nan, z))
    with pytest.raises(ValueError, match=r"y \(the newest fifth\): no window of L \+ H = 72"):
        ReducedRankForecaster(48, 24, missing="mask").fit(np.where(np.arange(600)[:, None] > 450, np.nan, z))
    with pytest.raises(ValueError, match="y has 29 windows, too few for 5 blocks with H = 24 between"):
        ReducedRankForecaster(48, 24, rank="one_se").fit(z[:100], z[100:])


@pytest.mark.parametrize("kind", ["deep", "adam"])
def test_the_start_of_training_has_not_seen_the_validation_rows(kind):
    """On noise an error below the variance of the held-out fifth would mean that the start had seen it."""
    noise = np.random.default_rng(7).normal(size=600)
    if kind == "deep":
        model = DeepFilterBankForecaster(120, 24, n_filters=24, rank=24, alpha=1e-3, epochs=1).fit(noise)
        scaled = (noise - model.mean_) / model.std_
        stats = [WindowStats.from_series(scaled[a:b], 120, 24).normalised("mean") for a, b in ((0, 480), (360, 600))]
        bank = fit_bank(stats[0], 24, model.model_.blocks[0].bank.kernel_size, rank=24, alpha=1e-3)
        assert model.history_[0] == pytest.approx(stats[1].mse(bank.double_map().numpy()), rel=1e-4)
        assert model.history_[0] > scaled[480:].var()
    z, later = noise[:500], noise[500:]
    make = {
        "deep": lambda: DeepFilterBankForecaster(48, 24, epochs=2),
        "adam": lambda: FilterBankForecaster(48, 24, solver="adam", alpha=1e-3, epochs=4),
    }[kind]
    # Validation rows given by hand decide when training stops; on nonsense the start is kept.
    fitted, nonsense = make().fit(z, later), make().fit(z, 1e6 * (np.arange(100) % 2))
    start = fit_bank(
        WindowStats.from_series((z - z.mean()) / z.std(), 48, 24).normalised("mean"), 4, nonsense.kernel_size_, rank=8, alpha=1e-3
    ).double_map() if kind == "adam" else None  # fmt: skip
    if start is not None:
        assert np.allclose(fitted.coef_, start, atol=0.2) and not np.array_equal(fitted.coef_, nonsense.coef_)
    else:
        assert fitted.history_[0] < 5 < 1e6 < nonsense.history_[0]


def test_training_without_a_level_is_refused(z):
    for model in (
        DeepFilterBankForecaster(48, 24, norm="none"),
        FilterBankForecaster(48, 24, norm="none", solver="adam"),
    ):
        with pytest.raises(ValueError, match="norm must be 'mean' or 'last' where a network is trained"):
            model.fit(z)


@pytest.mark.parametrize("unit", [1e-300, 1e-200, 1e155, 1e300])
def test_units_do_not_matter(unit, z):
    model = ReducedRankForecaster(48, 24, rank=4, alpha=0.1)
    plain = model.fit(z).predict(z)
    assert np.allclose(clone(model).fit(z * unit).predict(z * unit) / unit, plain, rtol=1e-9, atol=1e-9)


def test_time_stamps_as_text_and_rows_in_reverse(z):
    model = ReducedRankForecaster(48, 24, rank=4, alpha=0.1)
    stamps = pd.date_range("2024-01-01", periods=600, freq="h")
    long = pd.DataFrame({"unique_id": "a", "ds": stamps, "y": z[:, 0]})
    text = long.assign(ds=stamps.astype(str))
    expected, got = model.fit(long).predict(long), model.fit(text).predict(text)
    assert np.allclose(got["y"], expected["y"]) and got["ds"].tolist() == expected["ds"].tolist()
    with pytest.raises(ValueError, match="y: series 'a': time stamps go back at row 1"):
        model.fit(text[::-1])
    with pytest.raises(ValueError, match="y: ds of series 'a' does not hold time stamps"):
        model.fit(text.assign(ds="soon"))
    with pytest.raises(ValueError, match="y: the index goes back from 599 to 0"):
        model.fit(pd.DataFrame({"a": z[:, 0]})[::-1])


def test_gradient_training_goes_on_from_its_checkpoint(z, tmp_path):
    whole = DeepFilterBankForecaster(48, 24, epochs=2, alpha=1e-3).fit(z)
    path = tmp_path / "c.pt"
    DeepFilterBankForecaster(48, 24, epochs=2, alpha=1e-3, checkpoint=path).fit(z)
    again = DeepFilterBankForecaster(48, 24, epochs=2, alpha=1e-3, checkpoint=path).fit(z)  # nothing is left to train
    assert np.array_equal(again.predict(z), whole.predict(z)) and again.history_ == whole.history_
    with pytest.raises(ValueError, match="was made with other rows"):
        DeepFilterBankForecaster(48, 24, epochs=2, alpha=1e-3, checkpoint=path).fit(z + np.arange(600)[:, None])
    with pytest.raises(ValueError, match="partial_fit: gradient training needs all rows at once"):
        again.partial_fit(z)


def test_parse_names_what_it_sees():
    panel = parse(pd.Series([1.0, 2.0, 3.0], name="load"))
    assert (panel.kind, panel.names, panel.series[0].shape, panel.named) == ("wide", ["load"], (3, 1), False)
