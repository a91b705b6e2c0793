"""What the tests of every package use; loaded as a pytest plug-in.

It checks the jaxtyping annotations of every ``neurips26`` module at test time, and it turns "this machine lacks X" into
a listed skip, or into a failure where ``NEURIPS26_REQUIRE`` names X.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import pytest

__all__ = ["needs", "required", "typecheck"]


def required() -> frozenset[str]:
    """The reasons that ``NEURIPS26_REQUIRE`` (comma-separated) does not accept for a skip."""
    return frozenset(filter(None, (part.strip() for part in os.environ.get("NEURIPS26_REQUIRE", "").split(","))))


def needs(reason: str, ok: bool, why: str = "") -> None:
    """Skip the calling test unless ``ok``; fail instead when ``NEURIPS26_REQUIRE`` contains ``reason``."""
    if ok:
        return
    message = f"needs {reason}{f': {why}' if why else ''}"
    if reason in required():
        pytest.fail(f"{message} (NEURIPS26_REQUIRE contains {reason})")
    pytest.skip(message)


def typecheck(thing: Any) -> Any:
    """Beartype with the numeric tower: an int passes where a float is asked for, as in the language."""
    from beartype import BeartypeConf, beartype

    return beartype(conf=BeartypeConf(is_pep484_tower=True))(thing)


@pytest.fixture(autouse=True)
def _annotations_stand_aside(request: pytest.FixtureRequest) -> Iterator[None]:
    """In tests marked ``bad_input`` our own checks must answer, not the annotation checker in front of them."""
    if request.node.get_closest_marker("bad_input") is None:
        yield
        return
    from jaxtyping import config

    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", before)


def pytest_configure(config: pytest.Config) -> None:
    """Install the hook that checks shapes and types of our own modules while tests run."""
    config.addinivalue_line("markers", "bad_input: arguments of the wrong kind on purpose; annotations are not checked")
    if os.environ.get("NEURIPS26_TYPECHECK", "1") == "0":
        return
    try:
        from jaxtyping import install_import_hook
    except ImportError:
        return
    config.stash[_HOOK] = install_import_hook("neurips26", "neurips26.shared.testing.typecheck")
    sys.meta_path.insert(0, _KernelModules())


class _KernelModules(MetaPathFinder):
    """Leaves modules with Triton kernels as they are: Triton reads a kernel's source and its globals, which a wrapper hides."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The plain spec of a module with kernels, ``None`` for all others."""
        if not fullname.startswith("neurips26."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or not spec.origin or not spec.origin.endswith(".py"):
            return None
        return spec if "@triton.jit" in Path(spec.origin).read_text("utf-8") else None


_HOOK = pytest.StashKey()
