"""Several local processes of one function, as a distributed job has them, without orphans.

The function lives in an installed module and is named ``"module:function"``. Each process finds ``RANK``, ``LOCAL_RANK``,
``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT`` in its environment, which is what ``torch.distributed`` reads.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neurips26.shared import threads as _threads
from neurips26.shared.arrays import check_int, check_real

__all__ = ["LaunchError", "free_port", "launch"]

#: Lines of a failing rank's output that go into the error.
_TAIL = 40
_POLL = 0.02


class LaunchError(RuntimeError):
    """A rank failed or the time ran out; the message holds that rank's last output."""


def free_port() -> int:
    """A TCP port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch(
    target: str,
    n: int,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    timeout: float = 120.0,
    threads: int = 1,
    env: Mapping[str, str] | None = None,
) -> list[Any]:
    """Run ``target(*args, **kwargs)`` in ``n`` processes and return their results by rank.

    Args:
        target: ``"module:function"`` of an installed module.
        n: number of processes.
        args, kwargs: what every rank is called with (pickled).
        timeout: seconds after which all are ended.
        threads: threads a rank.
        env: additional environment variables.

    Raises:
        LaunchError: a rank failed (the others are ended at once) or the time ran out.
    """
    module, _, function = target.partition(":")
    if not module or not function.isidentifier():
        raise ValueError(f"target: expected 'module:function', got {target!r}")
    check_int(n, "n", minimum=1)
    check_real(timeout, "timeout", minimum=0.0, inclusive=False)
    base = {**os.environ, **_threads.environment(threads), **(env or {})}
    base |= {
        "WORLD_SIZE": str(n),
        "LOCAL_WORLD_SIZE": str(n),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    # Gloo otherwise asks the resolver for the host's name, which a machine without network cannot answer.
    base.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    # The ranks hold the reading end; it ends when this process does, however it ends, and they end with it.
    alive, keep = os.pipe()
    ranks: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="neurips26-launch-") as name:
        folder = Path(name)
        (folder / "call").write_bytes(pickle.dumps((list(args), dict(kwargs or {}))))
        try:
            for rank in range(n):
                command = [sys.executable, "-m", "neurips26.shared.launch", target, str(folder), str(alive)]
                with (folder / f"out-{rank}").open("wb") as out:
                    ranks.append(
                        subprocess.Popen(
                            command,
                            env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                            stdin=subprocess.DEVNULL,
                            stdout=out,
                            stderr=subprocess.STDOUT,
                            start_new_session=True,
                            pass_fds=(alive,),
                        )
                    )
            _wait(ranks, folder, target, timeout)
            return [pickle.loads((folder / f"result-{rank}").read_bytes()) for rank in range(n)]
        finally:
            for process in ranks:
                _end(process)
            os.close(keep)
            os.close(alive)


def _wait(ranks: Sequence[subprocess.Popen[bytes]], folder: Path, target: str, timeout: float) -> None:
    """Until all have ended well, one has failed, or the time is up."""
    deadline = time.monotonic() + timeout
    while True:
        codes = [process.poll() for process in ranks]
        for rank, code in enumerate(codes):
            if code is not None and (code != 0 or not (folder / f"result-{rank}").exists()):
                how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
                raise LaunchError(f"{target}: rank {rank} of {len(ranks)} {how}:\n{_tail(folder, rank)}")
        if all(code is not None for code in codes):
            return
        if time.monotonic() > deadline:
            late = [rank for rank, code in enumerate(codes) if code is None]
            raise LaunchError(
                f"{target}: not finished after {timeout:g} s: ranks {', '.join(map(str, late))} of {len(ranks)}; "
                f"rank {late[0]} said:\n{_tail(folder, late[0])}"
            )
        time.sleep(_POLL)


def _tail(folder: Path, rank: int) -> str:
    lines = (folder / f"out-{rank}").read_text("utf-8", errors="replace").splitlines()
    return "\n".join(f"  {line}" for line in lines[-_TAIL:]) or "  (no output)"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a rank and whatever it started: each rank leads a session of its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _die_with_parent(alive: int) -> None:
    os.read(alive, 1)  # returns at the end of the parent, never before
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _main(target: str, folder: str, alive: str) -> None:
    """What a rank runs."""
    threading.Thread(target=_die_with_parent, args=(int(alive),), daemon=True).start()
    args, kwargs = pickle.loads(Path(folder, "call").read_bytes())
    module, _, function = target.partition(":")
    result = getattr(importlib.import_module(module), function)(*args, **kwargs)
    path = Path(folder, f"result-{os.environ['RANK']}")
    path.with_suffix(".part").write_bytes(pickle.dumps(result))
    path.with_suffix(".part").rename(path)


if __name__ == "__main__":
    _main(*sys.argv[1:])
