"""The authors' released experiments as numbers: FLUX.2 (``released``) and AFHQv2 (``afhq``). Light to import."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from neurips26.shared.arrays import check_choice

__all__ = ["afhq", "released"]

_CONFIGS = Path(__file__).parent / "configs"


def released(name: str = "") -> dict[str, Any]:
    """Settings of one FLUX.2 experiment, or the names of all."""
    return _resolved("released.toml", name)


def afhq(name: str = "") -> dict[str, Any]:
    """Settings of one AFHQv2 run, or the names of all."""
    return _resolved("afhq.toml", name)


def _resolved(file: str, name: str) -> dict[str, Any]:
    configs = tomllib.loads((_CONFIGS / file).read_text("utf-8"))
    defaults = configs.pop("defaults")
    return defaults | configs[check_choice(name, "name", configs)] if name else {"experiments": sorted(configs)}
