"""Where the traces are on this machine, and helpers that drive a policy by hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

if "NEURIPS26_DATA" not in os.environ:
    for parent in Path(__file__).resolve().parents:
        if (parent.parent / "shared" / "data" / "felps").is_dir():
            os.environ["NEURIPS26_DATA"] = str(parent.parent / "shared" / "data")
            break


@pytest.fixture
def trace():
    from neurips26.shared import data
    from neurips26.shared.testing import needs

    def find(name: str) -> Path:
        path = data.find("felps", name)
        needs("data", path is not None, f"the trace {name}")
        return path

    return find
