"""A claim, what was measured of it, and the verdict, which is computed here and nowhere else.

A paper's ``claims.py`` holds one function a headline claim, marked with :func:`measures`. The function runs the method
and the baselines it is claimed against and returns a :class:`Measurement`; it never says whether the claim holds.
:func:`judge` does, from the numbers, for all claims of a paper at once (Holm's correction).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from neurips26.shared import stats
from neurips26.shared.arrays import check_choice

if TYPE_CHECKING:
    from neurips26.shared.context import Context

__all__ = [
    "Claim",
    "Criterion",
    "DataUse",
    "Measurement",
    "Series",
    "Tuning",
    "Verdict",
    "judge",
    "measures",
    "tunes",
]

Tier = Literal["quick", "tune", "cpu", "gpu"]
Kind = Literal["ratio", "difference", "bound", "equal", "slope", "monotone"]
Scope = Literal["paper setting", "scaled down", "proxy", "identity"]
Direction = Literal["higher", "lower", "equal"]
Origin = Literal["real", "from a dependency", "generated"]
Outcome = Literal["holds", "does not hold", "undecided", "not testable here"]

#: A claim with sampling noise needs at least this many paired seeds.
MIN_SEEDS = 5
#: Said where the paper's function gave no reason of its own.
_WHY = {
    "undecided": "the interval reaches both sides of the criterion",
    "does not hold": "the whole interval lies outside the criterion",
}
#: Two-sided family-wise error over a paper's claims.
ALPHA = 0.05


@dataclass(frozen=True)
class Criterion:
    """When a claim holds; fixed before the run.

    Attributes:
        kind: ``ratio`` (geometric mean of ours / baseline over paired seeds), ``difference`` (mean of ours − baseline),
            ``bound`` (mean of ours), ``equal`` (mean of ours − baseline within ``tolerance`` of 0), ``slope`` and
            ``monotone`` (through ``effect``).
        at_least: the effect must be at least this.
        at_most: the effect must be at most this.
        tolerance: for ``equal``.
        effect: ``"module:function"``, a pure function ``(cells, level) -> (effect, low, high)`` that replaces the
            default effect of the kind.
        deterministic: the values carry no sampling noise (bytes, counts, an exact error): the interval is their range
            and no number of seeds is asked for.
    """

    kind: Kind
    at_least: float | None = None
    at_most: float | None = None
    tolerance: float | None = None
    effect: str | None = None
    deterministic: bool = False

    def __post_init__(self) -> None:
        check_choice(self.kind, "kind", get_args(Kind))
        if self.kind == "equal":
            if self.tolerance is None or self.tolerance < 0:
                raise ValueError(f"tolerance: expected a number >= 0 for kind 'equal', got {self.tolerance}")
        elif self.at_least is None and self.at_most is None:
            raise ValueError(f"at_least: expected at_least or at_most for kind {self.kind!r}, got neither")
        if self.kind in ("slope", "monotone") and self.effect is None:
            raise ValueError(f"effect: expected 'module:function' for kind {self.kind!r}, got None")

    @property
    def region(self) -> tuple[float, float]:
        """The closed interval of effects that satisfy the criterion."""
        if self.kind == "equal":
            assert self.tolerance is not None
            return -self.tolerance, self.tolerance
        low = -math.inf if self.at_least is None else self.at_least
        high = math.inf if self.at_most is None else self.at_most
        return low, high

    def __str__(self) -> str:
        what = {
            "ratio": "ours / baseline (geometric mean over pairs)",
            "difference": "ours − baseline (mean over pairs)",
            "bound": "ours (mean)",
            "equal": "|ours − baseline|",
            "slope": "slope",
            "monotone": "rank correlation",
        }[self.kind]
        if self.effect:
            what = f"{self.effect.partition(':')[2].replace('_', ' ')} ({self.kind})"
        if self.kind == "equal":
            return f"{what} ≤ {self.tolerance:g}"
        parts = [f"≥ {self.at_least:g}"] if self.at_least is not None else []
        parts += [f"≤ {self.at_most:g}"] if self.at_most is not None else []
        return f"{what} {' and '.join(parts)}"


@dataclass(frozen=True)
class Claim:
    """What a paper claims, in our words, and how it is tested.

    Attributes:
        id: short kebab-case name, unique within the paper.
        statement: our wording.
        paper_value: the figure as printed there, with its setting ("none: abstract only" where there is none).
        scope: how the test relates to the paper's setting; an ``identity`` (true by algebra) never counts as reproduced.
        metric: what is measured.
        unit: its unit, "1" for a pure number.
        direction: which way is better.
        criterion: when it holds.
        needs: what the machine must have (``"gpu"``); without it the verdict is "not testable here".
        rerun_tolerance: relative tolerance within which a cell must come out again; ``None`` for timings.
    """

    id: str
    statement: str
    paper_value: str
    scope: Scope
    metric: str
    unit: str
    direction: Direction
    criterion: Criterion
    needs: tuple[str, ...] = ()
    rerun_tolerance: float | None = 1e-6

    def __post_init__(self) -> None:
        check_choice(self.scope, "scope", get_args(Scope))
        check_choice(self.direction, "direction", get_args(Direction))

    def to_json(self) -> dict[str, Any]:
        """The fields that a record repeats and that ``verify`` compares with the code."""
        row = asdict(self)
        row["criterion"] = {k: v for k, v in row["criterion"].items() if v is not None and v is not False}
        row["needs"] = list(self.needs)
        return row

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Claim:
        """The claim of a record's row."""
        fields = {k: row[k] for k in ("id", "statement", "paper_value", "scope", "metric", "unit", "direction")}
        return cls(
            **fields,
            criterion=Criterion(**row["criterion"]),
            needs=tuple(row.get("needs", ())),
            rerun_tolerance=row.get("rerun_tolerance"),
        )


@dataclass(frozen=True)
class DataUse:
    """A data set a measurement used, and where it comes from."""

    name: str
    kind: Origin

    def __post_init__(self) -> None:
        check_choice(self.kind, "kind", get_args(Origin))


@dataclass
class Series:
    """One method's values, one a seed (or a paired unit), and the setting that gave them."""

    setting: dict[str, Any]
    values: list[float]

    def __post_init__(self) -> None:
        self.values = [float(v) for v in self.values]
        bad = [v for v in self.values if not math.isfinite(v)]
        if bad:
            raise ValueError(f"values: expected finite numbers, got {bad[0]}")


@dataclass
class Measurement:
    """What a claim's function returns: numbers, settings, pictures; no judgement.

    Attributes:
        ours: the method's values; ``None`` where the effect is a function of ``cells`` alone.
        baselines: every baseline of the comparison, paired with ``ours`` by position.
        compared_to: the baseline of the criterion: the best on tuning data among those named.
        seeds: the reported seeds.
        cells: rows ``{"factors": {...}, "seed": int, "method": str, "value": float}``.
        data: what data was used.
        figures: paths given by ``ctx.figure``.
        reason: unless the claim holds: why, and what was tried.
        tuned_by: id of the grid in the tune record that chose the settings.
    """

    ours: Series | None = None
    baselines: dict[str, Series] = field(default_factory=dict)
    compared_to: str | None = None
    seeds: list[int] = field(default_factory=list)
    cells: list[dict[str, Any]] = field(default_factory=list)
    data: list[DataUse] = field(default_factory=list)
    figures: list[Any] = field(default_factory=list)
    reason: str = ""
    tuned_by: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields of a record's row."""
        return {
            "data": [asdict(d) for d in self.data],
            "ours": None if self.ours is None else asdict(self.ours),
            "baselines": {name: asdict(s) for name, s in self.baselines.items()},
            "compared_to": self.compared_to,
            "seeds": [int(s) for s in self.seeds],
            "cells": self.cells,
            "reason": self.reason,
            "tuned_by": self.tuned_by,
            "figures": [Path(f).name for f in self.figures],
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Measurement:
        """The measurement of a record's row."""
        return cls(
            ours=Series(**row["ours"]) if row.get("ours") else None,
            baselines={name: Series(**s) for name, s in row.get("baselines", {}).items()},
            compared_to=row.get("compared_to"),
            seeds=list(row.get("seeds", [])),
            cells=list(row.get("cells", [])),
            data=[DataUse(**d) for d in row.get("data", [])],
            figures=list(row.get("figures", [])),
            reason=row.get("reason", ""),
            tuned_by=row.get("tuned_by"),
        )


@dataclass
class Tuning:
    """The outcome of a tuning grid: every cell tried, and the setting chosen for each method."""

    cells: list[dict[str, Any]]
    chosen: dict[str, dict[str, Any]]
    note: str = ""


@dataclass(frozen=True)
class Verdict:
    """The computed outcome: effect, its interval at ``level`` and what follows from them."""

    outcome: Outcome
    effect: float | None
    interval: tuple[float, float] | None
    level: float | None
    why: str = ""


def measures(claim: Claim, tiers: Sequence[Tier] = ("quick", "cpu")) -> Callable[[Callable], Callable]:
    """Mark a function ``(ctx: Context) -> Measurement`` as the test of ``claim`` in ``tiers``."""
    for tier in tiers:
        check_choice(tier, "tiers", get_args(Tier))

    def mark(fn: Callable[[Context], Measurement]) -> Callable[[Context], Measurement]:
        fn.claim = claim  # type: ignore[attr-defined]
        fn.tiers = tuple(tiers)  # type: ignore[attr-defined]
        return fn

    return mark


def tunes(id: str, statement: str) -> Callable[[Callable], Callable]:
    """Mark a function ``(ctx: Context) -> Tuning`` as the tuning grid ``id`` of the tune tier."""

    def mark(fn: Callable[[Context], Tuning]) -> Callable[[Context], Tuning]:
        fn.grid_id = id  # type: ignore[attr-defined]
        fn.statement = statement  # type: ignore[attr-defined]
        return fn

    return mark


def effect_interval(claim: Claim, measured: Measurement, level: float) -> tuple[float, float, float]:
    """Effect and interval of one claim at a two-sided confidence level.

    Raises:
        ValueError: values that do not fit the criterion (missing baseline, unpaired lengths, a ratio of non-positives).
    """
    criterion = claim.criterion
    if criterion.effect is not None:
        module, _, name = criterion.effect.partition(":")
        effect, low, high = getattr(importlib.import_module(module), name)(measured.cells, level)
        return float(effect), float(low), float(high)
    if measured.ours is None:
        raise ValueError(f"{claim.id}: ours: expected values for kind {criterion.kind!r}, got None")
    values = np.asarray(measured.ours.values, dtype=float)
    if criterion.kind != "bound":
        values = _paired(claim, measured, values)
    if criterion.deterministic:
        effect, low, high = float(values.mean()), float(values.min()), float(values.max())
    else:
        effect, low, high = stats.mean_interval(list(values), level)
    if criterion.kind == "ratio":
        effect, low, high = math.exp(effect), math.exp(low), math.exp(min(high, 700.0))
    return effect, low, high


def _paired(claim: Claim, measured: Measurement, ours: np.ndarray) -> np.ndarray:
    name = measured.compared_to
    if name is None and len(measured.baselines) == 1:
        name = next(iter(measured.baselines))
    if name not in measured.baselines:
        raise ValueError(f"{claim.id}: compared_to: expected one of {sorted(measured.baselines)}, got {name!r}")
    theirs = np.asarray(measured.baselines[name].values, dtype=float)
    if theirs.shape != ours.shape:
        raise ValueError(f"{claim.id}: expected paired values, got {ours.size} of ours and {theirs.size} of {name}")
    if claim.criterion.kind != "ratio":
        return ours - theirs
    if (ours <= 0).any() or (theirs <= 0).any():
        raise ValueError(f"{claim.id}: expected positive values for a ratio, got {min(ours.min(), theirs.min())}")
    return np.log(ours) - np.log(theirs)


def judge(claims: Sequence[Claim], measured: Sequence[Measurement | None], alpha: float = ALPHA) -> list[Verdict]:
    """Verdicts of a paper's claims. ``None`` as a measurement means that this machine lacks what the claim needs.

    A claim ``holds`` when its whole interval satisfies the criterion, ``does not hold`` when the whole interval violates
    it, and is ``undecided`` otherwise. Claims with sampling noise share the error ``alpha`` by Holm's procedure;
    identities and deterministic claims cost nothing.
    """
    if len(claims) != len(measured):
        raise ValueError(f"measured: expected one a claim ({len(claims)}), got {len(measured)}")
    noisy = [i for i, (c, m) in enumerate(zip(claims, measured)) if m is not None and not c.criterion.deterministic]
    short = {i for i in noisy if _n_units(measured[i]) < MIN_SEEDS}
    family = [i for i in noisy if i not in short]

    def decided(i: int) -> Callable[[float], bool]:
        return lambda level: _outcome(claims[i], effect_interval(claims[i], measured[i], level)) != "undecided"

    levels = dict(zip(family, stats.holm([decided(i) for i in family], alpha)))
    verdicts = []
    for i, (claim, m) in enumerate(zip(claims, measured)):
        if m is None:
            verdicts.append(Verdict("not testable here", None, None, None, f"no {', '.join(claim.needs).upper()}"))
            continue
        level = levels.get(i, 1 - alpha)
        effect, low, high = effect_interval(claim, m, level)
        finite = (max(low, -1e300), min(high, 1e300))
        if i in short:
            why = f"fewer than {MIN_SEEDS} paired seeds"
            verdicts.append(Verdict("undecided", effect, finite, level, why))
        else:
            outcome = _outcome(claim, (effect, low, high))
            verdicts.append(Verdict(outcome, effect, finite, level, _WHY.get(outcome, "")))
    return verdicts


def _n_units(m: Measurement | None) -> int:
    assert m is not None
    if m.ours is not None:
        return len(m.ours.values)
    return len(m.seeds) or len({c.get("seed") for c in m.cells})


def _outcome(claim: Claim, interval: tuple[float, float, float]) -> Outcome:
    _, low, high = interval
    want_low, want_high = claim.criterion.region
    if want_low <= low and high <= want_high:
        return "holds"
    if high < want_low or low > want_high:
        return "does not hold"
    return "undecided"
