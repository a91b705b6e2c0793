"""Lloyd's loop: known answers, invariances, empty clusters, precision, repeatability, and what it refuses."""

import warnings

import numpy as np
import pytest
import torch

from neurips26.flash_kmeans import Choices, ConvergenceWarning, EmptyClusterError, assign, inertia, kmeans


def blobs(n=3000, d=5, k=7, seed=0, spread=1.0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((k, d)) * 6
    return (centres[rng.integers(0, k, n)] + spread * rng.standard_normal((n, d))).astype(dtype)


def test_known_answer():
    result = kmeans([[0.0], [1.0], [10.0], [11.0]], 2, init=[[0.0], [10.0]])
    assert result.centroids.tolist() == [[0.5], [10.5]]
    assert result.labels.tolist() == [0, 0, 1, 1]
    assert (result.inertia, result.n_iter, result.converged) == (1.0, 2, True)
    assert result.history == [2.0, 1.0]


def test_one_cluster_is_the_mean():
    x = blobs()
    result = kmeans(x, 1, seed=0)
    np.testing.assert_allclose(result.centroids[0], x.mean(0, dtype=np.float64), rtol=1e-6)
    assert result.inertia == pytest.approx(len(x) * x.var(axis=0, dtype=np.float64).sum(), rel=1e-6)


def test_as_many_clusters_as_points():
    x = blobs(n=200)
    for init in ("k-means++", "random", "k-means||"):
        result = kmeans(x, 200, init=init, seed=1)
        assert result.inertia == 0.0 and sorted(result.labels) == list(range(200)), init


def test_an_empty_cluster_gets_the_farthest_point():
    result = kmeans([[1.0], [2.0], [3.0]], 3, init=[[4.0], [0.0], [1.0]], max_iter=10, tol=0)
    assert result.inertia == 0.0 and sorted(result.labels) == [0, 1, 2]
    assert (assign([[1.0], [2.0], [3.0]], result.centroids) == result.labels).all()


def test_policies_for_empty_clusters():
    x, init = [[0.0], [1.0]], [[0.0], [1.0], [50.0]]
    x3 = x + [[1.0]]
    kept = kmeans(x3, 3, init=init, empty="keep")
    assert kept.centroids[2, 0] == 50.0 and set(kept.labels) == {0, 1}
    dropped = kmeans(x3, 3, init=[[50.0], [0.0], [1.0]], empty="drop")
    assert dropped.centroids.tolist() == [[0.0], [1.0]] and dropped.labels.tolist() == [0, 1, 1]
    with pytest.raises(EmptyClusterError, match="cluster 2"):
        kmeans(x3, 3, init=init, empty="raise")


@pytest.mark.parametrize("init", ["k-means++", "k-means||", "random"])
def test_fewer_different_points_than_clusters(init):
    x = np.repeat(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], np.float32), 1000, axis=0)
    with pytest.warns(ConvergenceWarning, match="fewer different points"):
        result = kmeans(x, 5, init=init, seed=0)
    assert np.isfinite(result.centroids).all() and result.inertia == 0.0
    assert (assign(x, result.centroids) == result.labels).all()


@pytest.mark.parametrize("max_iter", [1, 2, 50])
def test_labels_belong_to_the_returned_centroids(max_iter):
    x = blobs(spread=4.0)
    result = kmeans(x, 30, seed=3, max_iter=max_iter)
    assert (assign(x, result.centroids) == result.labels).all()
    assert result.inertia == pytest.approx(inertia(x, result.centroids), rel=1e-12)
    assert (np.diff(result.history) <= 1e-6 * result.history[0]).all()


def test_weights():
    x = np.random.default_rng(0).integers(-20, 20, (300, 4)).astype(np.float64)
    weight = np.random.default_rng(1).integers(1, 4, 300)
    init = x[:6]
    a = kmeans(x, 6, weights=weight, init=init, tol=0)
    b = kmeans(np.repeat(x, weight, axis=0), 6, init=init, tol=0)
    np.testing.assert_allclose(a.centroids, b.centroids, rtol=1e-13)
    assert a.inertia == pytest.approx(b.inertia, rel=1e-12)
    some = np.where(np.arange(300) < 40, 0, 1)
    c, d = kmeans(x, 6, weights=some, init=init, tol=0), kmeans(x[40:], 6, init=init, tol=0)
    np.testing.assert_allclose(c.centroids, d.centroids, rtol=1e-12)
    assert (c.labels[40:] == d.labels).all() and (c.labels >= 0).all()


def test_an_offset_does_not_move_the_labels():
    x = blobs(spread=2.0)
    far = x + np.float32(1e5)
    x = far - np.float32(1e5)  # what float32 kept of it
    a, b = (kmeans(v, 7, init=v[:7], max_iter=20) for v in (x, far))
    assert (a.labels == b.labels).mean() > 0.999
    assert b.inertia == pytest.approx(a.inertia, rel=1e-3)


def test_invariances():
    x = blobs(dtype=np.float64, spread=2.0)
    rng = np.random.default_rng(5)
    rotation = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    base = kmeans(x, 7, init=x[:7], tol=0)
    for moved in (x + 3.5, x @ rotation, 0.25 * x):
        assert (kmeans(moved, 7, init=moved[:7], tol=0).labels == base.labels).all()
    order = rng.permutation(len(x))
    shuffled = kmeans(x[order], 7, init=x[:7], tol=0)
    assert (shuffled.labels == base.labels[order]).all()
    np.testing.assert_allclose(shuffled.centroids, base.centroids, rtol=1e-6)


def test_threads_chunks_and_runs_are_bitwise_equal():
    x = blobs(n=30_000, d=19, k=40, spread=5.0)
    base = kmeans(x, 40, seed=7, max_iter=8, threads=1)
    for options in (
        dict(threads=1),
        dict(threads=2),
        dict(threads=5),
        dict(chunk_rows=777),
        dict(chunk_rows=10_000, threads=3),
    ):
        other = kmeans(x, 40, seed=7, max_iter=8, **options)
        assert (other.centroids == base.centroids).all() and (other.labels == base.labels).all(), options
        assert (other.inertia, other.history) == (base.inertia, base.history), options


def test_cosine():
    rng = np.random.default_rng(0)
    directions = np.linalg.qr(rng.standard_normal((6, 6)))[0][:3]
    labels = rng.integers(0, 3, 900)
    x = (directions[labels] + 0.05 * rng.standard_normal((900, 6))) * rng.lognormal(0, 2, (900, 1))
    result = kmeans(x, 3, metric="cosine", seed=0)
    np.testing.assert_allclose(np.linalg.norm(result.centroids, axis=1), 1, rtol=1e-12)
    assert len(set(zip(labels, result.labels))) == 3
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    assert result.inertia == pytest.approx((1 - (unit @ result.centroids.T).max(1)).sum(), rel=1e-9)
    assert (assign(x, result.centroids, metric="cosine") == result.labels).all()


def test_a_zero_row_has_no_direction():
    x = np.concatenate([np.zeros((5, 2)), np.tile([1.0, 0.0], (10, 1)), np.tile([0.0, 3.0], (10, 1))])
    result = kmeans(x, 2, metric="cosine", init=[[1.0, 0.1], [0.1, 1.0]])
    assert result.labels[:5].tolist() == [0] * 5
    np.testing.assert_allclose(result.centroids, [[1, 0], [0, 1]], atol=1e-12)
    with pytest.raises(ValueError, match="a row of zeros"):
        kmeans(x, 2, metric="cosine", on_zero="raise")


def test_negative_tolerance_never_stops():
    assert kmeans([[0.0], [1.0], [10.0], [11.0]], 2, init=[[0.0], [10.0]], tol=-1, max_iter=9).n_iter == 9


def test_stop_rules():
    x = blobs(spread=5.0)
    total = kmeans(x, 20, init=x[:20], tol=1e-2, max_iter=200)
    largest = kmeans(x, 20, init=x[:20], tol=1e-2, max_iter=200, choices=Choices(stop="max"))
    assert largest.n_iter < total.n_iter < 200


def test_torch_in_torch_out():
    x = torch.from_numpy(blobs())
    a, b = kmeans(x, 4, seed=0), kmeans(x.numpy(), 4, seed=0)
    assert isinstance(a.centroids, torch.Tensor) and (a.centroids.numpy() == b.centroids).all() and a.path == "cpu-tiny"
    half = kmeans(x.to(torch.bfloat16), 4, init=x[:4])
    assert half.centroids.dtype == torch.float32


def test_same_as_scikit_learn(digits):
    from sklearn.cluster import KMeans

    init = digits[:10].astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = KMeans(10, init=init, n_init=1, max_iter=10, tol=0, algorithm="lloyd").fit(digits.astype(np.float64))
    result = kmeans(digits.astype(np.float64), 10, init=init, max_iter=10, tol=0)
    np.testing.assert_allclose(result.centroids, peer.cluster_centers_, rtol=1e-9, atol=1e-9)
    assert (result.labels == peer.labels_).all() and result.inertia == pytest.approx(peer.inertia_, rel=1e-10)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(k=0), "k: expected an integer >= 1, got 0"),
        (dict(k=6), "k: expected at most the number of points N=5, got K=6"),
        (dict(k=2, max_iter=0), "max_iter: expected an integer >= 1"),
        (dict(k=2, init="kmeans++"), "init: expected one of 'k-means"),
        (dict(k=2, init=[[0.0]]), r"init: expected shape \(K=2, D=1\)"),
        (dict(k=2, init=[[0.0], [np.nan]]), "init: expected finite numbers, got NaN or infinity in row 1"),
        (dict(k=2, weights=[1, 1]), r"weights: expected shape \(N=5,\), got \(2,\)"),
        (dict(k=2, weights=[1, 1, -1, 1, 1]), "weights: expected non-negative numbers, got -1.0 at 2"),
        (dict(k=2, weights=[0] * 5), "weights: expected at least one positive"),
        (
            dict(k=2, weights=[1e39, 1, 1, 1, 1]),
            "weights: expected 0 or a number between 1.2e-38 and .*, got 1e\\+39 at 0",
        ),
        (dict(k=2, weights=[1e-46] * 5), "weights: expected 0 or a number between 1.2e-38 and"),
        (dict(k=2, init=[[0.0], [1e200]]), "init: row 1: expected squared distances"),
        (dict(k=2, weights=[1, 1, np.nan, 1, 1]), "weights: expected finite numbers, got nan at 2"),
        (dict(k=2, empty="ignore"), "empty: expected one of 'relocate'"),
        (dict(k=2, device="cuda:7"), r"device: expected one of \d GPUs of this machine, got 'cuda:7'"),
        (dict(k=2, device="gpu"), "device: expected 'cpu' or 'cuda"),
        (dict(k=2, memory_limit=10), r"memory_limit: expected at least \d+ bytes for K=2, D=1, got 10"),
        (dict(k=2, resume=True), "resume: expected checkpoint=path as well"),
        (dict(k=2, tol=float("nan")), "tol: expected a finite number"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        kmeans([[0.0], [1.0], [2.0], [3.0], [4.0]], **options)
