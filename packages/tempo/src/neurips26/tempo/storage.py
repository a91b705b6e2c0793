"""Files: pytrees in npz, metrics in jsonl, configurations; every write is a temporary file renamed into place."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np


def write_bytes(path: Path, data: bytes) -> None:
    """Atomic write; nothing is left behind where it fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def save_tree(path: Path, tree: Any, extra: dict[str, Any] | None = None) -> None:
    """Leaves under their key paths, in order, and `extra` as JSON."""
    leaves = {f"leaf{jax.tree_util.keystr(k)}": np.asarray(v) for k, v in jax.tree_util.tree_flatten_with_path(tree)[0]}
    buffer = io.BytesIO()
    np.savez(buffer, __extra__=np.frombuffer(json.dumps(extra or {}).encode(), np.uint8), **leaves)
    write_bytes(path, buffer.getvalue())


def load_tree(path: Path, like: Any) -> tuple[Any, dict[str, Any]]:
    """Reads what `save_tree` wrote into the structure of `like`; ValueError when a leaf is missing or has another
    shape."""
    with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as file:
        extra = json.loads(file["__extra__"].tobytes())
        flat, structure = jax.tree_util.tree_flatten_with_path(like)
        leaves = []
        for key, old in flat:
            name = f"leaf{jax.tree_util.keystr(key)}"
            if name not in file.files:
                raise ValueError(f"{path}: {name} is missing")
            value = file[name]
            if value.shape != np.shape(old):
                raise ValueError(f"{path}: {name} has shape {value.shape}, expected {np.shape(old)}")
            leaves.append(jax.numpy.asarray(value))
    return jax.tree_util.tree_unflatten(structure, leaves), extra


def claim_config(path: Path, config: dict[str, Any], free: tuple[str, ...] = (), changed_at: int | None = None) -> None:
    """Writes a run's configuration, or checks it against the one already there.

    Settings outside `free` may change only where `changed_at` (an iteration) is given; the file then lists the change
    under `changes`.
    """
    history: list[dict[str, Any]] = []
    if path.exists():
        old = json.loads(path.read_text())
        history = old.pop("changes", [])
        changed = sorted(k for k in config.keys() | old.keys() if config.get(k) != old.get(k) and k not in free)
        if changed and changed_at is None:
            raise ValueError(
                f"{path.parent} holds a run with other settings of {', '.join(changed)}; choose another directory"
            )
        if changed:
            history.append(
                {
                    "iteration": changed_at,
                    "from": {k: old.get(k) for k in changed},
                    "to": {k: config.get(k) for k in changed},
                }
            )
    write_bytes(path, json.dumps({**config, **({"changes": history} if history else {})}, indent=1).encode())


def append_jsonl(path: Path, row: dict[str, Any]) -> None:
    """One row at the end of the file."""
    with open(path, "a") as handle:
        handle.write(json.dumps(row) + "\n")


def truncate_jsonl(path: Path, key: str, limit: int) -> None:
    """Drops the rows of an unfinished segment, which a resumed run writes again."""
    if path.exists():
        rows = [line for line in path.read_text().splitlines() if line and json.loads(line)[key] <= limit]
        write_bytes(path, "".join(r + "\n" for r in rows).encode())
