"""Checkpoints: killed and resumed is bitwise the same as never stopped."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from neurips26.flash_kmeans import kmeans, loop


@pytest.fixture
def x():
    return np.random.default_rng(0).standard_normal((4000, 6)).astype(np.float32)


@pytest.mark.parametrize("stop_after", [1, 4, 9])
def test_resume_is_exact(tmp_path, x, monkeypatch, stop_after):
    whole = kmeans(x, 20, seed=1, max_iter=12, tol=0)
    calls = 0
    means = loop._means

    def killed(*arguments):
        nonlocal calls
        calls += 1
        if calls > stop_after:
            raise KeyboardInterrupt
        return means(*arguments)

    monkeypatch.setattr(loop, "_means", killed)
    with pytest.raises(KeyboardInterrupt):
        kmeans(x, 20, seed=1, max_iter=12, tol=0, checkpoint=tmp_path / "c", checkpoint_every=2)
    monkeypatch.setattr(loop, "_means", means)
    resumed = kmeans(x, 20, seed=1, max_iter=12, tol=0, checkpoint=tmp_path / "c", resume=True)
    assert (resumed.centroids == whole.centroids).all() and (resumed.labels == whole.labels).all()
    assert (resumed.inertia, resumed.history, resumed.n_iter) == (whole.inertia, whole.history, whole.n_iter)


def test_a_finished_run_resumes_to_itself(tmp_path, x):
    first = kmeans(x, 5, seed=0, max_iter=100, checkpoint=tmp_path / "c")
    again = kmeans(x, 5, seed=9, max_iter=100, checkpoint=tmp_path / "c", resume=True)
    assert first.converged and (first.labels == again.labels).all() and first.n_iter == again.n_iter


@pytest.mark.slow
def test_killed_from_outside_under_a_memory_limit(tmp_path):
    """The 4 GB run of the README in small: SIGKILL after two of five iterations, then the rest; bitwise equal."""
    script = Path(__file__).parents[1] / "benchmarks" / "out_of_core.py"
    command = [sys.executable, str(script), "--gb", "0.2", "--limit", "25", "--folder", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "killed (SIGKILL)" in done.stdout and "bitwise equal: centroids, labels, history, inertia" in done.stdout


@pytest.mark.bad_input
def test_refused(tmp_path, x):
    kmeans(x, 5, seed=0, max_iter=2, checkpoint=tmp_path / "c")
    with pytest.raises(ValueError, match="belongs to other data or settings"):
        kmeans(x + 1, 5, seed=0, checkpoint=tmp_path / "c", resume=True)
    with pytest.raises(ValueError, match="belongs to other data or settings"):
        kmeans(x, 6, seed=0, checkpoint=tmp_path / "c", resume=True)
    one_row, swapped = x.copy(), x.copy()
    one_row[777, 3] += 1
    swapped[[10, 3000]] = x[[3000, 10]]
    for other_rows in (one_row, swapped):
        with pytest.raises(ValueError, match="belongs to other data or settings"):
            kmeans(other_rows, 5, seed=0, checkpoint=tmp_path / "c", resume=True)
    for other in (dict(weights=np.arange(4000)), dict(center=False), dict(metric="cosine")):
        with pytest.raises(ValueError, match="belongs to other data or settings"):
            kmeans(x, 5, seed=0, checkpoint=tmp_path / "c", resume=True, **other)
    (tmp_path / "bad").write_bytes((tmp_path / "c").read_bytes()[:100])
    with pytest.raises(ValueError, match="is not a readable checkpoint"):
        kmeans(x, 5, checkpoint=tmp_path / "bad", resume=True)
    with pytest.raises(ValueError, match="existing folder"):
        kmeans(x, 5, checkpoint=tmp_path / "no" / "c")
    with pytest.raises(ValueError, match="n_init: expected 1 with a checkpoint"):
        kmeans(x, 5, checkpoint=tmp_path / "c", n_init=2)
