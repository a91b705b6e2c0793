"""Random streams: one independent generator a name, and all libraries seeded at once."""

from __future__ import annotations

import hashlib
import random
import sys

import numpy as np

from neurips26.shared.arrays import check_int

__all__ = ["derive", "rng", "seed_all"]


def derive(seed: int, *names: object) -> int:
    """A 63-bit seed for the stream called ``names`` under ``seed``; stable over Python versions and machines."""
    check_int(seed, "seed", minimum=0)
    text = "\x1f".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def rng(seed: int, *names: object) -> np.random.Generator:
    """A numpy generator for the stream called ``names``: other names, other independent numbers."""
    return np.random.default_rng(derive(seed, *names))


def seed_all(seed: int) -> None:
    """Seed Python, numpy's global state and, where it is already imported, torch (JAX carries its keys itself)."""
    check_int(seed, "seed", minimum=0, maximum=2**32 - 1)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  third-party code draws from the global state
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
