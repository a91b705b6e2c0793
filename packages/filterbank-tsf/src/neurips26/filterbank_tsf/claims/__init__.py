"""One function a headline claim, one file a subject. Only the abstract was available: the claims are its sentences, made
testable. The tuning grids behind their settings are in :mod:`neurips26.filterbank_tsf.tuning`.
"""

# ruff: noqa: I001  the order of these names is the order of the record
from .complexity import intrinsic_rank, alignment, alignment_null, alignment_kept, few_directions, bank_kernel
from .cost import cost_short, cost_long, cost_on_validation, forward_time
from .complexity import rank_law
from .accuracy import table, peers, beyond_ett, building_block
from .speed import statistics_speed, benchmark_time, benchmark_speed, memory, electricity_size
from .accuracy import transformers
from .complexity import alignment_correlation
from ..tuning import tune_deep, tune_peers, tune_rule

__all__ = [
    "alignment",
    "alignment_correlation",
    "alignment_kept",
    "alignment_null",
    "bank_kernel",
    "benchmark_speed",
    "benchmark_time",
    "beyond_ett",
    "building_block",
    "cost_long",
    "cost_on_validation",
    "cost_short",
    "electricity_size",
    "few_directions",
    "forward_time",
    "intrinsic_rank",
    "memory",
    "peers",
    "rank_law",
    "statistics_speed",
    "table",
    "transformers",
    "tune_deep",
    "tune_peers",
    "tune_rule",
]
