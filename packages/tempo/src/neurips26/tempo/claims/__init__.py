"""The paper's headline claims, measured on the checkpoints that come with the package; one file a subject."""

# ruff: noqa: I001  the order of these names is the order of the record
from .gains import (
    gain_under_shift,
    gain_under_moderate_shift,
    gain_under_mild_shift,
    gain_is_adaptation,
)
from .parts import stabilises_severe_shift, hard_first
from .gains import near_failure_gain
from .surrogate import gain_with_informed_critic
from .gains import several_architectures
from .surrogate import critic_ranks_actors
from .resources import real_time, resident_memory
from .tuning import tune_settings, tune_informed

__all__ = [
    "critic_ranks_actors",
    "gain_is_adaptation",
    "gain_under_mild_shift",
    "gain_under_moderate_shift",
    "gain_under_shift",
    "gain_with_informed_critic",
    "hard_first",
    "near_failure_gain",
    "real_time",
    "resident_memory",
    "several_architectures",
    "stabilises_severe_shift",
    "tune_informed",
    "tune_settings",
]
