"""The client side: a Flower ClientApp around a method and a task."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, MetricRecord
from flwr.clientapp import ClientApp

from neurips26.shared.federated.config import FedConfig, named
from neurips26.shared.federated.faults import FaultPlan
from neurips26.shared.federated.method import Client, FedMethod, Payload, Setup
from neurips26.shared.federated.methods import METHODS
from neurips26.shared.federated.records import from_content, to_content
from neurips26.shared.federated.store import PrivateStore, check_uplink
from neurips26.shared.federated.task import Task
from neurips26.shared.seeding import rng

__all__ = [
    "build_method",
    "build_task",
    "digest_of",
    "make_client_app",
    "setup_of",
    "source_digest",
    "train_locally",
    "versions_of",
]


@lru_cache(maxsize=8)
def _task(path: str, options: str) -> Task:
    return _built(named(path, "task"), json.loads(options), "task_options")


def _built(kind: Callable[..., Any], options: Mapping[str, Any], argument: str) -> Any:
    try:
        inspect.signature(kind).bind(**options)
    except TypeError as error:
        raise ValueError(f"{argument}: {error} (of {kind.__name__})") from None
    return kind(**options)


def build_task(config: FedConfig) -> Task:
    """The configured task; one a process and options, so that the backbone is loaded once."""
    task = _task(config.task, json.dumps(config.task_options, sort_keys=True))
    if task.num_clients != len(config.ranks):
        raise ValueError(
            f"ranks: expected one for each of the task's {task.num_clients} clients, got {len(config.ranks)}"
        )
    return task


def build_method(config: FedConfig) -> FedMethod:
    """A new object of the configured method."""
    known = METHODS.get(config.method)
    method = _built(known or named(config.method, "method"), config.method_options, "method_options")
    if config.persist_optimizer and not method.factors_outlive_round:
        raise ValueError(
            f"persist_optimizer: expected false with {method.name}, whose factors start anew in every round: "
            "moments of the old ones mean nothing to them"
        )
    return method


def setup_of(config: FedConfig, task: Task) -> Setup:
    """What both sides know before the first round."""
    head = task.initial_head(config.seed)
    return Setup(task.model().shapes, config.lora, head, config.seed, len(config.ranks), config.optimizer)


@lru_cache(maxsize=8)
def source_digest(*modules: str) -> str:
    """Digest of the Python sources of these packages, as installed on this machine."""
    digest = hashlib.sha256()
    for name in sorted(set(modules)):
        file = importlib.import_module(name).__file__
        if file is None:
            continue
        path = Path(file)
        for source in sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]:
            digest.update(source.relative_to(path.parent).as_posix().encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def digest_of(config: FedConfig) -> str:
    """Digest of the code that both sides of a run must share: the harness and the packages of method and task."""
    modules = ["neurips26.shared.federated"]
    for path in (config.method, config.task):
        if ":" in path:
            # neurips26.frank_lora.method:FrankLoRA belongs to the package neurips26.frank_lora
            module = ".".join(path.partition(":")[0].split(".")[:2])
            modules.append(path.partition(":")[0] if module == "neurips26.shared" else module)
    return source_digest(*modules)


def versions_of(config: FedConfig) -> dict[str, str]:
    """Installed versions of the harness's distribution and of those that method and task come from."""
    out = {}
    for path in ("neurips26.shared", config.method, config.task):
        parts = path.partition(":")[0].split(".")
        if parts[0] == "neurips26" and len(parts) > 1:
            name = f"neurips26-{parts[1].replace('_', '-')}"
            try:
                out[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                out[name] = "not installed as a distribution"
    return out


def train_locally(client: Client, method: FedMethod, task: Task, config: FedConfig) -> dict[str, float]:
    """The local steps of one round on ``client.model``; returns the mean loss and the seconds they took.

    Batches are drawn without replacement from a stream of (seed, round, client), a new pass when all are used.
    """
    started = time.perf_counter()
    parameters = client.parameters = client.model.trainable(method.trained_fields(client))
    client.start = {key: value.detach().clone() for key, value in parameters.items()}
    rates = {key: _rate(key, client, method, config) for key in parameters}
    groups = [
        {"params": [parameters[key] for key in parameters if rates[key] == rate], "lr": rate}
        for rate in dict.fromkeys(rates.values())
    ]
    n = task.num_examples(client.pid)
    losses: list[float] = []
    if groups and n:
        kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.SGD
        optimizer = kind(groups, weight_decay=config.weight_decay)
        kept = client.private.get("optimizer") if config.persist_optimizer else None
        if kept is not None:
            _restore(optimizer, parameters, kept[0])
        generator = rng(config.seed, "batches", client.round, client.pid)
        order = np.empty(0, dtype=np.int64)
        size = min(config.batch_size, n)
        steps = config.local_steps if config.local_epochs is None else config.local_epochs * (n // size)
        client.model.module.train()
        for _ in range(steps):
            if len(order) < size:
                order = generator.permutation(n)
            indices, order = order[:size], order[size:]
            loss = task.loss(client.model, client.pid, indices, generator)
            more = method.extra_loss(client)
            optimizer.zero_grad(set_to_none=True)
            (loss if more is None else loss + more).backward()
            if config.grad_clip is not None:
                torch.nn.utils.clip_grad_norm_(list(parameters.values()), config.grad_clip)
            optimizer.step()
            losses.append(float(loss.detach()))
        client.model.module.eval()
        if config.persist_optimizer:
            client.private.put("optimizer", _moments(optimizer, parameters))
    for parameter in parameters.values():
        parameter.grad = None
        parameter.requires_grad_(False)
    return {"loss": float(np.mean(losses)) if losses else 0.0, "seconds": time.perf_counter() - started}


def _rate(key: str, client: Client, method: FedMethod, config: FedConfig) -> float:
    field, module = key.split("/", 1)
    if field == "head":
        return config.lr if config.head_lr is None else config.head_lr
    return method.learning_rate(client, config.lr, module)


def _moments(optimizer: torch.optim.Optimizer, parameters: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {
        f"{entry}/{key}": torch.as_tensor(value)
        for key, parameter in parameters.items()
        for entry, value in optimizer.state[parameter].items()
        if value is not None
    }


def _restore(optimizer: torch.optim.Optimizer, parameters: Mapping[str, Any], kept: Mapping[str, torch.Tensor]) -> None:
    for name, value in kept.items():
        entry, key = name.split("/", 1)
        if key in parameters and (value.ndim == 0 or value.shape == parameters[key].shape):
            optimizer.state[parameters[key]][entry] = value.clone()


def make_client_app(defaults: Mapping[str, Any] | None = None, mods: Sequence[Any] = ()) -> ClientApp:
    """A ClientApp for any method and task.

    Args:
        defaults: run configuration used for keys that the context does not give (the simulation gives none).
        mods: Flower's mods around the training message. Those that compare what came with what goes back, like
            ``LocalDpMod``, need a method that receives and sends the same tensors: FedIT, FedProx, FFA-LoRA and
            zero-padding do; one that merges into the base (Frank, FLoRA, FedEx) or sends half (RoLoRA, FedSA) does not.

    The node's configuration names its ``partition-id``, and optionally a ``state-dir`` for durable private state
    (a folder a run in it, by the token that the server draws).
    """
    app = ClientApp()
    bound = dict(defaults or {})

    def prepare(message: Message, context: Context) -> SimpleNamespace:
        run_config = bound | dict(context.run_config)
        config = FedConfig.from_run_config(run_config)
        if torch.get_num_threads() != config.threads:
            torch.set_num_threads(config.threads)
        if "partition-id" not in context.node_config:
            raise ValueError("node config: expected a partition-id, got none (flower-supernode --node-config)")
        pid = int(context.node_config["partition-id"])
        if not 0 <= pid < len(config.ranks):
            raise ValueError(f"node config: expected a partition-id below {len(config.ranks)}, got {pid}")
        return SimpleNamespace(config=config, pid=pid, run_config=run_config, task=build_task(config))

    def open_client(message: Message, context: Context, keep: bool = True) -> SimpleNamespace:
        ready = prepare(message, context)
        config, pid = ready.config, ready.pid
        method = build_method(config)
        setup = setup_of(config, ready.task)
        method.begin(setup)
        payload = Payload(*from_content(message.content))
        folder = context.node_config.get("state-dir") or ready.run_config.get("out-dir")
        round, run = int(payload.config["round"]), str(payload.config["run"])
        private = PrivateStore(context.state, pid, round, Path(str(folder)) / "clients" if folder else None, run)
        private = private if keep else _ReadOnly(private)
        rank = config.ranks[pid]
        client = Client(pid, round, rank, config.lora.scale(rank), ready.task.model(), setup, private, payload)
        method.receive(client)
        ready.method, ready.client, ready.round, ready.run = method, client, round, run
        return ready

    @app.query()
    def describe(message: Message, context: Context) -> Message:
        ready = prepare(message, context)
        about = {
            "partition-id": ready.pid,
            "num-examples": ready.task.num_examples(ready.pid),
            "digest": digest_of(ready.config),
            "versions": versions_of(ready.config),
        }
        return Message(to_content({}, about), reply_to=message)

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        ready = open_client(message, context)
        config, client, method = ready.config, ready.client, ready.method
        plan = FaultPlan.from_json(config.faults)
        plan.before_train(ready.round, ready.pid)
        measured = train_locally(client, method, ready.task, config)
        plan.before_reply(ready.round, ready.pid)
        answer = method.reply(client)
        check_uplink(answer.tensors, method.uplink)
        tensors, claimed = plan.after_train(ready.round, ready.pid, answer.tensors)
        # Private state of a method is what the two calls above wrote; replies hold declared fields only.
        content = to_content(tensors, answer.config | {"round": claimed, "run": ready.run, "pid": ready.pid})
        n = ready.task.num_examples(ready.pid)
        content["metrics"] = MetricRecord(
            {"num-examples": n, "train-loss": measured["loss"], "seconds": measured["seconds"]}
        )
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        """The personal model as it is received, and after one more local round that nobody keeps."""
        ready = open_client(message, context, keep=False)
        config, client = ready.config, ready.client
        received = ready.task.evaluate(client.model, config.split, ready.pid)
        train_locally(client, ready.method, ready.task, config.replace(persist_optimizer=False))
        tuned = ready.task.evaluate(client.model, config.split, ready.pid)
        metrics: dict[str, Any] = {"num-examples": ready.task.num_examples(ready.pid)}
        metrics |= {f"received-{key}": value for key, value in received.items()}
        metrics |= {f"tuned-{key}": value for key, value in tuned.items()}
        content = to_content({}, {"round": ready.round, "pid": ready.pid})
        content["metrics"] = MetricRecord(metrics)
        return Message(content, reply_to=message)

    return app


class _ReadOnly(PrivateStore):
    """A private store for an evaluation: reads pass, writes are forgotten."""

    def __init__(self, store: PrivateStore) -> None:
        self._store, self.pid, self.round = store, store.pid, store.round

    def get(self, name: str) -> Any:
        return self._store.get(name)

    def put(self, name: str, tensors: Any, meta: Any = None) -> None:
        return None
