"""How many threads the numerical libraries use, in one place."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

from neurips26.shared.arrays import check_int

__all__ = ["environment", "limit"]


def environment(n: int) -> dict[str, str]:
    """Environment variables that hold a *new* process to ``n`` threads (BLAS, OpenMP, torch, XLA's CPU client)."""
    check_int(n, "n", minimum=1)
    names = ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "POLARS_MAX_THREADS"]
    env = dict.fromkeys(names, str(n))
    if n == 1:
        flags = os.environ.get("XLA_FLAGS", "")
        env["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1".strip()
    return env


@contextmanager
def limit(n: int) -> Iterator[None]:
    """Hold BLAS, OpenMP and (where imported) torch to ``n`` threads inside the block.

    JAX reads its thread count once at start-up: use :func:`environment` for a process that runs JAX.
    """
    check_int(n, "n", minimum=1)
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch is not None else None
    with threadpool_limits(limits=n):
        if torch is not None:
            torch.set_num_threads(n)
        try:
            yield
        finally:
            if torch is not None and before is not None:
                torch.set_num_threads(before)
