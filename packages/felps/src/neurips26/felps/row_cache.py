"""Keys and values of the sequences that run together in the CPU engine, in the form that transformers calls."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Cache


class RowCache(Cache):
    """Keys and values of all running sequences, one row each; running rows are kept together at the front.

    A view of rows is handed to the model without copying; ``positions`` says where new keys go.
    """

    def __init__(self, layers: int, rows: int, heads: int, length: int, width: int, dtype: torch.dtype) -> None:
        self.layers = []  # what the base class keeps per layer lives in two arrays here
        shape = (layers, rows, heads, length, width)
        self.keys, self.values = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
        self.rows = slice(0, 0)
        self.positions = torch.zeros(0, 0, dtype=torch.long)
        self.reach = 0

    def view(self, rows: slice, positions: torch.Tensor) -> None:
        """The next forward pass writes ``positions [rows, tokens]`` of these rows and reads all up to the largest."""
        self.rows, self.positions, self.reach = rows, positions, int(positions.max()) + 1

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any):
        """Store the new keys and values ``[rows, heads, tokens, width]`` and return all that is to be attended to."""
        out = []
        index = torch.arange(len(key_states))[:, None]
        for store, new in ((self.keys, key_states), (self.values, value_states)):
            rows = store[layer_idx][self.rows]
            rows[index, :, self.positions] = new.transpose(1, 2)
            out.append(rows[:, :, : self.reach])
        return tuple(out)

    def move(self, source: int, target: int) -> None:
        """Copy a row (its sequence changes place)."""
        self.keys[:, target], self.values[:, target] = self.keys[:, source], self.values[:, source]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Zero: positions are always given."""
        return 0
