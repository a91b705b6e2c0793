"""What a claim's function is given: the tier, its seeds, resumable cells, a place for pictures, data, progress."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from neurips26.shared import data, progress
from neurips26.shared.arrays import check_choice, check_int
from neurips26.shared.runs import Cells

__all__ = ["Context"]

T = TypeVar("T")

#: First seed of each tier. The ranges are disjoint, so tuning never sees a reported seed.
SEED_BASE = {"quick": 10_000, "cpu": 20_000, "gpu": 30_000, "tune": 90_000}


class Context:
    """One claim's (or tuning grid's) run.

    Args:
        slug: the paper.
        tier: ``quick``, ``tune``, ``cpu`` or ``gpu``.
        claim: id of the claim or grid; names the folder of its cells.
        directory: the run directory.
    """

    def __init__(self, slug: str, tier: str, claim: str, directory: Path) -> None:
        self.slug = slug
        self.tier = check_choice(tier, "tier", SEED_BASE)
        self.claim = claim
        self.directory = Path(directory)
        self.first_cell: dict[str, Any] | None = None
        self.notes: list[str] = []
        self._cells = Cells(self.directory / "cells" / claim)

    def seeds(self, n: int) -> list[int]:
        """The first ``n`` seeds of this tier."""
        check_int(n, "n", minimum=1, maximum=9_999)
        return [SEED_BASE[self.tier] + i for i in range(n)]

    def cell(self, key: str | Mapping[str, Any], fn: Callable[[], T]) -> T:
        """``fn()`` computed once and kept on disk under ``key``; a killed run continues after its finished cells.

        The value must be JSON (numbers, strings, lists, dicts). The first cell of a claim is also what
        ``verify --rerun`` makes again, so its function should depend on nothing but the key.
        """
        name = key if isinstance(key, str) else json.dumps(key, sort_keys=True)
        started = time.process_time()
        value = self._cells.get(name, lambda: _plain(fn()))
        if self.first_cell is None:
            self.first_cell = {"key": name, "value": value, "seconds": round(time.process_time() - started, 3)}
        return value

    def track(self, iterable: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
        """Iterate with a progress bar."""
        return progress.track(iterable, f"{self.slug} {description}", total)

    def figure(self, name: str) -> Path:
        """Where to save the picture ``name`` (PNG). Names are unique within a paper and tier."""
        if not name.endswith(".png") or "/" in name:
            raise ValueError(f"name: expected a plain file name ending in .png, got {name!r}")
        folder = self.directory / "figures"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name

    def data(self, name: str) -> Path | None:
        """The declared data set ``name`` of this paper, or ``None`` where this machine does not have it."""
        return data.find(self.slug, name)

    def note(self, text: str) -> None:
        """Keep a remark for the record (shown with the claim)."""
        self.notes.append(text)


def _plain(value: Any) -> Any:
    """Numpy scalars and arrays as JSON values."""
    return json.loads(json.dumps(value, default=_default, allow_nan=False))


def _default(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"cell: expected a JSON value, got {type(value).__name__}")
