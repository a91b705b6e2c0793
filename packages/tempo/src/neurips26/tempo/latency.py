"""What a control tick costs: CPU seconds of the deployment adapter, after warm-up."""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np

from .adapter import TestTimeAdapter
from .checkpoint import Checkpoint

__all__ = ["latency"]


def latency(ckpt: Checkpoint, ticks: int, seed: int, **settings: Any) -> dict[str, Any]:
    """CPU seconds of `TestTimeAdapter.step` (wall time where cores are shared says little).

    Returns:
        "with" and "without": seconds of the ticks with and without an update; "compile": seconds of the warm-up;
        "recompiled": programs compiled after it; "bytes" beyond the frozen policy; "misses" of the deadline.
    """
    adapter = TestTimeAdapter(ckpt, seed=seed, **settings)
    compile_seconds = adapter.warmup()
    rng = np.random.default_rng(seed)
    obs = (ckpt.mean + ckpt.std * rng.standard_normal((64, ckpt.obs_size))).astype(np.float32)
    for k in range(64):
        adapter.step(obs[k % 64])
    before = adapter._act._cache_size() + adapter._learn._cache_size()
    with_update, without = [], []
    for k in range(ticks):
        due = adapter._tick % adapter.cfg.update_every == 0
        start = time.process_time()
        adapter.step(obs[k % 64])
        jax.block_until_ready(adapter.state)
        (with_update if due else without).append(time.process_time() - start)
    return {
        "with": with_update,
        "without": without,
        "compile": compile_seconds,
        "recompiled": adapter._act._cache_size() + adapter._learn._cache_size() - before,
        "bytes": adapter.memory_bytes(),
        "misses": adapter.counters["deadline_misses"],
    }
