"""Baselines, written once: each class says its equation, its source and what it does with mixed ranks."""

from neurips26.shared.federated.methods.alone import HeadOnly, Local
from neurips26.shared.federated.methods.averaging import (
    FFA,
    Centralized,
    FedIT,
    FedPLoRA,
    FedProx,
    FedSA,
    FLoRANA,
    HetLoRA,
    RoLoRA,
    ZeroPad,
)
from neurips26.shared.federated.methods.base import FactorMethod, MergingMethod, initial_a
from neurips26.shared.federated.methods.merging import FedEx, FlexLoRA, FLoRA

#: By the name that a configuration uses.
METHODS = {
    method.name: method
    for method in (
        Local,
        Centralized,
        HeadOnly,
        FedIT,
        FedProx,
        FFA,
        RoLoRA,
        FedSA,
        FlexLoRA,
        FLoRA,
        HetLoRA,
        ZeroPad,
        FedEx,
        FedPLoRA,
        FLoRANA,
    )
}

__all__ = [
    "METHODS",
    "Centralized",
    "FFA",
    "FLoRA",
    "FLoRANA",
    "FactorMethod",
    "FedEx",
    "FedIT",
    "FedPLoRA",
    "FedProx",
    "FedSA",
    "FlexLoRA",
    "HeadOnly",
    "HetLoRA",
    "Local",
    "MergingMethod",
    "RoLoRA",
    "ZeroPad",
    "initial_a",
]
