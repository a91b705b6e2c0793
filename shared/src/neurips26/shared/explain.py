"""How a row was made, in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from neurips26.shared import report
from neurips26.shared.claims import Criterion
from neurips26.shared.record import read_record, record_files
from neurips26.shared.runs import CorruptRecordError

__all__ = ["explain", "remake_command"]


def remake_command(slug: str, tier: str, claim: str) -> str:
    """The command that measures a claim again, into build/: beside a committed record, which stays as it is."""
    return f"neurips26 run {slug} --tier {tier} --only {claim} --force"


def explain(claim: str, slug: str, folders: Sequence[Path]) -> tuple[str | None, list[str]]:
    """Text about every recorded row of ``claim`` (of paper ``slug`` unless ""), and all known ids.

    Raises:
        CorruptRecordError: a record is damaged and none of the others has the claim.
    """
    texts, known, damaged = [], [], []
    for folder in folders:
        for path in record_files(folder):
            try:
                record = read_record(path)
            except CorruptRecordError as error:
                damaged.append(error)
                continue
            for row in record["claims"]:
                known.append(row["id"])
                if row["id"] == claim and slug in ("", record["paper"]):
                    texts.append(_row(record, row))
    if damaged and not texts:
        raise damaged[0]
    return ("\n\n".join(texts) if texts else None), sorted(set(known))


def _values(series: dict[str, Any]) -> str:
    """The values a person can read; the record has every digit."""
    return "[" + ", ".join("–" if v is None else f"{v:.6g}" for v in series["values"]) + "]"


def _row(record: dict[str, Any], row: dict[str, Any]) -> str:
    interval = "none" if row["interval"] is None else f"{row['interval'][0]:.6g} … {row['interval'][1]:.6g}"
    effect = "none" if row["effect"] is None else f"{row['effect']:.6g}"
    measure = f"{report.unit(row)}; " if report.unit(row) else ""
    lines = [
        f"{record['paper']} / {row['id']} ({record['tier']} tier, {row['scope']})",
        f"  claim      {row['statement']}",
        f"  paper      {row['paper_value']}",
        f"  metric     {row['metric']} ({measure}{row['direction']} is better)",
        f"  holds if   {Criterion(**row['criterion'])}",
        f"  effect     {effect}, interval {interval}" + (f" at level {row['level']:.4g}" if row["level"] else ""),
        f"  verdict    {row['verdict']}" + (f": {row['reason']}" if row["reason"] else ""),
        f"  seeds      {report.seed_text(row['seeds']) or 'none'}",
    ]
    if row["ours"]:
        lines.append(f"  ours       {_values(row['ours'])} with {row['ours']['setting']}")
    for name, series in row["baselines"].items():
        mark = " (the criterion's baseline)" if name == row["compared_to"] else ""
        lines.append(f"  {name}{mark}: {_values(series)} with {series['setting']}")
    if row["cells"]:
        lines.append(f"  cells      {len(row['cells'])}")
    data = ", ".join(f"{d['name']} ({d['kind']})" for d in row["data"]) or "none"
    lines += [f"  data       {data}"]
    if row["tuned_by"]:
        lines.append(f"  tuned by   grid {row['tuned_by']} of the tune record")
    lines += [f"  note       {note}" for note in row.get("notes", [])]
    lines += [
        f"  revision   {record['revision']}",
        f"  again      {remake_command(record['paper'], record['tier'], row['id'])}",
    ]
    return "\n".join(lines)
