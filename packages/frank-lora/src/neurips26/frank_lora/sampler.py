"""The frozen factor A, regenerated from a few integers on whichever side needs it."""

from __future__ import annotations

import zlib
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from neurips26.shared.arrays import check_choice, check_int
from neurips26.shared.seeding import derive

__all__ = ["KINDS", "checksum", "sample_a"]

#: Distributions of A; all are scaled to ``E[A^T A] = I``.
KINDS = ("gaussian", "kaiming", "rademacher", "orthogonal")


#: Values that an entry can take: one for each pattern of 16 bits.
_LEVELS = 2**16


@lru_cache(maxsize=len(KINDS))
def _values(kind: str) -> np.ndarray:
    """The equally likely values of an entry, with mean 0 and variance 1: the middles of the distribution's quantile classes."""
    middles = (np.arange(_LEVELS // 2) + 0.5) / _LEVELS  # the lower half; the upper one is its mirror image
    if kind == "rademacher":
        lower = np.full(_LEVELS // 2, -1.0)
    elif kind == "kaiming":
        lower = middles - 0.5
    else:
        lower = np.array([NormalDist().inv_cdf(p) for p in middles])
    values = np.concatenate([lower, -lower[::-1]])
    return (values / np.sqrt(np.mean(values**2))).astype(np.float32)


@lru_cache(maxsize=512)
def _draw(seed: int, module: str, pid: int, epoch: int, r: int, n: int, kind: str) -> Tensor:
    # Philox is counter-based: its stream is a function of the key alone, on any machine. Sixteen of its bits look up an
    # entry: neither a logarithm nor a cosine, whose last bit may differ from one machine to another, and four entries a draw.
    stream = np.random.Philox(key=derive(seed, "frozen A", module, pid, epoch)).random_raw(-(-r * n // 4))
    bits = stream.astype("<u8", copy=False).view("<u2")[: r * n]
    a = _values(kind).take(bits).reshape(r, n)
    if kind == "orthogonal":
        q, upper = np.linalg.qr(a.T.astype(np.float64))
        # The sign of R's diagonal makes the rows uniformly distributed (Haar), and unique.
        return torch.from_numpy(np.ascontiguousarray((q * np.sign(np.diag(upper))).T * (n / r) ** 0.5, np.float32))
    a *= np.float32(r**-0.5)
    return torch.from_numpy(a)


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
            rows of length sqrt(n/r). Each has ``E[A^T A] = I_n``. Entries are rounded to 65536 equally likely values.

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
