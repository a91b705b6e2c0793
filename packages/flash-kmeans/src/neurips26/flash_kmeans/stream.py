"""Chunked stream overlap: while the device works on one chunk of points, the next is staged and copied (Flash-KMeans, out of
core).

Two slots, each a pinned buffer on the host and a buffer on the device. A thread fills the pinned buffer (from an array, a
memory map or a file), a stream of its own copies it to the device, and the stream of the kernels waits for the copy. Events keep
the order; the host waits only for a pinned buffer to be free again, so it is never more than two chunks ahead, and device memory
does not depend on N. Without a GPU the same code runs with events that do nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from neurips26.flash_kmeans.rows import Rows

__all__ = ["ChunkStream"]


class _Nothing:
    """Stands for a stream or an event where there is no device to wait for."""

    def wait_event(self, event: Any) -> None:
        """Nothing to wait for."""

    def record(self, stream: Any) -> None:
        """Nothing to record."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


class _Slot:
    """Buffers of one chunk, and the events "copied to the device" and "no longer used by the kernels"."""

    def __init__(self, rows: int, d: int, where: torch.device) -> None:
        cuda = where.type == "cuda"
        self.host = torch.empty((rows, d), dtype=torch.float32, pin_memory=cuda)
        self.device = torch.empty((rows, d), dtype=torch.float32, device=where)
        self.copied, self.used = (torch.cuda.Event() if cuda else _Nothing() for _ in range(2))


class ChunkStream:
    """Chunks of `rows` on the device, one after the other, as often as asked for.

    Args:
        rows: points in host memory or in a file, float32.
        chunk: rows of a chunk.
        where: the device.
    """

    def __init__(self, rows: Rows, chunk: int, where: torch.device) -> None:
        self.rows, self.chunk, self.where = rows, min(chunk, max(rows.n, 1)), where
        self.cuda = where.type == "cuda"
        self._slots: list[_Slot] = []
        self._copier: Any = torch.cuda.Stream(where) if self.cuda else _Nothing()

    def __iter__(self) -> Iterator[tuple[int, torch.Tensor]]:
        """`(start, (n, D) points)`: a view of a buffer that is valid until the next chunk is asked for, and may be written to."""
        if not self._slots:
            self._slots = [_Slot(self.chunk, self.rows.d, self.where) for _ in range(2)]
        worker: Any = torch.cuda.current_stream(self.where) if self.cuda else _Nothing()
        blocks = enumerate(self.rows.blocks(self.chunk))
        with ThreadPoolExecutor(1, thread_name_prefix="flash-kmeans-stage") as stager:
            coming = stager.submit(self._stage, blocks)
            while (found := coming.result()) is not None:
                start, size, slot = found
                coming = stager.submit(self._stage, blocks)
                worker.wait_event(slot.copied)
                try:
                    yield start, slot.device[:size]
                finally:
                    slot.used.record(worker)

    def _stage(self, blocks: Iterator[tuple[int, tuple[int, np.ndarray]]]) -> tuple[int, int, _Slot] | None:
        """Read the next block into its pinned buffer and start its copy; `None` after the last."""
        for number, (start, block) in blocks:
            slot, size = self._slots[number % 2], len(block)
            slot.copied.synchronize()  # the copy before has left the pinned buffer
            np.copyto(slot.host[:size].numpy(), block)
            with torch.cuda.stream(self._copier) if self.cuda else nullcontext():
                self._copier.wait_event(slot.used)
                slot.device[:size].copy_(slot.host[:size], non_blocking=True)
                slot.copied.record(self._copier)
            return start, size, slot
        return None
