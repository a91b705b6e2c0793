"""The paper's claims and how each is tested.

The abstract gives the three terms and five figures, not the theorem. The bounds measured here are proved (see ``certify``)
but they are our arrangement of the terms; figures at the paper's own scale need a GPU.
"""

# ruff: noqa: I001  the order of these names is the order of the record
from neurips26.knn_certificate.claims.validity import (
    valid,
)
from neurips26.knn_certificate.claims.gaps import (
    gap_digits,
    gap_banking77,
    gap_clinc150,
    tune_head,
)
from neurips26.knn_certificate.claims.terms import (
    tune_choices,
)
from neurips26.knn_certificate.claims.gaps import (
    tighter_than_norms,
)
from neurips26.knn_certificate.claims.terms import (
    terms_move,
    falls_with_data,
)
from neurips26.knn_certificate.claims.geometry import (
    geometry_tracks_generalization,
    destroyed_geometry_hurts,
    cross_pairs_hurt,
    tune_random_labels,
    tune_rainbow,
)
from neurips26.knn_certificate.claims.noise import (
    weight_noise_claim,
    weight_noise_fair,
)
from neurips26.knn_certificate.claims.gaps import (
    cifar,
    cifar10_resnet18,
    cifar10_dinov2,
)

__all__ = [
    "cifar",
    "cifar10_dinov2",
    "cifar10_resnet18",
    "cross_pairs_hurt",
    "destroyed_geometry_hurts",
    "falls_with_data",
    "gap_banking77",
    "gap_clinc150",
    "gap_digits",
    "geometry_tracks_generalization",
    "terms_move",
    "tighter_than_norms",
    "tune_choices",
    "tune_head",
    "tune_rainbow",
    "tune_random_labels",
    "valid",
    "weight_noise_claim",
    "weight_noise_fair",
]
