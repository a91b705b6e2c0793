"""Public name of the benchmark protocol: load a data set, evaluate any forecaster on every test window."""

from .protocol import SPECS, DataSpec, LTSFData, Score, evaluate, load_ltsf, window_count
from .tables import closed_form_table

__all__ = ["SPECS", "DataSpec", "LTSFData", "Score", "closed_form_table", "evaluate", "load_ltsf", "window_count"]
