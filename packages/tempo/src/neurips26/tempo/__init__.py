"""TEMPO: test-time adaptation of legged-robot policies with a frozen distributional critic."""

from . import io, shifts
from .adaptation import METHODS, TTAConfig, TTAState, make_tta, method_config
from .adapter import NonFiniteObservationError, ShapeError, TestTimeAdapter
from .checkpoint import Checkpoint, CheckpointError, Meta, available, load, untrained
from .choices import Choices
from .distributions import Categorical, Gaussian, ValueDistribution
from .evaluate import Rollout, Table, evaluate, rollout
from .gates import check_gates
from .memory import ScoreMemory
from .runtime import JoystickEnv, Runtime, make

__all__ = [
    "METHODS",
    "Categorical",
    "Checkpoint",
    "CheckpointError",
    "Choices",
    "Gaussian",
    "JoystickEnv",
    "Meta",
    "NonFiniteObservationError",
    "Rollout",
    "Runtime",
    "ScoreMemory",
    "ShapeError",
    "TTAConfig",
    "TTAState",
    "Table",
    "TestTimeAdapter",
    "ValueDistribution",
    "available",
    "check_gates",
    "evaluate",
    "io",
    "load",
    "make",
    "make_tta",
    "method_config",
    "rollout",
    "shifts",
    "untrained",
]
