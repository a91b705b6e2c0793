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

# The Azure traces last 3436 s and more. Development saw [0, 1000) and [1500, 1740); these windows it did not.
REPORTED_STARTS = (1000.0, 1240.0, 1740.0, 1980.0, 2220.0, 2460.0)
DEVELOPMENT_STARTS = (0.0, 300.0, 600.0)
WINDOW = 240.0
# The arena trace lasts 600 s; development saw the first 200 s. A reported seed draws 8 of the ten 40-s blocks after it.
ARENA_SPLIT, ARENA_BLOCK, ARENA_DRAWN = 200.0, 40.0, 8


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


def blocks(workload: Workload, seed: int, start: float, length: float, drawn: int) -> Workload:
    """``drawn`` of the blocks of ``length`` seconds after ``start``, in an order drawn by ``seed``, one after another."""
    count = int((workload.duration - start + 1e-6) // length)
    chosen = rng(seed, "felps", "blocks").permutation(count)[:drawn]
    parts = [workload.window(start + length * block, length) for block in chosen]
    arrival = np.concatenate([part.arrival + length * i for i, part in enumerate(parts)])
    columns = [np.concatenate([getattr(part, name) for part in parts]) for name in ("adapter", "prompt", "output")]
    return Workload(arrival, *columns, name=workload.name, origin=workload.origin, duration=length * drawn)


def workload(trace: str, path: Path | None, seed: int, index: int, development: bool = False) -> Workload:
    """The workload of one seed (``index`` counts the seeds of a tier). Without the trace: a generated one, labelled so."""
    if path is None:
        return Workload.synthetic(24, 2.2, 320.0, "gamma", 1.0, 140.0, 250.0, seed)
    if trace == "arena":
        whole = Workload.from_csv(path)
        if development:
            return blocks(whole.window(0.0, ARENA_SPLIT), seed, 0.0, ARENA_BLOCK, 5)
        return blocks(whole, seed, ARENA_SPLIT, ARENA_BLOCK, ARENA_DRAWN)
    starts = DEVELOPMENT_STARTS if development else REPORTED_STARTS
    return Workload.from_azure_csv(path, 32, seed=seed, start=starts[index % len(starts)], duration=WINDOW)


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


def sweep() -> list[dict[str, Any]]:
    """The reported settings: nine weights of FELPS that drains (tuning's choice on two traces of three), and all rivals."""
    return [{"policy": "felps", "mode": "drain", "weight": w} for w in WEIGHTS] + rivals()


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
    "Bench",
    "front_areas",
    "label",
    "offered_load",
    "run",
    "sweep",
    "tuning_grid",
    "workload",
]
