"""What a federation works on: a model, every client's examples, a loss and an evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from torch import Tensor

from neurips26.shared.federated.model import LoraModel
from neurips26.shared.federated.state import Tensors

__all__ = ["Task"]


class Task(ABC):
    """One learning problem split over clients. It is built anew from its options in each process; it must not be random.

    The model is loaded once a process and lent to whoever needs it: a user sets base, adapters and head before use.
    """

    name: str
    #: ``real``, ``from a dependency`` or ``generated``.
    kind: str
    num_clients: int

    @abstractmethod
    def model(self) -> LoraModel:
        """The process's one model, with frozen base weights."""

    @abstractmethod
    def initial_head(self, seed: int) -> Tensors:
        """Head parameters before the first round, by name; empty without a head."""

    @abstractmethod
    def num_examples(self, pid: int) -> int:
        """Training examples of a client; may be 0."""

    @abstractmethod
    def loss(self, model: LoraModel, pid: int, indices: np.ndarray, rng: np.random.Generator) -> Tensor:
        """Mean loss of these training examples of the client; ``rng`` for whatever else is drawn in a step."""

    @abstractmethod
    def evaluate(self, model: LoraModel, split: str, pid: int | None = None) -> dict[str, float]:
        """Metrics of a split: of all clients' union (the global test set), or of one client's own part."""

    def options(self) -> dict[str, Any]:
        """What built it, for the record."""
        return {}
