"""What the compiler makes of the kernels, without a GPU: registers, spills, shared memory, matrix instructions.

Ahead-of-time compilation and Triton's interpreter cannot share a process: run this one without `TRITON_INTERPRET`.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neurips26.flash_kmeans.gpu_plan import (
    ARCHITECTURES,
    AssignPlan,
    Precision,
    UpdatePlan,
    plan_assign,
    plan_recheck,
    plan_update,
)

__all__ = [
    "Compiled",
    "Variant",
    "compile_report",
    "compile_variant",
    "grid_variants",
    "paper_variants",
    "script_variants",
]

_POINTER = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16"}
ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Variant:
    """One kernel as it is compiled: name, storage type, architecture, compile-time constants, launch parameters."""

    kernel: str
    dtype: str
    arch: int
    constants: tuple[tuple[str, Any], ...]
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class Compiled:
    """What came out. `registers` a thread, `spills` local loads and stores in the machine code, `stack` bytes of a
    thread, `shared` bytes of a program, `matrix` matrix-unit instructions (`warpgroup` of them HGMMA), `atomics`
    atomic instructions."""

    variant: Variant
    registers: int
    spills: int
    stack: int
    shared: int
    matrix: int
    warpgroup: int
    atomics: int

    @property
    def faults(self) -> list[str]:
        """What a kernel of ours must not have: spills, more shared memory than there is, atomics in the deterministic update, a
        product without matrix instructions (on sm_90 without those of a warp group, for half types)."""
        constants, found = dict(self.variant.constants), []
        if self.spills or self.stack:
            found.append("spills")
        if self.shared > ARCHITECTURES[self.variant.arch].shared_bytes:
            found.append("too much shared memory")
        if self.atomics and not constants.get("ATOMIC"):
            found.append("atomics")
        if "assign" in self.variant.kernel and not constants.get("TINY") and constants["DOT"] != "ieee":
            if not self.matrix:
                found.append("no matrix instruction")
            elif self.variant.arch == 90 and self.variant.dtype != "float32" and not self.warpgroup:
                found.append("no warp-group matrix instruction")
        return found


def _assign_variant(
    plan: AssignPlan, d: int, dtype: str, arch: int, *, top2: bool, gather: bool, parts: int
) -> Variant:
    constants: dict[str, Any] = dict(
        BLOCK_N=plan.block_n,
        BLOCK_K=plan.block_k,
        DOT=plan.dot,
        WIDEN=plan.widen,
        PARTS=parts,
        BEST=top2,
        TOP2=top2,
        GATHER=gather,
        D=d,
    )
    if plan.block_d:
        return Variant(
            "split_assign_kernel",
            dtype,
            arch,
            tuple(constants.items()) + (("BLOCK_D", plan.block_d),),
            plan.num_warps,
            plan.num_stages,
        )
    constants |= dict(D_PAD=plan.d_pad, TINY=plan.tiny)
    return Variant("assign_kernel", dtype, arch, tuple(constants.items()), plan.num_warps, plan.num_stages)


def _update_variants(plan: UpdatePlan, dtype: str, arch: int, weighted: bool, atomic: bool) -> list[Variant]:
    partial = dict(BLOCK_R=plan.block_r, BLOCK_D=plan.block_d, WEIGHTED=weighted, ATOMIC=atomic)
    found = [Variant("partial_kernel", dtype, arch, tuple(partial.items()), plan.num_warps, 3)]
    if not atomic:
        combine = dict(BLOCK_D=plan.block_d, WEIGHTED=weighted)
        found.append(Variant("combine_kernel", "float32", arch, tuple(combine.items()), plan.num_warps, 3))
    return found


def _shape_variants(
    b: int, n: int, k: int, d: int, dtype: str, arch: int, precision: Precision = "certified"
) -> list[Variant]:
    """All kernels that one assignment at `precision` and one update launch."""
    device, size = ARCHITECTURES[arch], ITEMSIZE[dtype]
    certified = precision == "certified"
    parts = 2 if certified and dtype == "bfloat16" else 1
    plan = plan_assign(b, n, k, d, size, precision, device, parts)
    certify = certified and k > 1 and plan.dot != "ieee"
    parts = parts if certify else 1
    found = [_assign_variant(plan, d, dtype, arch, top2=certify, gather=False, parts=parts)]
    if certify:
        exact = plan_recheck(d, size, device)
        found.append(_assign_variant(exact, d, dtype, arch, top2=False, gather=True, parts=1))
    update = plan_update(n, k, d, size, device)
    return found + [v for weighted in (False, True) for v in _update_variants(update, dtype, arch, weighted, False)]


def paper_variants(archs: Sequence[int] = (80, 90)) -> list[Variant]:
    """Kernels of the paper's published shapes (arXiv 2603.09229, section on end-to-end speed, and the published
    benchmark grids)."""
    shapes = [
        (32, 65536, 1024, 128, "float16"),
        (1, 8_000_000, 1024, 128, "float16"),
        (64, 37440, 293, 128, "bfloat16"),
        (1, 1 << 22, 2048, 128, "float32"),
    ]
    return _distinct(v for arch in archs for shape in shapes for v in _shape_variants(*shape, arch))


def script_variants(archs: Sequence[int] = (80, 90)) -> list[Variant]:
    """Kernels that `benchmarks/gpu.py` launches, step by step of `gpu_bench`."""
    half, every = ("float16",), tuple(ITEMSIZE)
    exact: tuple[Precision, ...] = ("certified", "ieee")
    odd = [(1, 1, 1, 3), (2, 65, 63, 3), (3, 130, 65, 17), (3, 7, 1000, 16), (1, 257, 66, 320), (1, 70, 9, 513)]
    grid = [(b, n, k, 128) for b in (8, 32) for n in (16_384, 65_536, 131_072) for k in (100, 1000)]
    fast = [
        *grid, (8, 32_768, 4096, 128), (8, 32_768, 8192, 128), (1, 131_072, 32_768, 64),
        *[(1, n, k, 64) for n in (500, 5000) for k in (9, 63)], (1, 8_000_000, 1024, 128), (1, 4_000_000, 4096, 128),
    ]  # fmt: skip
    steps: list[tuple[Sequence[tuple[int, int, int, int]], Sequence[str], Sequence[Precision]]] = [
        ([(1, 1_000_000, 1024, 256), *odd], every, exact),
        ([(32, 65_536, 1024, 128)], half, ("fast", "certified")),
        (fast, half, ("fast",)),
        ([(1, 1 << 20, 4096, 128)], ("float32",), ("fast",)),
        ([(32, 37_440, 293, 128)], ("bfloat16",), ("fast",)),
    ]
    return _distinct(
        v
        for arch in archs
        for shapes, dtypes, precisions in steps
        for shape in shapes
        for dtype in dtypes
        for precision in precisions
        for v in _shape_variants(*shape, dtype, arch, precision)
    )


def grid_variants(archs: Sequence[int] = (80, 90)) -> list[Variant]:
    """Kernels of every distinct configuration that the planner picks for a grid of 240 shapes, for the paper's and for those of
    `benchmarks/gpu.py`. Rows of 20, 100 and 300 numbers do not begin at multiples of 16 bytes."""
    sizes = [(1, 4096, 64), (1, 65536, 256), (1, 1 << 20, 1024), (8, 16384, 1000), (1, 1 << 20, 16384)]
    dims = [3, 8, 16, 20, 32, 64, 96, 100, 128, 192, 256, 300, 320, 512, 768, 1536]
    shapes = [(*size, d, dtype) for size in sizes for d in dims for dtype in ITEMSIZE]
    found = [v for arch in archs for shape in shapes for v in _shape_variants(*shape, arch)]
    return _distinct([*paper_variants(archs), *script_variants(archs), *found])


def _distinct(variants: Iterable[Variant]) -> list[Variant]:
    return list(dict.fromkeys(variants))


def compile_variant(variant: Variant) -> Compiled:
    """Compile one variant to machine code and read its resources.

    Raises:
        RuntimeError: this process runs Triton's interpreter.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise RuntimeError(
            "compile: expected a process without TRITON_INTERPRET (the interpreter replaces the compiler)"
        )
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from neurips26.flash_kmeans import gpu_assign, gpu_update

    kernel = getattr(gpu_assign if "assign" in variant.kernel else gpu_update, variant.kernel)
    constants = dict(variant.constants)
    signature, attrs = {}, {}
    for i, name in enumerate(kernel.arg_names):
        kind = _argument(name, variant, constants)
        signature[name] = kind
        # What the launcher finds on real tensors: aligned pointers, row strides that are multiples of 16, unit
        # column stride.
        aligned = kind.startswith("*") or (name in ("x_batch", "x_row") and constants.get("D", 16) % 16 == 0)
        if aligned:
            attrs[(i,)] = [["tt.divisibility", 16]]
    constexprs = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    if "x_col" in signature:
        signature["x_col"] = "constexpr"
        constexprs[(kernel.arg_names.index("x_col"),)] = 1
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=attrs)
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages, "enable_fp_fusion": True}
    compiled = triton.compile(source, target=GPUTarget("cuda", variant.arch, 32), options=options)
    return _resources(variant, compiled)


def _argument(name: str, variant: Variant, constants: dict[str, Any]) -> str:
    if name in constants:
        return "constexpr"
    storage = _POINTER[variant.dtype]
    if name == "x_ptr":
        return storage
    if name in ("c_ptr", "c_low_ptr"):
        # The exact pass of a narrow type multiplies widened points with float32 centroids.
        return "*fp32" if constants["WIDEN"] else storage
    if name in ("label_ptr", "rows_ptr", "count_ptr"):
        return "*i32"
    if name in ("order_ptr", "start_ptr", "first_ptr", "owner_ptr"):
        return "*i64"
    if name.endswith("_ptr"):
        return "*fp32"
    return "i32"


def _resources(variant: Variant, compiled: Any) -> Compiled:
    import triton.backends.nvidia as nvidia

    tools = Path(nvidia.__file__).parent / "bin"
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "kernel.cubin"
        binary.write_bytes(compiled.asm["cubin"])
        usage = _run([str(tools / "cuobjdump"), "-res-usage", str(binary)])
        machine = _run([str(tools / "nvdisasm"), "-c", str(binary)])
    registers = re.search(r"REG:(\d+)", usage)
    stack = re.search(r"STACK:(\d+)", usage)
    return Compiled(
        variant,
        registers=int(registers.group(1)) if registers else -1,
        spills=len(re.findall(r"\b(?:STL|LDL)\b", machine)),
        stack=int(stack.group(1)) if stack else -1,
        shared=int(compiled.metadata.shared),
        matrix=len(re.findall(r"\b(?:HMMA|HGMMA|IMMA|UTCHMMA)\b", machine)),
        warpgroup=len(re.findall(r"\bHGMMA\b", machine)),
        atomics=len(re.findall(r"\b(?:ATOM|ATOMG|RED)\b", machine)),
    )


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} failed: {done.stderr.strip()[:200]}")
    return done.stdout


def compile_report(variants: Sequence[Variant]) -> list[Compiled]:
    """Compile all variants, with a progress bar."""
    from neurips26.shared.progress import track

    return [compile_variant(v) for v in track(variants, "compiling")]
