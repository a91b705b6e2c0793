"""The committed records, and what the READMEs say of them."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import common
import pytest

from neurips26.shared import pages, registry, report
from neurips26.shared.testing import needs
from neurips26.shared.verify import verify_tree

HEADINGS = ("install", "use", "claims", "command line", "full scale", "limits", "cite")


@pytest.fixture(scope="session")
def records(root):
    return pages.load_records([root / "results"]) if (root / "results").is_dir() else []


def test_records_verify(root, records):
    needs("records", bool(records), "nothing is recorded yet")
    said = []
    assert verify_tree(root / "results", say=said.append) == []
    assert len(said) == len(records)


def test_every_record_belongs_to_a_package(root, records):
    assert {record["paper"] for record in records} <= set(common.slugs())


def test_only_records_and_their_pictures_are_in_results(root):
    done = subprocess.run(["git", "ls-files", "results"], cwd=root, capture_output=True, text=True, check=False)
    files = done.stdout.splitlines()
    named = re.compile(r"results/[a-z0-9-]+/((tune|cpu|gpu)\.json|figures/[^/]+\.png)|results/(README\.md|\.gitkeep)")
    assert [f for f in files if not named.fullmatch(f)] == []


@pytest.mark.parametrize("where", ["README.md", *(f"packages/{s}/README.md" for s in common.slugs())])
def test_claims_tables_are_those_of_the_records(root, records, where, monkeypatch):
    monkeypatch.chdir(root)
    readme = Path(where)
    mine = records if readme.parent == Path() else [r for r in records if r["paper"] == readme.parent.name]
    needs("records", bool(mine), "nothing is recorded yet")
    text = readme.read_text("utf-8")
    assert text.count(report.BEGIN) == text.count(report.END) == 1
    shown = text.split(report.BEGIN)[1].split(report.END)[0]
    wanted = report.readme_section(mine, readme.parent)
    # Pictures' paths depend on the folder the records were loaded from; the table does not.
    assert _table(shown) == _table(wanted), "run `make readme`"


def _table(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("![")]


def test_pictures_of_readmes_exist(root):
    for readme in [root / "README.md", *(root / "packages" / s / "README.md" for s in common.slugs())]:
        for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", readme.read_text("utf-8")):
            assert (readme.parent / target).is_file(), f"{readme}: {target}"


def test_readme_of_a_package_keeps_the_order(root, slug):
    text = (root / "packages" / slug / "README.md").read_text("utf-8")
    headings = [h.strip().lower() for h in re.findall(r"^## (.+)$", text, re.M)]
    found = []
    for wanted in HEADINGS:
        at = next((i for i, h in enumerate(headings) if re.search(rf"\b{wanted}\b", h) and i not in found), None)
        assert at is not None, f"the README has no section on {wanted!r}: {headings}"
        found.append(at)
    assert found == sorted(found), headings


def test_method_rebuilt_from_an_abstract_says_so_first(root, slug):
    name = slug.replace("-", "_")
    paper = tomllib.loads((root / f"packages/{slug}/src/neurips26/{name}/paper.toml").read_text("utf-8"))
    lines = [line for line in (root / f"packages/{slug}/README.md").read_text("utf-8").splitlines() if line.strip()]
    if paper["provenance"] == "reconstruction from the abstract":
        assert "abstract" in " ".join(lines[:3]).lower(), lines[:3]


def test_root_readme_names_every_package(root):
    text = (root / "README.md").read_text("utf-8")
    assert [slug for slug in common.slugs() if f"packages/{slug}" not in text] == []


def test_every_claim_is_unique_in_the_house():
    ids = [f"{p.slug}/{f.claim.id}" for p in registry.papers() for f in _functions(p)]
    assert len(ids) == len(set(ids))


def _functions(paper):
    return [f for f in vars(paper.load_claims()).values() if hasattr(f, "claim")]


def test_every_package_has_quick_claims(slug):
    paper = registry.find(slug)
    assert paper.error == ""
    assert paper.claim_functions("quick"), "make demo would have nothing to run"


def test_nothing_generated_is_committed(root):
    done = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=False)
    files = done.stdout.splitlines()
    bad = [
        f for f in files if f.startswith(("build/", "dist/")) or "__pycache__" in f or f.endswith((".pyc", ".egg-info"))
    ]
    assert bad == []
    big = [f for f in files if os.path.exists(root / f) and os.path.getsize(root / f) > 3_000_000]
    assert big == [], "data sets and weights are not copied into the repository"
