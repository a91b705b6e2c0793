import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurips26.shared import stats


def test_paired_t_of_a_known_sample():
    # Mean 2, standard deviation 1, n = 4: half width t(0.975, 3) / 2 with t = 3.182446.
    values = [2 - math.sqrt(1.5), 2.0, 2.0, 2 + math.sqrt(1.5)]
    mean, low, high = stats.paired_t(values)
    assert mean == pytest.approx(2.0)
    assert high - mean == pytest.approx(3.18244630528 / 2)
    assert mean - low == pytest.approx(high - mean)


def test_one_value_has_no_interval():
    assert stats.paired_t([3.0]) == (3.0, -math.inf, math.inf)


def test_clopper_pearson_textbook_values():
    # 0 of 10: upper limit 1 - 0.025^(1/10); 5 of 10: [0.187, 0.813].
    assert stats.clopper_pearson(0, 10) == pytest.approx((0.0, 0.0, 1 - 0.025**0.1))
    assert stats.clopper_pearson(5, 10)[1:] == pytest.approx((0.18708603, 0.81291397), abs=1e-7)


def test_loglog_slope_is_the_exponent():
    x = np.array([1.0, 2, 4, 8, 16])
    slope, low, high = stats.loglog_slope(x, 3 * x**1.5)
    assert slope == pytest.approx(1.5)
    assert (low, high) == pytest.approx((1.5, 1.5), abs=1e-6)


def test_spearman_of_ranks():
    assert stats.spearman([1, 2, 3, 4, 5], [1, 4, 9, 16, 25]) == (1.0, 1.0, 1.0)
    assert stats.spearman([1, 2, 3, 4, 5], [1, 2, 3, 5, 4])[0] == pytest.approx(0.9)


def test_block_of_one_is_the_plain_bootstrap_and_longer_blocks_widen_a_dependent_series():
    rng = np.random.default_rng(0)
    series = np.repeat(rng.normal(size=50), 10)
    narrow = stats.block_bootstrap(series, 1)
    wide = stats.block_bootstrap(series, 10)
    assert narrow[0] == wide[0] == pytest.approx(series.mean())
    assert wide[2] - wide[1] > 2 * (narrow[2] - narrow[1])


def test_holm_steps_down():
    # p-values 0.01, 0.04, 0.03: at 5 % Holm rejects the first (0.01 < 0.0167) and stops (0.03 > 0.025).
    p = [0.01, 0.04, 0.03]
    levels = stats.holm([lambda level, q=q: q <= 1 - level for q in p], 0.05)
    assert levels == pytest.approx([1 - 0.05 / 3, 1 - 0.05 / 2, 1 - 0.05 / 2])


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=40), st.floats(0.5, 0.98))
def test_intervals_are_nested_in_the_level(values, level):
    for interval in (stats.paired_t, stats.mean_interval):
        _, low, high = interval(values, level)
        _, lower, higher = interval(values, level + 0.01)
        assert lower <= low + 1e-9 and high <= higher + 1e-9


@given(st.lists(st.floats(-100, 100), min_size=20, max_size=40), st.floats(0.5, 0.999))
def test_many_values_never_narrow_the_interval(values, level):
    """From 20 values on it holds both the t interval and the bootstrap's."""
    _, low, high = stats.mean_interval(values, level)
    for _, lower, higher in (stats.paired_t(values, level), stats.bootstrap(values, level)):
        assert low <= lower + 1e-12 and higher - 1e-12 <= high


@pytest.mark.bad_input
@pytest.mark.parametrize("bad", [[], [float("nan")], [[1.0, 2.0]]])
def test_bad_values_are_named(bad):
    with pytest.raises(ValueError, match="differences"):
        stats.paired_t(bad)
