"""Limits: known values, order among them, limits of the range."""

import math

import pytest

from neurips26.knn_certificate import bounds


@pytest.mark.parametrize(
    ("count", "n", "delta", "value"),
    [
        (0, 100, 0.05, 0.029513),
        (10, 100, 0.05, 0.163718),
        (5, 1000, 0.025, 0.011629),
        (233, 2000, 0.025, 0.131376),
        (7, 7, 0.05, 1.0),
    ],
)
def test_clopper_pearson(count, n, delta, value):
    assert bounds.clopper_pearson(count, n, delta) == pytest.approx(value, abs=5e-7)


def test_slacks():
    assert bounds.hoeffding_slack(50_000) == pytest.approx(0.0054733, abs=5e-8)
    assert bounds.rogers_wagner(10_003, 5) == pytest.approx(0.248961, abs=5e-7)
    n, k = 400, 3
    second_moment = 1 / n + 24 * math.sqrt(k) / (n * math.sqrt(2 * math.pi))
    assert bounds.devroye_wagner(n, k, 0.1) == pytest.approx(math.sqrt(second_moment / 0.1))


@pytest.mark.parametrize("count", [0, 3, 40, 199, 200])
def test_order_and_monotony(count):
    exact, chernoff, hoeffding = (f(count, 200) for f in (bounds.clopper_pearson, bounds.kl_inverse, bounds.hoeffding))
    assert count / 200 <= exact <= chernoff + 1e-12 <= hoeffding + 1e-9
    assert bounds.clopper_pearson(count, 200, 0.01) >= exact
    if count < 200:
        assert bounds.clopper_pearson(2 * count, 400) < exact


def test_kl_inverse_solves_its_equation():
    q, p, n = bounds.kl_inverse(12, 240, 0.05), 12 / 240, 240
    kl = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    assert n * kl == pytest.approx(math.log(20), rel=1e-9)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((5, 4), "^count: expected an integer >= 0 and <= 4, got 5"),
        ((0, 0), "^n: expected an integer >= 1, got 0"),
        ((1, 4, 0.0), "^delta: expected a finite number > 0"),
    ],
)
def test_one_clear_error(args, message):
    with pytest.raises(ValueError, match=message):
        bounds.clopper_pearson(*args)
