"""Tiles, warps and stages from the shape and the facts of the device: a pure function instead of autotuning
(Flash-KMeans, cache-aware compile heuristic; the rule itself is ours, see `plan_assign`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

__all__ = ["ARCHITECTURES", "AssignPlan", "Device", "UpdatePlan", "plan_assign", "plan_recheck", "plan_update"]

Precision = Literal["ieee", "tf32x3", "fast", "certified"]

#: Shared memory kept free for the compiler's own use (bytes).
_RESERVE = 4096
#: Registers a thread may spend on the accumulator. 128 compiles without the second best score and spills with it.
_ACCUMULATOR_REGISTERS = 64


@dataclass(frozen=True)
class Device:
    """What the planner knows of a GPU.

    Attributes:
        arch: compute capability times ten, 80 for an A100, 90 for an H100 or H200.
        shared_bytes: shared memory that one program may opt in to.
        l2_bytes: size of the L2 cache.
        processors: number of streaming multiprocessors.
        bandwidth: bytes a second from device memory.
        flops: half-precision matrix operations a second.
    """

    arch: int
    shared_bytes: int
    l2_bytes: int
    processors: int
    bandwidth: float
    flops: float

    @classmethod
    def current(cls) -> Device:
        """Facts of the current CUDA device; rates come from the nearest known architecture."""
        import torch

        p = torch.cuda.get_device_properties(torch.cuda.current_device())
        arch = p.major * 10 + p.minor
        known = ARCHITECTURES[max((a for a in ARCHITECTURES if a <= arch), default=min(ARCHITECTURES))]
        shared = getattr(p, "shared_memory_per_block_optin", known.shared_bytes)
        return replace(
            known, arch=arch, shared_bytes=shared, l2_bytes=p.L2_cache_size, processors=p.multi_processor_count
        )


#: Public data sheets: T4, A100 SXM, RTX 3090, L40S, H200 SXM, B200.
ARCHITECTURES = {
    75: Device(75, 64 << 10, 4 << 20, 40, 0.32e12, 65e12),
    80: Device(80, 163 << 10, 40 << 20, 108, 2.0e12, 312e12),
    86: Device(86, 99 << 10, 6 << 20, 82, 0.94e12, 71e12),
    89: Device(89, 99 << 10, 96 << 20, 142, 0.86e12, 362e12),
    90: Device(90, 227 << 10, 50 << 20, 132, 4.8e12, 790e12),
    100: Device(100, 227 << 10, 126 << 20, 148, 8.0e12, 2250e12),
}


@dataclass(frozen=True)
class AssignPlan:
    """How FlashAssign will run.

    Attributes:
        block_n, block_k: points and centroids of a tile.
        block_d: features of a slice (split-D kernel), 0 for the small-D kernel.
        d_pad: features after padding (small-D kernel).
        tiny: multiply-adds instead of matrix units (D of at most 8).
        dot: `input_precision` of the matrix product.
        widen: points are widened to float32 before the product.
        num_warps, num_stages: launch parameters.
        shared_bytes: shared memory of the operands, an estimate the compile report checks.
        seconds: predicted time; a prediction, never reported as a measurement.
    """

    block_n: int
    block_k: int
    block_d: int
    d_pad: int
    tiny: bool
    dot: str
    widen: bool
    num_warps: int
    num_stages: int
    shared_bytes: int
    seconds: float


@dataclass(frozen=True)
class UpdatePlan:
    """How the segmented update will run: rows of a piece (a run-time number), rows and features of a tile, warps."""

    piece: int
    block_r: int
    block_d: int
    num_warps: int


@lru_cache(maxsize=4096)
def _candidates(
    d: int, dot_bytes: int, tiny: bool, split: bool, full: bool, parts: int, device: Device
) -> tuple[AssignPlan, ...]:
    """Configurations that fit the device for one D and type; none depends on N, K or B."""
    d_pad = max(16, 1 << math.ceil(math.log2(max(d, 1))))
    aligned = tiny or d % 16 == 0
    found = []
    for warps in (4, 8):
        for block_n in (32, 64, 128, 256):
            for block_k in (32, 64, 128, 256):
                for stages in (1, 2, 3, 4):
                    for block_d in ((16,) if full else (32, 64) if aligned else (32,)) if split else (0,):
                        width = block_d or d_pad
                        if tiny:
                            shared = 0
                        elif split:
                            shared = width * dot_bytes * stages * (block_n + parts * block_k)
                        else:
                            shared = width * dot_bytes * (block_n + stages * parts * block_k)
                        threads = warps * 32
                        accumulator = block_n * block_k // threads
                        # The tile of points sits in registers as well unless the matrix unit reads it from shared
                        # memory.
                        fragment = (
                            width * block_n * dot_bytes // 4 // threads if device.arch < 90 or dot_bytes == 4 else 0
                        )
                        if shared > device.shared_bytes - _RESERVE or accumulator > _ACCUMULATOR_REGISTERS:
                            continue
                        # Float32 products are multiply-adds with both operands in registers: only small tiles stay
                        # clear of spills (32 registers of scores spill on sm_80 from D = 320 on).
                        if full and split and (block_n * block_k > 64 * 64 or stages > 2 or accumulator > 16):
                            continue
                        # Rows that begin anywhere are loaded number by number, with an address each: few a thread.
                        loads = width * (block_n + parts * block_k) // threads
                        if not aligned and (accumulator > 32 or loads > 32):
                            continue
                        # Of their float32 products only these tiles compile without a spill for every D that was tried.
                        if not aligned and full and (stages > 1 or accumulator != 16 or block_k != 64):
                            continue
                        if not aligned and full and device.arch >= 90 and warps == 8:
                            continue
                        # Unpipelined, the two parts of a bfloat16 centroid spill with eight warps on the older unit.
                        if split and parts == 2 and device.arch < 90 and stages == 1 and warps == 8 and aligned:
                            continue
                        # A warp group multiplies 64 rows at a time; fewer would fall back to the older unit.
                        if not tiny and device.arch >= 90 and dot_bytes == 2 and block_n < 64:
                            continue
                        # Without a warp-group unit the operands of a wide tile pass through registers, and spill.
                        if (
                            not tiny
                            and device.arch < 90
                            and (block_k > 128 or (split and accumulator > 64 // (dot_bytes * parts)))
                        ):
                            continue
                        # The second part of a split centroid is one more operand in flight; multiply-adds hold theirs in
                        # registers.
                        if accumulator > (16 if tiny else 32 if parts == 2 else 64):
                            continue
                        if accumulator + min(fragment, 128) > 160 or block_n * 2 < threads // 2:
                            continue
                        found.append(
                            AssignPlan(block_n, block_k, block_d, d_pad, tiny, "", False, warps, stages, shared, 0.0)
                        )
    return tuple(found)


def plan_assign(
    b: int, n: int, k: int, d: int, itemsize: int, precision: Precision = "certified", device: Device =
    ARCHITECTURES[90], parts: int = 1,
) -> AssignPlan:  # fmt: skip
    """Choose the tiles of an assignment.

    Every configuration that fits shared memory and registers gets a predicted time: the largest of matrix time, L2
    time (each tile of points re-reads all centroids) and memory time, times the loss of the last wave. When the
    centroids exceed half of L2 their re-reads are charged to memory, which favours many points a tile (fewer passes
    over the centroids). At most three configurations a D, type and precision are ever chosen (see `_family`).

    Args:
        b, n, k, d: problems, points, centroids, features.
        itemsize: bytes of a stored number.
        precision: `ieee` computes in full float32, `tf32x3` in three passes, `fast` and `certified` in one pass of
        the storage type.
        device: facts of the GPU.
        parts: 2 when the centroids come in two parts (bfloat16 under `certified`).

    Raises:
        ValueError: no configuration fits the device.
    """
    family = _family(d, itemsize, precision, device, parts)
    timed = [replace(p, seconds=_seconds(p, b, n, k, d, itemsize, device)) for p in family]
    return min(timed, key=lambda p: p.seconds)


@lru_cache(maxsize=1024)
def plan_recheck(d: int, itemsize: int, device: Device = ARCHITECTURES[90]) -> AssignPlan:
    """The second look at flagged rows in full float32: tiles for few rows, the same for every N and K."""
    options = _options(d, itemsize, "ieee", device, 1)
    return min(options, key=lambda p: _seconds(p, 1, 2048, 1024, d, itemsize, device))


@lru_cache(maxsize=1024)
def _family(d: int, itemsize: int, precision: Precision, device: Device, parts: int) -> tuple[AssignPlan, ...]:
    """At most three plans for one D, type and precision: the best ones for few points, for many points, and for centroids that
    do not fit L2. Fresh shapes choose among them, so that they need no further kernels."""
    options = _options(d, itemsize, precision, device, parts)
    beyond = max(4096, device.l2_bytes // (d * itemsize))
    shapes = [(2048, 64), (1 << 20, 1024), (1 << 20, beyond)]
    best = [min(options, key=lambda p: _seconds(p, 1, n, k, d, itemsize, device)) for n, k in shapes]
    return tuple(dict.fromkeys(best))


def _options(d: int, itemsize: int, precision: Precision, device: Device, parts: int) -> list[AssignPlan]:
    """All configurations that fit."""
    tiny = d <= 8
    # Multiply-adds of tiny points are full float32 whatever was asked for.
    dot = "ieee" if tiny else {"ieee": "ieee", "tf32x3": "tf32x3"}.get(precision, "tf32")
    widen = itemsize < 4 and dot != "tf32"
    dot_bytes = 4 if widen or itemsize >= 4 else itemsize
    full = dot == "ieee" and dot_bytes == 4
    # Wide points and full float32 products go through D in slices.
    options = () if d > 256 or (full and not tiny) else _candidates(d, dot_bytes, tiny, False, full, parts, device)
    options = options or _candidates(d, dot_bytes, False, True, full, parts, device)
    if not options:
        raise ValueError(
            f"plan: expected a tile that fits {device.shared_bytes} bytes of shared memory, found none for D={d}"
        )
    return [replace(p, dot=dot, widen=widen) for p in options]


def _seconds(p: AssignPlan, b: int, n: int, k: int, d: int, itemsize: int, device: Device) -> float:
    dot_bytes = 4 if p.widen else itemsize
    full = p.dot == "ieee" and dot_bytes == 4
    rate = device.flops / {2: 1, 1: 0.5}.get(dot_bytes, 2) if not full and not p.tiny else device.flops / 12
    rate /= 3 if p.dot == "tf32x3" else 1
    tiles = b * math.ceil(n / p.block_n)
    columns = math.ceil(k / p.block_k) * p.block_k
    width = math.ceil(d / p.block_d) * p.block_d if p.block_d else (d if p.tiny else p.d_pad)
    matrix = 2.0 * tiles * p.block_n * columns * width / rate
    # Small tiles leave the matrix unit waiting for operands.
    matrix *= 1 + 8 / p.block_n + 16 / p.block_k + (0.25 if p.num_stages == 1 and k > 4 * p.block_k else 0.0)
    centroid_bytes = tiles * columns * width * dot_bytes
    points = b * n * d * itemsize * (math.ceil(k / p.block_k) if p.block_d else 1)
    cached = k * d * dot_bytes <= 0.5 * device.l2_bytes
    l2 = centroid_bytes / (4 * device.bandwidth) if cached else 0.0
    memory = (points + b * n * 8 + (0 if cached else centroid_bytes)) / device.bandwidth
    occupancy = max(1, min(device.shared_bytes // max(p.shared_bytes, 1), 64 // (p.num_warps * 2), 8))
    waves = tiles / (device.processors * occupancy)
    return max(matrix, l2, memory) * math.ceil(waves) / waves + 2e-6


def plan_update(n: int, k: int, d: int, itemsize: int, device: Device = ARCHITECTURES[90]) -> UpdatePlan:
    """Pieces of the segmented update: long ones where clusters are large, never so long that few programs share the
    work.

    The number of work items is at most `N / piece + K`.
    """
    block_d = min(128, max(16, 1 << math.ceil(math.log2(max(d, 1)))))
    piece = 256
    while piece > 64 and n / piece < 4 * device.processors:
        piece //= 2
    block_r = min(32, 2048 // block_d)
    return UpdatePlan(piece, block_r, block_d, 4)
