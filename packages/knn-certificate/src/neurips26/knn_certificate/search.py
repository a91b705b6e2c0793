"""The first pass of the k-NN search: float32 scores of blocks of queries, by one of three libraries.

A search is a function ``find(rows, keep, own) -> (ids, scores)``: for each row the ``keep`` points with the best scores
``a'b - |b|^2 / 2`` (faiss: ``-|a - b|^2 / 2``), best first; ``own`` names the point that each row leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

__all__ = ["BACKENDS", "PRECISIONS", "check_device", "coarse_first", "searches"]

Find = Callable[[np.ndarray, int, np.ndarray | None], tuple[np.ndarray, np.ndarray]]
Scored = Callable[[np.ndarray, int], torch.Tensor]

BACKENDS = ("torch", "numpy", "faiss")
PRECISIONS = ("float32", "float16", "bfloat16")

#: Memory points of one tile of scores (with 512 queries in float32: 32 MiB), whatever the number of points.
_COLUMNS = 16_384
#: Scores that share one maximum when the best ones are picked.
_GROUP = 16
#: Candidates that a pass in half precision keeps beyond twice those asked for.
_COARSE_MARGIN = 64


def check_device(device: str) -> str:
    """The name of a torch device that this machine has.

    Raises:
        ValueError: no such kind, or none here.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        raise ValueError(
            f"device: expected a torch device of this machine, got {device!r} ({str(error).splitlines()[0]})"
        ) from error
    return device


def searches(backend: str) -> Callable[[np.ndarray, np.ndarray, str], Find]:
    """What makes a search of float32 points, half their squared lengths and a device."""
    return {"torch": _torch_search, "numpy": _numpy_search, "faiss": _faiss_search}[backend]


def _torch_search(small: np.ndarray, half: np.ndarray, device: str) -> Find:
    on_cpu = torch.device(device).type == "cpu"
    return _tiled((_scored_on_cpu if on_cpu else _scored_on_device)(small, half, device), len(small))


def _tiled(scored: Scored, n: int) -> Find:
    """The best scores of each tile, then the best of those."""

    def find(rows: np.ndarray, keep: int, own: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        parts = []
        for left in range(0, n, _COLUMNS):
            scores = scored(rows, left)
            if own is not None:
                mine = np.flatnonzero((own >= left) & (own < left + scores.shape[1]))
                scores[torch.from_numpy(mine), torch.from_numpy(own[mine] - left)] = -torch.inf
            values, at = _largest(scores, min(keep, scores.shape[1]))
            parts.append((values, at + left))
        values, at = (torch.cat(p, dim=1) for p in zip(*parts))
        values, order = torch.topk(values, keep, dim=1)
        return at.gather(1, order).cpu().numpy(), values.cpu().numpy()

    return find


def _scored_on_cpu(small: np.ndarray, half: np.ndarray, device: str) -> Scored:
    """A tile of scores by NumPy's product, often the faster one on a CPU; its last column carries ``-|b|^2 / 2``."""
    points = np.hstack([small, -half[:, None]])

    def scored(rows: np.ndarray, left: int) -> torch.Tensor:
        asked = np.hstack([rows, np.ones((len(rows), 1), np.float32)])
        return torch.from_numpy(asked @ points[left : left + _COLUMNS].T)

    return scored


def _scored_on_device(small: np.ndarray, half: np.ndarray, device: str) -> Scored:
    points, minus = torch.from_numpy(small).to(device), -torch.from_numpy(half).to(device)

    def scored(rows: np.ndarray, left: int) -> torch.Tensor:
        at = slice(left, left + _COLUMNS)
        with _full_precision():
            return torch.addmm(minus[at], torch.from_numpy(rows).to(device), points[at].T)

    return scored


def coarse_first(fine: Find, small: np.ndarray, half: np.ndarray, device: str, precision: str) -> Find:
    """A search whose products are in half precision, with the result of the float32 search ``fine``.

    More candidates than asked for are kept by coarse scores and scored again in float32. The error of a coarse score is
    bounded by what rounding took from its two vectors, which is measured: ``|a'b - r'q| <= |a - r| |q| + |a| |b - q|`` for
    ``r, q`` the rounded ``a, b``. A query whose last candidate asked for is not clear of the best score that can have been
    left out is searched by ``fine``.
    """
    kind = {"float16": torch.float16, "bfloat16": torch.bfloat16}[precision]
    points, minus = torch.from_numpy(small).to(device), -torch.from_numpy(half).to(device)
    rounded = points.to(kind)
    lost = float((points - rounded.float()).norm(dim=1).max())
    widest, u, (n, d) = float(points.norm(dim=1).max()), float(np.finfo(np.float32).eps) / 2, small.shape
    # A product is itself rounded to half precision: by this share of it, or of the smallest number with all digits.
    step, tiny = float(torch.finfo(kind).eps) / 2, float(torch.finfo(kind).smallest_normal)

    def scored(rows: np.ndarray, left: int) -> torch.Tensor:
        at = slice(left, left + _COLUMNS)
        with _full_precision():
            return (torch.from_numpy(rows).to(device, kind) @ rounded[at].T).float() + minus[at]

    coarse = _tiled(scored, n)

    def find(rows: np.ndarray, keep: int, own: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        wide = 2 * keep + _COARSE_MARGIN
        if wide >= n:
            return fine(rows, keep, own)
        ids, before = coarse(rows, wide, own)
        asked = torch.from_numpy(rows).to(device)
        candidates = torch.from_numpy(ids).to(device)
        with _full_precision():
            again = torch.bmm(points[candidates], asked[:, :, None]).squeeze(2) + minus[candidates]
        values, order = torch.topk(again, keep, dim=1)
        length = asked.norm(dim=1)
        taken = (asked - asked.to(kind).float()).norm(dim=1)
        size = (length + taken) * (widest + lost)
        error = (
            taken * (widest + lost) + length * lost + (step + 4 * (d + 8) * u) * size + 8 * u * widest**2 + step * tiny
        )
        left_out = torch.from_numpy(before[:, -1]).to(device) + error
        ids, scores = candidates.gather(1, order).cpu().numpy(), values.cpu().numpy()
        doubt = np.flatnonzero((values[:, -1] - 2 * u * ((d + 8) * size + 4 * widest**2) <= left_out).cpu().numpy())
        if doubt.size:
            ids[doubt], scores[doubt] = fine(rows[doubt], keep, None if own is None else own[doubt])
        return ids, scores

    return find


def _largest(scores: torch.Tensor, keep: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and positions of the ``keep`` largest of each row.

    All of them lie in the ``keep`` groups with the largest maxima, so most scores are only ever looked at for a maximum.
    """
    m, n = scores.shape
    groups = n // _GROUP
    if groups <= 2 * keep:
        return torch.topk(scores, keep, dim=1, sorted=False)
    # Group j holds the positions j, j + groups, j + 2 groups, …: maxima of whole vectors.
    table = scores[:, : groups * _GROUP].view(m, _GROUP, groups)
    held = torch.topk(table.amax(dim=1), keep, dim=1, sorted=False).indices
    inside = table.gather(2, held[:, None, :].expand(m, _GROUP, keep)).reshape(m, _GROUP * keep)
    at = (held[:, None, :] + groups * torch.arange(_GROUP, device=scores.device)[:, None]).reshape(m, _GROUP * keep)
    rest = torch.arange(groups * _GROUP, n, device=scores.device).expand(m, -1)
    inside, at = torch.cat([inside, scores[:, groups * _GROUP :]], dim=1), torch.cat([at, rest], dim=1)
    values, order = torch.topk(inside, keep, dim=1, sorted=False)
    return values, at.gather(1, order)


@contextmanager
def _full_precision() -> Iterator[None]:
    """float32 products in float32 and sums of half-precision products in float32, whatever the program has asked for."""
    before = torch.get_float32_matmul_precision()
    kinds, cuda = (
        ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"),
        torch.backends.cuda,
    )
    reduced = {name: getattr(cuda.matmul, name) for name in kinds}
    torch.set_float32_matmul_precision("highest")
    for name in kinds:
        setattr(cuda.matmul, name, False)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        for name, value in reduced.items():
            setattr(cuda.matmul, name, value)


def _numpy_search(small: np.ndarray, half: np.ndarray, device: str) -> Find:
    def find(rows: np.ndarray, keep: int, own: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        parts = []
        for left in range(0, len(small), _COLUMNS):
            scores = rows @ small[left : left + _COLUMNS].T - half[left : left + _COLUMNS]
            if own is not None:
                mine = np.flatnonzero((own >= left) & (own < left + scores.shape[1]))
                scores[mine, own[mine] - left] = -np.inf
            few = min(keep, scores.shape[1])
            at = np.argpartition(scores, -few, axis=1)[:, -few:]
            parts.append((at + left, np.take_along_axis(scores, at, axis=1)))
        at, scores = (np.concatenate(part, axis=1) for part in zip(*parts))
        return _sorted(at, scores, keep)

    return find


def _faiss_search(small: np.ndarray, half: np.ndarray, device: str) -> Find:
    try:
        import faiss
    except ImportError as error:
        raise ImportError(
            "backend: expected faiss to be installed for 'faiss'; install neurips26-knn-certificate[faiss]"
        ) from error
    index: Any = faiss.IndexFlatL2(small.shape[1])
    index.add(small)

    def find(rows: np.ndarray, keep: int, own: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        squares, at = index.search(rows, keep + int(own is not None))
        scores = -0.5 * squares
        if own is not None:
            scores[at == own[:, None]] = -np.inf
        return _sorted(at, scores, keep)

    return find


def _sorted(at: np.ndarray, scores: np.ndarray, keep: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-scores, axis=1, kind="stable")[:, :keep]
    return np.take_along_axis(at, order, axis=1), np.take_along_axis(scores, order, axis=1)
