"""The assignment alone on the CPU, over blocks of rows and a pool of threads."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from neurips26.flash_kmeans.cpu_kernels import Scratch, kernels
from neurips26.flash_kmeans.rows import Rows

__all__ = ["kernel_assign", "pool_of"]


def kernel_assign(
    rows: Rows, centroids: np.ndarray, unit: bool, labels: np.ndarray, *, threads: int | None = None, piece: int = 8192,
) -> np.ndarray:  # fmt: skip
    """Write the nearest of `centroids` (absolute) into `labels` and return the best scores, relative to the centroids' mean."""
    engine = kernels(rows.dtype)
    centre = np.zeros(rows.d, rows.dtype) if unit else centroids.mean(axis=0, dtype=np.float64).astype(rows.dtype)
    relative = centroids.astype(np.float64) - centre
    packed = engine.pack(np.ascontiguousarray(relative, rows.dtype), centre, norms=not unit)
    best = np.empty(rows.n, rows.dtype)
    threads = threads or torch.get_num_threads()

    def work(start: int, block: np.ndarray, scratch: Scratch) -> None:
        engine.assign(block, packed, labels[start : start + len(block)], best[start : start + len(block)], scratch)

    pieces = rows.blocks(piece)
    if threads == 1 or rows.n <= 2048:
        scratch = engine.scratch(rows.d)
        for start, block in pieces:
            work(start, block, scratch)
    else:
        pool, waiting = pool_of(threads), deque()
        for start, block in pieces:
            if len(waiting) > 2 * threads:
                waiting.popleft().result()
            waiting.append(pool.submit(work, start, block, engine.scratch(rows.d)))
        for future in waiting:
            future.result()
    return best


_pools: dict[int, ThreadPoolExecutor] = {}


def pool_of(threads: int) -> ThreadPoolExecutor:
    """A pool kept for the life of the process (starting threads costs more than a small problem)."""
    if threads not in _pools:
        _pools[threads] = ThreadPoolExecutor(threads, thread_name_prefix="flash-kmeans")
    return _pools[threads]


def _forget_pools() -> None:
    _pools.clear()  # after a fork the threads are gone


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)
