"""Verbs of ``neurips26 felps``: thin calls of the public API."""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from neurips26.felps.compare import compare, pareto
from neurips26.felps.engine_model import PRESETS, EngineModel, fit_cost_profile
from neurips26.felps.policy import Policy
from neurips26.felps.simulator import Simulator
from neurips26.felps.workload import Workload
from neurips26.shared.arrays import check_int
from neurips26.shared.runs import atomic_write_json


@dataclass
class Trace:
    """Where requests come from."""

    path: Path | None = None
    """A trace file; without one a workload is generated."""
    format: Literal["azure", "csv", "jsonl"] = "csv"
    adapters: int | None = None
    """Adapters drawn by Zipf's law where the trace names none (32)."""
    alpha: float | None = None
    """Exponent of Zipf's law (1)."""
    start: float = 0.0
    duration: float | None = None
    rate_scale: float = 1.0
    seed: int | None = None
    """Seed of all draws (0)."""

    def load(self, repeat: int = 0) -> Workload:
        """The workload; ``repeat`` counts further draws of adapters."""
        names_adapters = self.path is not None and self.format == "csv"
        for name in ("adapters", "alpha", "seed"):
            if names_adapters and getattr(self, name) is not None:
                raise ValueError(
                    f"{name}: expected none with a csv trace, which names its adapters, got {getattr(self, name)}"
                )
        if names_adapters and repeat:
            raise ValueError("seeds: expected 1 with a csv trace, in which nothing is drawn, got more")
        adapters = 32 if self.adapters is None else self.adapters
        alpha = 1.0 if self.alpha is None else self.alpha
        seed = (self.seed or 0) + repeat
        if self.path is None:
            if self.start:
                raise ValueError(f"start: expected a trace to begin in (--trace.path), got {self.start} and none")
            duration = 300.0 if self.duration is None else self.duration
            return Workload.synthetic(adapters, 2.2 * self.rate_scale, duration, "gamma", alpha=alpha, seed=seed)
        if self.format == "azure":
            return Workload.from_azure_csv(
                self.path, adapters, "zipf", alpha, seed, self.start, self.duration, self.rate_scale
            )
        whole = (
            Workload.from_csv(self.path)
            if self.format == "csv"
            else Workload.from_jsonl(self.path, adapters, alpha, seed)
        )
        if self.start or self.duration is not None or self.rate_scale != 1.0:
            return whole.window(self.start, self.duration, self.rate_scale)
        return whole


@dataclass
class Engine:
    """The simulated engine."""

    preset: Literal["a10g-llama-7b", "a100-llama-7b", "vllm-cpu-small"] = "a10g-llama-7b"
    max_loras: int = 4
    max_num_seqs: int = 32
    kv_tokens: int = 10_000
    eviction: Literal["lru", "lfu", "cost", "served"] = "lru"

    def build(self) -> Simulator:
        """The simulator."""
        return Simulator(
            EngineModel.preset(self.preset), self.max_loras, self.max_num_seqs, 2048, self.kv_tokens, self.eviction
        )


def _policy(spec: str) -> dict:
    """``vtc:mode=drain`` as a setting."""
    name, _, options = spec.partition(":")
    setting: dict = {"policy": name}
    for option in filter(None, options.split(",")):
        key, _, value = option.partition("=")
        try:
            setting[key] = int(value) if key == "max_draining" else float(value)
        except ValueError:
            setting[key] = {"true": True, "false": False, "none": None}.get(value.lower(), value)
    return setting


def _show(rows: list[dict]) -> None:
    print(
        f"{'policy':<34}{'Jain':>7}{'units/s':>9}{'loads':>7}{'gap':>6}{'30-s J':>8}{'TTFT p50':>10}{'unfinished':>12}"
    )
    for name in dict.fromkeys(row["label"] for row in rows):
        mine = [row for row in rows if row["label"] == name]

        def mean(key: str, mine: list[dict] = mine) -> float:
            return sum(row[key] for row in mine) / len(mine)

        print(
            f"{name:<34}{mean('jain'):>7.3f}{mean('throughput'):>9.0f}{mean('loads'):>7.0f}{mean('gap'):>6.2f}"
            f"{mean('windowed_jain_30s'):>8.3f}{mean('ttft_p50'):>10.2f}{mean('unfinished'):>7.0f}/{mean('requests'):.0f}"
        )


@dataclass
class Simulate:
    """Serve a trace with one policy and print its figures."""

    policy: tyro.conf.Positional[str] = "felps:weight=0.2"
    """Name and arguments: felps:weight=0.2,mode=drain."""
    trace: Trace = field(default_factory=Trace)
    engine: Engine = field(default_factory=Engine)
    out: Path | None = None
    """Write figures and per-request times here (JSON)."""

    def run(self) -> None:
        """Run and print."""
        options = _policy(self.policy)
        workload = self.trace.load()
        policy = Policy.make(options.pop("policy"), **options)
        result = self.engine.build().run(workload, policy, horizon=workload.duration or None)
        print(json.dumps(result.metrics(), indent=1))
        if self.out is not None:
            result.save(self.out)


@dataclass
class Sweep:
    """Serve a trace with several policies, print the table and draw the front; an interrupted sweep continues."""

    policies: tyro.conf.Positional[tuple[str, ...]] = (
        "felps:weight=0", "felps:weight=0.1", "felps:weight=0.2", "felps:weight=0.5", "felps:weight=1", "fcfs",
        "vtc:mode=drain", "vtc", "drr:mode=drain", "dlpm:mode=drain", "affinity",
    )  # fmt: skip
    trace: Trace = field(default_factory=Trace)
    engine: Engine = field(default_factory=Engine)
    seeds: int = 1
    out: Path = Path("build/felps-sweep")

    def run(self) -> None:
        """Run what is not on disk yet."""
        workloads = [self.trace.load(i) for i in range(check_int(self.seeds, "seeds", minimum=1))]
        # Cells belong to one trace and one engine: another one, or a file that has changed, gets another folder.
        name = f"{self.trace}{self.engine}"
        if self.trace.path is not None:
            name += str(self.trace.path.stat().st_mtime_ns)
        folder = self.out / "cells" / hashlib.sha256(name.encode()).hexdigest()[:12]
        rows = compare(workloads, [_policy(p) for p in self.policies], self.engine.build(), folder)
        _show(rows)
        print(f"front: {pareto(rows, self.out / 'front.png', title=workloads[0].name)}")
        atomic_write_json(self.out / "table.json", rows)


@dataclass
class Describe:
    """Say what is in a trace."""

    trace: Trace = field(default_factory=Trace)

    def run(self) -> None:
        """Print sizes, lengths, skew."""
        print(json.dumps(self.trace.load().describe(), indent=1))


@dataclass
class Calibrate:
    """Fit an engine model to a cost profile (JSON of the VTC artifact's form) and print it beside the presets."""

    profile: tyro.conf.Positional[Path]

    def run(self) -> None:
        """Fit and print."""
        try:
            profile = json.loads(self.profile.read_text("utf-8"))
        except ValueError as error:
            raise ValueError(f"{self.profile}: expected JSON, got something else ({error})") from None
        for name, model in {"fitted": fit_cost_profile(profile), **PRESETS}.items():
            print(f"{name}: {model}")


@dataclass
class Replay:
    """Send a trace to an OpenAI-compatible server at its true arrival times (needs the extra "replay")."""

    url: tyro.conf.Positional[str]
    models: Annotated[str, tyro.conf.arg(help="model name of adapter {id}, for instance adapter-{id}")] = "adapter-{id}"
    base: str = ""
    """Model name of the bare base model (adapter 0)."""
    speed: float = 1.0
    trace: Trace = field(default_factory=Trace)
    out: Path = Path("build/felps-replay.json")

    def run(self) -> None:
        """Replay and write one line an adapter."""
        import asyncio

        from neurips26.felps.replay import replay, summary

        workload = self.trace.load()
        try:
            names = {int(a): self.models.format(id=int(a)) if a else self.base for a in workload.adapters}
        except (LookupError, ValueError):
            raise ValueError(f"models: expected a name with {{id}} in it, got {self.models!r}") from None
        replies = asyncio.run(replay(workload, self.url, names, self.speed))
        report = summary(replies)
        atomic_write_json(self.out, report)
        for adapter, row in report["adapters"].items():
            print(adapter, row)
        if all(reply.error for reply in replies):
            raise RuntimeError(f"{self.url}: none of {len(replies)} requests was served ({replies[0].error})")


@dataclass
class Lab:
    """Write a small base model and random adapters, to try a server with (needs the extra "engine")."""

    folder: tyro.conf.Positional[Path] = Path("build/felps-lab")
    count: int = 4
    """Adapters."""
    rank: int = 8

    def run(self) -> None:
        """Write them and print how to serve them."""
        from neurips26.felps.adapters import random_adapters
        from neurips26.shared import backbones

        check_int(self.count, "count", minimum=1)
        self.folder.mkdir(parents=True, exist_ok=True)
        base = self.folder / "base"
        base.unlink(missing_ok=True)
        base.symlink_to(backbones.folder("SmolLM2-135M"))
        random_adapters(backbones.load("SmolLM2-135M"), self.folder, self.count, self.rank)
        print(f"{base}: SmolLM2-135M, with adapters {self.folder}/1 to {self.folder}/{self.count}")


Verb = (
    Annotated[Simulate, tyro.conf.subcommand("simulate")]
    | Annotated[Sweep, tyro.conf.subcommand("sweep")]
    | Annotated[Describe, tyro.conf.subcommand("trace")]
    | Annotated[Calibrate, tyro.conf.subcommand("calibrate")]
    | Annotated[Replay, tyro.conf.subcommand("replay")]
    | Annotated[Lab, tyro.conf.subcommand("lab")]
)


def main(argv: list[str]) -> int:
    """Run one verb; a bad argument, a bad file or a missing extra is one line, not a traceback."""
    verb = tyro.cli(Verb, args=argv, prog="neurips26 felps", config=(tyro.conf.FlagConversionOff,))
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *rest, **more: print(f"warning: {message}", file=sys.stderr)
            verb.run()
    except ModuleNotFoundError as error:
        extra = "replay" if isinstance(verb, Replay) else "engine"
        print(f"error: {error.name} is missing: pip install 'neurips26-felps[{extra}]'", file=sys.stderr)
        return 2
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
