"""The compiled CPU kernels, called through ctypes: one object a float type, and the buffers that they work in.

`cpu_ir` writes them for the host's vector registers; compiling takes about 0.15 s, once a process.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from neurips26.flash_kmeans.cpu_ir import TINY_D, KernelWriter


@dataclass(frozen=True)
class HostVector:
    """Vector facts of the host: `lanes` float32 values a register, and the register tile `points x centroids` that fits."""

    lanes: int
    point_vectors: int
    centroids: int


def host_vector(features: dict[str, bool], machine: str) -> HostVector:
    """Choose the register tile: 24 accumulators with 32 registers (AVX-512, NEON), 12 with 16 registers (AVX2, SSE)."""
    if features.get("avx512f"):
        return HostVector(16, 3, 8)
    if machine in ("arm64", "aarch64"):
        return HostVector(4, 3, 8)
    return HostVector(8 if features.get("avx2") and features.get("fma") else 4, 3, 4)


class Kernels:
    """Compiled kernels of one element type (`float32` or `float64`). Pointers are passed as integers; every call
    releases the GIL."""

    def __init__(self, dtype: np.dtype) -> None:
        import platform

        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features()
        host = host_vector(dict(features), platform.machine())
        self.lanes = host.lanes * 4 // dtype.itemsize or 1
        self.points = self.lanes * host.point_vectors
        self.centroids = host.centroids
        self.dtype = dtype
        source = str(
            KernelWriter(
                "float" if dtype == np.float32 else "double", self.lanes, host.point_vectors, host.centroids
            ).module
        )
        target = llvm.Target.from_default_triple()
        machine = target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=3)
        module = llvm.parse_assembly(source)
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = True
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()
        p, i = ctypes.c_void_p, ctypes.c_int64
        signatures = {
            "pack": (p, i, i, i, p, p),
            "assign_tiny": (p, i, i, i, p, p, p, i, p, p, p, p),
            "assign": (p, i, i, i, p, p, p, i, p, p, p, p),
            "accumulate": (p, i, i, i, p, p, p, p, p, p, p),
            "distance": (p, i, i, i, p, p, p),
            "moments": (p, i, i, i, p, p, p),
            "lloyd_tiny": (p, i, i, i, p, p, p, i, p, p, p, p, p, p, p, p),
            "lloyd": (p, i, i, i, p, p, p, i, p, p, p, p, p, p, p, p),
            "closest": (p, i, i, i, p, p, p, p, p, p, i, p),
            "batch": (i, p, i, p, p, i, i, i, i, p, p, i, p, p, i, p, p, p, p, p, p, p, p),
        }
        for name, arguments in signatures.items():
            function = ctypes.CFUNCTYPE(None, *arguments)(self._engine.get_function_address(name))
            setattr(self, "_" + name, function)

    def pack(self, centroids: np.ndarray, centre: np.ndarray, norms: bool = True) -> PackedCentroids:
        """Pack `(K, D)` centroids that are relative to `centre` `(D,)`; with `norms=False` scores are `-2 <x, c>` (unit
        vectors)."""
        k, d = centroids.shape
        panels = -(-k // self.centroids)
        packed = np.empty(panels * self.centroids * d, self.dtype)
        squares = np.empty(panels * self.centroids, self.dtype)
        self._pack(centroids.ctypes.data, k, d, int(norms), packed.ctypes.data, squares.ctypes.data)
        return PackedCentroids(k, d, panels, packed, squares, centre)

    def scratch(self, d: int) -> Scratch:
        """Work space of one thread for points with `d` features."""
        return Scratch(self, d)

    def assign(self, x: np.ndarray, c: PackedCentroids, labels: np.ndarray, best: np.ndarray, scratch: Scratch) -> None:
        """Write the nearest centroid of each row of `x` to `labels` (int32) and its score to `best`; count changed labels."""
        call = self._assign_tiny if c.d <= TINY_D else self._assign
        call(
            x.ctypes.data, x.shape[0], c.d, x.strides[0] // x.itemsize, c.centre.ctypes.data, c.packed.ctypes.data,
            c.squares.ctypes.data, c.panels, labels.ctypes.data, best.ctypes.data, scratch.tile, scratch.changed.ctypes.data,
        )  # fmt: skip

    def lloyd(
        self, x: np.ndarray, c: PackedCentroids, labels: np.ndarray, best: np.ndarray, weights: np.ndarray | None,
        sums: np.ndarray, mass: np.ndarray, scratch: Scratch,
    ) -> None:  # fmt: skip
        """Assign, then add each row (minus the centre, times its weight) to `sums` `(K, D)` and its weight to `mass`
        `(K,)`, float64."""
        call = self._lloyd_tiny if c.d <= TINY_D else self._lloyd
        call(
            x.ctypes.data, x.shape[0], c.d, x.strides[0] // x.itemsize, c.centre.ctypes.data, c.packed.ctypes.data,
            c.squares.ctypes.data, c.panels, labels.ctypes.data, best.ctypes.data, scratch.tile, scratch.changed.ctypes.data,
            weights.ctypes.data if weights is not None else None, sums.ctypes.data, mass.ctypes.data, scratch.total.ctypes.data,
        )  # fmt: skip

    def accumulate(
        self, x: np.ndarray, centre: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, sums: np.ndarray,
        mass: np.ndarray, best: np.ndarray, scratch: Scratch,
    ) -> None:  # fmt: skip
        """The update alone: rows of `x` added to the sums of their labels, in row order (no scatter conflicts, hence
        repeatable)."""
        self._accumulate(
            x.ctypes.data, x.shape[0], x.shape[1], x.strides[0] // x.itemsize, centre.ctypes.data, labels.ctypes.data,
            best.ctypes.data, weights.ctypes.data if weights is not None else None, sums.ctypes.data, mass.ctypes.data,
            scratch.total.ctypes.data,
        )  # fmt: skip

    def closest(
        self,
        x: np.ndarray,
        c: PackedCentroids,
        norms: np.ndarray,
        closest: np.ndarray,
        out: np.ndarray,
        scratch: Scratch,
    ) -> None:
        """`out[q, r]`: the smaller of `closest[r]` and the squared distance of row r to candidate q; `out` has rows for
        whole panels."""
        width = self.centroids
        for g in range(c.panels):
            self._closest(
                x.ctypes.data, x.shape[0], c.d, x.strides[0] // x.itemsize, c.centre.ctypes.data,
                c.packed[g * width * c.d :].ctypes.data, c.squares[g * width :].ctypes.data, norms.ctypes.data,
                closest.ctypes.data,
                out[g * width :].ctypes.data, out.strides[0] // out.itemsize, scratch.tile,
            )  # fmt: skip

    def batch(
        self, x: np.ndarray, lengths: np.ndarray, active: np.ndarray, centre: np.ndarray, centroids: np.ndarray, norms: bool,
        labels: np.ndarray, best: np.ndarray, changed: np.ndarray, weights: np.ndarray | None, sums: np.ndarray, mass: np.ndarray,
        total: np.ndarray,
    ) -> None:  # fmt: skip
        """One Lloyd step for every active problem of `x` `(B, N, D)` with `centroids` `(B, K, D)` relative to `centre`
        `(B, D)`."""
        problems, n, d = x.shape
        k = centroids.shape[1]
        panels = -(-k // self.centroids)
        packed, squares = (
            np.empty(panels * self.centroids * d, self.dtype),
            np.empty(panels * self.centroids, self.dtype),
        )
        scratch = self.scratch(d)
        self._batch(
            problems, x.ctypes.data, x.strides[0] // x.itemsize, lengths.ctypes.data, active.ctypes.data, n, d, k,
            x.strides[1] // x.itemsize, centre.ctypes.data, centroids.ctypes.data, int(norms), packed.ctypes.data,
            squares.ctypes.data,
            panels, labels.ctypes.data, best.ctypes.data, scratch.tile, changed.ctypes.data,
            weights.ctypes.data if weights is not None else None, sums.ctypes.data, mass.ctypes.data, total.ctypes.data,
        )  # fmt: skip

    def distance(self, x: np.ndarray, centroids: np.ndarray, labels: np.ndarray, out: np.ndarray) -> None:
        """Squared distance of each row to the centroid of its label, from the differences (no cancellation)."""
        self._distance(
            x.ctypes.data,
            x.shape[0],
            x.shape[1],
            x.strides[0] // x.itemsize,
            centroids.ctypes.data,
            labels.ctypes.data,
            out.ctypes.data,
        )

    def moments(self, x: np.ndarray, shift: np.ndarray, first: np.ndarray, second: np.ndarray) -> None:
        """Add the sums and the sums of squares of `x - shift` of each feature to `first` and `second` `(D,)`, float64."""
        self._moments(
            x.ctypes.data, x.shape[0], x.shape[1], x.strides[0] // x.itemsize, shift.ctypes.data, first.ctypes.data,
            second.ctypes.data,
        )  # fmt: skip


@dataclass(frozen=True)
class PackedCentroids:
    """Centroids in panels, ready for the kernels."""

    k: int
    d: int
    panels: int
    packed: np.ndarray
    squares: np.ndarray
    centre: np.ndarray


class Scratch:
    """One thread's tile buffer (cache-line aligned) and its two running totals."""

    def __init__(self, kernels: Kernels, d: int) -> None:
        self._buffer = np.zeros(kernels.points * max(d, 1) * kernels.dtype.itemsize + 64, np.uint8)
        self.tile = self._buffer.ctypes.data + (-self._buffer.ctypes.data) % 64
        self.changed = np.zeros(1, np.int64)
        self.total = np.zeros(1, np.float64)


_lock = threading.Lock()


def kernels(dtype: np.dtype | type) -> Kernels:
    """The compiled kernels for `float32` or `float64`."""
    with _lock:
        return _kernels(np.dtype(dtype))


@lru_cache(maxsize=2)
def _kernels(dtype: np.dtype) -> Kernels:
    return Kernels(dtype)
