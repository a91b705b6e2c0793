# ruff: noqa: D102  what overrides is documented in its base class
"""What several methods share: factors kept on the server, and updates merged into the base weights."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from neurips26.shared.federated.method import Client, ClientUpdate, FedMethod, GlobalModel, Payload, Setup
from neurips26.shared.federated.state import AdapterState, LoraFactors, Tensors, average, clone, num_bytes, select
from neurips26.shared.seeding import derive

__all__ = ["FactorMethod", "MergingMethod", "initial_a", "renormalised"]


def initial_a(seed: int, module: str, r: int, n: int, *names: object) -> Tensor:
    """PEFT's initial A, uniform on (-1/sqrt(n), 1/sqrt(n)), as a pure function of seed and names (CPU, float32)."""
    generator = torch.Generator().manual_seed(derive(seed, "initial A", module, *names))
    return (2 * torch.rand(r, n, generator=generator) - 1) / n**0.5


def renormalised(updates: list[ClientUpdate]) -> list[tuple[ClientUpdate, float]]:
    """The updates that carry adapters, with weights that sum to one over them."""
    taking = [u for u in updates if any(key.startswith(("A/", "B/")) for key in u.tensors)]
    total = sum(u.weight for u in taking)
    return [(u, u.weight / total) for u in taking]


class _WithHead(FedMethod):
    """A method whose head is averaged over the replies."""

    head: Tensors

    def begin(self, setup: Setup) -> None:
        super().begin(setup)
        self.head = dict(setup.head)

    def _rank(self, pid: int) -> int:
        return self.setup.lora.ranks[pid]

    def _scale(self, pid: int) -> float:
        return self.setup.lora.scale(self._rank(pid))

    def _head_payload(self) -> Tensors:
        return {f"head/{name}": value for name, value in self.head.items()}

    def _average_head(self, updates: list[ClientUpdate]) -> None:
        heads = [select(u.tensors, "head") for u in updates]
        self.head = {key[5:]: value for key, value in average(heads, [u.weight for u in updates]).items()}

    def _receive_head(self, client: Client) -> None:
        head = {key[5:]: value for key, value in client.received.tensors.items() if key.startswith("head/")}
        if head:
            client.model.set_head(head)


class FactorMethod(_WithHead):
    """The server keeps factors of the largest rank, with scaling 1 (the clients' scaling is inside B).

    A client of rank r_i is sent the first r_i rows of A and columns of B. Start: A as PEFT draws it, one for all, B = 0.
    """

    state: AdapterState

    def begin(self, setup: Setup) -> None:
        super().begin(setup)
        r = setup.lora.max_rank
        self.state = AdapterState(
            {
                name: LoraFactors(initial_a(setup.seed, name, r, n), torch.zeros(m, r))
                for name, (m, n) in setup.shapes.items()
            }
        )

    # server

    def downlink(self, round: int, pid: int) -> Payload:
        tensors = self._for_client(pid).to_tensors(("A", "B")) if self._rank(pid) else {}
        return Payload(tensors | self._head_payload())

    def aggregate(self, round: int, updates: list[ClientUpdate]) -> None:
        self._average_head(updates)
        taking = renormalised(updates)
        if taking:
            states = [AdapterState(self._effective(u).factors) for u, _ in taking]
            self.state = self.combine(states, [w for _, w in taking])

    @abstractmethod
    def combine(self, states: list[AdapterState], weights: list[float]) -> AdapterState:
        """The new factors from the clients' (scaling 1)."""

    def global_model(self) -> GlobalModel:
        return GlobalModel(adapters=AdapterState(self.state.factors, self.head))

    def state_dict(self) -> tuple[Tensors, dict[str, Any]]:
        return self.state.to_tensors(("A", "B")) | self._head_payload(), {}

    def load_state_dict(self, tensors: Tensors, config: dict[str, Any]) -> None:
        state = AdapterState.from_tensors(tensors)
        self.state, self.head = AdapterState(state.factors), state.head

    def expected(self, round: int, pid: int) -> dict[str, tuple[int, ...]]:
        r, shapes = self._rank(pid), {f"head/{k}": tuple(v.shape) for k, v in self.head.items()}
        if r:
            for name, (m, n) in self.setup.shapes.items():
                if "A" in self.uplink:
                    shapes[f"A/{name}"] = (r, n)
                if "B" in self.uplink:
                    shapes[f"B/{name}"] = (m, r)
        return {key: shape for key, shape in shapes.items() if key.split("/")[0] in self.uplink}

    def _for_client(self, pid: int) -> AdapterState:
        return self.state.truncate(self._rank(pid)).with_scaling(self._scale(pid))

    def _effective(self, update: ClientUpdate) -> AdapterState:
        return update.adapters(self._scale(update.pid)).with_scaling(1.0)

    # client

    def receive(self, client: Client) -> None:
        client.model.set_delta(None)
        client.model.set_adapters(AdapterState(self._received(client).factors))
        self._receive_head(client)

    def _received(self, client: Client) -> AdapterState:
        return AdapterState.from_tensors(client.received.tensors, client.scale)

    def reply(self, client: Client) -> Payload:
        state = AdapterState(client.model.adapters().factors, client.model.head())
        return Payload(clone(state.to_tensors(self.uplink)))


class MergingMethod(_WithHead):
    """Each round's update is merged into the base weights of server and clients: ``W_{t+1} = W_t + dW_t``.

    The server keeps a log of what made the update of each round, a client the sum that it has merged. A client that
    comes back is sent what it missed: the log's entries, or the whole dense change where that is smaller. Both sides
    turn an entry into a dense update by the same code in the same order, so that their bases are equal bit for bit,
    whichever rounds a client missed.
    """

    base: dict[str, Tensor]

    def begin(self, setup: Setup) -> None:
        super().begin(setup)
        self.base = {name: torch.zeros(m, n) for name, (m, n) in setup.shapes.items()}
        self._log: dict[int, Payload] = {}
        self._synced: dict[int, int] = {}  # pid -> the last round whose update it is known to have merged
        self._dropped = 0  # entries up to this round are gone
        self._last = 0

    @abstractmethod
    def entry_delta(self, tensors: Tensors, config: dict[str, Any], module: str) -> Tensor:
        """The dense update of one module that a log entry stands for."""

    def merge(self, round: int, entry: Payload, updates: list[ClientUpdate]) -> None:
        """Merge one round's entry on the server and note who has merged everything before it."""
        for name, base in self.base.items():
            base += self.entry_delta(entry.tensors, entry.config, name)
        self._log[round], self._last = entry, round
        for update in updates:
            self._synced[update.pid] = round - 1
        self._prune()

    def _dense_bytes(self) -> int:
        return num_bytes(self.base)

    def _prune(self) -> None:
        """Forget entries that everybody has, or that only make a chain longer than the dense change."""
        everybody = min(self._synced.get(pid, 0) for pid in range(self.setup.num_clients))
        size = 0
        for round in sorted(self._log, reverse=True):
            size += num_bytes(self._log[round].tensors)
            if round <= everybody or size > self._dense_bytes():
                self._dropped = max(self._dropped, round)
        self._log = {round: entry for round, entry in self._log.items() if round > self._dropped}

    def catch_up(self, pid: int) -> Payload:
        """What this client needs to reach the server's base."""
        since = self._synced.get(pid, 0)
        if self._last <= since:
            return Payload({}, {"through": self._last, "since": since, "entries": {}})
        missed = [round for round in sorted(self._log) if round > since]
        tensors: Tensors = {}
        for round in missed:
            tensors |= {_at(round, key): value for key, value in self._log[round].tensors.items()}
        config: dict[str, Any] = {"through": self._last, "since": since}
        if self._dropped <= since and num_bytes(tensors) <= self._dense_bytes():
            return Payload(tensors, config | {"entries": {str(t): self._log[t].config for t in missed}})
        return Payload({f"dense/{name}": base for name, base in self.base.items()}, config | {"dense": True})

    def downlink(self, round: int, pid: int) -> Payload:
        payload = self.catch_up(pid)
        return Payload(payload.tensors | self._head_payload(), payload.config)

    def receive_base(self, client: Client) -> dict[str, Tensor]:
        """Bring the client's base up to date, keep it in private, and put it into the model."""
        config, tensors = client.received.config, client.received.tensors
        kept = client.private.get("base")
        base, synced = (kept[0], kept[1]["synced"]) if kept else (None, 0)
        if base is None:
            base = {name: torch.zeros(m, n) for name, (m, n) in self.setup.shapes.items()}
        if config.get("dense"):
            base = {name: tensors[f"dense/{name}"] for name in base}
        elif synced < config["since"]:
            # The private state is gone (a node lost its disk). The error reply makes the server send more next time.
            raise RuntimeError(
                f"client {client.pid}: has merged rounds up to {synced}, the server sent those after {config['since']}"
            )
        else:
            for round in sorted(int(key) for key in config["entries"]):
                if round <= synced:
                    continue
                entry = {key.split("/", 1)[1]: v for key, v in tensors.items() if key.startswith(f"{round}/")}
                for name in base:
                    base[name] = base[name] + self.entry_delta(entry, config["entries"][str(round)], name)
        client.private.put("base", base, {"synced": config["through"]})
        client.model.set_delta(base)
        return base

    def forget(self, pid: int) -> None:
        """Treat a client as new: it answered with an error, so its private base may be gone."""
        self._synced[pid] = 0

    def global_model(self) -> GlobalModel:
        return GlobalModel({name: base.clone() for name, base in self.base.items()}, AdapterState({}, self.head))

    def state_dict(self) -> tuple[Tensors, dict[str, Any]]:
        tensors = {f"dense/{name}": base for name, base in self.base.items()} | self._head_payload()
        for round, entry in self._log.items():
            tensors |= {_at(round, key): value for key, value in entry.tensors.items()}
        config = {
            "log": {str(round): entry.config for round, entry in self._log.items()},
            "synced": {str(pid): round for pid, round in self._synced.items()},
            "dropped": self._dropped,
            "last": self._last,
        }
        return tensors, config

    def load_state_dict(self, tensors: Tensors, config: dict[str, Any]) -> None:
        self.base = {name: tensors[f"dense/{name}"].clone() for name in self.base}
        self.head = {name: tensors[f"head/{name}"] for name in self.head}
        self._log = {}
        for round, about in config["log"].items():
            entry = {key.split("/", 1)[1]: v for key, v in tensors.items() if key.startswith(f"{round}/")}
            self._log[int(round)] = Payload(entry, about)
        self._synced = {int(pid): round for pid, round in config["synced"].items()}
        self._dropped, self._last = config["dropped"], config["last"]


def _at(round: int, key: str) -> str:
    return f"{round}/{key}"
