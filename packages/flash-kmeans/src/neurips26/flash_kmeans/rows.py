"""Points that can be read block by block: arrays, tensors, memory maps, `.npy` files and lists of arrays, under one roof.

A block is `(rows, D)` in the compute type with neighbouring features neighbours in memory: float32, or float64 for float64
and for integers of 32 bits or more. An array that is like that already is never copied; anything else is converted one block
at a time, so the extra memory stays bounded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from neurips26.flash_kmeans.cpu_kernels import kernels

__all__ = [
    "ArrayRows",
    "FileRows",
    "ListRows",
    "Rows",
    "Summary",
    "TensorRows",
    "UnitRows",
    "check_labels",
    "check_range",
    "largest_square",
    "raise_out_of_range",
    "refuse_not_finite",
    "rows_of",
    "scatter_about",
    "summarise",
]

#: Rows looked at together by passes that are not tied to a slab.
BLOCK = 4096


class Rows:
    """`n` points with `d` features. Subclasses implement `read`."""

    n: int
    d: int
    dtype: np.dtype  # of the blocks: float32 or float64
    view: bool = False  # reading costs nothing: blocks are views

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows `start <= i < stop` as a block."""
        raise NotImplementedError

    def blocks(self, size: int = BLOCK, slab: int | None = None) -> Iterator[tuple[int, np.ndarray]]:
        """`(start, block)` in order, at most `size` rows each, never across a multiple of `slab`; the next block is
        read ahead."""
        spans = list(_spans(self.n, size, slab or size))
        if self.view or len(spans) < 2:
            for start, stop in spans:
                yield start, self.read(start, stop)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="flash-kmeans-read") as reader:
            ahead = reader.submit(self.read, *spans[0])
            for i, (start, _) in enumerate(spans):
                block = ahead.result()
                if i + 1 < len(spans):
                    ahead = reader.submit(self.read, *spans[i + 1])
                yield start, block

    def take(self, indices: np.ndarray) -> np.ndarray:
        """Single rows, in the order of `indices`."""
        out = np.empty((len(indices), self.d), self.dtype)
        for position, i in enumerate(indices):
            out[position] = self.read(int(i), int(i) + 1)[0]
        return out


def _spans(n: int, size: int, slab: int) -> Iterator[tuple[int, int]]:
    start = 0
    while start < n:
        stop = min(start + size, (start // slab + 1) * slab, n)
        yield start, stop
        start = stop


def _compute_type(dtype: np.dtype) -> np.dtype:
    """float64 for float64 and for integers that float32 cannot hold (32 bits or more), else float32."""
    wide = dtype == np.float64 or (dtype.kind in "iu" and dtype.itemsize > 2)
    return np.dtype(np.float64 if wide else np.float32)


class ArrayRows(Rows):
    """A numpy array of any numeric type and any strides."""

    def __init__(self, x: np.ndarray) -> None:
        self.n, self.d = x.shape
        self.dtype = _compute_type(x.dtype)
        self._x = x
        unit_stride = x.strides[1] == x.itemsize or self.d == 1
        self.view = bool(
            x.dtype == self.dtype
            and unit_stride
            and x.strides[0] % x.itemsize == 0
            and x.strides[0] >= 0
            and x.flags.aligned
        )
        if self.n * self.d and self.d == 1 and x.strides[1] != x.itemsize:
            self._x = np.lib.stride_tricks.as_strided(x, strides=(x.strides[0], x.itemsize))

    def read(self, start: int, stop: int) -> np.ndarray:
        """See `Rows.read`."""
        block = self._x[start:stop]
        return block if self.view else np.ascontiguousarray(block, dtype=self.dtype)

    def take(self, indices: np.ndarray) -> np.ndarray:
        """See `Rows.take`."""
        return np.ascontiguousarray(self._x[indices], dtype=self.dtype)


class TensorRows(Rows):
    """A torch tensor on the CPU that numpy cannot hold (bfloat16)."""

    def __init__(self, x: torch.Tensor) -> None:
        self.n, self.d = x.shape
        self.dtype = np.dtype(np.float32)
        self._x = x

    def read(self, start: int, stop: int) -> np.ndarray:
        """See `Rows.read`."""
        return self._x[start:stop].to(torch.float32).contiguous().numpy()


class FileRows(Rows):
    """Rows of a file, read with `pread` into fresh buffers: nothing stays mapped, so memory use is what the caller holds."""

    def __init__(self, path: str | os.PathLike[str], n: int, d: int, dtype: np.dtype, offset: int) -> None:
        self.path, self.n, self.d, self._stored, self._offset = Path(path), n, d, np.dtype(dtype), offset
        self.dtype = _compute_type(self._stored)
        needed, size = offset + n * d * self._stored.itemsize, os.path.getsize(path)
        if size < needed:
            raise ValueError(
                f"x: {path}: expected {needed} bytes for {n} x {d} {self._stored}, got {size} (truncated file)"
            )
        self._file = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    @classmethod
    def npy(cls, path: str | os.PathLike[str]) -> FileRows:
        """Rows of a `.npy` file; errors name the file."""
        try:
            with open(path, "rb") as file:
                version = np.lib.format.read_magic(file)
                reader = (
                    np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                )
                shape, fortran, dtype = reader(file)
                offset = file.tell()
        except FileNotFoundError:
            raise FileNotFoundError(f"x: {path}: no such file") from None
        except ValueError as error:
            raise ValueError(f"x: {path}: not a readable .npy file ({error})") from error
        if dtype.kind not in "biuf":
            raise TypeError(f"x: {path}: expected numbers, got dtype {dtype}")
        if len(shape) != 2 or fortran:
            raise ValueError(f"x: {path}: expected a C-ordered array (N, D), got {'Fortran-ordered ' * fortran}{shape}")
        return cls(path, shape[0], shape[1], dtype, offset)

    @classmethod
    def memmap(cls, x: np.memmap) -> FileRows | None:
        """The file behind a memory map, where the map is plain (C order, not sliced)."""
        name = x.filename
        if name is None or not x.flags.c_contiguous or x.ndim != 2:
            return None
        base = x
        while isinstance(base.base, np.memmap):
            base = base.base
        offset = x.offset + x.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        return cls(name, x.shape[0], x.shape[1], x.dtype, offset)

    def read(self, start: int, stop: int) -> np.ndarray:
        """See `Rows.read`."""
        block = np.empty((stop - start, self.d), self._stored)
        view, at = memoryview(block).cast("B"), self._offset + start * self.d * self._stored.itemsize
        while view.nbytes:
            got = os.preadv(self._file, [view[: 1 << 30]], at)
            if got == 0:
                raise ValueError(
                    f"x: {self.path}: the file ended while rows {start} to {stop} were read (truncated file)"
                )
            view, at = view[got:], at + got
        return block.astype(self.dtype, copy=False)


class ListRows(Rows):
    """Several arrays one after the other (shards)."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self._parts = list(parts)
        self._starts = np.concatenate([[0], np.cumsum([p.n for p in parts])])
        self.n, self.d = int(self._starts[-1]), parts[0].d
        self.dtype = np.result_type(*[p.dtype for p in parts])

    def read(self, start: int, stop: int) -> np.ndarray:
        """See `Rows.read`."""
        out = np.empty((stop - start, self.d), self.dtype)
        for part, first in zip(self._parts, self._starts):
            low, high = max(start, int(first)), min(stop, int(first) + part.n)
            if low < high:
                out[low - start : high - start] = part.read(low - int(first), high - int(first))
        return out


class UnitRows(Rows):
    """Rows scaled to length one (cosine); a zero row stays zero."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self.n, self.d, self.dtype = rows, rows.n, rows.d, rows.dtype

    def read(self, start: int, stop: int) -> np.ndarray:
        """See `Rows.read`."""
        block = self._rows.read(start, stop)
        largest = np.abs(block).max(axis=1, keepdims=True)
        scaled = block / np.where(largest > 0, largest, 1)  # so that squares neither overflow nor vanish
        length = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))[:, None]
        return np.ascontiguousarray(scaled / np.where(length > 0, length, 1), dtype=self.dtype)


def rows_of(x: Any, name: str = "x", *, through_file: bool = False, allow_empty: bool = False) -> Rows:
    """Wrap anything that holds points.

    Args:
        x: `(N, D)` array, torch tensor on the CPU, memory map, path of a `.npy` file, a list of such, or anything
            `numpy.asarray` takes.
        name: the argument's name, for messages.
        allow_empty: accept zero rows (a rank of a process group may have none).
        through_file: read memory maps through their file, so that mapped pages do not count as memory.

    Raises:
        TypeError: not numeric, or complex.
        ValueError: not two axes, no rows, no features, or a file shorter than its header says.
        FileNotFoundError: a path where no file is.
    """
    if isinstance(x, Rows):
        return x
    if isinstance(x, (str, os.PathLike)):
        rows: Rows = FileRows.npy(x)
    elif isinstance(x, torch.Tensor):
        if x.device.type != "cpu":
            raise ValueError(f"{name}: expected a tensor on the CPU, got {x.device}")
        if x.is_complex():
            raise TypeError(f"{name}: expected real numbers, got {x.dtype}")
        _two_axes(tuple(x.shape), name, allow_empty)
        x = x.detach()
        rows = TensorRows(x) if x.dtype == torch.bfloat16 else ArrayRows(x.numpy())
    elif (
        isinstance(x, (list, tuple))
        and len(x)
        and all(getattr(part, "ndim", 0) == 2 or isinstance(part, (str, os.PathLike, Rows)) for part in x)
    ):
        parts = [rows_of(part, f"{name}[{i}]", through_file=through_file) for i, part in enumerate(x)]
        if len({p.d for p in parts}) > 1:
            raise ValueError(f"{name}: expected shards with one number of features, got {[p.d for p in parts]}")
        rows = ListRows(parts)
    else:
        if not isinstance(x, np.ndarray) and hasattr(x, "__dlpack__") and not hasattr(x, "__array__"):
            x = torch.from_dlpack(x)
            return rows_of(x, name, through_file=through_file)
        try:
            array = np.asarray(x) if not isinstance(x, np.memmap) else x
        except (ValueError, TypeError) as error:
            raise TypeError(f"{name}: expected an array of numbers, got {type(x).__name__} ({error})") from error
        if array.dtype.kind not in "biuf":
            raise TypeError(f"{name}: expected an array of real numbers, got dtype {array.dtype}")
        _two_axes(array.shape, name, allow_empty)
        through = FileRows.memmap(array) if through_file and isinstance(array, np.memmap) else None
        rows = through or ArrayRows(np.asarray(array))
    _two_axes((rows.n, rows.d), name, allow_empty)
    return rows


def _two_axes(shape: tuple[int, ...], name: str, allow_empty: bool = False) -> None:
    if len(shape) != 2:
        raise ValueError(f"{name}: expected two axes (N, D), got shape {shape}")
    if (shape[0] == 0 and not allow_empty) or shape[1] == 0:
        raise ValueError(f"{name}: expected at least one row and one feature, got shape {shape}")


@dataclass(frozen=True)
class Summary:
    """What one pass over the points tells: their mean `(D,)`, the mean variance of a feature, and the weight of zero rows."""

    mean: np.ndarray
    variance: float
    squares: float  # sum of w ||x - mean||^2
    mass: float  # sum of w
    zero_rows: float


def summarise(rows: Rows, weights: np.ndarray | None = None, *, check_finite: bool = True, name: str = "x") -> Summary:
    """Mean, variance and finiteness in one pass, in float64 around the mean of the first rows.

    Raises:
        ValueError: NaN or infinity (the message names the first bad row), or squared distances that the compute type cannot
            hold.
    """
    engine = kernels(rows.dtype)
    first, second = np.zeros(rows.d), np.zeros(rows.d)
    shift, zero, mass = np.zeros(rows.d, rows.dtype), 0.0, 0.0
    weighted, weighted_square = np.zeros(rows.d), 0.0
    for start, block in rows.blocks(BLOCK):
        if start == 0:
            guess = block[:64].mean(axis=0, dtype=np.float64).astype(rows.dtype)
            shift = np.where(np.isfinite(guess), guess, 0).astype(rows.dtype)
        engine.moments(block, shift, first, second)
        if check_finite and not np.isfinite(second.sum()):
            _refuse_not_finite(block, start, name)
        if weights is not None:
            w = weights[start : start + len(block)].astype(np.float64)
            y = block.astype(np.float64) - shift
            weighted += w @ y
            weighted_square += float(w @ np.einsum("ij,ij->i", y, y))
            mass += float(w.sum())
        if isinstance(rows, UnitRows):
            empty = ~block.any(axis=1)
            zero += float(weights[start : start + len(block)][empty].sum()) if weights is not None else int(empty.sum())
    if rows.n == 0:
        return Summary(np.zeros(rows.d), 0.0, 0.0, 0.0, 0.0)
    offset = first / rows.n
    if check_finite:
        check_range(rows, float(second.sum()), shift + offset, name)
    squares = max(float((second - rows.n * offset * offset).sum()), 0.0)
    centre = shift.astype(np.float64) + offset
    variance = squares / (rows.n * rows.d)
    if weights is None:
        return Summary(centre, variance, squares, float(rows.n), zero)
    about = weighted_square - 2 * float(offset @ weighted) + mass * float(offset @ offset)
    return Summary(centre, variance, max(about, 0.0), mass, zero)


def scatter_about(rows: Rows, centre: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Sum of `w ||x - centre||^2`."""
    total = 0.0
    for start, block in rows.blocks(BLOCK):
        y = block.astype(np.float64) - centre
        squares = np.einsum("ij,ij->i", y, y)
        total += float(squares.sum() if weights is None else squares @ weights[start : start + len(block)])
    return total


def refuse_not_finite(rows: Rows, name: str) -> None:
    """Name the first row that holds NaN or infinity, if one does; for callers that met one in their sums."""
    for start, block in rows.blocks(BLOCK):
        _refuse_not_finite(block, start, name)


def check_labels(labels: Any, n: int, k: int) -> np.ndarray:
    """`(N,)` contiguous int32 labels in `0..k-1`.

    Raises:
        ValueError: other shapes, numbers that are no integers, or labels out of range.
    """
    given = np.asarray(labels.detach().cpu() if isinstance(labels, torch.Tensor) else labels)
    if given.dtype.kind not in "iu" or given.shape != (n,):
        raise ValueError(f"labels: expected (N={n},) integers, got {given.dtype} {given.shape}")
    if n and (given.min() < 0 or given.max() >= k):
        raise ValueError(f"labels: expected values in 0..{k - 1}, got {int(given.min())}..{int(given.max())}")
    return np.ascontiguousarray(given, np.int32)


def _refuse_not_finite(block: np.ndarray, start: int, name: str) -> None:
    """Say which row holds NaN or infinity, if one does."""
    bad = ~np.isfinite(block).all(axis=1)
    if bad.any():
        row = int(np.argmax(bad))
        value = block[row][~np.isfinite(block[row])][0]
        raise ValueError(
            f"{name}: expected finite numbers, got {value} in row {start + row} (Input contains NaN or infinity)"
        )


def largest_square(dtype: np.dtype) -> float:
    """The largest squared distance to the mean that leaves room for `||c||^2 - 2 <x, c>` and a trial centroid beyond."""
    return float(np.finfo(dtype).max) / 16


def check_range(rows: Rows, squares: float, centre: np.ndarray, name: str) -> None:
    """Refuse squared distances that overflow (they compare as infinite) or vanish (as ties): either gives wrong labels.

    Args:
        squares: a bound of the sum of all squared distances to `centre` `(D,)`; rows are looked at one by one only where
            it leaves open whether each is within range.

    Raises:
        ValueError: the message says what to do.
    """
    limit, tiny = largest_square(rows.dtype), float(np.finfo(rows.dtype).tiny)
    if tiny * rows.n <= squares <= limit:
        return
    first, same, total = rows.read(0, 1), True, 0.0
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for start, block in rows.blocks(BLOCK):
            each = np.square(block.astype(np.float64) - centre).sum(axis=1)
            over = ~(each <= limit)  # NaN where the mean itself is beyond float64
            if over.any():
                raise_out_of_range(f"{name}: row {start + int(np.argmax(over))}", rows.dtype, "above")
            same = same and bool((block == first).all())
            total += float(each.sum())
    if not same and total < tiny * rows.n:
        raise_out_of_range(name, rows.dtype, "below")


def raise_out_of_range(where: str, dtype: np.dtype, side: str) -> NoReturn:
    """The error about squared distances that the compute type cannot hold."""
    low, high = float(np.finfo(dtype).tiny), largest_square(dtype)
    advice = "scale the data" + (" or pass float64" if dtype == np.float32 else "")
    raise ValueError(
        f"{where}: expected squared distances to the mean between {low:.2g} and {high:.2g} ({dtype}), "
        f"got {f'more than {high:.2g}' if side == 'above' else f'a mean below {low:.2g}'}: {advice}"
    )
