"""The paper's headline claims: criteria fixed before the run, one function a claim, one file a subject."""

# ruff: noqa: I001  the order of these names is the order of the record
from neurips26.flash_kmeans.claims.timing import (
    colour_quantisation,
)
from neurips26.flash_kmeans.claims.quality import (
    same_quality,
    exact_labels,
)
from neurips26.flash_kmeans.claims.resources import (
    no_distance_matrix,
)
from neurips26.flash_kmeans.claims.timing import (
    speed_grid,
    speed_every_shape,
    fused_assignment,
    linear_time,
    init_speed,
)
from neurips26.flash_kmeans.claims.resources import (
    out_of_core,
)
from neurips26.flash_kmeans.claims.on_gpu import (
    gpu_flash_assign,
    gpu_end_to_end,
    gpu_small_segments,
    gpu_first_call,
    gpu_sort_inverse,
    gpu_skew,
    gpu_certified,
    gpu_memory,
    gpu_overlap,
)

__all__ = [
    "colour_quantisation",
    "exact_labels",
    "fused_assignment",
    "gpu_certified",
    "gpu_end_to_end",
    "gpu_first_call",
    "gpu_flash_assign",
    "gpu_memory",
    "gpu_overlap",
    "gpu_skew",
    "gpu_small_segments",
    "gpu_sort_inverse",
    "init_speed",
    "linear_time",
    "no_distance_matrix",
    "out_of_core",
    "same_quality",
    "speed_every_shape",
    "speed_grid",
]
