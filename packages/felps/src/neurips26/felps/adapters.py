"""LoRA adapters on disk: into a slot of a model that runs, and random ones for experiments."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from peft.utils.hotswap import hotswap_adapter
from safetensors.torch import save_file

from neurips26.shared.arrays import check_int


class AdapterError(ValueError):
    """An adapter cannot be loaded; its requests fail, the engine goes on."""


def exchange_adapter(model: Any, path: Path, slot: str, target_modules: Sequence[str], max_rank: int) -> None:
    """Put the weights of the adapter in folder ``path`` in place of those that ``slot`` of a PEFT model holds.

    Raises:
        AdapterError: unreadable, for another model, or of too large a rank.
    """
    try:
        described = json.loads((path / "adapter_config.json").read_text("utf-8"))
        rank, changed = int(described["r"]), described["target_modules"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AdapterError(f"{path} is not a readable LoRA adapter ({error})") from None
    if not isinstance(changed, list):
        raise AdapterError(f"expected target_modules to be a list of names, got {changed!r}")
    if rank > max_rank:
        raise AdapterError(f"expected a rank of at most {max_rank}, got {rank}")
    if extra := set(changed) - set(target_modules):
        raise AdapterError(f"changes modules without a slot ({', '.join(sorted(extra))})")
    try:
        hotswap_adapter(model, str(path), adapter_name=slot, torch_device="cpu")
    except Exception as error:  # PEFT and safetensors raise many kinds for broken or foreign weights
        raise AdapterError(f"{path} does not fit this model ({error})") from None
    # Weights are exchanged by assignment, which accepts any shape: a foreign adapter must not wait for its first use.
    for module in model.modules():
        if hasattr(module, "lora_A") and slot in module.lora_A:
            base = module.get_base_layer()
            reads, writes = module.lora_A[slot].weight.shape[1], module.lora_B[slot].weight.shape[0]
            if (reads, writes) != (base.in_features, base.out_features):
                raise AdapterError("was made for another base model (layer sizes differ)")


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
