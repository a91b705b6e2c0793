"""The PyTorch operators: `opcheck`, and whole-graph compilation of functions that call the public API."""

import numpy as np
import pytest
import torch

from neurips26.flash_kmeans import assign, ops, update_centroids
from neurips26.flash_kmeans.ops import assign_op, update_op


@pytest.fixture
def problem():
    g = torch.Generator().manual_seed(0)
    return torch.randn(200, 6, generator=g), torch.randn(9, 6, generator=g)


QUICK = ("test_schema", "test_autograd_registration", "test_faketensor")


@pytest.mark.parametrize(
    "checks",
    [
        pytest.param(QUICK, id="quick"),
        pytest.param((*QUICK, "test_aot_dispatch_dynamic"), id="all", marks=pytest.mark.slow),
    ],
)
def test_opcheck(problem, checks):
    x, c = problem
    torch.library.opcheck(assign_op, (x, c, "cosine", "certified"), test_utils=checks)
    labels = assign(x, c)
    torch.library.opcheck(update_op, (x, labels, 9, torch.rand(200), True), test_utils=checks)


def test_the_operator_is_the_function(problem):
    x, c = problem
    labels, distance = assign_op(x, c, "euclidean", "certified")
    expected = assign(x, c, return_distance=True)
    assert torch.equal(labels, expected[0]) and torch.equal(distance, expected[1])
    means, mass = update_op(x, labels, 9, None, True)
    assert torch.equal(means, update_centroids(x, labels, 9)) and mass.sum() == 200


def test_whole_graph_compilation(problem):
    x, c = problem

    def step(x, c):
        labels = assign(x * 2, c)
        return labels, update_centroids(x * 2, labels, 9, old=c)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for got, expected in zip(compiled(x, c), step(x, c)):
        np.testing.assert_array_equal(got.numpy(), expected.numpy())


@pytest.mark.bad_input
def test_shapes_are_checked_while_tracing(problem):
    x, c = problem
    with pytest.raises(Exception, match="D=6"):
        torch.compile(assign, fullgraph=True, backend="aot_eager")(x, c[:, :3])


@pytest.mark.bad_input
def test_out_is_checked_as_in_eager_mode(problem):
    x, c = problem
    for wrong in (torch.empty(200, dtype=torch.int64), torch.empty(199, dtype=torch.int32), np.empty(200, np.int32)):
        with pytest.raises(ValueError, match=r"out: expected a contiguous int32 tensor of shape \(N=200,\)"):
            ops.assign(x, c, "euclidean", "certified", False, wrong, True)
    out = torch.empty(200, dtype=torch.int32)
    assert ops.assign(x, c, "euclidean", "certified", False, out, True) is out and torch.equal(out, assign(x, c))


@pytest.mark.bad_input
def test_values_are_checked_where_they_can_be_read(problem):
    """What tensors on a GPU go through; here with tensors on the CPU."""
    x, c = problem
    for value in (float("nan"), float("inf")):
        bad = x.clone()
        bad[7, 2] = value
        with pytest.raises(ValueError, match="x: expected finite numbers, got NaN or infinity in row 7"):
            ops.assign(bad, c, "euclidean", "certified", False, None, True)
        with pytest.raises(ValueError, match="c: expected finite numbers, got NaN or infinity in row 7"):
            ops.assign(x, bad, "euclidean", "certified", False, None, True)
    huge = torch.full((3, 2), 3e38)  # finite, though its sum is not
    assert ops.assign(huge, huge[:1] * 0, "cosine", "ieee", False, None, True).tolist() == [0, 0, 0]
    cases = {
        r"labels: expected \(N=200,\) integers, got torch.float32 \(200,\)": (torch.zeros(200), None, None),
        r"labels: expected \(N=200,\) integers, got torch.int64 \(3,\)": ([0, 1, 2], None, None),
        r"weights: expected shape \(N=200,\), got \(2,\)": (np.zeros(200, int), [1.0, 2.0], None),
        r"old: expected shape \(K=9, D=6\), got \(9, 3\)": (np.zeros(200, int), None, c[:, :3]),
    }
    for message, (labels, weights, old) in cases.items():
        with pytest.raises(ValueError, match=message):
            ops.update_centroids(x, labels, 9, weights, old, True, False)
