"""Leave-one-out with half the products: the distance of two points serves both of them.

The upper triangle of all pairs is scored tile by tile, by ``a'b - |a|^2 / 2 - |b|^2 / 2`` in float32, and every tile is read
twice: for neighbours of its rows and for neighbours of its columns. What a score must exceed to be kept is known
beforehand. Points are taken in a random order, so the first ones are a sample of all, and about ``r n / sample`` points
lie closer than the ``r``-th nearest of the sample, whatever the data: enough for the neighbours asked for, few enough
that a tile is only compared with its limits. A point that ends with too few (about one in ten thousand, more among
many twins) is named, and the caller searches for it in another way.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import stats

__all__ = ["Found", "nearest_others", "worthwhile"]

#: Points of the sample, or a sixteenth of all where that is more; and a tile's columns (with 512 rows 1 MiB of scores).
_SAMPLE, _TILE = 1_024, 512
#: Probability that a point ends with too few candidates.
_SHORT = 1e-4


class Found(NamedTuple):
    """Candidates of some points, best first; ``short`` are the places in ``at`` whose candidates are too few."""

    at: Int[np.ndarray, " m"]
    ids: Int[np.ndarray, "m keep"]
    scores: Float[np.ndarray, "m keep"]
    short: Int[np.ndarray, " s"]


def worthwhile(n: int, keep: int) -> bool:
    """Whether the sample is small beside all points, and the neighbours asked for are few."""
    return n >= 4 * _SAMPLE and keep <= n // 8


def nearest_others(points: Float[np.ndarray, "n d"], half: Float[np.ndarray, " n"], keep: int) -> Iterator[Found]:
    """The ``keep`` other points with the best scores for every point, some points at a time.

    Args:
        points: float32 rows.
        half: ``|b|^2 / 2`` of each.
        keep: candidates a point.
    """
    n = len(points)
    order = np.random.default_rng(0).permutation(n)
    points, half = points[order], half[order]
    sample = max(_SAMPLE, n // 16)
    # At least this many of the sample are among the `keep` nearest of all with probability `_SHORT`.
    rank = int(stats.binom.isf(_SHORT, sample - 1, keep / (n - 1))) + 1
    edges = [0, *range(sample, n, _TILE), n]
    blocks = [slice(a, b) for a, b in pairwise(edges)]
    limit = np.empty(n, np.float32)
    kept: list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = [[] for _ in blocks]
    for i, rows in enumerate(blocks):
        for j, columns in enumerate(blocks[i:], start=i):
            scores = points[rows] @ points[columns].T
            scores -= half[rows, None]
            scores -= half[columns]
            if i == j:
                np.fill_diagonal(scores, -np.inf)
            if i == 0:
                limit[columns] = np.partition(scores.T, sample - rank, axis=1)[:, sample - rank]
            row, column, value = _above(scores, limit[rows, None])
            kept[i].append((row, order[columns][column], value))
            if i != j:
                row, column, value = _above(scores, limit[columns])
                kept[j].append((column, order[rows][row], value))
        yield _best(order[rows], kept[i], keep)
        kept[i] = []


def _above(scores: np.ndarray, limit: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, columns and values of the scores above their limits."""
    flat = np.flatnonzero(scores > limit)
    row = flat // scores.shape[1]
    return row.astype(np.uint16), (flat - row * scores.shape[1]).astype(np.uint16), scores.ravel()[flat]


def _best(at: np.ndarray, kept: list[tuple[np.ndarray, np.ndarray, np.ndarray]], keep: int) -> Found:
    """The ``keep`` best of each point's candidates."""
    row, ids, values = (np.concatenate(part) for part in zip(*kept))
    count = np.bincount(row, minlength=at.size)
    by_row = np.argsort(row, kind="stable")
    row = row[by_row]
    place = np.arange(row.size) - (np.cumsum(count) - count)[row]
    width = max(keep, int(count.max()))
    scores, found = np.full((at.size, width), np.finfo(np.float32).min), np.zeros((at.size, width), np.int64)
    scores[row, place], found[row, place] = values[by_row], ids[by_row]
    best, chosen = torch.topk(torch.from_numpy(scores), keep, dim=1)
    return Found(at, np.take_along_axis(found, chosen.numpy(), axis=1), best.numpy(), np.flatnonzero(count < keep))
