"""``train_fn`` for :func:`certify` from the trainers people use: Hugging Face's ``Trainer`` and Lightning's.

Neither library is imported here: a ``make`` function of yours builds the objects, with whatever settings the full model was
trained with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from neurips26.shared import seeding
from neurips26.shared.arrays import check_int

__all__ = ["lightning_train_fn", "trainer_train_fn"]


def trainer_train_fn(make: Callable[[Any, int], Any]) -> Callable[[Any, int], nn.Module]:
    """Retraining by ``transformers.Trainer`` (extra ``hf``).

    Args:
        make: ``make(subset, seed)`` builds a fresh model and a ``Trainer`` with ``train_dataset=subset`` and ``seed`` in its
            arguments. All generators are seeded before it is called, so a new head's weights depend on ``seed`` alone.

    Returns:
        ``train_fn(subset, seed) -> model``, in evaluation mode on the CPU.
    """

    def train(subset: Any, seed: int) -> nn.Module:
        seeding.seed_all(seed)
        trainer = make(subset, seed)
        got = getattr(trainer, "train_dataset", None)
        if got is None or len(got) != len(subset):
            found = "none" if got is None else f"one of {len(got)}"
            raise ValueError(f"make: expected a trainer over the subset's {len(subset)} points, got {found}")
        trainer.train()
        return trainer.model.eval().cpu()

    return train


def lightning_train_fn(
    make: Callable[[], tuple[nn.Module, Any]], *, batch_size: int = 64, collate_fn: Callable[[list], Any] | None = None
) -> Callable[[Any, int], nn.Module]:
    """Retraining by Lightning's ``Trainer`` (extra ``lightning``).

    Args:
        make: builds a fresh module and its trainer: ``make() -> (LightningModule, Trainer)``. All generators are seeded
            before it is called.
        batch_size: of the shuffled training loader.
        collate_fn: of that loader.

    Returns:
        ``train_fn(subset, seed) -> module``, in evaluation mode on the CPU.
    """
    check_int(batch_size, "batch_size", minimum=1)

    def train(subset: Any, seed: int) -> nn.Module:
        seeding.seed_all(seed)
        made = make()
        if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module)):
            raise ValueError(f"make: expected a pair of module and trainer, got {type(made).__name__}")
        module, trainer = made
        order = torch.Generator().manual_seed(seed)
        trainer.fit(module, DataLoader(subset, batch_size, shuffle=True, generator=order, collate_fn=collate_fn))
        return module.eval().cpu()

    return train
