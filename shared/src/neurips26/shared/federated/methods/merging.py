# ruff: noqa: D102  what overrides is documented in its base class
"""Methods that work with the exact sum of the clients' products: FlexLoRA, FLoRA (stacking), FedEx-LoRA."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from neurips26.shared.federated.method import Client, ClientUpdate, GlobalModel, MixedRanksError, Payload, Setup
from neurips26.shared.federated.methods.base import FactorMethod, MergingMethod, initial_a, renormalised
from neurips26.shared.federated.state import AdapterState, LoraFactors, Tensors, average, clone

__all__ = ["FLoRA", "FedEx", "FlexLoRA"]


class FlexLoRA(FactorMethod):
    """``dW = sum p_i s_i B_i A_i``, then its SVD; client i is sent the top r_i triplets as ``B = U S^1/2 / s_i``,
    ``A = S^1/2 V^T`` (Bai et al., NeurIPS 2024, 2402.11505). Any mix of ranks.

    The SVD works on the stacked factors. The global model is the whole sum, not its truncation.
    """

    name, mixed_ranks = "flexlora", True

    def begin(self, setup: Setup) -> None:
        super().begin(setup)
        self.whole = self.state

    def combine(self, states: list[AdapterState], weights: list[float]) -> AdapterState:
        self.whole = AdapterState.stack(states, weights)
        top = self.setup.lora.max_rank
        factors = {}
        for name, f in self.whole.factors.items():
            u, s, vt = self.whole.lowrank_svd(name)
            root = s[:top].sqrt()
            a, b = root[:, None] * vt[:top], u[:, :top] * root
            short = top - len(root)
            if short:  # fewer triplets than the largest client's rank
                a = torch.cat([a, a.new_zeros(short, a.shape[1])])
                b = torch.cat([b, b.new_zeros(b.shape[0], short)], dim=1)
            # Directions without energy give A and B both zero, where no gradient flows: such rows restart from A's draw.
            dead = torch.cat([root, root.new_zeros(short)]) <= 1e-12
            a = torch.where(dead[:, None], initial_a(self.setup.seed, name, top, f.A.shape[1]), a)
            factors[name] = LoraFactors(a, b)
        return AdapterState(factors)

    def global_model(self) -> GlobalModel:
        return GlobalModel(adapters=AdapterState(self.whole.factors, self.head))

    def state_dict(self) -> tuple[Tensors, dict[str, Any]]:
        tensors, config = super().state_dict()
        return tensors | {f"whole/{key}": v for key, v in self.whole.to_tensors(("A", "B")).items()}, config

    def load_state_dict(self, tensors: Tensors, config: dict[str, Any]) -> None:
        whole = {key[6:]: v for key, v in tensors.items() if key.startswith("whole/")}
        super().load_state_dict({k: v for k, v in tensors.items() if not k.startswith("whole/")}, config)
        self.whole = AdapterState.from_tensors(whole)


class FLoRA(MergingMethod):
    """Stacking: ``B = [p_1 s_1 B_1 ... p_K s_K B_K]``, ``A = [A_1; ...; A_K]``, so that B A is the exact sum; everybody
    merges it into the base and starts again with B = 0 and a fresh A (Wang et al., NeurIPS 2024, 2409.05976).

    Any mix of ranks. Down go all clients' factors.
    """

    name, mixed_ranks, factors_outlive_round = "flora", True, False

    def entry_delta(self, tensors: Tensors, config: dict[str, Any], module: str) -> Tensor:
        return tensors[f"B/{module}"] @ tensors[f"A/{module}"]

    def aggregate(self, round: int, updates: list[ClientUpdate]) -> None:
        self._average_head(updates)
        taking = renormalised(updates)
        if taking:
            states = [AdapterState(u.adapters(self._scale(u.pid)).factors) for u, _ in taking]
            stacked = AdapterState.stack(states, [w for _, w in taking])
            self.merge(round, Payload(stacked.to_tensors(("A", "B"))), updates)

    def receive(self, client: Client) -> None:
        self.receive_base(client)
        factors = {
            name: LoraFactors(
                initial_a(self.setup.seed, name, client.rank, n, client.round, client.pid),
                torch.zeros(m, client.rank),
                client.scale,
            )
            for name, (m, n) in self.setup.shapes.items()
        }
        client.model.set_adapters(AdapterState(factors if client.rank else {}))
        self._receive_head(client)

    def reply(self, client: Client) -> Payload:
        return Payload(clone(AdapterState(client.model.adapters().factors, client.model.head()).to_tensors()))

    def expected(self, round: int, pid: int) -> dict[str, tuple[int, ...]]:
        r, shapes = self._rank(pid), {f"head/{k}": tuple(v.shape) for k, v in self.head.items()}
        if r:
            for name, (m, n) in self.setup.shapes.items():
                shapes |= {f"A/{name}": (r, n), f"B/{name}": (m, r)}
        return shapes


class FedEx(MergingMethod):
    """FedIT's factors and, merged into everybody's base, the residual that they miss:
    ``sum p_i s_i B_i A_i - B A`` with ``A = sum p_i A_i``, ``B = sum p_i s_i B_i`` (Singhal et al., ACL 2025, 2410.09432).

    The residual travels as factors of rank (K + 1) r, or dense where that is smaller. Mixed ranks: refused.
    """

    name = "fedex"

    def begin(self, setup: Setup) -> None:
        if setup.lora.mixed or setup.lora.max_rank == 0:
            raise MixedRanksError(
                f"fedex: expected one positive rank for all clients, got {sorted(set(setup.lora.ranks))}"
            )
        super().begin(setup)
        r = setup.lora.max_rank
        self.state = AdapterState(
            {k: LoraFactors(initial_a(setup.seed, k, r, n), torch.zeros(m, r)) for k, (m, n) in setup.shapes.items()}
        )

    def entry_delta(self, tensors: Tensors, config: dict[str, Any], module: str) -> Tensor:
        return tensors[f"B/{module}"] @ tensors[f"A/{module}"]

    def downlink(self, round: int, pid: int) -> Payload:
        payload = super().downlink(round, pid)
        return Payload(
            payload.tensors | self.state.with_scaling(self._scale(pid)).to_tensors(("A", "B")), payload.config
        )

    def aggregate(self, round: int, updates: list[ClientUpdate]) -> None:
        self._average_head(updates)
        states = [AdapterState(u.adapters(self._scale(u.pid)).with_scaling(1.0).factors) for u in updates]
        weights = [u.weight for u in updates]
        mean = average([s.to_tensors(("A", "B")) for s in states], weights)
        self.state = AdapterState.from_tensors(mean)
        minus = AdapterState({k: LoraFactors(f.A, -f.B) for k, f in self.state.factors.items()})
        residual = AdapterState.stack([*states, minus], [*weights, 1.0])
        self.merge(round, Payload(residual.to_tensors(("A", "B"))), updates)

    def receive(self, client: Client) -> None:
        self.receive_base(client)
        factors = {k: v for k, v in client.received.tensors.items() if k.startswith(("A/", "B/"))}
        client.model.set_adapters(AdapterState.from_tensors(factors, client.scale))
        self._receive_head(client)

    def reply(self, client: Client) -> Payload:
        return Payload(clone(AdapterState(client.model.adapters().factors, client.model.head()).to_tensors()))

    def expected(self, round: int, pid: int) -> dict[str, tuple[int, ...]]:
        r, shapes = self._rank(pid), {f"head/{k}": tuple(v.shape) for k, v in self.head.items()}
        for name, (m, n) in self.setup.shapes.items():
            shapes |= {f"A/{name}": (r, n), f"B/{name}": (m, r)}
        return shapes

    def global_model(self) -> GlobalModel:
        return GlobalModel(super().global_model().base, AdapterState(self.state.factors, self.head))

    def state_dict(self) -> tuple[Tensors, dict[str, Any]]:
        tensors, config = super().state_dict()
        return tensors | {f"mean/{k}": v for k, v in self.state.to_tensors(("A", "B")).items()}, config

    def load_state_dict(self, tensors: Tensors, config: dict[str, Any]) -> None:
        super().load_state_dict(tensors, config)
        self.state = AdapterState.from_tensors({k[5:]: v for k, v in tensors.items() if k.startswith("mean/")})
