"""The forms a series may come in, and forecasts given back in the same form.

``(T,)`` or ``(T, C)`` arrays, a wide pandas frame with a DatetimeIndex, or a long frame ``unique_id, ds, y`` in pandas or
polars (each id a series of its own, lengths may differ).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from .stats import as_series

LONG = ("unique_id", "ds", "y")


@dataclass
class Panel:
    """Series of one input.

    Attributes:
        kind: ``"vector"``, ``"array"``, ``"wide"``, ``"long"`` or ``"polars"``.
        series: arrays ``(T_i, C_i)``; one for all forms but the long ones, which have one per id.
        names: channel names over all series, in order.
        index: the time index of each series, or ``None``.
        named: whether the names say which channel is which (columns of a frame, ids); those of arrays are positions.
    """

    kind: str
    series: list[np.ndarray]
    names: list[Any]
    index: list[pd.Index | None]
    named: bool = True

    def parts(self, name: str) -> Iterator[tuple[str, np.ndarray, list[Any]]]:
        """Every series with what an error calls it and its columns; ``name`` is the argument that the panel came from."""
        for i, values in enumerate(self.series):
            if self.kind in ("long", "polars"):
                yield f"{name}: series {self.names[i]!r}", values, ["y"]
            else:
                yield name, values, self.names

    def rebuild(self, forecasts: Sequence[np.ndarray], horizon: int) -> Any:
        """Forecasts ``(H, C_i)`` per series in the form of the input."""
        if self.kind == "vector":
            return forecasts[0][:, 0]
        if self.kind == "array":
            return forecasts[0]
        if self.kind == "wide":
            return pd.DataFrame(forecasts[0], index=_future(self.index[0], horizon), columns=self.names)
        parts = [
            pd.DataFrame({"unique_id": name, "ds": _future(index, horizon), "y": values[:, 0]})
            for name, index, values in zip(self.names, self.index, forecasts)
        ]
        frame = pd.concat(parts, ignore_index=True)
        if self.kind == "polars":
            import polars

            return polars.from_pandas(frame)
        return frame


def parse(y: object, name: str = "y") -> Panel:
    """Recognise and check an input.

    Raises:
        ValueError: no channel, wrong columns, duplicate, unordered or irregular time stamps.
        TypeError: values that are not real numbers, an unknown type.
    """
    polars_frame = type(y).__module__.partition(".")[0] == "polars"
    if polars_frame:
        frame = pd.DataFrame({c: y[c].to_list() for c in y.columns})  # type: ignore[index, attr-defined]
        return _long(frame, name, "polars")
    if isinstance(y, pd.Series):  # one channel, whatever it is called
        panel = _wide(y.to_frame(name=y.name if y.name is not None else "y"), name)
        panel.named = False
        return panel
    if isinstance(y, pd.DataFrame):
        if "unique_id" in y.columns or "ds" in y.columns:
            return _long(y, name, "long")
        return _wide(y, name)
    values = as_series(y, name)
    kind = "vector" if np.ndim(y) == 1 else "array"  # type: ignore[arg-type]
    return Panel(kind, [values], list(range(values.shape[1])), [None], named=False)


def _wide(frame: pd.DataFrame, name: str) -> Panel:
    if not isinstance(frame.index, (pd.DatetimeIndex, pd.RangeIndex)):
        raise ValueError(
            f"{name}: a wide frame needs a DatetimeIndex (or the default RangeIndex), got {type(frame.index).__name__}"
        )
    if frame.columns.has_duplicates:
        raise ValueError(f"{name}: duplicate column {frame.columns[frame.columns.duplicated()][0]!r}")
    if isinstance(frame.index, pd.RangeIndex) and frame.index.step < 0:
        raise ValueError(
            f"{name}: the index goes back from {frame.index[0]} to {frame.index[-1]}; sort the rows by time"
        )
    if isinstance(frame.index, pd.DatetimeIndex):
        _check_times(frame.index, name)
    text = [c for c in frame.columns if frame[c].dtype.kind not in "biuf" and not _numeric(frame[c])]
    if text:
        raise TypeError(f"{name}: column {text[0]!r} does not hold numbers")
    return Panel("wide", [as_series(frame.to_numpy(dtype=float), name)], list(frame.columns), [frame.index])


def _numeric(column: pd.Series) -> bool:
    try:
        column.astype(float)
    except (TypeError, ValueError):
        return False
    return True


def _long(frame: pd.DataFrame, name: str, kind: str) -> Panel:
    missing = [c for c in LONG if c not in frame.columns]
    if missing:
        raise ValueError(f"{name}: a long frame needs the columns {', '.join(LONG)}; {', '.join(missing)} is missing")
    if frame["unique_id"].isna().any():
        raise ValueError(f"{name}: unique_id is missing at row {int(frame['unique_id'].isna().to_numpy().argmax())}")
    series, names, index = [], [], []
    for unique_id, part in frame.groupby("unique_id", sort=False):
        times = pd.Index(part["ds"])
        if times.dtype == object or pd.api.types.is_string_dtype(times):
            try:
                times = pd.DatetimeIndex(pd.to_datetime(times))
            except (ValueError, TypeError) as error:
                raise ValueError(f"{name}: ds of series {unique_id!r} does not hold time stamps ({error})") from error
        _check_times(times, f"{name}: series {unique_id!r}")
        series.append(as_series(part["y"].to_numpy(), f"{name}: series {unique_id!r}"))
        names.append(unique_id)
        index.append(times)
    if not series:
        raise ValueError(f"{name}: the frame has no rows")
    return Panel(kind, series, names, index)


def _check_times(times: pd.Index, name: str) -> None:
    if times.hasnans:
        raise ValueError(f"{name}: the time stamp is missing at row {int(times.isna().argmax())}")
    if times.has_duplicates:
        raise ValueError(f"{name}: duplicate time stamp {times[times.duplicated()][0]}")
    if not times.is_monotonic_increasing:
        steps = np.diff(times.to_numpy())
        raise ValueError(f"{name}: time stamps go back at row {int(np.argmax(steps < steps.dtype.type(0))) + 1}")
    if len(times) >= 3 and frequency(times) is None:
        raise ValueError(f"{name}: time stamps are irregular (no single frequency fits); resample first")


def frequency(times: pd.Index) -> Any:
    """The step between stamps: a pandas offset, an integer step, or ``None`` where no single one fits."""
    if not isinstance(times, pd.DatetimeIndex):
        steps = np.unique(np.diff(times.to_numpy()))
        return int(steps[0]) if len(steps) == 1 else None
    if times.freq is not None:
        return times.freq
    if len(times) < 3:
        return pd.tseries.frequencies.to_offset(times[1] - times[0]) if len(times) == 2 else None
    found = _infer(times)
    if found is not None:
        return pd.tseries.frequencies.to_offset(found)
    # Across a change to summer time the wall clock jumps but the instants are regular.
    if times.tz is not None:
        found = _infer(times.tz_convert("UTC"))
    return pd.tseries.frequencies.to_offset(found) if found is not None else None


def _infer(times: pd.DatetimeIndex) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas announces that it will return an offset; both are understood here
        return pd.infer_freq(times)


def _future(index: pd.Index | None, horizon: int) -> pd.Index:
    assert index is not None
    step = frequency(index)
    if isinstance(index, pd.DatetimeIndex):
        return pd.date_range(index[-1], periods=horizon + 1, freq=step)[1:]
    step = 1 if step is None else step
    return pd.Index(index[-1] + step * np.arange(1, horizon + 1))
