"""The trained model as a PEFT adapter that anybody can load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from neurips26.shared.arrays import check_int

__all__ = ["save_as_peft"]


def save_as_peft(delta: Mapping[str, Tensor], path: str | Path, rank: int) -> dict[str, float]:
    """Write dense changes of weights as a LoRA adapter of rank ``rank``: each module's best approximation, by SVD.

    Args:
        delta: change of each adapted weight, (m, n), by module name.
        path: folder to create.
        rank: rank of the adapter.

    Returns:
        The relative Frobenius error of each module.
    """
    from peft import LoraConfig  # here, because it brings transformers and seconds of import

    check_int(rank, "rank", minimum=1)
    tensors, errors = {}, {}
    for name, change in delta.items():
        u, s, vt = torch.linalg.svd(change.double(), full_matrices=False)
        r = min(rank, len(s))
        root = s[:r].sqrt()
        a, b = torch.zeros(rank, change.shape[1]), torch.zeros(change.shape[0], rank)
        a[:r], b[:, :r] = (root[:, None] * vt[:r]).float(), (u[:, :r] * root).float()
        tensors[f"base_model.model.{name}.lora_A.weight"] = a
        tensors[f"base_model.model.{name}.lora_B.weight"] = b
        errors[name] = float(s[r:].square().sum().sqrt() / s.square().sum().sqrt().clamp(min=1e-30))
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    LoraConfig(r=rank, lora_alpha=rank, lora_dropout=0.0, target_modules=list(delta)).save_pretrained(str(folder))
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return errors
