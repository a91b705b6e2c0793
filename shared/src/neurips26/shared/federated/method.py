"""The plug-in protocol: one object that knows a method's server side and its client side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from neurips26.shared.federated.model import LoraModel, LoraSpec
from neurips26.shared.federated.state import AdapterState, Tensors
from neurips26.shared.federated.store import PrivateStore

__all__ = ["Client", "ClientUpdate", "FedMethod", "GlobalModel", "MixedRanksError", "Payload", "Setup"]


class MixedRanksError(ValueError):
    """The method is defined for clients of one rank only."""


@dataclass
class Payload:
    """What one message carries: tensors by ``<field>/<name>``, and small JSON values."""

    tensors: Tensors = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Setup:
    """What both sides know before the first round."""

    shapes: Mapping[str, tuple[int, int]]
    lora: LoraSpec
    head: Tensors
    seed: int
    num_clients: int
    optimizer: str = "adamw"


@dataclass(frozen=True)
class ClientUpdate:
    """One accepted reply; ``weight`` sums to one over the round's replies."""

    pid: int
    weight: float
    num_examples: int
    tensors: Tensors
    config: Mapping[str, Any] = field(default_factory=dict)

    def adapters(self, scaling: float) -> AdapterState:
        """The reply's factors (both must have been sent)."""
        return AdapterState.from_tensors(self.tensors, scaling)


@dataclass
class Client:
    """A client's side of one round."""

    pid: int
    round: int
    rank: int
    scale: float
    model: LoraModel
    setup: Setup
    private: PrivateStore
    received: Payload = field(default_factory=Payload)
    #: The parameters being trained, by key, and their values at the start of the round.
    parameters: dict[str, torch.nn.Parameter] = field(default_factory=dict)
    start: Tensors = field(default_factory=dict)


@dataclass
class GlobalModel:
    """The server's model: ``W_0 + base + s B A`` and a head."""

    base: dict[str, Tensor] = field(default_factory=dict)
    adapters: AdapterState = field(default_factory=AdapterState)

    def delta(self, module: str) -> Tensor | None:
        """The whole change of one module's weight since the pretrained one."""
        parts = [self.base[module]] if module in self.base else []
        if module in self.adapters.factors:
            parts.append(self.adapters.delta(module))
        return torch.stack(parts).sum(0) if parts else None

    def install(self, model: LoraModel) -> None:
        """Put it into a model."""
        model.set_delta(self.base or None)
        model.set_adapters(AdapterState(self.adapters.factors))
        if self.adapters.head:
            model.set_head(self.adapters.head)


class FedMethod:
    """Base of all methods. Everything a method remembers is in :meth:`state_dict` or in the client's private store.

    A subclass sets ``uplink`` (the fields that a reply may carry) and overrides the server's :meth:`downlink`,
    :meth:`aggregate`, :meth:`global_model` and the client's :meth:`receive`, :meth:`trained_fields`, :meth:`reply`.
    """

    name = "method"
    #: Fields a reply may carry; anything else is a leak and refused.
    uplink: tuple[str, ...] = ("A", "B", "head")
    #: Whether clients of different rank can take part; None of the methods truncates silently.
    mixed_ranks = False
    #: Whether a client's factors go on where they, or their average, stood: only then optimizer moments may be kept.
    factors_outlive_round = True
    #: Whether there is one model of the whole federation to evaluate.
    has_global = True
    setup: Setup

    # --- server -------------------------------------------------------------------------------------------------------

    def begin(self, setup: Setup) -> None:
        """Called once on the server, and on a client before each message."""
        if setup.lora.mixed and not self.mixed_ranks:
            raise MixedRanksError(
                f"{self.name}: expected one rank for all clients, got {sorted(set(setup.lora.ranks))}"
            )
        self.setup = setup

    def downlink(self, round: int, pid: int) -> Payload:
        """What this client is sent in this round."""
        raise NotImplementedError

    def aggregate(self, round: int, updates: list[ClientUpdate]) -> None:
        """Take in the replies, sorted by partition id; never called without any."""
        raise NotImplementedError

    def global_model(self) -> GlobalModel:
        """The model to evaluate on the server."""
        raise NotImplementedError

    def state_dict(self) -> tuple[Tensors, dict[str, Any]]:
        """All server state as tensors and JSON values."""
        raise NotImplementedError

    def load_state_dict(self, tensors: Tensors, config: dict[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""
        raise NotImplementedError

    def forget(self, pid: int) -> None:
        """The client answered with an error: what it keeps in private may be gone."""

    # --- client -------------------------------------------------------------------------------------------------------

    def receive(self, client: Client) -> None:
        """Put what was received (``client.received``), and what is private, into ``client.model``."""
        raise NotImplementedError

    def trained_fields(self, client: Client) -> tuple[str, ...]:
        """Which fields train in this round."""
        return ("A", "B", "head")

    def learning_rate(self, client: Client, lr: float, module: str) -> float:
        """The client's learning rate for the adapter of one module."""
        return lr

    def extra_loss(self, client: Client) -> Tensor | None:
        """A term added to the loss of each step."""
        return None

    def reply(self, client: Client) -> Payload:
        """What goes back to the server; private state is put away here."""
        raise NotImplementedError

    # --- checks -------------------------------------------------------------------------------------------------------

    def expected(self, round: int, pid: int) -> dict[str, tuple[int, ...]]:
        """Shapes that a reply must have; what is not named here is not checked."""
        return {}

    def problem(self, round: int, pid: int, tensors: Tensors, config: Mapping[str, Any]) -> str | None:
        """A reason to reject a reply of the right shapes, or None."""
        return None
