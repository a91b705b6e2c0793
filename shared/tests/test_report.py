import base64
import re
from html.parser import HTMLParser

import pytest

from neurips26.shared import report

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def claim(id, verdict="holds", **changes):
    row = {
        "id": id,
        "statement": f"Statement of {id}",
        "paper_value": "17.9x (H200)",
        "scope": "scaled down",
        "data": [{"name": "mnist", "kind": "real"}],
        "metric": "CPU seconds",
        "unit": "s",
        "direction": "lower",
        "criterion": {"kind": "ratio", "at_most": 0.75},
        "ours": {"setting": {"tile": 256}, "values": [0.5, 0.6, 0.7, 0.6, 0.6]},
        "baselines": {"lloyd": {"setting": {"n_init": 1}, "values": [1.0, 1.1, 0.9, 1.0, 1.0]}},
        "compared_to": "lloyd",
        "seeds": [20000, 20001, 20002, 20003, 20004],
        "cells": [],
        "interval": [0.55, 0.68],
        "effect": 0.61,
        "verdict": verdict,
        "reason": "" if verdict == "holds" else "because of x; tried y.",
        "figures": [],
        "seconds": 3.0,
        "tuned_by": None,
        "notes": [],
        "stale": False,
    }
    return row | changes


def record(paper, tier="cpu", claims=(), **changes):
    base = {
        "schema": 1,
        "paper": paper,
        "tier": tier,
        "revision": "0123456789abcdef",
        "dirty": False,
        "created": "2026-01-01T00:00:00+00:00",
        "provenance": "code",
        "hashes": {"source": "", "config": "", "data": {}},
        "machine": {"cpu": "A CPU", "cores": 2, "memory_gib": 24, "gpu": None},
        "versions": {"python": "3.11.7"},
        "claims": list(claims),
    }
    return base | changes


class Page(HTMLParser):
    """Tags of a page with their attributes, and every address that it would load."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.loads, self.depth = [], [], 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append((tag, attrs))
        self.loads += [attrs[k] for k in ("src", "href", "srcset", "poster") if attrs.get(k)]

    def of(self, tag, css):
        return [a for t, a in self.tags if t == tag and css in (a.get("class") or "").split()]


@pytest.fixture
def records(tmp_path):
    figures = tmp_path / "figures"
    figures.mkdir()
    (figures / "a.png").write_bytes(PIXEL)
    kmeans = record(
        "flash-kmeans",
        claims=[
            claim("speed", figures=["a.png", "gone.png"], tuned_by="tile"),
            claim("memory", "does not hold", effect=0.9, interval=[0.8, 1.0]),
            claim("growth", "undecided"),
        ],
        figures_dir=str(figures),
    )
    tune = record(
        "flash-kmeans",
        "tune",
        grids=[
            {
                "id": "tile",
                "statement": "tile size",
                "cells": [{"factors": {"tile": t}, "seed": 1, "method": "ours", "value": float(t)} for t in (1, 2, 4)],
                "chosen": {"ours": {"tile": 256}},
                "seconds": 1.0,
            }
        ],
    )
    quick = record("flash-kmeans", "quick", claims=[claim("speed", "undecided", effect=0.7, interval=[0.6, 0.9])])
    other = record(
        "faust",
        claims=[
            claim("gpu", "not testable here", reason="no GPU", effect=None, interval=None, ours=None, baselines={}),
            claim("algebra", scope="identity"),
            claim("old", stale=True),
            claim("near", scope="proxy", data=[{"name": "g", "kind": "generated"}]),
        ],
    )
    return [kmeans, tune, quick, other]


def test_rows_take_the_strongest_tier_and_keep_the_other(records):
    rows = report.rows(records)
    assert [(r.slug, r.claim["id"]) for r in rows][-3:] == [("flash-kmeans", i) for i in ("speed", "memory", "growth")]
    speed = rows[-3]
    assert speed.record["tier"] == "cpu"
    assert [tier for tier, _ in speed.others] == ["quick"]
    assert speed.tuning["chosen"] == {"ours": {"tile": 256}}


def test_untestable_gpu_row_never_hides_a_measured_one():
    rows = report.rows(
        [
            record("p", "cpu", [claim("a")]),
            record("p", "gpu", [claim("a", "not testable here", effect=None, interval=None)]),
        ]
    )
    assert len(rows) == 1
    assert rows[0].state == "holds"


def test_every_claim_is_counted_once_and_identities_apart(records):
    counts = report.count(report.rows(records))
    assert counts == {"holds": 2, "fails": 1, "undecided": 1, "untested": 1, "stale": 1, "identity": 1}
    assert report.tally_text(counts) == "2 hold, 1 does not, 2 undecided or untested here, 1 stale"


def test_page_is_self_contained_and_complete(records, tmp_path):
    path = report.build_page(records, tmp_path / "out" / "index.html")
    text = path.read_text("utf-8")
    page = Page(text)
    assert all(address.startswith(("data:", "#")) for address in page.loads), page.loads
    assert "http://" not in text
    assert "https://" not in text
    assert len(page.of("tbody", "claim")) == 7
    assert "2 hold, 1 does not, 2 undecided or untested here, 1 stale" in text
    assert base64.b64encode(PIXEL).decode() in text
    assert len(page.of("figure", "picture")) == 1  # the missing picture is left out
    assert "uv run --package neurips26-flash-kmeans --all-extras neurips26 record flash-kmeans --tier cpu" in text
    assert "because of x; tried y." in text
    assert "&lt;svg" not in text
    # Ten dots a comparison of two methods with five seeds, six comparisons; three more in the tuning grid.
    assert len(page.of("circle", "seed")) == 6 * 10 + 3


def test_failed_paper_stands_on_the_page(records, tmp_path):
    papers = [{"slug": "tempo", "title": "Tempo", "error": "uv sync: no network <offline>"}]
    text = report.build_page(records, tmp_path / "index.html", papers=papers).read_text("utf-8")
    assert "1 paper did not install or run" in text
    assert "uv sync: no network &lt;offline&gt;" in text


def test_page_without_any_record(tmp_path):
    text = report.build_page([], tmp_path / "index.html").read_text("utf-8")
    assert "No record yet" in text
    assert "0 hold, 0 do not, 0 undecided or untested here, 0 stale" in text


def test_page_escapes_what_a_record_says(tmp_path):
    nasty = claim("x", statement="<script>alert(1)</script>", reason='"quoted" & <b>')
    text = report.build_page([record("p", claims=[nasty])], tmp_path / "i.html").read_text("utf-8")
    assert "<script>alert" not in text
    assert "<b>" not in text.split("</header>")[1].replace("<b>7", "")


def test_cells_become_curves(tmp_path):
    cells = [
        {"factors": {"N": n}, "seed": s, "method": m, "value": float(n)}
        for n in (10, 100, 1000)
        for s in range(2)
        for m in ("ours", "lloyd")
    ]
    row = claim(
        "slope",
        ours=None,
        baselines={},
        compared_to=None,
        cells=cells,
        criterion={"kind": "slope", "at_most": 1.1, "effect": "m.f:time_slope"},
    )
    page = Page(report.build_page([record("p", claims=[row])], tmp_path / "i.html").read_text("utf-8"))
    assert len(page.of("polyline", "curve")) == 2
    assert len(page.of("circle", "seed")) == 12


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "0.610× [0.550, 0.680]"),
        ({"criterion": {"kind": "difference", "at_least": 0.0}, "unit": "points"}, "+0.610\u00a0points [0.550, 0.680]"),
        ({"criterion": {"kind": "bound", "at_most": 1.0}, "interval": [-1e300, 0.7]}, "0.610\u00a0s [−∞, 0.700]"),
        ({"criterion": {"kind": "bound", "at_most": 1.0}, "unit": "1"}, "0.610 [0.550, 0.680]"),
        ({"interval": [0.61, 0.61]}, "0.610×"),
        ({"effect": None, "interval": None}, "–"),
    ],
)
def test_effect_text(changes, text):
    assert report.effect_text(claim("a", **changes)) == text


def test_table_tags_and_hides_what_is_not_comparable(records):
    table = report.claims_table(records)
    lines = {line.split(" (`")[0].removeprefix("| "): line for line in table.splitlines() if line.startswith("| State")}
    assert "not comparable" in lines["Statement of near"]
    assert "17.9x" not in lines["Statement of near"]
    assert "generated data" in lines["Statement of near"]
    assert "not testable here: no GPU" in lines["Statement of gpu"]
    assert "test: holds, identity" in lines["Statement of algebra"]
    assert "(stale)" in lines["Statement of old"]
    assert "✕ does not hold, scaled down" in lines["Statement of memory"]
    assert {line.count("|") for line in lines.values()} == {6}


def test_table_of_several_papers_counts_and_lists_what_does_not_hold(records):
    table = report.claims_table(records)
    counts = [line for line in table.splitlines() if line.startswith("| [")]
    assert len(counts) == len({r["paper"] for r in records})
    [failure] = [line for line in table.splitlines() if line.startswith("- [")]
    assert "Statement of memory" in failure
    assert "asked for" in failure
    assert table.count("<details>") == table.count("</details>") == len(counts)


def test_baseline_beside_a_bound_shows_its_own_figure():
    row = claim("a", criterion={"kind": "bound", "at_least": 0.9}, unit="1", effect=0.95, interval=[0.9, 1.0])
    row |= {"compared_to": "FedIT", "baselines": {"FedIT": {"setting": {}, "values": [0.5, 0.7]}}}
    [shown] = report.rows([record("p", claims=[row])])
    assert shown.comparison == "(FedIT: 0.600)"
    assert shown.measured == "0.950 [0.900, 1]"


def test_neighbouring_seeds_are_shortened():
    assert report.seed_text([3, 4, 5, 9, 11, 12]) == "3\u20135, 9, 11, 12"
    assert report.seed_text([]) == ""


def test_table_of_one_paper_names_its_command(records):
    table = report.claims_table(records[:2])
    assert "Package" not in table
    assert "`uv run --package neurips26-flash-kmeans --all-extras neurips26 record flash-kmeans --tier cpu`" in table


def test_bars_in_text_do_not_break_the_table():
    table = report.claims_table([record("p", claims=[claim("a", statement="|x| <= 1\nalways")])])
    assert r"\|x\| <= 1 always" in table


def test_readme_is_filled_between_its_marks_once(records, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"# T\n\n{report.BEGIN}\nold\n{report.END}\n\nafter\n")
    assert report.update_readme(readme, records[:2])
    text = readme.read_text("utf-8")
    assert text.startswith("# T\n\n")
    assert text.endswith("\n\nafter\n")
    assert "\nold\n" not in text
    assert re.search(r"!\[flash-kmeans: a\]\(figures/a\.png\)", text)
    assert not report.update_readme(readme, records[:2])


@pytest.mark.parametrize("text", ["nothing", f"{report.END} {report.BEGIN}", report.BEGIN * 2 + report.END])
def test_readme_without_marks_is_left_alone(records, tmp_path, text):
    readme = tmp_path / "README.md"
    readme.write_text(text)
    with pytest.raises(ValueError, match=r"README\.md: expected one line <!-- claims:begin -->"):
        report.update_readme(readme, records)
    assert readme.read_text() == text


def test_failed_build_leaves_the_old_page(tmp_path):
    page = report.build_page([], tmp_path / "index.html")
    before = page.read_text("utf-8")
    with pytest.raises(KeyError):
        report.build_page([{"tier": "cpu"}], page)
    assert page.read_text("utf-8") == before
