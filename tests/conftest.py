"""What the tests of the whole house share: the members, a usable uv, and files of theirs read once."""

import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parent / "house"))
import common

ROOT = common.ROOT
SLUGS = common.slugs()
MEMBERS = ["shared", *(f"packages/{slug}" for slug in SLUGS)]


def pytest_generate_tests(metafunc):
    """A test that takes ``slug`` or ``member`` runs once for each."""
    for name, values in (("slug", SLUGS), ("member", MEMBERS)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, values)


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def uv() -> str:
    return common.find_uv()


@pytest.fixture(scope="session")
def projects() -> dict[str, dict]:
    """``pyproject.toml`` of each member."""
    return {name: tomllib.loads((ROOT / name / "pyproject.toml").read_text("utf-8")) for name in MEMBERS}


@pytest.fixture
def neurips26(capsys, monkeypatch):
    """Run the command in this process (the papers are imported once for all tests) and return status, output and errors."""
    from rich.console import Console

    from neurips26.shared import cli

    monkeypatch.setattr(cli, "out", Console(width=200, no_color=True))
    monkeypatch.setattr(cli, "err", Console(stderr=True, width=200, no_color=True))

    def run(*arguments):
        try:
            code = cli.main(list(arguments))
        except SystemExit as stop:  # how tyro ends after --help and after a mistake
            code = 0 if stop.code is None else stop.code
        said = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=said.out, stderr=said.err)

    return run


@pytest.fixture(scope="session")
def clean_env() -> dict[str, str]:
    """No environment of ours and no module path leaks into a fresh environment."""
    drop = ("VIRTUAL_ENV", "PYTHONPATH", "UV_PROJECT_ENVIRONMENT", "PYTEST_CURRENT_TEST")
    return {k: v for k, v in common.environment().items() if k not in drop} | {"PYTHONNOUSERSITE": "1"}
