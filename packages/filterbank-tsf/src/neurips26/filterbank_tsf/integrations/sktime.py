"""The estimators under sktime's forecasting interface (sktime is not a dependency: bring it along, 1.2 is what was tried)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sktime.forecasting.base import BaseForecaster

from ..estimators import FilterBankForecaster, ReducedRankForecaster

ESTIMATORS = {"rrr": ReducedRankForecaster, "bank": FilterBankForecaster}


class FilterBankSktime(BaseForecaster):
    """A closed-form forecaster as an sktime forecaster: ``fit(y, fh)``, ``predict(fh)``, splitters and metrics of sktime.

    Args:
        lookback: L.
        estimator: ``"rrr"`` (reduced rank) or ``"bank"`` (strided filter bank).
        settings: further arguments of the estimator, e.g. ``{"rank": 8, "alpha": 0.01}``.

    Examples:
        >>> from neurips26.filterbank_tsf.integrations.sktime import FilterBankSktime
        >>> from sktime.datasets import load_airline
        >>> y = load_airline()
        >>> forecaster = FilterBankSktime(24, settings={"rank": 4, "alpha": 0.01})
        >>> forecaster.fit(y, fh=[1, 2, 3]).predict().shape
        (3,)
    """

    _tags = {  # noqa: RUF012
        "y_inner_mtype": ["pd.DataFrame"],
        "capability:multivariate": True,
        "capability:exogenous": False,
        "requires-fh-in-fit": True,
        "capability:missing_values": False,
        "capability:insample": False,
    }

    def __init__(self, lookback: int = 48, estimator: str = "rrr", settings: dict[str, Any] | None = None):
        self.lookback = lookback
        self.estimator = estimator
        self.settings = settings
        super().__init__()

    def _fit(self, y: pd.DataFrame, X: Any, fh: Any) -> FilterBankSktime:
        if self.estimator not in ESTIMATORS:
            raise ValueError(f"estimator must be one of {', '.join(ESTIMATORS)}, got {self.estimator!r}")
        steps = np.asarray(fh.to_relative(self.cutoff))
        if steps.min() < 1:
            raise ValueError(f"fh must lie after the last row of y, got the relative step {int(steps.min())}")
        self.model_ = ESTIMATORS[self.estimator](self.lookback, int(steps.max()), **(self.settings or {}))
        values = y.to_numpy(dtype=float)
        self.model_.fit(values)
        self.recent_ = values[-self.lookback :]
        return self

    def _predict(self, fh: Any, X: Any) -> pd.DataFrame:
        steps = np.asarray(fh.to_relative(self.cutoff))
        forecast = self.model_.predict(self.recent_, horizon=int(steps.max()))
        return pd.DataFrame(
            forecast[steps - 1], index=fh.to_absolute_index(self.cutoff), columns=self._get_columns(method="predict")
        )

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Settings that sktime's own checks use."""
        return [
            {"lookback": 4, "settings": {"rank": 1, "alpha": 0.1}},
            {"lookback": 3, "estimator": "bank", "settings": {"kernel_size": 3, "n_filters": 1, "alpha": 0.1}},
        ]
