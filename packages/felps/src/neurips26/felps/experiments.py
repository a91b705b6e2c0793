"""Workloads, engines and sweeps of the claims; development and reported windows never overlap."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neurips26.felps.compare import build, hypervolume, label
from neurips26.felps.engine_model import EngineModel
from neurips26.felps.policy import MODES
from neurips26.felps.simulator import Simulator
from neurips26.felps.workload import Workload
from neurips26.shared.seeding import rng

TRACES = ("conv", "code", "arena")
WEIGHTS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)


@dataclass(frozen=True)
class Windows:
    """Windows of a trace: their length in seconds, and where they start. No reported window overlaps another or development's."""

    length: float
    reported: tuple[float, ...]
    development: tuple[float, ...]


# A window is what is independent. It is met by several seeds: the Azure traces name no adapters, a seed draws them; the arena
# trace has its own, a seed draws the order of the window's pieces of 20 s. Figures are averaged over a window's seeds first.
# The Azure traces last 3436 s and more (earlier development runs also saw [1500, 1740)); the arena trace lasts 600 s.
_AZURE = Windows(240.0, (1000.0, 1240.0, 1740.0, 1980.0, 2220.0, 2460.0), (0.0, 300.0, 600.0))
WINDOWS = {
    "conv": _AZURE,
    "code": _AZURE,
    "arena": Windows(80.0, (200.0, 280.0, 360.0, 440.0, 520.0), (0.0, 60.0, 120.0)),
}
ARENA_SPLIT, ARENA_PIECE = 200.0, 20.0
SEEDS_A_WINDOW = {"conv": 2, "code": 2, "arena": 4}
"""In whole sweeps; a run of the arena trace costs a quarter of the others."""


@dataclass(frozen=True)
class Bench:
    """An engine and its limits."""

    preset: str
    max_loras: int
    max_num_seqs: int
    kv_tokens: int

    def simulator(self, **changes: Any) -> Simulator:
        """The simulator of this bench."""
        options = dict(max_loras=self.max_loras, max_num_seqs=self.max_num_seqs, kv_tokens=self.kv_tokens) | changes
        return Simulator(EngineModel.preset(self.preset), **options)


BENCH = {
    "conv": Bench("a100-llama-7b", 8, 64, 60_000),
    "code": Bench("a100-llama-7b", 8, 64, 60_000),
    "arena": Bench("a10g-llama-7b", 4, 32, 10_000),
    "generated": Bench("a10g-llama-7b", 4, 32, 10_000),
}


def shuffled(workload: Workload, seed: int, length: float) -> Workload:
    """The pieces of ``length`` seconds of a workload, one after another in an order drawn by ``seed``."""
    order = rng(seed, "felps", "pieces").permutation(round(workload.duration / length))
    kept = [np.flatnonzero(workload.arrival // length == piece) for piece in order]
    arrival = np.concatenate([workload.arrival[k] + length * (i - p) for i, (k, p) in enumerate(zip(kept, order))])
    rows = np.concatenate(kept)
    columns = [getattr(workload, name)[rows] for name in ("adapter", "prompt", "output")]
    return Workload(arrival, *columns, name=workload.name, origin=workload.origin, duration=workload.duration)


def window_of(trace: str, index: int, development: bool = False) -> int:
    """Number of the window that the seed at position ``index`` of a tier looks at."""
    windows = WINDOWS[trace]
    return index % len(windows.development if development else windows.reported)


def workload(trace: str, path: Path | None, seed: int, index: int, development: bool = False) -> Workload:
    """The workload of one seed (``index`` counts the seeds of a tier). Without the trace: a generated one, labelled so."""
    if path is None:
        return Workload.synthetic(24, 2.2, 320.0, "gamma", 1.0, 140.0, 250.0, seed)
    windows = WINDOWS[trace]
    starts = windows.development if development else windows.reported
    start = starts[window_of(trace, index, development)]
    if trace == "arena":
        return shuffled(Workload.from_csv(path).window(start, windows.length), seed, ARENA_PIECE)
    return Workload.from_azure_csv(path, 32, seed=seed, start=start, duration=windows.length)


# Sweeps: nine settings for every method that has a parameter, when tuning and when reporting ---------------------------


def rivals() -> list[dict[str, Any]]:
    """Every rival in all three modes, times three values of its parameter where it has one."""
    grid: list[dict[str, Any]] = []
    for mode in MODES:
        grid += [{"policy": "drr", "mode": mode, "quantum": q} for q in (1000.0, 8000.0, 64000.0)]
        grid += [{"policy": "dlpm", "mode": mode, "quantum": q} for q in (1000.0, 8000.0, 64000.0)]
        grid += [{"policy": "dlora", "mode": mode, "threshold": t} for t in (4000.0, 16000.0, 64000.0)]
        grid += [{"policy": name, "mode": mode} for name in ("vtc", "fcfs", "affinity", "sjf")]
    return grid


def tuning_grid() -> list[dict[str, Any]]:
    """FELPS with three weights in three modes, and all rivals."""
    return [{"policy": "felps", "mode": mode, "weight": w} for mode in MODES for w in (0.05, 0.2, 0.5)] + rivals()


FELPS_MODE = {"conv": "drain", "code": "drain", "arena": "block"}
"""Slot mode of FELPS in its sweep: the tune record's choice, grid ``modes``. Rivals have all three modes in theirs."""


WEIGHT, SKIP_WEIGHT = 0.2, 0.2
"""Weights against VTC and DRR that drain or block, and against VTC that skips: grids ``weight`` and ``weight-vtc-skip``."""


def sweep(trace: str) -> list[dict[str, Any]]:
    """The reported settings: nine weights of FELPS in its tuned mode, and all rivals."""
    return [{"policy": "felps", "mode": FELPS_MODE[trace], "weight": w} for w in WEIGHTS] + rivals()


KEPT = (
    "jain", "throughput", "windowed_jain_30s", "service_difference_mean", "latency_jain", "worst_adapter_ttft", "ttft_p50",
    "ttft_p99", "loads_per_s", "gap", "unfinished", "requests",
)  # fmt: skip


@functools.cache
def _workload(trace: str, path: Path | None, seed: int, index: int, development: bool) -> Workload:
    return workload(trace, path, seed, index, development)


@functools.cache
def _run(trace: str, path: Path | None, seed: int, index: int, development: bool, setting: tuple) -> dict[str, float]:
    load = _workload(trace, path, seed, index, development)
    bench = BENCH["generated" if path is None else trace]
    figures = bench.simulator().run(load, build(dict(setting)), horizon=load.duration).metrics()
    return {name: round(figures[name], 6) for name in KEPT}


def run(
    find: Callable[[str], Path | None],
    trace: str,
    seed: int,
    index: int,
    setting: dict[str, Any],
    development: bool = False,
) -> dict[str, float]:
    """Figures of one setting on one seed of a trace (kept in memory: several claims look at the same runs)."""
    return _run(trace, find(trace), seed, index, development, tuple(sorted(setting.items())))


def offered_load(path: Path | None, trace: str, seed: int, index: int, development: bool = False) -> float:
    """Offered cost units per second over what the engine delivers with a slot for every adapter under FCFS."""
    load = _workload(trace, path, seed, index, development)
    bench = BENCH["generated" if path is None else trace]
    roomy = bench.simulator(max_loras=max(1, len(load.adapters)))
    best = roomy.run(load, build({"policy": "fcfs"}), horizon=load.duration).metrics()["throughput"]
    return float(load.cost().sum() / load.duration / best)


def front_areas(points: dict[str, tuple[str, float, float]]) -> dict[str, float]:
    """Hypervolume of each method's points over one run unit, in units of the box that all points span.

    Args:
        points: label -> (method, Jain index, throughput).
    """
    values = np.array([p[1:] for p in points.values()])
    low, span = values.min(axis=0), np.maximum(np.ptp(values, axis=0), 1e-12)
    areas = {}
    for method in dict.fromkeys(p[0] for p in points.values()):
        mine = np.array([p[1:] for p in points.values() if p[0] == method])
        areas[method] = hypervolume((mine - low) / span, np.zeros(2))
    return areas


__all__ = [
    "BENCH",
    "TRACES",
    "WEIGHTS",
    "WINDOWS",
    "Bench",
    "front_areas",
    "label",
    "offered_load",
    "run",
    "sweep",
    "tuning_grid",
    "window_of",
    "workload",
]
