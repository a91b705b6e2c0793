"""FELPS: fairness-aware efficient LoRA priority scheduling for servers with many adapters."""

from neurips26.felps.baselines import (
    AffinityPolicy,
    DLoRAPolicy,
    DLPMPolicy,
    DRRPolicy,
    FCFSPolicy,
    SJFPolicy,
    VTCPolicy,
)
from neurips26.felps.compare import compare, dominated, hypervolume, pareto
from neurips26.felps.engine_model import EngineModel, Step, calibrate, fit_cost_profile
from neurips26.felps.felps import FELPSPolicy
from neurips26.felps.metrics import RunResult, jain, proportional_shares
from neurips26.felps.policy import Admission, Policy
from neurips26.felps.request import BASE, Request
from neurips26.felps.simulator import Simulator
from neurips26.felps.slots import AdapterSlots
from neurips26.felps.workload import TraceError, Workload

__all__ = [
    "BASE",
    "AdapterSlots",
    "Admission",
    "AffinityPolicy",
    "DLPMPolicy",
    "DLoRAPolicy",
    "DRRPolicy",
    "EngineModel",
    "FCFSPolicy",
    "FELPSPolicy",
    "Policy",
    "Request",
    "RunResult",
    "SJFPolicy",
    "Simulator",
    "Step",
    "TraceError",
    "VTCPolicy",
    "Workload",
    "calibrate",
    "compare",
    "dominated",
    "fit_cost_profile",
    "hypervolume",
    "jain",
    "pareto",
    "proportional_shares",
]
