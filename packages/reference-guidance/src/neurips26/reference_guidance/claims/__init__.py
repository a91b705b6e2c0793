"""The paper's headline claims: criteria fixed before the run, one function a claim, one file a subject."""

# ruff: noqa: I001  the order of these names is the order of the record
from neurips26.reference_guidance.claims.closed_form import (
    mean_is_velocity,
    moons_composition,
    moons_swap,
    sparse_labels_five,
    sparse_labels_fifty,
    sparse_labels_moons_five,
    sparse_labels_moons,
)
from neurips26.reference_guidance.claims.digits import (
    digits_control,
    digits_not_copied,
    digits_over_average,
    tune_digits,
    composition,
    composition_error,
    true_time,
)
from neurips26.reference_guidance.claims.faces import (
    tune_tint,
    tune_style,
    tune_layout,
    tune_person,
    tune_people,
    faces_colour,
    faces_style,
    faces_structure,
    faces_identity_mixed,
    faces_colour_not_copied,
    faces_style_not_copied,
    faces_structure_not_copied,
    faces_identity_mixed_not_copied,
    faces_identity,
    faces_identity_not_copied,
)
from neurips26.reference_guidance.claims.animals import (
    tune_animals,
    cats_dogs_control,
    cats_dogs_not_copied,
)
from neurips26.reference_guidance.claims.generator import (
    tune_spg_rate,
    spg_quality,
    spg_held_out,
    spg_swap,
)
from neurips26.reference_guidance.claims.costs import (
    speed_mean,
    speed_pipeline,
    speed_anchor,
)
from neurips26.reference_guidance.claims.on_gpu import (
    gpu_overhead,
    gpu_spg_parity,
    klein_control,
    afhq_quality,
)
from neurips26.reference_guidance.claims.common import (
    composition_rank,
)

__all__ = [
    "afhq_quality",
    "cats_dogs_control",
    "cats_dogs_not_copied",
    "composition",
    "composition_error",
    "composition_rank",
    "digits_control",
    "digits_not_copied",
    "digits_over_average",
    "faces_colour",
    "faces_colour_not_copied",
    "faces_identity",
    "faces_identity_mixed",
    "faces_identity_mixed_not_copied",
    "faces_identity_not_copied",
    "faces_structure",
    "faces_structure_not_copied",
    "faces_style",
    "faces_style_not_copied",
    "gpu_overhead",
    "gpu_spg_parity",
    "klein_control",
    "mean_is_velocity",
    "moons_composition",
    "moons_swap",
    "sparse_labels_fifty",
    "sparse_labels_five",
    "sparse_labels_moons",
    "sparse_labels_moons_five",
    "speed_anchor",
    "speed_mean",
    "speed_pipeline",
    "spg_held_out",
    "spg_quality",
    "spg_swap",
    "true_time",
    "tune_animals",
    "tune_digits",
    "tune_layout",
    "tune_people",
    "tune_person",
    "tune_spg_rate",
    "tune_style",
    "tune_tint",
]
