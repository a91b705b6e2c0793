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
        from neurips26.shared.federated.report import round_line, summary_lines

        try:
            settings: dict[str, Any] = tomllib.loads(self.config.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ValueError(f"config: expected a TOML file, got {str(self.config)!r} ({error})") from error
        config = FedConfig.from_run_config(settings | self.set)
        # The simulation's server runs elsewhere and tells of its rounds itself.
        watch = (
            []
            if self.backend == "ray"
            else [lambda t, strategy: print(round_line(strategy.result, t), file=sys.stderr)]
        )
        result = run_federated(config, self.backend, self.out, self.resume, watch)
        print("\n".join(summary_lines(result, self.out)))
        return 0


@dataclass
class Compare:
    """Run several methods on the linear federation at equal settings and print losses and bytes."""

    methods: tuple[str, ...] = ("frank", "flora", "flexlora", "hetlora", "ffa")
    """Names as in the claims' tables."""
    seeds: int = 1
    """Seeds, from 0."""

    def __call__(self) -> int:
        from neurips26.frank_lora.experiments import VARIANTS, chosen, run
        from neurips26.shared.arrays import check_choice, check_int

        check_int(self.seeds, "seeds", minimum=1)
        for name in self.methods:
            check_choice(name, "methods", VARIANTS)
        print(f"linear federation, 10 rounds, at the tuned rates, mean loss of {self.seeds} seed(s)")
        print(f"{'method':32s} {'lr':>7s} {'loss':>9s} {'MB up':>9s} {'MB down':>9s}")
        for name in self.methods:
            lr = chosen("linear").get(name, chosen("linear")["frank"])
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
    """Learning rates (at the reference rank, where they depend on it); none: the coarse ones of the tune tier."""
    seeds: int = 1
    """Seeds, from 0."""

    def __call__(self) -> int:
        from neurips26.frank_lora.experiments import SEARCHES, VARIANTS, run
        from neurips26.shared.arrays import check_choice, check_int, check_real

        check_choice(self.method, "method", VARIANTS)
        check_int(self.seeds, "seeds", minimum=1)
        for lr in self.rates:
            check_real(lr, "rates", minimum=0)
        print(f"{self.method} on the linear federation, 10 rounds\n{'lr':>8s} {'loss':>10s}")
        for lr in self.rates or SEARCHES["linear"].coarse_rates:
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
class Report:
    """What a finished run left in its folder: the metrics beside the megabytes spent by then, and who failed."""

    out: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    target: float | None = None
    """Tell the megabytes to this value of the metric."""
    metric: str | None = None
    """Metric of the target; by default the first that was recorded."""

    def __call__(self) -> int:
        from neurips26.shared.federated import load_result

        if not (self.out / "result.json").is_file():
            raise ValueError(f"out: expected the folder of a finished run (with result.json), got {str(self.out)!r}")
        result = load_result(self.out)
        print(
            f"{result.config.method} on {result.config.task}, ranks {list(result.config.ranks)}, lr {result.config.lr:g}"
        )
        print(f"{'round':>5s}  {'model':8s} {'metric':16s} {'mean':>9s} {'weighted':>9s} {'MB up':>9s} {'MB down':>9s}")
        for t, column, metric in dict.fromkeys((r["round"], r["column"], r["metric"]) for r in result.history):
            means = [result.metric(metric, column, t, weighting) for weighting in ("uniform", "examples")]
            spent = [
                sum(result.meter.total(way, round=k, purpose="train") for k in range(1, t + 1)) / 1e6
                for way in ("up", "down")
            ]
            print(f"{t:5d}  {column:8s} {metric:16s} {means[0]:9.4f} {means[1]:9.4f} {spent[0]:9.3f} {spent[1]:9.3f}")
        for row in result.rounds:
            for pid, kind, why in row["failures"]:
                print(f"round {row['round']}: client {pid} {kind}: {why}")
        if self.target is not None:
            known = list(dict.fromkeys(r["metric"] for r in result.history if r["column"] == "global"))
            metric = self.metric or (known[0] if known else "loss")
            if metric not in known:
                raise ValueError(
                    f"metric: expected one that was recorded ({', '.join(known) or 'none'}), got {metric!r}"
                )
            up, down = (result.megabytes_to(metric, self.target, way) for way in ("up", "down"))
            if up is None or down is None:
                print(f"{metric} {self.target:g}: never reached")
            else:
                print(f"{metric} {self.target:g}: reached with {up:.3f} MB up and {down:.3f} MB down")
        return 0


@dataclass
class Serve:
    """Start the local SuperLink that `flwr run` finds, in the foreground and without a limit on how long that may take."""

    port: int = 39091
    """Its port on this machine; `flwr run` looks at 39091 unless FLWR_LOCAL_SUPERLINK_HTTP_API_PORT names another."""
    show: bool = False
    """Print the commands and start nothing."""

    def __call__(self) -> int:
        import os
        import shutil
        import socket

        from neurips26.shared.arrays import check_int

        check_int(self.port, "port", minimum=1, maximum=65535)
        folder = Path(__file__).parents[3]
        app = str(folder) if (folder / "pyproject.toml").is_file() else "packages/frank-lora"
        command = ["flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        other = "" if self.port == 39091 else f"FLWR_LOCAL_SUPERLINK_HTTP_API_PORT={self.port} "
        print(f"here: FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 {' '.join(command)}")
        print(
            f"then, in another terminal: {other}flwr run {app} "
            '--federation-config "num-supernodes=4 client-resources-num-cpus=1" --stream',
            flush=True,
        )
        if self.show:
            return 0
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                raise ValueError(
                    f"port: something listens on {self.port} already; if it is a SuperLink, `flwr run` finds it, "
                    "else choose another port"
                )
        program = shutil.which(
            command[0], path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        )
        if program is None:
            raise ValueError(
                "flower-superlink: expected the command of the package flwr beside this Python or on the PATH"
            )
        os.environ["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"
        return os.execv(program, [program, *command[1:]])


@dataclass
class Adopt:
    """Write the rates that a tune record chose, and the losses that rank the methods, into the package."""

    record: Annotated[Path, tyro.conf.Positional] = Path("results/frank-lora/tune.json")
    """The record."""

    def __call__(self) -> int:
        import json

        from neurips26.frank_lora.experiments import adopted
        from neurips26.shared.runs import atomic_write_text

        if not self.record.is_file():
            raise ValueError(f"record: expected a tune record, got {str(self.record)!r}")
        target = Path(__file__).with_name("chosen.json")
        told = adopted(json.loads(self.record.read_text("utf-8"))["grids"])
        atomic_write_text(target, json.dumps(told, indent=1) + "\n")
        print(f"written: {target}")
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


def main(argv: list[str]) -> int:
    """Run one verb."""
    verbs = {"run": Run, "compare": Compare, "snr": Snr, "lr-sweep": LrSweep, "bytes": Bytes,
             "report": Report, "serve": Serve, "adopt": Adopt, "settings": Settings}  # fmt: skip
    return tyro.extras.subcommand_cli_from_dict(verbs, args=argv, prog="neurips26 frank-lora")()
