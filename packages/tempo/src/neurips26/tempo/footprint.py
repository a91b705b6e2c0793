"""How much memory adaptation takes in a process of its own, and whether that grows with the ticks."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from neurips26.shared.arrays import check_int

from . import checkpoint
from .adapter import TestTimeAdapter

__all__ = ["footprint"]

WARM = 1000  # ticks before the first reading: pools of the runtime fill up
READINGS = 10


def resident() -> float:
    """Resident set of this process in MB, freed memory given back to the system first (Linux with glibc)."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * 4096 / 1e6


def footprint(name: str, method: str, ticks: int, seed: int) -> dict[str, float]:
    """Runs `ticks` control ticks of checkpoint `name`; to be called in a fresh process.

    Args:
        method: of the adapter, or "frozen": the policy alone, without an adapter and its critics.

    Returns:
        MB: "arrays" that JAX holds at the end, and the critics, which are constants of the compiled programs;
        "resident" at the end; "growth" of the resident set over the ticks; "slope" of the same per 1000 ticks, fitted.
    """
    check_int(ticks, "ticks", minimum=READINGS)
    ckpt = checkpoint.load(name)
    rng = np.random.default_rng(seed)
    obs = (ckpt.mean + ckpt.std * rng.standard_normal((64, ckpt.obs_size))).astype(np.float32)
    step = _stepper(ckpt, method, seed)
    for k in range(WARM):
        step(obs[k % 64])
    done, read = [0], [resident()]
    for part in np.array_split(np.arange(ticks), READINGS):
        for k in part:
            step(obs[k % 64])
        done.append(int(part[-1]) + 1)
        read.append(resident())
    constants = jax.tree.leaves(ckpt.critics) if method != "frozen" else []
    return {
        "arrays": sum(x.nbytes for x in (*jax.live_arrays(), *constants)) / 1e6,
        "resident": read[-1],
        "growth": read[-1] - read[0],
        "slope": float(np.polyfit(np.array(done) / 1000, read, 1)[0]),
    }


def _stepper(ckpt: checkpoint.Checkpoint, method: str, seed: int) -> Callable[[np.ndarray], object]:
    if method != "frozen":
        adapter = TestTimeAdapter(ckpt, method=method, seed=seed)
        adapter.warmup()
        return adapter.step
    policy = ckpt.policy_apply()
    act = jax.jit(lambda o: policy(ckpt.actor, (o - ckpt.mean) / ckpt.std))
    return lambda o: np.asarray(act(o))
