"""ONNX export of a bank or a deep stack, with a free batch axis (extra ``onnx``)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn


def to_onnx(model: nn.Module, path: str | Path) -> Path:
    """Write ``model`` (look-back ``(B, L)`` float32 to forecast ``(B, H)``) as one self-contained ONNX file."""
    path = Path(path)
    example = torch.zeros(2, model.lookback)
    torch.onnx.export(
        model.eval().float(),
        (example,),
        str(path),
        input_names=["x"],
        output_names=["y"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        external_data=False,
        verbose=False,
    )
    return path
