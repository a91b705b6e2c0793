"""Lay out an empty package that passes every check: ``make new SLUG=my-paper``.

What it writes is a working example (James–Stein shrinkage against the plain mean) in the shape that every package has.
Replace it piece by piece; nothing in it needs to be learnt first.
"""

from __future__ import annotations

import keyword
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from common import ROOT, NoUvError, environment, find_uv

#: Words that a target of the Makefile, a verb of the command or a folder has already.
TAKEN = {
    "shared",
    "tests",
    "help",
    "setup",
    "demo",
    "test",
    "test-slow",
    "check",
    "bench",
    "wheels",
    "report",
    "readme",
    "new",
}
TAKEN |= {"ci", "list", "claims", "run", "record", "explain", "verify", "data", "doctor"}

PYPROJECT = """\
[project]
name = "neurips26-{slug}"
version = "{version}"
description = "{slug}: one line that says what the method does"
readme = "README.md"
license = "Apache-2.0"
requires-python = ">=3.11,<3.14"
dependencies = [
  "jaxtyping>=0.3.2",
  "neurips26-shared=={version}",
  "numpy>=2.2",
  "tyro>=0.9.20",
]

[project.entry-points."neurips26.papers"]
{slug} = "neurips26.{name}"

[build-system]
requires = ["uv_build>=0.8"]
build-backend = "uv_build"

[tool.uv.build-backend]
module-name = "neurips26.{name}"
"""

README = """\
# {slug}

Reconstruction from the abstract. What the method does, in two sentences.

## Install

```
pip install neurips26-{slug}
```

## Ten lines of use

```python
import numpy as np

from neurips26.{name} import shrink

x = np.array([2.0, -1.0, 0.5, 3.0])
print(shrink(x, noise=1.0))
```

## Claims

<!-- claims:begin -->
No record yet: the claims have not been measured.
<!-- claims:end -->

## Command line

```
neurips26 {slug} shrink 2.0 -1.0 0.5 3.0
neurips26 run {slug} --tier quick
```

## Full scale

What the gpu tier does, on which hardware, for how long.

## Limits

What this package does not do, and what the paper leaves open (`choices.py`).

## Cite

The paper's reference.
"""

PAPER = """\
title = "{slug}"
authors = "Authors of the paper"
venue = "NeurIPS 2026"
arxiv = ""
provenance = "reconstruction from the abstract"
summary = "one line that says what the method does"
claims = "neurips26.{name}.claims"
cli = "neurips26.{name}.cli:main"
"""

INIT = """\
\"\"\"The public API of {slug}.\"\"\"

from neurips26.{name}.choices import Choices
from neurips26.{name}.shrinkage import shrink

__all__ = ["Choices", "shrink"]
"""

CHOICES = """\
\"\"\"Every choice that the paper's text does not settle, with its alternatives.\"\"\"

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Choices"]


@dataclass(frozen=True)
class Choices:
    \"\"\"What we chose, and what else could be meant.

    Attributes:
        positive_part: never let the factor change the sign (Baranchik, 1964); ``False`` is the estimator of 1961.
    \"\"\"

    positive_part: bool = True
"""

COMPONENT = """\
\"\"\"Shrinkage of a vector of means towards zero (James and Stein, 1961).\"\"\"

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from neurips26.{name}.choices import Choices
from neurips26.shared.arrays import check_array, check_real

__all__ = ["shrink"]


def shrink(x: Float[np.ndarray, "d"], noise: float, choices: Choices | None = None) -> Float[np.ndarray, "d"]:
    \"\"\"Estimate ``d`` means from one noisy observation of each.

    Args:
        x: the observations.
        noise: their standard deviation.
        choices: what the paper leaves open.

    Raises:
        ValueError: fewer than three observations, or ``noise`` not positive.
    \"\"\"
    x = check_array(x, "x", shape=("d",), dtype=np.float64)
    check_real(noise, "noise", minimum=0.0, inclusive=False)
    if len(x) < 3:
        raise ValueError(f"x: expected at least 3 observations, got {{len(x)}}")
    factor = 1.0 - (len(x) - 2) * noise**2 / np.dot(x, x)
    return x * (max(factor, 0.0) if (choices or Choices()).positive_part else factor)
"""

CLAIMS = """\
\"\"\"The headline claims, each beside the baseline that it is claimed against.\"\"\"

from __future__ import annotations

import numpy as np

from neurips26.{name}.shrinkage import shrink
from neurips26.shared.claims import Claim, Criterion, DataUse, Measurement, Series, measures
from neurips26.shared.context import Context
from neurips26.shared.seeding import rng

#: Means a problem, and problems a seed.
D, PROBLEMS = 20, 200


def _errors(seed: int) -> dict[str, float]:
    stream = rng(seed, "problems")
    means = stream.normal(size=(PROBLEMS, D))
    x = means + stream.normal(size=(PROBLEMS, D))
    ours = np.stack([shrink(row, 1.0) for row in x])
    return {{"ours": float(((ours - means) ** 2).mean()), "plain mean": float(((x - means) ** 2).mean())}}


@measures(
    Claim(
        id="{slug}-error",
        statement="Shrinkage has a lower squared error than the plain mean",
        paper_value="none: abstract only",
        scope="scaled down",
        metric="mean squared error",
        unit="1",
        direction="lower",
        criterion=Criterion(kind="ratio", at_most=0.9),
    )
)
def error(ctx: Context) -> Measurement:
    \"\"\"Squared error on problems drawn a seed.\"\"\"
    seeds = ctx.seeds(10)
    rows = [ctx.cell({{"seed": seed}}, lambda s=seed: _errors(s)) for seed in ctx.track(seeds, "error")]
    return Measurement(
        ours=Series({{}}, [row["ours"] for row in rows]),
        baselines={{"plain mean": Series({{}}, [row["plain mean"] for row in rows])}},
        compared_to="plain mean",
        seeds=seeds,
        data=[DataUse("normal means", "generated")],
    )
"""

CLI = """\
\"\"\"The paper's own commands: ``neurips26 {slug} <verb>``.\"\"\"

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import tyro

from neurips26.{name}.shrinkage import shrink

__all__ = ["main"]


@dataclass
class Shrink:
    \"\"\"Shrink the given observations.\"\"\"

    x: Annotated[list[float], tyro.conf.Positional]
    \"\"\"Observations.\"\"\"
    noise: float = 1.0
    \"\"\"Their standard deviation.\"\"\"

    def __call__(self) -> int:
        print(*np.round(shrink(np.asarray(self.x), self.noise), 6))
        return 0


def main(argv: list[str]) -> int:
    \"\"\"Run one verb.\"\"\"
    verb = tyro.extras.subcommand_cli_from_dict({{"shrink": Shrink}}, args=argv, prog="neurips26 {slug}")
    return verb()
"""

TESTS = """\
import numpy as np
import pytest

from neurips26.{name} import Choices, shrink
from neurips26.{name}.cli import main


def test_known_value():
    # |x|^2 = 16, d = 4: the factor is 1 - 2/16.
    np.testing.assert_allclose(shrink(np.array([2.0, 2.0, 2.0, 2.0]), 1.0), 1.75)


def test_positive_part_never_changes_a_sign():
    x = np.array([0.5, 0.5, 0.5, 0.5])
    np.testing.assert_array_equal(shrink(x, 1.0), np.zeros(4))
    np.testing.assert_allclose(shrink(x, 1.0, Choices(positive_part=False)), -x)


@pytest.mark.parametrize(
    ("x", "noise", "message"),
    [
        ([1.0, 2.0], 1.0, "x: expected at least 3"),
        ([1.0, np.nan, 2.0], 1.0, "x: expected finite"),
        ([1.0] * 3, 0.0, "noise"),
    ],
)
def test_bad_input_names_the_argument(x, noise, message):
    with pytest.raises(ValueError, match=message):
        shrink(np.asarray(x), noise)


def test_command_line(capsys):
    assert main(["shrink", "2", "2", "2", "2"]) == 0
    assert capsys.readouterr().out.split() == ["1.75"] * 4
"""


def files(slug: str, version: str) -> dict[str, str]:
    """The files of a new package by their path below it."""
    name = slug.replace("-", "_")
    source = f"src/neurips26/{name}"
    texts = {
        "pyproject.toml": PYPROJECT,
        "README.md": README,
        f"{source}/__init__.py": INIT,
        f"{source}/choices.py": CHOICES,
        f"{source}/shrinkage.py": COMPONENT,
        f"{source}/claims.py": CLAIMS,
        f"{source}/cli.py": CLI,
        f"{source}/paper.toml": PAPER,
        f"{source}/py.typed": "",
        "tests/test_shrinkage.py": TESTS,
    }
    return {path: _sorted(text.format(slug=slug, name=name, version=version)) for path, text in texts.items()}


def _sorted(text: str) -> str:
    """Sort neighbouring imports of ours: where ``shared`` stands among them depends on the slug."""
    block = re.compile(r"(?:^from neurips26\.[\w.]+ import .*\n)+", re.M)
    return block.sub(lambda found: "".join(sorted(found[0].splitlines(keepends=True), key=_by_module)), text)


def _by_module(line: str) -> str:
    return line.split()[1]


def lay_out(slug: str, root: Path = ROOT) -> Path:
    """Write the package below ``root/packages`` and list it in the README.

    Raises:
        ValueError: not a slug, or one that is taken; nothing is written.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", slug) or keyword.iskeyword(slug):
        raise ValueError(f"SLUG: expected lower-case words joined by hyphens (make new SLUG=my-paper), got {slug!r}")
    if slug in TAKEN:
        raise ValueError(f"SLUG: expected a name that no command, target or folder has, got {slug!r}")
    folder = root / "packages" / slug
    if folder.exists():
        raise ValueError(f"SLUG: expected a new name, got {slug!r}, which packages/{slug} has already")
    version = tomllib.loads((root / "shared" / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    for path, text in files(slug, version).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
    _list_in_readme(root / "README.md", slug)
    return folder


def _list_in_readme(readme: Path, slug: str) -> None:
    """Put a line for the package after the last one of the table of packages."""
    lines = readme.read_text("utf-8").splitlines(keepends=True)
    listed = [i for i, line in enumerate(lines) if re.match(r"\| \[[a-z0-9-]+\]\(packages/[a-z0-9-]+\) \|", line)]
    if listed:
        lines.insert(listed[-1] + 1, f"| [{slug}](packages/{slug}) | one line that says what the method does |\n")
        readme.write_text("".join(lines), "utf-8")


def main(slug: str) -> int:
    """Lay the package out and bring it into the lock file."""
    try:
        folder = lay_out(slug)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        code = subprocess.run([find_uv(), "lock", "-q"], cwd=ROOT, env=environment(), check=False).returncode
    except NoUvError as error:
        print(f"new: {error}", file=sys.stderr)
        code = 1
    if code:
        print(
            "new: the package is laid out, but `uv lock` did not run: run it when there is a network", file=sys.stderr
        )
        return code
    print(f"new: {folder.relative_to(ROOT)}; try `make {slug}`, then read CONTRIBUTING.md")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
