"""Files that survive a kill: atomic writes, a lock a directory, and the cache of finished cells."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

__all__ = [
    "Cells",
    "CorruptRecordError",
    "LockedError",
    "atomic_path",
    "atomic_write_bytes",
    "atomic_write_json",
    "atomic_write_text",
    "lock",
    "read_json",
]


class LockedError(RuntimeError):
    """Another live process works in this run directory."""


class CorruptRecordError(ValueError):
    """A file that should hold JSON of ours does not; it is named and left as it is."""


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside ``path``; on success it replaces ``path``, on failure nothing changes.

    The temporary name keeps the suffix, so that writers that look at it (``savefig``) do the right thing.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.stem}-", suffix=target.suffix, dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb") as stream:
            os.fsync(stream.fileno())
        # mkstemp makes files private; a result is an ordinary file.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def atomic_write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write ``data`` so that a reader, or a kill, sees the old file or the new one, never a part."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def atomic_write_text(path: str | os.PathLike[str], text: str) -> None:
    """Atomic :meth:`pathlib.Path.write_text` in UTF-8."""
    atomic_write_bytes(path, text.encode("utf-8"))


def atomic_write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Atomic JSON, indented and with a final newline; NaN and infinities are refused (they are not JSON)."""
    atomic_write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read JSON; a damaged file raises :class:`CorruptRecordError` with its name."""
    try:
        return json.loads(Path(path).read_text("utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CorruptRecordError(f"{path}: expected JSON, got a damaged file ({error}); it was left as it is") from None


@contextmanager
def lock(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Hold ``directory/.lock`` for this process; a lock whose owner on this machine is gone is taken over.

    Raises:
        LockedError: a live process (or one on another machine) holds it; the message names the file and the owner.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".lock"
    owner = {"pid": os.getpid(), "started": psutil.Process().create_time(), "host": socket.gethostname()}
    with _alone(folder):
        if _alive(path):
            raise LockedError(
                f"{path}: another run works here ({_owner(path)}); wait for it, or remove this file if it is gone"
            )
        path.write_text(json.dumps(owner))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time looks at the lock of a folder and takes it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # network file systems that lock no folders: the gap between look and take stays
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _owner(path: Path) -> str:
    try:
        who = json.loads(path.read_text())
        return f"process {who['pid']} on {who['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "owner unknown"


def _alive(path: Path) -> bool:
    try:
        who = json.loads(path.read_text())
        if who["host"] != socket.gethostname():
            return True
        # A process id is used again after a while: the start time tells the owner from its successor.
        return abs(psutil.Process(who["pid"]).create_time() - who["started"]) < 1.0
    except psutil.NoSuchProcess:
        return False
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError):
        # Half-written by a process that was killed between creating and filling it.
        return False


class Cells:
    """Finished cells of a run, one small file each, so that a killed run never computes one twice."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)

    def get(self, key: str, compute: Callable[[], Any]) -> Any:
        """The stored value of ``key``, or ``compute()`` stored under it (JSON values only)."""
        name = hashlib.sha256(key.encode()).hexdigest()[:24]
        path = self.directory / f"{name}.json"
        if path.exists():
            stored = read_json(path)
            if stored["key"] == key:
                return stored["value"]
        value = compute()
        atomic_write_json(path, {"key": key, "value": value})
        return value
