"""A client's private state: it lives in the client's Flower context and, where a folder is given, on its disk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import RecordDict
from safetensors.torch import load, save
from torch import Tensor

from neurips26.shared.federated.records import from_content, to_content
from neurips26.shared.federated.state import Tensors, clone, field_of
from neurips26.shared.runs import atomic_write_bytes, atomic_write_json, read_json

__all__ = ["PrivateLeakError", "PrivateStore", "check_uplink"]


class PrivateLeakError(RuntimeError):
    """A reply carries something that its method did not declare as sent."""


def check_uplink(tensors: Mapping[str, Tensor], fields: Iterable[str]) -> None:
    """Refuse a reply with fields that the method did not declare."""
    allowed = set(fields)
    for key in tensors:
        if field_of(key) not in allowed:
            raise PrivateLeakError(f"{key}: not among the fields that the method declares as sent ({sorted(allowed)})")


class PrivateStore:
    """Named tensor sets of one client, by the round that wrote them.

    A round reads what earlier rounds wrote and never its own: a round that is made again (a resumed run, a repeated
    message) starts from the same state. The two newest rounds are kept. Two tiers: the Flower context, which a SuperNode
    loses on restart, and files ``<folder>/<pid>/<run>/<name>-<round>.safetensors`` with a checksum, written atomically.
    What another run left in the same folder is never read, and never removed.

    Args:
        state: ``Context.state`` of the client.
        pid: the client's partition id.
        round: the round being worked on.
        folder: durable tier, or None.
        run: the run's token, which the server draws at its start and names in every message.
    """

    def __init__(self, state: RecordDict, pid: int, round: int, folder: Path | None = None, run: str = "0") -> None:
        if not run.isalnum():
            raise ValueError(f"run: expected letters and digits, got {run!r}")
        self._state, self.pid, self.round, self._run = state, pid, round, run
        self._folder = Path(folder) / str(pid) / run if folder is not None else None

    def get(self, name: str) -> tuple[Tensors, dict[str, Any]] | None:
        """The newest tensors and meta data of ``name`` from before this round; meta data has ``round`` in it."""
        for round in reversed(self._rounds(name)):
            if round < self.round:
                found = self._read(name, round)
                if found is not None:
                    return found
        return None

    def put(self, name: str, tensors: Mapping[str, Tensor], meta: Mapping[str, Any] | None = None) -> None:
        """Keep copies of the tensors for the rounds after this one."""
        if "." in name or "/" in name:
            raise ValueError(f"name: expected neither dot nor slash in it, got {name!r}")
        tensors, meta = clone(tensors), dict(meta or {}) | {"round": self.round}
        body = to_content(tensors, meta)
        for part in ("payload", "config"):
            self._state[self._key(name, self.round, part)] = body[part]
        if self._folder is not None:
            data = save({key: value.contiguous() for key, value in tensors.items()})
            path = self._folder / f"{name}-{self.round}.safetensors"
            atomic_write_bytes(path, data)
            atomic_write_json(path.with_suffix(".json"), {"meta": meta, "sha256": hashlib.sha256(data).hexdigest()})
        for old in [r for r in self._rounds(name) if r < self.round][:-1]:
            self._drop(name, old)

    def _key(self, name: str, round: int, part: str) -> str:
        return f"{self._run}.{name}.{round}.{part}"

    def _rounds(self, name: str) -> list[int]:
        rounds = {int(key.split(".")[2]) for key in self._state if key.startswith(f"{self._run}.{name}.")}
        if self._folder is not None:
            rounds |= {int(path.stem.rsplit("-", 1)[1]) for path in self._folder.glob(f"{name}-*.safetensors")}
        return sorted(rounds)

    def _read(self, name: str, round: int) -> tuple[Tensors, dict[str, Any]] | None:
        if self._key(name, round, "payload") in self._state:
            parts = ("payload", "config")
            return from_content(RecordDict({part: self._state[self._key(name, round, part)] for part in parts}))
        assert self._folder is not None
        path = self._folder / f"{name}-{round}.safetensors"
        try:
            data, about = path.read_bytes(), read_json(path.with_suffix(".json"))
        except (OSError, ValueError):
            return None
        if hashlib.sha256(data).hexdigest() != about["sha256"]:
            return None  # torn by a crash of the disk: the round before it is whole
        return load(data), about["meta"]

    def _drop(self, name: str, round: int) -> None:
        for part in ("payload", "config"):
            self._state.pop(self._key(name, round, part), None)
        if self._folder is not None:
            for suffix in (".safetensors", ".json"):
                (self._folder / f"{name}-{round}{suffix}").unlink(missing_ok=True)
