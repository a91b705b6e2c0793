"""All static checks of the house; each prints one line, all run, the exit status says whether all passed."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import time
import tomllib

from common import ROOT, environment, slugs

ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"


def main() -> int:
    """Run the checks; 0 when all pass."""
    checks = {
        "format": ["ruff", "format", "--check", "-q"],
        "lint": ["ruff", "check", "-q"],
        "types": ["pyright", "--level", "error"],
        "imports": ["lint-imports", "--no-cache"],
    }
    if shutil.which("actionlint"):
        checks["workflow"] = ["actionlint"]
    elif shutil.which("go"):
        checks["workflow"] = ["go", "run", ACTIONLINT]
    else:
        print(f"{'workflow':<36} skipped: neither actionlint nor go is here")
    failed = []
    for name, command in checks.items():
        failed += _run(name, command)
    for name in ["shared", *(f"packages/{s}" for s in slugs())]:
        # The namespace is shared by all members: deptry is told which distribution it stands for.
        own = ["--known-first-party", "neurips26"]
        namespace = own if name == "shared" else ["--package-module-name-map", "neurips26-shared=neurips26"]
        command = ["deptry", "--no-ansi", "--config", f"{name}/pyproject.toml", *namespace]
        # What the package imports must be declared; what it declares must be imported there, in its tests or benchmarks.
        failed += _run(f"imports declared, {name}", [*command, "--ignore", "DEP002", f"{name}/src"])
        places = [str(p) for p in (ROOT / name / d for d in ("src", "tests", "benchmarks")) if p.exists()]
        failed += _run(f"declared imported, {name}", [*command, "--ignore", "DEP001,DEP003,DEP004,DEP005", *places])
    problems = versions()
    print(f"{'versions':<36} {'ok' if not problems else 'FAILED'}")
    for problem in problems:
        print(f"  {problem}")
    failed += ["versions"] if problems else []
    print(f"check: {'all passed' if not failed else 'failed: ' + ', '.join(failed)}")
    return 1 if failed else 0


def _run(name: str, command: list[str]) -> list[str]:
    begin = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    print(f"{name:<36} {'ok' if done.returncode == 0 else 'FAILED'}  {time.monotonic() - begin:.0f} s", flush=True)
    if done.returncode:
        print(done.stdout[-6000:] + done.stderr[-6000:])
        return [name]
    return []


def versions() -> list[str]:
    """One version for all members, siblings pinned to it, no stray namespace ``__init__``, ``py.typed`` everywhere."""
    problems = []
    members = {
        name: tomllib.loads((ROOT / name / "pyproject.toml").read_text("utf-8"))["project"]
        for name in ["shared", *(f"packages/{s}" for s in slugs())]
    }
    version = members["shared"]["version"]
    for name, project in members.items():
        if project["version"] != version:
            problems.append(f"{name}: version: expected {version} as in shared, got {project['version']}")
        wanted = f"=={version}"
        extras = project.get("optional-dependencies", {}).values()
        needs = [*project["dependencies"], *itertools.chain.from_iterable(extras)]
        siblings = [d for d in needs if d.startswith("neurips26-") and not d.startswith(project["name"])]
        problems += [f"{name}: {d}: expected it pinned to {wanted}" for d in siblings if not d.endswith(wanted)]
        if (ROOT / name / "src/neurips26/__init__.py").exists():
            problems.append(f"{name}: src/neurips26/__init__.py hides all other members")
        if not list((ROOT / name / "src/neurips26").glob("*/py.typed")):
            problems.append(f"{name}: py.typed is missing")
    return problems


if __name__ == "__main__":
    sys.exit(main())
