"""One self-contained page about a certificate, for people who will not open the JSON."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterable
from html import escape
from pathlib import Path

from neurips26.knn_certificate.certificate import Certificate, verify
from neurips26.shared.arrays import check_real
from neurips26.shared.runs import atomic_write_text

__all__ = ["write_page"]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .2rem .8rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; }
.bound { font-size: 2.2rem; margin: 0; } .bad { color: #a11; } .good { color: #175; } img { max-width: 100%; }
"""


def write_page(certificate: Certificate, path: str | Path, test_error: float | None = None) -> None:
    """Write the page: bound, terms with counts and limits, picture, assumptions, notes, all classes, the recomputation.

    Args:
        certificate: what to show.
        path: the HTML file.
        test_error: drawn beside the bound where it is known.

    Raises:
        ValueError: a test error outside 0..1.
    """
    if test_error is not None:
        check_real(test_error, "test_error", minimum=0.0, maximum=1.0)
    c = certificate
    terms = {n: t for n in ("geometry", "disagreement", "joint", "stability") if (t := getattr(c, n)) is not None}
    rows = [
        (n, f"{t.estimate:.4f}", f"{t.count}", f"{t.n}", f"{t.upper:.4f}", f"{t.delta:.4f}", t.slack)
        for n, t in terms.items()
    ]
    classes = sorted(c.details.get("classes", ()), key=lambda r: -r["joint"])
    by_class = [
        (str(r["class"]), str(r["n"]), *(f"{r[e]:.3f}" for e in ("geometry", "disagreement", "joint"))) for r in classes
    ]
    problems = verify(c)
    standing = [
        ("good", "proved under the assumptions below") if c.rigorous else ("bad", "not a proved bound"),
        *([("bad", f"no better than guessing among {c.n_classes} classes")] if c.vacuous else []),
        ("bad", "does NOT agree with its events: " + "; ".join(problems))
        if problems
        else ("good", "counts, limits and bound agree with the events it carries"),
    ]
    hold_out = (
        "" if c.holdout_bound is None else f"{c.details.get('holdout_of', 'on the same points')}: {c.holdout_bound:.4f}"
    )
    parts = [
        f"<h1>{escape(c.certified)}</h1>",
        f'<p class="bound">test error at most {c.bound:.4f}</p>',
        f"<p>with probability {1 - c.delta:g}, by {escape(c.mode)} counts of a {c.k}-nearest-neighbour decoder "
        f"({escape(c.metric)}, memory of {c.n_train} points, {c.n_classes} classes)</p>",
        _list([f'<span class="{kind}">{escape(text)}</span>' for kind, text in standing]),
        _table(("term", "estimate", "count", "of", "limit", "delta", "slack"), rows),
        f"<p>Three terms added one by one: {c.additive_bound:.4f}."
        + (f" Plain hold-out {escape(hold_out)}." if hold_out else "")
        + "</p>",
        f'<img alt="terms, bound and hold-out" src="data:image/png;base64,{_picture(c, test_error)}">',
        "<h2>Assumes</h2>" + _list(escape(a) for a in c.assumptions),
        "<h2>Notes</h2>" + _list(escape(a) for a in c.notes) if c.notes else "",
        "<h2>Classes, hardest first</h2>" + _table(("class", "points", "geometry", "disagreement", "joint"), by_class)
        if by_class
        else "",
    ]
    atomic_write_text(
        path,
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>Certificate</title><style>{_STYLE}</style>\n'
        + "\n".join(p for p in parts if p)
        + "\n</html>\n",
    )


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = ["<tr>" + "".join(f"<th>{escape(v)}</th>" for v in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{escape(v)}</td>" for v in row) + "</tr>" for row in rows]
    return "<table>" + "\n".join(lines) + "</table>"


def _list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def _picture(certificate: Certificate, test_error: float | None) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "terms.png"
        certificate.plot(file, test_error)
        return base64.b64encode(file.read_bytes()).decode()
