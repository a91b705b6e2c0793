"""What the tests of the whole house share: the members, a usable uv, and files of theirs read once."""

import subprocess
import sys
import tomllib
from pathlib import Path

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
def neurips26():
    """Run the command as a user does, in a process of its own."""

    def run(*arguments, **more):
        env = common.environment() | {"NO_COLOR": "1", "COLUMNS": "200"} | more.pop("env", {})
        command = [sys.executable, "-m", "neurips26.shared.cli", *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300, **more)

    return run


@pytest.fixture(scope="session")
def clean_env() -> dict[str, str]:
    """No environment of ours and no module path leaks into a fresh environment."""
    drop = ("VIRTUAL_ENV", "PYTHONPATH", "UV_PROJECT_ENVIRONMENT", "PYTEST_CURRENT_TEST")
    return {k: v for k, v in common.environment().items() if k not in drop} | {"PYTHONNOUSERSITE": "1"}
