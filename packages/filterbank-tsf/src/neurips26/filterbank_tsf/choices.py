"""Everything the abstract does not settle, in one place: what was chosen, why, and what else it could have been."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Choices:
    """Our reading of the method. The abstract names the parts; their form below is inferred.

    Attributes:
        norm: instance normalisation of every window. ``"mean"`` is what RevIN amounts to for a bias-free linear map.
            Alternatives: ``"last"`` (same class of functions without a penalty), ``"none"`` with an intercept.
            Sensitivity in the record: both norms are cells of the claim ``alignment``.
        selection: how look-back, rank and penalty are chosen without the test part. ``"rehearsed"`` takes the rule that
            the tuning grid ``rule`` decides on: blocked rehearsals inside training and validation rows, fewest members
            within one standard error. Alternatives: the minimum on validation, blocked cross-validation of the rank with
            one standard error. Sensitivity in the record: all three are rows of the claim ``table``.
        filters: where the filters of a strided bank come from. ``"predictive"`` (eigenvectors of moment blocks).
            Alternatives: cosine, wavelet, random filters, each with the same closed-form core.
        core: how coefficients are mixed over time. ``"lowrank"``. Alternatives: dense, one matrix a filter, one for all.
        frames: where frames lie. Anchored at the newest sample, oldest value repeated on the left. Alternative: anchored
            at the oldest sample, which loses recent samples when the stride does not divide L - P.
        stack: how a deep network is built from the block. Doubly residual with forecasts added up, the first block at
            the linear optimum. Alternatives: a plain residual stack on coefficients; a single bank with a GELU core.
    """

    norm: str = "mean"
    selection: str = "rehearsed"
    filters: str = "predictive"
    core: str = "lowrank"
    frames: str = "newest sample last"
    stack: str = "doubly residual"
