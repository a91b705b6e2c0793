import importlib
import sys
import textwrap
from pathlib import Path

import pytest

CLAIMS = '''
"""Claims of a paper that exists for the tests only."""
import os
from pathlib import Path

from neurips26.shared.claims import Claim, Criterion, DataUse, Measurement, Series, Tuning, measures, tunes


def claim(name, criterion, **more):
    return Claim(id=name, statement="ours is smaller", paper_value="none", scope="scaled down", metric="loss",
                 unit="1", direction="lower", criterion=criterion, **more)


def _count(name):
    with open(os.environ["FAKE_LOG"], "a") as log:
        log.write(name + "\\n")


@measures(Claim(id="smaller", statement="ours is smaller", paper_value="none", scope="scaled down", metric="loss",
                unit="1", direction="lower", criterion=Criterion(kind="ratio", at_most=0.9)))
def smaller(ctx):
    def one(seed):
        _count(f"cell {seed}")
        if os.environ.get("FAKE_DIE") == str(seed - ctx.seeds(1)[0]):
            os._exit(9)
        return {"ours": 1.0 + (seed % 7) * 1e-3, "base": 2.0}
    seeds = ctx.seeds(6)
    rows = [ctx.cell({"seed": s}, lambda s=s: one(s)) for s in seeds]
    path = ctx.figure("smaller.png")
    path.write_bytes(b"png")
    return Measurement(ours=Series({"lr": 0.1}, [r["ours"] for r in rows]),
                       baselines={"base": Series({"lr": 0.2}, [r["base"] for r in rows])}, compared_to="base",
                       seeds=seeds, data=[DataUse("numbers", "generated")], figures=[path], tuned_by="rates")


@measures(claim("needs-a-gpu", Criterion(kind="bound", at_most=1.0), needs=("gpu",)))
def gpu_only(ctx):
    raise AssertionError("never called without a GPU")


@tunes(id="rates", statement="one grid for both")
def rates(ctx):
    cells = [{"factors": {"lr": lr}, "method": "ours", "seed": s, "value": lr} for lr in (0.1, 0.2) for s in ctx.seeds(2)]
    return Tuning(cells, {"ours": {"lr": 0.1}, "base": {"lr": 0.2}})
'''

TOML = """
title = "A paper for tests"
provenance = "code"
summary = "nothing"
claims = "neurips26.fake_paper.claims"
"""


@pytest.fixture
def fake_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Install a small paper (and a broken one) on sys.path; yields the folder, to be put on a child's PYTHONPATH."""
    site = tmp_path / "site"
    package = site / "neurips26" / "fake_paper"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "claims.py").write_text(textwrap.dedent(CLAIMS))
    (package / "paper.toml").write_text(TOML)
    broken = site / "neurips26" / "broken_paper"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('never imported by list')\n")
    info = site / "fake-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[neurips26.papers]\nfake-paper = neurips26.fake_paper\nbroken-paper = neurips26.broken_paper\n"
    )
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    importlib.invalidate_caches()
    yield site
    for name in [n for n in sys.modules if n.startswith(("neurips26.fake_paper", "neurips26.broken_paper"))]:
        del sys.modules[name]
