"""Low-rank long-horizon forecasting with filter banks: closed forms, rank and kernel analysis, a cheap torch layer."""

from .bank import fit_bank, polish, solve_core
from .linear import LinearForecaster
from .nn import DeepFilterBank, FilterBank
from .regression import RidgePath, reduced_rank, ridge
from .stats import WindowStats

__all__ = [
    "DeepFilterBank",
    "FilterBank",
    "LinearForecaster",
    "RidgePath",
    "WindowStats",
    "fit_bank",
    "polish",
    "reduced_rank",
    "ridge",
    "solve_core",
]
