"""What a reader sees of the records: one self-contained HTML page, and the claims tables of the READMEs.

Nothing is judged here. Records (schema 1) come with their verdicts; the caller adds to every claim ``"stale": bool`` and
to every record, where its pictures exist, ``"figures_dir"``.
"""

from __future__ import annotations

import base64
import json
import mimetypes
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from neurips26.shared import charts
from neurips26.shared.charts import number
from neurips26.shared.claims import Criterion
from neurips26.shared.runs import atomic_write_text

__all__ = ["BEGIN", "END", "Row", "build_page", "claims_table", "count", "criterion_text", "rows", "update_readme"]

BEGIN, END = "<!-- claims:begin -->", "<!-- claims:end -->"

#: Evidence in rising order: the row of a claim shows the last tier that measured it.
TIERS = ("quick", "cpu", "gpu")

#: state -> (sign, words). The sign carries the meaning where colour does not.
STATES = {
    "holds": ("●", "holds"),
    "fails": ("✕", "does not hold"),
    "undecided": ("◐", "undecided"),
    "untested": ("○", "not testable here"),
    "stale": ("↻", "stale"),
}

#: JSON has no infinity: an open end of an interval is written as a number beyond this.
_OPEN = 1e299

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One claim of one paper as it is shown: the strongest record of it, and the other tiers that measured it."""

    slug: str
    claim: Mapping[str, Any]
    record: Record
    others: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    tuning: Mapping[str, Any] | None = None

    @property
    def anchor(self) -> str:
        """The row's name in the page's address: ``claim-<slug>-<id>``."""
        return re.sub(r"[^A-Za-z0-9_-]+", "-", f"claim-{self.slug}-{self.claim['id']}")

    @property
    def state(self) -> str:
        """``holds``, ``fails``, ``undecided``, ``untested`` or ``stale``; a stale row counts as nothing else."""
        return "stale" if self.claim.get("stale") else _state(str(self.claim.get("verdict", "")))

    @property
    def identity(self) -> bool:
        """True by algebra: a test, never counted among reproduced claims."""
        return self.claim.get("scope") == "identity"

    @property
    def verdict(self) -> str:
        """The verdict with its scope: ``holds, scaled down``; a stale row says so after it."""
        words = str(self.claim.get("verdict", "undecided"))
        if words == "not testable here" and self.claim.get("reason"):
            words = f"{words}: {_first_sentence(self.claim['reason'])}"
        scope = self.claim.get("scope", "")
        text = words if _state(words) == "untested" or not scope else f"{words}, {scope}"
        return f"{text} (stale)" if self.claim.get("stale") else text

    @property
    def command(self) -> str:
        """The command that remakes this row in a checkout, whatever is installed there."""
        tier = self.record.get("tier", "quick")
        verb = "run" if tier == "quick" else "record"
        return f"uv run --package neurips26-{self.slug} --all-extras neurips26 {verb} {self.slug} --tier {tier}"

    @property
    def compared_to(self) -> str:
        """Name of the baseline that the criterion compares with; empty where there is none."""
        named = self.claim.get("compared_to") or ""
        baselines = list(self.claim.get("baselines") or {})
        return named or (baselines[0] if len(baselines) == 1 else "")

    @property
    def comparison(self) -> str:
        """What the effect is compared with: ``against FedIT``, or beside a bound the baseline's own figure, ``FedIT: 0.52``."""
        name = self.compared_to
        if not name or self.claim.get("effect") is None:
            return ""
        values = ((self.claim.get("baselines") or {}).get(name) or {}).get("values") or []
        if (self.claim.get("criterion") or {}).get("kind") == "bound" and values:
            return f"({name}: {number(sum(values) / len(values))})"
        return f"against {name}"

    @property
    def measured(self) -> str:
        """The effect with its interval, as one short text."""
        return effect_text(self.claim)

    @property
    def generated(self) -> bool:
        """No real data went into this row."""
        data = self.claim.get("data") or []
        return bool(data) and all(use.get("kind") == "generated" for use in data)


@dataclass(frozen=True)
class _Figure:
    """A picture in the page; ``source`` is a data URI."""

    name: str
    source: str
    row: Row
    number: int

    @property
    def caption(self) -> str:
        return caption(self.name)


def caption(name: str) -> str:
    """A picture's file name as words: ``snr-against-rank.png`` is "snr against rank"."""
    return re.sub(r"[-_]+", " ", Path(name).stem)


def _state(verdict: str) -> str:
    for state in ("does not hold", "holds", "not testable"):
        if verdict.startswith(state):
            return {"does not hold": "fails", "holds": "holds", "not testable": "untested"}[state]
    return "undecided"


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.;])\s|\n", text.strip(), maxsplit=1)[0].rstrip(".;")


def rows(records: Iterable[Record]) -> list[Row]:
    """One row a claim, papers by name, claims in the order in which their record lists them."""
    by_paper: dict[str, list[Record]] = {}
    for record in records:
        by_paper.setdefault(record["paper"], []).append(record)
    out = []
    for slug in sorted(by_paper):
        tuned: dict[str, Mapping[str, Any]] = {}
        found: dict[str, list[tuple[Record, Mapping[str, Any]]]] = {}
        ranked = sorted(by_paper[slug], key=lambda r: TIERS.index(r["tier"]) if r["tier"] in TIERS else -1)
        for record in ranked:
            for grid in record.get("grids") or []:
                tuned[grid["id"]] = grid
            if record["tier"] in TIERS:
                for claim in record.get("claims") or []:
                    found.setdefault(claim["id"], []).append((record, claim))
        for versions in found.values():
            # What could not be tested in a stronger tier never hides what was measured in a weaker one.
            versions = sorted(versions, key=lambda v: _state(str(v[1].get("verdict", ""))) != "untested")
            record, claim = versions[-1]
            others = tuple((r["tier"], c) for r, c in versions[:-1])
            out.append(Row(slug, claim, record, others, tuned.get(claim.get("tuned_by") or "")))
    return out


def count(rows: Iterable[Row]) -> dict[str, int]:
    """How many rows are in each state; identities are counted apart, under ``identity``."""
    counter = Counter("identity" if row.identity else row.state for row in rows)
    return {state: counter.get(state, 0) for state in (*STATES, "identity")}


def tally_text(counts: Mapping[str, int]) -> str:
    """The sentence at the top: ``3 hold, 1 does not, 2 undecided or untested here, 0 stale``."""
    n, m = counts["holds"], counts["fails"]
    open_ = counts["undecided"] + counts["untested"]
    text = (
        f"{n} {'holds' if n == 1 else 'hold'}, {m} {'does' if m == 1 else 'do'} not, {open_} undecided or untested here"
    )
    return f"{text}, {counts['stale']} stale"


def _interval(claim: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """The two ends; ``None`` for one that is missing or open (a record writes an open end as a huge number)."""
    ends = (list(claim.get("interval") or []) + [None, None])[:2]
    low, high = (None if end is None or abs(end) >= _OPEN else float(end) for end in ends)
    return low, high


def unit(claim: Mapping[str, Any]) -> str:
    """The unit as it is shown; the unit one of a pure number is not."""
    text = claim.get("unit") or ""
    return "" if text == "1" else text


def effect_text(claim: Mapping[str, Any]) -> str:
    """The effect with its interval: ``0.62× [0.55, 0.70]``, ``+1.2 points [0.4, 2.0]``; a dash where nothing was measured."""
    effect = claim.get("effect")
    if effect is None:
        return "–"
    low, high = _interval(claim)
    kind = (claim.get("criterion") or {}).get("kind", "")
    sign = "+" if kind == "difference" and effect > 0 else ""
    text = sign + number(effect)
    if kind == "ratio":
        text += "×"
    elif kind in ("difference", "bound", "equal") and unit(claim):
        text += f"\u00a0{unit(claim)}"
    if low is None and high is None:
        return text
    if low == high == effect:
        return text
    return f"{text} [{'−∞' if low is None else number(low)}, {'∞' if high is None else number(high)}]"


def criterion_text(claim: Mapping[str, Any]) -> str:
    """The criterion in words, as it was fixed before the run."""
    fields = claim.get("criterion") or {}
    try:
        text = str(Criterion(**fields))
    except (TypeError, ValueError):
        # A page over damaged records still shows what stands there.
        return _code(fields)
    return f"{text}, exact" if fields.get("deterministic") else text


# --- the page ---------------------------------------------------------------------------------------------------------


def build_page(
    records: Sequence[Record], out: str | os.PathLike[str], *, papers: Sequence[Any] = (), title: str = "neurips26"
) -> Path:
    """Write the report as one HTML file that needs no network; an older page is replaced in one step.

    Args:
        records: schema 1, any tiers and papers; each may carry ``figures_dir``, the folder of the pictures its claims name.
        out: the file to write. Building again after each paper keeps it current.
        papers: objects or mappings with ``slug, title, authors, summary, provenance`` and, for a paper that could not
            be installed, loaded or run, ``error``: it is listed as prominently as the rest.
        title: the page's title.

    Returns:
        the path of the page.
    """
    table = rows(records)
    figures = _figures(table)
    by_row: dict[str, list[_Figure]] = {}
    for figure in figures:
        by_row.setdefault(figure.row.anchor, []).append(figure)
    infos = [_paper(p) for p in papers]
    known = {p["slug"] for p in infos}
    infos += [_paper({"slug": slug}) for slug in sorted({r["paper"] for r in records} - known)]
    for info in infos:
        mine = [row for row in table if row.slug == info["slug"]]
        info["counts"] = count(mine)
        info["rows"] = len(mine)
        info["seconds"] = sum(float(row.claim.get("seconds") or 0) for row in mine)
        info["versions"] = {r["tier"]: r.get("versions") or {} for r in records if r["paper"] == info["slug"]}
    counts = count(table)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, code=_code)
    page = environment.get_template("page.html.j2").render(
        title=title,
        rows=table,
        counts=counts,
        tally=tally_text(counts),
        states=STATES,
        papers=infos,
        failed=[p for p in infos if p["error"]],
        figures=_in_turns(figures),
        figures_of=by_row,
        details={row.anchor: _detail(row) for row in table},
        machines=_machines(records),
        built=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        style=_asset("page.css"),
        script=_asset("page.js"),
    )
    path = Path(out)
    atomic_write_text(path, page)
    return path


def _asset(name: str) -> Markup:
    """Our own style sheet and script go in as they are."""
    return Markup(Path(__file__).with_name("templates").joinpath(name).read_text("utf-8"))


def _paper(info: Any) -> dict[str, Any]:
    """The light descriptor of a paper with every field present."""
    get = info.get if isinstance(info, Mapping) else lambda key, default=None: getattr(info, key, default)
    paper = {key: get(key) or "" for key in ("slug", "title", "authors", "summary", "provenance", "arxiv")}
    error = get("error")
    paper["error"] = "" if error is None else str(error)
    return paper


def _figures(table: Sequence[Row]) -> list[_Figure]:
    """All pictures that exist, each embedded once; one that is missing or unreadable is left out, not fatal."""
    figures: list[_Figure] = []
    seen = set()
    for row in table:
        folder = row.record.get("figures_dir")
        for name in row.claim.get("figures") or []:
            path = Path(folder or ".") / name
            key = (row.slug, str(path))
            if folder is None or key in seen or not path.is_file():
                continue
            seen.add(key)
            kind = mimetypes.guess_type(path.name)[0] or "image/png"
            source = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
            figures.append(_Figure(Path(name).stem, source, row, len(figures) + 1))
    return figures


def _in_turns(figures: Sequence[_Figure]) -> list[_Figure]:
    """The first picture of each paper, then the second of each: no paper fills the gallery's first screen alone."""
    turn: Counter[str] = Counter()
    order = {}
    for figure in figures:
        order[figure.number] = turn[figure.row.slug]
        turn[figure.row.slug] += 1
    return sorted(figures, key=lambda f: order[f.number])


def seed_text(seeds: Sequence[Any]) -> str:
    """Seeds with runs of neighbours shortened: ``0-9, 20``."""
    runs: list[list[int]] = []
    for seed in seeds:
        if runs and seed == runs[-1][1] + 1:
            runs[-1][1] = seed
        else:
            runs.append([seed, seed])
    return ", ".join(str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}\u2013{b}" for a, b in runs)


def _machines(records: Iterable[Record]) -> list[str]:
    """The machines that made the records, in words, without repetition."""
    lines = []
    for record in records:
        machine = record.get("machine") or {}
        gib = machine.get("memory_gib")
        parts = [
            machine.get("cpu"),
            f"{machine['cores']} cores" if machine.get("cores") else None,
            f"{number(gib)} GiB" if gib else None,
            machine.get("gpu") or "no GPU",
        ]
        lines.append(", ".join(str(p) for p in parts if p))
    return sorted(set(lines))


def _code(value: Any) -> str:
    """A setting as compact JSON with spaces, the way a person writes it."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def _detail(row: Row) -> dict[str, Any]:
    """What an opened row shows beyond the record's own fields."""
    claim, record = row.claim, row.record
    c = claim.get("criterion") or {}
    low, high = _interval(claim)
    bar = charts.interval(claim.get("effect"), low, high, *_bounds(claim))
    baselines = claim.get("baselines") or {}
    series: dict[str, list[float]] = {}
    settings: dict[str, Any] = {}
    if claim.get("ours"):
        series["ours"] = list(claim["ours"].get("values") or [])
        settings["ours"] = claim["ours"].get("setting") or {}
    for name, base in baselines.items():
        series[name] = list(base.get("values") or [])
        settings[name] = base.get("setting") or {}
    axis = " ".join(part for part in (claim.get("metric"), f"({unit(claim)})" if unit(claim) else "") if part)
    picture = charts.strip(series, axis, claim.get("seeds") or ())
    cells = claim.get("cells") or []
    curve = _cell_chart(cells, axis)
    tuning = None
    if row.tuning is not None:
        grid = row.tuning
        tuning = {
            "statement": grid.get("statement", ""),
            "chosen": grid.get("chosen") or {},
            "chart": Markup(_cell_chart(grid.get("cells") or [], "tuning score")),
            "cells": len(grid.get("cells") or []),
        }
    return {
        "bar": Markup(bar),
        "strip": Markup(picture),
        "curve": Markup(curve),
        "settings": settings,
        "criterion": criterion_text(claim),
        "effect_name": c.get("effect") or "",
        "tuning": tuning,
        "revision": str(record.get("revision") or "unknown")[:12],
        "others": [
            {"tier": tier, "verdict": other.get("verdict", ""), "effect": effect_text(other)}
            for tier, other in row.others
        ],
        "seeds": seed_text(claim.get("seeds") or ()),
        "unit": unit(claim),
        "sort_effect": claim.get("effect"),
    }


def _bounds(claim: Mapping[str, Any]) -> tuple[float | None, float | None]:
    c = claim.get("criterion") or {}
    if c.get("kind") == "equal" and c.get("tolerance") is not None:
        return -c["tolerance"], c["tolerance"]
    return c.get("at_least"), c.get("at_most")


def _cell_chart(cells: Sequence[Mapping[str, Any]], unit: str) -> str:
    """Cells as curves over the numeric factor with most levels; without such a factor as dots a method."""
    usable = [c for c in cells if isinstance(c.get("value"), (int, float)) and not isinstance(c.get("value"), bool)]
    if not usable:
        return ""
    levels: dict[str, set[float]] = {}
    for cell in usable:
        for name, value in (cell.get("factors") or {}).items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                levels.setdefault(name, set()).add(float(value))
    x_name = max(levels, key=lambda name: len(levels[name]), default="")
    if x_name and len(levels[x_name]) >= 3:
        points: dict[str, list[tuple[float, float]]] = {}
        for cell in usable:
            if x_name in (cell.get("factors") or {}):
                point = (float(cell["factors"][x_name]), float(cell["value"]))
                points.setdefault(str(cell.get("method") or "ours"), []).append(point)
        # Past eight lines a chart is a tangle: the first eight methods, the rest stays in the record.
        return charts.curves(dict(list(points.items())[:8]), x_name, unit)
    groups: dict[str, list[float]] = {}
    for cell in usable:
        groups.setdefault(str(cell.get("method") or "ours"), []).append(float(cell["value"]))
    return charts.strip(dict(list(groups.items())[:12]), unit)


# --- the tables of the READMEs ----------------------------------------------------------------------------------------


def claims_table(records: Sequence[Record]) -> str:
    """The claims as Markdown with the tally above them: one package's as a table; those of several as a table of
    counts, the claims that do not hold, and each package's own table folded away.

    A proxy never shows the paper's figure, because the two are not comparable.
    """
    table = rows(records)
    if not table:
        return "No record yet: the claims have not been measured.\n"
    by_package: dict[str, list[Row]] = {}
    for row in table:
        by_package.setdefault(row.slug, []).append(row)
    tally = f"**{tally_text(count(table))}.**"
    if len(by_package) == 1:
        commands = sorted({f"`{row.command}`" for row in table})
        return "\n".join([tally, "", *_table(table), "", f"Remade by {' and '.join(commands)}."]) + "\n"
    return "\n".join([tally, "", *_overview(by_package), "", *_failures(table), *_folded(by_package)]) + "\n"


def _overview(by_package: Mapping[str, Sequence[Row]]) -> list[str]:
    """A line a package: how many claims are in which state."""
    shown = [
        state
        for state in STATES
        if state != "stale" or any(r.state == "stale" for rs in by_package.values() for r in rs)
    ]
    head = ["Package", *(f"{STATES[state][0]} {STATES[state][1]}" for state in shown)]
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * len(shown)}"]
    for slug, mine in by_package.items():
        counts = count(mine)
        lines.append(f"| {_link(slug)} | {' | '.join(str(counts[state]) for state in shown)} |")
    return lines


def _failures(table: Sequence[Row]) -> list[str]:
    """What does not hold, each with its figure: nobody has to unfold anything to find it."""
    failed = [row for row in table if row.state == "fails"]
    if not failed:
        return []
    lines = ["Claims that do not hold (the reasons: `neurips26 explain <id>` and the package's README):", ""]
    for row in failed:
        what = f"{_link(row.slug)} `{row.claim['id']}`: {row.claim['statement']}"
        figure = f"{row.measured} {row.comparison}".strip()
        lines.append(f"- {_cell(what)}: {_cell(figure)}; asked for: {_cell(criterion_text(row.claim))}.")
    return [*lines, ""]


def _folded(by_package: Mapping[str, Sequence[Row]]) -> list[str]:
    lines = []
    for slug, mine in by_package.items():
        lines += [
            f"<details><summary>{slug}: {tally_text(count(mine))}</summary>",
            "",
            *_table(mine),
            "",
            "</details>",
            "",
        ]
    return lines[:-1]


def _table(table: Sequence[Row]) -> list[str]:
    """A row a claim, in the order of the record."""
    lines = ["| Claim | Paper | Measured here | Criterion | Verdict |", f"|{'---|' * 5}"]
    for row in table:
        claim = row.claim
        tags = " *(generated data)*" if row.generated else ""
        cells = [
            f"{claim['statement']} (`{claim['id']}`)",
            "not comparable" if claim.get("scope") == "proxy" else claim.get("paper_value") or "–",
            f"{row.measured} {row.comparison}".strip() + tags,
            criterion_text(claim),
            f"{STATES[row.state][0]} {'test: ' if row.identity else ''}{row.verdict}",
        ]
        lines.append("| " + " | ".join(_cell(c) for c in cells) + " |")
    return lines


def _link(slug: str) -> str:
    return f"[{slug}](packages/{slug}/README.md)"


def _cell(text: Any) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def readme_section(records: Sequence[Record], base: Path, pictures: int = 1) -> str:
    """What stands between the marks of a README: the table and the first ``pictures`` pictures of the records."""
    text = claims_table(records)
    shown = []
    for row in rows(records):
        folder = row.record.get("figures_dir")
        for name in row.claim.get("figures") or []:
            if folder is not None and (Path(folder) / name).is_file():
                target = Path(os.path.relpath(Path(folder).resolve() / name, base.resolve())).as_posix()
                link = f"![{row.slug}: {caption(name)}]({target})"
                if link not in shown:
                    shown.append(link)
    return "\n".join([text, *(f"{link}\n" for link in shown[:pictures])])


def update_readme(path: str | os.PathLike[str], records: Sequence[Record], *, pictures: int = 1) -> bool:
    """Put the claims table between the marks of the README at ``path``; say whether the file changed.

    Raises:
        ValueError: the two marks are not there exactly once and in order; the file is left as it is.
    """
    readme = Path(path)
    text = readme.read_text("utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"{readme}: expected one line {BEGIN} and after it one line {END}")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    new = f"{before}{BEGIN}\n{readme_section(records, readme.parent, pictures)}{END}{after}"
    if new == text:
        return False
    atomic_write_text(readme, new)
    return True
