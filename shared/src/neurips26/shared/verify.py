"""Checks of committed records: nothing in them is typed by hand, and the criterion came first."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema

from neurips26.shared import data, registry, runs
from neurips26.shared.context import Context
from neurips26.shared.criteria import criteria, criterion_of
from neurips26.shared.record import _judge_rows, git, is_stale, read_record, record_files, run_tier, schema

__all__ = ["verify_record", "verify_tree"]

#: Recomputed effects must agree to this relative tolerance (they are the same arithmetic on the same numbers).
_TOLERANCE = 1e-9
#: A committed cell that took longer than this is not made again by ``--rerun``.
_RERUN_SECONDS = 60.0


def verify_tree(root: Path, rerun: bool = False, say: Callable[[str], None] = print) -> list[str]:
    """Verify every record below ``root``; returns the violations (stale rows are said, not counted)."""
    problems = []
    installed = {paper.slug: paper for paper in registry.papers()}
    for path in record_files(root):
        try:
            record = read_record(path)
        except runs.CorruptRecordError as error:
            problems.append(str(error))
            continue
        paper = installed.get(record["paper"])
        if paper is None:
            # Its effects are functions of the package and its claims stand there: nothing can be judged without it.
            say(f"{path.parent.name}/{path.name}: not verified: {record['paper']} is not installed here")
            continue
        found = verify_record(record, path)
        problems += found
        stale = is_stale(record, paper)
        state = "stale: its code or data changed since" if stale else "fresh"
        say(f"{path.parent.name}/{path.name}: {len(record['claims'])} claims, {len(found)} problems, {state}")
        if rerun and record["tier"] == "cpu":
            problems += _rerun_cells(record, paper, path, say)
    if rerun:
        for paper in registry.papers():
            problems += _rerun_quick(paper, say)
    return problems


def verify_record(record: dict[str, Any], path: Path) -> list[str]:
    """Problems of one record: schema, place, recomputed verdicts, agreement with the code, order of commits, figures."""
    name = f"{path.parent.name}/{path.name}"
    errors = sorted(jsonschema.Draft202012Validator(schema()).iter_errors(record), key=str)
    if errors:
        return [f"{name}: {'/'.join(map(str, e.absolute_path)) or 'record'}: {e.message}" for e in errors[:5]]
    problems = []
    if record["paper"] != path.parent.name or f"{record['tier']}.json" != path.name:
        problems.append(f"{name}: expected {record['paper']}/{record['tier']}.json by its content")
    if record["dirty"]:
        problems.append(f"{name}: dirty: expected a record from a clean tree, got one from a changed tree")
    problems += _recompute(record, name)
    problems += _against_code(record, name)
    problems += _order_of_commits(record, name)
    for row in record["claims"]:
        for figure in row["figures"]:
            if not (path.parent / "figures" / figure).exists():
                problems.append(f"{name}: {row['id']}: figure {figure} is missing")
    if record["tier"] == "cpu":
        problems += _against_tuning(record, path)
    return problems


def _recompute(record: dict[str, Any], name: str) -> list[str]:
    rows = copy.deepcopy(record["claims"])
    try:
        _judge_rows(rows)
    except (ValueError, ImportError, AttributeError) as error:
        return [f"{name}: the verdicts cannot be recomputed: {error}"]
    problems = []
    for old, new in zip(record["claims"], rows):
        for key in ("effect", "interval", "level", "verdict"):
            if not same(old[key], new[key], _TOLERANCE):
                problems.append(f"{name}: {old['id']}: {key}: expected {new[key]} from its values, got {old[key]}")
    return problems


def _against_code(record: dict[str, Any], name: str) -> list[str]:
    try:
        paper = registry.find(record["paper"])
        functions = paper.claim_functions(record["tier"]) if record["tier"] != "tune" else []
    except (registry.UnknownPaperError, ImportError):
        return []  # judged where the paper is installed
    known = {f.claim.id: f.claim.to_json() for f in functions}
    problems = []
    for row in record["claims"]:
        claim = known.get(row["id"])
        if claim is None:
            problems.append(f"{name}: {row['id']}: expected a claim that claims.py names, got none")
            continue
        for key in ("statement", "criterion", "direction", "scope", "paper_value", "metric"):
            if row[key] != claim[key]:
                problems.append(f"{name}: {row['id']}: {key}: claims.py says {claim[key]!r}, record {row[key]!r}")
    return problems


def _order_of_commits(record: dict[str, Any], name: str) -> list[str]:
    """The criterion in force now must already stand in the revision that made the record."""
    revision = record["revision"]
    top = git("rev-parse", "--show-toplevel")
    if top is None or revision is None:
        return [] if top is None else [f"{name}: revision: expected a commit, got None"]
    cwd = Path(top)
    done = subprocess.run(
        ["git", "merge-base", "--is-ancestor", revision, "HEAD"], cwd=cwd, capture_output=True, check=False
    )
    if done.returncode != 0:
        return [f"{name}: revision: expected an ancestor of HEAD, got {revision}"]
    source = f"packages/{record['paper']}/src"
    if not (cwd / source).is_dir():
        return []
    listed = (git("grep", "-l", "Criterion(", revision, "--", f"{source}/*.py", cwd=cwd) or "").splitlines()
    then = criteria(git("show", name, cwd=cwd) or "" for name in listed)  # git lists <revision>:<path>
    now = criteria(path.read_text("utf-8") for path in sorted((cwd / source).rglob("*.py")))
    problems = []
    for row in record["claims"]:
        before, after = (criterion_of(row["id"], found) for found in (then, now))
        if not after:
            problems.append(f"{name}: {row['id']}: its criterion was not found in {source}")
        elif before != after:
            problems.append(f"{name}: {row['id']}: its criterion was changed after the revision that made the record")
    return problems


def _against_tuning(record: dict[str, Any], path: Path) -> list[str]:
    """Settings as tuned, the same budget for every tuned method, and seeds that the evaluation does not use."""
    tune = path.with_name("tune.json")
    try:
        grids = {grid["id"]: grid for grid in read_record(tune).get("grids", [])} if tune.exists() else {}
    except runs.CorruptRecordError:
        grids = {}  # named when its own turn comes
    problems = []
    for grid in grids.values():
        tuned = {_series_and_part(name)[0] for name, setting in grid["chosen"].items() if setting}
        budgets = Counter(cell["method"] for cell in grid["cells"] if _series_and_part(cell["method"])[0] in tuned)
        if len(set(budgets.values())) > 1:
            problems.append(
                f"{path.parent.name}/{tune.name}: {grid['id']}: expected one budget, got {dict(budgets)} cells"
            )
    for row in record["claims"]:
        if row["tuned_by"] is None:
            continue
        name = f"{path.parent.name}/{path.name}: {row['id']}"
        grid = grids.get(row["tuned_by"])
        if grid is None:
            problems.append(f"{name}: tuned_by: expected a grid of tune.json, got {row['tuned_by']!r}")
            continue
        # Seed 0 stands for "no randomness" where a method is deterministic.
        seen = sorted({cell["seed"] for cell in grid["cells"]} & set(row["seeds"]) - {0})
        if seen:
            problems.append(f"{name}: seeds: expected none that the grid {grid['id']} has seen, got {seen}")
        problems += [f"{name}: {problem}" for problem in _untuned_settings(row, grid)]
    return problems


def _untuned_settings(row: dict[str, Any], grid: dict[str, Any]) -> list[str]:
    """Settings of a row's series that differ from what its grid chose; a row of which nothing can be compared is one, too.

    A chosen setting belongs to the series of its name; ours is found as "ours" and under the method's own name. What was
    chosen for one data set stands as "series/data set", and in the series' setting under the data set's name.
    """
    series = {"ours": row["ours"], **row["baselines"]}
    own = _own_name(row)
    problems, compared = [], 0
    for chosen, setting in grid["chosen"].items():
        method, part = _series_and_part(chosen)
        used = (series.get("ours" if method == own else method) or {}).get("setting")
        if used is None:
            continue
        used = used.get(part) if part else used
        if not isinstance(used, dict):
            problems.append(f"{method}: the tune record chose {setting} for {part}, the run names no setting for it")
            continue
        common = setting.keys() & used.keys()
        compared += len(common)
        differing = {k: setting[k] for k in sorted(common) if used[k] != setting[k]}
        if differing:
            problems.append(f"{method}: the tune record chose {differing}, the run used {used}")
    if not compared and not problems:
        problems.append(
            f"tuned_by: expected settings chosen by {grid['id']} in the row's series {sorted(series)}, got none of "
            f"{sorted(grid['chosen'])[:8]}"
        )
    return problems


def _own_name(row: dict[str, Any]) -> str:
    """The method that a row calls "ours": as its setting names it, else the one of its cells that no baseline is."""
    setting = (row["ours"] or {}).get("setting", {})
    named = setting.get("method", setting.get("policy"))
    others = {cell["method"] for cell in row["cells"]} - row["baselines"].keys()
    return named or (others.pop() if len(others) == 1 else "ours")


def _series_and_part(name: str) -> tuple[str, str]:
    """Split the name of a chosen setting: `dlinear/ETTh1` is what was chosen for dlinear on ETTh1."""
    series, _, part = name.partition("/")
    return series, part


class _FirstCell(Exception):
    def __init__(self, key: str, value: Any) -> None:
        self.key, self.value = key, value


class _OneCell(Context):
    """A context that computes the first cell asked for and stops there."""

    def cell(self, key: Any, fn: Callable[[], Any]) -> Any:
        raise _FirstCell(key if isinstance(key, str) else json.dumps(key, sort_keys=True), super().cell(key, fn))


def _rerun_cells(record: dict[str, Any], paper: registry.Paper, path: Path, say: Callable[[str], None]) -> list[str]:
    """Make the cheapest recorded first cell of a cpu record again and compare."""
    name = f"{path.parent.name}/{path.name}"
    functions = {f.claim.id: f for f in paper.claim_functions("cpu")}
    candidates = [
        r
        for r in record["claims"]
        if r["id"] in functions
        and r.get("first_cell")
        and r["rerun_tolerance"] is not None
        and r["first_cell"]["seconds"] <= _RERUN_SECONDS
    ]
    if not candidates:
        say(f"{name}: no cell to make again within {_RERUN_SECONDS:g} s")
        return []
    row = min(candidates, key=lambda r: r["first_cell"]["seconds"])
    missing = [d for d in record["hashes"]["data"] if data.find(paper.slug, d) is None]
    if missing:
        say(f"{name}: {row['id']}: not made again: this machine lacks {', '.join(missing)}")
        return []
    with tempfile.TemporaryDirectory() as folder:
        try:
            functions[row["id"]](_OneCell(paper.slug, "cpu", row["id"], Path(folder)))
        except _FirstCell as first:
            if first.key != row["first_cell"]["key"]:
                return [f"{name}: {row['id']}: expected the cell {row['first_cell']['key']}, got {first.key}"]
            if not same(first.value, row["first_cell"]["value"], row["rerun_tolerance"]):
                return [
                    f"{name}: {row['id']}: made again, the cell {first.key} differs beyond {row['rerun_tolerance']:g}"
                ]
    say(f"{name}: {row['id']}: one cell made again, equal within {row['rerun_tolerance']:g}")
    return []


def _rerun_quick(paper: registry.Paper, say: Callable[[str], None]) -> list[str]:
    """Run every quick claim afresh; the record it writes must verify."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            record = run_tier(paper, "quick", Path(folder))
            problems = [] if record["claims"] else [f"{paper.slug}: quick: expected claims, got none"]
            record["dirty"] = False
            problems += _recompute(json.loads(json.dumps(record)), f"{paper.slug}/quick")
    except (RuntimeError, ValueError, ImportError) as error:
        return [f"{paper.slug}: quick: {error}"]
    say(f"{paper.slug}: quick: {len(record['claims'])} claims made again")
    return problems


def same(a: Any, b: Any, tolerance: float) -> bool:
    """Whether two JSON values are equal, numbers within a relative tolerance."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if a is None or b is None or isinstance(a, str):
        return a == b
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k], tolerance) for k in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same(x, y, tolerance) for x, y in zip(a, b))
    return a == b
