"""Tensors to and from Flower's records, and the three sizes of a message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from torch import Tensor

from neurips26.shared.federated.state import Tensors, num_bytes

__all__ = ["Sizes", "from_content", "sizes", "to_content"]

#: numpy lacks these types: their bits travel as integers, and the type's name in the configuration.
_VIEWS = {torch.bfloat16: torch.uint16, torch.float8_e4m3fn: torch.uint8, torch.float8_e5m2: torch.uint8}


def to_content(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> RecordDict:
    """A message body: the tensors under ``payload``, everything else as one JSON text under ``config``."""
    arrays, views = {}, {}
    for key, value in tensors.items():
        value = value.detach().to("cpu").contiguous()
        if value.dtype in _VIEWS:
            views[key] = str(value.dtype).removeprefix("torch.")
            value = value.view(_VIEWS[value.dtype])
        arrays[key] = Array(value.numpy())
    text = json.dumps({"config": dict(config), "views": views}, sort_keys=True)
    return RecordDict({"payload": ArrayRecord(arrays), "config": ConfigRecord({"json": text})})


def from_content(content: RecordDict) -> tuple[Tensors, dict[str, Any]]:
    """The inverse of :func:`to_content`; the tensors own their memory."""
    head = json.loads(str(content.config_records["config"]["json"]))
    tensors: Tensors = {}
    for key, array in content.array_records["payload"].items():
        value = torch.from_numpy(array.numpy().copy())
        if key in head["views"]:
            value = value.view(getattr(torch, head["views"][key]))
        tensors[key] = value
    return tensors, head["config"]


@dataclass(frozen=True)
class Sizes:
    """Bytes of one message: of the values alone, of Flower's records, of the serialised body."""

    tensor_bytes: int = 0
    record_bytes: int = 0
    wire_bytes: int = 0


def sizes(content: RecordDict) -> Sizes:
    """Measure a message body as it travels: every object that it is made of, serialised."""
    tensors = {
        f"{record}/{key}": torch.from_numpy(array.numpy())
        for record, arrays in content.array_records.items()
        for key, array in arrays.items()
    }
    records = [*content.array_records.values(), *content.config_records.values(), *content.metric_records.values()]
    wire = sum(len(item.deflate()) for item in get_all_nested_objects(content).values())
    return Sizes(num_bytes(tensors), sum(record.count_bytes() for record in records), wire)
