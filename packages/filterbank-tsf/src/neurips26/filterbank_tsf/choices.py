"""What the abstract does not settle: what was chosen as the default, why, and what else it could have been."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Core = Literal["dense", "lowrank", "depthwise", "shared"]


@dataclass(frozen=True)
class Choices:
    """Our reading of the method. The abstract names the parts; their form below is inferred.

    Three more choices are the architecture itself and no setting. Frames are anchored at the newest sample and the oldest
    value is repeated on the left (anchored at the oldest sample they would lose recent ones when the stride does not divide
    L - P). A deep network is a doubly residual stack whose first block starts at the linear optimum (instead of a plain
    residual stack on coefficients, or one bank with a GELU core). Look-back, rank and penalty are chosen by the rule that
    the tuning grid ``rule`` decides on (instead of by the smallest validation error, or by blocked cross-validation of the
    rank with one standard error; all three are rows of the claim ``table``).

    Attributes:
        norm: instance normalisation of every window. ``"mean"`` is what RevIN amounts to for a bias-free linear map.
            Alternatives: ``"last"`` (same class of functions without a penalty), ``"none"`` with an intercept.
            Sensitivity in the record: both norms are cells of the claim ``alignment``.
        filters: where the filters of a fitted bank come from. ``"predictive"`` (eigenvectors of moment blocks).
            Alternatives: cosine, wavelet, random filters, each with the same closed-form core.
        core: how coefficients are mixed over time. ``"lowrank"``. Alternatives: dense, one matrix a filter, one for all.
        stack_strides: strides of the blocks of a deep stack after the first, in turn, in periods: several resolutions.
            Alternative: the same stride in every block.
    """

    norm: str = "mean"
    filters: str = "predictive"
    core: Core = "lowrank"
    stack_strides: tuple[float, ...] = (0.25, 0.5, 1.0)


DEFAULTS = Choices()
