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
    UpdatePlan,
    plan_assign,
    plan_recheck,
    plan_update,
)

__all__ = ["Compiled", "Variant", "compile_report", "compile_variant", "grid_variants", "paper_variants"]

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
    def fits(self) -> bool:
        """No spill, and shared memory within what the architecture allows."""
        return self.spills == 0 and self.stack == 0 and self.shared <= ARCHITECTURES[self.variant.arch].shared_bytes


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
        found.append(Variant("combine_kernel", dtype, arch, tuple(combine.items()), plan.num_warps, 3))
    return found


def _shape_variants(b: int, n: int, k: int, d: int, dtype: str, arch: int) -> list[Variant]:
    """All kernels that `precision='certified'` and the update launch for one shape."""
    device, size = ARCHITECTURES[arch], ITEMSIZE[dtype]
    parts = 2 if dtype == "bfloat16" else 1
    fast = plan_assign(b, n, k, d, size, "certified", device, parts)
    exact = plan_recheck(d, size, device)
    found = [
        _assign_variant(fast, d, dtype, arch, top2=True, gather=False, parts=parts),
        _assign_variant(exact, d, dtype, arch, top2=False, gather=True, parts=1),
    ]
    return found + _update_variants(plan_update(n, k, d, size, device), dtype, arch, False, False)


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


def grid_variants(archs: Sequence[int] = (80, 90)) -> list[Variant]:
    """Kernels of every distinct configuration that the planner picks for the paper's shapes and a grid of 200 more."""
    sizes = [(1, 4096, 64), (1, 65536, 256), (1, 1 << 20, 1024), (8, 16384, 1000), (1, 1 << 20, 16384)]
    dims = [3, 8, 16, 32, 64, 96, 128, 192, 256, 320, 384, 512, 768, 1536]
    shapes = [(*size, d, dtype) for size in sizes for d in dims for dtype in ITEMSIZE][:200]
    found = [v for arch in archs for shape in shapes for v in _shape_variants(*shape, arch)]
    return _distinct([*paper_variants(archs), *found])


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
