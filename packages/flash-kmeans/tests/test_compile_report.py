"""What the compiler and the launcher make of the kernels, without a GPU and in processes of their own (the interpreter replaces
both).

A few kernels of each kind; `neurips26 flash-kmeans compile-report --grid` compiles every one that the planner picks."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from neurips26.flash_kmeans import compile_report
from neurips26.flash_kmeans.gpu_plan import plan_assign

COMPILE = """
import dataclasses, json
from neurips26.flash_kmeans.compile_report import compile_report, grid_variants
every = grid_variants()
update = next(v for v in every if v.kernel == "partial_kernel" and v.arch == 90)
contended = dataclasses.replace(update, constants=tuple((dict(update.constants) | {"ATOMIC": True}).items()))
for c in compile_report([contended, *every[::19]]):
    v = c.variant
    print("ROW", json.dumps([v.kernel, v.dtype, v.arch, dict(v.constants), c.spills, c.matrix, c.warpgroup, c.atomics, c.faults]))
"""

#: Runs the launcher up to the key under which it would look for a compiled kernel.
KEYS = """
import collections, json, torch
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature
from neurips26.flash_kmeans.gpu_plan import plan_update
from neurips26.flash_kmeans.gpu_update import launch_update
from neurips26.flash_kmeans.precision import assign_points

backend, keys = make_backend(GPUTarget("cuda", 90, 32)), collections.defaultdict(set)

def run(self, *arguments, grid, warmup, **options):
    bind = create_function_from_signature(self.signature, self.params, backend)
    found = bind(*arguments, debug=False, **options)
    keys[self.fn.__name__].add(str(found[1:]))

JITFunction.run = run
generator = torch.Generator().manual_seed(0)
for _ in range(50):
    n, k = (int(torch.randint(low, high, (1,), generator=generator)) for low, high in ((500, 20_000), (8, 2000)))
    x, c = torch.zeros(1, n, WIDTH, dtype=torch.float16), torch.zeros(1, k, WIDTH)
    out = assign_points(x, c, precision="certified")
    launch_update(x, torch.zeros_like(out.labels), k, plan_update(n, k, WIDTH, 2))
print("ROW", json.dumps({name: len(found) for name, found in keys.items()}))
"""


def rows(script):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("ROW")]


@pytest.mark.parametrize("width", [20, pytest.param(64, marks=pytest.mark.slow)])
def test_fresh_shapes_need_no_fresh_kernels(width):
    """50 different (N, K) at one D: at most four variants of a kernel."""
    (counts,) = rows(KEYS.replace("WIDTH", str(width)))
    assert set(counts) >= {"assign_kernel", "partial_kernel", "combine_kernel"}
    assert max(counts.values()) <= 4, counts


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_spills_and_the_right_instructions():
    contended, *found = rows(COMPILE)
    assert contended[-2] > 0, "the atomic update shows no atomics: they are not counted"
    assert len(found) >= 15
    for kernel, dtype, arch, constants, spills, matrix, warpgroup, atomics, faults in found:
        assert not faults, (kernel, dtype, arch, constants, faults)
        assert spills == 0 and atomics == 0
        fast = "assign" in kernel and not constants.get("TINY") and constants["DOT"] != "ieee"
        assert matrix > 0 or not fast, (kernel, dtype, arch, constants)
        if fast and arch == 90 and dtype != "float32":
            assert warpgroup > 0, (kernel, dtype, constants)


def test_faults_are_named():
    variant = compile_report.paper_variants([90])[0]
    good = compile_report.Compiled(variant, 100, 0, 0, 1000, 8, 8, 0)
    assert variant.kernel == "assign_kernel" and variant.dtype == "float16" and good.faults == []
    faults = {
        "spills": dict(stack=8), "too much shared memory": dict(shared=233_000), "atomics": dict(atomics=1),
        "no matrix instruction": dict(matrix=0), "no warp-group matrix instruction": dict(warpgroup=0),
    }  # fmt: skip
    for fault, change in faults.items():
        assert dataclasses.replace(good, **change).faults == [fault]


def test_the_grid_holds_what_the_script_launches():
    """Every plan of `benchmarks/gpu.py`'s largest steps is among the variants that the report compiles."""
    found = set()
    for v in compile_report.script_variants([90]):
        constants = dict(v.constants)
        if v.kernel == "assign_kernel" and v.dtype == "float16" and not constants["TOP2"]:
            found.add((constants["D"], constants["BLOCK_N"], constants["BLOCK_K"], v.num_warps, v.num_stages))
    for b, n, k, d in ((32, 65_536, 1024, 128), (1, 4_000_000, 4096, 128), (1, 131_072, 32_768, 64)):
        p = plan_assign(b, n, k, d, 2, "fast")
        assert (d, p.block_n, p.block_k, p.num_warps, p.num_stages) in found
