"""The abstract's claims, and what a scheduler of this kind must keep to be used, each as a test; one file a subject."""

# ruff: noqa: I001  the order of these names is the order of the record
from neurips26.felps.claims.fronts import (
    front_area,
    not_dominated,
    beats_fair,
    fairer_than_vtc_skip,
    as_fast_as_vtc_skip,
)
from neurips26.felps.claims.weight import (
    loads_fall,
    gap_rises,
    service_follows_workload,
)
from neurips26.felps.claims.engine import (
    simulator_makespan,
    simulator_order,
    mixed_batches,
)
from neurips26.felps.claims.costs import (
    admission,
    hour_of_sweeps,
)
from neurips26.felps.claims.in_vllm import (
    vllm_same_text,
    vllm_fairer,
    vllm_as_fast,
    vllm_scheduling_cost,
)
from neurips26.felps.tuning import sensitivity, tune_modes, tune_plug_in, tune_weight, tune_weight_against_skip

__all__ = [
    "admission",
    "as_fast_as_vtc_skip",
    "beats_fair",
    "fairer_than_vtc_skip",
    "front_area",
    "gap_rises",
    "hour_of_sweeps",
    "loads_fall",
    "mixed_batches",
    "not_dominated",
    "sensitivity",
    "service_follows_workload",
    "simulator_makespan",
    "simulator_order",
    "tune_modes",
    "tune_plug_in",
    "tune_weight",
    "tune_weight_against_skip",
    "vllm_as_fast",
    "vllm_fairer",
    "vllm_same_text",
    "vllm_scheduling_cost",
]
