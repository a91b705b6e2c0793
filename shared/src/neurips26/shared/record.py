"""Running a paper's claims and writing its record; resumable, atomic, digested."""

from __future__ import annotations

import ast
import hashlib
import json
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from rich.markup import escape

from neurips26.shared import data, runs
from neurips26.shared.claims import Claim, Measurement, Tuning, judge
from neurips26.shared.context import Context
from neurips26.shared.progress import console
from neurips26.shared.registry import Paper

__all__ = [
    "DirtyTreeError",
    "NotTestable",
    "code_digest",
    "is_stale",
    "read_record",
    "record_files",
    "run_tier",
    "source_digest",
]

SCHEMA = 1

#: Files of a paper that change no number.
_NOT_NUMERIC = ("paper.toml", "py.typed")
#: Modules of the shared package that can change a number; the rest presents, stores or starts.
_NUMERIC_SHARED = ("claims", "stats", "seeding", "context", "bench", "threads", "backbones", "federated")


class DirtyTreeError(RuntimeError):
    """A committed record must name the revision that made it; this tree has uncommitted changes."""


class NotTestable(Exception):
    """Raised by a claim's function where what it needs is not there; the row then gives this reason and no figure."""


def code_digest(path: Path) -> str:
    """SHA-256 of what a Python file *does*: its syntax tree without docstrings, comments and layout."""
    state = path.stat()
    return _code_digest(path, state.st_mtime_ns, state.st_size)


@cache
def _code_digest(path: Path, _mtime: int, _size: int) -> str:
    """Once a process for a file that did not change: a report asks for the same files a dozen times."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
            and isinstance(body[0].value.value, str)
        ):
            body[0].value.value = ""
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def source_digest(paper: Paper, tier: str) -> str:
    """Digest over what a tier's numbers depend on: the paper's modules (its command line apart), the files that it ships
    beside them (checkpoints, chosen settings), and the shared modules that it imported or names.

    Federated and backbone modules count only where the paper's sources mention them. What the tune record chose counts in
    every tier but its own: there it is a result.
    """
    assert paper.root is not None
    parts = []
    text = ""
    for path in sorted(paper.root.rglob("*.py")):
        if path.name == "cli.py" or "__pycache__" in path.parts:
            continue
        text += path.read_text("utf-8")
        parts.append(f"{path.relative_to(paper.root)} {code_digest(path)}")
    for path in sorted(p for p in paper.root.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        name = path.relative_to(paper.root).as_posix()
        if path.suffix != ".py" and name not in _NOT_NUMERIC and not (tier == "tune" and name in paper.tuned):
            parts.append(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}")
    shared_root = Path(__file__).parent
    for name in _NUMERIC_SHARED:
        if (
            name in ("backbones", "federated", "bench")
            and f"shared.{name}" not in text
            and f"import {name}" not in text
        ):
            continue
        target = shared_root / name
        files = sorted(target.rglob("*.py")) if target.is_dir() else [target.with_suffix(".py")]
        parts += [f"shared/{f.relative_to(shared_root)} {code_digest(f)}" for f in files if f.exists()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _config_digest(claims: Sequence[Claim]) -> str:
    return hashlib.sha256(json.dumps([c.to_json() for c in claims], sort_keys=True).encode()).hexdigest()


def _data_digests(paper: Paper) -> dict[str, str]:
    """Declared checksums of the data sets that are present here (``find`` has compared them)."""
    return {d.name: d.sha256 for d in paper.data if data.find(paper.slug, d.name) is not None}


def machine() -> dict[str, Any]:
    """CPU, cores, memory and GPU of this machine."""
    return {
        "cpu": _cpu_name(),
        "cores": psutil.cpu_count(logical=True),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "gpu": gpu_name(),
    }


def gpu_name() -> str | None:
    """Name of the first CUDA device, without importing torch unless it is installed and a driver is present."""
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    names = done.stdout.strip().splitlines()
    return names[0] if done.returncode == 0 and names else None


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@cache
def _owners() -> Mapping[str, list[str]]:
    """Which distributions have which top-level modules; it takes a second to find out."""
    return metadata.packages_distributions()


_version = cache(metadata.version)


def _versions() -> dict[str, str]:
    """Versions of Python and of every distribution whose modules are loaded now."""
    loaded = {name.partition(".")[0] for name in sys.modules}
    names = sorted({d for m in loaded for d in _owners().get(m, [])})
    return {"python": platform.python_version(), **{n: _version(n) for n in names}}


def git(*args: str, cwd: Path | None = None) -> str | None:
    """Output of a git command, or ``None`` outside a checkout."""
    try:
        done = subprocess.run(["git", *args], cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _met(need: str) -> bool:
    if need == "gpu":
        return gpu_name() is not None
    raise ValueError(f"needs: expected 'gpu', got {need!r}")


def run_tier(
    paper: Paper,
    tier: str,
    out: Path,
    *,
    work: Path | None = None,
    only: Sequence[str] = (),
    force: bool = False,
    committed: bool = False,
) -> dict[str, Any]:
    """Run the claims of one tier, write ``out/<slug>/<tier>.json`` and return the record.

    Args:
        paper: the paper.
        tier: ``quick``, ``tune``, ``cpu`` or ``gpu``.
        out: folder of the records; figures go to ``out/<slug>/figures``.
        work: folder of the run's working state (cells, finished claims); default ``out/.work``.
        only: ids of claims to run; the others keep what an earlier run of the same code measured.
        force: forget finished cells and claims (those of ``only`` where it names some) and replace a damaged record.
        committed: the record will be committed: refuse a dirty tree, and to drop rows of this code that stand in it.

    Raises:
        DirtyTreeError: ``committed`` and the checkout has changes.
        ValueError: an id of ``only`` that the tier does not have, or a committed row that would be lost.
        runs.LockedError: another run works in the same directory.
        runs.CorruptRecordError: the old record is damaged (named; replaced only with ``force``).
    """
    target = out / paper.slug / f"{tier}.json"
    if target.exists() and not force:
        read_record(target)
    # Only the code matters: other records may lie beside this one.
    dirty = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
    if committed and dirty != "":
        raise DirtyTreeError(
            f"record: expected a git checkout without changes, got {dirty or 'no checkout'!r}; commit first, then record"
        )
    folder = (work or out / ".work") / paper.slug / tier
    functions = paper.tuning_functions() if tier == "tune" else paper.claim_functions(tier)
    _check_only(only, functions, tier)
    with runs.lock(folder):
        source = source_digest(paper, tier)
        stamp = folder / "source.json"
        made_with = {"source": source, "data": _data_digests(paper)}
        everything = force and not only
        if everything or (stamp.exists() and made_with | runs.read_json(stamp) != made_with):
            # Cells of other code, or of stand-ins for data that is here now, are not this run's results.
            for stale in ("cells", "claims", "figures"):
                shutil.rmtree(folder / stale, ignore_errors=True)
        elif force:
            for name in only:
                shutil.rmtree(folder / "cells" / name, ignore_errors=True)
                (folder / "claims" / f"{name}.json").unlink(missing_ok=True)
        runs.atomic_write_json(stamp, made_with)
        if tier == "tune":
            rows, grids = [], [_run_grid(paper, fn, folder) for fn in functions]
        else:
            chosen = _chosen(functions, only, folder)
            if committed and only and target.exists():
                _keep_rows(target, source, functions, chosen)
            rows, grids = [_run_claim(paper, fn, tier, folder) for fn in chosen], []
            _judge_rows(rows)
        record = {
            "schema": SCHEMA,
            "paper": paper.slug,
            "tier": tier,
            "revision": git("rev-parse", "HEAD"),
            "dirty": bool(dirty) if dirty is not None else None,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "provenance": paper.provenance,
            "hashes": {
                "source": source,
                "config": _config_digest([Claim.from_json(r) for r in rows]),
                "data": made_with["data"],
            },
            "machine": machine(),
            "versions": _versions(),
            "claims": rows,
        }
        if grids:
            record["grids"] = grids
        figures = out / paper.slug / "figures"
        for name in {f for r in rows for f in r["figures"]}:
            runs.atomic_write_bytes(figures / name, (folder / "figures" / name).read_bytes())
        runs.atomic_write_text(target, _text(record))
    return record


def _text(record: dict[str, Any]) -> str:
    """JSON of a record, indented, with one line a cell: a table can have thousands of them."""
    held: list[str] = []

    def hold(row: dict[str, Any]) -> dict[str, Any]:
        if not row["cells"]:
            return row
        lines = [json.dumps(c, ensure_ascii=False, allow_nan=False, separators=(",", ":")) for c in row["cells"]]
        held.append("[\n" + ",\n".join(lines) + "\n   ]")
        return {**row, "cells": f"<cells {len(held)}>"}

    folded = {
        name: [hold(row) for row in value] if name in ("claims", "grids") else value for name, value in record.items()
    }
    text = json.dumps(folded, indent=1, ensure_ascii=False, allow_nan=False)
    for number, cells in enumerate(held, 1):
        text = text.replace(f'"cells": "<cells {number}>"', f'"cells": {cells}', 1)
    return text + "\n"


def _check_only(only: Sequence[str], functions: Sequence[Callable[..., Any]], tier: str) -> None:
    if only and tier == "tune":
        raise ValueError(f"only: expected no ids in the tune tier (finished cells cost nothing), got {', '.join(only)}")
    known = [f.claim.id for f in functions] if only else []  # type: ignore[attr-defined]
    if unknown := sorted(set(only) - set(known)):
        raise ValueError(f"only: expected ids among {', '.join(known)}, got {', '.join(unknown)}")


def _chosen(functions: Sequence[Callable[..., Any]], only: Sequence[str], folder: Path) -> list[Callable[..., Any]]:
    """The claims of ``only``, what was measured before and what no machine like this one can measure: both cost nothing."""
    if not only:
        return list(functions)
    return [
        f
        for f in functions
        if f.claim.id in only or _done(folder, f.claim) or not all(_met(need) for need in f.claim.needs)  # type: ignore[attr-defined]
    ]


def _keep_rows(
    target: Path, source: str, functions: Sequence[Callable[..., Any]], chosen: Sequence[Callable[..., Any]]
) -> None:
    """Refuse to write a record of a few claims over one in which the same code measured more.

    Raises:
        ValueError: rows would be lost; the message says how to measure a claim beside the record.
    """
    try:
        there = read_record(target)
    except runs.CorruptRecordError:
        return  # asked for with force
    left = {f.claim.id for f in functions} - {f.claim.id for f in chosen}  # type: ignore[attr-defined]
    lost = sorted(left & {row["id"] for row in there["claims"]})
    if there["hashes"]["source"] == source and lost:
        raise ValueError(
            f"only: expected a run that keeps the rows of {target}, got one without {', '.join(lost)}, whose finished cells "
            f"are not here; `neurips26 run {there['paper']} --tier {there['tier']}` measures a claim beside the record"
        )


def _done(folder: Path, claim: Claim) -> bool:
    path = folder / "claims" / f"{claim.id}.json"
    return path.exists() and runs.read_json(path)["claim"] == claim.to_json()


def _run_claim(paper: Paper, fn: Callable[[Context], Measurement], tier: str, folder: Path) -> dict[str, Any]:
    claim: Claim = fn.claim  # type: ignore[attr-defined]
    path = folder / "claims" / f"{claim.id}.json"
    if _done(folder, claim):
        return runs.read_json(path)["row"]
    base = claim.to_json()
    missing = [need for need in claim.needs if not _met(need)]
    if missing:
        return {**base, **Measurement().to_json(), "measured": False, "notes": [], "seconds": 0.0}
    console.print(f"[bold]{paper.slug}[/] {escape(f'{claim.id}: {claim.statement}')}", highlight=False)
    ctx = Context(paper.slug, tier, claim.id, folder)
    started = time.perf_counter()
    try:
        measured = fn(ctx)
    except NotTestable as outcome:
        unmeasured = Measurement(reason=str(outcome)).to_json()
        return {**base, **unmeasured, "measured": False, "notes": ctx.notes, "seconds": 0.0}
    except Exception as error:
        raise RuntimeError(
            f"{paper.slug}: claim {claim.id!r} failed with {type(error).__name__}: {error} (finished cells are kept)"
        ) from error
    row = {
        **base,
        **measured.to_json(),
        "measured": True,
        "notes": ctx.notes,
        "seconds": round(time.perf_counter() - started, 1),
        "first_cell": ctx.first_cell,
    }
    _say_stand_in(row, paper)
    runs.atomic_write_json(path, {"claim": base, "row": row})
    return row


def _say_stand_in(row: dict[str, Any], paper: Paper) -> None:
    """A row without real data, where the paper's data sets are missing, says so and is a proxy whatever its usual scope."""
    if row["scope"] == "identity" or any(d["kind"] == "real" for d in row["data"]):
        return
    missing = [d.name for d in paper.data if data.find(paper.slug, d.name) is None]
    if missing:
        row["scope"] = "proxy"
        used = ", ".join(d["name"] for d in row["data"]) or "none"
        lacks = f"this machine lacks {', '.join(missing)}: where the claim uses it a stand-in took its place"
        row["notes"] = [*row["notes"], f"stand-in data ({used}): {lacks}"]


def _run_grid(paper: Paper, fn: Callable[[Context], Tuning], folder: Path) -> dict[str, Any]:
    ctx = Context(paper.slug, "tune", fn.grid_id, folder)  # type: ignore[attr-defined]
    told = escape(f"grid {ctx.claim}: {fn.statement}")  # type: ignore[attr-defined]
    console.print(f"[bold]{paper.slug}[/] {told}", highlight=False)
    started = time.perf_counter()
    tuned = fn(ctx)
    return {
        "id": ctx.claim,
        "statement": fn.statement,  # type: ignore[attr-defined]
        "cells": tuned.cells,
        "chosen": tuned.chosen,
        "note": tuned.note,
        "seconds": round(time.perf_counter() - started, 1),
    }


def _judge_rows(rows: list[dict[str, Any]]) -> None:
    """Put effect, interval, level and verdict into the rows; this is also how ``verify`` recomputes them."""
    claims = [Claim.from_json(r) for r in rows]
    measured = [Measurement.from_json(r) if r["measured"] else None for r in rows]
    for row, verdict in zip(rows, judge(claims, measured)):
        row["effect"] = verdict.effect
        row["interval"] = list(verdict.interval) if verdict.interval else None
        row["level"] = verdict.level
        row["verdict"] = verdict.outcome
        row["reason"] = row["reason"] or verdict.why


def record_files(folder: Path) -> list[Path]:
    """The records below a folder, by paper and tier; the half-written file of a process that was killed is none."""
    return [path for path in sorted(folder.glob("*/*.json")) if not path.name.startswith(".")]


@cache
def schema() -> dict[str, Any]:
    """The JSON schema of a record."""
    return json.loads(Path(__file__).with_name("record.schema.json").read_text("utf-8"))


def read_record(path: Path) -> dict[str, Any]:
    """Read a record; a damaged one raises :class:`runs.CorruptRecordError` and is left as it is.

    Only what every reader counts on is looked at here, the names of the fields; ``verify`` checks the whole schema.
    """
    record = runs.read_json(path)
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        got = record.get("schema") if isinstance(record, dict) else type(record).__name__
        raise runs.CorruptRecordError(f"{path}: expected a record of schema {SCHEMA}, got {got}; it was left as it is")
    wanted = schema()
    missing = [name for name in wanted["required"] if name not in record]
    rows = record.get("claims")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        missing.append("claims (a list of rows)")
    else:
        needed = wanted["properties"]["claims"]["items"]["required"]
        missing += sorted({f"claims/{name}" for row in rows for name in needed if name not in row})
    if not isinstance(record.get("hashes"), dict) or not {"source", "data"} <= record["hashes"].keys():
        missing.append("hashes (source and data)")
    if missing:
        raise runs.CorruptRecordError(f"{path}: expected {', '.join(missing)} in the record; it was left as it is")
    return record


def is_stale(record: dict[str, Any], paper: Paper) -> bool:
    """Whether the code or the declared data have changed since the record was made."""
    if paper.error:
        return False
    declared = {d.name: d.sha256 for d in paper.data}
    changed_data = any(declared.get(name) != digest for name, digest in record["hashes"]["data"].items())
    return changed_data or record["hashes"]["source"] != source_digest(paper, record["tier"])
