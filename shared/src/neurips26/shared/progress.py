"""Progress bars for everything that takes longer than two seconds; plain lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

__all__ = ["console", "status", "track"]

T = TypeVar("T")

#: All progress goes to stderr: stdout belongs to results.
console = Console(stderr=True)

#: Without a terminal a line is printed at most this often (seconds).
_PLAIN_INTERVAL = 5.0


def track(iterable: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Iterate with a bar (terminal) or with a line every few seconds (log file)."""
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    if console.is_terminal:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(description, total=total)
            for item in iterable:
                yield item
                bar.advance(task)
        return
    last = time.monotonic()
    for done, item in enumerate(iterable, 1):
        yield item
        now = time.monotonic()
        if now - last >= _PLAIN_INTERVAL:
            last = now
            print(f"{description}: {done}{f' of {total}' if total else ''}", file=sys.stderr, flush=True)


@contextmanager
def status(text: str) -> Iterator[None]:
    """A spinner beside ``text`` while the block runs; a plain line without a terminal."""
    if console.is_terminal:
        with console.status(text):
            yield
    else:
        print(text, file=sys.stderr, flush=True)
        yield
