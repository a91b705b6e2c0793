"""Floating-point operations of the adapters in one training step, counted by torch."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from neurips26.shared.federated import AdapterState, LoraFactors, LoraModel

__all__ = ["adapter_flops"]


def adapter_flops(n: int, rank: int, tokens: int, depth: int = 4) -> dict[str, int]:
    """Operations of forward and backward that the adapters of a stack of square layers add to the frozen stack.

    Args:
        n: width of the layers.
        rank: rank of every adapter.
        tokens: rows of the input.
        depth: layers; all are adapted, and the input itself needs no gradient.

    Returns:
        Additional operations of a step that trains ``both`` factors and of one that trains ``B`` alone, and of their
        parts that are weight gradients.
    """
    names = [f"{i}" for i in range(depth)]
    stack = nn.Sequential(*(nn.Linear(n, n, bias=False) for _ in names))
    model = LoraModel(stack, names)
    x = torch.randn(tokens, n)

    def step(fields: tuple[str, ...], input_gradient: bool = False) -> int:
        model.trainable(fields)
        rows = x.clone().requires_grad_(input_gradient)
        with FlopCounterMode(display=False) as counter:
            model.module(rows).sum().backward()
        return int(counter.get_total_flops())

    model.set_adapters(AdapterState({k: LoraFactors(torch.randn(rank, n), torch.randn(n, rank)) for k in names}))
    both, b_only = step(("A", "B")), step(("B",))
    # The frozen stack's own work in the same step: forward, and gradients of the activations of all layers but the first.
    frozen = 2 * tokens * n * n * (depth + depth - 1)
    # With a gradient at the input all activations have one whatever trains: what a trained factor adds is its own gradient.
    nothing = step((), input_gradient=True)
    return {
        "both": both - frozen,
        "B": b_only - frozen,
        "weight gradients, both": step(("A", "B"), input_gradient=True) - nothing,
        "weight gradients, B": step(("B",), input_gradient=True) - nothing,
    }
