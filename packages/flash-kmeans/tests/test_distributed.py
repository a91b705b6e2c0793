"""Rows over processes: the result of one process, the same on all ranks, with uneven shards and an empty one."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from neurips26.flash_kmeans import kmeans
from neurips26.shared.launch import launch

X = np.random.default_rng(0).standard_normal((3000, 7)).astype(np.float32) + 20
FAR = np.concatenate([X[:10], np.full((2, 7), 500.0)])  # two clusters start empty and are given far points
JOBS = [
    (12, dict(init="random", seed=3, max_iter=6)),
    (12, dict(init=FAR, max_iter=5)),
    (6, dict(seed=1, max_iter=4, metric="cosine")),
    (5, dict(seed=2, max_iter=4)),
]


@pytest.mark.parametrize(
    "sizes",
    [(1900, 1100), pytest.param((1900, 0, 1100), marks=pytest.mark.slow)],
    ids=["two ranks", "three, one empty"],
)
def test_same_as_one_process(sizes):
    shards = np.split(X, np.cumsum(sizes)[:-1])
    refused = [(4, dict(init=np.mean)), (4000, {})]
    ranks = launch("neurips26.flash_kmeans.distributed:fit_shards", len(shards), (shards, JOBS + refused), timeout=300)
    for job, (k, options) in enumerate(JOBS):
        one = kmeans(X, k, **options)
        for rank in ranks:
            got = rank[job]
            assert (got["centroids"] == ranks[0][job]["centroids"]).all() and got["inertia"] == ranks[0][job]["inertia"]
            np.testing.assert_allclose(got["centroids"], one.centroids, rtol=1e-5)
            assert got["n_iter"] == one.n_iter and got["inertia"] == pytest.approx(one.inertia, rel=1e-5)
        assert (np.concatenate([rank[job]["labels"] for rank in ranks]) == one.labels).all()
    for rank in ranks:
        assert rank[-2]["error"].startswith("init: expected a name or an array with a process group")
        assert rank[-1]["error"] == "k: expected at most the number of points N=3000, got K=4000"


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
