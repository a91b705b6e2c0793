"""One error of one method on one drawn problem: what all claims and tuning grids are made of.

Methods see ``X``, ``y`` and the scale of the signals. Those that need the number of signals are told it; the oracle alone
sees the variances.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.linear_model import RANSACRegressor, TheilSenRegressor

from neurips26.shared import seeding
from neurips26.subset_of_signals import robust
from neurips26.subset_of_signals.choices import CHOICES
from neurips26.subset_of_signals.inference import lad_covariance
from neurips26.subset_of_signals.lad import lad
from neurips26.subset_of_signals.npmle import npmle
from neurips26.subset_of_signals.simulate import Sample, subset_of_signals

__all__ = ["CONSTANT_FRACTION", "FAMILY", "PREVIOUS", "TUNED", "crossing", "error", "fit"]

#: What a practitioner has today, apart from the two estimators of this package.
FAMILY = ("ols", "FGLS", "lad", "huber", "truncation", "trimming", "tukey", "npmle")
#: Methods with a published guarantee, or the habit, for this setting before; the first five are told the number or the
#: scale of the signals.
PREVIOUS = (
    "trimming", "truncation from OLS", "truncation", "tukey", "huber", "RANSAC", "Theil-Sen", "Huber (MAD scale)",
)  # fmt: skip
#: Of these, the ones that count on a constant fraction of good sources, or on no scale and no count at all.
CONSTANT_FRACTION = ("trimming, constant fraction", "RANSAC", "Theil-Sen", "Huber (MAD scale)")

#: One knob a method, four values each: the grid of the tune tier. Two grids end where the method would become another: a
#: fraction below a quarter is m/n, not a constant one, and Huber's estimator with a constant towards 0 is LAD.
GRIDS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "trimming": ("fraction", ("m/n", 0.25, 0.5, 0.75)),
    "trimming, constant fraction": ("fraction", (0.25, 0.5, 0.75, 0.9)),
    "truncation from OLS": ("window", (1.5, 2.0, 3.0, 4.0)),
    "truncation": ("window", (1.5, 2.0, 3.0, 4.0)),
    "tukey": ("constant", (4.685, 9.0, 12.0, 16.0)),
    "huber": ("constant", (0.1, 0.3, 0.7, 1.345)),
    "RANSAC": ("residual_threshold", (4.0, 8.0, 16.0, 32.0)),
    "Theil-Sen": ("n_subsamples", ("d", "2 d", "4 d", "8 d")),
    "Huber (MAD scale)": ("constant", (0.5, 1.0, 1.345, 2.5)),
}

#: Chosen on tuning seeds (``results/…/tune.json``, grid "previous"): smallest geometric-mean error over the noise laws. The
#: mixture keeps its default, for which grid "choices" shows error and coverage.
TUNED: dict[str, dict[str, Any]] = {
    "npmle": {"scale_floor": CHOICES.scale_floor},
    "trimming": {"fraction": "m/n"},
    "trimming, constant fraction": {"fraction": 0.25},
    "truncation from OLS": {"window": 3.0},
    "truncation": {"window": 3.0},
    "tukey": {"constant": 12.0},
    "huber": {"constant": 0.3},
    "RANSAC": {"residual_threshold": 16.0},
    "Theil-Sen": {"n_subsamples": "2 d"},
    "Huber (MAD scale)": {"constant": 0.5},
}


def fit(method: str, sample: Sample, seed: int = 0, setting: dict[str, Any] | None = None) -> np.ndarray:
    """Coefficients of ``method`` on a drawn problem with signals of scale 1."""
    X, y = sample.X, sample.y
    n, d = X.shape
    m = int(sample.signal.sum())
    s = TUNED.get(method, {}) if setting is None else setting
    methods: dict[str, Callable[[], np.ndarray]] = {
        "ols": lambda: robust.wls(X, y),
        "lad": lambda: lad(X, y).coef,
        "FGLS": lambda: robust.feasible_gls(X, y),
        "huber": lambda: robust.huber(X, y, **s).coef,
        "tukey": lambda: robust.tukey(X, y, **s).coef,
        "truncation": lambda: robust.iterative_truncation(X, y, **s).coef,
        "trimming": lambda: _trimming(X, y, m / n if s["fraction"] == "m/n" else s["fraction"], seed),
        "trimming, constant fraction": lambda: _trimming(X, y, s["fraction"], seed),
        "npmle": lambda: npmle(X, y, **s).coef,
        "oracle": lambda: robust.oracle_wls(X, y, sample.sigma),
        "truncation from OLS": lambda: robust.iterative_truncation(X, y, start="ols", window=s["window"]).coef,
        "RANSAC": lambda: _ransac(X, y, s["residual_threshold"], seed),
        "Theil-Sen": lambda: _theil_sen(
            X, y, {"d": d, "2 d": 2 * d, "4 d": 4 * d, "8 d": 8 * d}[s["n_subsamples"]], seed
        ),
        "Huber (MAD scale)": lambda: _huber_mad(X, y, s["constant"]),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return methods[method]()


def error(method: str, sample: Sample, seed: int = 0, setting: dict[str, Any] | None = None) -> float:
    """Euclidean distance of the coefficients from the truth (the design is white or standardised)."""
    return float(np.linalg.norm(fit(method, sample, seed, setting) - sample.beta))


def crossing(n: int, d: int, bad: float, seed: int) -> float:
    """The number of signals at which LAD's error falls through 1 in one draw, by bisection on a log scale.

    Design, signs and order of the sources stay the same while signals are added, so a draw has one path of errors, and the
    median over draws of its crossing is where the median error crosses.
    """
    rng = seeding.rng(seed, "crossing", n, d)
    X, z, order = rng.standard_normal((n, d)), rng.standard_normal(n), rng.permutation(n)

    def small(m: int) -> bool:
        return float(np.linalg.norm(lad(X, np.where(order < m, 1.0, bad) * z).coef)) < 1.0

    low, high = max(d, int(0.25 * np.sqrt(n * d))), min(n, int(10 * np.sqrt(n * d)))
    while high - low > 1 and high > 1.02 * low:
        middle = min(max(round(float(np.sqrt(low * high))), low + 1), high - 1)
        low, high = (low, middle) if small(middle) else (middle, high)
    return float(np.sqrt(low * high))


def _trimming(X: np.ndarray, y: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    return robust.iterative_trimming(X, y, fraction, n_starts=3, seed=seed).coef


def _ransac(X: np.ndarray, y: np.ndarray, threshold: float, seed: int) -> np.ndarray:
    model = RANSACRegressor(
        residual_threshold=threshold,
        min_samples=X.shape[1] + 1,
        max_trials=300,
        random_state=seed,
        stop_probability=1.0,
    )
    model.estimator = _least_squares()
    try:
        return model.fit(X, y).estimator_.coef_
    except ValueError:  # no consensus set found: it falls back to all sources
        return robust.wls(X, y)


def _least_squares() -> Any:
    from sklearn.linear_model import LinearRegression

    return LinearRegression(fit_intercept=False)


def _theil_sen(X: np.ndarray, y: np.ndarray, subsample: int, seed: int) -> np.ndarray:
    model = TheilSenRegressor(
        fit_intercept=False, n_subsamples=max(subsample, X.shape[1]), max_subpopulation=2_000, random_state=seed
    )
    return model.fit(X, y).coef_


def _huber_mad(X: np.ndarray, y: np.ndarray, constant: float) -> np.ndarray:
    """Huber with its scale from the median absolute residual, as RLM and HuberRegressor do: the scale of the bad half."""
    spread = float(np.median(np.abs(lad(X, y).residuals))) / 0.6745
    return robust.huber(X, y, spread, constant=constant).coef


def draw(factors: dict[str, Any], seed: int) -> Sample:
    """The problem of a condition."""
    return subset_of_signals(
        factors["n"], factors["m"], factors["d"], noise=factors["law"], bad=factors["bad"], seed=seed
    )


#: Errors measured in this process: two claims that look at the same draw compute it once.
_MEASURED: dict[tuple[Any, ...], float] = {}


def error_once(factors: dict[str, Any], seed: int, method: str, sample: Sample) -> float:
    """:func:`error`, kept for the next claim that asks."""
    key = (*sorted((k, v) for k, v in factors.items() if k != "condition"), seed, method)
    if key not in _MEASURED:
        _MEASURED[key] = error(method, sample, seed)
    return _MEASURED[key]


def median_error(n: int, m: int, d: int, bad: float, seeds: Sequence[int]) -> float:
    """Median over seeds of LAD's error."""
    return float(np.median([error("lad", subset_of_signals(n, m, d, bad=bad, seed=s)) for s in seeds]))


LAD_INTERVALS = ("LAD, kernel", "LAD, one density for all")


def _inside(b: np.ndarray, covariance: np.ndarray, beta: np.ndarray) -> float:
    """Share of coefficients inside their 95% interval."""
    return float(np.mean(np.abs(b - beta) <= 1.959964 * np.sqrt(np.diag(covariance))))


def covered(n: int, m: int, d: int, law: str, seed: int) -> float:
    """Share of coefficients inside the mixture's 95% intervals in one draw."""
    s = subset_of_signals(n, m, d, noise=law, seed=seed)  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = npmle(s.X, s.y, n_starts=1, **TUNED["npmle"])
    return _inside(ours.coef, ours.covariance, s.beta)


def covered_by_lad(n: int, m: int, d: int, law: str, seed: int) -> list[float]:
    """The same for :data:`LAD_INTERVALS`."""
    s = subset_of_signals(n, m, d, noise=law, seed=seed)  # type: ignore[arg-type]
    median = lad(s.X, s.y)
    return [
        _inside(median.coef, lad_covariance(s.X, median.residuals, method=kind), s.beta) for kind in ("powell", "iid")
    ]


def one_choice(factors: dict[str, Any], seed: int) -> dict[str, float]:
    """Error and coverage of the mixture at a floor and number of scales, in one draw."""
    s = subset_of_signals(1_000, 300, 4, noise=factors["law"], seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = npmle(s.X, s.y, scale_floor=factors["scale_floor"], grid_size=factors["grid_size"], n_starts=2)
    inside = np.abs(got.coef - s.beta) <= 1.959964 * np.sqrt(np.diag(got.covariance))
    return {"error": float(np.linalg.norm(got.coef - s.beta)), "coverage": float(inside.mean())}
