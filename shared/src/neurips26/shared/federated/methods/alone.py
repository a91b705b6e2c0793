# ruff: noqa: D102  what overrides is documented in its base class
"""The lower bars: every client for itself, and a shared head without adapters."""

from __future__ import annotations

from typing import Any

import torch

from neurips26.shared.federated.method import Client, ClientUpdate, GlobalModel, Payload
from neurips26.shared.federated.methods.base import _WithHead, initial_a
from neurips26.shared.federated.state import AdapterState, LoraFactors, Tensors, clone

__all__ = ["HeadOnly", "Local"]


class Local(_WithHead):
    """No communication: factors and head of each client are its own. Any mix of ranks; there is no global model."""

    name, mixed_ranks, has_global, uplink = "local", True, False, ()

    def downlink(self, round: int, pid: int) -> Payload:
        return Payload()

    def aggregate(self, round: int, updates: list[ClientUpdate]) -> None:
        """Nothing to take in."""

    def state_dict(self) -> tuple[Tensors, dict[str, Any]]:
        return {}, {}

    def load_state_dict(self, tensors: Tensors, config: dict[str, Any]) -> None:
        """Nothing to load."""

    def receive(self, client: Client) -> None:
        kept = client.private.get("own")
        if kept:
            state = AdapterState.from_tensors(kept[0], client.scale)
        else:
            shapes = self.setup.shapes.items()
            state = AdapterState(
                {
                    k: LoraFactors(
                        initial_a(self.setup.seed, k, client.rank, n), torch.zeros(m, client.rank), client.scale
                    )
                    for k, (m, n) in shapes
                }
                if client.rank
                else {},
                self.head,
            )
        client.model.set_delta(None)
        client.model.set_adapters(AdapterState(state.factors))
        client.model.set_head(state.head)

    def reply(self, client: Client) -> Payload:
        client.private.put("own", AdapterState(client.model.adapters().factors, client.model.head()).to_tensors())
        return Payload()


class HeadOnly(_WithHead):
    """The head is trained and averaged, the backbone stays as it was: what adapters must beat."""

    name, mixed_ranks, uplink = "head-only", True, ("head",)

    def downlink(self, round: int, pid: int) -> Payload:
        return Payload(self._head_payload())

    def aggregate(self, round: int, updates: list[ClientUpdate]) -> None:
        self._average_head(updates)

    def global_model(self) -> GlobalModel:
        return GlobalModel(adapters=AdapterState({}, self.head))

    def state_dict(self) -> tuple[Tensors, dict[str, Any]]:
        return self._head_payload(), {}

    def load_state_dict(self, tensors: Tensors, config: dict[str, Any]) -> None:
        self.head = {key[5:]: value for key, value in tensors.items()}

    def receive(self, client: Client) -> None:
        client.model.set_delta(None)
        client.model.set_adapters(AdapterState())
        self._receive_head(client)

    def trained_fields(self, client: Client) -> tuple[str, ...]:
        return ("head",)

    def reply(self, client: Client) -> Payload:
        return Payload(clone({f"head/{name}": value for name, value in client.model.head().items()}))
