"""What a GPU run measures, as far as it can be measured without one."""

import dataclasses
import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from neurips26.flash_kmeans import Choices, gpu_assign, gpu_bench
from neurips26.flash_kmeans.gpu_engine import GpuEngine
from neurips26.flash_kmeans.rows import rows_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and not gpu_assign.INTERPRETED, reason="the kernels were imported without the interpreter"
)


def test_an_assignment_allocates_labels_and_no_matrix():
    scale = dataclasses.replace(gpu_bench.rehearsal(), shrink=4096)
    assert 1 < gpu_bench.memory(scale)["peak / input"][0] < 1.05
    x, c = torch.zeros(1, 500, 8), torch.zeros(1, 40, 8)
    counted = gpu_bench.added_bytes(lambda: gpu_bench._materialised(x, c), DEVICE)
    assert counted >= 500 * 40 * 4  # a matrix would be seen
    assert gpu_bench.added_bytes(lambda: [torch.zeros(1000) for _ in range(50)][-1], "cpu") == 50 * 4000
    assert (
        gpu_bench.added_bytes(lambda: [torch.zeros(1000).sum() for _ in range(50)], "cpu") < 5000
    )  # what is freed is not held


@pytest.fixture
def swept(monkeypatch):
    """Triton's interpreter leaves functions in cycles that hold its copies of the arguments: collect them after each launch, or
    what is counted depends on when Python collects."""
    if not gpu_assign.INTERPRETED:
        yield
        return
    from triton.runtime.interpreter import GridExecutor

    plain = GridExecutor.__call__

    def launch(self, *arguments, **options):
        plain(self, *arguments, **options)
        gc.collect()

    monkeypatch.setattr(GridExecutor, "__call__", launch)
    gc.collect()
    gc.freeze()  # what is old already need not be looked at a dozen times
    yield
    gc.unfreeze()


def test_memory_on_the_device_does_not_grow_with_the_points(swept):
    x = np.random.default_rng(0).standard_normal((520, 10), dtype=np.float32)
    added = []
    for n in (260, 520):
        engine = GpuEngine(
            rows_of(x[:n]), 5, torch.device(DEVICE), precision="fast", deterministic=True, weights=None, unit=False, center=True,
            chunk_rows=130, memory_limit=None, check_finite=True, choices=Choices(),
        )  # fmt: skip
        added.append(gpu_bench.added_bytes(lambda engine=engine, n=n: engine.step(x[:5].astype(np.float64)), DEVICE))
    assert added[0] == added[1]


@pytest.mark.slow
def test_the_rehearsal_goes_through_every_step():
    script = Path(__file__).parents[1] / "benchmarks" / "gpu.py"
    done = subprocess.run(
        [sys.executable, str(script), "--dry-run"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for step in gpu_bench.STEPS:
        assert f"{step}: " in done.stdout
    assert "certified: mismatches 0, share re-evaluated" in done.stdout and "rehearsal done" in done.stdout
