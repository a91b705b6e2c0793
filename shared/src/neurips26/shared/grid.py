"""A sweep whose finished cells are on disk and never run twice."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from neurips26.shared.progress import track
from neurips26.shared.runs import Cells

__all__ = ["Grid", "product"]


def product(**axes: Sequence[Any]) -> list[dict[str, Any]]:
    """All combinations of the named axes, the last one fastest: ``product(a=[1, 2], b=[3])``."""
    for name, values in axes.items():
        if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
            raise TypeError(f"{name}: expected a list of values, got {values!r}")
    return [dict(zip(axes, combination)) for combination in itertools.product(*axes.values())]


class Grid:
    """Cells of a sweep under one directory. A cell's key is its factors: the same factors are never computed twice."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.cells = Cells(Path(directory))

    def run(
        self, cells: Iterable[Mapping[str, Any]], fn: Callable[..., Any], description: str = "grid"
    ) -> list[dict[str, Any]]:
        """Compute ``fn(**factors)`` for each cell (a JSON value) and return rows ``{"factors": …, "value": …}``."""
        rows = []
        for factors in track([dict(c) for c in cells], description):
            key = json.dumps(factors, sort_keys=True)
            rows.append({"factors": factors, "value": self.cells.get(key, lambda f=factors: fn(**f))})
        return rows
