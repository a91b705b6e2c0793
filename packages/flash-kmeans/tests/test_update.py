"""The update: segmented sums."""

import numpy as np
import pytest
import torch

from neurips26.flash_kmeans import update_centroids


def test_means_and_what_an_empty_cluster_keeps():
    x = [[0.0, 2.0], [2.0, 4.0], [10.0, 0.0]]
    assert update_centroids(x, [0, 0, 1], 2).tolist() == [[1.0, 3.0], [10.0, 0.0]]
    means, mass = update_centroids(x, [0, 0, 2], 3, old=[[0.0, 0.0], [7.0, 7.0], [0.0, 0.0]], return_mass=True)
    assert means.tolist() == [[1.0, 3.0], [7.0, 7.0], [10.0, 0.0]] and mass.tolist() == [2.0, 0.0, 1.0]


def test_a_weight_of_two_is_the_row_twice():
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, (40, 5)).astype(np.float32)
    labels, weight = rng.integers(0, 3, 40), rng.integers(0, 4, 40)
    twice = update_centroids(np.repeat(x, weight, axis=0), np.repeat(labels, weight), 3)
    assert (update_centroids(x, labels, 3, weights=weight) == twice).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_equal_to_index_add_in_float64(dtype):
    rng = np.random.default_rng(1)
    n, k, d = 50_000, 100, 17
    x = (rng.standard_normal((n, d)) + 3).astype(dtype)
    labels = np.minimum(rng.zipf(1.3, n) - 1, k - 1)  # one cluster holds a third of the points
    sums = torch.zeros(k, d, dtype=torch.float64).index_add_(
        0, torch.from_numpy(labels), torch.from_numpy(x.astype(np.float64))
    )
    count = np.bincount(labels, minlength=k)
    expected = sums.numpy() / np.maximum(count, 1)[:, None]
    means, mass = update_centroids(x, labels, k, return_mass=True)
    assert (mass == count).all()
    np.testing.assert_allclose(means, expected, rtol=1e-6, atol=1e-6)


def test_an_offset_costs_no_precision():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((20_000, 3)).astype(np.float32) + np.float32(1e4)
    means = update_centroids(x, np.zeros(20_000, int), 1)
    np.testing.assert_allclose(means[0], x.mean(axis=0, dtype=np.float64), rtol=1e-7)


def test_tensors_stay_tensors():
    means = update_centroids(torch.ones(4, 2, dtype=torch.bfloat16), torch.tensor([0, 1, 1, 0]), 2)
    assert means.dtype == torch.float32 and means.tolist() == [[1.0, 1.0]] * 2


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: update_centroids([[1.0]], [1], 1), r"labels: expected values in 0..0, got 1..1"),
        (lambda: update_centroids([[1.0]], [-1], 1), r"labels: expected values in 0..0, got -1..-1"),
        (lambda: update_centroids([[1.0]], [0.5], 1), r"labels: expected \(N=1,\) integers"),
        (lambda: update_centroids([[1.0]], [0, 0], 1), r"labels: expected \(N=1,\) integers, got int64 \(2,\)"),
        (lambda: update_centroids([[1.0]], [0], 0), r"k: expected an integer >= 1, got 0"),
        (lambda: update_centroids([[1.0]], [0], 1, weights=[-1]), r"weights: expected non-negative"),
        (lambda: update_centroids([[1.0]], [0], 1, old=[[1.0, 2.0]]), r"old: expected shape"),
        (
            lambda: update_centroids([[1.0]], [0], 1, old=[[np.nan]]),
            r"old: expected finite numbers, got NaN or infinity",
        ),
        (lambda: update_centroids([[1.0], [np.nan]], [0, 0], 1), r"x: expected finite numbers, got nan in row 1"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
