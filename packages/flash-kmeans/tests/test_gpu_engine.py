"""The device loop and the chunked engine, with the kernels in Triton's interpreter where there is no GPU."""

import os

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from neurips26.flash_kmeans import Choices, batched_kmeans, gpu_assign, kmeans
from neurips26.flash_kmeans.gpu_engine import (
    GpuEngine,
    batched_on_gpu,
    device_loop,
    device_plus_plus,
    kmeans_resident,
    prepare,
)
from neurips26.flash_kmeans.loop import lloyd
from neurips26.flash_kmeans.rows import UnitRows, rows_of
from neurips26.flash_kmeans.stream import ChunkStream

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = pytest.mark.skipif(
    DEVICE.type == "cpu" and not gpu_assign.INTERPRETED, reason="the kernels were imported without the interpreter"
)


@pytest.fixture(scope="module")
def x():
    rng = np.random.default_rng(0)
    # 260 rows: the interpreter takes a second for a few hundred.
    return (rng.standard_normal((6, 10))[rng.integers(0, 6, 260)] * 3 + rng.standard_normal((260, 10))).astype(
        np.float32
    )


def engine(x, k, metric="euclidean", **options):
    rows = rows_of(x)
    settings = dict(
        precision="certified", deterministic=True, weights=None, unit=metric == "cosine", center=True, chunk_rows=100,
        memory_limit=None, check_finite=True, choices=Choices(),
    )  # fmt: skip
    return GpuEngine(UnitRows(rows) if metric == "cosine" else rows, k, DEVICE, **{**settings, **options})


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_the_chunked_engine_follows_the_cpu(x, metric):
    e = engine(x, 5, metric)
    final, inertia, state = lloyd(e, x[:5].astype(np.float64), max_iter=2, tol=0)
    cpu = kmeans(x, 5, init=x[:5], max_iter=2, tol=0, metric=metric)
    assert (e.labels == cpu.labels).all() and state.n_iter == cpu.n_iter
    np.testing.assert_allclose(final, cpu.centroids, rtol=1e-4, atol=1e-5)
    assert inertia == pytest.approx(cpu.inertia, rel=1e-4)
    np.testing.assert_allclose(state.history, cpu.history, rtol=1e-3)


def test_chunks_do_not_change_labels(x):
    init = np.concatenate([x[:4], np.full((1, 10), 100.0, np.float32)]).astype(np.float64)  # one relocation
    labels = []
    for chunk in (87, 260):
        e = engine(x, 5, chunk_rows=chunk, weights=np.ones(260))
        lloyd(e, init, max_iter=2, tol=0)
        labels.append(e.labels)
    assert (labels[0] == labels[1]).all() and len(set(labels[0])) == 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_device_loop_follows_the_cpu(x, dtype):
    batch = torch.from_numpy(np.stack([x[:130], x[130:]])).to(dtype).to(DEVICE)
    points, centre, variance = prepare(batch, "euclidean")
    start = batch[:, :4].float() - centre[:, None]
    options = dict(
        metric="euclidean", precision="certified", empty="relocate", deterministic=True, choices=Choices(check_every=2)
    )
    found = device_loop(points, start, max_iter=5, tol=0.0, variance=variance, **options)
    for p in range(2):
        one = batch[p].float().cpu().numpy()
        cpu = kmeans(one, 4, init=one[:4], max_iter=5, tol=0)
        assert (found["labels"][p].cpu().numpy() == cpu.labels).all()
        centroids = (found["centroids"][p] + centre[p]).cpu().numpy()
        np.testing.assert_allclose(centroids, cpu.centroids, rtol=1e-3, atol=1e-4)
        assert float(found["inertia"][p]) == pytest.approx(cpu.inertia, rel=1e-3)


def test_a_finished_problem_does_not_move(x):
    easy = torch.tensor([[0.0], [1.0], [10.0], [11.0]] * 20)
    hard = torch.from_numpy(x[:80, :1].copy())
    batch = torch.stack([easy, hard]).to(DEVICE)
    points, centre, variance = prepare(batch, "euclidean")
    start = torch.tensor([[[0.0], [10.0]], [[-0.1], [0.0]]], device=DEVICE) - centre[:, None]
    options = dict(
        metric="euclidean", precision="ieee", empty="relocate", deterministic=True, choices=Choices(check_every=3)
    )
    found = device_loop(points, start, max_iter=9, tol=0.0, variance=variance, **options)
    assert int(found["n_iter"][0]) == 2 and bool(found["converged"][0])
    np.testing.assert_allclose((found["centroids"][0] + centre[0]).cpu().numpy(), [[0.5], [10.5]], rtol=1e-6)


def test_empty_clusters_and_lengths(x):
    batch = torch.from_numpy(x[None, :120].copy()).to(DEVICE)
    points, centre, variance = prepare(batch, "euclidean")
    start = torch.cat([batch[:, :3], torch.full((1, 2, 10), 50.0, device=DEVICE)], 1) - centre[:, None]
    options = dict(
        metric="euclidean", precision="ieee", empty="relocate", deterministic=True, choices=Choices(check_every=1)
    )
    found = device_loop(points, start, max_iter=4, tol=0.0, variance=variance, **options)
    assert len(torch.unique(found["labels"])) == 5
    short = device_loop(
        points, start, max_iter=3, tol=0.0, variance=variance, lengths=torch.tensor([60], device=DEVICE), **options
    )
    assert (short["labels"][0, 60:] == -1).all() and (short["labels"][0, :60] >= 0).all()


def test_the_resident_front_follows_the_cpu(x):
    options = dict(init=x[:5], max_iter=3, tol=0.0, metric="euclidean", empty="relocate")
    rest = dict(
        n_init=1, precision="ieee", deterministic=True, center=True, on_zero="assign", check_finite=True, seed=0,
        choices=Choices(),
    )  # fmt: skip
    got = kmeans_resident(x[::-1], 5, DEVICE, weights=np.arange(260) % 3, **options, **rest)
    cpu = kmeans(x[::-1], 5, weights=np.arange(260) % 3, **options)
    assert (got.labels == cpu.labels).all() and got.path == "triton" and got.n_iter == 3
    np.testing.assert_allclose(got.centroids, cpu.centroids, rtol=1e-4, atol=1e-5)
    assert got.inertia == pytest.approx(cpu.inertia, rel=1e-4)


def batched(x, k, **options):
    settings = dict(
        lengths=None, weights=None, init=x[:, :k], max_iter=3, tol=0.0, metric="euclidean", precision="ieee", empty="relocate",
        deterministic=True, check_finite=True, where=DEVICE, seed=0, choices=Choices(),
    )  # fmt: skip
    return batched_on_gpu(x, k, **{**settings, **options})


def test_the_batched_front_does_not_look_beyond_the_lengths(x):
    padded = np.full((2, 130, 10), np.nan, np.float32)
    padded[0, :90], padded[1] = x[:90], x[130:]
    got, cpu = (f(padded, 4, lengths=[90, 130], init=padded[:, :4]) for f in (batched, limited_batch))
    assert (got.labels == cpu.labels).all() and (got.labels[0, 90:] == -1).all()
    np.testing.assert_allclose(got.centroids, cpu.centroids, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got.inertia, cpu.inertia, rtol=1e-4)


def limited_batch(x, k, **options):
    return batched_kmeans(x, k, max_iter=3, tol=0.0, **options)


def test_the_stream_reads_ahead_and_in_order(tmp_path, x):
    np.save(tmp_path / "x.npy", x)
    stream = ChunkStream(rows_of(tmp_path / "x.npy"), 90, DEVICE)
    for _ in range(2):
        seen = [(start, chunk.cpu().clone()) for start, chunk in stream]
        assert [start for start, _ in seen] == [0, 90, 180]
        assert (torch.cat([chunk for _, chunk in seen]).numpy() == x).all()
    for _, chunk in stream:  # an abandoned pass leaves nothing behind
        chunk.zero_()
        break
    assert (next(iter(stream))[1].cpu().numpy() == x[:90]).all()


def test_plus_plus_chooses_different_points(x):
    generator = torch.Generator(device=DEVICE)
    generator.manual_seed(0)
    chosen = device_plus_plus(torch.from_numpy(x).to(DEVICE), 30, generator)
    assert len(torch.unique(chosen, dim=0)) == 30


@pytest.mark.bad_input
def test_bad_input(x):
    with pytest.raises(TypeError, match="got float64"):
        engine(x.astype(np.float64), 3)
    with pytest.raises(ValueError, match="memory_limit: expected at least"):
        engine(x, 3, memory_limit=10)
    bad = torch.from_numpy(x[None].copy())
    bad[0, 7, 0] = float("nan")
    with pytest.raises(ValueError, match="NaN or infinity in row 7 of problem 0"):
        prepare(bad, "euclidean")
    with pytest.raises(ValueError, match="x: problem 0: row 0: expected squared distances to the mean"):
        prepare(torch.from_numpy(x[None] * np.float32(1e20)), "euclidean")
    with pytest.raises(ValueError, match="x: problem 0: expected squared distances to the mean"):
        prepare(torch.from_numpy(x[None] * np.float32(1e-25)), "euclidean")
    with pytest.raises(ValueError, match="lengths: expected at most N=260, got 261 for problem 0"):
        batched(x[None], 3, lengths=[261])
    with pytest.raises(ValueError, match=r"weights: expected finite, non-negative numbers of shape \(B=1, N=260\)"):
        batched(x[None], 3, weights=-np.ones((1, 260)))
