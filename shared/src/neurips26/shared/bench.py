"""Speed as a ratio: two callables interleaved in one process, with pinned threads, beside a reference GEMM.

Cores are shared with other work on most machines. An absolute time does not survive that; the ratio of two callables
measured in turns, in CPU seconds, does. Every result carries the time of one reference matrix product of the same run,
so that a reader can tell a slow machine from slow code, and says when the run was contended.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from neurips26.shared import stats
from neurips26.shared.arrays import check_int, check_real
from neurips26.shared.threads import limit

__all__ = ["GEMM_SIZE", "Growth", "RatioResult", "Timing", "growth", "measure", "ratio"]

#: The reference: one float32 product of two square matrices of this size (0.27 GFLOP).
GEMM_SIZE = 512

#: Without competition a pinned product uses its cores all the time; below this share somebody else had them.
_BUSY_SHARE = 0.85

Call = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """Seconds a call, one entry a repeat.

    Attributes:
        cpu: CPU seconds of this process, all threads together.
        wall: elapsed seconds.
        calls: calls in each repeat (short callables are repeated until the clock can resolve them).
    """

    cpu: tuple[float, ...]
    wall: tuple[float, ...]
    calls: int

    @property
    def median(self) -> float:
        """Median CPU seconds a call."""
        return float(np.median(self.cpu))


@dataclass(frozen=True)
class RatioResult:
    """``ours`` relative to ``peer``: below 1 is faster.

    Attributes:
        cpu: median over the pairs of the ratio of CPU seconds.
        wall: the same of elapsed seconds.
        low, high: quartiles of the ratio of CPU seconds: the spread of a single pair.
        pairs: the ratio of CPU seconds of each pair, in order.
        ours, peer: the timings themselves.
        gemm_seconds: CPU seconds of the reference product in the same run (median).
        threads: threads both were held to.
        contended: other work had the cores during the run; the ratio stands, absolute seconds do not.
    """

    cpu: float
    wall: float
    low: float
    high: float
    pairs: tuple[float, ...]
    ours: Timing
    peer: Timing
    gemm_seconds: float
    threads: int
    contended: bool

    def __str__(self) -> str:
        text = (
            f"{self.cpu:.3f}x the peer's CPU time (quartiles {self.low:.3f}–{self.high:.3f}, {len(self.pairs)} pairs, "
        )
        text += (
            f"{self.threads} thread{'s' if self.threads > 1 else ''}; reference GEMM {self.gemm_seconds * 1e3:.2f} ms)"
        )
        return f"{text}, contended" if self.contended else text


@dataclass(frozen=True)
class Growth:
    """How time grows with a size: ``seconds ~ size ** slope``.

    Attributes:
        sizes: the sizes, ascending.
        seconds: median CPU seconds a call at each size.
        slope: slope of the log–log fit, with its 95 % interval ``low, high``.
        contended: other work had the cores during the run.
    """

    sizes: tuple[float, ...]
    seconds: tuple[float, ...]
    slope: float
    low: float
    high: float
    contended: bool


def ratio(
    ours: Call,
    peer: Call,
    repeats: int = 5,
    *,
    threads: int = 1,
    warmup: int = 1,
    min_seconds: float = 0.02,
    sync: Call | None = None,
) -> RatioResult:
    """Time two callables in turns (ours, peer, peer, ours, …) and return their ratio.

    Args:
        ours: the callable under test; called without arguments.
        peer: what it is compared with, doing the same work.
        repeats: number of pairs.
        threads: BLAS, OpenMP and torch threads for both.
        warmup: calls of each before the clock starts (compilation, first touch of memory).
        min_seconds: a repeat lasts at least this long; shorter callables are called several times in it.
        sync: called before each reading of a clock, for devices that work behind the caller's back
            (``torch.cuda.synchronize``); compare ``wall`` then.
    """
    check_int(repeats, "repeats", minimum=1)
    _check(warmup, min_seconds)
    with limit(threads), _no_gc():
        reference = _reference()
        calls = [_prepare(fn, warmup, min_seconds, sync) for fn in (ours, peer)]
        readings: tuple[list, list] = ([], [])
        gemms = [_time(reference, 3, None)]
        for repeat in range(repeats):
            # Alternating the order cancels a drift of the machine.
            for which in (0, 1) if repeat % 2 == 0 else (1, 0):
                readings[which].append(_time((ours, peer)[which], calls[which], sync))
            gemms.append(_time(reference, 3, None))
    a, b = (_timing(r, n) for r, n in zip(readings, calls))
    pairs = tuple(x / y for x, y in zip(a.cpu, b.cpu))
    low, high = np.quantile(pairs, [0.25, 0.75])
    return RatioResult(
        cpu=float(np.median(pairs)),
        wall=float(np.median([x / y for x, y in zip(a.wall, b.wall)])),
        low=float(low),
        high=float(high),
        pairs=pairs,
        ours=a,
        peer=b,
        gemm_seconds=float(np.median([cpu for cpu, _ in gemms])),
        threads=threads,
        contended=_contended(gemms, threads),
    )


def measure(
    fn: Call,
    repeats: int = 5,
    *,
    threads: int = 1,
    warmup: int = 1,
    min_seconds: float = 0.02,
    sync: Call | None = None,
) -> Timing:
    """Time one callable; arguments as in :func:`ratio`. Use the figure only beside another of the same process."""
    check_int(repeats, "repeats", minimum=1)
    _check(warmup, min_seconds)
    with limit(threads), _no_gc():
        calls = _prepare(fn, warmup, min_seconds, sync)
        return _timing([_time(fn, calls, sync) for _ in range(repeats)], calls)


def growth(
    make: Callable[[Any], Call],
    sizes: Sequence[Any],
    repeats: int = 3,
    *,
    threads: int = 1,
    warmup: int = 1,
    min_seconds: float = 0.02,
    sync: Call | None = None,
) -> Growth:
    """Time ``make(size)()`` over sizes, in rounds over all sizes, and fit the exponent.

    Args:
        make: returns the callable for one size; its own work (building the input) is not timed.
        sizes: at least three distinct positive sizes.
        repeats, threads, warmup, min_seconds, sync: as in :func:`ratio`.
    """
    check_int(repeats, "repeats", minimum=1)
    _check(warmup, min_seconds)
    order = sorted(set(sizes))
    if len(order) < 3 or order[0] <= 0:
        raise ValueError(f"sizes: expected at least 3 distinct positive sizes, got {list(sizes)}")
    with limit(threads), _no_gc():
        reference = _reference()
        callables = [make(size) for size in order]
        calls = [_prepare(fn, warmup, min_seconds, sync) for fn in callables]
        rounds, gemms = [], [_time(reference, 3, None)]
        for _ in range(repeats):
            rounds.append([_time(fn, n, sync)[0] for fn, n in zip(callables, calls)])
            gemms.append(_time(reference, 3, None))
    seconds = [float(s) for s in np.median(np.asarray(rounds), axis=0)]
    slope, low, high = stats.loglog_slope([float(s) for s in order], seconds)
    return Growth(tuple(map(float, order)), tuple(seconds), slope, low, high, _contended(gemms, threads))


def _check(warmup: int, min_seconds: float) -> None:
    check_int(warmup, "warmup", minimum=0)
    check_real(min_seconds, "min_seconds", minimum=0.0)


@contextmanager
def _no_gc() -> Iterator[None]:
    """Collections of garbage would land on whoever happens to run."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _reference() -> Call:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((GEMM_SIZE, GEMM_SIZE), dtype=np.float32)
    b = rng.standard_normal((GEMM_SIZE, GEMM_SIZE), dtype=np.float32)
    out = np.empty_like(a)
    np.matmul(a, b, out=out)
    return lambda: np.matmul(a, b, out=out)


def _prepare(fn: Call, warmup: int, min_seconds: float, sync: Call | None) -> int:
    """Warm up, and say how many calls make a repeat."""
    for _ in range(warmup):
        fn()
    _, wall = _time(fn, 1, sync)
    return max(1, round(min_seconds / max(wall, 1e-7)))


def _time(fn: Call, calls: int, sync: Call | None) -> tuple[float, float]:
    """CPU and wall seconds a call."""
    if sync is not None:
        sync()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
        fn()
    if sync is not None:
        sync()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    # A clock that did not move would make a ratio of nothing.
    return max(cpu, 1e-9) / calls, max(wall, 1e-9) / calls


def _timing(readings: Sequence[tuple[float, float]], calls: int) -> Timing:
    return Timing(tuple(cpu for cpu, _ in readings), tuple(wall for _, wall in readings), calls)


def _contended(gemms: Sequence[tuple[float, float]], threads: int) -> bool:
    share = np.median([cpu / wall for cpu, wall in gemms]) / threads
    return bool(share < _BUSY_SHARE)
