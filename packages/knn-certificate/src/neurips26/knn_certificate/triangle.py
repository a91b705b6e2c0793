"""Leave-one-out with half the products: the distance of two points serves both of them.

The upper triangle of all pairs is scored tile by tile, by ``a'b - |a|^2 / 2 - |b|^2 / 2`` in float32, and every tile is read
twice: for neighbours of its rows and for neighbours of its columns. What a score must exceed to be kept is known
beforehand. Points are taken in a random order, so the first ones are a sample of all, and about ``r n / sample`` points
lie closer than the ``r``-th nearest of the sample, whatever the data: enough for the neighbours asked for, few enough
that a tile is only compared with its limits. A point that ends with too few (about one in ten thousand, more among
many twins) is named, and the caller searches for it in another way.

Beside the points it holds one tile of scores (at most 512 by 65,536, 128 MiB) and the candidates of points that are not
finished: at the most, half way through, about 1 KiB a point.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import stats

__all__ = ["Found", "nearest_others", "worthwhile"]

#: Candidates: whose they are (a place among the points sorted out together), which they are, their scores.
Kept = tuple[np.ndarray, np.ndarray, np.ndarray]

#: Points of the sample: a sixteenth of all, but at least the first number and at most the second, up to which places in a
#: tile fit in 16 bits (twice as fast to sort as wider ones).
_SAMPLE, _LARGEST_SAMPLE = 512, 1 << 16
#: Rows and columns of a tile (1 MiB of scores), and the points whose candidates are sorted out together.
_TILE = 512
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


def sample_size(n: int) -> int:
    """Points of the sample, whole tiles of them."""
    return max(_TILE, min(max(_SAMPLE, n // 16), _LARGEST_SAMPLE) // _TILE * _TILE)


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
    sample = slice(0, sample_size(n))
    # At least this many of the sample are among the `keep` nearest of all with probability `_SHORT`.
    rank = int(stats.binom.isf(_SHORT, sample.stop - 1, keep / (n - 1))) + 1
    limit = np.empty(n, np.float32)

    def scored(rows: slice, columns: slice) -> np.ndarray:
        scores = points[rows] @ points[columns].T
        scores -= half[rows, None]
        scores -= half[columns]
        if columns.start <= rows.start < columns.stop:
            own = np.arange(rows.stop - rows.start)
            scores[own, own + (rows.start - columns.start)] = -np.inf
        return scores

    # First all points meet the sample, which sets their limits; then the others meet each other.
    tiles = [slice(start, min(start + _TILE, n)) for start in range(0, n, _TILE)]
    kept: list[list[Kept]] = [[] for _ in tiles]
    of_sample: list[Kept] = []
    for rows, mine in zip(tiles, kept):
        scores = scored(rows, sample)
        limit[rows] = _limits(scores, rank)
        row, column, value = _above(scores, limit[rows, None])
        if rows.start < sample.stop:
            of_sample.append((row + np.uint16(rows.start), order[column], value))
        else:
            mine.append((row, order[column], value))
            row, column, value = _above(scores, limit[sample])
            of_sample.append((column, order[rows][row], value))
    yield from _best(order[sample], of_sample, keep)
    of_sample.clear()
    for i in range(sample.stop // _TILE, len(tiles)):
        rows, mine = tiles[i], kept[i]
        for columns, theirs in zip(tiles[i:], kept[i:]):
            scores = scored(rows, columns)
            row, column, value = _above(scores, limit[rows, None])
            mine.append((row, order[columns][column], value))
            if theirs is not mine:
                row, column, value = _above(scores, limit[columns])
                theirs.append((column, order[rows][row], value))
        yield from _best(order[rows], mine, keep)
        mine.clear()


def _limits(scores: np.ndarray, rank: int) -> np.ndarray:
    """For each row a score that ``rank`` of its scores reach, and hardly more of them.

    It is the ``rank``-th of the maxima of groups, where there are many groups for each of the ``rank``: a long row is not
    partitioned whole.
    """
    m, n = scores.shape
    width = 1 << max((n // (64 * rank)).bit_length() - 1, 0)
    groups = n // width
    tops = scores[:, : groups * width].reshape(m, width, groups).max(axis=1) if width > 1 else scores
    return np.partition(tops, groups - rank, axis=1)[:, groups - rank]


def _above(scores: np.ndarray, limit: np.ndarray) -> Kept:
    """Rows, columns and values of the scores above their limits."""
    flat = np.flatnonzero(scores > limit)
    row = flat // scores.shape[1]
    return row.astype(np.uint16), (flat - row * scores.shape[1]).astype(np.uint16), scores.ravel()[flat]


def _best(at: np.ndarray, kept: list[Kept], keep: int) -> Iterator[Found]:
    """The ``keep`` best of each point's candidates, a tile's points at a time."""
    row, ids, values = (np.concatenate(part) for part in zip(*kept))
    by_row = np.argsort(row, kind="stable")
    count = np.bincount(row, minlength=at.size)
    ends = np.append(0, np.cumsum(count))
    for start in range(0, at.size, _TILE):
        stop = min(start + _TILE, at.size)
        mine = by_row[ends[start] : ends[stop]]
        place = np.arange(ends[start], ends[stop]) - ends[row[mine]]
        width = max(keep, int(count[start:stop].max()))
        scores = np.full((stop - start, width), np.finfo(np.float32).min)
        found = np.zeros((stop - start, width), np.int64)
        scores[row[mine] - start, place], found[row[mine] - start, place] = values[mine], ids[mine]
        best, chosen = torch.topk(torch.from_numpy(scores), keep, dim=1)
        chosen = np.take_along_axis(found, chosen.numpy(), axis=1)
        yield Found(at[start:stop], chosen, best.numpy(), np.flatnonzero(count[start:stop] < keep))
