"""What several subjects share: names of data, units of intervals."""

from __future__ import annotations

import numpy as np

from neurips26.shared.claims import DataUse

NONE = "none: abstract only"


def uses(names: list[str]) -> list[DataUse]:
    """The data sets of a claim; weekly CO2 ships with a dependency."""
    return [DataUse(n, "from a dependency" if n == "co2" else "real") for n in names]


def units_by_run(rows: dict[str, list[list[float]]]) -> list[float]:
    """Units of an interval: for every run of test windows of a data set, the geometric mean over its other settings.

    ``rows`` holds the errors of every run, a list a setting, by data set. Settings of one run (horizons, look-backs) share
    their rows and are one unit.
    """
    return [float(v) for errors in rows.values() for v in np.exp(np.log(errors).mean(0))]
