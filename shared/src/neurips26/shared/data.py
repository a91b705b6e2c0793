"""Declared data sets: where a file is on this machine, and what to do when it is not here."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["ChecksumError", "DataMissing", "DataSet", "find", "find_set", "require"]


class DataMissing(FileNotFoundError):
    """A declared data set is not on this machine."""


class ChecksumError(ValueError):
    """A file is not the one that was declared."""


@dataclass(frozen=True)
class DataSet:
    """One declared file (see ``[[data]]`` in a package's ``paper.toml``)."""

    name: str
    path: str
    url: str
    sha256: str
    size: int
    licence: str
    purpose: str
    dir: str = ""


def find_set(item: DataSet) -> Path | None:
    """The file under ``$NEURIPS26_DATA`` after comparing its checksum, or ``None``."""
    folder = os.environ.get("NEURIPS26_DATA")
    path = Path(folder) / item.dir / item.path if folder else None
    if path is None or not path.is_file():
        return None
    _check(path, item.sha256, path.stat().st_mtime_ns)
    return path


@cache
def _check(path: Path, sha256: str, _mtime: int) -> None:
    got = hashlib.sha256(path.read_bytes()).hexdigest()
    if got != sha256:
        raise ChecksumError(f"{path}: expected sha256 {sha256}, got {got}")


def find(slug: str, name: str) -> Path | None:
    """The data set ``name`` of paper ``slug`` on this machine, or ``None``."""
    from neurips26.shared import registry

    items = {d.name: d for d in registry.find(slug).data}
    if name not in items:
        raise ValueError(f"name: expected a declared data set of {slug} ({', '.join(items)}), got {name!r}")
    return find_set(items[name])


def require(slug: str, name: str) -> Path:
    """Like :func:`find`, but a missing file is an error that says what to put where."""
    path = find(slug, name)
    if path is None:
        raise DataMissing(f"{name}: not on this machine; set NEURIPS26_DATA to the folder that holds {slug}/")
    return path
