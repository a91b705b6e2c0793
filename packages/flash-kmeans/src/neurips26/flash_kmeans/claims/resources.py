"""Claims about memory: no distance matrix, and data that does not fit."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from neurips26.flash_kmeans import datasets
from neurips26.flash_kmeans.claims.used import MIXTURE
from neurips26.flash_kmeans.fit import kmeans
from neurips26.shared.bench import measure
from neurips26.shared.claims import Claim, Criterion, Measurement, Series, measures
from neurips26.shared.context import Context
from neurips26.shared.launch import launch


@measures(
    Claim(
        id="no-distance-matrix",
        statement="The N x K distance matrix is never held in memory",
        paper_value="input and output of O(Nd + Kd) instead of O(NK)",
        scope="scaled down",
        metric="peak memory that a fit adds at N=200,000, K=4,096, D=64 (the matrix would take 3,277 MB)",
        unit="MB",
        direction="lower",
        criterion=Criterion("bound", at_most=150.0, deterministic=True),
        rerun_tolerance=None,
    )
)
def no_distance_matrix(ctx: Context) -> Measurement:
    """Resident memory of fresh processes before and after a fit."""
    shapes = (
        [(200_000, 64, 4096)]
        if ctx.tier == "quick"
        else [(200_000, 64, 4096), (400_000, 64, 2048), (100_000, 64, 8192)]
    )
    values, cells = [], []
    for n, d, k in ctx.track(shapes, "peak memory"):
        run = partial(launch, "neurips26.flash_kmeans.memory:extra_bytes", 1, (n, d, k), timeout=300)
        got = ctx.cell({"n": n, "d": d, "k": k}, run)[0] / 1e6
        values.append(got)
        cells.append({"factors": {"n": n, "d": d, "k": k}, "seed": 0, "method": "ours", "value": got})
        cells.append(
            {"factors": {"n": n, "d": d, "k": k}, "seed": 0, "method": "the matrix itself", "value": 4e-6 * n * k}
        )
    return Measurement(ours=Series({"threads": 1, "dtype": "float32"}, values), seeds=[0], cells=cells, data=[MIXTURE])


@measures(
    Claim(
        id="out-of-core",
        statement="Data that does not fit is clustered chunk by chunk at little more than the cost of the arithmetic",
        paper_value="N=1e9, K=32,768, D=128: 41.4 s an iteration against 261.8 s (H200, host memory)",
        scope="scaled down",
        metric="CPU time of a fit from a file under a 32 MB limit / the same fit in memory, labels bitwise equal",
        unit="1",
        direction="lower",
        criterion=Criterion("ratio", at_most=1.15),
        rerun_tolerance=None,
    ),
    tiers=("cpu",),
)
def out_of_core(ctx: Context) -> Measurement:
    """A file of 102 MB (N=400,000, D=64) and K=1024; a difference of one bit in the labels is an error."""
    n, d, k = 400_000, 64, 1024
    values: dict[str, list[float]] = {"file": [], "memory": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npy"
        x = datasets.mixture(n, d)
        np.save(path, x)
        for seed in ctx.track(ctx.seeds(5), "out of core"):

            def both(seed: int = seed) -> dict[str, float]:
                init = x[np.random.default_rng(seed).choice(n, k, replace=False)]
                options: dict[str, Any] = dict(init=init, max_iter=2, tol=-1, empty="keep")
                a, b = kmeans(path, k, memory_limit=32_000_000, **options), kmeans(x, k, **options)
                if not ((a.labels == b.labels).all() and (a.centroids == b.centroids).all()):
                    raise RuntimeError("the result from the file differs from the one in memory")
                times = [measure(f, 1, warmup=0).median for f in (lambda: kmeans(path, k, memory_limit=32_000_000, **options),
                                                                  lambda: kmeans(x, k, **options))]  # fmt: skip
                return dict(zip(("file", "memory"), times))

            for name, value in ctx.cell({"seed": seed}, both).items():
                values[name].append(value)
    return Measurement(
        ours=Series({"memory_limit": 32_000_000}, values["file"]),
        baselines={"in memory": Series({}, values["memory"])},
        seeds=ctx.seeds(5),
        data=[MIXTURE],
    )
