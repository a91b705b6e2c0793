"""Sort-Inverse Update: centroid sums without contention (Flash-KMeans, Sort-Inverse Update).

Sorting the labels turns a scatter into segments: the rows of a cluster lie together in `order`. Every segment is cut
into pieces of at most `piece` rows, which gives at most `N / piece + K` work items whatever the sizes of the
clusters; each row is read once.

- deterministic (default): a work item writes its partial sum to a slot of its own, and a second kernel adds the slots of a
  cluster in order. No atomics: the result is bitwise repeatable and does not slow down with skewed cluster sizes.
- atomic: each work item adds its partial sum to the cluster's row, one vector of atomics an item, as in the paper.

The work list is computed on the device from shapes alone known to the host: nothing waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from neurips26.flash_kmeans.gpu_plan import UpdatePlan

__all__ = ["WorkList", "combine_kernel", "launch_update", "partial_kernel", "work_list"]


@triton.jit(do_not_specialize=["n", "k", "d", "piece"])
def partial_kernel(
    x_ptr,
    order_ptr,
    start_ptr,
    first_ptr,
    owner_ptr,
    weight_ptr,
    out_ptr,
    mass_ptr,
    n,
    k,
    d,
    piece,
    x_batch,
    x_row,
    x_col,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WEIGHTED: tl.constexpr,
    ATOMIC: tl.constexpr,
):
    """Sum the rows of one work item over a block of features, in float32."""
    item = tl.program_id(0)
    cluster = tl.load(owner_ptr + item)
    if cluster < 0:
        return
    begin = tl.load(start_ptr + cluster) + (item - tl.load(first_ptr + cluster)) * piece
    end = tl.minimum(begin + piece, tl.load(start_ptr + cluster + 1))
    # Clusters are numbered through the batch: one 32-bit division here spares a 64-bit one for every row.
    problem = (cluster.to(tl.int32) // k).to(tl.int64)
    x_at = x_ptr + problem * x_batch
    dims = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = dims < d
    total = tl.zeros([BLOCK_D], tl.float32)
    mass = tl.zeros([BLOCK_R], tl.float32)
    for r0 in range(begin, end, BLOCK_R):
        places = r0 + tl.arange(0, BLOCK_R)
        real = places < end
        flat = tl.load(order_ptr + places, mask=real, other=0).to(tl.int64)
        at = x_at + (flat - problem * n) * x_row
        mask = real[:, None] & inside[None, :]
        x = tl.load(at[:, None] + dims[None, :] * x_col, mask=mask, other=0.0).to(tl.float32)
        if WEIGHTED:
            w = tl.load(weight_ptr + flat, mask=real, other=0.0).to(tl.float32)
            x = x * w[:, None]
            mass += w
        total += tl.sum(x, axis=0)
    if ATOMIC:
        tl.atomic_add(out_ptr + cluster.to(tl.int64) * d + dims, total, mask=inside)
    else:
        tl.store(out_ptr + item.to(tl.int64) * d + dims, total, mask=inside)
    if WEIGHTED:
        if tl.program_id(1) == 0:
            if ATOMIC:
                tl.atomic_add(mass_ptr + cluster, tl.sum(mass))
            else:
                tl.store(mass_ptr + item, tl.sum(mass))


@triton.jit(do_not_specialize=["d"])
def combine_kernel(
    slot_ptr,
    slot_mass_ptr,
    first_ptr,
    out_ptr,
    mass_ptr,
    d,
    BLOCK_D: tl.constexpr,
    WEIGHTED: tl.constexpr,
):
    """Add the slots of a cluster in order; an empty cluster gets zeros."""
    cluster = tl.program_id(0)
    begin = tl.load(first_ptr + cluster)
    end = tl.load(first_ptr + cluster + 1)
    dims = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = dims < d
    total = tl.zeros([BLOCK_D], tl.float32)
    mass = 0.0
    for slot in range(begin, end):
        total += tl.load(slot_ptr + slot * d + dims, mask=inside, other=0.0)
        if WEIGHTED:
            mass += tl.load(slot_mass_ptr + slot)
    tl.store(out_ptr + cluster.to(tl.int64) * d + dims, total, mask=inside)
    if WEIGHTED:
        if tl.program_id(1) == 0:
            tl.store(mass_ptr + cluster, mass)


@dataclass(frozen=True)
class WorkList:
    """Segments and pieces of a labelling; all on the device, all of a size that only the shapes decide.

    Attributes:
        order: `(B N,)` int64 row numbers sorted by cluster, stable.
        start: `(B K + 1,)` int64 first place of each cluster in `order`.
        first: `(B K + 1,)` int64 first work item of each cluster; the last entry is the number of work items.
        owner: `(max_items,)` int64 cluster of each work item, -1 beyond the last.
        counts: `(B, K)` int64 rows of each cluster.
    """

    order: torch.Tensor
    start: torch.Tensor
    first: torch.Tensor
    owner: torch.Tensor
    counts: torch.Tensor


def work_list(labels: torch.Tensor, k: int, piece: int) -> WorkList:
    """Segments and pieces of `labels` `(B, N)`; at most `B N / piece + B K` work items."""
    b, n = labels.shape
    offset = torch.arange(b, device=labels.device, dtype=torch.int32)[:, None] * k
    keys = (labels + offset).reshape(-1)
    sorted_keys, order = torch.sort(keys, stable=True)
    edges = torch.arange(b * k + 1, device=labels.device, dtype=sorted_keys.dtype)
    start = torch.searchsorted(sorted_keys, edges)
    counts = start[1:] - start[:-1]
    pieces = (counts + piece - 1) // piece
    first = torch.cat([torch.zeros_like(start[:1]), torch.cumsum(pieces, 0)])
    items = torch.arange(b * n // piece + b * k, device=labels.device)
    owner = torch.searchsorted(first[1:].contiguous(), items, right=True)
    owner = torch.where(items < first[-1], owner, -1)
    return WorkList(order, start, first, owner, counts.view(b, k))


def launch_update(
    x: torch.Tensor,
    labels: torch.Tensor,
    k: int,
    plan: UpdatePlan,
    *,
    weights: torch.Tensor | None = None,
    deterministic: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums and masses of the clusters.

    Args:
        x: `(B, N, D)`, any strides; `labels` `(B, N)` int32 in `0..k-1`.
        k: number of clusters of a problem.
        plan: from `gpu_plan.plan_update`.
        weights: `(B, N)` float32 contiguous.
        deterministic: slots and an ordered sum instead of atomics.

    Returns:
        `(B, K, D)` float32 sums and `(B, K)` float32 masses (numbers of rows, or sums of weights).
    """
    b, n, d = x.shape
    work = work_list(labels, k, plan.piece)
    grid_d = triton.cdiv(d, plan.block_d)
    items = work.owner.numel()
    weighted = weights is not None
    sums = torch.zeros((b * k, d), dtype=torch.float32, device=x.device)
    mass = torch.zeros(b * k, dtype=torch.float32, device=x.device)
    slots = sums if not deterministic else torch.empty((items, d), dtype=torch.float32, device=x.device)
    slot_mass = mass if not deterministic else torch.empty(items, dtype=torch.float32, device=x.device)
    partial_kernel[(items, grid_d)](
        x,
        work.order,
        work.start,
        work.first,
        work.owner,
        weights if weights is not None else mass,
        slots,
        slot_mass,
        n,
        k,
        d,
        plan.piece,
        x.stride(0) if b > 1 else 0,
        x.stride(1),
        x.stride(2),
        BLOCK_R=plan.block_r,
        BLOCK_D=plan.block_d,
        WEIGHTED=weighted,
        ATOMIC=not deterministic,
        num_warps=plan.num_warps,
        enable_fp_fusion=True,
    )
    if deterministic:
        combine_kernel[(b * k, grid_d)](
            slots,
            slot_mass,
            work.first,
            sums,
            mass,
            d,
            BLOCK_D=plan.block_d,
            WEIGHTED=weighted,
            num_warps=plan.num_warps,
            enable_fp_fusion=True,
        )
    return sums.view(b, k, d), mass.view(b, k) if weighted else work.counts.to(torch.float32)
