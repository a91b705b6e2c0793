import math
import xml.etree.ElementTree as ET

import pytest

from neurips26.shared import charts


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.61234, "0.612"),
        (12.0, "12"),
        (1234567.0, "1\u202f234\u202f567"),
        (-0.5, "−0.500"),
        (0, "0"),
        (3.2e-7, "3.2·10⁻⁷"),
        (5e9, "5·10⁹"),
        (math.inf, "∞"),
        (None, "–"),
    ],
)
def test_number_reads_as_printed(value, text):
    assert charts.number(value) == text


def test_ticks_are_round_and_inside():
    assert charts.ticks(0.0, 1.0) == pytest.approx([0, 0.25, 0.5, 0.75, 1.0])
    assert charts.ticks(1.0, 1000.0, log=True) == pytest.approx([1, 3, 10, 30, 100, 300, 1000][:: math.ceil(7 / 6)])
    assert charts.ticks(3.0, 3.0) == [3.0]


def _marks(svg, tag, css):
    root = ET.fromstring(svg)
    return [e for e in root.iter() if e.tag.endswith(tag) and css in e.get("class", "").split()]


def test_strip_has_one_dot_a_seed_and_a_mean_a_method():
    svg = charts.strip({"ours": [1.0, 2.0, 3.0], "base <&>": [4.0, 5.0]}, "s", seeds=[7, 8, 9])
    assert len(_marks(svg, "circle", "seed")) == 5
    means = _marks(svg, "line", "mean")
    assert len(means) == 2
    x = [float(c.get("cx")) for c in _marks(svg, "circle", "s0")]
    assert float(means[0].get("x1")) == pytest.approx(x[1], abs=0.02)  # the mean of 1, 2, 3 is where 2 stands
    assert "ours, seed 8: 2" in svg


def test_strip_of_nothing_is_empty():
    assert charts.strip({}) == ""
    assert charts.strip({"ours": []}) == ""


def test_curves_join_means_in_order_of_x():
    points = [(10.0, 2.0), (1.0, 1.0), (10.0, 4.0), (2.0, 1.5)]
    svg = charts.curves({"ours": points}, "N", "seconds")
    (line,) = _marks(svg, "polyline", "curve")
    xs = [float(pair.split(",")[0]) for pair in line.get("points").split()]
    assert len(xs) == 3
    assert xs == sorted(xs)
    assert len(_marks(svg, "circle", "seed")) == 4


def test_wide_positive_range_is_drawn_in_logarithms():
    svg = charts.strip({"ours": [1.0, 10.0, 100.0]})
    a, b, c = sorted(float(e.get("cx")) for e in _marks(svg, "circle", "seed"))
    assert b - a == pytest.approx(c - b, abs=0.05)


def test_interval_lies_in_its_band():
    svg = charts.interval(0.6, 0.5, 0.7, at_most=0.75)
    (band,) = _marks(svg, "rect", "band")
    (line,) = _marks(svg, "line", "range")
    right = float(band.get("x")) + float(band.get("width"))
    assert float(line.get("x2")) < right
    violating = charts.interval(0.9, 0.8, 1.0, at_most=0.75)
    (band,) = _marks(violating, "rect", "band")
    (line,) = _marks(violating, "line", "range")
    assert float(line.get("x1")) > float(band.get("x")) + float(band.get("width"))


def test_interval_with_open_end_reaches_the_frame():
    svg = charts.interval(1.0, None, 2.0, at_least=0.5, width=100)
    (line,) = _marks(svg, "line", "range")
    assert float(line.get("x1")) == 0


def test_many_values_are_drawn_as_quartiles_and_means():
    many = [k / 500 for k in range(500)]
    assert charts.strip({"a": many}).count("<circle") == 0
    assert "quartiles 0.250 and 0.748" in charts.strip({"a": many})
    lines = charts.curves({"a": [(k % 5, v) for k, v in enumerate(many)]}, "x")
    assert lines.count("<circle") == 5
