"""LoRA adapters for experiments: random weights, so that each adapter's text is its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from safetensors.torch import save_file

from neurips26.shared.arrays import check_int


def random_adapters(
    model: Any,
    folder: str | os.PathLike[str],
    count: int,
    rank: int = 16,
    scale: float = 0.05,
    target_modules: Sequence[str] = ("q_proj", "k_proj", "v_proj", "o_proj"),
) -> dict[int, Path]:
    """Write ``count`` adapters in PEFT's format under ``folder`` and return id (from 1) -> path.

    The weights are normal with standard deviation ``scale`` and follow the adapter's id alone.
    """
    check_int(count, "count", minimum=1)
    check_int(rank, "rank", minimum=1)
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and name.rsplit(".", 1)[-1] in target_modules
    }
    if not layers:
        raise ValueError(f"target_modules: expected names of linear layers of the model, got {list(target_modules)}")
    paths = {}
    for adapter in range(1, count + 1):
        generator = torch.Generator().manual_seed(adapter)
        tensors = {}
        for name, layer in layers.items():
            for part, shape in (("lora_A", (rank, layer.in_features)), ("lora_B", (layer.out_features, rank))):
                tensors[f"base_model.model.{name}.{part}.weight"] = torch.randn(shape, generator=generator) * scale
        path = Path(folder) / str(adapter)
        path.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path / "adapter_model.safetensors")
        LoraConfig(r=rank, lora_alpha=rank, target_modules=list(target_modules), task_type="CAUSAL_LM").save_pretrained(
            path
        )
        paths[adapter] = path
    return paths
