"""The CPU kernels, generated as LLVM IR for the host's vector registers and compiled once a process (about 0.15 s).

Why generated code: a library GEMM writes `rows x K` scores that a second pass reads back to find the minimum. Here the
scores of a tile of `3 * lanes` points against 8 centroids stay in vector registers (one point a lane) and are folded into
the running minimum at once, so the assignment costs what the multiplications cost. The same file therefore plays on the CPU
the part that FlashAssign plays on a GPU.

Layout: the points of a tile are centred and transposed into `tile[d][point]` (registers hold points, L1 holds the tile);
centroids are packed into panels `panel[k // 8][d][k % 8]`, already multiplied by -2, so that the score `||c||^2 - 2 <x, c>`
is one chain of fused multiply-adds. A running minimum with a strict `<` over ascending k keeps the lowest index at a tie.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

#: Rows handed to the update while they are still in cache, in tiles. Measured flat between 2 and 16.
TILES_PER_BLOCK = 4
#: Up to this many features the norm starts the accumulator (one addition less); above, it is added last (smaller rounding error).
TINY_D = 16


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
            _Writer("float" if dtype == np.float32 else "double", self.lanes, host.point_vectors, host.centroids).module
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


class _Writer:
    """Writes the module. One method a kernel; the comments in each give the loop that it stands for."""

    def __init__(self, element: str, lanes: int, point_vectors: int, centroids: int) -> None:
        from llvmlite import ir

        self.ir = ir
        self.lanes, self.point_vectors, self.centroids = lanes, point_vectors, centroids
        self.points = lanes * point_vectors
        self.real = ir.FloatType() if element == "float" else ir.DoubleType()
        self.size = 4 if element == "float" else 8
        self.int32, self.int64 = ir.IntType(32), ir.IntType(64)
        self.index = (
            self.int32 if element == "float" else self.int64
        )  # as wide as the element, so that a select needs no conversion
        self.vector = ir.VectorType(self.real, lanes)
        self.index_vector = ir.VectorType(self.index, lanes)
        self.module = ir.Module("flash_kmeans")
        suffix = f"v{lanes}f{8 * self.size}"
        self.fma = ir.Function(self.module, ir.FunctionType(self.vector, [self.vector] * 3), f"llvm.fma.{suffix}")
        pack = self._pack()
        tiny, large = self._assign("assign_tiny", tiny=True), self._assign("assign", tiny=False)
        accumulate = self._accumulate()
        self._distance()
        self._moments()
        self._closest()
        self._batch(pack, self._lloyd("lloyd_tiny", tiny, accumulate), self._lloyd("lloyd", large, accumulate))

    # -- small vocabulary
    # -------------------------------------------------------------------------------------------------------------
    def _function(self, name: str, arguments: str):
        """Open `void name(...)`: `p` real*, `q` int32*, `n` int64*, `f` double*, `i` int64; pointers do not alias."""
        ir = self.ir
        kinds = {
            "p": self.real.as_pointer(), "q": self.int32.as_pointer(), "n": self.int64.as_pointer(),
            "f": ir.DoubleType().as_pointer(), "i": self.int64,
        }  # fmt: skip
        types = [kinds[a.split(":")[1]] for a in arguments.split()]
        function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), types), name)
        function.attributes.add("nounwind")
        function.attributes.add("noinline")  # one copy of the big register loop: compiling is half of a first call
        for argument, spec in zip(function.args, arguments.split()):
            argument.name = spec.split(":")[0]
            if argument.type != self.int64:
                argument.add_attribute("noalias")
        self.b = ir.IRBuilder(function.append_basic_block("entry"))
        return function

    def _int(self, value: int):
        return self.ir.Constant(self.int64, value)

    def _at(self, pointer, *offsets):
        """Pointer + sum of offsets."""
        total = offsets[0]
        for offset in offsets[1:]:
            total = self.b.add(total, offset)
        return self.b.gep(pointer, [total])

    @contextmanager
    def _loop(self, stop, step: int = 1, name: str = "i") -> Iterator:
        """`for (i = 0; i < stop; i += step)`."""
        b = self.b
        before = b.block
        head, body, end = (b.append_basic_block(f"{name}.{part}") for part in ("head", "body", "end"))
        b.branch(head)
        b.position_at_end(head)
        i = b.phi(self.int64, name)
        i.add_incoming(self._int(0), before)
        b.cbranch(b.icmp_signed("<", i, stop), body, end)
        b.position_at_end(body)
        yield i
        i.add_incoming(b.add(i, self._int(step)), b.block)
        b.branch(head)
        b.position_at_end(end)

    def _spread(self, scalar, vector_type=None):
        """A vector with `scalar` in every lane."""
        ir, b = self.ir, self.b
        vector_type = vector_type or self.vector
        empty = ir.Constant(vector_type, ir.Undefined)
        first = b.insert_element(empty, scalar, ir.Constant(self.int32, 0))
        return b.shuffle_vector(first, empty, ir.Constant(ir.VectorType(self.int32, self.lanes), [0] * self.lanes))

    def _load_vector(self, pointer, align: int):
        value = self.b.load(self.b.bitcast(pointer, self.vector.as_pointer()))
        value.align = align
        return value

    def _store_vector(self, value, pointer, align: int) -> None:
        self.b.store(value, self.b.bitcast(pointer, self.vector.as_pointer())).align = align

    def _wide(self, value):
        """As a double."""
        return self.b.fpext(value, self.ir.DoubleType()) if self.size == 4 else value

    def _minimum(self, a, b_):
        return self.b.select(self.b.icmp_signed("<", a, b_), a, b_)

    # -- kernels
    # ----------------------------------------------------------------------------------------------------------------------
    def _pack(self):
        """`packed[g][j][q] = -2 c[8g+q][j]`, `squares[8g+q] = norms ? ||c[8g+q]||^2 : 0`; padding scores +inf."""
        ir, width = self.ir, self._int(self.centroids)
        function = self._function("pack", "c:p k:i d:i norms:i packed:p squares:p")
        c, k, d, norms, packed, squares = function.args
        b = self.b
        panels = b.sdiv(b.add(k, self._int(self.centroids - 1)), width)
        double = ir.DoubleType()
        total = b.alloca(double)
        with self._loop(b.mul(panels, width), name="slot") as slot:
            real_row = b.icmp_signed("<", slot, k)
            row = b.gep(c, [b.mul(self._minimum(slot, b.sub(k, self._int(1))), d)])
            base = b.add(b.mul(b.sdiv(slot, width), b.mul(d, width)), b.srem(slot, width))
            b.store(ir.Constant(double, 0.0), total)
            with self._loop(d, name="feature") as j:
                value = b.load(self._at(row, j))
                scaled = b.fmul(value, ir.Constant(self.real, -2.0))
                b.store(
                    b.select(real_row, scaled, ir.Constant(self.real, 0.0)), self._at(packed, base, b.mul(j, width))
                )
                wide = self._wide(value)
                b.store(b.fadd(b.load(total), b.fmul(wide, wide)), total)
            square = b.select(b.icmp_signed("!=", norms, self._int(0)), b.load(total), ir.Constant(double, 0.0))
            square = b.select(real_row, square, ir.Constant(double, float("inf")))
            b.store(b.fptrunc(square, self.real) if self.size == 4 else square, self._at(squares, slot))
        b.ret_void()
        return function

    def _fill_tile(self, x, start, rows, d, stride, centre, tile) -> None:
        """`tile[j][p] = x[start + p][j] - centre[j]`; past the end the last row is repeated. Blocks of lanes x lanes
        are transposed."""
        b, lanes, points = self.b, self.lanes, self._int(self.points)
        last = b.sub(rows, self._int(1))
        with b.if_else(b.icmp_signed("<", d, self._int(lanes))) as (narrow, wide):
            with narrow, self._loop(points, name="point") as p:
                row = b.gep(x, [b.mul(b.add(start, self._minimum(p, last)), stride)])
                with self._loop(d, name="feature") as j:
                    value = b.fsub(b.load(self._at(row, j)), b.load(self._at(centre, j)))
                    b.store(value, self._at(tile, b.mul(j, points), p))
            with wide, self._loop(points, lanes, name="points") as p, self._loop(d, lanes, name="features") as j0:
                j = self._minimum(j0, b.sub(d, self._int(lanes)))  # the last block overlaps the one before
                shift = self._load_vector(self._at(centre, j), self.size)
                block = []
                for r in range(lanes):
                    row = b.gep(x, [b.mul(b.add(start, self._minimum(b.add(p, self._int(r)), last)), stride)])
                    block.append(b.fsub(self._load_vector(self._at(row, j), self.size), shift))
                for r, column in enumerate(self._transpose(block)):
                    self._store_vector(
                        column, self._at(tile, b.mul(b.add(j, self._int(r)), points), p), lanes * self.size
                    )

    def _transpose(self, rows: list) -> list:
        """Transpose a square block held in registers, in log2(lanes) rounds of two-input shuffles."""
        ir, lanes, rows = self.ir, self.lanes, list(rows)
        half = 1
        while half < lanes:
            low = [i if not i & half else lanes + i - half for i in range(lanes)]
            high = [i + half if not i & half else lanes + i for i in range(lanes)]
            masks = [ir.Constant(ir.VectorType(self.int32, lanes), mask) for mask in (low, high)]
            for i in range(lanes):
                if not i & half:
                    pair = rows[i], rows[i + half]
                    rows[i], rows[i + half] = (self.b.shuffle_vector(*pair, mask) for mask in masks)
            half *= 2
        return rows

    def _scores(self, panel, tile, d, squares, tiny: bool) -> list[list]:
        """`score[v][q] = squares[q] + sum_j tile[j][v] panel[j][q]`: all accumulators stay in registers (phis of the
        loop over j)."""
        ir, b, lanes, nv, nc = self.ir, self.b, self.lanes, self.point_vectors, self.centroids
        squared = [self._spread(b.load(self._at(squares, self._int(q)))) for q in range(nc)]
        zero = ir.Constant(self.vector, [0.0] * lanes)
        before = b.block
        head, body, end = (b.append_basic_block(f"dot.{part}") for part in ("head", "body", "end"))
        b.branch(head)
        b.position_at_end(head)
        j = b.phi(self.int64)
        j.add_incoming(self._int(0), before)
        score = [[b.phi(self.vector) for _ in range(nc)] for _ in range(nv)]
        for v in range(nv):
            for q in range(nc):
                score[v][q].add_incoming(squared[q] if tiny else zero, before)
        b.cbranch(b.icmp_signed("<", j, d), body, end)
        b.position_at_end(body)
        at_point, at_centroid = b.mul(j, self._int(self.points)), b.mul(j, self._int(nc))
        point = [
            self._load_vector(self._at(tile, at_point, self._int(v * lanes)), lanes * self.size) for v in range(nv)
        ]
        for q in range(nc):
            factor = self._spread(b.load(self._at(panel, at_centroid, self._int(q))))
            for v in range(nv):
                score[v][q].add_incoming(b.call(self.fma, [point[v], factor, score[v][q]]), b.block)
        j.add_incoming(b.add(j, self._int(1)), b.block)
        b.branch(head)
        b.position_at_end(end)
        return score if tiny else [[b.fadd(score[v][q], squared[q]) for q in range(nc)] for v in range(nv)]

    def _assign(self, name: str, tiny: bool):
        """For each tile of points, for each panel of centroids: scores in registers, folded into the running (best, index)."""
        ir, lanes, nv, nc = self.ir, self.lanes, self.point_vectors, self.centroids
        function = self._function(
            name, "x:p n:i d:i stride:i centre:p packed:p squares:p panels:i labels:q best:p tile:p changed:n"
        )
        x, n, d, stride, centre, packed, squares, panels, labels, best, tile, changed = function.args
        b = self.b
        align = lanes * self.size
        best_v, index_v = b.alloca(self.vector, nv), b.alloca(self.index_vector, nv)
        best_v.align = index_v.align = align
        slots = [ir.Constant(self.int32, v) for v in range(nv)]
        with self._loop(n, self.points, name="tile") as start:
            rows = self._minimum(b.sub(n, start), self._int(self.points))
            self._fill_tile(x, start, rows, d, stride, centre, tile)
            for v in slots:
                b.store(ir.Constant(self.vector, [float("inf")] * lanes), b.gep(best_v, [v]))
                b.store(ir.Constant(self.index_vector, [0] * lanes), b.gep(index_v, [v]))
            with self._loop(panels, name="panel") as g:
                first = b.mul(g, self._int(nc))
                panel = b.gep(packed, [b.mul(first, d)])
                score = self._scores(panel, tile, d, b.gep(squares, [first]), tiny)
                # if (score < best) best = score, index = k
                lowest = [b.load(b.gep(best_v, [v])) for v in slots]
                winner = [b.load(b.gep(index_v, [v])) for v in slots]
                base = b.trunc(first, self.int32) if self.index is self.int32 else first
                for q in range(nc):
                    k = self._spread(b.add(base, ir.Constant(self.index, q)), self.index_vector)
                    for v in range(nv):
                        better = b.fcmp_ordered("<", score[v][q], lowest[v])
                        lowest[v], winner[v] = b.select(better, score[v][q], lowest[v]), b.select(better, k, winner[v])
                for v in range(nv):
                    b.store(lowest[v], b.gep(best_v, [slots[v]]))
                    b.store(winner[v], b.gep(index_v, [slots[v]]))
            best_s, index_s = b.bitcast(best_v, self.real.as_pointer()), b.bitcast(index_v, self.index.as_pointer())
            with self._loop(rows, name="out") as r:
                at = b.add(start, r)
                b.store(b.load(self._at(best_s, r)), self._at(best, at))
                label = b.load(self._at(index_s, r))
                label = label if self.index is self.int32 else b.trunc(label, self.int32)
                differs = b.zext(b.icmp_signed("!=", label, b.load(self._at(labels, at))), self.int64)
                b.store(b.add(b.load(changed), differs), changed)
                b.store(label, self._at(labels, at))
        b.ret_void()
        return function

    def _closest(self) -> None:
        """`out[q][r] = min(closest[r], max(0, ||x_r||^2 + score(r, q)))` for the centroids of one panel (k-means++ trials)."""
        ir, lanes, nv, nc = self.ir, self.lanes, self.point_vectors, self.centroids
        function = self._function(
            "closest", "x:p n:i d:i stride:i centre:p panel:p squares:p norms:p closest:p out:p pitch:i tile:p"
        )
        x, n, d, stride, centre, panel, squares, norms, closest, out, pitch, tile = function.args
        b = self.b
        buffer = b.alloca(self.vector, nv * nc)
        buffer.align = lanes * self.size
        zero = ir.Constant(self.real, 0.0)
        with self._loop(n, self.points, name="tile") as start:
            rows = self._minimum(b.sub(n, start), self._int(self.points))
            self._fill_tile(x, start, rows, d, stride, centre, tile)
            score = self._scores(panel, tile, d, squares, tiny=False)
            for v in range(nv):
                for q in range(nc):
                    b.store(score[v][q], b.gep(buffer, [ir.Constant(self.int32, q * nv + v)]))
            flat = b.bitcast(buffer, self.real.as_pointer())
            with self._loop(self._int(nc), name="candidate") as q, self._loop(rows, name="row") as r:
                at = b.add(start, r)
                value = b.fadd(b.load(self._at(flat, b.mul(q, self._int(self.points)), r)), b.load(self._at(norms, at)))
                value = b.select(b.fcmp_ordered(">", value, zero), value, zero)
                before = b.load(self._at(closest, at))
                value = b.select(b.fcmp_ordered("<", value, before), value, before)
                b.store(value, self._at(out, b.mul(q, pitch), at))
        b.ret_void()

    def _accumulate(self):
        """`sums[label] += w (x - centre)`, `mass[label] += w`, `total += w best`, row after row, all in float64."""
        ir = self.ir
        function = self._function(
            "accumulate", "x:p n:i d:i stride:i centre:p labels:q best:p weights:p sums:f mass:f total:f"
        )
        x, n, d, stride, centre, labels, best, weights, sums, mass, total = function.args
        b = self.b
        unweighted = b.icmp_unsigned("==", b.ptrtoint(weights, self.int64), self._int(0))
        one = ir.Constant(self.real, 1.0)
        weight_slot = b.alloca(self.real)
        with self._loop(n, name="row") as r:
            b.store(one, weight_slot)
            with b.if_then(b.not_(unweighted)):
                b.store(b.load(self._at(weights, r)), weight_slot)
            weight = b.load(weight_slot)
            label = b.sext(b.load(self._at(labels, r)), self.int64)
            row, target = b.gep(x, [b.mul(r, stride)]), b.gep(sums, [b.mul(label, d)])
            wide = self._wide(weight)
            with self._loop(d, name="feature") as j:
                value = b.fsub(self._wide(b.load(self._at(row, j))), self._wide(b.load(self._at(centre, j))))
                b.store(b.fadd(b.load(self._at(target, j)), b.fmul(wide, value)), self._at(target, j))
            score = self._wide(b.load(self._at(best, r)))
            b.store(b.fadd(b.load(self._at(mass, label)), wide), self._at(mass, label))
            b.store(b.fadd(b.load(total), b.fmul(wide, score)), total)
        b.ret_void()
        return function

    def _distance(self) -> None:
        """`out[r] = sum_j (x[r][j] - c[label][j])^2`; the sum may be reordered into vector lanes."""
        ir = self.ir
        function = self._function("distance", "x:p n:i d:i stride:i c:p labels:q out:p")
        x, n, d, stride, c, labels, out = function.args
        b = self.b
        total = b.alloca(self.real)
        with self._loop(n, name="row") as r:
            label = b.sext(b.load(self._at(labels, r)), self.int64)
            row, centroid = b.gep(x, [b.mul(r, stride)]), b.gep(c, [b.mul(label, d)])
            b.store(ir.Constant(self.real, 0.0), total)
            with self._loop(d, name="feature") as j:
                difference = b.fsub(b.load(self._at(row, j)), b.load(self._at(centroid, j)))
                square = b.fmul(difference, difference)
                b.store(b.fadd(b.load(total), square, flags=["reassoc"]), total)
            b.store(b.load(total), self._at(out, r))
        b.ret_void()

    def _moments(self) -> None:
        """`first[j] += x[r][j] - shift[j]`, `second[j] += (x[r][j] - shift[j])^2`, in float64."""
        function = self._function("moments", "x:p n:i d:i stride:i shift:p first:f second:f")
        x, n, d, stride, shift, first, second = function.args
        b = self.b
        with self._loop(n, name="row") as r:
            row = b.gep(x, [b.mul(r, stride)])
            with self._loop(d, name="feature") as j:
                value = b.fsub(self._wide(b.load(self._at(row, j))), self._wide(b.load(self._at(shift, j))))
                b.store(b.fadd(b.load(self._at(first, j)), value), self._at(first, j))
                b.store(b.fadd(b.load(self._at(second, j)), b.fmul(value, value)), self._at(second, j))
        b.ret_void()

    def _lloyd(self, name: str, assign, accumulate):
        """Assign and update a few tiles at a time, so that the update finds the rows in cache."""
        function = self._function(
            name,
            "x:p n:i d:i stride:i centre:p packed:p squares:p panels:i labels:q best:p tile:p changed:n "
            "weights:p sums:f mass:f total:f",
        )
        x, n, d, stride, centre, packed, squares, panels, labels, best, tile, changed, weights, sums, mass, total = (
            function.args
        )
        b = self.b
        block = self.points * TILES_PER_BLOCK
        null = self.ir.Constant(self.real.as_pointer(), None)
        unweighted = b.icmp_unsigned("==", b.ptrtoint(weights, self.int64), self._int(0))
        with self._loop(n, block, name="block") as r:
            rows = self._minimum(b.sub(n, r), self._int(block))
            here, lab, score = b.gep(x, [b.mul(r, stride)]), b.gep(labels, [r]), b.gep(best, [r])
            b.call(assign, [here, rows, d, stride, centre, packed, squares, panels, lab, score, tile, changed])
            weight = b.select(unweighted, null, b.gep(weights, [r]))
            b.call(accumulate, [here, rows, d, stride, centre, lab, score, weight, sums, mass, total])
        b.ret_void()
        return function

    def _batch(self, pack, tiny, large) -> None:
        """One Lloyd step of each active problem of a batch; `stride_*` are element distances between problems."""
        function = self._function(
            "batch",
            "problems:i x:p stride_x:i lengths:n active:n n:i d:i k:i stride:i centre:p c:p norms:i packed:p squares:p panels:i "
            "labels:q best:p tile:p changed:n weights:p sums:f mass:f total:f",
        )
        (problems, x, stride_x, lengths, active, n, d, k, stride, centre, c, norms, packed, squares, panels, labels,
        best, tile, changed,
         weights, sums, mass, total) = function.args  # fmt: skip
        b = self.b
        unweighted = b.icmp_unsigned("==", b.ptrtoint(weights, self.int64), self._int(0))
        null = self.ir.Constant(self.real.as_pointer(), None)
        kd = b.mul(k, d)
        with self._loop(problems, name="problem") as p:
            with b.if_then(b.icmp_signed("!=", b.load(self._at(active, p)), self._int(0))):
                at_k, at_n = b.mul(p, kd), b.mul(p, n)
                b.call(pack, [b.gep(c, [at_k]), k, d, norms, packed, squares])
                weight = b.select(unweighted, null, b.gep(weights, [at_n]))
                arguments = [
                    b.gep(x, [b.mul(p, stride_x)]), b.load(self._at(lengths, p)), d, stride, b.gep(centre, [b.mul(p,
                    d)]), packed, squares,
                    panels, b.gep(labels, [at_n]), b.gep(best, [at_n]), tile, b.gep(changed, [p]), weight, b.gep(sums, [at_k]),
                    b.gep(mass, [b.mul(p, k)]), b.gep(total, [p]),
                ]  # fmt: skip
                with b.if_else(b.icmp_signed("<=", d, self._int(TINY_D))) as (small, big):
                    with small:
                        b.call(tiny, arguments)
                    with big:
                        b.call(large, arguments)
        b.ret_void()
