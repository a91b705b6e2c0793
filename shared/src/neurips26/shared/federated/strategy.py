"""A Flower strategy that gives every client its own payload, keeps going when clients fail, and can be resumed."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, Metadata, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from neurips26.shared.arrays import check_choice
from neurips26.shared.federated.checkpoint import Checkpoints
from neurips26.shared.federated.client import digest_of, setup_of, versions_of
from neurips26.shared.federated.config import FedConfig
from neurips26.shared.federated.meter import ByteMeter
from neurips26.shared.federated.method import ClientUpdate, FedMethod, GlobalModel
from neurips26.shared.federated.records import from_content, to_content
from neurips26.shared.federated.state import Tensors
from neurips26.shared.federated.store import PrivateLeakError, check_uplink
from neurips26.shared.federated.task import Task
from neurips26.shared.seeding import rng

__all__ = ["BadUpdateError", "FedLoRAStrategy", "FedResult", "MismatchedCodeError", "sample_clients"]

log = logging.getLogger("neurips26.federated")


class BadUpdateError(RuntimeError):
    """A reply is not finite, of the wrong shape or of another round, and the run was told to stop at such."""


class MismatchedCodeError(RuntimeError):
    """A client runs other code than the server."""


@dataclass
class FedResult:
    """What a run leaves behind.

    ``history`` has a row an evaluation: ``round``, ``column`` (``global``: the server's model on the union test set;
    ``received``: a client's personal model as it arrives, on its own test set; ``tuned``: after one more local round),
    ``client`` (-1 for global), ``metric``, ``value``. ``rounds`` has a row a round: sampled clients, replies, failures,
    loss, seconds. ``final`` holds the global change of every adapted weight and the head, ``examples`` the clients' numbers
    of training examples.
    """

    config: FedConfig
    history: list[dict[str, Any]] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    meter: ByteMeter = field(default_factory=ByteMeter)
    final: Tensors = field(default_factory=dict)
    stopped_at: int = 0
    examples: dict[int, int] = field(default_factory=dict)

    def metric(self, name: str, column: str = "global", round: int | None = None, weighting: str = "uniform") -> float:
        """A metric of the last evaluated (or of the given) round.

        In the personal columns it is the mean over clients: plain (``uniform``), or by their training ``examples``.
        """
        check_choice(weighting, "weighting", ("uniform", "examples"))
        rows = [r for r in self.history if r["metric"] == name and r["column"] == column]
        if round is None and rows:
            round = max(r["round"] for r in rows)
        rows = [r for r in rows if r["round"] == round]
        if not rows:
            raise ValueError(f"name: expected a recorded metric, got {name!r} ({column}, round {round})")
        weights = [self.examples[r["client"]] for r in rows] if weighting == "examples" and column != "global" else None
        return float(np.average([r["value"] for r in rows], weights=weights))

    def megabytes_to(self, name: str, target: float, direction: str) -> float | None:
        """Megabytes sent (``up`` or ``down``) when the global model first was as good as ``target``; None if it never was.

        A loss or perplexity is good when it is low, anything else when it is high.
        """
        low = name in ("loss", "perplexity")
        for round, value in zip(*self.curve(name), strict=True):
            if value <= target if low else value >= target:
                return sum(self.meter.total(direction, round=t, purpose="train") for t in range(1, round + 1)) / 1e6
        return None

    def curve(self, name: str) -> tuple[list[int], list[float]]:
        """Rounds and values of a metric of the global model."""
        rows = [r for r in self.history if r["metric"] == name and r["column"] == "global"]
        return [r["round"] for r in rows], [r["value"] for r in rows]


def sample_clients(config: FedConfig, round: int) -> list[int]:
    """The partition ids of this round: a function of settings, seed and round alone."""
    n = len(config.ranks)
    if config.participation == "schedule":
        return sorted(set(config.schedule[(round - 1) % len(config.schedule)]))
    draw = rng(config.seed, "sample", round)
    if config.participation == "bernoulli":
        order = draw.random(n)
        count = max(int((order < config.fraction_train).sum()), config.min_train_nodes)
        return sorted(int(i) for i in np.argsort(order)[:count])
    count = min(n, max(int(round_half_up(config.fraction_train * n)), config.min_train_nodes))
    if config.participation == "cyclic":
        return sorted(((round - 1) * count + i) % n for i in range(count))
    return sorted(int(i) for i in draw.choice(n, size=count, replace=False))


def round_half_up(x: float) -> float:
    """Plain rounding (Python's rounds halves to even)."""
    return np.floor(x + 0.5)


def _told(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


class FedLoRAStrategy(Strategy):
    """Runs any :class:`FedMethod`.

    Sampling, seeds and the order of aggregation follow the clients' partition ids: Flower draws new node ids for each
    run. Replies are checked (fields, shapes, finite values, round) before the method sees them; a round without a valid
    reply leaves the model as it is.
    """

    def __init__(
        self, method: FedMethod, task: Task, config: FedConfig, checkpoints: Checkpoints | None = None
    ) -> None:
        self.method, self.task, self.config, self.checkpoints = method, task, config, checkpoints
        self.result = FedResult(config)
        #: Names this run to its clients, so that what they keep for another one is never taken for its own.
        self.run = secrets.token_hex(8)
        self._nodes: dict[int, int] = {}
        self._asked: list[tuple[int, Metadata]] = []
        self._shapes: dict[int, dict[str, tuple[int, ...]]] = {}
        method.begin(setup_of(config, task))

    # --- Flower's interface -------------------------------------------------------------------------------------------

    def summary(self) -> None:
        """One line of what runs."""
        log.info(
            "%s on %s: %d clients, %d rounds",
            self.method.name,
            self.task.name,
            self.task.num_clients,
            self.config.rounds,
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message a sampled client, each with its own payload."""
        return self._messages(server_round, sample_clients(self.config, server_round), MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, weigh them by examples (or uniformly), and let the method aggregate."""
        updates, losses, failures, seconds = [], {}, [], 0.0
        for pid, message in self._by_partition(replies):
            if not message.has_content():
                failures.append([pid, "error", message.error.reason or str(message.error.code)])
                self.method.forget(pid)
                continue
            self.result.meter.add(server_round, pid, "up", message.content)
            tensors, config = from_content(message.content)
            metrics = message.content.metric_records["metrics"]
            problem = self._problem(server_round, pid, tensors, config)
            if problem:
                if self.config.on_bad_update == "raise":
                    raise BadUpdateError(f"round {server_round}, client {pid}: {problem}")
                log.warning("round %d: rejected the update of client %d: %s", server_round, pid, problem)
                failures.append([pid, "rejected", problem])
                continue
            seconds += float(metrics["seconds"])  # type: ignore[arg-type]
            losses[pid] = float(metrics["train-loss"])  # type: ignore[arg-type]
            updates.append((pid, int(metrics["num-examples"]), tensors, config))  # type: ignore[arg-type]
        answered = {u[0] for u in updates} | {f[0] for f in failures}
        failures += [
            [pid, "silent", "no reply"] for pid in sample_clients(self.config, server_round) if pid not in answered
        ]
        updates = [u for u in updates if u[1] > 0]
        row: dict[str, Any] = {"round": server_round, "replies": [u[0] for u in updates], "failures": failures}
        if updates:
            sizes = [n if self.config.weighting == "examples" else 1 for _, n, _, _ in updates]
            weights = [n / sum(sizes) for n in sizes]
            self.method.aggregate(
                server_round,
                [ClientUpdate(pid, w, n, t, c) for (pid, n, t, c), w in zip(updates, weights, strict=True)],
            )
            row["loss"] = float(np.dot(weights, [losses[u[0]] for u in updates]))
        else:
            log.warning("round %d is empty: no valid reply, the model stays as it is", server_round)
        self.result.rounds.append(row | {"empty": not updates, "client_seconds": seconds})
        return self._arrays(), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The personal evaluations, at all clients, in the rounds that the settings name."""
        if not self._due(server_round, self.config.client_eval_every):
            return []
        # What the clients would receive next: the state after this round.
        return self._messages(server_round + 1, sorted(self._nodes), MessageType.EVALUATE)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """A row for every client and metric; nothing is averaged here."""
        for pid, message in self._by_partition(replies):
            if not message.has_content():
                log.warning("round %d: client %d could not evaluate: %s", server_round, pid, message.error.reason)
                continue
            for key, value in message.content.metric_records["metrics"].items():
                column, _, metric = key.partition("-")
                if column in ("received", "tuned"):
                    self._record(server_round, column, pid, metric, float(value))  # type: ignore[arg-type]
        return None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        start_round: int = 1,
        callbacks: Iterable[Callable[[int, FedLoRAStrategy], None]] = (),
    ) -> Result:
        """Flower's loop from ``start_round`` on; a checkpoint and the callbacks after each round."""
        callbacks, empty = list(callbacks), ArrayRecord()
        self.summary()
        self._discover(grid)
        if start_round == 1 and self.config.eval_every:
            self._evaluate_global(0)
        for current in range(start_round, num_rounds + 1):
            begun = time.perf_counter()
            messages = list(self.configure_train(current, empty, train_config or ConfigRecord(), grid))
            self.aggregate_train(current, grid.send_and_receive(messages, timeout=timeout))
            self.result.rounds[-1]["seconds"] = time.perf_counter() - begun
            messages = list(self.configure_evaluate(current, empty, evaluate_config or ConfigRecord(), grid))
            if messages:
                self.aggregate_evaluate(current, grid.send_and_receive(messages, timeout=timeout))
            if self._due(current, self.config.eval_every) or current == num_rounds:
                self._evaluate_global(current)
            self.result.stopped_at = current
            if self.checkpoints is not None:
                self.checkpoints.save(current, self.method, self.result, self.run)
            for callback in callbacks:
                callback(current, self)
        self.result.final = self._final()
        result = Result()
        result.arrays = self._arrays()
        return result

    # --- inside -------------------------------------------------------------------------------------------------------

    def _discover(self, grid: Grid) -> None:
        """Ask every node for its partition id and compare its code with ours."""
        wanted = len(self.config.ranks)
        end = time.monotonic() + min(self.config.timeout, 120.0)
        while len(nodes := list(grid.get_node_ids())) < wanted and time.monotonic() < end:
            time.sleep(0.5)  # SuperNodes still connecting
        ask = [Message(to_content({}, {}), dst_node_id=node, message_type=MessageType.QUERY) for node in nodes]
        mine, versions = digest_of(self.config), versions_of(self.config)
        for message in grid.send_and_receive(ask, timeout=self.config.timeout):
            node = message.metadata.src_node_id
            if not message.has_content():
                raise RuntimeError(f"node {node} could not describe itself: {message.error.reason}")
            _, about = from_content(message.content)
            pid = int(about["partition-id"])
            if pid in self._nodes:
                raise ValueError(
                    f"partition-id: expected each once, {pid} is claimed by nodes {self._nodes[pid]} and {node}"
                )
            if about["versions"] != versions:
                raise MismatchedCodeError(
                    f"client {pid} (node {node}) has {_told(about['versions'])}, the server {_told(versions)}: "
                    "install the same version of the package on every node"
                )
            if about["digest"] != mine:
                raise MismatchedCodeError(
                    f"client {pid} (node {node}) runs other code ({about['digest']}) than the server ({mine}): "
                    "install the same version of the package on every node"
                )
            self._nodes[pid] = node
            self.result.examples[pid] = int(about["num-examples"])
        missing = sorted(set(range(wanted)) - set(self._nodes))
        if missing:
            raise RuntimeError(f"nodes: expected clients 0..{wanted - 1}, nobody answered for {missing}")

    def _messages(self, round: int, pids: list[int], kind: str) -> list[Message]:
        messages, self._asked = [], []
        for pid in pids:
            payload = self.method.downlink(round, pid)
            content = to_content(payload.tensors, payload.config | {"round": round, "run": self.run})
            purpose = "train" if kind == MessageType.TRAIN else "evaluate"
            self.result.meter.add(round, pid, "down", content, purpose)
            messages.append(Message(content, dst_node_id=self._nodes[pid], message_type=kind, group_id=str(round)))
            self._asked.append((pid, messages[-1].metadata))
        return messages

    def _by_partition(self, replies: Iterable[Message]) -> list[tuple[int, Message]]:
        """Replies with the client that each is from, in the order of the clients; a reply of nobody's is logged and dropped.

        A reply belongs to the message that it answers (the grid has given that its id by now). One that names no such
        message is told by its sender. Error replies of Flower's mods (``LocalDpMod`` and others) are built as an answer to
        the client's own reply: they name no message and go the wrong way, so that the client is their destination.
        """
        of_message = {asked.message_id: pid for pid, asked in self._asked if asked.message_id}
        of_node = {node: pid for pid, node in self._nodes.items()}
        found = []
        for message in replies:
            about = message.metadata
            pid = of_message.get(about.reply_to_message_id, of_node.get(about.src_node_id))
            if pid is None and not message.has_content():
                pid = of_node.get(about.dst_node_id)
            if pid is None:
                log.warning("dropped a reply from node %d, which is no client of this run", about.src_node_id)
            else:
                found.append((pid, message))
        return sorted(found, key=lambda item: item[0])

    def _problem(self, round: int, pid: int, tensors: Tensors, config: dict[str, Any]) -> str | None:
        if config.get("round") != round:
            return f"it answers round {config.get('round')}"
        if config.get("run") != self.run:
            return f"it answers another run ({config.get('run')})"
        try:
            check_uplink(tensors, self.method.uplink)
        except PrivateLeakError as error:
            return str(error)
        for key, shape in self.method.expected(round, pid).items():
            if key not in tensors:
                return f"{key} is missing"
            if tuple(tensors[key].shape) != tuple(shape):
                return f"{key}: expected shape {tuple(shape)}, got {tuple(tensors[key].shape)}"
        for key, value in tensors.items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                return f"{key} is not finite"
        return self.method.problem(round, pid, tensors, config)

    def _due(self, round: int, every: int) -> bool:
        return bool(every) and (round % every == 0 or round == self.config.rounds)

    def _evaluate_global(self, round: int) -> None:
        if not self.method.has_global:
            return
        model = self.task.model()
        self.method.global_model().install(model)
        model.module.eval()
        for metric, value in self.task.evaluate(model, self.config.split).items():
            self._record(round, "global", -1, metric, value)

    def _record(self, round: int, column: str, client: int, metric: str, value: float) -> None:
        row = {"round": round, "column": column, "client": client, "metric": metric, "value": value}
        self.result.history.append(row)

    def _final(self) -> Tensors:
        if not self.method.has_global:
            return self.method.state_dict()[0]
        whole: GlobalModel = self.method.global_model()
        out = {f"delta/{m}": d for m in self.method.setup.shapes if (d := whole.delta(m)) is not None}
        return out | {f"head/{name}": value for name, value in whole.adapters.head.items()}

    def _arrays(self) -> ArrayRecord:
        return to_content(self.method.state_dict()[0], {}).array_records["payload"]
