"""Peak memory of a fit, measured from outside: a fresh process reports how far its resident set rose above what it held
before."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import numpy as np

from neurips26.flash_kmeans.fit import kmeans

__all__ = ["extra_bytes"]


def extra_bytes(n: int, d: int, k: int) -> int:
    """Bytes that one iteration and the final labels add to the peak of this process; call it in a fresh one."""
    rng = np.random.default_rng(0)
    small = rng.standard_normal((64, d), dtype=np.float32)
    kmeans(small, 4, init=small[:4], max_iter=1, threads=1)  # load and compile first: code is not what is measured
    x = rng.standard_normal((n, d), dtype=np.float32)
    init = x[:k].copy()
    before = _resident(restart=True)
    kmeans(x, k, init=init, max_iter=1, threads=1)
    return _resident() - before


def _resident(restart: bool = False) -> int:
    """Largest resident set since the last restart, in bytes. Linux can restart the count; elsewhere it runs from the process's
    start."""
    status = Path("/proc/self/status")
    if not status.exists():
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    if restart:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
