"""How a problem of a given shape will be cut up: pure functions of the shape and of the machine's facts.

The CPU part is here; the GPU part (tiles, warps, stages) joins it in `gpu_plan.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from neurips26.flash_kmeans.choices import DEFAULTS, Choices

__all__ = ["CpuPlan", "cpu_plan"]


@dataclass(frozen=True)
class CpuPlan:
    """Work split of one Lloyd step on the CPU.

    Attributes:
        slab_rows: rows a thread handles before it hands its sums over. A function of the shape alone.
        piece_rows: rows held in memory at once by a reader (equal to `slab_rows` unless a memory limit asks for less).
        threads: threads that work at the same time.
        bytes: memory of the step beyond the points and the labels.
    """

    slab_rows: int
    piece_rows: int
    threads: int
    bytes: int


def cpu_plan(
    n: int, k: int, d: int, itemsize: int = 4, threads: int = 1, *, chunk_rows: int | None = None,
    memory_limit: int | None = None, view: bool = True, choices: Choices = DEFAULTS,
) -> CpuPlan:  # fmt: skip
    """Choose slabs and pieces.

    A slab is at most `choices.slab_rows` rows and at most an eighth of the points (so that up to eight threads have work),
    but never so small that handing over its `K x D` sums costs as much as a twentieth of the distances.

    Raises:
        ValueError: `memory_limit` is below what the sums and one row of each buffer take.
    """
    least = max(2048, 4 * k)
    slab = max(min(-(-n // 8), choices.slab_rows), least)
    slab = min(-(-slab // 64) * 64, max(n, 1))
    piece = slab if chunk_rows is None else max(1, min(chunk_rows, slab))
    fixed = k * d * (8 + 8) + k * d * itemsize  # float64 totals, packed centroids, new centroids
    while True:
        workers = 1 if piece < slab else max(1, min(threads, -(-n // slab)))
        copies = 0 if view else workers + 2
        total = fixed + workers * k * d * 8 + copies * piece * d * itemsize + workers * piece * itemsize
        if memory_limit is None or total <= memory_limit:
            return CpuPlan(slab, piece, workers, total)
        if threads > 1 and workers > 1:
            threads = workers - 1
        elif piece > 1:
            piece = piece // 2
        else:
            raise ValueError(f"memory_limit: expected at least {total} bytes for K={k}, D={d}, got {memory_limit}")
