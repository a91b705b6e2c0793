"""The same forecaster in darts, and what it costs there.

``uv run --with darts==0.48.1 python benchmarks/peers.py``. Darts' LinearRegressionModel with one regression a step is
ordinary least squares on all windows: our closed form with full rank, no norm and no penalty must forecast the same.
"""

from __future__ import annotations

import time
import warnings

import numpy as np

from neurips26.filterbank_tsf.estimators import ReducedRankForecaster


def main(rows: int = 3000, lookback: int = 96, horizon: int = 24) -> None:
    """Fit both on a noisy cycle and print the largest difference and both CPU times."""
    from darts import TimeSeries
    from darts.models import LinearRegressionModel

    rng = np.random.default_rng(0)
    z = np.sin(2 * np.pi * np.arange(rows) / 24) + 0.3 * rng.normal(size=rows)
    started = time.process_time()
    theirs = LinearRegressionModel(lags=lookback, output_chunk_length=horizon, multi_models=True)
    forecast = theirs.fit(TimeSeries.from_values(z)).predict(horizon).values()[:, 0]
    middle = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = ReducedRankForecaster(lookback, horizon, rank=None, alpha=0.0, norm="none").fit(z).predict(z)
    ended = time.process_time()
    print(f"largest difference of the forecasts: {np.abs(ours - forecast).max():.1e}")
    print(
        f"CPU time: ours {ended - middle:.3f} s, darts {middle - started:.3f} s: {(ended - middle) / (middle - started):.3f}x"
    )


if __name__ == "__main__":
    main()
