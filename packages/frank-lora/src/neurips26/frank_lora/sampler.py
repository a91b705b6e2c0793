"""The frozen factor A, regenerated from a few integers on whichever side needs it."""

from __future__ import annotations

import zlib
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from neurips26.shared.arrays import check_choice, check_int
from neurips26.shared.seeding import derive

__all__ = ["KINDS", "checksum", "sample_a"]

#: Distributions of A; all are scaled to ``E[A^T A] = I``.
KINDS = ("gaussian", "kaiming", "rademacher", "orthogonal")


@lru_cache(maxsize=512)
def _draw(seed: int, module: str, pid: int, epoch: int, r: int, n: int, kind: str) -> Tensor:
    # Philox is counter-based: its stream is a function of the key alone, on any machine.
    stream = np.random.Generator(np.random.Philox(key=derive(seed, "frozen A", module, pid, epoch)))
    if kind == "rademacher":
        a = stream.integers(0, 2, (r, n)).astype(np.float32) * 2 - 1
        a /= np.float32(r**0.5)
    elif kind == "kaiming":
        a = (2 * stream.random((r, n), dtype=np.float32) - 1) * np.float32((3 / r) ** 0.5)
    else:
        a = stream.standard_normal((r, n), dtype=np.float32)
        if kind == "gaussian":
            a /= np.float32(r**0.5)
        else:
            q, upper = np.linalg.qr(a.T.astype(np.float64))
            # The sign of R's diagonal makes the rows uniformly distributed (Haar), and unique.
            a = ((q * np.sign(np.diag(upper))).T * (n / r) ** 0.5).astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(a))


def sample_a(
    seed: int, module: str, pid: int, epoch: int, r: int, n: int, kind: str = "gaussian"
) -> Float32[Tensor, "r n"]:
    """The matrix A of client ``pid``, module and resampling epoch: a pure function of its arguments.

    Args:
        seed: the run's seed.
        module: name of the adapted module.
        pid: partition id of the client; -1 for an A common to all.
        epoch: number of the resampling period.
        r, n: rank and input width.
        kind: ``gaussian`` N(0, 1/r), ``kaiming`` uniform, ``rademacher`` signs, all with variance 1/r, or ``orthogonal``
            rows of length sqrt(n/r). Each has ``E[A^T A] = I_n``.

    Raises:
        ValueError: ``r`` above ``n`` with orthogonal rows, or a bad argument.
    """
    check_choice(kind, "kind", KINDS)
    check_int(r, "r", minimum=1, maximum=n if kind == "orthogonal" else None)
    check_int(n, "n", minimum=1)
    return _draw(seed, module, pid, epoch, r, n, kind).clone()


def checksum(a: Tensor) -> int:
    """CRC-32 of the first 4 KiB of A: sent along with B, so that a client that draws otherwise is noticed."""
    return zlib.crc32(a.contiguous().numpy().tobytes()[:4096])
