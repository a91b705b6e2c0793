"""The settings of one federated run, as a dataclass and as Flower's flat run configuration."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from neurips26.shared.arrays import check_choice, check_int, check_real
from neurips26.shared.federated.faults import FaultPlan
from neurips26.shared.federated.model import LoraSpec

__all__ = ["FedConfig", "named"]


@dataclass(frozen=True)
class FedConfig:
    """Everything that fixes the result of a run; two runs with equal settings end in equal arrays.

    In Flower's run configuration the keys are in kebab case and lists and tables are JSON texts, so that
    ``flwr run . --run-config "lr=0.003 method='flora'"`` changes one of them.
    """

    method: str = "fedit"  # a name of `methods.METHODS`, or "module:Class"
    method_options: dict[str, Any] = field(default_factory=dict)
    task: str = "neurips26.shared.federated.tasks:LinearTask"  # "module:Class" of the task
    task_options: dict[str, Any] = field(default_factory=dict)
    ranks: tuple[int, ...] = (4, 4, 4, 4)  # one a client
    alpha: float = 1.0
    scaling: str = "constant"  # "alpha/r", "rslora" or "constant" (= alpha)
    rounds: int = 5
    fraction_train: float = 1.0  # share of the clients in a round
    min_train_nodes: int = 1
    participation: str = "random"  # or "cyclic", "bernoulli" (each client with fraction_train), "schedule"
    schedule: tuple[tuple[int, ...], ...] = ()  # the clients of each round, from the start again when used up
    local_steps: int = 4
    local_epochs: int | None = (
        None  # passes over the client's examples instead of local_steps (the last, short batch is left out)
    )
    batch_size: int = 16
    optimizer: str = "adamw"  # or "sgd"
    lr: float = 1e-3
    head_lr: float | None = None  # None: as lr
    weight_decay: float = 0.0
    grad_clip: float | None = 1.0  # norm over adapters and head
    persist_optimizer: bool = False
    weighting: str = "examples"  # or "uniform"
    seed: int = 0
    eval_every: int = 0  # rounds between evaluations of the global model; 0: after the last round only
    client_eval_every: int = 0  # the same for the two evaluations at the clients; 0: never
    split: str = "test"  # what is evaluated: "validation" while tuning
    faults: tuple[tuple[int, int, str], ...] = ()  # (round, client, kind): failures on purpose
    on_bad_update: str = "reject"  # or "raise"
    threads: int = 1  # threads of torch in a client process
    timeout: float = 3600.0  # seconds to wait for replies

    def __post_init__(self) -> None:
        for name, kind in (("ranks", "list"), ("schedule", "list"), ("faults", "list"), ("method_options", "table"),
                           ("task_options", "table")):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, (list, tuple) if kind == "list" else Mapping):
                raise ValueError(f"{name}: expected a {kind}, got {value!r}")
        for name in ("method", "task"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(f"{name}: expected a name, got {getattr(self, name)!r}")
        if not isinstance(self.persist_optimizer, bool):
            raise ValueError(f"persist_optimizer: expected true or false, got {self.persist_optimizer!r}")
        LoraSpec(tuple(self.ranks), self.alpha, self.scaling)
        check_int(self.rounds, "rounds", minimum=0)
        check_real(self.fraction_train, "fraction_train", minimum=0, maximum=1)
        check_int(self.min_train_nodes, "min_train_nodes", minimum=1, maximum=len(self.ranks))
        check_choice(self.participation, "participation", ("random", "cyclic", "bernoulli", "schedule"))
        if (self.participation == "schedule") != bool(self.schedule):
            raise ValueError(
                "schedule: expected the clients of each round with participation='schedule', and only then"
            )
        for row in self.schedule:
            if not isinstance(row, (list, tuple)) or not row:
                raise ValueError(f"schedule: expected a list of clients for each round, got {row!r}")
            for pid in row:
                check_int(pid, "schedule", minimum=0, maximum=len(self.ranks) - 1)
        check_int(self.local_steps, "local_steps", minimum=0)
        if self.local_epochs is not None:
            check_int(self.local_epochs, "local_epochs", minimum=1)
        check_int(self.batch_size, "batch_size", minimum=1)
        check_choice(self.optimizer, "optimizer", ("adamw", "sgd"))
        check_real(self.lr, "lr", minimum=0)
        check_choice(self.weighting, "weighting", ("examples", "uniform"))
        check_int(self.seed, "seed", minimum=0)
        check_choice(self.split, "split", ("validation", "test"))
        check_int(self.eval_every, "eval_every", minimum=0)
        check_int(self.client_eval_every, "client_eval_every", minimum=0)
        check_real(self.weight_decay, "weight_decay", minimum=0)
        if self.head_lr is not None:
            check_real(self.head_lr, "head_lr", minimum=0)
        if self.grad_clip is not None:
            check_real(self.grad_clip, "grad_clip", minimum=0, inclusive=False)
        for _, pid in FaultPlan.from_json(self.faults).faults:
            check_int(pid, "faults", minimum=0, maximum=len(self.ranks) - 1)
        check_choice(self.on_bad_update, "on_bad_update", ("reject", "raise"))
        check_int(self.threads, "threads", minimum=1)
        check_real(self.timeout, "timeout", minimum=0, inclusive=False)

    @property
    def lora(self) -> LoraSpec:
        """Ranks and scaling."""
        return LoraSpec(tuple(self.ranks), self.alpha, self.scaling)

    def replace(self, **changes: Any) -> FedConfig:
        """A copy with some settings changed."""
        return dataclasses.replace(self, **changes)

    def to_run_config(self) -> dict[str, Any]:
        """Flower's form: kebab-case keys, scalars or JSON texts."""
        out = {}
        for f in fields(self):
            value = getattr(self, f.name)
            scalar = isinstance(value, (bool, int, float, str))
            out[f.name.replace("_", "-")] = value if scalar else json.dumps(value)
        return out

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> FedConfig:
        """The inverse; absent keys keep their defaults.

        Raises:
            ValueError: an unknown key (the nearest known one is named) or text that is not JSON.
        """
        known = {f.name.replace("_", "-"): f for f in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in config.items():
            if key in ("out-dir", "resume", "app"):  # where a run writes and which app it is: not part of the result
                continue
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                raise ValueError(f"run config: unknown key {key!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
            f = known[key]
            if isinstance(value, str) and f.type != "str":
                try:
                    value = json.loads(value)
                except json.JSONDecodeError as error:
                    raise ValueError(f"run config: expected JSON for {key}, got {value!r} ({error})") from None
            if f.type == "float" and isinstance(value, int):
                value = float(value)
            if isinstance(value, list):
                value = tuple(tuple(item) if isinstance(item, list) else item for item in value)
            values[f.name] = value
        return cls(**values)

    def key(self) -> str:
        """Canonical text, equal for equal settings."""
        return json.dumps(self.to_run_config(), sort_keys=True)


def named(path: str, argument: str) -> Any:
    """The object that ``module:name`` names.

    Raises:
        ValueError: malformed, or there is no such module or name.
    """
    module, _, name = path.partition(":")
    if not module or not name:
        raise ValueError(f"{argument}: expected 'module:name', got {path!r}")
    try:
        return getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ValueError(f"{argument}: nothing importable is named {path!r} ({error})") from error
