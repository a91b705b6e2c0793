"""FlashAssign: distances and the running argmin in one kernel; the `N x K` matrix never exists (Flash-KMeans,
FlashAssign).

One program keeps a tile of points on the chip and streams tiles of centroids past it. Per tile: one matrix product,
then the best score and its index are merged into the running ones with a strict `<`, so the lowest index wins a tie.
Only labels (and, where asked, the best and second best score) are written: `O(N D + ceil(N / BLOCK_N) K D)` bytes,
the second term served by the L2 cache while `K D` fits.

The score is `||c||^2 - 2 <x, c>`: `||x||^2` is the same for all centroids of a row and stays out of the comparison,
where it would only cost bits. Centroids beyond K carry a norm of +inf, never 0, so that no padding can win.

`N`, `K`, `B` and the strides are run-time integers: other sizes never compile another kernel. Shapes are batched: `x
(B, N, D)` against `c (B, K, D)` on a one-dimensional grid (a second grid axis would end at 65,535).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from neurips26.flash_kmeans.gpu_plan import AssignPlan

__all__ = ["INTERPRETED", "Scores", "assign_kernel", "launch_assign", "launch_recheck", "split_assign_kernel"]

#: Kernels run in Triton's interpreter (on the CPU, for tests).
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

_RUNTIME = ["n", "k", "tiles"]


@triton.jit
def _merge(s, k0, best, second, index, BLOCK_K: tl.constexpr, TOP2: tl.constexpr):
    """Merge a tile of scores into the running best, second best and index."""
    m, j = tl.min(s, axis=1, return_indices=True, return_indices_tie_break_left=True)
    if TOP2:
        here = tl.arange(0, BLOCK_K)[None, :] == j[:, None]
        m2 = tl.min(tl.where(here, float("inf"), s), axis=1)
        second = tl.minimum(tl.maximum(best, m), tl.minimum(second, m2))
    closer = m < best
    index = tl.where(closer, k0 + j, index)
    best = tl.where(closer, m, best)
    return best, second, index


@triton.jit
def _rows_of_tile(pid, tiles, n, rows_ptr, count_ptr, BLOCK_N: tl.constexpr, GATHER: tl.constexpr):
    """Problem, row numbers and mask of a program; with GATHER the rows come from the problem's compacted list."""
    problem = (pid // tiles).to(tl.int64)
    place = (pid % tiles) * BLOCK_N + tl.arange(0, BLOCK_N)
    if GATHER:
        listed = place < tl.load(count_ptr + problem)
        rows = tl.load(rows_ptr + problem * (n + 1) + place, mask=listed, other=0)
        return problem, rows.to(tl.int64), listed
    return problem, place.to(tl.int64), place < n


@triton.jit(do_not_specialize=_RUNTIME)
def assign_kernel(
    x_ptr,
    c_ptr,
    c_low_ptr,
    norm_ptr,
    label_ptr,
    best_ptr,
    second_ptr,
    rows_ptr,
    count_ptr,
    n,
    k,
    tiles,
    x_batch,
    x_row,
    x_col,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DOT: tl.constexpr,
    WIDEN: tl.constexpr,
    TINY: tl.constexpr,
    PARTS: tl.constexpr,
    BEST: tl.constexpr,
    TOP2: tl.constexpr,
    GATHER: tl.constexpr,
):
    """Small-D FlashAssign: all D features of a tile of points stay on the chip.

    `c_ptr` is `(B, K, D)` contiguous; `c_low_ptr` its rounding remainder (PARTS == 2); `norm_ptr` `(B, K)` float32
    (zeros for cosine).
    With GATHER a program takes the rows of its problem's list `rows_ptr` `(B, N + 1)`, of length `count_ptr` `(B,)`.
    """
    pid = tl.program_id(0)
    if GATHER:
        if (pid % tiles) * BLOCK_N >= tl.load(count_ptr + pid // tiles):
            return
    batch, rows, valid = _rows_of_tile(pid, tiles, n, rows_ptr, count_ptr, BLOCK_N, GATHER)
    c_base = batch * k
    x_at = x_ptr + batch * x_batch + rows * x_row
    dims = tl.arange(0, D_PAD)
    best = tl.full([BLOCK_N], float("inf"), tl.float32)
    second = tl.full([BLOCK_N], float("inf"), tl.float32)
    index = tl.zeros([BLOCK_N], tl.int32)
    if not TINY:
        x = tl.load(x_at[:, None] + dims[None, :] * x_col, mask=valid[:, None] & (dims[None, :] < D), other=0.0)
        if WIDEN:
            x = x.to(tl.float32)
    for k0 in range(0, k, BLOCK_K):
        cols = k0 + tl.arange(0, BLOCK_K)
        real = cols < k
        norm = tl.load(norm_ptr + c_base + cols, mask=real, other=float("inf"))
        if TINY:
            # Up to 8 features the multiply-adds are cheaper than padding to the 16 that a matrix unit takes.
            dot = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
            for d in tl.static_range(D):
                xd = tl.load(x_at + d * x_col, mask=valid, other=0.0).to(tl.float32)
                cd = tl.load(c_ptr + (c_base + cols) * D + d, mask=real, other=0.0).to(tl.float32)
                dot += xd[:, None] * cd[None, :]
        else:
            at = (c_base + cols[None, :]) * D + dims[:, None]
            inside = real[None, :] & (dims[:, None] < D)
            dot = tl.dot(x, tl.load(c_ptr + at, mask=inside, other=0.0), input_precision=DOT)
            if PARTS == 2:
                dot += tl.dot(x, tl.load(c_low_ptr + at, mask=inside, other=0.0), input_precision=DOT)
        best, second, index = _merge(norm[None, :] - 2.0 * dot, k0, best, second, index, BLOCK_K, TOP2)
    out = batch * n + rows
    tl.store(label_ptr + out, index, mask=valid)
    if BEST:
        tl.store(best_ptr + out, best, mask=valid)
    if TOP2:
        tl.store(second_ptr + out, second, mask=valid)


@triton.jit(do_not_specialize=_RUNTIME)
def split_assign_kernel(
    x_ptr,
    c_ptr,
    c_low_ptr,
    norm_ptr,
    label_ptr,
    best_ptr,
    second_ptr,
    rows_ptr,
    count_ptr,
    n,
    k,
    tiles,
    x_batch,
    x_row,
    x_col,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DOT: tl.constexpr,
    WIDEN: tl.constexpr,
    PARTS: tl.constexpr,
    BEST: tl.constexpr,
    TOP2: tl.constexpr,
    GATHER: tl.constexpr,
):
    """Split-D FlashAssign for wide points: the scores of a tile accumulate in registers while slices of D pass by."""
    pid = tl.program_id(0)
    if GATHER:
        if (pid % tiles) * BLOCK_N >= tl.load(count_ptr + pid // tiles):
            return
    batch, rows, valid = _rows_of_tile(pid, tiles, n, rows_ptr, count_ptr, BLOCK_N, GATHER)
    c_base = batch * k
    x_at = x_ptr + batch * x_batch + rows * x_row
    best = tl.full([BLOCK_N], float("inf"), tl.float32)
    second = tl.full([BLOCK_N], float("inf"), tl.float32)
    index = tl.zeros([BLOCK_N], tl.int32)
    for k0 in range(0, k, BLOCK_K):
        cols = k0 + tl.arange(0, BLOCK_K)
        real = cols < k
        dot = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
        for d0 in range(0, D, BLOCK_D):
            dims = d0 + tl.arange(0, BLOCK_D)
            x = tl.load(x_at[:, None] + dims[None, :] * x_col, mask=valid[:, None] & (dims[None, :] < D), other=0.0)
            if WIDEN:
                x = x.to(tl.float32)
            at = (c_base + cols[None, :]) * D + dims[:, None]
            inside = real[None, :] & (dims[:, None] < D)
            dot = tl.dot(x, tl.load(c_ptr + at, mask=inside, other=0.0), dot, input_precision=DOT)
            if PARTS == 2:
                dot = tl.dot(x, tl.load(c_low_ptr + at, mask=inside, other=0.0), dot, input_precision=DOT)
        norm = tl.load(norm_ptr + c_base + cols, mask=real, other=float("inf"))
        best, second, index = _merge(norm[None, :] - 2.0 * dot, k0, best, second, index, BLOCK_K, TOP2)
    out = batch * n + rows
    tl.store(label_ptr + out, index, mask=valid)
    if BEST:
        tl.store(best_ptr + out, best, mask=valid)
    if TOP2:
        tl.store(second_ptr + out, second, mask=valid)


@dataclass(frozen=True)
class Scores:
    """Result of one launch: labels `(B, N)` int32 and, where asked for, best and second best score `(B, N)` float32."""

    labels: torch.Tensor
    best: torch.Tensor | None
    second: torch.Tensor | None


def launch_assign(
    x: torch.Tensor,
    operand: torch.Tensor,
    norms: torch.Tensor,
    plan: AssignPlan,
    *,
    low: torch.Tensor | None = None,
    best: bool = False,
    top2: bool = False,
    labels: torch.Tensor | None = None,
) -> Scores:
    """Assign every row of `x` `(B, N, D)` (any strides) to the nearest of `operand` `(B, K, D)`.

    Args:
        x: points in their storage type.
        operand: centroids in the type of the matrix product (the storage type of `x`, or float32 when `plan.widen`),
        contiguous.
        norms: `(B, K)` float32 squared norms of the exact centroids, or zeros for cosine.
        plan: tiles and precision, from `gpu_plan.plan_assign`.
        low: `(B, K, D)` what rounding the centroids to `operand` lost, for the two-part product.
        best: also return the best scores.
        top2: also return best and second best scores.
        labels: `(B, N)` int32 contiguous, written in place when given.
    """
    b, n, _ = x.shape
    k = operand.shape[1]
    if labels is None:
        labels = torch.empty((b, n), dtype=torch.int32, device=x.device)
    best_out = torch.empty((b, n), dtype=torch.float32, device=x.device) if best or top2 else None
    second_out = torch.empty((b, n), dtype=torch.float32, device=x.device) if top2 else None
    tiles = triton.cdiv(n, plan.block_n)
    _launch(plan, b * tiles, x, operand, low, norms, labels, best_out, second_out, None, None, n, k, tiles)
    return Scores(labels, best_out, second_out)


def launch_recheck(
    x: torch.Tensor,
    centroids: torch.Tensor,
    norms: torch.Tensor,
    flagged: torch.Tensor,
    labels: torch.Tensor,
    plan: AssignPlan,
    best: torch.Tensor | None = None,
) -> torch.Tensor:
    """Assign the flagged rows again in full precision, in place; no host synchronisation.

    The list of flagged rows is compacted on the device; programs beyond its length return at once.

    Args:
        x: `(B, N, D)`; `centroids` `(B, K, D)` float32; `norms` `(B, K)` float32.
        flagged: `(B, N)` bool.
        labels: `(B, N)` int32, rewritten at the flagged rows; `best` `(B, N)` float32 likewise.
        plan: a plan of precision `ieee`.

    Returns:
        `(B,)` int32 number of rows re-evaluated, on the device.
    """
    b, n, _ = x.shape
    place = torch.cumsum(flagged, 1, dtype=torch.int32)
    target = torch.where(flagged, place - 1, n).long()
    # One list a problem: its rows share the tiles of centroids. The last column takes what is not flagged.
    rows = torch.zeros((b, n + 1), dtype=torch.int32, device=x.device)
    rows.scatter_(1, target, torch.arange(n, dtype=torch.int32, device=x.device).expand(b, n))
    count = place[:, -1].clone()
    tiles = triton.cdiv(n, plan.block_n)
    args = (x, centroids, None, norms, labels, best, None, rows, count)
    _launch(plan, b * tiles, *args, n, centroids.shape[1], tiles)
    return count


def _launch(plan, programs, x, operand, low, norms, labels, best, second, rows, count, n, k, tiles) -> None:
    d = x.shape[2]
    widen = plan.widen
    if INTERPRETED and x.dtype == torch.bfloat16 and not widen:
        # The interpreter multiplies the bit patterns of bfloat16. Widening is exact, and so is the product of the
        # widened operands.
        widen, operand, low = True, operand.float(), low.float() if low is not None else None
    # Unused pointers are never read; a real tensor keeps the launcher's specialisation key the same.
    common = (
        x,
        operand,
        low if low is not None else operand,
        norms,
        labels,
        best if best is not None else norms,
        second if second is not None else norms,
        rows if rows is not None else labels,
        count if count is not None else labels,
        n,
        k,
        tiles,
        x.stride(0) if x.shape[0] > 1 else 0,  # so that N decides nothing where the batch is one problem
        x.stride(1),
        x.stride(2),
    )
    switches = dict(
        BLOCK_N=plan.block_n,
        BLOCK_K=plan.block_k,
        DOT=plan.dot,
        WIDEN=widen,
        PARTS=2 if low is not None else 1,
        BEST=best is not None,
        TOP2=second is not None,
        GATHER=rows is not None,
        num_warps=plan.num_warps,
        num_stages=plan.num_stages,
        enable_fp_fusion=True,
    )
    if plan.block_d:
        split_assign_kernel[(programs,)](*common, D=d, BLOCK_D=plan.block_d, **switches)
    else:
        assign_kernel[(programs,)](*common, D=d, D_PAD=plan.d_pad, TINY=plan.tiny, **switches)
