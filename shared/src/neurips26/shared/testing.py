"""What the tests of every package use; loaded as a pytest plug-in.

It checks the jaxtyping annotations of every ``neurips26`` module at test time, and it turns "this machine lacks X" into
a listed skip, or into a failure where ``NEURIPS26_REQUIRE`` names X.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
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


_HOOK = pytest.StashKey()
