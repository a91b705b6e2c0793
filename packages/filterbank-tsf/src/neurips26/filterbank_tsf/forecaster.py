"""What all estimators share: forms of input, matching of channels, scaling, groups, statistics, prediction, score."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from .frames import Panel, parse
from .linear import LinearForecaster, intercept
from .protocol import scaler
from .stats import WindowStats, check_long_enough, raise_missing, raise_no_window

# Share of the newest rows held out to choose rank and penalty when no validation rows are given.
HOLD_OUT = 0.2
# Windows scored at a time.
BLOCK = 2048


class Forecaster(BaseEstimator):
    """What all forecasters share: forms of input, scaling, channel modes, statistics, prediction.

    Channels are those of :meth:`fit`, in its order; a *group* is a set of channels with one forecaster. Frames are
    matched to the fitted channels by column name or id, arrays by position.
    """

    lookback: int
    horizon: int
    norm: str
    channel_mode: str
    groups: Sequence[Any] | Mapping[Any, Any] | None
    missing: str

    # -- to be given by the subclass ----------------------------------------------------------------------------------

    def _start(self, panel: Panel) -> None:
        """What a fit needs to know of the checked input before it solves."""

    def _fixed(self) -> dict[str, Any]:
        """The setting of a group where nothing is chosen."""
        return {}

    def _needs_choice(self) -> bool:
        return False

    def _choose(self, stats: WindowStats, val: WindowStats, rows: list[np.ndarray]) -> dict[str, Any]:
        """The setting of a group, chosen on validation; ``rows`` are those behind ``stats``."""
        raise NotImplementedError

    def _solve(
        self, stats: WindowStats, rows: list[np.ndarray], setting: dict[str, Any], ahead: list[np.ndarray] | None
    ) -> tuple[Any, Any]:
        """A forecaster of scaled rows, and what the attributes show of it; ``ahead`` are validation rows from a look-back
        before them on, where :meth:`fit` was given any.
        """
        raise NotImplementedError

    def _publish(self) -> None:
        """Set the public attributes after a fit."""

    def _continues(self) -> bool:
        """Whether statistics alone are enough to go on."""
        return True

    # -- fitting ------------------------------------------------------------------------------------------------------

    def fit(self, y: object, val: object | None = None) -> Forecaster:
        """Fit on a series, a set of series or a frame.

        Args:
            y: ``(T,)``, ``(T, C)``, a wide pandas frame, or a long frame ``unique_id, ds, y`` (pandas, polars).
            val: rows that follow ``y``, in the same form, on which rank and penalty are chosen and gradient training is
                stopped. Without it the newest fifth of ``y`` is held out for that; a chosen closed form is then fitted on
                all of ``y``, a model trained by gradient steps stays the one that the other four fifths have made.

        Raises:
            ValueError, TypeError: naming the argument; see :mod:`neurips26.filterbank_tsf.frames`.
        """
        self._check_settings()
        panel = parse(y, "y")
        self._check_rows(panel, "y")
        labels = self._labels(panel.names)
        self._start(panel)
        self.n_features_in_, self._named = len(panel.names), panel.named
        self.feature_names_in_ = np.empty(len(panel.names), dtype=object)
        for i, name in enumerate(panel.names):
            self.feature_names_in_[i] = name
        names = iter(panel.names)
        scales = [_scale(values, list(itertools.islice(names, values.shape[1]))) for values in panel.series]
        self.mean_, self.std_ = (np.concatenate([s[i] for s in scales]) for i in (0, 1))
        rows = self._scaled(panel, range(self.n_features_in_))
        ahead = None if val is None else self._ahead(val, rows)
        self._group_of = labels
        self._stats, self._settings, self._solved = {}, {}, {}
        for group, members in self._members().items():
            mine = [rows[i] for i in members]
            stats = self._statistics(mine, "y")
            setting = self._fixed()
            later = None if ahead is None else [ahead[i] for i in members]
            if self._needs_choice():
                setting = self._choose_setting(stats, mine, later)
            self._stats[group], self._settings[group] = stats, setting
            self._solved[group] = self._solve_group(stats, mine, setting, later)
        self.forecasters_ = {group: solved[0] for group, solved in self._solved.items()}
        self._publish()
        return self

    def _choose_setting(
        self, stats: WindowStats, rows: list[np.ndarray], ahead: list[np.ndarray] | None
    ) -> dict[str, Any]:
        if ahead is not None:
            early, late, seen = stats, self._statistics(ahead, "val"), rows
        else:
            seen, held = self._held_out(rows, "choosing rank and alpha", "give numbers for them or pass val")
            early = self._statistics(seen, "y (all but the newest fifth)")
            late = self._statistics(held, "y (the newest fifth)")
        at = early.total / early.count
        return self._choose(self._prepared(early, at), self._prepared(late, at), seen)

    def _held_out(self, rows: list[np.ndarray], purpose: str, advice: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """All but the newest fifth of each channel, and that fifth from a look-back before it on."""
        cut = [int(len(r) * (1 - HOLD_OUT)) for r in rows]
        window = self.lookback + self.horizon
        if min(cut) < window or min(len(r) - c for r, c in zip(rows, cut)) < self.horizon:
            raise ValueError(
                f"y has {min(map(len, rows))} rows: too few to hold out a fifth for {purpose} with "
                f"lookback + horizon = {window}; {advice}"
            )
        return [r[:c] for r, c in zip(rows, cut)], [r[c - self.lookback :] for r, c in zip(rows, cut)]

    def _prepared(self, stats: WindowStats, at: np.ndarray) -> WindowStats:
        """Windows without their level; with norm ``"none"`` without the mean window ``at``, which the intercept returns."""
        return stats.centred(at) if self.norm == "none" else stats.normalised(self.norm)

    def _solve_group(
        self,
        stats: WindowStats,
        rows: list[np.ndarray],
        setting: dict[str, Any],
        ahead: list[np.ndarray] | None = None,
    ) -> tuple[Any, Any]:
        solved, shown = self._solve(self._prepared(stats, stats.total / stats.count), rows, setting, ahead)
        if self.norm == "none" and isinstance(solved, LinearForecaster):
            solved = replace(solved, bias=intercept(stats, solved.weight))
        return solved, shown

    def partial_fit(self, y: object) -> Forecaster:
        """Add the windows of further rows of fitted channels (all or some of them) and solve again.

        Scale, rank and penalty stay as :meth:`fit` chose them. Frames are matched by column name or id, arrays by position.
        Windows across the border between the old rows and ``y`` are not formed: give the last ``lookback`` rows again
        for them.
        """
        check_is_fitted(self, "forecasters_")
        if not self._continues():
            raise ValueError(
                "partial_fit: gradient training needs all rows at once; call fit on old and new rows together"
            )
        panel = parse(y, "y")
        channels = self._match(panel, "y")
        self._check_rows(panel, "y")
        rows = dict(zip(channels, self._scaled(panel, channels)))
        found = {g: [rows[i] for i in members if i in rows] for g, members in self._members().items()}
        merged = {g: self._stats[g].merge(self._statistics(r, "y")) for g, r in found.items() if r}
        for group, stats in merged.items():
            self._stats[group] = stats
            self._solved[group] = self._solve_group(stats, found[group], self._settings[group])
            self.forecasters_[group] = self._solved[group][0]
        self._publish()
        return self

    # -- predicting ---------------------------------------------------------------------------------------------------

    def predict(self, y_last: object, horizon: int | None = None, recursive: bool = False) -> Any:
        """Forecast what follows ``y_last``.

        Args:
            y_last: at least ``lookback`` rows in a form that :meth:`fit` takes. Frames are matched to the fitted channels
                by column name or id, in any order, all or some of them; arrays by position.
            horizon: steps wanted; at most the fitted H unless ``recursive``.
            recursive: feed forecasts back as inputs beyond H.

        Returns:
            forecasts in the form of ``y_last``: ``(horizon,)``, ``(horizon, C)`` or a frame with continued stamps.
        """
        check_is_fitted(self, "forecasters_")
        steps = self.horizon if horizon is None else horizon
        if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 1:
            raise ValueError(f"horizon must be a positive integer, got {steps!r}")
        if steps > self.horizon and not recursive:
            raise ValueError(
                f"horizon={steps} is longer than the fitted horizon={self.horizon}; fit a longer one or pass recursive=True"
            )
        panel = parse(y_last, "y_last")
        channels = self._match(panel, "y_last")
        for label, values, columns in panel.parts("y_last"):
            if len(values) < self.lookback:
                raise ValueError(f"{label} has {len(values)} rows, a forecast needs lookback={self.lookback}")
            first = len(values) - self.lookback
            if not np.isfinite(values[first:]).all():
                advice = f"a forecast needs the newest lookback={self.lookback} rows complete"
                raise_missing(values[first:], label, columns, advice, first)
        rows = self._scaled(panel, channels)
        out = np.empty((int(steps), len(rows)))
        for group, forecaster in self.forecasters_.items():
            places = [place for place, channel in enumerate(channels) if self._group_of[channel] == group]
            if not places:
                continue
            x = np.stack([rows[place][-self.lookback :] for place in places])
            parts = []
            for start in range(0, steps, self.horizon):
                parts.append(forecaster.predict(x)[:, : steps - start])
                x = np.concatenate([x, parts[-1]], 1)[:, -self.lookback :]
            out[:, places] = np.concatenate(parts, 1).T
        out = out * self.std_[channels] + self.mean_[channels]
        edges = np.cumsum([0, *(s.shape[1] for s in panel.series)])
        return panel.rebuild([out[:, a:b] for a, b in itertools.pairwise(edges)], int(steps))

    def score(self, y: object) -> float:
        """Minus the mean squared error, in scaled units, over all windows of ``y`` (fitted channels, all or some).

        With ``missing="mask"`` windows that touch a missing value are left out.
        """
        check_is_fitted(self, "forecasters_")
        panel = parse(y, "y")
        channels = self._match(panel, "y")
        self._check_rows(panel, "y")
        squared = count = 0.0
        for channel, row in zip(channels, self._scaled(panel, channels)):
            forecaster = self.forecasters_[self._group_of[channel]]
            windows = np.lib.stride_tricks.sliding_window_view(row, self.lookback + self.horizon)
            for start in range(0, len(windows), BLOCK):
                block = windows[start : start + BLOCK]
                block = block[np.isfinite(block).all(1)]
                error = forecaster.predict(block[:, : self.lookback]) - block[:, self.lookback :]
                squared += float((error**2).sum())
                count += error.size
        if not count:
            raise_no_window("y", self.lookback + self.horizon)
        return -squared / count

    # -- parts --------------------------------------------------------------------------------------------------------

    def _check_settings(self) -> None:
        for name in ("lookback", "horizon"):
            check_count(getattr(self, name), name)
        if self.norm not in ("none", "mean", "last"):
            raise ValueError(f"norm must be 'none', 'mean' or 'last', got {self.norm!r}")
        if self.channel_mode not in ("shared", "individual", "grouped"):
            raise ValueError(f"channel_mode must be 'shared', 'individual' or 'grouped', got {self.channel_mode!r}")
        if self.missing not in ("error", "mask"):
            raise ValueError(f"missing must be 'error' or 'mask', got {self.missing!r}")

    def _check_rows(self, panel: Panel, name: str) -> None:
        for label, values, columns in panel.parts(name):
            check_long_enough(values, self.lookback, self.horizon, label)
            if self.missing == "error" and not np.isfinite(values).all():
                raise_missing(values, label, columns)

    def _labels(self, names: Sequence[Any]) -> list[Any]:
        """The group of every channel."""
        if self.channel_mode == "shared":
            return ["all"] * len(names)
        if self.channel_mode == "individual":
            return list(range(len(names)))
        if isinstance(self.groups, Mapping):
            lacking = [n for n in names if n not in self.groups]
            if lacking:
                raise ValueError(f"groups has no group for the channel {lacking[0]!r}")
            return [self.groups[n] for n in names]
        if self.groups is None or len(self.groups) != len(names):
            got = None if self.groups is None else len(self.groups)
            raise ValueError(f"groups must name a group for each of {len(names)} channels, got {got}")
        return list(self.groups)

    def _members(self) -> dict[Any, list[int]]:
        """The channels of every group."""
        members: dict[Any, list[int]] = {}
        for channel, group in enumerate(self._group_of):
            members.setdefault(group, []).append(channel)
        return members

    def _each(self, values: Mapping[Any, Any]) -> Any:
        """A value a group as it is shown: itself where channels share it, else one a channel."""
        return values["all"] if self.channel_mode == "shared" else [values[g] for g in self._group_of]

    def _match(self, panel: Panel, name: str) -> list[int]:
        """The fitted channel of every channel of ``panel``: by name where both have names, else by position."""
        fitted = self.feature_names_in_.tolist()
        if not (panel.named and self._named):
            if len(panel.names) != len(fitted):
                raise ValueError(f"{name} has {len(panel.names)} channels, fitted with {len(fitted)}")
            return list(range(len(fitted)))
        place = {n: i for i, n in enumerate(fitted)}
        unknown = [n for n in panel.names if n not in place]
        if unknown:
            shown = ", ".join(map(repr, fitted[:5])) + (" and others" if len(fitted) > 5 else "")
            raise ValueError(f"{name}: {unknown[0]!r} is not among the fitted channels, {shown}")
        return [place[n] for n in panel.names]

    def _ahead(self, val: object, rows: list[np.ndarray]) -> list[np.ndarray]:
        """Validation rows of every channel, in the order of the fit, with a look-back of the rows before them."""
        panel = parse(val, "val")
        channels = self._match(panel, "val")
        lacking = sorted(set(range(len(rows))) - set(channels))
        if lacking:
            raise ValueError(f"val lacks the channel {self.feature_names_in_[lacking[0]]!r}")
        for label, values, columns in panel.parts("val"):
            if len(values) < self.horizon:
                raise ValueError(f"{label} has {len(values)} rows, but one forecast needs horizon = {self.horizon}")
            if self.missing == "error" and not np.isfinite(values).all():
                raise_missing(values, label, columns)
        later = dict(zip(channels, self._scaled(panel, channels)))
        return [np.concatenate([row[-self.lookback :], later[i]]) for i, row in enumerate(rows)]

    def _scaled(self, panel: Panel, channels: Sequence[int]) -> list[np.ndarray]:
        """Channels of ``panel`` as vectors, each by the scale of its fitted channel."""
        columns = [c for s in panel.series for c in s.T]
        return [(c - self.mean_[i]) / self.std_[i] for c, i in zip(columns, channels)]

    def _statistics(self, rows: list[np.ndarray], name: str) -> WindowStats:
        sizes = dict(lookback=self.lookback, horizon=self.horizon, missing=self.missing, name=name)
        if len({len(r) for r in rows}) == 1:
            return WindowStats.from_series(np.stack(rows, 1), **sizes)
        total, *others = (WindowStats.from_series(r, **sizes) for r in rows)
        for part in others:
            total = total.merge(part)
        return total


class LinearFamily(Forecaster):
    """Forecasters that are one matrix a group."""

    def _publish(self) -> None:
        zero = np.zeros(self.horizon)
        weights = {g: f.weight for g, f in self.forecasters_.items()}
        biases = {g: zero if f.bias is None else f.bias for g, f in self.forecasters_.items()}
        shared = self.channel_mode == "shared"
        self.coef_ = self._each(weights) if shared else np.stack(self._each(weights))
        self.intercept_ = self._each(biases) if shared else np.stack(self._each(biases))
        self.alpha_ = self._each({g: s["alpha"] for g, s in self._settings.items()})


def check_count(value: object, name: str) -> None:
    """Raise unless ``value`` is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")


def check_alpha(alpha: object, words: str = " or 'val'") -> None:
    """Raise unless ``alpha`` is a penalty, or (unless ``words`` is empty) asks for the choice on validation."""
    number = isinstance(alpha, (int, float, np.integer, np.floating)) and not isinstance(alpha, bool)
    if not (number and 0 <= alpha < np.inf) and not (words and isinstance(alpha, str) and alpha == "val"):  # type: ignore[operator]
        raise ValueError(f"alpha must be a finite number >= 0{words}, got {alpha!r}")


def _scale(values: np.ndarray, columns: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    finite = np.where(np.isfinite(values), values, np.nan)
    if np.isnan(finite).any():
        finite = np.stack(
            [np.where(np.isnan(c), np.nanmean(c) if np.isfinite(c).any() else 0.0, c) for c in finite.T], 1
        )
    return scaler(finite, columns)
