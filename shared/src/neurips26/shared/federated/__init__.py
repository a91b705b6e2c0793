"""Federated fine-tuning with LoRA adapters on Flower: one harness for all methods. Needs ``neurips26-shared[federated]``.

A run is fixed by a :class:`FedConfig`; :func:`run_federated` runs it in this process or on Ray, ``flwr run`` on a
SuperLink. A method is a :class:`FedMethod`, a problem a :class:`Task`; the baselines are in ``methods``.

**What is evaluated.** Three columns, never mixed: ``global`` is the server's model on the union test set; ``received`` is
a client's personal model as it arrives, on the client's own test set; ``tuned`` is the same after one more local round
that nobody keeps.
"""

from neurips26.shared.federated.checkpoint import Checkpoints, ConfigMismatchError
from neurips26.shared.federated.client import build_method, build_task, make_client_app, setup_of
from neurips26.shared.federated.config import FedConfig
from neurips26.shared.federated.faults import FaultPlan
from neurips26.shared.federated.meter import ByteMeter
from neurips26.shared.federated.method import (
    Client,
    ClientUpdate,
    FedMethod,
    GlobalModel,
    MixedRanksError,
    Payload,
    Setup,
)
from neurips26.shared.federated.model import LoraModel, LoraSpec
from neurips26.shared.federated.runtime import InProcessGrid, run_federated
from neurips26.shared.federated.server import load_result, make_server_app
from neurips26.shared.federated.state import AdapterState, LoraFactors, Tensors
from neurips26.shared.federated.store import PrivateLeakError, PrivateStore
from neurips26.shared.federated.strategy import BadUpdateError, FedLoRAStrategy, FedResult, MismatchedCodeError
from neurips26.shared.federated.task import Task

__all__ = [
    "AdapterState",
    "BadUpdateError",
    "ByteMeter",
    "Checkpoints",
    "Client",
    "ClientUpdate",
    "ConfigMismatchError",
    "FaultPlan",
    "FedConfig",
    "FedLoRAStrategy",
    "FedMethod",
    "FedResult",
    "GlobalModel",
    "InProcessGrid",
    "LoraFactors",
    "LoraModel",
    "LoraSpec",
    "MismatchedCodeError",
    "MixedRanksError",
    "Payload",
    "PrivateLeakError",
    "PrivateStore",
    "Setup",
    "Task",
    "Tensors",
    "build_method",
    "build_task",
    "load_result",
    "make_client_app",
    "make_server_app",
    "run_federated",
    "setup_of",
]
