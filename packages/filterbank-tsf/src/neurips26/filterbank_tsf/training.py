"""One trainer for everything that is trained by gradient steps: peers and the deep stack alike.

Every random number of an epoch follows from the seed and the epoch's number, and a checkpoint is written after each
epoch, so a run that was killed continues bit for bit.
"""

from __future__ import annotations

import copy
import hashlib
import math
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import nn


@dataclass(frozen=True)
class TrainConfig:
    """How a model is trained.

    Attributes:
        lr: peak learning rate of AdamW.
        epochs: at most this many passes.
        patience: stop after so many epochs without a better validation error.
        batch: windows a step (all channels of a window together).
        weight_decay: of AdamW.
        clip: gradient norm (``math.inf``: none).
        seed: of shuffling and dropout.
        schedule: ``"cosine"`` to zero over ``epochs``; ``"halve"`` after every epoch; ``"decay"`` by a tenth an epoch from
            the fourth on (the last two are the schedules that the papers of the peers name).
    """

    lr: float = 1e-3
    epochs: int = 30
    patience: int = 5
    batch: int = 256
    weight_decay: float = 0.0
    clip: float = 1.0
    seed: int = 0
    schedule: Literal["cosine", "halve", "decay"] = "cosine"

    def rate(self, epoch: int, share: float) -> float:
        """The learning rate after ``share`` of pass ``epoch``."""
        if self.schedule == "halve":
            return self.lr * 0.5**epoch
        if self.schedule == "decay":
            return self.lr * 0.9 ** max(epoch - 2, 0)
        return self.lr * 0.5 * (1 + math.cos(math.pi * (epoch + share) / self.epochs))


@dataclass
class TrainResult:
    """Errors per epoch; entry 0 is before the first step. The model holds the best weights on validation."""

    val: list[float] = field(default_factory=list)
    train: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        """Smallest validation MSE."""
        return min(self.val)


class Windows:
    """All windows of some rows as a view: ``(C, N, L + H)`` float32, nothing is copied until a batch is taken."""

    def __init__(
        self, rows: Float[np.ndarray, "t c"], lookback: int, horizon: int, first_row: int = 0, stride: int = 1
    ):
        series = torch.from_numpy(np.ascontiguousarray(rows.T, dtype=np.float32))
        if series.shape[1] < lookback + horizon:
            raise ValueError(f"rows: {series.shape[1]} are too few for lookback + horizon = {lookback + horizon}")
        self.rows, self.view = series, series.unfold(1, lookback + horizon, stride)
        self.lookback, self.first_row, self.stride = lookback, first_row, stride

    def __len__(self) -> int:
        return self.view.shape[1]

    def batch(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Look-backs ``(B, C, L)``, horizons ``(B, C, H)`` and the row number of each look-back's first value."""
        block = self.view[:, index].transpose(0, 1)
        return block[..., : self.lookback], block[..., self.lookback :], index * self.stride + self.first_row

    def digest(self) -> str:
        """Checksum of the rows and of how they are cut."""
        cut = f"{tuple(self.view.shape)} {self.first_row} {self.stride}"
        return hashlib.sha256(cut.encode() + self.rows.numpy().tobytes()).hexdigest()


def forecast(model: nn.Module, x: torch.Tensor, phase: torch.Tensor) -> torch.Tensor:
    """The model's forecast; models that need the time get it."""
    return model(x, phase) if getattr(model, "needs_phase", False) else model(x)


@torch.no_grad()
def score(
    model: nn.Module, windows: Windows, batch: int = 512, among: tuple[int, int] | None = None
) -> tuple[float, float]:
    """MSE and MAE over all windows (or those from ``among[0]`` to before ``among[1]``): sums over batches, never averages
    of batch averages.
    """
    model.eval()
    device = next(model.parameters()).device
    squared = absolute = 0.0
    count = 0
    for index in torch.arange(*(among or (0, len(windows)))).split(batch):
        x, y, phase = (part.to(device) for part in windows.batch(index))
        error = forecast(model, x, phase) - y
        squared += float(error.square().sum(dtype=torch.float64))
        absolute += float(error.abs().sum(dtype=torch.float64))
        count += error.numel()
    return squared / count, absolute / count


def train(
    model: nn.Module, windows: Windows, val: Windows, config: TrainConfig, checkpoint: str | Path | None = None
) -> TrainResult:
    """Train ``model`` in place, on the device it is on; it ends with the weights that were best on validation (the
    initial ones included).

    Args:
        model: maps ``(B, C, L)`` to ``(B, C, H)``; an optional ``loss(x, y, phase)`` replaces the mean squared error.
        windows: training windows.
        val: validation windows.
        config: how.
        checkpoint: file to write after every epoch and to continue from.

    Raises:
        ValueError: the checkpoint is damaged, or belongs to another configuration, model or other rows.
    """
    made_with = {"config": asdict(config), "rows": [windows.digest(), val.digest()] if checkpoint is not None else []}
    device = next(model.parameters()).device
    optimiser = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    result, start = TrainResult(), 0
    best = None
    if checkpoint is not None and Path(checkpoint).exists():
        saved = _load(checkpoint, made_with)
        try:
            model.load_state_dict(saved["model"])
        except RuntimeError as error:
            raise ValueError(f"checkpoint: {checkpoint} is of another model ({str(error).splitlines()[0]})") from error
        optimiser.load_state_dict(saved["optimiser"])
        result, start, best = TrainResult(saved["val"], saved["train"]), saved["epoch"], saved["best"]
    if best is None:
        result.val.append(score(model, val)[0])
        best = copy.deepcopy(model.state_dict())
    steps = math.ceil(len(windows) / config.batch)
    for epoch in range(start, config.epochs):
        if len(result.val) - 1 - int(np.argmin(result.val)) >= config.patience:
            break
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed * 100_003 + epoch)
            model.train()
            total = 0.0
            for step, index in enumerate(torch.randperm(len(windows)).split(config.batch)):
                for group in optimiser.param_groups:
                    group["lr"] = config.rate(epoch, step / steps)
                x, y, phase = (part.to(device) for part in windows.batch(index))
                if hasattr(model, "loss"):
                    loss = model.loss(x, y, phase)
                else:
                    loss = (forecast(model, x, phase) - y).square().mean()
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), config.clip)
                optimiser.step()
                total += float(loss.detach()) * len(index)
        result.train.append(total / len(windows))
        result.val.append(score(model, val)[0])
        if result.val[-1] <= min(result.val):
            best = copy.deepcopy(model.state_dict())
        if checkpoint is not None:
            _save(
                checkpoint,
                {
                    **made_with,
                    "model": model.state_dict(),
                    "optimiser": optimiser.state_dict(),
                    "best": best,
                    "epoch": epoch + 1,
                    "val": result.val,
                    "train": result.train,
                },
            )
    model.load_state_dict(best)
    return result


def _load(path: str | Path, made_with: dict[str, Any]) -> dict[str, Any]:
    try:
        saved = torch.load(path, weights_only=True)
        found = {key: saved[key] for key in made_with}
    except Exception as error:  # a damaged file may raise anything
        raise ValueError(f"checkpoint: {path} is not a checkpoint of this trainer, or is damaged ({error})") from error
    if found["config"] != made_with["config"]:
        raise ValueError(f"checkpoint: {path} was made with {found['config']}, not {made_with['config']}")
    if found["rows"] != made_with["rows"]:
        raise ValueError(f"checkpoint: {path} was made with other rows")
    return saved


def _save(path: str | Path, state: dict[str, Any]) -> None:
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        torch.save(state, temporary)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
