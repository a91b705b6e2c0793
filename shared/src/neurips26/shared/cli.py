"""The one command: ``neurips26``. Every verb is a dataclass; its docstrings are the help."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich import filesize
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from neurips26.shared import registry, runs
from neurips26.shared.data import DataMissing

__all__ = ["main"]

TIERS = ("quick", "tune", "cpu", "gpu")
COLOURS = {"holds": "green", "does not hold": "red", "undecided": "yellow", "not testable here": "dim"}

#: What claims run with unless the user's environment says otherwise. Small problems on many threads are several times
#: slower where cores are shared, and sums then depend on the machine. Claims about threads set their own number.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

out = Console()
err = Console(stderr=True)


@dataclass
class List:
    """List the installed papers. Nothing of a paper is imported."""

    def __call__(self) -> int:
        table = Table(box=None, pad_edge=False)
        for heading in ("paper", "title", "provenance", "state"):
            table.add_column(heading, overflow="fold")
        for paper in registry.papers():
            table.add_row(*map(escape, (paper.slug, paper.title, paper.provenance, paper.error or "installed")))
        out.print(table)
        return 0


@dataclass
class Claims:
    """Show a paper's claims: statement, the paper's figure, criterion and tiers."""

    slug: Annotated[str, tyro.conf.Positional]
    """The paper (see `neurips26 list`)."""

    def __call__(self) -> int:
        paper = registry.find(self.slug)
        for fn in vars(paper.load_claims()).values():
            if hasattr(fn, "claim"):
                c = fn.claim
                out.print(f"[bold]{escape(c.id)}[/] ({c.scope}; {', '.join(fn.tiers)})", highlight=False)
                told = f"  {c.statement}\n  paper: {c.paper_value}\n  holds if: {c.criterion}"
                out.print(told, markup=False, highlight=False)
        return 0


@dataclass
class Run:
    """Run a paper's claims and show effect and verdict; writes into a folder that is not committed."""

    slug: Annotated[str, tyro.conf.Positional]
    """The paper (see `neurips26 list`)."""
    tier: str = "quick"
    """quick (seconds), tune (the grids), cpu (an hour at most) or gpu."""
    only: list[str] = field(default_factory=list)
    """Ids of claims to run; the others keep what was measured."""
    out: Path = Path("build")
    """Folder of the record and its pictures."""
    force: bool = False
    """Forget finished cells and start over; also replaces a damaged record."""

    def __call__(self) -> int:
        return _run(self.slug, self.tier, self.out, self.out / ".work", self.only, self.force, committed=False)


@dataclass
class Record:
    """Run a paper's claims for the committed evidence. Needs a checkout without changes."""

    slug: Annotated[str, tyro.conf.Positional]
    """The paper (see `neurips26 list`)."""
    tier: str = "cpu"
    """tune, cpu or gpu."""
    only: list[str] = field(default_factory=list)
    """Ids of claims to run; the others keep what was measured with the same code."""
    out: Path = Path("results")
    """Folder of the committed records."""
    work: Path = Path("build/.record")
    """Folder of finished cells, from which a killed run goes on."""
    force: bool = False
    """Forget finished cells and start over; also replaces a damaged record."""

    def __call__(self) -> int:
        if self.tier == "quick":
            raise ValueError("tier: expected tune, cpu or gpu (quick runs are not committed), got 'quick'")
        return _run(self.slug, self.tier, self.out, self.work, self.only, self.force, committed=True)


@dataclass
class Explain:
    """Tell how a row of the report was made: criterion, seeds, settings, and the command that makes it again."""

    claim: Annotated[str, tyro.conf.Positional]
    """Id of a claim, or `slug/id`."""
    results: Path = Path("results")
    """Folder of committed records."""
    build: Path = Path("build")
    """Folder of quick records."""

    def __call__(self) -> int:
        from neurips26.shared.explain import explain

        slug, _, name = self.claim.rpartition("/")
        text, known = explain(name, slug, [self.results, self.build])
        if text is None:
            near = difflib.get_close_matches(name, known, n=3)
            if near:
                hint = f"did you mean {' or '.join(near)}?"
            elif known:
                hint = f"{len(known)} are recorded; `neurips26 claims <paper>` lists a paper's"
            else:
                hint = "none is recorded here; `neurips26 run <paper>` makes the first"
            raise ValueError(f"claim: expected the id of a recorded claim, got {self.claim!r} ({hint})")
        out.print(text, markup=False, highlight=False, soft_wrap=True)
        return 0


@dataclass
class Report:
    """Write the page of all records, or the claims tables of the READMEs."""

    results: Path = Path("results")
    """Folder of committed records."""
    build: Path = Path("build")
    """Folder of quick records."""
    out: Path = Path("build/report/index.html")
    """The page."""
    readme: bool = False
    """Fill the claims tables of README.md and packages/*/README.md instead (from committed records only)."""
    note: list[str] = field(default_factory=list)
    """`slug=text`: what to say of a paper that could not be set up or run."""

    def __call__(self) -> int:
        from neurips26.shared.pages import write_page, write_readmes

        if self.readme:
            for path in write_readmes(self.results):
                out.print(path)
            return 0
        if unclear := [note for note in self.note if "=" not in note]:
            raise ValueError(f"note: expected slug=text, got {unclear[0]!r}")
        try:
            write_page([self.results, self.build], self.out, dict(note.split("=", 1) for note in self.note))
        except OSError as error:
            raise ValueError(f"out: expected a file that can be written, got {self.out} ({error.strerror})") from None
        out.print(f"report: {self.out}")
        return 0


@dataclass
class Verify:
    """Check committed records: verdicts recomputed, criteria older than the runs, settings as tuned."""

    results: Annotated[Path, tyro.conf.Positional] = Path("results")
    """Folder of committed records."""
    rerun: bool = False
    """Also make every quick claim and one cell of each cpu record again."""

    def __call__(self) -> int:
        _one_thread()
        from neurips26.shared.verify import verify_tree

        if not self.results.is_dir():
            raise ValueError(f"results: expected a folder of records, got {self.results}")
        problems = verify_tree(
            self.results, self.rerun, say=lambda text: out.print(text, markup=False, highlight=False)
        )
        for problem in problems:
            out.print(problem, style="red", markup=False, highlight=False)
        out.print("records verify" if not problems else f"{len(problems)} problems")
        return 1 if problems else 0


@dataclass
class Data:
    """List, check or fetch the declared data sets."""

    action: Annotated[Literal["list", "check", "fetch"], tyro.conf.Positional] = "list"
    """list what is declared and present, check checksums, or fetch what is missing."""
    slug: Annotated[str, tyro.conf.Positional] = ""
    """Only this paper's data."""

    def __call__(self) -> int:
        from neurips26.shared import data

        chosen = [registry.find(self.slug)] if self.slug else registry.papers()
        failed = 0
        for paper in chosen:
            for item in paper.data:
                try:
                    where = data.fetch_set(item) if self.action == "fetch" else data.find_set(item)
                    state = str(where) if where else "missing"
                    failed += self.action == "check" and where is None
                except (DataMissing, data.ChecksumError, OSError) as error:
                    state, failed = str(error), failed + 1
                size = filesize.decimal(item.size)
                head = f"[bold]{escape(f'{paper.slug}/{item.name}')}[/]  {size}, {escape(item.licence)}"
                # A path or an address is one line, whatever the terminal's width: it is there to be copied.
                out.print(f"{head}\n    {escape(state)}", highlight=False, soft_wrap=True)
        return 1 if failed else 0


@dataclass
class Doctor:
    """Say what this machine has: Python, cores, memory, disk, GPU, data and the versions that matter."""

    def __call__(self) -> int:
        from neurips26.shared.doctor import diagnose

        for key, value in diagnose().items():
            out.print(f"[bold]{key:<10}[/] {escape(value)}", highlight=False)
        return 0


Verb = (
    Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[Claims, tyro.conf.subcommand("claims")]
    | Annotated[Run, tyro.conf.subcommand("run")]
    | Annotated[Record, tyro.conf.subcommand("record")]
    | Annotated[Explain, tyro.conf.subcommand("explain")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Verify, tyro.conf.subcommand("verify")]
    | Annotated[Data, tyro.conf.subcommand("data")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
)
VERBS = ("list", "claims", "run", "record", "explain", "report", "verify", "data", "doctor")


def main(argv: list[str] | None = None) -> int:
    """Entry point; one line of error and exit status 2 for what the user can mend, a traceback for what we must."""
    args = sys.argv[1:] if argv is None else argv
    try:
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            return _paper_verb(args[0], args[1:])
        verb = tyro.cli(
            Verb,  # type: ignore[arg-type]
            args=args,
            prog="neurips26",
            description="NeurIPS 2026 papers as packages, each with its claims measured. "
            "`neurips26 <paper> <verb>` reaches a paper's own commands.",
        )
        return verb()
    except (ValueError, TypeError, runs.LockedError, DataMissing, RuntimeError, OSError) as error:
        if os.environ.get("NEURIPS26_TRACEBACK"):
            raise
        err.print(f"[red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        err.print("interrupted; what was finished is kept, the same command goes on from there", highlight=False)
        return 130


def _paper_verb(slug: str, rest: list[str]) -> int:
    known = [p.slug for p in registry.papers()]
    if slug not in known:
        near = difflib.get_close_matches(slug, [*known, *VERBS], n=3)
        hint = f" (did you mean {' or '.join(near)}?)" if near else ""
        raise ValueError(f"command: expected a verb ({', '.join(VERBS)}) or an installed paper, got {slug!r}{hint}")
    paper = registry.find(slug)
    if paper.error:
        raise ValueError(f"{slug}: {paper.error}")
    if not paper.cli:
        raise ValueError(f"{slug}: expected a paper with commands of its own, got none; see neurips26 claims {slug}")
    module, _, name = paper.cli.partition(":")
    return int(getattr(importlib.import_module(module), name)(rest) or 0)


def _one_thread() -> None:
    """Hold the numerical libraries to one thread each: they read these when they are first imported, a little later."""
    if "numpy" not in sys.modules:
        for name, value in ONE_THREAD.items():
            os.environ.setdefault(name, value)


def _run(slug: str, tier: str, target: Path, work: Path, only: list[str], force: bool, *, committed: bool) -> int:
    _one_thread()
    from neurips26.shared.arrays import check_choice
    from neurips26.shared.record import run_tier

    check_choice(tier, "tier", TIERS)
    paper = registry.find(slug)
    if paper.error:
        raise ValueError(f"{slug}: {paper.error}")
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"out: expected a folder that can be written, got {target} ({error.strerror})") from None
    if not os.access(target, os.W_OK):
        raise ValueError(f"out: expected a folder that can be written, got {target}")
    record = run_tier(paper, tier, target, work=work, only=only, force=force, committed=committed)
    for line in _told(record, paper):
        out.print(line, highlight=False, soft_wrap=True)
    out.print(f"record: {target / slug / f'{tier}.json'}", highlight=False)
    return 0


def _told(record: dict[str, Any], paper: registry.Paper) -> list[str]:
    """What a run found: two lines a claim, with the words and figures of the page; then what its data were."""
    from neurips26.shared import data, report

    lines = []
    for row in report.rows([record]):
        colour = COLOURS[row.claim["verdict"]]
        sign = report.STATES[row.state][0]
        lines.append(f"[{colour}]{sign} {escape(row.verdict)}[/]  [bold]{escape(row.claim['id'])}[/]")
        found = f"{row.measured} {row.comparison}".strip()
        lines.append(f"    {escape(found)}; asked for: {escape(report.criterion_text(row.claim))}")
    for grid in record.get("grids", []):
        lines.append(f"tuned  [bold]{escape(grid['id'])}[/]: {len(grid['cells'])} cells")
    missing = [item.name for item in paper.data if data.find_set(item) is None]
    if missing:
        fetch = (
            f"`neurips26 data fetch {paper.slug}` brings them, `neurips26 data list {paper.slug}` says where they go"
        )
        lines.append(
            f"[yellow]not on this machine: {escape(', '.join(missing))}[/]; claims that use them ran on stand-ins; {fetch}"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
