"""Reference-guided flow matching: steer a frozen generator with a handful of examples, or train one whose set swaps.

with guide(pipe, ReferenceMeanGuidance(ReferenceBank.from_images(pipe, folder, 768, 768))):
    image = pipe("an elephant in a jungle").images[0]
"""

from __future__ import annotations

import importlib
from typing import Any

from neurips26.reference_guidance.bank import ReferenceBank
from neurips26.reference_guidance.bridge import LinearBridge, VPBridge, endpoint_mean, velocity_from_mean
from neurips26.reference_guidance.errors import (
    BankCorruptError,
    BankMismatchError,
    CheckpointError,
    EmptyBankError,
    ImageError,
    UnknownLayoutError,
    UnsupportedSchedulerError,
)
from neurips26.reference_guidance.guidance import ExtrapolationWarning, ReferenceMeanGuidance, StepRecord
from neurips26.reference_guidance.layouts import Layout, register_layout
from neurips26.reference_guidance.posterior import PosteriorStats, reference_mean
from neurips26.reference_guidance.steering import SparseLabelSteering

#: Names that need diffusers, which takes seconds to import: loaded when first used.
_LAZY = {
    "guide": "schedulers",
    "guided_scheduler": "schedulers",
    "ReferenceGuidedFlowMatchEuler": "schedulers",
    "ReferenceGuidedFlowMatchHeun": "schedulers",
    "ReferenceGuidedFlowMatchLCM": "schedulers",
    "ReferenceGuidanceCallback": "released",
    "SPG": "spg",
    "SPGConfig": "spg",
    "DiTMean": "spg",
    "SPGTrainer": "spg_train",
    "SPGPipeline": "spg_pipeline",
}

__all__ = [
    "BankCorruptError",
    "BankMismatchError",
    "CheckpointError",
    "DiTMean",
    "EmptyBankError",
    "ExtrapolationWarning",
    "ImageError",
    "Layout",
    "LinearBridge",
    "PosteriorStats",
    "ReferenceBank",
    "ReferenceGuidanceCallback",
    "ReferenceGuidedFlowMatchEuler",
    "ReferenceGuidedFlowMatchHeun",
    "ReferenceGuidedFlowMatchLCM",
    "ReferenceMeanGuidance",
    "SPG",
    "SPGConfig",
    "SPGPipeline",
    "SPGTrainer",
    "SparseLabelSteering",
    "StepRecord",
    "UnknownLayoutError",
    "UnsupportedSchedulerError",
    "VPBridge",
    "endpoint_mean",
    "guide",
    "guided_scheduler",
    "reference_mean",
    "register_layout",
    "velocity_from_mean",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
