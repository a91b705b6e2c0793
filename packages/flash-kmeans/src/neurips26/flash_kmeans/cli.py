"""`neurips26 flash-kmeans <verb>`: thin wrappers of the public API."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

__all__ = ["main"]


@dataclass
class Fit:
    """Cluster the rows of a .npy file and write the centroids."""

    x: tyro.conf.Positional[Path]
    """File with an array (N, D)."""
    k: Annotated[int, tyro.conf.arg(aliases=["-k"])]
    """Number of clusters."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """Centroids, a .npy file (K, D); or an estimator that `KMeans.load` reads, where the name ends in .safetensors."""
    labels: Path | None = None
    """Where to write the labels as well."""
    init: Literal["k-means++", "k-means||", "random"] = "k-means++"
    max_iter: int = 100
    tol: float = 1e-4
    metric: Literal["euclidean", "cosine"] = "euclidean"
    memory_limit: int | None = None
    """Bytes that may be held beyond the labels."""
    checkpoint: Path | None = None
    """File to write the state to after each iteration."""
    resume: bool = False
    """Continue from the checkpoint."""
    seed: int = 0
    device: str | None = None

    def run(self) -> None:
        """Fit, write, say what was done."""
        import numpy as np

        from neurips26.flash_kmeans import kmeans
        from neurips26.shared.runs import atomic_path

        result = kmeans(
            self.x, self.k, init=self.init, max_iter=self.max_iter, tol=self.tol, metric=self.metric,
            memory_limit=self.memory_limit, checkpoint=self.checkpoint, resume=self.resume, seed=self.seed, device=self.device,
        )  # fmt: skip
        arrays = [(self.labels, result.labels)]
        if self.out.suffix == ".safetensors":
            from neurips26.flash_kmeans import KMeans

            model = KMeans(self.k, init=self.init, max_iter=self.max_iter, tol=self.tol, metric=self.metric)
            model.cluster_centers_, model.inertia_, model.n_iter_ = result.centroids, result.inertia, result.n_iter
            model.history_, model.path_ = result.history, result.path
            model.save(self.out)
        else:
            arrays.append((self.out, result.centroids))
        for path, array in arrays:
            if path is not None:
                with atomic_path(path) as temporary, open(temporary, "wb") as file:
                    np.save(file, array)
        state = "converged" if result.converged else "not converged"
        print(f"inertia {result.inertia:.6g} after {result.n_iter} iterations ({state}), path {result.path}")


@dataclass
class Predict:
    """Write the nearest centroid of each row of a .npy file."""

    x: tyro.conf.Positional[Path]
    """File with an array (N, D)."""
    centroids: tyro.conf.Positional[Path]
    """What `fit` wrote: a .npy file (K, D), or a .safetensors file, which knows its metric."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """Labels, a .npy file (N,) of int32."""
    metric: Literal["euclidean", "cosine"] = "euclidean"

    def run(self) -> None:
        """Assign and write."""
        import numpy as np

        from neurips26.flash_kmeans import KMeans, assign
        from neurips26.shared.runs import atomic_path

        metric = self.metric
        if not self.centroids.is_file():
            raise FileNotFoundError(f"centroids: {self.centroids}: no such file")
        if self.centroids.suffix == ".safetensors":
            model = KMeans.load(self.centroids)
            centroids, metric = model.cluster_centers_, model.metric
        else:
            centroids = np.load(self.centroids)
        labels = assign(self.x, centroids, metric=metric)
        with atomic_path(self.out) as temporary, open(temporary, "wb") as file:
            np.save(file, labels)
        print(f"{len(labels)} labels")


@dataclass
class Plan:
    """Print how a problem of a given shape would be cut up, here and on a GPU."""

    n: int
    k: int
    d: int
    memory_limit: int | None = None
    arch: int = 90
    """Compute capability times ten of the GPU."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float16"

    def run(self) -> None:
        """Print both plans."""
        import torch

        from neurips26.flash_kmeans.gpu_plan import ARCHITECTURES, plan_assign
        from neurips26.flash_kmeans.plan import cpu_plan
        from neurips26.shared.arrays import check_choice

        threads = torch.get_num_threads()
        plan = cpu_plan(
            self.n, self.k, self.d, threads=threads, memory_limit=self.memory_limit, view=self.memory_limit is None
        )
        print(
            f"cpu: {plan.threads} threads, slabs of {plan.slab_rows} rows, pieces of {plan.piece_rows}, {plan.bytes / 1e6:.1f} MB"
        )
        check_choice(self.arch, "arch", ARCHITECTURES)
        size = 4 if self.dtype == "float32" else 2
        tiles = plan_assign(1, self.n, self.k, self.d, size, device=ARCHITECTURES[self.arch])
        print(f"sm_{self.arch} {self.dtype}: {tiles}")


@dataclass
class CompileReport:
    """Compile the Triton kernels for GPUs that need not be here, and print what the compiler made of them."""

    grid: bool = False
    """Every configuration of a grid of 240 shapes and of `benchmarks/gpu.py` as well (several minutes), not only the paper's."""
    arch: list[int] = field(default_factory=lambda: [80, 90])
    """Compute capabilities times ten."""

    def run(self) -> None:
        """Print one line a kernel, and what is wrong with it; a kernel with a fault makes the status 2."""
        from neurips26.flash_kmeans.compile_report import compile_report, grid_variants, paper_variants
        from neurips26.flash_kmeans.gpu_plan import ARCHITECTURES
        from neurips26.shared.arrays import check_choice

        for arch in self.arch:
            check_choice(arch, "arch", ARCHITECTURES)
        found = compile_report((grid_variants if self.grid else paper_variants)(self.arch))
        print("arch  kernel               type      registers  spills  shared   HMMA  HGMMA  atomics  tiles")
        for c in found:
            v, constants = c.variant, dict(c.variant.constants)
            tiles = "x".join(
                str(constants[name]) for name in ("BLOCK_N", "BLOCK_K", "BLOCK_D", "BLOCK_R") if name in constants
            )
            weighted = " weighted" if constants.get("WEIGHTED") else ""
            print(
                f"sm_{v.arch} {v.kernel:20} {v.dtype:9} {c.registers:9} {c.spills:7} {c.shared:7} {c.matrix:6} {c.warpgroup:6} "
                f"{c.atomics:8}  D={constants.get('D', '-')} {tiles} warps={v.num_warps}{weighted} {', '.join(c.faults)}"
            )
        bad = [c for c in found if c.faults]
        spills, atomics = sum(c.spills for c in found), sum(c.atomics for c in found)
        print(f"{len(found)} kernels, {spills} spills, {atomics} atomics, {len(bad)} with a fault")
        for arch in self.arch:
            most = max(c.shared for c in found if c.variant.arch == arch)
            print(f"sm_{arch}: at most {most} of {ARCHITECTURES[arch].shared_bytes} bytes of shared memory")
        if bad:
            raise ValueError(f"{len(bad)} of {len(found)} kernels have faults")


@dataclass
class Doctor:
    """Say which kernels run on this machine and why."""

    def run(self) -> None:
        """Compile the CPU kernels and look for a GPU."""
        import numpy as np
        import torch

        from neurips26.flash_kmeans.cpu_kernels import kernels

        k = kernels(np.float32)
        print(f"cpu: {k.lanes} float32 lanes, register tile of {k.points} points x {k.centroids} centroids")
        if torch.cuda.is_available():
            print(f"gpu: {torch.cuda.get_device_name()} (compute capability {torch.cuda.get_device_capability()})")
        else:
            print("gpu: none (device='cuda' is an error here)")


VERBS = {"fit": Fit, "predict": Predict, "plan": Plan, "compile-report": CompileReport, "doctor": Doctor}


def main(argv: list[str]) -> int:
    """Run one verb; a bad argument is one line on stderr and status 2."""
    verb = tyro.extras.subcommand_cli_from_dict(VERBS, args=argv, prog="neurips26 flash-kmeans")
    try:
        verb.run()
    except (ValueError, TypeError, OSError) as error:
        print(f"neurips26 flash-kmeans: {error}", file=sys.stderr)
        return 2
    return 0
