"""Who may import whom; what a namespace package may hold."""

import ast
from pathlib import Path

import pytest


def imported(source: str, module: str) -> set[str]:
    """Full names of the modules below ``neurips26`` that a source text imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")[: -node.level]
                base = ".".join([*parts, base] if base else parts)
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return {name for name in found if name.startswith("neurips26.")}


def sources(folder: Path):
    for path in sorted((folder / "src").rglob("*.py")):
        yield path, ".".join(path.relative_to(folder / "src").with_suffix("").parts)


def breaches(folder: Path, own: str) -> list[str]:
    """Imports of a package that go against the direction ``cli → claims → components → shared``."""
    problems = []
    for path, module in sources(folder):
        room = module.split(".")[2] if module.count(".") >= 2 else ""
        for name in imported(path.read_text("utf-8"), module):
            owner, part = (name.split(".") + [""])[1:3]
            if owner not in (own, "shared"):
                problems.append(f"{module} imports {name} of another paper")
            elif owner == own and part == "cli" and room != "cli":
                problems.append(f"{module} imports the command line")
            elif owner == own and part == "claims" and room not in ("cli", "claims"):
                problems.append(f"{module} imports the claims")
    return sorted(set(problems))


def test_a_paper_imports_only_itself_and_shared_and_in_one_direction(root, slug):
    assert breaches(root / "packages" / slug, slug.replace("-", "_")) == []


def test_shared_knows_no_paper(root):
    for path, module in sources(root / "shared"):
        others = {n for n in imported(path.read_text("utf-8"), module) if n.split(".")[1] != "shared"}
        assert others == set(), path


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("a.py", "from neurips26.other.part import x", "another paper"),
        ("a.py", "def f():\n    import neurips26.other", "another paper"),
        ("a.py", "from neurips26 import other", "another paper"),
        ("a.py", "from .cli import main", "the command line"),
        ("sub/b.py", "from ..claims import x", "the claims"),
        ("claims.py", "from neurips26.mine import cli", "the command line"),
    ],
)
def test_planted_breaches_are_seen(tmp_path, file, text, problem):
    path = tmp_path / "src" / "neurips26" / "mine" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert any(problem in found for found in breaches(tmp_path, "mine"))


def test_the_namespace_stays_open(root, member):
    assert not (root / member / "src" / "neurips26" / "__init__.py").exists(), "it would hide all other members"
    portions = [p for p in (root / member / "src" / "neurips26").iterdir() if p.is_dir() and p.name != "__pycache__"]
    assert len(portions) == 1
    assert (portions[0] / "py.typed").exists()
    assert (portions[0] / "__init__.py").exists()


def test_public_api_is_explicit(root, slug):
    text = (root / "packages" / slug / "src" / "neurips26" / slug.replace("-", "_") / "__init__.py").read_text("utf-8")
    names = [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "__all__" for t in node.targets)
    ]
    assert len(names) == 1


def test_members_move_in_lock_step(projects):
    version = projects["shared"]["project"]["version"]
    for name, project in projects.items():
        assert project["project"]["version"] == version, name
        for need in project["project"]["dependencies"]:
            if need.startswith("neurips26-"):
                assert need.endswith(f"=={version}"), f"{name}: {need}"


def test_entry_point_and_build_name_the_package(projects, slug):
    project = projects[f"packages/{slug}"]
    module = f"neurips26.{slug.replace('-', '_')}"
    assert project["project"]["name"] == f"neurips26-{slug}"
    assert project["project"]["entry-points"]["neurips26.papers"] == {slug: module}
    assert project["tool"]["uv"]["build-backend"]["module-name"] == module
