"""The installed papers, read from light descriptors: nothing of a paper is imported to list it."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from neurips26.shared.data import DataSet

__all__ = ["Paper", "UnknownPaperError", "find", "papers"]

GROUP = "neurips26.papers"


class UnknownPaperError(ValueError):
    """No installed paper has this slug."""


@dataclass(frozen=True)
class Paper:
    """A paper as its ``paper.toml`` describes it.

    Attributes:
        slug: name in commands and folders.
        module: import name of its package.
        title, authors, venue, arxiv, provenance, summary: for people.
        claims: module with the claim functions.
        cli: ``module:function`` of its own verbs, or "".
        data: declared data sets.
        tuned: files of the package that hold what the tune record chose, relative to `root`.
        error: why the descriptor could not be read ("" when it could).
        root: folder of the package's modules.
    """

    slug: str
    module: str
    title: str = ""
    authors: str = ""
    venue: str = "NeurIPS 2026"
    arxiv: str = ""
    provenance: str = ""
    summary: str = ""
    claims: str = ""
    cli: str = ""
    data: tuple[DataSet, ...] = ()
    tuned: tuple[str, ...] = ()
    error: str = ""
    root: Path | None = field(default=None, compare=False)

    def load_claims(self) -> ModuleType:
        """Import the paper's claims (this imports the paper)."""
        return importlib.import_module(self.claims)

    def claim_functions(self, tier: str) -> list[Callable[..., Any]]:
        """The functions marked with ``measures`` for ``tier``, in the order of the file."""
        module = self.load_claims()
        return [f for f in vars(module).values() if hasattr(f, "claim") and tier in f.tiers]

    def tuning_functions(self) -> list[Callable[..., Any]]:
        """The functions marked with ``tunes``, in the order of the file."""
        return [f for f in vars(self.load_claims()).values() if hasattr(f, "grid_id")]


def papers() -> list[Paper]:
    """All installed papers by slug; one whose descriptor is broken is listed with its error."""
    found = {point.name: _read(point.name, point.value) for point in entry_points(group=GROUP)}
    return [found[slug] for slug in sorted(found)]


def find(slug: str) -> Paper:
    """The paper called ``slug``.

    Raises:
        UnknownPaperError: none is installed under this name; the nearest names are suggested.
    """
    known = {p.slug: p for p in papers()}
    if slug in known:
        return known[slug]
    near = difflib.get_close_matches(slug, known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"installed: {', '.join(known) or 'none'}"
    raise UnknownPaperError(f"paper: expected the slug of an installed paper, got {slug!r} ({hint})")


def _read(slug: str, module: str) -> Paper:
    try:
        # find_spec imports the namespace only, never the paper itself.
        spec = importlib.util.find_spec(module)
        if spec is None or not spec.submodule_search_locations:
            raise FileNotFoundError(f"{module} is not an importable package")
        root = Path(next(iter(spec.submodule_search_locations)))
        described = tomllib.loads((root / "paper.toml").read_text("utf-8"))
        data = tuple(DataSet(dir=d.pop("dir", slug), **d) for d in described.pop("data", []))
        tuned = tuple(described.pop("tuned", []))
        return Paper(slug=slug, module=module, data=data, tuned=tuned, root=root, **described)
    except Exception as error:  # a broken paper is listed, whatever is wrong with it
        return Paper(slug=slug, module=module, error=f"{type(error).__name__}: {error}")
