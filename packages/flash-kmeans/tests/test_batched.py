"""Batches: the same as a loop over problems, each converging by itself."""

import numpy as np
import pytest
import torch

from neurips26.flash_kmeans import EmptyClusterError, batched_kmeans, kmeans


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("d", [3, 32])
def test_equal_to_a_loop(metric, d):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 400, d)).astype(np.float32)
    init = x[:, :9]
    batch = batched_kmeans(x, 9, init=init, metric=metric)
    for p in range(5):
        one = kmeans(x[p], 9, init=init[p], metric=metric)
        assert (batch.labels[p] == one.labels).all() and batch.n_iter[p] == one.n_iter
        np.testing.assert_allclose(batch.centroids[p], one.centroids, rtol=1e-5, atol=1e-6)
        assert batch.inertia[p] == pytest.approx(one.inertia, rel=1e-5)


def test_threads_do_not_matter():
    x = np.random.default_rng(1).standard_normal((7, 100, 5)).astype(np.float32)
    a, b = (batched_kmeans(x, 6, seed=3, threads=t) for t in (1, 3))
    assert (a.labels == b.labels).all() and (a.centroids == b.centroids).all()


def test_ragged_and_lengths():
    rng = np.random.default_rng(2)
    parts = [rng.standard_normal((n, 4)).astype(np.float32) for n in (50, 20, 81)]
    init = np.stack([p[:5] for p in parts])
    ragged = batched_kmeans(parts, 5, init=init)
    for p, part in enumerate(parts):
        one = kmeans(part, 5, init=init[p])
        assert (ragged.labels[p] == one.labels).all() and len(ragged.labels[p]) == len(part)
    padded = np.full((3, 81, 4), 7.0, np.float32)
    for p, part in enumerate(parts):
        padded[p, : len(part)] = part
    result = batched_kmeans(padded, 5, init=init, lengths=[50, 20, 81])
    assert (result.centroids == ragged.centroids).all() and (result.labels[1, 20:] == -1).all()


def test_a_finished_problem_does_not_move():
    easy = np.array([[0.0], [1.0], [10.0], [11.0]] * 25, np.float64)
    hard = np.random.default_rng(3).standard_normal((100, 1))
    init = np.array([[[0.0], [10.0]], [[-0.1], [0.0]]])
    result = batched_kmeans(np.stack([easy, hard]), 2, init=init, tol=0, max_iter=50)
    assert result.n_iter[0] == 2 < result.n_iter[1] and result.converged.all()
    assert result.centroids[0].tolist() == [[0.5], [10.5]]


def test_no_empty_clusters_in_a_thousand_problems():
    x = torch.randn(1000, 200, 3, generator=torch.Generator().manual_seed(0))
    result = batched_kmeans(x, 50, init="random", seed=0, max_iter=10)
    assert all(len(np.unique(labels)) == 50 for labels in result.labels.numpy())


def test_a_transposed_view_is_read_in_place():
    x = torch.randn(2, 300, 4, 16)  # (batch, tokens, heads, features)
    view = x.transpose(1, 2)  # (batch, heads, tokens, features)
    problems = view[0]
    init = problems[:, :8]
    assert (
        batched_kmeans(problems, 8, init=init).labels == batched_kmeans(problems.contiguous(), 8, init=init).labels
    ).all()


def test_weights():
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((3, 60, 4)), rng.integers(0, 3, (3, 60)).astype(float)
    result = batched_kmeans(x, 4, init=x[:, :4], weights=w)
    for p in range(3):
        one = kmeans(x[p], 4, init=x[p, :4], weights=w[p])
        np.testing.assert_allclose(result.centroids[p], one.centroids, rtol=1e-9)
        assert result.inertia[p] == pytest.approx(one.inertia)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: batched_kmeans(np.zeros((2, 3)), 1), r"x: expected three axes \(B, N, D\)"),
        (lambda: batched_kmeans(np.zeros((2, 3, 1)), 4), "K=4, N=3 in 0"),
        (
            lambda: batched_kmeans(np.zeros((2, 3, 1)), 2, lengths=[3, 4]),
            "lengths: expected at most N=3, got 4 for problem 1",
        ),
        (lambda: batched_kmeans(np.zeros((2, 3, 1)), 2, lengths=[3]), r"lengths: expected \(B=2,\) integers"),
        (
            lambda: batched_kmeans(np.full((2, 3, 1), np.nan), 2),
            "x: expected finite numbers, got NaN or infinity in row 0 of problem 0",
        ),
        (
            lambda: batched_kmeans(np.zeros((2, 3, 1)), 2, init=np.zeros((2, 1))),
            r"init: expected finite centroids of shape \(B=2, K=2, D=1\)",
        ),
        (
            lambda: batched_kmeans(np.zeros((2, 3, 1)), 2, empty="drop"),
            "empty: expected one of 'relocate', 'keep', 'raise'",
        ),
        (
            lambda: batched_kmeans(np.zeros((1, 3, 1)), 2, init=[[[0.0], [9.0]]], empty="raise"),
            "cluster 1 of problem 0",
        ),
        (lambda: batched_kmeans(np.zeros((2, 3, 1)), 2, weights=np.zeros((2, 3))), "none in problem 0"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises((ValueError, EmptyClusterError), match=message):
        call()
