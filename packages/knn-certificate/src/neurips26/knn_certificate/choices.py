"""Every choice the published abstract does not settle, with the alternatives that were open."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CHOICES", "Choices"]


@dataclass(frozen=True)
class Choices:
    """Settings of the certificate. The theorem itself is ours: the abstract gives its three terms, not their form.

    The two that matter most are the size of the certification block and the metric; the tune record holds a run over
    both.

    Attributes:
        block: fraction of the data held back for certification. Alternatives: 0.1 (tighter training, more slack), 0.3.
        metric: distance in the last hidden layer. Alternative: ``"euclidean"``.
        k_grid: numbers of neighbours tried by leave-one-out on the memory alone, so the choice costs nothing.
        layer: the input of the last linear layer. Alternative: any named module.
        small_block: below this many certification points a warning says that slack dominates.
    """

    block: float = 0.2
    metric: str = "cosine"
    k_grid: tuple[int, ...] = (1, 3, 5, 10, 20, 50)
    layer: str = "auto"
    small_block: int = 100


CHOICES = Choices()
