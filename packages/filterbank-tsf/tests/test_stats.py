"""Statistics of windows: against brute force, then their algebra, then bad input."""

import sys

import numpy as np
import pytest

from neurips26.filterbank_tsf.experiments import memory
from neurips26.filterbank_tsf.stats import REVIN_EPS, StatisticsFileError, WindowStats, norm_vector


def windows(z, width, stride=1):
    """Brute force: every window of every channel as a row."""
    return np.concatenate([[c[i : i + width] for i in range(0, len(c) - width + 1, stride)] for c in z.T])


@pytest.fixture
def z():
    return np.random.default_rng(0).normal(size=(300, 3)).cumsum(0)


@pytest.mark.parametrize("norm", ["none", "mean", "last"])
@pytest.mark.parametrize("method", ["displacement", "blocked"])
def test_equal_to_brute_force(z, norm, method):
    stats = WindowStats.from_series(z, 24, 12, method=method).normalised(norm)
    w = windows(z, 36)
    w = w - (w @ norm_vector(norm, 24, 36))[:, None]
    assert np.abs(stats.moment - w.T @ w).max() <= 1e-10 * np.abs(w.T @ w).max() + 1e-7 * (norm != "none")
    assert np.allclose(stats.total, w.sum(0), rtol=1e-9, atol=1e-7)
    assert stats.count == len(w) == 3 * (300 - 36 + 1)


def test_relative_error_on_standard_input():
    z = np.random.default_rng(1).normal(size=(300, 3))
    for norm in ("none", "mean", "last"):
        w = windows(z, 36)
        w = w - (w @ norm_vector(norm, 24, 36))[:, None]
        got = WindowStats.from_series(z, 24, 12).normalised(norm).moment
        assert np.abs(got - w.T @ w).max() / np.abs(w.T @ w).max() < 1e-10


def test_stride_mask_and_weights(z):
    w = windows(z, 36, stride=5)
    assert np.allclose(WindowStats.from_series(z, 24, 12, stride=5).moment, w.T @ w)
    holed = z.copy()
    holed[100, 1] = np.nan
    w = windows(holed, 36)
    w = w[np.isfinite(w).all(1)]
    masked = WindowStats.from_series(holed, 24, 12, missing="mask")
    assert masked.count == len(w) == 3 * 265 - 36
    assert np.allclose(masked.moment, w.T @ w)
    w = windows(z, 36)
    s = 1 / (w[:, :24].var(1) + REVIN_EPS)
    w = w - w[:, :24].mean(1, keepdims=True)
    weighted = WindowStats.from_series(z, 24, 12, loss_space="normalised")
    assert np.allclose(weighted.moment, (w * s[:, None]).T @ w)
    assert weighted.norm == "mean"


def test_merge_is_the_statistics_of_both(z):
    parts = [WindowStats.from_series(z[:, [c]], 24, 12) for c in range(3)]
    whole = WindowStats.from_series(z, 24, 12)
    merged = parts[0].merge(parts[1]).merge(parts[2])
    assert merged.count == whole.count and np.allclose(merged.moment, whole.moment)
    with pytest.raises(ValueError, match="lookback=23"):
        whole.merge(WindowStats.from_series(z, 23, 12))


def test_without_undoes_merge(z):
    both, part = WindowStats.from_series(z, 24, 12), WindowStats.from_series(z[:150], 24, 12)
    rest = both.without(part)
    assert rest.count == both.count - part.count
    assert np.allclose(rest.merge(part).moment, both.moment, rtol=1e-12)
    w = np.concatenate([np.lib.stride_tricks.sliding_window_view(c, 36)[150 - 36 + 1 :] for c in z.T])
    assert np.allclose(rest.moment, w.T @ w, rtol=1e-9) and np.allclose(rest.total, w.sum(0))
    with pytest.raises(ValueError, match="part: statistics of horizon=6 do not go with horizon=12"):
        both.without(WindowStats.from_series(z, 24, 6))


@pytest.mark.parametrize("method", ["displacement", "blocked"])
def test_a_level_far_above_the_spread_costs_no_digits(z, method):
    plain = WindowStats.from_series(z, 24, 12, method=method)
    lifted = WindowStats.from_series(z + np.array([1e6, -3e6, 2e7])[: z.shape[1]], 24, 12, method=method)
    for norm in ("mean", "last"):
        expected, got = plain.normalised(norm).moment, lifted.normalised(norm).moment
        assert np.abs(got - expected).max() < 1e-8 * np.abs(expected).max()
    w = np.concatenate([np.lib.stride_tricks.sliding_window_view(c, 36) for c in (z + 5.0).T])
    five = WindowStats.from_series(z + 5.0, 24, 12, method=method)
    assert np.allclose(five.moment, w.T @ w, rtol=1e-12) and np.allclose(five.total, w.sum(0), rtol=1e-12)
    assert np.allclose(five.shorter(10).merge(five.shorter(10)).moment, 2 * (w.T @ w)[14:, 14:], rtol=1e-12)


def test_shorter_lookback_keeps_the_windows(z):
    long = WindowStats.from_series(z, 24, 12)
    short = long.shorter(10)
    w = windows(z, 36)[:, 14:]
    assert np.allclose(short.moment, w.T @ w) and short.lookback == 10
    with pytest.raises(ValueError, match="between 1 and 24"):
        long.shorter(25)


def test_mse_equals_the_loop(z):
    rng = np.random.default_rng(2)
    weight, bias = rng.normal(size=(24, 12)), rng.normal(size=12)
    for norm in ("none", "mean", "last"):
        w = windows(z, 36)
        w = w - (w @ norm_vector(norm, 24, 36))[:, None]
        error = w[:, 24:] - w[:, :24] @ weight
        stats = WindowStats.from_series(z, 24, 12).normalised(norm)
        assert stats.mse(weight) == pytest.approx((error**2).mean(), rel=1e-9)
        assert stats.mse(weight, bias) == pytest.approx(((error - bias) ** 2).mean(), rel=1e-9)


@pytest.mark.parametrize("convert", [
    np.asfortranarray, lambda z: z[::-1][::-1], lambda z: z.astype(object), lambda z: z.tolist(),
])  # fmt: skip
def test_memory_order_and_types(z, convert):
    assert np.allclose(WindowStats.from_series(convert(z), 24, 12).moment, WindowStats.from_series(z, 24, 12).moment)


def test_integers_float32_and_one_dimension(z):
    whole = np.round(z).astype(int)
    expected = WindowStats.from_series(whole.astype(float), 24, 12).moment
    assert np.allclose(WindowStats.from_series(whole, 24, 12).moment, expected)
    assert WindowStats.from_series(z.astype(np.float32), 24, 12).moment.dtype == np.float64
    assert WindowStats.from_series(z[:, 0], 24, 12).count == 265


@pytest.mark.bad_input
def test_bad_input_names_the_argument(z):
    bad = z.copy()
    bad[17, 2] = np.inf
    bad[40, 1] = np.nan
    with pytest.raises(ValueError, match="column 2 holds inf at row 17"):
        WindowStats.from_series(bad, 24, 12)
    with pytest.raises(ValueError, match=r"300 rows.*290 \+ 12 = 302"):
        WindowStats.from_series(z, 290, 12)
    with pytest.raises(ValueError, match="no channel"):
        WindowStats.from_series(z[:, :0], 24, 12)
    with pytest.raises(ValueError, match=r"\(T,\) or \(T, C\)"):
        WindowStats.from_series(z[None], 24, 12)
    with pytest.raises(TypeError, match="real numbers"):
        WindowStats.from_series([["a", "b"]] * 40, 24, 12)
    with pytest.raises(ValueError, match="lookback must be a positive integer"):
        WindowStats.from_series(z, 0, 12)
    with pytest.raises(ValueError, match="horizon must be a positive integer"):
        WindowStats.from_series(z, 24, 1.5)
    with pytest.raises(ValueError, match="norm must be one of"):
        WindowStats.from_series(z, 24, 12).normalised("median")
    with pytest.raises(ValueError, match="displacement"):
        WindowStats.from_series(z, 24, 12, stride=2, method="displacement")
    with pytest.raises(ValueError, match="no window"):
        WindowStats.from_series(np.full((40, 1), np.nan), 24, 12, missing="mask")


def test_files(z, tmp_path):
    stats = WindowStats.from_series(z, 24, 12).normalised("mean")
    path = stats.save(tmp_path / "s.npz")
    back = WindowStats.load(path)
    assert np.array_equal(back.moment, stats.moment) and back.norm == "mean" and back.count == stats.count
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(StatisticsFileError, match=r"s\.npz"):
        WindowStats.load(path)
    assert path.read_bytes() == bytes(damaged)  # a damaged file is left as it is
    path.write_text("text")
    with pytest.raises(StatisticsFileError, match="not a readable file"):
        WindowStats.load(path)


def test_save_leaves_nothing_half_written(z, tmp_path, monkeypatch):
    stats = WindowStats.from_series(z, 24, 12)
    path = stats.save(tmp_path / "s.npz")
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        stats.save(path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["s.npz"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("size", "above", "whole"), [((8640, 7, True), 300, 1400), ((26_304, 321, False), 300, 1400)])
def test_no_window_matrix_is_built(size, above, whole):
    """Peak memory at L = H = 720, of ETTh1's size with a fit and of electricity's; windows alone would be 0.4 and 14 GB."""
    ballast = np.ones(100_000_000)  # 0.75 GiB here must not show in the measured process
    rows, channels, solve = size
    got = memory(rows, channels, 720, 720, solve)
    assert ballast.sum() > 0
    assert 10 < got["above"] < above and got["peak"] < whole


def test_centred_at_another_mean_is_the_loss_with_that_intercept(z):
    fit, held = WindowStats.from_series(z[:200], 24, 12), WindowStats.from_series(z[180:], 24, 12)
    at = fit.total / fit.count
    weight = np.random.default_rng(2).normal(size=(24, 12))
    bias = at[24:] - at[:24] @ weight
    assert held.centred(at).mse(weight) == pytest.approx(held.mse(weight, bias), rel=1e-9)
    assert np.allclose(fit.centred().total, 0, atol=1e-6)
