"""Real data: a Hubble diagram where physics gives the slope, and real designs that dependencies ship."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float
from sklearn.datasets import load_diabetes

from neurips26.shared.arrays import check_choice

__all__ = ["DESIGNS", "Hubble", "hubble", "real_design"]

#: Redshifts of the linear part of the diagram.
_Z_RANGE = (0.015, 0.15)
DESIGNS = ("diabetes", "randhie")


@dataclass(frozen=True)
class Hubble:
    """199 supernovae of the Union2.1 compilation: ``mu = 5 log10(z (1 + 0.775 z)) + a``.

    Attributes:
        x: ``log10(z (1 + 0.775 z))``; the slope of ``mu`` on it is 5 (luminosity distance at low redshift, q0 = -0.55).
        mu: distance modulus, magnitudes.
        error: its published standard error, magnitudes.
    """

    x: Float[np.ndarray, " n"]
    mu: Float[np.ndarray, " n"]
    error: Float[np.ndarray, " n"]

    @property
    def design(self) -> Float[np.ndarray, "n 2"]:
        """``(x - mean, 1)``: slope first."""
        return np.column_stack([self.x - self.x.mean(), np.ones_like(self.x)])


def hubble(path: Path) -> Hubble:
    """Read the Union2.1 table (columns: name, z, mu, error of mu, host probability; tab separated).

    Raises:
        ValueError: not that table.
    """
    rows = [
        line.split("\t") for line in Path(path).read_text("utf-8").splitlines() if line and not line.startswith("#")
    ]
    try:
        table = np.array([[float(v) for v in row[1:4]] for row in rows])
    except ValueError as error:
        raise ValueError(f"path: expected the tab-separated Union2.1 table, got {path} ({error})") from error
    z, mu, sigma = table[(table[:, 0] > _Z_RANGE[0]) & (table[:, 0] < _Z_RANGE[1])].T
    return Hubble(np.log10(z * (1 + 0.775 * z)), mu, sigma)


def real_design(name: str) -> Float[np.ndarray, "n d"]:
    """The standardised rows of a real design, the intercept last.

    ``"diabetes"`` (442 x 10, ships with scikit-learn) and ``"randhie"`` (20190 x 9, ships with statsmodels: the extra
    ``peers``).
    """
    check_choice(name, "name", DESIGNS)
    if name == "diabetes":
        X = load_diabetes().data
    else:
        from statsmodels.datasets import randhie

        X = np.asarray(randhie.load_pandas().exog, dtype=float)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    return np.column_stack([X, np.ones(X.shape[0])])
