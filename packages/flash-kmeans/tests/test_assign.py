"""The assignment: right labels for every shape, type and layout."""

import numpy as np
import pytest
import torch

from neurips26.flash_kmeans import assign, inertia


def brute(x, c):
    """Labels by brute force in float64, and the rows whose two nearest centroids float32 cannot tell apart."""
    x, c = np.asarray(x, dtype=np.float64), np.asarray(c, dtype=np.float64)
    squared = np.square(x[:, None] - c[None]).sum(-1)
    labels = squared.argmin(1)
    if len(c) == 1:
        return labels, np.zeros(len(x), bool)
    two = np.partition(squared, 1, axis=1)
    return labels, two[:, 1] - two[:, 0] <= 1e-6 * (np.square(x).sum(1) + np.square(c).sum(1).max())


def test_a_tie_goes_to_the_lowest_index():
    assert assign([[0.0]], [[-1.0], [1.0]]).tolist() == [0]
    assert assign(np.zeros((3, 5)), np.ones((40, 5))).tolist() == [0, 0, 0]
    assert assign([[1.0, 1.0]], [[5.0, 5.0], [1.0, 1.0], [1.0, 1.0]]).tolist() == [1]


def test_distances_are_exact():
    labels, distance = assign([[3.0, 4.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 10.0]], return_distance=True)
    assert labels.tolist() == [0, 0] and distance.tolist() == [25.0, 1.0]


@pytest.mark.parametrize("d", [1, 2, 3, 15, 16, 17, 100, 192, 320, 513, 768, 1536])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_equal_to_brute_force(d, dtype):
    rng = np.random.default_rng(d)
    for n, k in [(1, 1), (63, 2), (64, 63), (65, 64), (300 if d < 100 else 70, 65)]:
        x, c = rng.standard_normal((n, d)).astype(dtype), rng.standard_normal((k, d)).astype(dtype)
        expected, tie = brute(x, c)
        got = assign(x, c)
        assert got.dtype == np.int32
        assert (got == expected)[~tie if dtype != np.float64 else ...].all(), (n, k, d, dtype)


def test_many_centroids():
    x = np.arange(2000, dtype=np.float32)[:, None]
    assert (assign(x[::-1], x)[::-1] == np.arange(2000)).all()
    c = np.linspace(0, 1, 50_000, dtype=np.float64)[:, None]
    assert (assign(c[::5000], c) == np.arange(0, 50_000, 5000)).all()


def test_far_from_the_origin():
    """Two centroids 0.001 apart at 1000: the clamped form x^2 + c^2 - 2xc cannot tell them apart in float32."""
    c = np.array([[1000.0], [1000.001]], np.float32)
    assert assign(np.array([[1000.0009]], np.float32), c).tolist() == [1]


def test_half_precision_beyond_its_square():
    x = np.array([[300.0] * 4, [-300.0] * 4], np.float16)  # ||x||^2 = 360,000 > 65,504
    assert assign(x, np.array([[250.0] * 4, [-290.0] * 4], np.float32)).tolist() == [0, 1]


def test_negative_scores_never_choose_the_padding():
    rng = np.random.default_rng(0)
    x, c = -rng.random((500, 8)).astype(np.float32), rng.random((4, 8)).astype(np.float32)
    expected = ((x / np.linalg.norm(x, axis=1)[:, None]) @ (c / np.linalg.norm(c, axis=1)[:, None]).T).argmax(1)
    labels = assign(x, c, metric="cosine")
    assert set(labels) <= {0, 1, 2, 3} and (labels == expected).mean() > 0.99


def test_layouts_and_families():
    rng = np.random.default_rng(1)
    base = rng.standard_normal((60, 34)).astype(np.float32)
    c = rng.standard_normal((7, 17)).astype(np.float32)
    expected = assign(np.ascontiguousarray(base[:, :17]), c)
    views = {
        "row stride": base[:, :17],
        "fortran": np.asfortranarray(base[:, :17]),
        "negative": np.ascontiguousarray(base[::-1, :17])[::-1],
        "reversed features": np.ascontiguousarray(base[:, 16::-1])[:, ::-1],
        "list": base[:, :17].tolist(),
        "shards": [base[:10, :17], base[10:, :17]],
    }
    for name, view in views.items():
        assert (assign(view, c) == expected).all(), name
    tensor = torch.from_numpy(base[:, :17].copy())
    for name, t in {
        "plain": tensor,
        "transposed": tensor.T.contiguous().T,
        "grad": tensor.clone().requires_grad_(),
    }.items():
        labels = assign(t, torch.from_numpy(c))
        assert isinstance(labels, torch.Tensor) and (labels.numpy() == expected).all(), name
    assert (assign(tensor.bfloat16(), c) == assign(tensor.bfloat16().float(), c)).all()
    assert (assign(tensor.expand(60, 17)[:1].expand(9, 17), c) == int(expected[0])).all()
    assert (assign(base[::2, :17], c) == expected[::2]).all()
    integers = rng.integers(0, 255, (50, 3), dtype=np.uint8)
    assert (assign(integers, integers[:5]) == assign(integers.astype(float), integers[:5].astype(float))).all()


def test_out_receives_the_labels():
    out = np.empty(3, np.int32)
    assert assign([[0.0], [9.0], [10.0]], [[0.0], [10.0]], out=out) is out and out.tolist() == [0, 1, 1]


def test_threads_do_not_change_labels():
    from neurips26.flash_kmeans.cpu_assign import kernel_assign
    from neurips26.flash_kmeans.rows import rows_of

    x = np.random.default_rng(0).standard_normal((20_000, 5)).astype(np.float32)
    labels = [np.empty(20_000, np.int32) for _ in range(3)]
    best = [
        kernel_assign(rows_of(x), x[:40], False, lab, threads=t, piece=1000 * t) for t, lab in zip((1, 2, 5), labels)
    ]
    assert (labels[0] == labels[1]).all() and (labels[0] == labels[2]).all()
    assert (best[0] == best[1]).all() and (best[0] == best[2]).all()


def test_inertia():
    assert inertia([[0.0], [3.0]], [[1.0]]) == 5.0
    assert inertia([[0.0], [3.0]], [[1.0], [3.0]], labels=[0, 0], weights=[1, 2]) == 9.0
    assert inertia([[1.0, 0.0], [0.0, 2.0]], [[1.0, 0.0]], metric="cosine") == pytest.approx(1.0)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: assign(np.zeros(3), np.zeros((1, 3))), ValueError, r"x: expected two axes \(N, D\), got shape \(3,\)"),
        (lambda: assign(np.zeros((0, 3)), np.zeros((1, 3))), ValueError, r"x: expected at least one row"),
        (
            lambda: assign(np.zeros((3, 0)), np.zeros((1, 0))),
            ValueError,
            r"x: expected at least one row and one feature",
        ),
        (lambda: assign(np.zeros((3, 2)), np.zeros((1, 3))), ValueError, r"c: expected shape \(K, D=2\), got \(1, 3\)"),
        (lambda: assign(np.zeros((3, 2)), np.zeros((0, 2))), ValueError, r"c: expected shape"),
        (
            lambda: assign([[1.0], [np.nan], [np.inf]], [[0.0]]),
            ValueError,
            r"x: expected finite numbers, got nan in row 1",
        ),
        (
            lambda: assign([[1.0]], [[0.0], [np.inf]]),
            ValueError,
            r"c: expected finite numbers, got NaN or infinity in row 1",
        ),
        (lambda: assign([["a"]], [[0.0]]), TypeError, r"x: expected an array of real numbers"),
        (lambda: assign([[1j]], [[0.0]]), TypeError, r"x: expected an array of real numbers, got dtype complex"),
        (lambda: assign([[1.0]], [[0.0]], metric="cosin"), ValueError, r"did you mean 'cosine'"),
        (lambda: assign([[1.0]], [[0.0]], precision="exact"), ValueError, r"precision: expected one of 'ieee'"),
        (lambda: assign([[1.0]], [[0.0]], out=np.zeros(1)), ValueError, r"out: expected a contiguous int32 array"),
        (lambda: inertia([[1.0]], [[0.0]], labels=[3]), ValueError, r"labels: expected values in 0\.\.0, got 3\.\.3"),
        (
            lambda: inertia([[1.0]], [[0.0]], labels=[0.5]),
            ValueError,
            r"labels: expected \(N=1,\) integers, got float64",
        ),
        (lambda: inertia([[1.0]], [[0.0]], labels=np.array([2**32])), ValueError, r"labels: expected values in 0\.\.0"),
        (lambda: inertia([[np.nan]], [[0.0]], labels=[0]), ValueError, r"x: expected finite numbers, got nan in row 0"),
        (
            lambda: assign(np.ones((2, 2), np.float32), [[1.0, 1.0], [1e39, 0.0]]),
            ValueError,
            r"c: row 1: expected squared distances",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
