"""The server side: a Flower ServerApp around the strategy, and the folder it leaves behind."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log as flower_log
from safetensors.torch import load_file, save

from neurips26.shared.federated.checkpoint import Checkpoints
from neurips26.shared.federated.client import build_method, build_task
from neurips26.shared.federated.config import FedConfig
from neurips26.shared.federated.meter import ByteMeter
from neurips26.shared.federated.report import round_line, summary_lines
from neurips26.shared.federated.strategy import FedLoRAStrategy, FedResult
from neurips26.shared.runs import atomic_write_bytes, atomic_write_json, lock, read_json

__all__ = ["load_result", "make_server_app", "serve"]


def serve(
    config: FedConfig,
    grid: Grid,
    out_dir: Path | None = None,
    resume: bool = False,
    callbacks: Iterable[Callable[[int, FedLoRAStrategy], None]] = (),
) -> FedResult:
    """Run a federation over ``grid``; with ``out_dir`` leave checkpoints, result and final arrays there."""
    if torch.get_num_threads() != config.threads:
        torch.set_num_threads(config.threads)
    task = build_task(config)
    strategy = FedLoRAStrategy(build_method(config), task, config)
    start = 0
    if out_dir is not None:
        strategy.checkpoints = Checkpoints(out_dir / "checkpoints", config)
        if resume:
            start, run = strategy.checkpoints.restore(strategy.method, strategy.result)
            strategy.run = run or strategy.run
        elif list((out_dir / "checkpoints").glob("round-*.json")):
            raise FileExistsError(f"{out_dir}: holds another run; resume it, or choose an empty folder")
    strategy.start(grid, num_rounds=config.rounds, timeout=config.timeout, start_round=start + 1, callbacks=callbacks)
    result = strategy.result
    if out_dir is not None:
        atomic_write_bytes(out_dir / "final.safetensors", save({k: v.contiguous() for k, v in result.final.items()}))
        told = {"config": config.to_run_config(), "history": result.history, "rounds": result.rounds}
        told |= {"meter": result.meter.rows, "examples": [result.examples[pid] for pid in range(len(config.ranks))]}
        atomic_write_json(out_dir / "result.json", told)
    return result


def load_result(out_dir: Path) -> FedResult:
    """What :func:`serve` left in a folder."""
    told = read_json(out_dir / "result.json")
    config = FedConfig.from_run_config(told["config"])
    final = load_file(out_dir / "final.safetensors")
    examples = dict(enumerate(told["examples"]))
    return FedResult(config, told["history"], told["rounds"], ByteMeter(told["meter"]), final, config.rounds, examples)


def make_server_app(defaults: Mapping[str, Any] | None = None) -> ServerApp:
    """A ServerApp for any method and task; ``out-dir`` and ``resume`` of the run configuration say where it writes."""
    app = ServerApp()
    bound = dict(defaults or {})

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        run_config = bound | dict(context.run_config)
        out = run_config.get("out-dir")
        config = FedConfig.from_run_config(run_config)
        folder = Path(str(out)) if out else None
        with lock(folder) if folder else nullcontext():
            result = serve(config, grid, folder, bool(run_config.get("resume", False)), [_tell])
        for line in summary_lines(result, folder):
            flower_log(logging.INFO, line)

    return app


def _tell(round: int, strategy: FedLoRAStrategy) -> None:
    """A line a round in Flower's own log, which ``flwr run --stream`` shows."""
    flower_log(logging.INFO, round_line(strategy.result, round))
