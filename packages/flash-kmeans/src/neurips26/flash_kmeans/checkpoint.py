"""Checkpoints of a fit: written atomically, refused where they belong to another problem, and exact: a resumed run ends
bitwise equal."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from neurips26.shared.runs import atomic_write_bytes

__all__ = ["Checkpoint"]

FORMAT = "flash-kmeans-checkpoint-2"


class Checkpoint:
    """State of the loop on disk: centroids (float64), labels, counters, and a fingerprint of the problem.

    The ranks of a process group write a file each. All of them have written an iteration before any of them gives up the one
    before, so that whenever they are killed there is an iteration that all of them hold; a resumed run takes the newest such.

    Args:
        path: the file; a rank of a process group other than 0 writes `path.rank<i>`.
        every: iterations between two writes.
        resume: whether an existing file is continued; otherwise it is replaced.
        engine: gives the shape, the rows and the weights that make the fingerprint.
        problem: settings that must agree.
    """

    def __init__(self, path: str | os.PathLike[str], every: int, resume: bool, engine: Any, problem: tuple) -> None:
        rank = getattr(engine, "rank", 0)
        self.path = Path(path) if rank == 0 else Path(f"{path}.rank{rank}")
        if not self.path.parent.is_dir():
            raise ValueError(f"checkpoint: expected a file in an existing folder, got {self.path}")
        self.every = every
        self.fingerprint = _fingerprint(engine, problem)
        self._coming = Path(f"{self.path}.next")
        if not resume:
            self._coming.unlink(missing_ok=True)
        contents = [self._read(path) for path in (self.path, self._coming) if resume and path.exists()]
        held = {content["meta"]["n_iter"]: content for content in contents}
        newest = engine.newest_common(list(held))
        self._content = None if newest is None else held[newest]
        self.found = self._content is not None

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            raw = path.read_bytes()
            header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
            content: dict[str, Any] = dict(load(raw))
            content["meta"] = json.loads(header["state"])
            known = header["format"] == FORMAT
        except Exception as error:
            raise ValueError(f"checkpoint: {path} is not a readable checkpoint ({error})") from error
        if not known or content["meta"]["fingerprint"] != self.fingerprint:
            raise ValueError(f"checkpoint: {path} belongs to other data or settings; remove it or choose another path")
        return content

    def restore(self, state: Any, engine: Any) -> None:
        """Put the stored state into `state` and `engine`."""
        if self._content is None:
            return
        meta = self._content["meta"]
        state.centroids = np.array(self._content["centroids"])
        state.n_iter, state.converged, state.history = meta["n_iter"], meta["converged"], list(meta["history"])
        engine.labels = np.array(self._content["labels"])

    def save(self, state: Any, engine: Any) -> None:
        """Write every `every` iterations, and when the loop has come to rest."""
        if state.n_iter % self.every and not state.converged:
            return
        meta = {
            "fingerprint": self.fingerprint,
            "n_iter": state.n_iter,
            "converged": state.converged,
            "history": state.history,
        }
        tensors = {"centroids": np.ascontiguousarray(state.centroids), "labels": np.ascontiguousarray(engine.labels)}
        atomic_write_bytes(self._coming, save(tensors, {"format": FORMAT, "state": json.dumps(meta)}))
        engine.wait()
        os.replace(self._coming, self.path)

    def done(self) -> None:
        """Called after the final assignment; the file stays, so that a finished run can be asked for more iterations."""


def _fingerprint(engine: Any, problem: tuple) -> str:
    """Digest of the settings, every row in order, and the weights: one more pass over the data, at about 1 GB a second."""
    rows = engine.rows
    digest = hashlib.sha256(repr((rows.n, rows.d, str(rows.dtype), problem)).encode())
    checksum = 0
    for _, block in rows.blocks():
        checksum = zlib.crc32(np.ascontiguousarray(block), checksum)
    digest.update(str(checksum).encode())
    if engine.weights is not None:
        digest.update(np.ascontiguousarray(engine.weights).tobytes())
    return digest.hexdigest()
