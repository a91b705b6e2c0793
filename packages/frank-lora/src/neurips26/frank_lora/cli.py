"""The paper's own commands: ``neurips26 frank-lora <verb>``."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

__all__ = ["main"]


@dataclass
class Run:
    """Run a federation of a TOML file (keys as in Flower's run configuration) in this process or on Ray."""

    config: Annotated[Path, tyro.conf.Positional]
    """TOML file with the settings."""
    backend: str = "sequential"
    """sequential or ray."""
    out: Path | None = None
    """Folder for checkpoints, clients' private state and the result."""
    resume: bool = False
    """Go on after the newest checkpoint in the folder."""
    set: dict[str, str] = field(default_factory=dict)
    """Settings that replace those of the file."""

    def __call__(self) -> int:
        from neurips26.shared.federated import FedConfig, run_federated

        try:
            settings: dict[str, Any] = tomllib.loads(self.config.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ValueError(f"config: expected a TOML file, got {str(self.config)!r} ({error})") from error
        config = FedConfig.from_run_config(settings | self.set)
        # The simulation's server runs elsewhere and tells of its rounds itself.
        watch = (
            [] if self.backend == "ray" else [lambda t, strategy: _round(t, config.rounds, strategy.result.rounds[-1])]
        )
        _print(run_federated(config, self.backend, self.out, self.resume, watch))
        return 0


@dataclass
class Compare:
    """Run several methods on the linear federation at equal settings and print losses and bytes."""

    methods: tuple[str, ...] = ("frank", "flora", "flexlora", "hetlora", "ffa")
    """Names as in the claims' tables."""
    seeds: int = 1
    """Seeds, from 0."""

    def __call__(self) -> int:
        from neurips26.frank_lora.experiments import VARIANTS, chosen, rates, run
        from neurips26.shared.arrays import check_choice, check_int

        check_int(self.seeds, "seeds", minimum=1)
        for name in self.methods:
            check_choice(name, "methods", VARIANTS)
        print(f"linear federation, 10 rounds, at the tuned rates, mean loss of {self.seeds} seed(s)")
        print(f"{'method':32s} {'lr':>7s} {'loss':>9s} {'MB up':>9s} {'MB down':>9s}")
        for name in self.methods:
            lr = chosen("linear").get(name, rates("linear", name)[1])
            rows = [run("linear", name, lr, seed, "quick") for seed in range(self.seeds)]
            loss = sum(r["loss"] for r in rows) / len(rows)
            print(f"{name:32s} {lr:7.3g} {loss:9.4f} {sum(rows[0]['up']):9.3f} {sum(rows[0]['down']):9.3f}")
        return 0


@dataclass
class Snr:
    """Measured and predicted signal to noise of a step with frozen A, by rank."""

    n: int = 384
    """Input width."""
    kind: str = "gaussian"
    """Distribution of A."""
    draws: int = 64
    """Matrices A a rank."""

    def __call__(self) -> int:
        import torch

        from neurips26.frank_lora import measure_snr, snr_theory
        from neurips26.shared.arrays import check_int

        check_int(self.n, "n", minimum=1)
        gradient = torch.randn(64, self.n, generator=torch.Generator().manual_seed(0))
        print(f"{'rank':>5s} {'measured':>10s} {'predicted':>10s}")
        for r in (1, 2, 4, 8, 16, 32, 64):
            if r <= self.n:
                measured = measure_snr(gradient, r, self.draws, self.kind)
                print(f"{r:5d} {measured:10.5f} {snr_theory(r, self.n, self.kind):10.5f}")
        return 0


@dataclass
class LrSweep:
    """Final loss of one method on the linear federation at several learning rates."""

    method: str = "frank"
    """Name as in the claims' tables."""
    rates: tuple[float, ...] = ()
    """Learning rates (at the reference rank, where they depend on it); none: the method's grid of the tune tier."""
    seeds: int = 1
    """Seeds, from 0."""

    def __call__(self) -> int:
        from neurips26.frank_lora.experiments import VARIANTS, rates, run
        from neurips26.shared.arrays import check_choice, check_int, check_real

        check_choice(self.method, "method", VARIANTS)
        check_int(self.seeds, "seeds", minimum=1)
        for lr in self.rates:
            check_real(lr, "rates", minimum=0)
        print(f"{self.method} on the linear federation, 10 rounds\n{'lr':>8s} {'loss':>10s}")
        for lr in self.rates or rates("linear", self.method):
            losses = [run("linear", self.method, lr, seed, "quick")["loss"] for seed in range(self.seeds)]
            print(f"{lr:8.3g} {sum(losses) / len(losses):10.4f}")
        return 0


@dataclass
class Bytes:
    """Megabytes of adapters that all clients together send and receive in a round, float32, without a head."""

    ranks: tuple[int, ...] = (4, 4, 4, 8, 8, 8, 16, 32)
    """One rank a client."""
    m: int = 1024
    """Outputs of an adapted module."""
    n: int = 1024
    """Its inputs."""
    modules: int = 48
    """How many modules are adapted."""

    def __call__(self) -> int:
        from neurips26.shared.arrays import check_int

        for name, values in {"ranks": self.ranks, "m": [self.m], "n": [self.n], "modules": [self.modules]}.items():
            for value in values:
                check_int(value, name, minimum=1)
        if not self.ranks:
            raise ValueError("ranks: expected one rank a client, got none")
        r, count, unit = sum(self.ranks), len(self.ranks), 4 * self.modules / 1e6
        dense, both = self.m * self.n * count, self.m + self.n
        table = {
            "frank": (self.m * r, min(self.m * r * count, dense)),
            "flora": (both * r, min(both * r * count, dense)),
            "fedplora": (both * r, both * max(self.ranks) * count),
            "hetlora, flexlora, zeropad": (both * r, both * r),
            "ffa": (self.m * r, self.m * r),
        }
        print(f"{'method':28s} {'MB up':>10s} {'MB down':>10s}")
        for name, (up, down) in table.items():
            print(f"{name:28s} {unit * up:10.3f} {unit * down:10.3f}")
        return 0


@dataclass
class Settings:
    """Every setting of a run with its default, as TOML for ``run`` or ``flwr run --run-config``."""

    def __call__(self) -> int:
        import json

        from neurips26.shared.federated import FedConfig

        for key, value in FedConfig().to_run_config().items():
            print(f"{key} = {json.dumps(value)}")
        return 0


def _round(t: int, rounds: int, row: dict[str, Any]) -> None:
    loss = "no valid reply" if row["empty"] else f"training loss {row['loss']:.4f}"
    failed = f", {len(row['failures'])} clients failed" if row["failures"] else ""
    print(f"round {t} of {rounds}: {loss}{failed}, {row['seconds']:.1f} s", file=sys.stderr)


def _print(result: Any) -> None:
    for row in result.history:
        if row["column"] == "global":
            print(f"round {row['round']:4d}  {row['metric']:10s} {row['value']:.5f}")
    up, down = result.meter.total("up") / 1e6, result.meter.total("down") / 1e6
    print(f"megabytes up {up:.3f}, down {down:.3f}")


def main(argv: list[str]) -> int:
    """Run one verb."""
    verbs = {"run": Run, "compare": Compare, "snr": Snr, "lr-sweep": LrSweep, "bytes": Bytes, "settings": Settings}
    return tyro.extras.subcommand_cli_from_dict(verbs, args=argv, prog="neurips26 frank-lora")()
