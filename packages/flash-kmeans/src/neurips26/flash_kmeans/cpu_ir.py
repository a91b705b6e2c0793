"""The CPU kernels as LLVM IR, written for the host's vector registers.

Why generated code: a library GEMM writes `rows x K` scores that a second pass reads back to find the minimum. Here the
scores of a tile of `3 * lanes` points against 8 centroids stay in vector registers (one point a lane) and are folded into
the running minimum at once, so the assignment costs what the multiplications cost. It plays on the CPU the part that
FlashAssign plays on a GPU.

Layout: the points of a tile are centred and transposed into `tile[d][point]` (registers hold points, L1 holds the tile);
centroids are packed into panels `panel[k // 8][d][k % 8]`, already multiplied by -2, so that the score `||c||^2 - 2 <x, c>`
is one chain of fused multiply-adds. A running minimum with a strict `<` over ascending k keeps the lowest index at a tie.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["TINY_D", "KernelWriter"]

#: Rows handed to the update while they are still in cache, in tiles. Measured flat between 2 and 16.
TILES_PER_BLOCK = 4
#: Up to this many features the norm starts the accumulator (one addition less); above, it is added last (smaller rounding error).
TINY_D = 16


class KernelWriter:
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
