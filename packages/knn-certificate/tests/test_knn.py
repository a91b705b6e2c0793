"""The k-NN engine: hand-made points, scikit-learn as the reference, ties, duplicates, large offsets."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

from neurips26.knn_certificate import knn, search, triangle
from neurips26.knn_certificate.knn import KNNDecoder, neighbours, prepare, vote

LINE = np.array([[0.0], [1.0], [2.1], [10.0], [11.0], [12.1]])


@pytest.fixture(params=["torch", "numpy", "faiss"])
def backend(request):
    if request.param == "faiss":
        pytest.importorskip("faiss")
    return request.param


@pytest.fixture
def tiny_blocks(monkeypatch):
    for module, name, value in (
        (knn, "_ROWS", 7),
        (knn, "_EXACT_ENTRIES", 40),
        (search, "_COLUMNS", 50),
        (search, "_GROUP", 3),
        (search, "_COARSE_MARGIN", 2),
    ):
        monkeypatch.setattr(module, name, value)


@parametrize_with_checks([KNNDecoder(k=1, metric="euclidean")])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def test_points_on_a_line(backend):
    assert KNNDecoder(1, "euclidean", backend).fit(LINE, [0, 0, 0, 1, 1, 1]).loo_error() == 0.0
    assert KNNDecoder(1, "euclidean", backend).fit(LINE, [0, 1, 0, 1, 0, 1]).loo_error() == 1.0


def test_twins_find_each_other(backend):
    x = np.array([[1.0, 1.0], [5.0, 5.0], [1.0, 1.0], [9.0, 0.0]])
    assert neighbours(x, None, 1, backend=backend)[[0, 2], 0].tolist() == [2, 0]
    assert KNNDecoder(1, "euclidean", backend).fit(x[[0, 2]], ["a", "a"]).loo_error() == 0.0
    assert KNNDecoder(1, "euclidean", backend).fit(x[[0, 2]], ["a", "b"]).loo_error() == 1.0


def test_all_equal_points_tie_by_index(backend, tiny_blocks):
    ids = neighbours(np.ones((60, 3)), None, 4, backend=backend)
    assert ids[0].tolist() == [1, 2, 3, 4]
    assert ids[2].tolist() == [0, 1, 3, 4]
    assert (ids[10:] == [0, 1, 2, 3]).all()


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("k", [1, 3, 10])
def test_leave_one_out_is_n_fits(metric, k, backend, tiny_blocks):
    rng = np.random.default_rng(k)
    X, y = rng.normal(size=(200, 6)), rng.integers(0, 3, 200)
    decoder = KNNDecoder(k, metric, backend).fit(X, y)
    ids, decided = neighbours(decoder.memory_, None, k, backend=backend), decoder.loo_predict()
    for i in range(200):
        rest = np.delete(np.arange(200), i)
        peer = KNeighborsClassifier(k, algorithm="brute", metric=metric).fit(X[rest], y[rest])
        near = rest[peer.kneighbors(X[i : i + 1], return_distance=False)[0]]
        assert (ids[i] == near).all()
        labels = y[near]
        best = max(np.unique(labels), key=lambda c: ((labels == c).sum(), -int((labels == c).argmax())))
        assert decided[i] == best


def test_votes():
    labels = np.array([[2, 1, 1, 2], [3, 1, 2, 1], [0, 5, 5, 5]])
    decided = vote(labels, [1, 2, 3, 4])
    assert decided[1].tolist() == [2, 3, 0]
    assert decided[2].tolist() == [2, 3, 0]  # one vote each: the nearest
    assert decided[3].tolist() == [1, 3, 5]
    assert decided[4].tolist() == [2, 1, 5]  # two votes each in the first row: 2 was met first


def test_invariances(backend):
    rng = np.random.default_rng(0)
    X, Q = rng.normal(size=(300, 5)), np.linalg.qr(rng.normal(size=(5, 5)))[0]
    base = neighbours(X, None, 7, backend=backend)
    assert (neighbours(X @ Q, None, 7, backend=backend) == base).all()
    assert (neighbours(37.0 * X, None, 7, backend=backend) == base).all()
    order = rng.permutation(300)
    assert (order[neighbours(X[order], None, 7, backend=backend)] == base[order]).all()


def test_a_common_offset_changes_nothing(backend):
    X = np.random.default_rng(1).normal(size=(400, 8))
    assert (neighbours(X + 1e6, None, 5, backend=backend) == neighbours(X, None, 5, backend=backend)).all()


def test_near_ties_below_float32_are_resolved(backend, tiny_blocks):
    """Far more candidates than the margin lie within float32 rounding of each other."""
    rng = np.random.default_rng(2)
    direction = rng.normal(size=(200, 20))
    size = (1 + 1e-10 * rng.permutation(200))[:, None]
    shell = direction / np.linalg.norm(direction, axis=1, keepdims=True) * size
    X = np.vstack([np.zeros((1, 20)), 1000 * shell, 1e4 * rng.normal(size=(5, 20))])
    exact = ((X[0] - X[1:]) ** 2).sum(axis=1)
    assert (neighbours(X, None, 6, backend=backend)[0] == 1 + np.argsort(exact)[:6]).all()


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_units_beyond_float32(backend, scale):
    X = np.random.default_rng(3).normal(size=(300, 6))
    assert (neighbours(scale * X, None, 5, backend=backend) == neighbours(X, None, 5, backend=backend)).all()
    far = X[:20] + 1e3  # queries much farther out than the memory is wide
    exact = np.argsort(((far[:, None] - X) ** 2).sum(axis=2), axis=1, kind="stable")[:, :5]
    assert (neighbours(X, far, 5, backend=backend) == exact).all()


@pytest.mark.parametrize("metric", ["cosine", "euclidean", "standardised", "whitened"])
@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e160, 1e300])
def test_units_whose_squares_are_no_numbers(metric, scale):
    rng = np.random.default_rng(13)
    X, y = rng.normal(size=(200, 5)), rng.integers(0, 3, 200)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        far = KNNDecoder(5, metric).fit(scale * X, y)
        base = KNNDecoder(5, metric).fit(X, y)
        assert (far.loo_predict() == base.loo_predict()).all()
        assert (far.predict(scale * X[:30] * 1.01) == base.predict(X[:30] * 1.01)).all()
    if metric in ("standardised", "whitened"):  # each feature in a unit of its own
        mixed = X * np.array([1.0, 1e-200, 1e-30, 1e50, 1e200])
        assert (KNNDecoder(5, metric).fit(mixed, y).loo_predict() == base.loo_predict()).all()


def test_most_points_are_twins(backend, tiny_blocks):
    """Dead units make many rows equal: every answer is a tie, and ties go by index."""
    X = np.zeros((90, 4))
    X[::3, 0] = 1.0
    X[1::9, 1] = [1, 1.1, 1.3, 1.6, 2, 2.5, 3.1, 3.8, 4.6, 5.5]
    exact = ((X[:, None] - X) ** 2).sum(axis=2)
    np.fill_diagonal(exact, np.inf)
    assert (neighbours(X, None, 12, backend=backend) == np.argsort(exact, axis=1, kind="stable")[:, :12]).all()


def test_program_wide_precision_is_left_alone(tiny_blocks, monkeypatch):
    """The way through torch's product, which devices other than the CPU take."""
    monkeypatch.setattr(search, "_scored_on_cpu", search._scored_on_device)
    torch.set_float32_matmul_precision("medium")
    try:
        X = np.random.default_rng(4).normal(size=(120, 16))
        exact = ((X[:, None] - X) ** 2).sum(axis=2)
        np.fill_diagonal(exact, np.inf)
        assert (neighbours(X, None, 9) == np.argsort(exact, axis=1)[:, :9]).all()
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def brute(X, k):
    """Exact differences in float64, ties by index."""
    exact = np.array([((X - x) ** 2).sum(axis=1) for x in X])
    np.fill_diagonal(exact, np.inf)
    return np.argsort(exact, axis=1, kind="stable")[:, :k]


@pytest.fixture
def small_triangle(monkeypatch):
    """Leave-one-out by halves of the pairs from 160 points on, in tiles of 13."""
    monkeypatch.setattr(triangle, "_SAMPLE", 40)
    monkeypatch.setattr(triangle, "_TILE", 13)


@pytest.mark.parametrize("spread", ["even", "clusters", "twins", "sorted"])
def test_half_the_pairs_are_enough(spread, small_triangle):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(500, 6))
    if spread == "clusters":
        X = 0.01 * X + 10 * rng.normal(size=(5, 6))[rng.integers(0, 5, 500)] + 1e4
    elif spread == "twins":  # 25 of each: more than are asked for, all at distance zero
        X = np.repeat(X[:20], 25, axis=0)[rng.permutation(500)]
    elif spread == "sorted":
        X = X[np.argsort(X[:, 0])]
    assert triangle.worthwhile(500, 12 + 16)
    assert (neighbours(X, None, 12) == brute(X, 12)).all()
    assert (neighbours(X, None, 12) == neighbours(X, None, 12, backend="numpy")).all()


def test_every_pair_is_seen_once_and_read_twice(small_triangle):
    rng = np.random.default_rng(6)
    X = rng.normal(size=(333, 4)).astype(np.float32)
    half = 0.5 * (X**2).sum(axis=1)
    found = list(triangle.nearest_others(X, half, 20))
    assert sorted(np.concatenate([f.at for f in found])) == list(range(333))
    exact = brute(X.astype(float), 20)
    for f in found:
        whole = np.setdiff1d(np.arange(f.at.size), f.short)
        assert (np.sort(f.ids[whole], axis=1) == np.sort(exact[f.at[whole]], axis=1)).all()
        np.testing.assert_allclose(
            f.scores[whole, 0], -0.5 * ((X[f.at] - X[f.ids[:, 0]]) ** 2).sum(axis=1)[whole], atol=1e-5
        )
        assert (f.ids[whole] != f.at[whole][:, None]).all()
    assert sum(f.short.size for f in found) < 10


def test_places_in_a_tile_fit_their_type_at_every_size(monkeypatch):
    """Above 1,048,576 points a sample of a sixteenth of all would not fit in 16 bits."""
    for n in (2_048, 5_000, 1_048_560, 1_048_592, 1_100_000, 10**7, 10**10):
        assert triangle._SAMPLE <= triangle.sample_size(n) <= min(n // 4, 1 << 16)
    tall = np.zeros((1 << 16, 1), np.float32)
    tall[[3, -1]] = 2.0
    for scores, line in ((tall, 0), (tall.T, 1)):
        assert triangle._above(scores, np.ones(1, np.float32))[line].tolist() == [3, (1 << 16) - 1]


@pytest.mark.parametrize("largest", [65, 130])
def test_more_points_than_sixteen_of_the_largest_sample(largest, small_triangle, monkeypatch):
    """The sample stops growing, no tile is larger than it, and the last places of both are used."""
    monkeypatch.setattr(triangle, "_LARGEST_SAMPLE", largest)
    above, shapes = triangle._above, []
    monkeypatch.setattr(triangle, "_above", lambda s, limit: shapes.append(s.shape) or above(s, limit))
    X = np.random.default_rng(11).normal(size=(2_500, 3))
    assert triangle.sample_size(len(X)) == largest < len(X) // 16
    assert (neighbours(X, None, 4) == brute(X, 4)).all()
    assert max(shapes) == (13, largest)


def test_points_with_too_few_candidates_are_searched_again(small_triangle, monkeypatch):
    monkeypatch.setattr(triangle, "_SHORT", 0.9)  # limits so tight that many points end short
    X = np.random.default_rng(7).normal(size=(400, 5))
    assert sum(f.short.size for f in triangle.nearest_others(X.astype(np.float32), 0.5 * (X**2).sum(1), 19)) > 20
    assert (neighbours(X, None, 3) == brute(X, 3)).all()


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("queries", [False, True])
def test_half_precision_products_change_nothing(precision, queries, tiny_blocks):
    rng = np.random.default_rng(8)
    X = rng.normal(size=(300, 8)) * [1e3, 1, 1, 1, 1, 1, 1, 1e-3]
    X[200:] = X[100] + 1e-3 * rng.normal(size=(100, 8))  # closer together than half precision can tell
    asked = rng.normal(size=(90, 8)) if queries else None
    assert (neighbours(X, asked, 7, precision=precision) == neighbours(X, asked, 7, backend="numpy")).all()
    y = np.arange(300) % 3
    exact = KNNDecoder(5, "euclidean").fit(X, y).loo_predict()
    assert (KNNDecoder(5, "euclidean", precision=precision).fit(X, y).loo_predict() == exact).all()


def test_coarse_scores_are_trusted_where_they_are_clear(monkeypatch):
    """On points that lie apart no query needs the float32 search."""
    X = np.random.default_rng(9).normal(size=(600, 4))
    asked = []
    fine = search.searches("torch")

    def counting(small, half, device):
        find = fine(small, half, device)
        return lambda rows, keep, own: asked.append(len(rows)) or find(rows, keep, own)

    monkeypatch.setattr(knn, "searches", lambda backend: counting)
    assert (neighbours(X, None, 3, precision="float16") == brute(X, 3)).all()
    assert sum(asked) < 60


def test_standardised_and_whitened_distances():
    rng = np.random.default_rng(10)
    memory, asked = (rng.normal(size=(n, 4)) @ np.diag([1.0, 50.0, 1e-3, 0.0]) + 7.0 for n in (120, 30))
    asked[:, 3] += rng.normal(size=30)  # a feature that is constant in the memory counts for nothing
    y = np.arange(120) % 4
    spread = memory[:, :3].std(axis=0)
    peer = KNeighborsClassifier(1, algorithm="brute").fit(memory[:, :3] / spread, y)
    ours = KNNDecoder(1, "standardised").fit(memory, y)
    assert (ours.predict(asked) == peer.predict(asked[:, :3] / spread)).all()
    turned = memory[:, :3] @ rng.normal(size=(3, 3))
    inverse = np.linalg.inv(np.cov(turned, rowvar=False, bias=True))
    peer = KNeighborsClassifier(1, algorithm="brute", metric="mahalanobis", metric_params={"VI": inverse})
    assert (
        KNNDecoder(1, "whitened").fit(turned, y).predict(turned + 0.1) == peer.fit(turned, y).predict(turned + 0.1)
    ).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: neighbours(LINE, None, 6), r"^k: expected at most 5 \(the points that may answer\), got 6"),
        (lambda: neighbours(LINE, LINE, 0), "^k: expected an integer >= 1, got 0"),
        (lambda: prepare(np.array([[0.0, np.nan]]), "cosine"), "^features: expected finite numbers, got nan"),
        (lambda: prepare(np.zeros((2, 2)), "cosine"), "^features: expected rows of positive length"),
        (lambda: prepare(LINE, "manhattan"), "^metric: expected one of 'cosine', 'euclidean', .* got 'manhattan'"),
        (lambda: neighbours(LINE, None, 1, precision="float8"), "^precision: expected one of 'float32', 'float16'"),
        (
            lambda: neighbours(LINE, None, 1, backend="numpy", precision="float16"),
            "^precision: expected one of 'float32', got 'float16'",
        ),
    ],
)
def test_one_clear_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()
