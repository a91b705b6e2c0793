"""Rank and kernel analysis under one name."""

from .alignment import (
    AlignmentCurve,
    alignment_curve,
    bank_kernel,
    cka,
    empirical_kernel,
    feature_alignment,
    learning_curve_gd,
    phase_randomised,
    time_shuffled,
)
from .filters import frequency_response
from .rank import (
    RankCurve,
    effective_rank,
    energy_rank,
    intrinsic_rank,
    numerical_rank,
    one_standard_error,
    rank_curve,
    rank_selection_criterion,
    spectrum,
    stable_rank,
)

__all__ = [
    "AlignmentCurve",
    "RankCurve",
    "alignment_curve",
    "bank_kernel",
    "cka",
    "effective_rank",
    "empirical_kernel",
    "energy_rank",
    "feature_alignment",
    "frequency_response",
    "intrinsic_rank",
    "learning_curve_gd",
    "numerical_rank",
    "one_standard_error",
    "phase_randomised",
    "rank_curve",
    "rank_selection_criterion",
    "spectrum",
    "stable_rank",
    "time_shuffled",
]
