"""The two federations that the claims are measured on, and one run of a method on one of them."""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any

import torch

from neurips26.frank_lora.search import Search
from neurips26.shared.federated import FedConfig, FedLoRAStrategy, run_federated
from neurips26.shared.federated.linalg import stable_rank

__all__ = ["DIVERGED", "SEARCHES", "VARIANTS", "adopted", "chosen", "configuration", "run"]

_FRANK = "neurips26.frank_lora.method:FrankLoRA"

#: What is compared, by the name in tables: the method and its options.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "frank": (_FRANK, {}),
    "frank, one rate for all ranks": (_FRANK, {"lr_scaling": "none"}),
    "frank, square-root rates": (_FRANK, {"lr_scaling": "sqrt"}),
    "frank, linear rates": (_FRANK, {"lr_scaling": "linear"}),
    "frank, A never resampled": (_FRANK, {"resample_every": 0}),
    "frank, one A for all clients": (_FRANK, {"common_a": True}),
    "flora": ("flora", {}),
    "flexlora": ("flexlora", {}),
    "hetlora": ("hetlora", {}),
    "zeropad": ("zeropad", {}),
    "ffa": ("ffa", {}),
    "fedplora": ("fedplora", {}),
    "head only": ("head-only", {}),
}

#: How the tune tier looks for learning rates, for every method alike. On the generated federation some methods are best
#: just below the rate at which they diverge: there the last distance is a factor 1.09, and 1.73 under Adam, whose
#: losses are flat about their best rate.
SEARCHES = {
    "linear": Search(unit=0.025, fold=2.0, coarse=8, halvings=3, seeds=5),
    "banking77": Search(unit=0.01, fold=3.0, coarse=5, halvings=1, seeds=2),
}

#: Stands for a loss that is no number, and for a run of which the server had to reject an update.
DIVERGED = 1e9


def chosen(federation: str) -> dict[str, float]:
    """The rates that the tune tier chose, by variant (``chosen.json``, written from its record)."""
    return json.loads(files("neurips26.frank_lora").joinpath("chosen.json").read_text("utf-8"))[federation]


def adopted(grids: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """What ``chosen.json`` holds of a tune record's grids: rates, and the rivals' losses that rank them."""
    out: dict[str, dict[str, float]] = {}
    for grid in grids:
        federation, best = grid["id"].removesuffix("-rates"), grid["chosen"]
        out[federation] = {variant: got["lr"] for variant, got in best.items()}
        out[f"{federation}-ranking"] = {variant: got["loss"] for variant, got in best.items() if variant != "frank"}
    return out


def configuration(federation: str, variant: str, lr: float, seed: int, size: str = "full") -> FedConfig:
    """One run's settings; equal for all variants but for the method and its rate.

    Args:
        federation: ``linear`` (generated, known answer) or ``banking77`` (MiniLM, the upper layer's query and value).
        variant: a key of :data:`VARIANTS`.
        lr: learning rate of the adapters.
        seed: of targets or partition, of initial values, batches and A.
        size: ``full`` or ``quick``.
    """
    method, options = VARIANTS[variant]
    common: dict[str, Any] = {"method": method, "method_options": options, "lr": lr, "seed": seed}
    if federation == "linear":
        ranks = (2, 2, 2, 4, 4, 4, 8, 16)
        task = {
            "n": 32,
            "target_rank": 16,
            "num_clients": 8,
            "examples": 256,
            "spread": 0.5,
            "noise": 0.1,
            "seed": seed,
        }
        rounds = 25 if size == "full" else 10
        return FedConfig(
            task="neurips26.shared.federated.tasks:LinearTask", task_options=task, ranks=ranks, rounds=rounds,
            local_steps=5, batch_size=32, optimizer="sgd", grad_clip=None, eval_every=1, **common,
        )  # fmt: skip
    full = size == "full"
    ranks = (4, 4, 4, 8, 8, 8, 16, 32) if full else (4, 8, 8, 16)
    task = {"paper": "frank-lora", "num_clients": len(ranks), "alpha": 0.5, "layers": 1, "seed": seed}
    task |= {"train_size": 1600, "test_size": 500} if full else {"train_size": 240, "test_size": 80}
    return FedConfig(
        task="neurips26.shared.federated.text:TextTask", task_options=task, ranks=ranks, rounds=6 if full else 2,
        local_steps=3 if full else 2, batch_size=16 if full else 8, optimizer="adamw", head_lr=5e-3,
        eval_every=3 if full else 2, **common,
    )  # fmt: skip


@contextmanager
def _quiet() -> Iterator[None]:
    """A rate that is too large makes updates that the server rejects: they are a result, no news."""
    log = logging.getLogger("neurips26.federated")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        log.setLevel(level)


@cache
def run(federation: str, variant: str, lr: float, seed: int, size: str = "full", split: str = "test") -> dict[str, Any]:
    """Run once a process; final metrics, curves, and by round the bytes and the stable rank of the whole change.

    ``rejected`` counts the updates that were not finite. On the split ``validation`` the end alone is evaluated (the
    generated federation's loss is exact, and the same on both splits).
    """
    config = configuration(federation, variant, lr, seed, size).replace(split=split)
    tuning = split == "validation"
    stable: list[float] = []

    def watch(_: int, strategy: FedLoRAStrategy) -> None:
        delta = strategy.method.global_model().delta(next(iter(strategy.method.setup.shapes)))
        known = delta is not None and bool(torch.isfinite(delta).all())
        stable.append(stable_rank(delta) if known else 0.0)  # type: ignore[arg-type]

    with _quiet():
        result = run_federated(config.replace(eval_every=0) if tuning else config, callbacks=[] if tuning else [watch])
    rounds, losses = result.curve("loss")
    losses = [loss if math.isfinite(loss) else DIVERGED for loss in losses]
    megabytes = {
        way: [result.meter.total(way, round=t) / 1e6 for t in range(1, config.rounds + 1)] for way in ("up", "down")
    }
    head = sum(v.numel() * 4 for k, v in result.final.items() if k.startswith("head/")) * len(config.ranks) / 1e6
    out: dict[str, Any] = {"loss": losses[-1], "rounds": rounds, "losses": losses, "head_megabytes": head}
    out |= {"up": megabytes["up"], "down": megabytes["down"], "stable_ranks": stable}
    out["rejected"] = sum(kind == "rejected" for row in result.rounds for _, kind, _ in row["failures"])
    if federation == "banking77":
        accuracy = result.curve("accuracy")[1]
        out |= {"accuracy": accuracy[-1], "accuracies": accuracy}
    return out
