"""Measurements on engines that really run: the CPU engine of this package and, in an environment of its own, vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from neurips26.felps.compare import build
from neurips26.felps.engine_model import EngineModel, Step, calibrate
from neurips26.felps.experiments import ARENA_SPLIT
from neurips26.felps.metrics import RunResult, jain
from neurips26.felps.simulator import Simulator
from neurips26.felps.workload import Workload
from neurips26.shared.claims import DataUse, Measurement, Series
from neurips26.shared.context import Context
from neurips26.shared.runs import Cells
from neurips26.shared.seeding import rng

SETTINGS: dict[str, dict[str, Any]] = {
    "felps": {"policy": "felps", "weight": 0.0, "prior_output": 10.0},
    "vtc": {"policy": "vtc", "mode": "drain"},
    "fcfs": {"policy": "fcfs"},
    "affinity": {"policy": "affinity"},
}


def small_arena(
    path: Path | None,
    seed: int,
    requests: int,
    adapters: int,
    prompt: int,
    output: int,
    seconds: float,
    span: tuple[float, float] = (0.0, np.inf),
    stretch: tuple[int, int] | None = None,
) -> Workload:
    """A short workload with the arena trace's adapters and relative lengths: its most popular adapters, lengths capped.

    The requests follow one another in the trace, from a place within ``span`` (seconds of the trace) that ``seed`` draws. With
    ``stretch`` (i, n) it is the i-th of ``n`` evenly spaced places instead, where requests of different places do not overlap.
    """
    if path is None:
        whole = Workload.synthetic(adapters, 4.0, 300.0, "gamma", 1.0, 140.0, 250.0, seed)
    else:
        whole = Workload.from_csv(path)
    ids, counts = np.unique(whole.adapter, return_counts=True)
    popular = ids[np.argsort(-counts, kind="stable")][:adapters]
    kept = np.flatnonzero(np.isin(whole.adapter, popular) & (whole.arrival >= span[0]) & (whole.arrival < span[1]))
    if len(kept) <= requests:
        raise ValueError(f"span: expected more than {requests} requests in it, got {len(kept)} in {span}")
    if stretch is None:
        start = int(rng(seed, "felps", "small").integers(len(kept) - requests))
    else:
        place, places = stretch
        if len(kept) // places < requests:
            raise ValueError(f"stretch: expected {places} times {requests} requests in {span}, got {len(kept)}")
        start = len(kept) * place // places
    rows = kept[start : start + requests]
    arrival = whole.arrival[rows] - whole.arrival[rows][0]
    number = {int(a): i + 1 for i, a in enumerate(popular)}
    return Workload(
        arrival * seconds / max(arrival[-1], 1e-9),
        np.array([number[int(a)] for a in whole.adapter[rows]]),
        np.clip(whole.prompt[rows] // 4, 4, prompt),
        np.clip(whole.output[rows] // 16, 2, output),
        name="arena, small", origin=whole.origin,
    )  # fmt: skip


# The CPU engine ------------------------------------------------------------------------------------------------------

LAB = {"max_loras": 2, "max_num_seqs": 8, "max_num_batched_tokens": 128, "kv_tokens": 8 * 160}


def _simulator(model: EngineModel) -> Simulator:
    """The simulator with the laboratory engine's limits."""
    return Simulator(model, **LAB, chunked_prefill=False, sample_every=0.25)


class _Lab:
    """SmolLM2 with six random adapters in two slots, built once."""

    def __init__(self) -> None:
        import torch

        from neurips26.felps.adapters import random_adapters
        from neurips26.felps.engine import CPUEngine
        from neurips26.shared import backbones

        torch.set_num_threads(1)
        self.folder = tempfile.TemporaryDirectory()
        model = backbones.load("SmolLM2-135M")
        paths = random_adapters(model, self.folder.name, 6, rank=32)
        limits = {name: value for name, value in LAB.items() if name != "kv_tokens"}
        self.engine = CPUEngine(model, paths, **limits, max_length=LAB["kv_tokens"] // LAB["max_num_seqs"], max_rank=32)
        self.engine.run(small_arena(None, 1, 6, 6, 16, 4, 1.0), build({"policy": "fcfs"}))  # warm: pages, allocator


_lab: list[_Lab] = []


def _get_lab() -> _Lab:
    if not _lab:
        _lab.append(_Lab())
    return _lab[0]


def _figures(run: RunResult) -> dict[str, float]:
    return {"makespan": run.makespan, "loads": float(run.loads), "jain": run.jain_served_fraction()}


def _shared(ctx: Context) -> Cells:
    """Cells that several claims of one run directory look at."""
    return Cells(ctx.directory / "cells" / "live")


def real_and_simulated(ctx: Context, seeds: int = 6) -> list[dict[str, dict[str, dict[str, float]]]]:
    """Per seed and policy: figures of the real engine, and of the simulator calibrated on the other seeds' traces alone.

    A seed's trace is a stretch of the arena trace that overlaps no other's, and nothing that development saw.
    """
    path = ctx.data("arena")

    def load(seed: int) -> Workload:
        place = (ctx.seeds(seeds).index(seed), seeds)
        return small_arena(path, seed, 12, 6, 40, 16, 2.0, (ARENA_SPLIT, np.inf), place)

    def measured(seed: int, name: str) -> dict[str, Any]:
        real = _get_lab().engine.run(load(seed), build(SETTINGS[name]))
        return {"figures": _figures(real.run), "steps": [list(astuple(step)) for step in real.steps]}

    cells = _shared(ctx)
    # Seeds inside policies: a slow minute of the machine then falls on several traces, and not on all runs of one.
    jobs = [(name, seed) for name in SETTINGS for seed in ctx.seeds(seeds)]
    real = {
        (name, seed): cells.get(f"real {name} {seed}", lambda name=name, seed=seed: measured(seed, name))
        for name, seed in ctx.track(jobs, "real engine")
    }
    rows = []
    for seed in ctx.seeds(seeds):
        others = [run for (_, other), run in real.items() if other != seed]
        model = calibrate([Step(*step) for run in others for step in run["steps"]], by_batch=True)
        rows.append(
            {
                name: {
                    "real": real[name, seed]["figures"],
                    "simulated": _figures(_simulator(model).run(load(seed), build(setting))),
                }
                for name, setting in SETTINGS.items()
            }
        )
    return rows


def rank_agreement(row: dict[str, dict[str, dict[str, float]]], metric: str) -> float:
    """Spearman correlation over policies of simulated and real values (ties share their rank)."""
    from scipy.stats import rankdata

    real, simulated = ([r[source][metric] for r in row.values()] for source in ("real", "simulated"))
    a, b = rankdata(real), rankdata(simulated)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return float(np.ptp(a) == np.ptp(b))
    return float(np.corrcoef(a, b)[0, 1])


def mixed_against_separate(ctx: Context, repeats: int) -> list[tuple[float, float]]:
    """(tokens per CPU second of a mixed batch of 4 adapters x 4 requests, of one adapter at a time), repeated in turns."""

    def measure() -> list[list[float]]:
        import torch

        from neurips26.felps.adapters import random_adapters
        from neurips26.felps.engine import CPUEngine
        from neurips26.shared import backbones

        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as folder:
            model = backbones.load("SmolLM2-135M")
            paths = random_adapters(model, folder, 4, rank=16)
            engine = CPUEngine(model, paths, 4, 16, 16 * 24, max_length=48, max_rank=16)
            for adapter in range(1, 5):
                engine.load(adapter, adapter - 1)
            steps = 4

            def decode(groups: list[list[int]]) -> float:
                """Decode ``steps`` tokens for each group of slots after short prompts; tokens per CPU second."""
                began = time.process_time()
                for group in groups:
                    names = [f"slot{slot}" for slot in group]
                    tokens = torch.full((len(group), 1), 5)
                    for position in range(8, 8 + steps):
                        where = torch.full((len(group), 1), position)
                        tokens = engine.forward(tokens, where, slice(0, len(group)), names).argmax(-1, keepdim=True)
                return 16 * steps / (time.process_time() - began)

            mixed, separate = [[s for s in range(4) for _ in range(4)]], [[s] * 4 for s in range(4)]
            decode(mixed)
            return [[decode(mixed), decode(separate)] for _ in range(repeats)]

    return [(row[0], row[1]) for row in _shared(ctx).get("mixed", measure)]


# vLLM ----------------------------------------------------------------------------------------------------------------


def vllm_python() -> Path:
    """Interpreter of the environment that ``benchmarks/vllm_env.sh`` makes (or of ``NEURIPS26_FELPS_VLLM``).

    Raises:
        FileNotFoundError: there is none; says what to run.
    """
    named = os.environ.get("NEURIPS26_FELPS_VLLM")
    path = Path(named) if named else Path("build") / "felps-vllm" / "bin" / "python"
    if not path.exists():
        raise FileNotFoundError(f"{path}: no vLLM environment; make one with packages/felps/benchmarks/vllm_env.sh")
    return path


def serve_in_vllm(job: dict[str, Any], seconds: float = 1800.0) -> list[list[dict[str, Any]]]:
    """Run a job of ``integrations.replay_vllm`` in the vLLM environment."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(vllm_python()), "-m", "neurips26.felps.integrations.replay_vllm"], input=json.dumps(job), text=True,
        capture_output=True, timeout=seconds, env=environment, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"vLLM replay failed ({done.returncode}): {done.stderr[-2000:]}")
    return json.loads(done.stdout)


VLLM_ENGINE = {"max_loras": 3, "max_num_seqs": 12, "max_model_len": 512, "max_num_batched_tokens": 512}
VLLM_ADAPTERS = 12
# Weight and slots are the tune record's choice ("vllm-weight"); a prior of 16 tokens is near the mean output of these requests.
PLUG_IN = {"policy": "felps", "weight": 0.6, "max_draining": 2, "prior_output": 16.0}


VLLM_WINDOWS = 8


def vllm_window(path: Path | None, index: int, seed: int) -> Workload:
    """One of the ``VLLM_WINDOWS`` times 110 requests of the 12 most popular adapters after what development saw; disjoint.

    ``seed`` matters where the trace is not there and a generated workload takes its place.
    """
    span = (ARENA_SPLIT, np.inf) if path else (0.0, np.inf)
    place = (index, VLLM_WINDOWS) if path else None
    return small_arena(path, seed, 110, VLLM_ADAPTERS, 96, 40, 2.0, span, place)


def vllm_development(path: Path | None, seed: int) -> Workload:
    """As many requests of the same adapters from a place that ``seed`` draws in the part that development sees."""
    return small_arena(path, seed, 110, VLLM_ADAPTERS, 96, 40, 2.0, (0.0, ARENA_SPLIT))


def vllm_forecast(path: Path | None, seed: int, settings: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """What the simulator expects of vLLM's own rule and of the plug-in with each setting, on a development window."""
    load = vllm_development(path, seed)
    limits = {name: VLLM_ENGINE[name] for name in ("max_loras", "max_num_seqs", "max_num_batched_tokens")}
    simulator = Simulator(EngineModel.preset("vllm-cpu-small"), **limits, kv_tokens=100_000, sample_every=0.1)
    figures = []
    for setting in ({"policy": "fcfs"}, *(PLUG_IN | setting for setting in settings)):
        run = simulator.run(load, build(setting))
        figures.append({"jain": run.jain_served_fraction(), "throughput": float(load.cost().sum()) / run.makespan})
    return figures


def _rows(workload: Workload) -> list[list[float]]:
    return [
        [float(t), int(a), int(n), int(m)]
        for t, a, n, m in zip(workload.arrival, workload.adapter, workload.prompt, workload.output)
    ]


def fairness_of(workload: Workload, outcome: dict[str, Any], until: float, samples: int = 40) -> dict[str, float]:
    """Jain index of served fractions (mean over ``samples`` times up to ``until``) and throughput, from a served outcome.

    A prompt counts as delivered with its first token.
    """
    top = int(workload.adapter.max()) + 1
    times, costs, adapters = [], [], []
    for index, at in outcome["first"].items():
        times.append(at)
        costs.append(float(workload.prompt[int(index)]))
        adapters.append(int(workload.adapter[int(index)]))
    for at, index, tokens in outcome["progress"]:
        times.append(at)
        costs.append(2.0 * tokens)
        adapters.append(int(workload.adapter[int(index)]))
    order = np.argsort(times, kind="stable")
    when, cost, adapter = np.array(times)[order], np.array(costs)[order], np.array(adapters)[order]
    values = []
    for t in np.linspace(until / samples, until, samples):
        there, arrived = when <= t, workload.arrival <= t
        served = np.bincount(adapter[there], cost[there], top)
        work = np.bincount(workload.adapter[arrived], workload.cost()[arrived], top)
        values.append(jain(served[work > 0] / work[work > 0]))
    return {"jain": float(np.mean(values)), "throughput": float(workload.cost().sum() / outcome["makespan"])}


def vllm_outcomes(ctx: Context, replays: int = 4, queues: int = 5) -> dict[str, Any]:
    """One visit to vLLM: its own scheduler and the plug-in side by side on windows of the trace, and on long queues.

    A replay differs from the next by the CPU's pace alone, so that their mean is a window's figure. A long queue is 512
    requests at the start, so that 256 wait on average. "different" counts requests whose tokens are not the same under both.
    """
    path = ctx.data("arena")

    def serve() -> dict[str, Any]:
        loads = [vllm_window(path, i, seed) for i, seed in enumerate(ctx.seeds(VLLM_WINDOWS))]
        # Windows inside replays: a slow minute of the machine then falls on several windows, and not on all replays of one.
        served = [_rows(load) for load in loads] * replays
        for seed in ctx.seeds(queues):
            adapters = rng(seed, "felps", "overhead").integers(1, VLLM_ADAPTERS + 1, 512)
            served.append([[0.0, int(a), 16, 4] for a in adapters])
        runs = [{"schedulers": [None, PLUG_IN], "rows": rows} for rows in served]
        outcomes = serve_in_vllm({"engine": VLLM_ENGINE, "adapters": VLLM_ADAPTERS, "runs": runs})
        rows, shares, different = [], [], []
        for i, (theirs, mine) in enumerate(outcomes[: len(loads) * replays]):
            replay, window = divmod(i, len(loads))
            until = min(theirs["makespan"], mine["makespan"])
            row: dict[str, Any] = {"window": window, "replay": replay, "different": _different(theirs, mine)}
            for name, o in (("default", theirs), ("felps", mine)):
                kept = ("loads", "makespan", "steps", "preemptions", "schedule_seconds")
                row[name] = fairness_of(loads[window], o, until) | {k: o[k] for k in kept}
            rows.append(row)
        for theirs, mine in outcomes[len(loads) * replays :]:
            different.append(_different(theirs, mine))
            added = mine["schedule_seconds"] / mine["steps"] - theirs["schedule_seconds"] / theirs["steps"]
            shares.append(added / (theirs["busy"] / theirs["steps"]))
        return {"rows": rows, "shares": shares, "different": different}

    return _shared(ctx).get("vllm", serve)


def _different(theirs: dict[str, Any], mine: dict[str, Any]) -> int:
    """Requests whose tokens differ."""
    return sum(tokens != mine["texts"].get(k) for k, tokens in theirs["texts"].items())


def vllm_data(ctx: Context) -> list[DataUse]:
    """What the replay was made of."""
    return [DataUse("arena", "real") if ctx.data("arena") else DataUse("synthetic", "generated")]


def vllm_measurement(ctx: Context, rows: list[dict[str, Any]], metric: str, reason: str = "") -> Measurement:
    """Plug-in against default: a value a window, the mean of its replays (geometric for the throughput); all in the cells."""
    seeds = ctx.seeds(VLLM_WINDOWS)
    cells = [
        {
            "factors": {"scheduler": name, "metric": m, "window": row["window"], "replay": row["replay"]},
            "seed": seeds[row["window"]],
            "method": name,
            "value": row[name][m],
        }
        for row in rows
        for name in ("default", "felps")
        for m in ("jain", "throughput", "loads", "makespan")
    ]

    def of_windows(name: str) -> list[float]:
        replays = [[row[name][metric] for row in rows if row["window"] == window] for window in range(VLLM_WINDOWS)]
        if metric == "throughput":
            return [float(np.exp(np.mean(np.log(values)))) for values in replays]
        return [float(np.mean(values)) for values in replays]

    return Measurement(
        ours=Series(PLUG_IN | VLLM_ENGINE, of_windows("felps")),
        baselines={"default": Series(VLLM_ENGINE, of_windows("default"))},
        compared_to="default", seeds=seeds, cells=cells, data=vllm_data(ctx), reason=reason,
        tuned_by="vllm-weight",
    )  # fmt: skip
