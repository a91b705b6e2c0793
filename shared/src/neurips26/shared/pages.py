"""From folders of records to the page and to the tables of the READMEs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from neurips26.shared import registry, report
from neurips26.shared.record import is_stale, read_record, record_files
from neurips26.shared.runs import CorruptRecordError

__all__ = ["load_records", "write_page", "write_readmes"]


def load_records(folders: Sequence[Path], damaged: list[CorruptRecordError] | None = None) -> list[dict[str, Any]]:
    """All records below the folders, each claim with ``stale`` and each record with ``figures_dir``.

    Raises:
        CorruptRecordError: a record is damaged; with a list ``damaged`` its error is put there and the others are read.
    """
    papers = {p.slug: p for p in registry.papers()}
    records = []
    for path in (path for folder in folders for path in record_files(folder)):
        try:
            record = read_record(path)
        except CorruptRecordError as error:
            if damaged is None:
                raise
            damaged.append(error)
            continue
        paper = papers.get(record["paper"])
        stale = paper is not None and is_stale(record, paper)
        for row in record["claims"]:
            row["stale"] = stale
        record["figures_dir"] = str(path.parent / "figures")
        records.append(record)
    return records


def write_page(folders: Sequence[Path], out: Path, notes: Mapping[str, str]) -> None:
    """Write the page over all records; ``notes`` tells of papers that could not be set up or run."""
    papers = [{k: v for k, v in asdict(p).items() if k not in ("data", "root")} for p in registry.papers()]
    for slug, text in notes.items():
        row = next((p for p in papers if p["slug"] == slug), None)
        if row is None:
            papers.append(row := {"slug": slug, "title": slug})
        row["error"] = text
    damaged: list[CorruptRecordError] = []
    records = load_records(folders, damaged)
    papers += [{"slug": "damaged record", "title": "damaged record", "error": str(error)} for error in damaged]
    report.build_page(records, out, papers=papers)


def write_readmes(results: Path) -> list[Path]:
    """Fill the claims tables of the root README and of each package's README from committed records."""
    records = load_records([results])
    written = []
    for readme in [Path("README.md"), *sorted(Path("packages").glob("*/README.md"))]:
        if not readme.exists():
            continue
        mine = records if readme.parent == Path() else [r for r in records if r["paper"] == readme.parent.name]
        report.update_readme(readme, mine)
        written.append(readme)
    return written
