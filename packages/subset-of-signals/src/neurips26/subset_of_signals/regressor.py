"""The scikit-learn estimator: one class, the method a parameter."""

from __future__ import annotations

import functools
import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse, stats
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from neurips26.shared.arrays import check_choice, check_int, check_real
from neurips26.subset_of_signals import bounds, robust
from neurips26.subset_of_signals.choices import CHOICES
from neurips26.subset_of_signals.inference import lad_covariance
from neurips26.subset_of_signals.lad import LADResult, _reduce, check_size, gram, lad, sandwich
from neurips26.subset_of_signals.npmle import group_codes, npmle
from neurips26.subset_of_signals.scale import estimate_scale

__all__ = ["METHODS", "OneScaleWarning", "SubsetOfSignalsRegressor"]

METHODS = ("auto", "npmle", "lad", "truncation", "trimming", "tukey", "huber")


class OneScaleWarning(UserWarning):
    """The noise shows no second scale: ordinary least squares is efficient here."""


@dataclass
class _Rows:
    """The rows that are fitted: all those of positive weight, with the intercept's column."""

    X: Any
    y: np.ndarray
    weight: np.ndarray | None
    groups: np.ndarray | None

    @functools.cached_property
    def lad(self) -> LADResult:
        """Least absolute deviations: a method, and the fit that the scale is read off."""
        return lad(self.X, self.y, sample_weight=self.weight)


class SubsetOfSignalsRegressor(RegressorMixin, BaseEstimator):
    """Linear regression when the sources' noise levels are unknown, unequal and possibly huge for most of them.

    Args:
        method: ``"npmle"`` (also ``"auto"``) estimates the law of the scales with the coefficients; ``"lad"`` is least
            absolute deviations with a certificate of optimality and a proved error bound; the others are baselines.
        signal_scale: standard deviation up to which a source counts as a signal, in the units of ``y``. ``"auto"`` reads
            it off the residuals of least absolute deviations: the smallest noise scale that the data need, a little above
            that of the best sources (:mod:`.scale`). A scale given that is not that of the data is warned of.
        n_signals: number of signals, where it is known: used by ``error_bound`` and as the fraction that ``"trimming"``
            keeps. ``None``: estimated.
        fit_intercept: add a column of ones. With noise that is not symmetric the intercept estimates a median (LAD) or
            a mode-like centre (npmle), not the mean.
        grid_size: scales of the mixture.
        max_iter: passes of the mixture or reweighting steps.
        tol: the mixture stops when no coefficient moves by more than this many standard errors.
        n_starts: starting points of the mixture, 1 to 3.
        leverage_trim: leave out rows whose leverage exceeds this. None of the methods bounds the pull of an outlying
            *design* row; without trimming a leverage above 0.5 is warned of.
        random_state: seed of the random starts of ``"trimming"``.

    Attributes:
        coef_: shape ``(d,)``.
        intercept_: float.
        residuals_: of the training data.
        source_weights_: weight of each source in the fit (posterior mean precision for the mixture).
        signal_probability_: probability that a source's scale is at most ``signal_scale_`` (mixture only).
        mixing_distribution_: ``(scales, weights)`` (mixture only).
        n_signals_: estimated number of signals (mixture), for the other methods ``effective_signals_``.
        effective_signals_: the number of signals that makes the rate ``sqrt(n d) s / m`` smallest, see :mod:`bounds`.
        signal_scale_: the scale used.
        certificate_: proof of optimality (LAD only).
        covariance_: of ``(coef_, intercept_)``; with ``bse_`` its standard errors.
        one_scale_: whether the data show no second scale (mixture only).
        weighted_r2_: R^2 of the training data weighted by ``source_weights_`` (``score`` is the usual one).
        n_iter_: steps taken.
        converged_: whether they sufficed.
    """

    def __init__(
        self,
        method="auto",
        *,
        signal_scale="auto",
        n_signals=None,
        fit_intercept=True,
        grid_size=CHOICES.grid_size,
        max_iter=500,
        tol=1e-6,
        n_starts=3,
        leverage_trim=None,
        random_state=None,
    ):
        self.method = method
        self.signal_scale = signal_scale
        self.n_signals = n_signals
        self.fit_intercept = fit_intercept
        self.grid_size = grid_size
        self.max_iter = max_iter
        self.tol = tol
        self.n_starts = n_starts
        self.leverage_trim = leverage_trim
        self.random_state = random_state

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(self, X, y, sample_weight=None, groups=None):
        """Fit the coefficients; with fewer independent rows than columns those of minimum norm, with a warning.

        Args:
            X: shape ``(n, d)``, dense, sparse or a data frame.
            y: shape ``(n,)``.
            sample_weight: how many times a row is taken (non-negative).
            groups: labels, shape ``(n,)``: rows with equal labels share one noise level (mixture only).

        Raises:
            ValueError: NaN or infinite input, more signals than sources, an unknown method.
        """
        method = check_choice(self.method, "method", METHODS)
        method = "npmle" if method == "auto" else method
        if self.signal_scale != "auto":
            check_real(self.signal_scale, "signal_scale", minimum=0.0, inclusive=False)
        X, y = validate_data(self, X, y, accept_sparse="csr", y_numeric=True, dtype=np.float64, ensure_min_samples=2)
        y = np.asarray(y, dtype=float)
        check_size(X, "X")
        check_size(y, "y")
        n, d = X.shape
        p = d + int(self.fit_intercept)
        if self.n_signals is not None:
            most = n if sample_weight is None else max(n, math.floor(np.sum(sample_weight)))
            check_int(self.n_signals, "n_signals", minimum=min(p, n), maximum=most)
        if groups is not None and method != "npmle":
            raise ValueError(f"groups: expected None for method {method!r} (only 'npmle' shares scales), got labels")
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, X, dtype=float)
        if weight is not None and ((weight < 0).any() or not (weight > 0).any()):
            raise ValueError(f"sample_weight: expected numbers >= 0, not all zero, got a minimum of {weight.min()}")
        if groups is not None:
            groups = group_codes(groups, n)
        design = self._design(X)
        weight = self._trim(design, weight)
        # A row of weight zero is no row at all: it must not even count for the rank.
        used = slice(None) if weight is None else np.flatnonzero(weight > 0)
        rows = _Rows(
            design[used],
            y[used],
            None if weight is None else weight[used],
            None if groups is None else groups[used],
        )
        if self.signal_scale == "auto":
            scale = estimate_scale(rows.lad.residuals, p, rows.weight)
        else:
            scale = float(self.signal_scale)
        self.signal_scale_ = scale
        coef = getattr(self, f"_fit_{method}")(rows, scale)
        self.residuals_ = np.asarray(y - design @ coef)
        self.effective_signals_ = bounds.effective_signals(self.residuals_[used], p, scale, rows.weight)[0]
        if method != "npmle":
            self.n_signals_ = float(self.effective_signals_)
        if weight is not None:
            self._spread(used, n)
        self.coef_, self.intercept_ = (coef[:-1], float(coef[-1])) if self.fit_intercept else (coef, 0.0)
        if rows.y.size <= p:  # a fit through every source says nothing about their noise
            self.covariance_ = np.full((p, p), np.nan)
        self.bse_ = np.sqrt(np.maximum(np.diag(self.covariance_), 0))
        self.weighted_r2_ = self._weighted_r2(y)
        self.method_ = method
        self.n_samples_ = n if weight is None else round(float(weight.sum()))
        return self

    def _spread(self, used, n):
        """Per-source attributes of the rows used, put back in their places."""
        for name in ("source_weights_", "signal_probability_"):
            if hasattr(self, name):
                full = np.zeros(n)
                full[used] = getattr(self, name)
                setattr(self, name, full)

    # One method each; all return the coefficients, the intercept last, and set covariance and weights.

    def _fit_npmle(self, rows, scale):
        result = npmle(
            rows.X,
            rows.y,
            signal_scale=scale,
            grid_size=self.grid_size,
            groups=rows.groups,
            sample_weight=rows.weight,
            max_iter=self.max_iter,
            tol=self.tol,
            n_starts=self.n_starts,
        )
        self.source_weights_ = result.source_weights
        self.signal_probability_ = result.signal_probability
        self.mixing_distribution_ = (result.scales, result.mixing)
        self.n_signals_ = result.n_signals
        self.covariance_ = result.covariance
        self.log_likelihood_ = result.log_likelihood
        if self.signal_scale != "auto":
            self._warn_of_scale(result, scale, rows.y.size)
        self.n_iter_, self.converged_ = result.n_iter, result.converged
        # A second scale costs a weight and a scale: two parameters, 1% point of chi-square.
        gain = 2 * (result.log_likelihood - result.one_scale_log_likelihood)
        self.one_scale_ = bool(rows.groups is None and gain < stats.chi2.ppf(0.99, 2))
        if self.one_scale_:
            warnings.warn(
                "the noise shows no second scale: ordinary least squares is efficient here",
                OneScaleWarning,
                stacklevel=3,
            )
        return result.coef

    def _warn_of_scale(self, result, scale, n):
        """Say so where hardly a source is a signal at the scale given, or where the signals lie far below it."""
        probability = result.signal_probability
        size = math.sqrt(float(probability @ result.residuals**2) / max(float(probability.sum()), 1e-300))
        if result.n_signals < max(0.005 * n, 1.0):
            found = f"about {result.n_signals:.0f} of {n} sources are that good"
        elif 0 < size < 0.3 * scale:
            found = f"the signals' noise is about {size:.2g}"
        else:
            return
        warnings.warn(
            f"signal_scale: {scale:.4g} is not the scale of these data ({found}); give it in the units of y, or 'auto'",
            UserWarning,
            stacklevel=4,
        )

    def _fit_lad(self, rows, scale):
        result = rows.lad
        self.certificate_ = result.certificate
        self.n_iter_, self.converged_ = result.n_iter, result.certificate.optimal
        self.source_weights_ = np.ones(rows.y.size) if rows.weight is None else rows.weight
        self.covariance_ = lad_covariance(rows.X, result.residuals, signal_scale=scale, sample_weight=rows.weight)
        return result.coef

    def _fit_truncation(self, rows, scale):
        return self._keep(rows, robust.iterative_truncation(rows.X, rows.y, scale, sample_weight=rows.weight))

    def _fit_trimming(self, rows, scale):
        total = rows.y.size if rows.weight is None else float(rows.weight.sum())
        fraction = 0.5 if self.n_signals is None else min(self.n_signals / total, 1.0)
        seed = 0 if self.random_state is None else self.random_state
        if not isinstance(seed, (int, np.integer)):
            seed = int(check_random_state(seed).randint(1 << 31))
        result = robust.iterative_trimming(
            rows.X, rows.y, fraction, n_starts=10, sample_weight=rows.weight, seed=int(seed)
        )
        return self._keep(rows, result)

    def _fit_tukey(self, rows, scale):
        result = robust.tukey(rows.X, rows.y, scale, sample_weight=rows.weight, max_iter=self.max_iter)
        return self._keep(rows, result)

    def _fit_huber(self, rows, scale):
        result = robust.huber(rows.X, rows.y, scale, sample_weight=rows.weight, max_iter=self.max_iter)
        return self._keep(rows, result)

    def _keep(self, rows, result):
        """Weights and the heteroscedasticity-robust (HC0) covariance of a weighted fit, the weights taken as given."""
        self.source_weights_ = result.weights
        self.n_iter_, self.converged_ = result.n_iter, result.converged
        r = np.asarray(rows.y - rows.X @ result.coef)
        # A row taken c times has c scores: of its weight in the fit, c times its own, one factor c stays.
        squares = (result.weights * r) ** 2 / (1.0 if rows.weight is None else rows.weight)
        self.covariance_ = sandwich(gram(rows.X, result.weights), gram(rows.X, squares))
        return result.coef

    def _design(self, X):
        if not self.fit_intercept:
            return X
        ones = np.ones((X.shape[0], 1))
        return sparse.hstack([X, ones], format="csr") if sparse.issparse(X) else np.hstack([X, ones])

    def _trim(self, X, weight):
        """Leave rows of high leverage out, or warn of them."""
        used = X if weight is None else X[np.flatnonzero(weight > 0)]
        Z = X @ _reduce(used)[0]
        inverse = np.linalg.pinv(gram(Z, weight))
        leverage = np.asarray(
            (Z @ inverse * Z if not sparse.issparse(Z) else Z.multiply(Z @ inverse)).sum(axis=1)
        ).ravel()
        worst = float(leverage.max())
        if self.leverage_trim is not None:
            limit = check_real(self.leverage_trim, "leverage_trim", minimum=0.0, inclusive=False)
            base = np.ones(X.shape[0]) if weight is None else weight
            if not (base[leverage <= limit] > 0).any():
                raise ValueError(
                    f"leverage_trim: expected a limit that leaves rows, got {limit:g} where the least leverage is "
                    f"{leverage.min():.3g}"
                )
            return np.where(leverage > limit, 0.0, base)
        if worst > 0.5 and X.shape[0] > 4 * X.shape[1]:
            warnings.warn(
                f"row {int(leverage.argmax())} of X has leverage {worst:.2f}: outlying design rows pull every method here; "
                "see leverage_trim",
                UserWarning,
                stacklevel=3,
            )
        return weight

    def _weighted_r2(self, y):
        w = self.source_weights_
        total = float(w @ (y - np.average(y, weights=w if w.sum() > 0 else None)) ** 2)
        return 1 - float(w @ self.residuals_**2) / total if total > 0 else 1.0

    def predict(self, X):
        """``X coef_ + intercept_``."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        return np.asarray(X @ self.coef_ + self.intercept_)

    def score(self, X, y, sample_weight=None):
        """The usual R^2 on the data given; see ``weighted_r2_`` for the one that discounts bad sources."""
        return r2_score(y, self.predict(X), sample_weight=sample_weight)

    def conf_int(self, alpha: float = 0.05) -> np.ndarray:
        """Normal intervals at level ``1 - alpha``, shape ``(p, 2)``, the intercept last."""
        check_is_fitted(self)
        check_real(alpha, "alpha", minimum=0.0, maximum=1.0, inclusive=False)
        half = stats.norm.ppf(1 - alpha / 2) * self.bse_
        centre = self._params()
        return np.column_stack([centre - half, centre + half])

    def error_bound(self, delta: float = 0.05, *, asymptotic: bool = False) -> float:
        """The bound on ``||Sigma^(1/2)(coef - beta*)||`` of least absolute deviations.

        The theorem is about a Gaussian design without a column of ones and a number of signals that is known, so it is stated
        for those alone; the asymptotic error also for an intercept and an estimated number.

        Args:
            delta: probability with which the certified bound may fail.
            asymptotic: the RMS error for many sources instead of the (conservative) theorem.

        Raises:
            ValueError: another method's fit; without ``asymptotic`` also an intercept, or no ``n_signals`` given.
        """
        check_is_fitted(self)
        if self.method_ != "lad":
            raise ValueError(f"method: expected a fit by 'lad', which the bound is about, got {self.method_!r}")
        p = self._params().size
        if asymptotic:
            m = int(self.n_signals if self.n_signals is not None else max(round(self.n_signals_), p))
            return self.signal_scale_ * bounds.asymptotic_error(self.n_samples_, p, m)
        if self.fit_intercept:
            raise ValueError(
                "fit_intercept: expected False for the theorem (a column of ones is not Gaussian), got True"
            )
        if self.n_signals is None:
            raise ValueError(
                "n_signals: expected the number of signals for the theorem (an estimate is no bound), got None"
            )
        return self.signal_scale_ * bounds.recovery_error(self.n_samples_, p, self.n_signals, delta)

    def summary(self, alpha: float = 0.05) -> str:
        """A table of coefficients with standard errors and intervals, and what was found about the noise."""
        check_is_fitted(self)
        names = [str(n) for n in getattr(self, "feature_names_in_", [f"x{i}" for i in range(self.coef_.size)])]
        names += ["intercept"] * self.fit_intercept
        rows = [f"{'':<14}{'coef':>13}{'std err':>13}{'z':>13}{f'[{alpha / 2:g}':>13}{f'{1 - alpha / 2:g}]':>13}"]
        for name, b, se, (low, high) in zip(names, self._params(), self.bse_, self.conf_int(alpha)):
            z = b / se if se != 0 else math.inf
            rows.append(f"{name:<14}{b:>13.5g}{se:>13.4g}{z:>13.4g}{low:>13.5g}{high:>13.5g}")
        rows.append(f"method {self.method_}, {self.n_samples_} sources, signal scale {self.signal_scale_:.4g}")
        rows.append(f"signals: about {self.n_signals_:.0f}; {'converged' if self.converged_ else 'NOT CONVERGED'}")
        if getattr(self, "one_scale_", False):
            rows.append("the noise shows no second scale: ordinary least squares is efficient here")
        return "\n".join(rows)

    def _params(self) -> np.ndarray:
        return np.append(self.coef_, self.intercept_) if self.fit_intercept else self.coef_
