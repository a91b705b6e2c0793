"""Linear algebra on low-rank factors; nothing here forms an (m, n) product."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["factor_svd", "stable_rank"]


def factor_svd(B: Tensor, A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Singular triplets of ``B @ A`` from B (m, r) and A (r, n): QR of both, then the SVD of a small square.

    Costs O((m + n) r^2 + r^3). Computed in float64: an SVD of float32 factors loses the small triplets.

    Returns:
        U (m, k), S (k,), V^T (k, n) with k = min(r, m, n), in the dtype of ``A``.
    """
    dtype = A.dtype
    q1, r1 = torch.linalg.qr(B.double())
    q2, r2 = torch.linalg.qr(A.double().T)
    u, s, vt = torch.linalg.svd(r1 @ r2.T, full_matrices=False)
    return (q1 @ u).to(dtype), s.to(dtype), (vt @ q2.T).to(dtype)


def stable_rank(matrix: Tensor) -> float:
    """Squared Frobenius norm over squared spectral norm: the number of directions that matter; 0 for a zero matrix."""
    wide = matrix.double() if matrix.shape[0] <= matrix.shape[1] else matrix.double().T
    squares = torch.linalg.eigvalsh(wide @ wide.T)  # of the smaller Gram matrix: the top one is all that counts
    return 0.0 if squares[-1] <= 0 else float(squares.clamp(min=0).sum() / squares[-1])
