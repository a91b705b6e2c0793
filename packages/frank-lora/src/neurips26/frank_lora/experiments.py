"""The two federations that the claims are measured on, and one run of a method on one of them."""

from __future__ import annotations

import json
import logging
import warnings
from functools import cache
from importlib.resources import files
from typing import Any

import torch

from neurips26.shared.federated import FedConfig, FedLoRAStrategy, run_federated
from neurips26.shared.federated.linalg import stable_rank

__all__ = ["GRIDS", "VARIANTS", "chosen", "configuration", "rates", "run"]

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

#: Learning rates tried, as multiples of a centre: the same grid for every method. The centres only shift where the grid
#: lies (a frozen A of unit scale and a trained one do not have the same natural rate).
GRIDS = {
    "linear": (0.25, 0.5, 1.0, 2.0),
    "banking77": (1.0, 3.0, 9.0, 27.0),
}
_CENTRES = {
    "linear": {"default": 0.4, "frank": 0.1, "flora": 0.56, "ffa": 0.8, "fedplora": 0.2},
    "banking77": {"default": 1e-2, "frank": 6e-3, "ffa": 3e-2},
}


def rates(federation: str, variant: str) -> list[float]:
    """The grid of learning rates of one variant."""
    centres = _CENTRES[federation]
    centre = centres.get(variant.split(",")[0], centres["default"])
    return [round(centre * factor, 6) for factor in GRIDS[federation]]


def chosen(federation: str) -> dict[str, float]:
    """The rates that the tune tier chose, by variant (``chosen.json``, written from its record)."""
    return json.loads(files("neurips26.frank_lora").joinpath("chosen.json").read_text("utf-8"))[federation]


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


@cache
def run(federation: str, variant: str, lr: float, seed: int, size: str = "full", split: str = "test") -> dict[str, Any]:
    """Run once a process; final metrics, curves, and by round the bytes and the stable rank of the whole change."""
    config = configuration(federation, variant, lr, seed, size).replace(split=split)
    if split == "validation":  # while tuning the final loss alone counts
        config = config.replace(eval_every=0)
    # A rate at the end of the grid may diverge: its rejected updates are the result, not news.
    logging.getLogger("neurips26.federated").setLevel(logging.ERROR)
    stable: list[float] = []

    def watch(_: int, strategy: FedLoRAStrategy) -> None:
        delta = strategy.method.global_model().delta(next(iter(strategy.method.setup.shapes)))
        known = delta is not None and bool(torch.isfinite(delta).all())
        stable.append(stable_rank(delta) if known else 0.0)  # type: ignore[arg-type]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        result = run_federated(config, callbacks=[watch])
    rounds, loss = result.curve("loss")
    megabytes = {
        way: [result.meter.total(way, round=t) / 1e6 for t in range(1, config.rounds + 1)] for way in ("up", "down")
    }
    head = sum(v.numel() * 4 for k, v in result.final.items() if k.startswith("head/")) * len(config.ranks) / 1e6
    out: dict[str, Any] = {"loss": loss[-1], "rounds": rounds, "losses": loss, "head_megabytes": head}
    out |= {"up": megabytes["up"], "down": megabytes["down"]}
    out["stable_ranks"] = stable
    if federation == "banking77":
        accuracy = result.curve("accuracy")[1]
        out |= {"accuracy": accuracy[-1], "accuracies": accuracy}
    # A diverged run is a result, but not a JSON number: it counts as no better than the start.
    return json.loads(json.dumps(out).replace("NaN", "1e9").replace("Infinity", "1e9"))
