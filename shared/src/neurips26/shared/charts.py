"""Small inline SVG charts of the report: an interval against its criterion, dots a seed, a value over a factor.

Colours come from the page's style sheet (classes ``s0``, ``s1``, …), so the same chart is right in light and in dark.
Every mark carries a ``<title>``, so its exact value can be read by hovering and by a screen reader.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

__all__ = ["curves", "interval", "number", "strip", "ticks"]

Points = Sequence[tuple[float, float]]

#: More single values than this in one chart are a blot, and megabytes: their means and quartiles are drawn instead.
_DOTS = 240

#: A positive axis whose ends differ by more than this factor is drawn in logarithms.
_LOG_FROM = 30.0


def number(value: float | int | None, digits: int = 3) -> str:
    """A figure as a person would print it: ``digits`` significant, no ``1e+06``, a true minus sign."""
    if value is None:
        return "–"
    x = float(value)
    if math.isnan(x):
        return "not a number"
    if math.isinf(x):
        return "∞" if x > 0 else "−∞"
    if x == 0:
        return "0"
    exponent = math.floor(math.log10(abs(x)) + 1e-12)
    if exponent < -4 or exponent >= 7:
        mantissa = f"{x / 10**exponent:.{digits - 1}f}"
        if "." in mantissa:
            mantissa = mantissa.rstrip("0").rstrip(".")
        return f"{mantissa}·10{str(exponent).translate(_SUPERSCRIPT)}".replace("-", "−")
    text = f"{x:,.{max(0, digits - 1 - exponent)}f}"
    if "." in text and float(value).is_integer():
        text = text.split(".")[0]
    return text.replace(",", "\u202f").replace("-", "−")


_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def ticks(low: float, high: float, log: bool = False, about: int = 4) -> list[float]:
    """Round positions inside ``[low, high]``: 1-2-5 steps, or powers of ten (with 2 and 5 when they are few)."""
    if log:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        steps = (1,) if last - first > 3 else (1, 2, 5) if last - first <= 1 else (1, 3)
        marks = [s * 10.0**e for e in range(first, last + 1) for s in steps]
        inside = [m for m in marks if low * 0.999 <= m <= high * 1.001]
        skip = max(1, math.ceil(len(inside) / (about + 2)))
        return inside[::skip]
    if not high > low:
        return [low]
    raw = (high - low) / about
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(m * base for m in (1, 2, 2.5, 5, 10) if m * base >= raw * 0.999)
    start = math.ceil(low / step - 1e-9)
    return [i * step for i in range(start, math.floor(high / step + 1e-9) + 1)]


def _label(tick: float) -> str:
    text = number(tick, 4)
    return text.rstrip("0").rstrip(".") if "." in text and "·" not in text else text


class _Axis:
    """Maps values to pixels, linearly or in logarithms, with a margin so that no dot touches the frame."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        finite = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
        low, high = min(finite), max(finite)
        self.log = low > 0 and high / low > _LOG_FROM
        if low == high:
            spread = abs(low) * 0.5 or 1.0
            low, high = low - spread, high + spread
        if self.log:
            low, high = low / 1.15, high * 1.15
        else:
            margin = (high - low) * 0.06
            low, high = low - margin, high + margin
        self.low, self.high, self.start, self.end = low, high, start, end

    def __call__(self, value: float) -> float:
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low) if value > 0 else 0.0
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self) -> list[float]:
        return ticks(self.low, self.high, self.log)


def _svg(width: float, height: float, label: str, body: Sequence[str], css: str) -> str:
    return (
        f'<svg class="chart {css}" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
        f'aria-label="{escape(label, quote=True)}">{"".join(body)}</svg>'
    )


def interval(
    effect: float | None,
    low: float | None,
    high: float | None,
    at_least: float | None = None,
    at_most: float | None = None,
    width: int = 132,
) -> str:
    """The effect with its interval, over the band that satisfies the criterion.

    An open end (``None``) runs to the frame with an arrow's look: the line simply meets the edge.
    """
    if effect is None:
        return ""
    height = 22
    marks = [v for v in (effect, low, high, at_least, at_most) if v is not None and math.isfinite(v)]
    axis = _Axis(marks, 5, width - 5)
    axis.log = False if min(marks) <= 0 else axis.log
    left = 0.0 if at_least is None else axis(at_least)
    right = float(width) if at_most is None else axis(at_most)
    body = []
    if (at_least is not None or at_most is not None) and right > left:
        body.append(f'<rect class="band" x="{left:g}" y="2" width="{right - left:g}" height="{height - 4}" rx="2"/>')
    for bound in (at_least, at_most):
        if bound is not None:
            body.append(f'<line class="bound" x1="{axis(bound)}" x2="{axis(bound)}" y1="1" y2="{height - 1}"/>')
    x1 = 0 if low is None or not math.isfinite(low) else axis(low)
    x2 = width if high is None or not math.isfinite(high) else axis(high)
    body.append(f'<line class="range" x1="{x1}" x2="{x2}" y1="{height / 2:g}" y2="{height / 2:g}"/>')
    body.append(f'<circle class="dot" cx="{axis(effect)}" cy="{height / 2:g}" r="3.4"/>')
    label = f"effect {number(effect)}, interval {number(low)} to {number(high)}"
    return _svg(width, height, label, body, "interval")


def strip(series: Mapping[str, Sequence[float]], unit: str = "", seeds: Sequence[int] = (), width: int = 620) -> str:
    """One row a method, one dot a seed (quartiles where they are many), a tick at the mean, one horizontal axis."""
    series = {name: [v for v in values if v is not None] for name, values in series.items()}
    series = {name: values for name, values in series.items() if values}
    if not series:
        return ""
    row, top, bottom = 30, 6, 30
    gutter = min(210, 14 + int(6.6 * max(len(name) for name in series)))
    height = top + row * len(series) + bottom
    axis = _Axis([v for values in series.values() for v in values], gutter, width - 64)
    floor = top + row * len(series)
    crowded = sum(map(len, series.values())) > _DOTS
    body = []
    for tick in axis.ticks():
        x = axis(tick)
        body.append(f'<line class="rule" x1="{x}" x2="{x}" y1="{top}" y2="{floor}"/>')
        body.append(f'<text class="tick" x="{x}" y="{floor + 13}" text-anchor="middle">{_label(tick)}</text>')
    if unit:
        scale = f"{unit}, log scale" if axis.log else unit
        body.append(
            f'<text class="tick unit" x="{width - 64}" y="{height - 3}" text-anchor="end">{escape(scale)}</text>'
        )
    for index, (name, values) in enumerate(series.items()):
        y = top + row * index + row / 2
        shown = name if len(name) <= 30 else name[:29] + "…"
        body.append(
            f'<text class="name" x="{gutter - 10}" y="{y + 4:g}" text-anchor="end">{escape(shown)}'
            f"<title>{escape(name)}</title></text>"
        )
        mean = sum(values) / len(values)
        body.append(
            f'<line class="mean s{index % 8}" x1="{axis(mean)}" x2="{axis(mean)}" y1="{y - 10:g}" y2="{y + 10:g}"/>'
        )
        if crowded:
            body += _box(values, y, index, axis, f"{name}: {len(values)} values")
            values = []
        for k, value in enumerate(values):
            # Neighbouring seeds sit at different heights, so equal values stay countable.
            dy = (k % 5 - 2) * 2.6 if len(values) > 1 else 0.0
            seed = seeds[k] if k < len(seeds) else k
            tip = f"{name}, seed {seed}: {number(value, 5)} {unit}".strip()
            body.append(
                f'<circle class="seed s{index % 8}" cx="{axis(value)}" cy="{y + dy:g}" r="3.2">'
                f"<title>{escape(tip)}</title></circle>"
            )
        body.append(f'<text class="value" x="{width - 56}" y="{y + 4:g}">{number(mean)}</text>')
    label = "; ".join(
        f"{name}: {len(values)} values, mean {number(sum(values) / len(values))}" for name, values in series.items()
    )
    return _svg(width, height, label, body, "strip")


def _box(values: Sequence[float], y: float, index: int, axis: _Axis, name: str) -> list[str]:
    """Range and quartiles of many values: a thin line and a thick one."""
    ordered = sorted(values)
    low, first, third, high = (ordered[round(q * (len(ordered) - 1))] for q in (0.0, 0.25, 0.75, 1.0))
    tip = f"{name}, quartiles {number(first)} and {number(third)}, from {number(low)} to {number(high)}"
    return [
        f'<line class="mean s{index % 8}" style="stroke-width:1" x1="{axis(low)}" x2="{axis(high)}" y1="{y:g}" y2="{y:g}"/>',
        f'<line class="mean s{index % 8}" style="stroke-width:7;stroke-opacity:.45" x1="{axis(first)}" x2="{axis(third)}" '
        f'y1="{y:g}" y2="{y:g}"><title>{escape(tip)}</title></line>',
    ]


def curves(
    series: Mapping[str, Points], x_name: str = "", y_name: str = "", width: int = 620, height: int = 250
) -> str:
    """One line a method through its means at each ``x``, with the single values as dots (the means where they are many)."""
    series = {name: sorted(points) for name, points in series.items() if points}
    if not series:
        return ""
    crowded = sum(map(len, series.values())) > _DOTS
    left, right, top, bottom = 60, width - 150, 12, height - 36
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points]
    x_axis, y_axis = _Axis(xs, left, right), _Axis(ys, bottom, top)
    body = []
    for tick in y_axis.ticks():
        y = y_axis(tick)
        body.append(f'<line class="rule" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>')
        body.append(f'<text class="tick" x="{left - 8}" y="{y + 4:g}" text-anchor="end">{_label(tick)}</text>')
    for tick in x_axis.ticks():
        x = x_axis(tick)
        body.append(f'<line class="rule" x1="{x}" x2="{x}" y1="{bottom}" y2="{bottom + 4}"/>')
        body.append(f'<text class="tick" x="{x}" y="{bottom + 16}" text-anchor="middle">{_label(tick)}</text>')
    x_label = x_name + (" (log)" if x_axis.log else "")
    y_label = y_name + (" (log)" if y_axis.log else "")
    body.append(f'<text class="tick unit" x="{right}" y="{height - 4}" text-anchor="end">{escape(x_label)}</text>')
    body.append(f'<text class="tick unit" x="{left - 50}" y="{height - 4}">{escape(y_label)}</text>')
    ends = []
    for index, (name, points) in enumerate(series.items()):
        by_x: dict[float, list[float]] = {}
        for x, y in points:
            by_x.setdefault(x, []).append(y)
        means = [(x, sum(values) / len(values)) for x, values in by_x.items()]
        path = " ".join(f"{x_axis(x)},{y_axis(y)}" for x, y in means)
        body.append(f'<polyline class="curve s{index % 8}" points="{path}"/>')
        for x, y in means if crowded else points:
            tip = f"{name}, {x_name} {number(x)}: {number(y, 5)}"
            body.append(
                f'<circle class="seed s{index % 8}" cx="{x_axis(x)}" cy="{y_axis(y)}" r="2.6">'
                f"<title>{escape(tip)}</title></circle>"
            )
        ends.append((y_axis(means[-1][1]), index, name))
    # Names stand at the ends of their lines, pushed apart so that none covers another.
    y_free = -math.inf
    for y, index, name in sorted(ends):
        y_free = max(y, y_free + 14)
        shown = name if len(name) <= 22 else name[:21] + "…"
        body.append(
            f'<text class="name end s{index % 8}" x="{right + 8}" y="{y_free + 4:g}">{escape(shown)}'
            f"<title>{escape(name)}</title></text>"
        )
    return _svg(width, height, f"{y_name} over {x_name} for {', '.join(series)}", body, "curves")
