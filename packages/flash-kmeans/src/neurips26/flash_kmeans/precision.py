"""What "exact" means on matrix units, and how it is proven (the precision contract).

- `ieee`: float32 products and sums.
- `tf32x3`: three passes, the same in practice.
- `fast`: one pass in the storage type; labels may differ at near-ties.
- `certified`: one fast pass that keeps the best and the second best score. Where their gap exceeds the rounding
  bound, the winner is proven; the other rows are listed on the device and assigned again in float32. Labels equal
  those of `ieee`.

The bound. With `x^ = fl(x)` and `c^ = fl(c)` the operands of the fast pass, `e_x = ||x - x^||`, `e_c = max_k ||c_k -
c^_k||`, and `m = max_k ||c_k||`, a score is off by at most `2 (e_x m + e_c ||x||) + a`, where `a` bounds the
accumulation of D products in float32 and the rounding of the norms. A gap between two scores is off by at most twice
that. bfloat16 centroids lose too much for the bound to be useful (half of all rows were flagged on real token
embeddings), so they are split into two bfloat16 parts, which costs a second product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from neurips26.flash_kmeans.gpu_assign import launch_assign, launch_recheck
from neurips26.flash_kmeans.gpu_plan import ARCHITECTURES, Device, plan_assign, plan_recheck

__all__ = ["Assigned", "assign_points", "rounding_bound"]

#: Relative rounding of one operand: 10 explicit bits of TF32, cut off rather than rounded on some units.
_TF32 = 2.0**-10
#: Bytes of the buffer of `direct_distances`.
_DISTANCE_BYTES = 64 << 20
#: One step of a float32 accumulation on a matrix unit (cut off, not rounded).
_ACCUMULATE = 2.0**-23


@dataclass(frozen=True)
class Assigned:
    """Labels `(B, N)` int32, squared distances (cosine: `1 - cos`) `(B, N)` float32 if asked for, rows re-evaluated
    `(B,)` on the device."""

    labels: torch.Tensor
    distances: torch.Tensor | None
    n_rechecked: torch.Tensor


def rounding_bound(
    x_norm: torch.Tensor, c_norm_max: torch.Tensor, x_error: float, c_error: torch.Tensor, d: int, safety: float = 1.0
) -> torch.Tensor:
    """Gap of two scores `(B, N)` above which the fast winner is proven.

    Args:
        x_norm: `(B, N)` norms of the points.
        c_norm_max: `(B, 1)` largest norm of a centroid.
        x_error: relative rounding error of a point's operand (0 when its storage type is the operand type).
        c_error: `(B, 1)` largest norm of what rounding took from a centroid.
        d: number of features.
        safety: factor on the bound.
    """
    operand = x_error * x_norm * c_norm_max + c_error * x_norm
    accumulate = _ACCUMULATE * (d + 2) * x_norm * c_norm_max + _ACCUMULATE * c_norm_max**2
    return safety * 4.0 * (operand + accumulate)


def assign_points(
    x: torch.Tensor,
    centroids: torch.Tensor,
    *,
    cosine: bool = False,
    precision: str = "certified",
    distances: bool = False,
    labels: torch.Tensor | None = None,
    device: Device | None = None,
    safety: float = 1.0,
) -> Assigned:
    """Assign `x` `(B, N, D)` to float32 `centroids` `(B, K, D)` by the Triton kernels.

    Args:
        x: points, centred or normalised as the metric asks; any strides; float32, float16 or bfloat16.
        centroids: float32, any strides; unit length for `cosine`.
        cosine: score `-<x, c>` instead of the squared distance.
        precision: `ieee`, `tf32x3`, `fast` or `certified`.
        distances: also return distances.
        labels: int32 `(B, N)` written in place when given.
        device: facts of the GPU; those of the current one by default.
        safety: factor on the rounding bound of `certified`.
    """
    b, n, d = x.shape
    k = centroids.shape[1]
    centroids = centroids.contiguous()  # the kernels read them by rows
    if device is None:
        device = Device.current() if x.is_cuda else ARCHITECTURES[90]
    norms = torch.zeros((b, k), dtype=torch.float32, device=x.device) if cosine else (centroids**2).sum(-1)
    half = x.dtype in (torch.float16, torch.bfloat16)
    parts = 2 if precision == "certified" and x.dtype == torch.bfloat16 else 1
    plan = plan_assign(b, n, k, d, x.element_size(), precision, device, parts)
    certify = precision == "certified" and k > 1 and plan.dot != "ieee"
    narrow = x.dtype if half and not plan.widen else torch.float32
    operand = centroids.to(narrow)
    low = (centroids - operand.float()).to(narrow) if certify and parts == 2 else None
    scores = launch_assign(x, operand, norms, plan, low=low, top2=certify, labels=labels)
    rechecked = torch.zeros(b, dtype=torch.int32, device=x.device)
    if certify:
        assert scores.best is not None and scores.second is not None
        x_norm = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32)
        kept = operand.float() if low is None else operand.float() + low.float()
        c_error = torch.linalg.vector_norm(centroids - kept, dim=-1).amax(-1, keepdim=True)
        c_max = torch.linalg.vector_norm(centroids, dim=-1).amax(-1, keepdim=True)
        x_error = _TF32 if narrow == torch.float32 else 0.0
        c_error = c_error + (_TF32 * c_max if narrow == torch.float32 else 0.0)
        bound = rounding_bound(x_norm, c_max, x_error, c_error, d, safety)
        # Written so that a gap that is not a number is flagged too.
        flagged = ~(scores.second - scores.best > bound)
        exact = plan_recheck(d, x.element_size(), device)
        rechecked = launch_recheck(x, centroids, norms, flagged, scores.labels, exact)
    out = direct_distances(x, centroids, scores.labels, cosine) if distances else None
    return Assigned(scores.labels, out, rechecked)


def direct_distances(x: torch.Tensor, centroids: torch.Tensor, labels: torch.Tensor, cosine: bool) -> torch.Tensor:
    """Distances `(B, N)` float32 of the points to their centroids, from the differences themselves.

    A best score carries the rounding of the fast pass and, for points far from the origin, cancellation; the
    difference carries neither and costs one pass over the points.
    """
    b, n, d = x.shape
    out = torch.empty((b, n), dtype=torch.float32, device=x.device)
    rows = max(1, _DISTANCE_BYTES // (4 * b * d))
    for begin in range(0, n, rows):
        part = slice(begin, begin + rows)
        mine = torch.gather(centroids, 1, labels[:, part].long()[..., None].expand(-1, -1, d))
        points = x[:, part].float()
        out[:, part] = 1.0 - (points * mine).sum(-1) if cosine else (points - mine).square_().sum(-1)
    return out.clamp_min_(0.0)
