"""First centroids."""

import math

import numpy as np
import pytest

from neurips26.flash_kmeans.init import initial_centroids
from neurips26.flash_kmeans.rows import rows_of


def potential(x, c):
    return np.square(x[:, None] - c[None]).sum(-1).min(1).sum()


@pytest.fixture(scope="module")
def x():
    rng = np.random.default_rng(0)
    return (rng.standard_normal((20, 4))[rng.integers(0, 20, 2000)] * 5 + rng.standard_normal((2000, 4))).astype(
        np.float32
    )


def start(x, k, init, seed, **options):
    return initial_centroids(rows_of(x), k, init, np.random.default_rng(seed), **options)


@pytest.mark.parametrize("init", ["k-means++", "k-means||", "random"])
def test_repeatable_and_different(x, init):
    a, b, c = start(x, 20, init, 0), start(x, 20, init, 0), start(x, 20, init, 1)
    assert (a == b).all() and not (a == c).all()
    assert len(np.unique(a, axis=0)) == 20


@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_chosen_points_are_points(x, init):
    assert {tuple(c) for c in start(x, 30, init, 2)} <= {tuple(row) for row in x.astype(np.float64)}


def test_expected_potential_is_within_the_proven_bound(x):
    values = [potential(x, start(x, 20, "k-means++", s)) for s in range(20)]
    assert np.mean(values) <= 8 * (math.log(20) + 2) * min(values)
    uniform = [potential(x, start(x, 20, "random", s)) for s in range(20)]
    assert np.mean(values) < 0.7 * np.mean(uniform)


def test_parallel_is_as_good_after_lloyd(x):
    from neurips26.flash_kmeans import kmeans

    a, b = (np.mean([kmeans(x, 20, init=i, seed=s).inertia for s in range(8)]) for i in ("k-means||", "k-means++"))
    assert a <= 1.1 * b


@pytest.mark.parametrize("init", ["k-means++", "k-means||", "random"])
def test_a_point_of_weight_zero_is_never_chosen(x, init):
    weight = np.ones(len(x))
    weight[:1500] = 0
    chosen = start(
        np.where(np.arange(len(x))[:, None] < 1500, 1000.0, x).astype(np.float32), 20, init, 0, weights=weight
    )
    assert (np.abs(chosen) < 500).all()


def test_sampling_never_draws_twice():
    """Drawing with replacement would repeat a row almost surely at K^2 / 2N = 2."""
    x = np.arange(1000, dtype=np.float64)[:, None]
    assert len(np.unique(start(x, 64, "random", 0))) == 64
    assert len(np.unique(start(x, 999, "k-means++", 0))) == 999


def test_a_function_is_called_with_the_points():
    x = np.arange(10, dtype=np.float64)[:, None]
    assert start(x, 2, lambda points, k, rng: points[[1, 8]], 0).tolist() == [[1.0], [8.0]]
