"""What the claims share: how a cell is written, and what several of them name."""

from __future__ import annotations

from typing import Any

from neurips26.shared.claims import DataUse

__all__ = ["DIGITS", "EFFECTS", "GAP", "cell"]

EFFECTS = "neurips26.knn_certificate.effects"
DIGITS = DataUse("digits (scikit-learn)", "from a dependency")
GAP = "from scratch: 8.0 points above the test error (CIFAR-10, ResNet-18); frozen DINOv2: 1.4% certified on CIFAR-10"


def cell(factors: dict[str, Any], seed: int, method: str, value: float) -> dict[str, Any]:
    """A cell of a record, its value to seven digits."""
    return {"factors": factors, "seed": seed, "method": method, "value": float(f"{value:.7g}")}
