"""Rows over processes: the result of one process, the same on all ranks, with uneven shards and an empty one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

from neurips26.flash_kmeans import kmeans
from neurips26.shared.launch import launch

X = np.random.default_rng(0).standard_normal((3000, 7)).astype(np.float32) + 20
W = np.random.default_rng(1).integers(0, 3, 3000).astype(np.float64)
W[:1900] = 0  # the first rank has no weight at all
FAR = np.concatenate([X[:10], np.full((2, 7), 500.0)])  # two clusters start empty and are given far points
JOBS = [
    (12, dict(init="random", seed=3, max_iter=6)),
    (12, dict(init=FAR, max_iter=5)),
    (6, dict(seed=1, max_iter=4, metric="cosine")),
    (5, dict(seed=2, max_iter=4)),
    (5, dict(seed=2, max_iter=4, memory_limit=40_000, center=False)),
    (7, dict(init="random", seed=4, max_iter=4, weights=W, chunk_rows=333)),
    (7, dict(seed=5, max_iter=4, weights=W)),
]


@pytest.fixture
def alone():
    """A process group of this process alone: the same calls as with many, without the seconds that a process takes to start."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_a_group_of_one_is_no_group(alone, tmp_path):
    for k, options in JOBS:
        one, got = kmeans(X, k, **options), kmeans(X, k, process_group=alone, **options)
        np.testing.assert_allclose(got.centroids, one.centroids, rtol=1e-5)
        assert (got.labels == one.labels).all() and got.n_iter == one.n_iter
        assert got.inertia == pytest.approx(one.inertia, rel=1e-5)
    state = dict(seed=6, tol=-1.0, process_group=alone)
    whole = kmeans(X, 9, max_iter=5, **state)
    kmeans(X, 9, max_iter=2, checkpoint=tmp_path / "state", **state)
    resumed = kmeans(X, 9, max_iter=5, checkpoint=tmp_path / "state", resume=True, **state)
    assert (resumed.centroids == whole.centroids).all() and (resumed.labels == whole.labels).all()


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(1900, 1100), (1900, 0, 1100)], ids=["two ranks", "three, one empty"])
def test_same_as_one_process(tmp_path, sizes):
    cuts = np.cumsum(sizes)[:-1]
    shards = np.split(X, cuts)
    part = [{**o, "weights": np.split(o["weights"], cuts)} if "weights" in o else o for _, o in JOBS]
    state = dict(seed=6, tol=-1.0, checkpoint=tmp_path / "state")
    saved = [
        (9, dict(seed=6, tol=-1.0, max_iter=5)),
        (9, dict(**state, max_iter=2)),
        (9, dict(**state, max_iter=5, resume=True)),
    ]
    refused = [(4, dict(init=np.mean)), (4000, {}), (4, dict(weights=np.split(np.zeros(3000), cuts)))]
    jobs = [*zip([k for k, _ in JOBS], part), *saved, *refused]
    ranks = launch("neurips26.flash_kmeans.distributed:fit_shards", len(shards), (shards, jobs), timeout=300)
    for job, (k, options) in enumerate(JOBS):
        one = kmeans(X, k, **options)
        for rank in ranks:
            got = rank[job]
            assert (got["centroids"] == ranks[0][job]["centroids"]).all() and got["inertia"] == ranks[0][job]["inertia"]
            np.testing.assert_allclose(got["centroids"], one.centroids, rtol=1e-5)
            assert got["n_iter"] == one.n_iter and got["inertia"] == pytest.approx(one.inertia, rel=1e-5)
        assert (np.concatenate([rank[job]["labels"] for rank in ranks]) == one.labels).all()
    for rank in ranks:
        whole, _, resumed = rank[len(JOBS) : -3]
        assert all(np.array_equal(whole[name], resumed[name]) for name in whole)
        assert rank[-3]["error"].startswith("init: expected a name or an array with a process group")
        assert rank[-2]["error"] == "k: expected at most the number of points N=3000, got K=4000"
        assert rank[-1]["error"] == "weights: expected at least one positive number on some rank, got all zeros"


@pytest.mark.slow
def test_ranks_that_were_killed_at_different_moments_agree_on_an_iteration(tmp_path):
    shards, common = np.split(X, [1900]), dict(seed=6, tol=-1.0)
    target = "neurips26.flash_kmeans.distributed:fit_shards"
    first = [(9, dict(**common, max_iter=6))]
    first += [(9, dict(**common, max_iter=i, checkpoint=tmp_path / f"{i}")) for i in (3, 4)]
    whole = launch(target, 2, (shards, first), timeout=300)[0][0]
    names = {  # case: what rank 0 and rank 1 hold, as iterations of (file, file.next)
        "renamed by one": ((4, None), (3, 4)), "written by one": ((3, 4), (3, None)), "written by both": ((3, 4), (3, 4)),
        "lost by one": ((4, None), (None, None)),
    }  # fmt: skip
    for name, held in names.items():
        for rank, files in zip(("", ".rank1"), held):
            for iteration, suffix in zip(files, ("", ".next")):
                if iteration is not None:
                    shutil.copy(tmp_path / f"{iteration}{rank}", tmp_path / f"{name}{rank}{suffix}")
    jobs = [(9, dict(**common, max_iter=6, checkpoint=tmp_path / name, resume=True)) for name in names]
    for rank in launch(target, 2, (shards, jobs), timeout=300):
        for got in rank[:-1]:
            assert np.array_equal(got["centroids"], whole["centroids"]) and got["inertia"] == whole["inertia"]
        assert "expected one iteration that all ranks hold, got [[4], []]" in rank[-1]["error"]


@pytest.mark.slow
def test_the_example_of_the_readme_gives_the_single_process_result(tmp_path):
    text = (Path(__file__).parents[1] / "README.md").read_text()
    script = tmp_path / "shard.py"
    script.write_text("#" + text.split("```\n# shard.py", 1)[1].split("```", 1)[0])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    spread, single = map(float, done.stdout.split())
    assert spread == pytest.approx(single, rel=1e-12)
