"""What the tests of every package use; loaded as a pytest plug-in.

It checks the jaxtyping annotations of every ``neurips26`` module at test time, and it turns "this machine lacks X" into
a listed skip, or into a failure where ``NEURIPS26_REQUIRE`` names X.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

__all__ = ["needs", "required", "typechecked"]


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


def typechecked(function: Any) -> Any:
    """Beartype with the numeric tower of PEP 484: where ``float`` is asked for, an ``int`` is right too."""
    from beartype import BeartypeConf, beartype

    return beartype(function, conf=BeartypeConf(is_pep484_tower=True))


def pytest_configure(config: pytest.Config) -> None:
    """Install the hook that checks shapes and types of our own modules while tests run."""
    if os.environ.get("NEURIPS26_TYPECHECK", "1") == "0":
        return
    try:
        from jaxtyping import install_import_hook
    except ImportError:
        return
    config.stash[_HOOK] = install_import_hook("neurips26", "neurips26.shared.testing.typechecked")


_HOOK = pytest.StashKey()
