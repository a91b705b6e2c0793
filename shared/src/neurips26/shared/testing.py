"""What the tests of every package use; loaded as a pytest plug-in.

It checks the jaxtyping annotations of every ``neurips26`` module at test time, and it turns "this machine lacks X" into
a listed skip, or into a failure where ``NEURIPS26_REQUIRE`` names X.
"""

from __future__ import annotations

import os

import pytest

__all__ = ["needs", "required"]


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


def pytest_configure(config: pytest.Config) -> None:
    """Install the hook that checks shapes and types of our own modules while tests run."""
    if os.environ.get("NEURIPS26_TYPECHECK", "1") == "0":
        return
    try:
        from jaxtyping import install_import_hook
    except ImportError:
        return
    config.stash[_HOOK] = install_import_hook("neurips26", "beartype.beartype")


_HOOK = pytest.StashKey()
