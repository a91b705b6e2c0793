"""Frank-LoRA as a method of the federated harness.

Round t: every client has the same base W_t. Client i draws its own A (frozen), starts B at 0 and trains B alone with a
rate that follows its rank. The server adds ``sum p_i B_i A_i``, which is exact for any mix of ranks, and everybody goes
on from the new base. Only B travels up: A is drawn again from the seed wherever it is needed.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from neurips26.frank_lora.choices import Choices
from neurips26.frank_lora.sampler import KINDS, checksum, sample_a
from neurips26.shared.arrays import check_choice, check_int, check_real
from neurips26.shared.federated import AdapterState, Client, ClientUpdate, LoraFactors, Payload, Setup, Tensors
from neurips26.shared.federated.methods import MergingMethod
from neurips26.shared.federated.methods.base import renormalised
from neurips26.shared.federated.state import clone

__all__ = ["FrankLoRA", "rank_factor"]

_DEFAULT = Choices()


#: The rule that each optimizer calls for; derived in :mod:`neurips26.frank_lora.snr`.
_RULES = {"sgd": "linear", "adamw": "sqrt"}


def rank_factor(rule: str, r: float, n: int) -> float:
    """How the learning rate depends on the rank r of a module with n inputs: ``g(r)`` of a rule."""
    check_choice(rule, "lr_scaling", ("linear", "snr", "sqrt", "none"))
    return {"linear": r, "snr": r / (r + n + 1), "sqrt": r**0.5, "none": 1.0}[rule]


class FrankLoRA(MergingMethod):
    """Frozen, resampled A; rank-dependent rates; exact aggregation of any mix of ranks.

    The arguments are those of :class:`~neurips26.frank_lora.choices.Choices`. A client of rank 0 trains the head only.

    Raises:
        ValueError: an unknown rule or distribution, a rank above a module's input width (the module is named), or a cap
            of the rates beside ``debias``, whose weights are those of the rule.
    """

    name, mixed_ranks, uplink, factors_outlive_round = "frank", True, ("B", "head"), False

    def __init__(
        self,
        a_init: str = _DEFAULT.a_init,
        resample_every: int = _DEFAULT.resample_every,
        common_a: bool = _DEFAULT.common_a,
        normalize: bool = _DEFAULT.normalize,
        lr_scaling: str = _DEFAULT.lr_scaling,
        r_ref: float | None = _DEFAULT.r_ref,
        lr_max: float | None = _DEFAULT.lr_max,
        debias: bool = _DEFAULT.debias,
        server_lr: float = _DEFAULT.server_lr,
    ) -> None:
        self.a_init = check_choice(a_init, "a_init", KINDS)
        self.resample_every = check_int(resample_every, "resample_every", minimum=0)
        check_choice(lr_scaling, "lr_scaling", ("auto", "linear", "snr", "sqrt", "none"))
        self.lr_scaling, self.common_a, self.normalize, self.debias = lr_scaling, common_a, normalize, debias
        self.r_ref = None if r_ref is None else check_real(r_ref, "r_ref", minimum=0, inclusive=False)
        self.lr_max = None if lr_max is None else check_real(lr_max, "lr_max", minimum=0, inclusive=False)
        self.server_lr = check_real(server_lr, "server_lr", minimum=0, inclusive=False)
        if debias and lr_max is not None:
            raise ValueError(f"lr_max: expected none with debias, which divides by the uncapped rates, got {lr_max}")

    def begin(self, setup: Setup) -> None:
        """Check the ranks against every module."""
        super().begin(setup)
        for name, (_, n) in setup.shapes.items():
            if setup.lora.max_rank > n:
                raise ValueError(f"ranks: expected at most {n}, the input width of {name}, got {setup.lora.max_rank}")
        if 0 in setup.lora.ranks:
            warnings.warn("ranks: clients of rank 0 train the head only", stacklevel=2)

    # --- the frozen factor --------------------------------------------------------------------------------------------

    def epoch(self, round: int) -> int:
        """The resampling period that a round lies in."""
        return (round - 1) // self.resample_every if self.resample_every else 0

    def frozen_a(self, module: str, pid: int, epoch: int, r: int) -> Tensor:
        """A of this client, module and period."""
        n = self.setup.shapes[module][1]
        if self.common_a:  # clients of smaller rank take the first rows of one matrix, scaled to their own rank
            top = self.setup.lora.max_rank
            a = sample_a(self.setup.seed, module, -1, epoch, top, n, self.a_init)[:r] * (top / r) ** 0.5
        else:
            a = sample_a(self.setup.seed, module, pid, epoch, r, n, self.a_init)
        return a if self.normalize else a * (r / (3 * n)) ** 0.5

    # --- server -------------------------------------------------------------------------------------------------------

    def entry_delta(self, tensors: Tensors, config: dict[str, Any], module: str) -> Tensor:
        """``server_lr * sum p_i B_i A_i`` of a round as one product over the summed rank."""
        a = torch.cat([self.frozen_a(module, pid, epoch, r) for pid, epoch, r, _ in config["clients"]])
        b = torch.cat([w * tensors[f"B/{pid}/{module}"] for pid, _, _, w in config["clients"]], dim=1)
        return b @ a

    def aggregate(self, round: int, updates: list[ClientUpdate]) -> None:
        """Log the round's factors and merge their exact weighted sum."""
        self._average_head(updates)
        taking = renormalised(updates)
        if not taking:
            return
        weights = [w for _, w in taking]
        if self.debias:
            widths = [n for _, n in self.setup.shapes.values()]
            rates = [statistics.mean(self._factor(self._rank(u.pid), n) for n in widths) for u, _ in taking]
            weights = [w / rate for w, rate in zip(weights, rates, strict=True)]
            weights = [w / sum(weights) for w in weights]
        tensors, clients = {}, []
        for (update, _), weight in zip(taking, weights, strict=True):
            clients.append([update.pid, self.epoch(round), self._rank(update.pid), self.server_lr * weight])
            for name in self.setup.shapes:
                tensors[f"B/{update.pid}/{name}"] = update.tensors[f"B/{name}"]
        self.merge(round, Payload(tensors, {"clients": clients}), updates)

    def expected(self, round: int, pid: int) -> dict[str, tuple[int, ...]]:
        """B of every module at the client's rank, and the head."""
        shapes = {f"head/{name}": tuple(value.shape) for name, value in self.head.items()}
        r = self._rank(pid)
        return shapes | ({f"B/{name}": (m, r) for name, (m, _) in self.setup.shapes.items()} if r else {})

    def problem(self, round: int, pid: int, tensors: Tensors, config: Mapping[str, Any]) -> str | None:
        """The client's A must be the server's, or B means something else."""
        r = self._rank(pid)
        if not r:
            return None
        first = next(iter(self.setup.shapes))
        wanted = checksum(self.frozen_a(first, pid, self.epoch(round), r))
        if config.get("a") != wanted:
            return f"its frozen A of {first} differs from the server's (checksum {config.get('a')}, expected {wanted})"
        return None

    # --- client -------------------------------------------------------------------------------------------------------

    def receive(self, client: Client) -> None:
        """Catch up with the base, draw A, and start B at zero."""
        self.receive_base(client)
        r, epoch = client.rank, self.epoch(client.round)
        factors = {
            name: LoraFactors(self.frozen_a(name, client.pid, epoch, r), torch.zeros(m, r), 1.0)
            for name, (m, _) in self.setup.shapes.items()
            if r
        }
        client.model.set_adapters(AdapterState(factors))
        self._receive_head(client)

    def trained_fields(self, client: Client) -> tuple[str, ...]:
        """A is frozen: no gradient, no moments, and no stored input for its gradient."""
        return ("B", "head")

    def _factor(self, r: float, n: int) -> float:
        """The rate's factor at a rank in a module with n inputs, 1 at the reference rank."""
        if not r:
            return 1.0
        rule = _RULES[self.setup.optimizer] if self.lr_scaling == "auto" else self.lr_scaling
        reference = self.r_ref or statistics.median(rank for rank in self.setup.lora.ranks if rank)
        return rank_factor(rule, r, n) / rank_factor(rule, reference, n)

    def learning_rate(self, client: Client, lr: float, module: str) -> float:
        """``lr * g(r_i) / g(r_ref)``, capped."""
        rate = lr * self._factor(client.rank, self.setup.shapes[module][1])
        return rate if self.lr_max is None else min(rate, self.lr_max)

    def reply(self, client: Client) -> Payload:
        """B, the head and the checksum of A; never A itself."""
        state = AdapterState(client.model.adapters().factors, client.model.head())
        config = {"a": checksum(next(iter(state.factors.values())).A.cpu())} if state.factors else {}
        return Payload(clone(state.to_tensors(("B", "head"))), config)
