"""Failures on purpose: which client fails in which round, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neurips26.shared.arrays import check_choice, check_int
from neurips26.shared.federated.state import Tensors

__all__ = ["FaultPlan", "InjectedFault"]

#: ``crash_after_train`` comes when the client's private state is saved, ``crash_before_save`` when it is not.
KINDS = (
    "crash_before_train",
    "crash_before_save",
    "crash_after_train",
    "timeout",
    "nan_update",
    "corrupt_shape",
    "stale",
)


class InjectedFault(RuntimeError):
    """A failure that the plan asked for."""


@dataclass(frozen=True)
class FaultPlan:
    """``faults[(round, pid)] = kind``; JSON form: a list of ``[round, pid, kind]``."""

    faults: Mapping[tuple[int, int], str]

    @classmethod
    def from_json(cls, items: Sequence[Sequence[object]]) -> FaultPlan:
        """Build from ``[[round, pid, kind], ...]``."""
        plan = {}
        for item in items:
            if not isinstance(item, (list, tuple)) or len(item) != 3:
                raise ValueError(f"faults: expected [round, client, kind] each, got {item!r}")
            round, pid = check_int(item[0], "round", minimum=1), check_int(item[1], "pid", minimum=0)
            plan[round, pid] = check_choice(item[2], "kind", KINDS)
        return cls(plan)

    def kind(self, round: int, pid: int) -> str | None:
        """The failure of this client in this round, if any."""
        return self.faults.get((round, pid))

    def before_train(self, round: int, pid: int) -> None:
        """Raise where the client dies before it trains."""
        if self.kind(round, pid) == "crash_before_train":
            raise InjectedFault(f"client {pid} crashed before training in round {round}")
        if self.kind(round, pid) == "timeout":
            raise TimeoutError(f"client {pid} did not answer in round {round}")

    def before_reply(self, round: int, pid: int) -> None:
        """Raise where the client dies with its training done and nothing saved."""
        if self.kind(round, pid) == "crash_before_save":
            raise InjectedFault(f"client {pid} crashed before saving in round {round}")

    def after_train(self, round: int, pid: int, tensors: Tensors) -> tuple[Tensors, int]:
        """Spoil the reply; returns the tensors and the round that the reply claims to answer."""
        kind = self.kind(round, pid)
        if kind == "crash_after_train":
            raise InjectedFault(f"client {pid} crashed after training in round {round}")
        if kind == "nan_update":
            return {key: torch.full_like(value, float("nan")) for key, value in tensors.items()}, round
        if kind == "corrupt_shape":
            return {key: _shorter(value) for key, value in tensors.items()}, round
        return tensors, round - 1 if kind == "stale" else round


def _shorter(value: Tensor) -> Tensor:
    return value.flatten()[:-1].clone()
