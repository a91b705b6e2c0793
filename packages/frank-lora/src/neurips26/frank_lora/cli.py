"""The paper's own commands: ``neurips26 frank-lora <verb>``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import tyro

from neurips26.frank_lora.shrinkage import shrink

__all__ = ["main"]


@dataclass
class Shrink:
    """Shrink the given observations."""

    x: Annotated[list[float], tyro.conf.Positional]
    """Observations."""
    noise: float = 1.0
    """Their standard deviation."""

    def __call__(self) -> int:
        print(*np.round(shrink(np.asarray(self.x), self.noise), 6))
        return 0


def main(argv: list[str]) -> int:
    """Run one verb."""
    verb = tyro.extras.subcommand_cli_from_dict({"shrink": Shrink}, args=argv, prog="neurips26 frank-lora")
    return verb()
