# ruff: noqa: D102  what overrides is documented in its base class
"""A generated federation with a known answer, for tests and for machines without data."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neurips26.shared.arrays import check_int, check_real
from neurips26.shared.federated.model import LoraModel
from neurips26.shared.federated.state import Tensors
from neurips26.shared.federated.task import Task
from neurips26.shared.seeding import rng

__all__ = ["LinearTask"]


class LinearTask(Task):
    """Linear regression with planted low-rank changes; every client has its own target near a common one.

    Client i sees ``y = W_i x + noise`` with ``x ~ N(0, C)``, C diagonal with a condition number of ``condition``, and
    ``W_i = W* + spread`` times its own matrix of the same rank. The base weight is 0. The metric ``loss`` is the excess
    risk ``tr((W - W*) C (W - W*)^T)`` of the mean target W*, relative to that of W = 0; it is exact, no sample. A client's
    own is the same with its own target W_i.

    Args:
        n: inputs and outputs.
        target_rank: rank of the targets.
        num_clients: clients, of unequal numbers of examples around ``examples``.
        spread: how far the clients' targets are from the common one.
        noise: standard deviation of the labels' noise.
        condition: ratio of the largest to the smallest input variance.
        seed: of targets and examples.
        head: adds a trained bias vector as the task's head.
        empty: clients without any example.
    """

    name, kind = "linear", "generated"

    def __init__(
        self,
        n: int = 16,
        target_rank: int = 4,
        num_clients: int = 4,
        examples: int = 64,
        spread: float = 0.3,
        noise: float = 0.1,
        condition: float = 10.0,
        seed: int = 0,
        head: bool = False,
        empty: tuple[int, ...] | list[int] = (),
    ) -> None:
        self.n, self.num_clients = check_int(n, "n", minimum=1), check_int(num_clients, "num_clients", minimum=1)
        check_int(target_rank, "target_rank", minimum=1, maximum=n)
        check_real(condition, "condition", minimum=1)
        self._options = {"n": n, "target_rank": target_rank, "num_clients": num_clients, "examples": examples}
        self._options |= {"spread": spread, "noise": noise, "condition": condition, "seed": seed, "head": head}
        draw = rng(seed, "linear task")

        def low_rank() -> np.ndarray:
            return (
                draw.standard_normal((n, target_rank))
                @ draw.standard_normal((target_rank, n))
                / (n * target_rank) ** 0.5
            )

        self.variances = torch.tensor(np.geomspace(1, 1 / condition, n), dtype=torch.float32)
        common = low_rank()
        targets = [common + spread * low_rank() for _ in range(num_clients)]
        sizes = [
            0 if i in empty else int(s)
            for i, s in enumerate(draw.integers(examples // 2, 3 * examples // 2 + 1, num_clients))
        ]
        self.targets = [torch.tensor(target, dtype=torch.float32) for target in targets]
        weights = np.array(sizes) / sum(sizes)
        self.target = torch.tensor(sum(w * t for w, t in zip(weights, targets, strict=True)), dtype=torch.float32)
        self._x, self._y = [], []
        for size, target in zip(sizes, targets, strict=True):
            x = draw.standard_normal((size, n)) * np.sqrt(self.variances.numpy())
            y = x @ target.T + noise * draw.standard_normal((size, n))
            self._x.append(torch.tensor(x, dtype=torch.float32))
            self._y.append(torch.tensor(y, dtype=torch.float32))
        layer = nn.Linear(n, n, bias=head)
        nn.init.zeros_(layer.weight)
        if head:
            nn.init.zeros_(layer.bias)
        self._bias = head
        self._model = LoraModel(nn.ModuleDict({"layer": layer}), ["layer"], ["layer.bias"] if head else [])

    def options(self) -> dict[str, Any]:
        return dict(self._options)

    def model(self) -> LoraModel:
        return self._model

    def initial_head(self, seed: int) -> Tensors:
        return {"layer.bias": torch.zeros(self.n)} if self._bias else {}

    def num_examples(self, pid: int) -> int:
        return len(self._x[pid])

    def loss(self, model: LoraModel, pid: int, indices: np.ndarray, rng: np.random.Generator) -> Tensor:
        chosen = torch.from_numpy(indices)
        predicted = model.module["layer"](self._x[pid][chosen])  # type: ignore[index]
        return 0.5 * (predicted - self._y[pid][chosen]).square().sum(-1).mean()

    def evaluate(self, model: LoraModel, split: str, pid: int | None = None) -> dict[str, float]:
        layer, target = model.module["layer"], self.target if pid is None else self.targets[pid]  # type: ignore[index]
        with torch.no_grad():
            bias = layer(torch.zeros(1, self.n))
            weight = (layer(torch.eye(self.n)) - bias).T
            risk = ((weight - target).square() * self.variances).sum() + bias.square().sum()
            return {"loss": float(risk / (target.square() * self.variances).sum())}
