"""Choosing look-back, penalty and rank without the test part, and choosing the rule of the choice itself.

Two selectors stand side by side: the smallest error on the validation rows, and cross-validation over contiguous
blocks of the training rows with the one-standard-error rule. A validation period that is unlike the future (ETTh1's is)
misleads the first one; averaging over what neither can tell apart is the third way, with the penalties of its members from
either. Which rule the benchmark uses is itself decided on training and validation rows (:func:`rehearse`, :func:`decide`)
and kept in ``tuned.json``.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from .choices import DEFAULTS
from .linear import LinearForecaster, average
from .protocol import LTSFData
from .rank import one_standard_error
from .regression import ALPHA_GRID, RANK_GRID, LowRankFit, RidgePath, grid_losses
from .stats import WindowStats

FOLDS = 5
# Contiguous blocks of the training and validation rows in a rehearsal: as long as ETT's validation part.
REHEARSAL_BLOCKS = 4
# Whole decades are enough to compare rules and to judge penalties by blocks; on validation the full grid is tried.
REHEARSAL_ALPHAS: tuple[float, ...] = ALPHA_GRID[::2]


@dataclass(frozen=True)
class Rule:
    """How one forecaster comes out of the grid.

    Attributes:
        name: of the rule.
        all_lookbacks: average over the look-backs, or take the best one.
        rank_from: average over all ranks from this one on, or (``None``) take one: the best on validation, or by blocks
            the smallest within one standard error of the best.
        by_blocks: judge look-backs, ranks and penalties by cross-validation over blocks of the training and validation
            rows, instead of by the validation rows.
    """

    name: str
    all_lookbacks: bool
    rank_from: int | None
    by_blocks: bool = False


def _menu() -> Iterator[Rule]:
    shapes = [("smallest validation error", "blocked CV + 1 SE", False, None),
              ("average over look-backs", "average over look-backs, blocked CV + 1 SE", True, None)]  # fmt: skip
    for rank in (48, 24, 16, 12, 8, 4, 1):
        name = f"average over look-backs and ranks from {rank} on"
        shapes.append((name, f"{name}, penalties by blocked CV", True, rank))
    for by_validation, by_blocks, all_lookbacks, rank_from in shapes:
        yield Rule(by_validation, all_lookbacks, rank_from)
        yield Rule(by_blocks, all_lookbacks, rank_from, True)


# In the order of their number of members, blocks (which cost more fits) after validation: the one-standard-error rule
# takes the first that is good enough.
RULES: tuple[Rule, ...] = tuple(_menu())


def chosen_rule() -> Rule:
    """The rule that the rehearsal has decided on (``tuned.json``; the tuning record shows how)."""
    name = json.loads((Path(__file__).parent / "tuned.json").read_text("utf-8"))["rule"]["name"]
    return next(r for r in RULES if r.name == name)


@dataclass
class Candidates:
    """All penalties and ranks of one look-back, with the losses that they are judged by.

    Attributes:
        path: of the fits on the training rows.
        ranks, alphas: the grid.
        val: ``(alphas, ranks)`` validation MSE; ``val_full`` ``(alphas,)`` that of full-rank ridge (``None`` if not asked
            for).
        folds: ``(folds, alphas, ranks)`` MSE of fits on the other blocks, where :func:`with_folds` has added them.
    """

    path: RidgePath
    ranks: tuple[int, ...]
    alphas: tuple[float, ...]
    val: Float[np.ndarray, "a r"] | None = None
    val_full: Float[np.ndarray, " a"] | None = None
    folds: Float[np.ndarray, "f a r"] | None = None
    _fits: dict[int, LowRankFit] = field(default_factory=dict, repr=False)

    @property
    def lookback(self) -> int:
        """L."""
        return self.path.stats.lookback

    @property
    def norm(self) -> str:
        """Instance normalisation of the forecasters."""
        return self.path.stats.norm

    def losses(self, by_blocks: bool) -> Float[np.ndarray, "a r"]:
        """What a rule judges penalties and ranks by."""
        if by_blocks:
            if self.folds is None:
                raise ValueError("grids: this rule needs losses on blocks, see with_folds")
            return self.folds.mean(0)
        if self.val is None:
            raise ValueError("grids: this rule needs losses on the validation rows, see candidates(judge=True)")
        return self.val

    def one_rank(self, by_blocks: bool) -> int:
        """The place of the best rank on validation, or of the smallest within one standard error over blocks."""
        losses = self.losses(by_blocks)
        if not by_blocks:
            return int(losses.min(0).argmin())
        assert self.folds is not None
        rows = losses.argmin(0)
        return one_standard_error(self.folds[:, rows, np.arange(len(self.ranks))], range(len(self.ranks)))

    def low_rank(self, row: int, rank: int, label: str = "") -> LinearForecaster:
        """The reduced-rank forecaster of a penalty (by its place in the grid) and a rank."""
        fit = self._fits.get(row)
        if fit is None or fit.rank < rank:
            fit = self._fits[row] = self.path.reduced_rank(self.alphas[row], self.ranks[-1])
        weight = fit.truncated(rank).weight
        return LinearForecaster(weight, self.norm, label=label, macs=rank * sum(weight.shape))

    def ridge(self, row: int, label: str = "ridge") -> LinearForecaster:
        """The full-rank ridge forecaster of a penalty."""
        weight = self.path.weight(self.alphas[row])
        return LinearForecaster(weight, self.norm, label=label, macs=weight.size)


def candidates(
    data: LTSFData,
    lookback: int,
    horizon: int,
    norm: str = DEFAULTS.norm,
    ranks: Sequence[int] = RANK_GRID,
    alphas: Sequence[float] = ALPHA_GRID,
    judge: bool = True,
) -> Candidates:
    """The grid of one look-back, fitted on the training rows; with ``judge`` all of it is fitted at once and scored on the
    validation rows, otherwise what a rule by blocks picks is fitted when it is picked.
    """
    parts = ("train", "val") if judge else ("train",)
    train, *held = (data.stats(part, lookback, horizon).normalised(norm) for part in parts)
    return fit_grid(train, held, ranks, alphas)[0] if judge else _grid(train, ranks, alphas)


def fit_grid(
    train: WindowStats,
    parts: Sequence[WindowStats],
    ranks: Sequence[int] = RANK_GRID,
    alphas: Sequence[float] = ALPHA_GRID,
) -> list[Candidates]:
    """Fit the whole grid once and score it on each of several held-out parts."""
    grid = _grid(train, ranks, alphas)
    losses, full = [], []
    for row, (_, fit, values) in enumerate(grid_losses(grid.path, parts, alphas, grid.ranks)):
        losses.append([by_rank for by_rank, _ in values])
        full.append([whole for _, whole in values])
        grid._fits[row] = fit
    by_rank, whole = np.array(losses), np.array(full)
    return [replace(grid, val=by_rank[:, i], val_full=whole[:, i]) for i in range(len(parts))]


def _grid(train: WindowStats, ranks: Sequence[int], alphas: Sequence[float]) -> Candidates:
    kept = tuple(r for r in ranks if r <= min(train.lookback, train.horizon))
    return Candidates(RidgePath(train), kept, tuple(alphas))


@dataclass(frozen=True)
class Choice:
    """A chosen forecaster and how it was chosen."""

    forecaster: LinearForecaster
    setting: dict[str, object]
    val_mse: float


def choose_on_validation(grids: Sequence[Candidates], full: bool = False) -> Choice:
    """The look-back, penalty and rank (or full-rank ridge) with the smallest validation error."""
    best: Choice | None = None
    for grid in grids:
        if grid.val is None or grid.val_full is None:
            raise ValueError("grids: losses on the validation rows are needed, see candidates(judge=True)")
        if full:
            row = int(grid.val_full.argmin())
            loss, make = float(grid.val_full[row]), lambda g=grid, i=row: g.ridge(i)
            setting = {"lookback": grid.lookback, "alpha": grid.alphas[row], "rank": "full"}
        else:
            column = int(grid.val.min(0).argmin())
            row = int(grid.val[:, column].argmin())
            loss = float(grid.val[row, column])
            make = lambda g=grid, i=row, r=grid.ranks[column]: g.low_rank(i, r, "reduced rank, validation")  # noqa: E731
            setting = {"lookback": grid.lookback, "alpha": grid.alphas[row], "rank": grid.ranks[column]}
        if best is None or loss < best.val_mse:
            best = Choice(make(), setting, loss)
    assert best is not None
    return best


def apply_rule(grids: Sequence[Candidates], rule: Rule | None = None) -> Choice:
    """The forecaster that a rule (default: the chosen one) makes of the grids of all look-backs."""
    rule = chosen_rule() if rule is None else rule
    if not rule.all_lookbacks:
        grids = [min(grids, key=lambda g: float(g.losses(rule.by_blocks).min()))]
    members, used = [], []
    for grid in grids:
        losses = grid.losses(rule.by_blocks)
        if rule.rank_from is None:
            columns = [grid.one_rank(rule.by_blocks)]
        else:
            columns = [j for j, r in enumerate(grid.ranks) if r >= rule.rank_from] or [len(grid.ranks) - 1]
        used += [(grid, int(losses[:, j].argmin()), grid.ranks[j]) for j in columns]
        members.append(average([grid.low_rank(i, r) for g, i, r in used if g is grid]))  # one map of its own L
    if len(used) == 1:
        grid, row, rank = used[0]
        forecaster = grid.low_rank(row, rank, rule.name)
    else:
        whole = average(members, rule.name)
        # Either every member for itself, or one full map a look-back, or the whole average as one map.
        macs = min(
            sum(r * (g.lookback + whole.horizon) for g, _, r in used),
            sum(m.weight.size for m in members),
            whole.weight.size,
        )
        forecaster = replace(whole, macs=macs)
    setting = {
        "rule": rule.name,
        "members": [{"lookback": g.lookback, "rank": r, "alpha": g.alphas[i]} for g, i, r in used],
    }
    return Choice(forecaster, setting, float("nan"))


def chosen_forecaster(data: LTSFData, horizon: int, grids: Sequence[Candidates] | None = None) -> Choice:
    """What the rule that the rehearsal has decided on makes of the grids (default: those of all look-backs of the data,
    with the losses that the rule reads and no others).
    """
    rule = chosen_rule()
    if grids is None:
        grids = [candidates(data, n, horizon, judge=not rule.by_blocks) for n in data.spec.lookbacks]
    return apply_rule(with_folds(grids, data, horizon) if rule.by_blocks else grids, rule)


def _blocks(data: LTSFData, horizon: int, longest: int) -> list[WindowStats]:
    """Statistics of contiguous blocks of the rows before the test part; a window belongs to the block of its target.

    The first block has no rows before it: of a short series it may be shorter than a window, so that no target lies in
    it. Then it is no block to judge on, and its rows are look-backs of the second.
    """
    rows = data.values[: data.val_end]
    edges = np.linspace(0, len(rows), REHEARSAL_BLOCKS + 1).astype(int).tolist()
    spans = [(max(0, a - longest), b) for a, b in itertools.pairwise(edges)]
    held = [(a, b) for a, b in spans if b - a >= longest + horizon]
    if len(held) < 2:
        raise ValueError(
            f"data: expected rows for windows of {longest} + {horizon} in two of {REHEARSAL_BLOCKS} blocks before the "
            f"test part, got {len(rows)} rows"
        )
    return [WindowStats.from_series(rows[a:b], longest, horizon) for a, b in held]


def _merged(blocks: Sequence[WindowStats]) -> WindowStats:
    return functools.reduce(WindowStats.merge, blocks)


def with_folds(grids: Sequence[Candidates], data: LTSFData, horizon: int) -> list[Candidates]:
    """The grids with their losses on each of ``REHEARSAL_BLOCKS`` blocks of the training and validation rows, fitted on
    the other blocks. Every look-back sees the same windows; no target is on two sides. Only the penalties of the
    rehearsal are tried, the others get infinite losses.

    One pass over the rows serves all: a fit on the other blocks is that on all blocks less one, a shorter look-back is a
    sub-block of the longest one's moments, one eigendecomposition a fold and look-back serves all penalties and ranks.
    """
    blocks = _blocks(data, horizon, max(g.lookback for g in grids))
    folds = [np.full((len(blocks), len(g.alphas), len(g.ranks)), np.inf) for g in grids]
    whole = _merged(blocks)
    for k, block in enumerate(blocks):
        rest = whole.without(block)
        for grid, losses in zip(grids, folds):
            fit, held = (part.shorter(grid.lookback).normalised(grid.norm) for part in (rest, block))
            tried = [i for i, alpha in enumerate(grid.alphas) if alpha in REHEARSAL_ALPHAS]
            alphas = [grid.alphas[i] for i in tried]
            found = grid_losses(RidgePath(fit), [held], alphas, grid.ranks, full_rank=False)
            for i, (_, _, [(by_rank, _)]) in zip(tried, found):
                losses[k, i] = by_rank
    return [replace(grid, folds=losses) for grid, losses in zip(grids, folds)]


def rehearse(
    data: LTSFData, horizon: int, lookbacks: Sequence[int], norm: str = DEFAULTS.norm
) -> list[dict[str, object]]:
    """Every rule on training and validation rows alone, the way the benchmark will use it.

    The rows before the test part are cut into ``REHEARSAL_BLOCKS`` contiguous blocks. Each ordered pair of blocks plays
    validation and test once, the others are fitted on; rules that judge by blocks see those of all blocks but the test
    one, each scored by the fit on the other two. A window belongs to the block that holds its whole target, so no
    target is on two sides; every look-back sees the same windows.

    Returns:
        per pair: ``{"val": block, "test": block, "loss": {rule: MSE}}``.
    """
    blocks = _blocks(data, horizon, max(lookbacks))
    fits: dict[tuple[int, int], list[Candidates]] = {}  # (judged on, left out beside it): a grid a look-back
    for pair in itertools.combinations(range(len(blocks)), 2):
        rest = _merged([b for i, b in enumerate(blocks) if i not in pair])
        for n in lookbacks:
            held = [blocks[i].shorter(n).normalised(norm) for i in pair]
            both = fit_grid(rest.shorter(n).normalised(norm), held, alphas=REHEARSAL_ALPHAS)
            for sides, grid in zip((pair, pair[::-1]), both):
                fits.setdefault(sides, []).append(grid)
    out: list[dict[str, object]] = []
    for val, test in fits:
        seen = [b for b in range(len(blocks)) if b != test]
        grids = [
            replace(grid, folds=np.array([fits[b, test][i].val for b in seen]))
            for i, grid in enumerate(fits[val, test])
        ]
        losses = {rule.name: apply_rule(grids, rule).forecaster.mse(blocks[test]) for rule in RULES}
        out.append({"val": val, "test": test, "loss": losses})
    return out


def decide(rehearsals: dict[tuple[str, int], list[dict]]) -> tuple[Rule, dict[str, float]]:
    """The rule with the fewest members within one standard error of the best one.

    Losses enter as log ratios to the first rule. Pairs and horizons of one test block are averaged first: the units
    whose spread gives the standard error (of the paired difference to the best) are data set x block.

    Args:
        rehearsals: of every ``(data set, horizon)``.

    Returns:
        the rule, and the mean log ratio of every rule.
    """
    units: dict[tuple[str, int], list[list[float]]] = {}
    for (name, _), pairs in rehearsals.items():
        for pair in pairs:
            losses = [pair["loss"][r.name] for r in RULES]
            units.setdefault((name, pair["test"]), []).append(np.log(np.array(losses) / losses[0]).tolist())
    table = np.array([np.mean(rows, 0) for rows in units.values()])
    place = one_standard_error(table, range(len(RULES)))
    return RULES[place], dict(zip((r.name for r in RULES), table.mean(0).tolist()))


def blocked_cv(
    z: Float[np.ndarray, "t c"],
    lookback: int,
    horizon: int,
    norm: str = DEFAULTS.norm,
    ranks: Sequence[int] = RANK_GRID,
    alphas: Sequence[float] = ALPHA_GRID,
    folds: int = FOLDS,
    name: str = "z",
) -> Float[np.ndarray, "f a r"]:
    """Losses on contiguous blocks of windows of the training rows; the last column is full-rank ridge.

    Windows that start less than H steps from the held-out block are left out of the fit, so no target value is seen on
    both sides.
    """
    count = len(z) - lookback - horizon + 1
    if count - math.ceil(count / folds) - 2 * horizon < folds:  # what is left to fit on
        raise ValueError(
            f"{name} has {max(count, 0)} windows, too few for {folds} blocks with H = {horizon} between them"
        )
    kept = tuple(r for r in ranks if r <= min(lookback, horizon))
    edges = np.linspace(0, count, folds + 1).astype(int).tolist()
    whole = WindowStats.from_series(z, lookback, horizon, name=name)
    table = np.empty((folds, len(alphas), len(kept) + 1))

    def between(a: int, b: int) -> WindowStats:
        return WindowStats.from_series(z[a : b + lookback + horizon - 1], lookback, horizon)

    for k, (a, b) in enumerate(itertools.pairwise(edges)):
        near = between(max(0, a - horizon), min(count, b + horizon))
        rest, held = whole.without(near), between(a, b)
        if norm == "none":  # with an intercept
            rest, held = rest.centred(), held.centred(rest.total / rest.count)
        else:
            rest, held = rest.normalised(norm), held.normalised(norm)
        for i, (_, _, [(by_rank, full)]) in enumerate(grid_losses(RidgePath(rest), [held], alphas, kept)):
            table[k, i] = [*by_rank, full]
    return table


def choose_by_blocks(grids: Sequence[Candidates], tables: Sequence[Float[np.ndarray, "f a r"]]) -> Choice:
    """Cross-validation over blocks: per look-back the smallest rank within one standard error of the best, with its
    best penalty; the look-backs are then averaged, since blocks of different look-backs are not the same windows.
    """
    members, settings = [], []
    for grid, table in zip(grids, tables):
        low = table[:, :, :-1]
        rows = low.mean(0).argmin(0)  # best penalty of each rank
        per_rank = low[:, rows, np.arange(len(grid.ranks))]
        rank = one_standard_error(per_rank, grid.ranks)
        row = int(rows[grid.ranks.index(rank)])
        members.append(grid.low_rank(row, rank))
        settings.append({"lookback": grid.lookback, "rank": rank, "alpha": grid.alphas[row]})
    whole = average(members, "reduced rank, blocked CV + 1 SE")
    macs = sum(int(m.macs or 0) for m in members)
    return Choice(replace(whole, macs=macs), {"members": settings}, float("nan"))
