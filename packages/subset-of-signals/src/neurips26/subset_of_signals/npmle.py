"""The mixture estimator: every source has a scale of its own, drawn from a law that is estimated with the coefficients.

``y_i = x_i' b + eps_i`` with ``eps_i ~ N(0, sigma_i^2)`` and ``sigma_i`` from an unknown law on a log grid
``sigma_1 < ... < sigma_K`` with weights ``pi``. The estimate maximises ``sum_i log sum_k pi_k N(y_i - x_i' b; 0, sigma_k^2)``
in both. Given ``b`` that is concave in ``pi``, so the weights take the constrained Newton step of mix-SQP (Kim, Carbonetto,
Stephens & Anitescu 2020); the coefficients take theirs beside it, since the two are orthogonal by symmetry. One pass over
the sources yields the value, both steps and the EM map; a step that loses likelihood is not taken and the EM map, which
cannot lose, is taken instead. (EM alone crawls along the flat directions of ``pi``: hundreds of passes.)

A source's weight in the fit is its posterior mean precision ``w_i = E[sigma^-2 | r_i]``: sources that lie far from every
plausible fit fade out, at a rate the data choose. Neither ``m`` nor a window has to be given.

With ``groups`` several measurements share one scale: likelihoods multiply within the group before the posterior is taken,
so with large groups the weights become the groups' inverse variances (feasible generalised least squares).
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import linalg, optimize, sparse
from sklearn.exceptions import ConvergenceWarning

from neurips26.shared.arrays import check_array, check_int, check_real
from neurips26.subset_of_signals import robust
from neurips26.subset_of_signals.choices import CHOICES
from neurips26.subset_of_signals.lad import _factor, _reduce, as_design, check_size, gram, lad, scale_rows

__all__ = ["NPMLEResult", "best_law", "npmle", "scale_grid"]

#: Groups handled at a time: the posterior is never held as one n x K array.
_BLOCK = 8_192
#: Passes spent on each start before the best one is chosen.
_TRIAL = 8
#: The mixing weights are final when no others can add more than this to the log-likelihood.
_GAP = 1e-3
#: The same for a law that is only compared with others, and the passes it may take.
_LAW_GAP, _LAW_PASSES = 0.05, 100
#: Least mixing weight: a scale stays within reach of a source that comes to need it.
_LEAST_MIXING = 1e-12
#: A Newton step of the coefficients is at most this many times the EM step, in every direction.
_LONGEST = 10.0
#: A source that the fit goes through has leverage one and no residual; its part in the variance stays finite.
_MOST_LEVERAGE = 0.9


@dataclass(frozen=True)
class NPMLEResult:
    """A mixture fit.

    Attributes:
        coef: coefficients ``b``.
        scales: the grid ``sigma_1 < ... < sigma_K``.
        mixing: weights ``pi`` of the scales, summing to one.
        residuals: ``y - X b``.
        source_weights: posterior mean precision of each source, ``E[sigma^-2 | data]``.
        signal_probability: posterior probability that a source's scale is at most ``signal_scale``.
        n_signals: estimated number of such sources.
        covariance: of ``coef``: a sandwich, with groups the inverse of the observed information.
        log_likelihood: its value at the fit.
        one_scale_log_likelihood: the best a single scale does (least squares).
        path: log-likelihood of each accepted iterate of the winning start; never falls.
        n_iter: passes over the sources, over all starts; each yields a Newton step and an EM map.
        converged: whether the last step was small enough and the mixing weights are certified (`gap`).
        gap: no other mixing weights have a log-likelihood higher by more than this.
        start: which start won.
    """

    coef: Float[np.ndarray, " d"]
    scales: Float[np.ndarray, " k"]
    mixing: Float[np.ndarray, " k"]
    residuals: Float[np.ndarray, " n"]
    source_weights: Float[np.ndarray, " n"]
    signal_probability: Float[np.ndarray, " n"]
    n_signals: float
    covariance: Float[np.ndarray, "d d"]
    log_likelihood: float
    one_scale_log_likelihood: float
    path: list[float] = field(repr=False)
    n_iter: int
    converged: bool
    gap: float
    start: str


def scale_grid(
    signal_scale: float, largest: float, size: int = CHOICES.grid_size, floor: float = CHOICES.scale_floor
) -> Float[np.ndarray, " k"]:
    """Log-spaced scales from ``floor * signal_scale`` to ``largest``, one of them exactly ``signal_scale``."""
    check_real(signal_scale, "signal_scale", minimum=0.0, inclusive=False)
    check_int(size, "size", minimum=1)
    check_real(floor, "floor", minimum=0.0, maximum=1.0, inclusive=False)
    if size == 1:
        return np.array([signal_scale])
    top = max(largest / signal_scale, 1.0)
    below = np.log(1 / floor)
    if top == 1.0 or size == 2:
        return signal_scale * np.exp(np.linspace(-below, 0, size))
    # Points are shared out by length, at least one interval on each side.
    left = min(max(round((size - 1) * below / (below + np.log(top))), 1), size - 2)
    under = np.linspace(-below, 0, left + 1)
    over = np.linspace(0, np.log(top), size - left)[1:]
    return signal_scale * np.exp(np.concatenate([under, over]))


@dataclass
class _Posterior:
    """What one pass over the groups yields."""

    log_likelihood: float
    mass: np.ndarray  # expected number of groups at each scale
    precision: np.ndarray  # per group: E[1/sigma^2]
    spread: np.ndarray  # per group: Var[1/sigma^2]
    small: np.ndarray  # per group: P(sigma <= cut)
    overlap: np.ndarray  # K x K: expected products of two scales' posterior probabilities


def _posterior(
    squares: np.ndarray,
    counts: np.ndarray,
    copies: np.ndarray,
    scales: np.ndarray,
    mixing: np.ndarray,
    cut: float = 0.0,
) -> _Posterior:
    """E-step over groups with sums of squares ``squares`` of ``counts`` residuals, each group taken ``copies`` times."""
    inverse = 1.0 / scales**2
    # Squared residuals may span 1e20: they are compared with 1/(2 sigma^2) on the log scale, shifted by the row's best.
    with np.errstate(divide="ignore"):
        log_mixing = np.log(mixing)
    log_scale = np.log(scales)
    total, mass, overlap = 0.0, np.zeros(scales.size), np.zeros((scales.size, scales.size))
    precision, spread, small = (np.empty(squares.size) for _ in range(3))
    is_small = (scales <= cut).astype(float)
    moments = np.column_stack([np.ones_like(scales), inverse, inverse**2, is_small])
    single = bool((counts == 1).all())
    for start in range(0, squares.size, _BLOCK):
        at = slice(start, start + _BLOCK)
        table = np.multiply.outer(squares[at], -0.5 * inverse)
        if single:
            table += log_mixing - log_scale
        else:
            table -= np.multiply.outer(counts[at], log_scale)
            table += log_mixing
        best = table.max(axis=1)
        table -= best[:, None]
        np.exp(table, out=table)
        sums = table @ moments
        norm = sums[:, 0]
        c = copies[at]
        total += float(c @ (best + np.log(norm)))
        table /= norm[:, None]
        mass += c @ table
        overlap += table.T @ (table * c[:, None])
        precision[at] = sums[:, 1] / norm
        spread[at] = np.maximum(sums[:, 2] / norm - precision[at] ** 2, 0)
        small[at] = sums[:, 3] / norm
    total -= 0.5 * np.log(2 * np.pi) * float(copies @ counts)
    return _Posterior(total, mass, precision, spread, small, overlap)


class _Problem:
    """The whitened problem: ``Z = X M`` with ``Z'Z / n`` near the identity, and the grouping."""

    def __init__(self, X: Any, y: np.ndarray, groups: np.ndarray | None, sample_weight: np.ndarray | None) -> None:
        self.n = y.size
        M, self.rank = _reduce(X)
        if not sparse.issparse(X):
            second = M.T @ gram(X) @ M / self.n
            # Where the factor fails the scaled coordinates serve as well, with more rounding.
            with contextlib.suppress(linalg.LinAlgError):
                M = M @ linalg.inv(linalg.cholesky(second, lower=False))
        self.X, self.y, self.map = X @ M, y, M
        self.copies_of_row = np.ones(self.n) if sample_weight is None else sample_weight
        if groups is None:
            self.codes = None
            self.counts, self.copies = np.ones(self.n), self.copies_of_row
        else:
            _, self.codes = np.unique(groups, return_inverse=True)
            self.counts = np.bincount(self.codes, self.copies_of_row)
            self.copies = (self.counts > 0).astype(float)

    def squares(self, r: np.ndarray) -> np.ndarray:
        return r**2 if self.codes is None else np.bincount(self.codes, self.copies_of_row * r**2, self.counts.size)

    def per_row(self, values: np.ndarray) -> np.ndarray:
        return values if self.codes is None else values[self.codes]

    def pulls(self, r: np.ndarray) -> Any:
        """Per group: the sum of its rows times their residuals, a score but for the group's precision."""
        rows = scale_rows(self.X, r)
        if self.codes is None:
            return rows
        assign = sparse.csr_matrix((self.copies_of_row, (self.codes, np.arange(self.n))), (self.counts.size, self.n))
        return assign @ rows

    def information(self, r: np.ndarray, posterior: _Posterior) -> tuple[np.ndarray, np.ndarray]:
        """Of the coefficients: complete (the scales known) and observed."""
        complete = gram(self.X, self.copies_of_row * self.per_row(posterior.precision))
        if self.codes is None:
            return complete, complete - gram(self.X, self.copies * posterior.spread * r**2)
        return complete, complete - gram(self.pulls(r), self.copies * posterior.spread)

    def least_squares(self) -> np.ndarray:
        """Residuals of the fit that weights all sources alike."""
        w = self.copies_of_row
        return np.asarray(self.y - self.X @ linalg.cho_solve(_factor(gram(self.X, w)), self.X.T @ (w * self.y)))


def npmle(
    X: Any,
    y: Any,
    *,
    signal_scale: float = 1.0,
    grid_size: int = CHOICES.grid_size,
    scale_floor: float = CHOICES.scale_floor,
    scales: Any = None,
    groups: Any = None,
    sample_weight: Any = None,
    max_iter: int = 500,
    tol: float = 1e-6,
    n_starts: int = 3,
) -> NPMLEResult:
    """Maximise the scale-mixture likelihood over coefficients and mixing weights.

    Args:
        X: design, shape ``(n, d)``, dense or CSR; no intercept is added.
        y: responses, shape ``(n,)``.
        signal_scale: standard deviation up to which a source counts as a signal, in the units of ``y``.
        grid_size: number of scales ``K``.
        scale_floor: smallest scale as a multiple of ``signal_scale``; a floor is needed, see :mod:`choices`.
        scales: an explicit grid in place of the three settings above.
        groups: labels, shape ``(n,)``: rows with equal labels share a scale.
        sample_weight: how many times a row is taken, shape ``(n,)``.
        max_iter: passes for the winning start.
        tol: stop when a step moves no coefficient by more than this many standard errors.
        n_starts: the first of {LAD, truncated least squares, least squares} that are tried (the likelihood has several
            peaks in ``b``).

    Raises:
        ValueError: as :func:`lad`, and settings out of range.
    """
    y = check_array(y, "y", shape=("n",), dtype=float)
    X = as_design(X, y.size)
    check_size(y, "y")
    n = X.shape[0]
    check_real(signal_scale, "signal_scale", minimum=0.0, inclusive=False)
    check_int(max_iter, "max_iter", minimum=1)
    check_real(tol, "tol", minimum=0.0, inclusive=False)
    check_int(n_starts, "n_starts", minimum=1, maximum=3)
    check_int(grid_size, "grid_size", minimum=1)
    check_real(scale_floor, "scale_floor", minimum=0.0, maximum=1.0, inclusive=False)
    if groups is not None:
        groups = group_codes(groups, n)
    if sample_weight is not None:
        sample_weight = check_array(sample_weight, "sample_weight", shape=(n,), dtype=float)
        if (sample_weight < 0).any() or not (sample_weight > 0).any():
            raise ValueError(
                f"sample_weight: expected numbers >= 0, not all zero, got a minimum of {sample_weight.min()}"
            )
    # Numbers near one, by a power of two, so that no digit changes: squares of 1e-140 are no numbers to add.
    unit = 2.0 ** int(np.frexp(np.abs(y).max())[1])
    y, signal_scale = y / unit, signal_scale / unit
    problem = _Problem(X, y, groups, sample_weight)
    if problem.rank == 0:
        raise ValueError("X: expected at least one column that is not all zero, got none")
    if problem.rank < X.shape[1]:
        text = f"X has rank {problem.rank} of {X.shape[1]} columns: the minimum-norm coefficients are returned"
        warnings.warn(text, ConvergenceWarning, 2)
    starts = _starts(problem, signal_scale, n_starts)
    if scales is None:
        largest = float(np.abs(y - problem.X @ starts["lad"]).max())
        scales = scale_grid(signal_scale, largest, grid_size, scale_floor)
    else:
        scales = np.unique(check_array(scales, "scales", shape=("k",), dtype=float))
        if scales[0] <= 0:
            raise ValueError(f"scales: expected numbers > 0, got {scales[0]}")
        scales = scales / unit

    # A short run from each start, then the best one to the end.
    runs = {
        name: _climb(problem, c, scales, None, min(_TRIAL, max_iter) if len(starts) > 1 else max_iter, tol)
        for name, c in starts.items()
    }
    winner = max(runs, key=lambda name: runs[name].path[-1])
    run = runs[winner]
    n_iter = sum(r.n_iter for r in runs.values())
    if not run.converged and run.n_iter < max_iter:
        rest = _climb(problem, run.coef, scales, run.mixing, max_iter - run.n_iter, tol)
        n_iter += rest.n_iter
        run = replace(rest, path=run.path + rest.path, n_iter=run.n_iter + rest.n_iter)
    if not run.converged:
        warnings.warn(
            f"npmle: not converged after {run.n_iter} passes; the best iterate is returned", ConvergenceWarning, 2
        )
    return _in_units(_result(problem, run, scales, signal_scale, winner, n_iter), unit, problem)


def _in_units(result: NPMLEResult, unit: float, problem: _Problem) -> NPMLEResult:
    """The same fit of responses ``unit`` times as large."""
    shift = float(problem.copies @ problem.counts) * np.log(unit)
    return replace(
        result,
        coef=result.coef * unit,
        scales=result.scales * unit,
        residuals=result.residuals * unit,
        source_weights=result.source_weights / unit / unit,
        covariance=result.covariance * unit * unit,
        log_likelihood=result.log_likelihood - shift,
        one_scale_log_likelihood=result.one_scale_log_likelihood - shift,
        path=[value - shift for value in result.path],
    )


def group_codes(groups: Any, n: int) -> np.ndarray:
    """Labels of any one kind as numbers from 0.

    Raises:
        ValueError: another shape than ``(n,)``, missing labels, kinds that cannot be ordered.
    """
    labels = np.asarray(groups)
    if labels.shape != (n,):
        raise ValueError(f"groups: expected shape ({n},), got {labels.shape}")
    if labels.dtype.kind in "fO" and any(v is None or v != v for v in labels):
        raise ValueError("groups: expected a label for every source, got missing ones")
    try:
        return np.unique(labels, return_inverse=True)[1]
    except TypeError as error:
        raise ValueError(f"groups: expected labels of one kind ({error})") from error


def _starts(problem: _Problem, signal_scale: float, count: int) -> dict[str, np.ndarray]:
    Z, y, w = problem.X, problem.y, problem.copies_of_row
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        first = lad(Z, y, sample_weight=w).coef
    starts: dict[str, Callable[[], np.ndarray]] = {
        "lad": lambda: first,
        "truncation": lambda: robust.iterative_truncation(Z, y, signal_scale, start=first, sample_weight=w).coef,
        "ols": lambda: robust.wls(Z, y, w),
    }
    return {name: make() for name, make in list(starts.items())[:count]}


@dataclass
class _Run:
    coef: np.ndarray
    mixing: np.ndarray
    path: list[float]
    n_iter: int
    converged: bool
    gap: float


@dataclass
class _Point:
    """Where a pass was made and what it says: the value there and two ways on."""

    coef: np.ndarray
    mixing: np.ndarray
    value: float
    gap: float  # what other mixing weights could add to the value, at most
    move: float  # longest Newton step of a coefficient, in standard errors
    newton: tuple[np.ndarray, np.ndarray]
    em: tuple[np.ndarray, np.ndarray]


def _climb(
    problem: _Problem, coef: np.ndarray, scales: np.ndarray, mixing: np.ndarray | None, max_iter: int, tol: float
) -> _Run:
    """Newton steps from one start, an EM map where one would lose."""
    point = _look(problem, scales, coef, np.full(scales.size, 1.0 / scales.size) if mixing is None else mixing)
    path, used = [point.value], 1
    while not (point.gap <= _GAP and point.move <= tol) and used < max_iter:
        ahead = _look(problem, scales, *point.newton)
        used += 1
        rounding = 1e-13 * abs(point.value)
        if not ahead.value >= point.value - rounding and used < max_iter:
            ahead = _look(problem, scales, *point.em)
            used += 1
        if not ahead.value >= point.value - rounding:
            break
        point = ahead
        path.append(point.value)
    return _Run(point.coef, point.mixing, path, used, point.gap <= _GAP and point.move <= tol, point.gap)


def _look(problem: _Problem, scales: np.ndarray, coef: np.ndarray, mixing: np.ndarray) -> _Point:
    """One pass over the sources."""
    r = np.asarray(problem.y - problem.X @ coef)
    posterior = _posterior(problem.squares(r), problem.counts, problem.copies, scales, mixing)
    share = posterior.mass / posterior.mass.sum()
    leap, step, inverse_se = _coef_steps(problem, r, posterior)
    return _Point(
        coef=coef,
        mixing=mixing,
        value=posterior.log_likelihood,
        # sum log(f'/f) <= sum (f'/f - 1) = sum_k pi'_k sum_i f_ik/f_i - n, whatever the other weights pi' are.
        gap=float(posterior.mass.sum()) * max(float((share / mixing).max()) - 1.0, 0.0),
        move=float(np.abs(leap * inverse_se).max()),
        newton=(coef + leap, _best_mixing(posterior, mixing)),
        em=(coef + step, _floored(share)),
    )


def _coef_steps(problem: _Problem, r: np.ndarray, posterior: _Posterior) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Newton's and EM's steps of the coefficients, and the inverse standard errors they are judged by."""
    complete, observed = problem.information(r, posterior)
    score = problem.X.T @ (problem.copies_of_row * problem.per_row(posterior.precision) * r)
    inverse_se = np.sqrt(np.diag(complete))
    try:
        # Directions in which the complete information is one: there the observed one is the fraction not missing.
        fraction, directions = linalg.eigh(observed, complete)
    except linalg.LinAlgError:
        step = linalg.cho_solve(_factor(complete), score)
        return step, step, inverse_se
    along = directions.T @ score
    return directions @ (along / np.maximum(fraction, 1 / _LONGEST)), directions @ along, inverse_se


def _floored(mixing: np.ndarray) -> np.ndarray:
    mixing = np.maximum(mixing, _LEAST_MIXING)
    return mixing / mixing.sum()


def _best_mixing(posterior: _Posterior, mixing: np.ndarray) -> np.ndarray:
    """Mixing weights that maximise the second-order model of the likelihood, by non-negative least squares.

    With ``D_ik = f_k(r_i) / f(r_i)`` and ``H = D'D / n`` the model is ``2 mean(D p) - p'H p / 2 - sum p`` (the multiplier of
    ``sum p = 1`` is one at every maximum), so that the step solves ``min |R p - R^-T b|, p >= 0`` with ``R'R = H``.
    """
    total = posterior.mass.sum()
    H = posterior.overlap / np.multiply.outer(mixing, mixing) / total
    b = 2 * posterior.mass / mixing / total - 1
    # Neighbouring scales look alike, so H is singular to rounding: where it says nothing the weights stay where they are.
    ridge = 1e-12 * float(np.diag(H).max())
    try:
        R = linalg.cholesky(H + ridge * np.eye(mixing.size))
        best, _ = optimize.nnls(R, linalg.solve_triangular(R, b + ridge * mixing, trans="T"))
    except (linalg.LinAlgError, RuntimeError):
        return _floored(posterior.mass / total)
    return _floored(best) if best.sum() > 0 else _floored(posterior.mass / total)


def best_law(
    squares: Float[np.ndarray, " n"], copies: Float[np.ndarray, " n"], scales: Float[np.ndarray, " k"]
) -> float:
    """Largest log-likelihood of a mixture of ``scales`` for squared residuals, each taken ``copies`` times."""
    counts, total = np.ones(squares.size), copies.sum()
    mixing = np.full(scales.size, 1.0 / scales.size)
    here = _posterior(squares, counts, copies, scales, mixing)
    for _ in range(_LAW_PASSES):
        share = here.mass / total
        if total * (float((share / mixing).max()) - 1.0) <= _LAW_GAP:
            break
        step = _best_mixing(here, mixing)
        ahead = _posterior(squares, counts, copies, scales, step)
        if ahead.log_likelihood < here.log_likelihood:
            step = _floored(share)
            ahead = _posterior(squares, counts, copies, scales, step)
        mixing, here = step, ahead
    return float(here.log_likelihood)


def _result(
    problem: _Problem, run: _Run, scales: np.ndarray, signal_scale: float, winner: str, n_iter: int
) -> NPMLEResult:
    r = np.asarray(problem.y - problem.X @ run.coef)
    # Half a grid step of tolerance: mass of a scale at the limit falls on both of its neighbours.
    step = (scales[-1] / scales[0]) ** (1 / max(scales.size - 1, 1))
    cut = signal_scale * np.sqrt(step)
    posterior = _posterior(problem.squares(r), problem.counts, problem.copies, scales, run.mixing, cut)
    mass = posterior.mass / posterior.mass.sum()
    ols = problem.least_squares()
    rows = problem.copies_of_row.sum()
    variance = max(float(problem.copies_of_row @ ols**2) / rows, np.finfo(float).tiny)
    covariance = _covariance(problem, r, posterior)
    return NPMLEResult(
        coef=problem.map @ run.coef,
        scales=scales,
        mixing=mass,
        residuals=r,
        source_weights=problem.per_row(posterior.precision),
        signal_probability=problem.per_row(posterior.small),
        n_signals=float(problem.copies_of_row @ problem.per_row(posterior.small)),
        covariance=problem.map @ covariance @ problem.map.T,
        log_likelihood=posterior.log_likelihood,
        one_scale_log_likelihood=-0.5 * rows * (np.log(2 * np.pi * variance) + 1),
        path=run.path,
        n_iter=n_iter,
        converged=run.converged,
        gap=run.gap,
        start=winner,
    )


def _covariance(problem: _Problem, r: np.ndarray, posterior: _Posterior) -> np.ndarray:
    """Of the coefficients, from ``A``, their observed information; the mixing weights are orthogonal to them by symmetry.

    Single sources: ``A^-1 B A^-1``, ``B`` the sum of outer products of scores ``E[1/sigma^2] x_i r_i``. A fit draws its own
    sources in, so their residuals are too small: each is divided by one minus its leverage, which is its residual from the
    fit without it (HC3, MacKinnon & White 1985). Groups: ``A^-1``, as in feasible generalised least squares, which does not
    need many groups. No more rows than coefficients say nothing about the noise: NaN.
    """
    _, A = problem.information(r, posterior)
    if problem.n <= problem.rank:
        return np.full(A.shape, np.nan)
    values, vectors = linalg.eigh((A + A.T) / 2)
    # Away from a maximum A may lose a direction; the expected information bounds it from below there.
    values = np.maximum(values, 1e-8 * max(values[-1], 1e-300))
    inverse = (vectors / values) @ vectors.T
    if problem.codes is not None:
        return inverse
    XA = problem.X @ inverse
    spread = problem.X.multiply(XA).sum(axis=1) if sparse.issparse(problem.X) else np.einsum("ij,ij->i", XA, problem.X)
    leverage = posterior.precision * np.asarray(spread).ravel()
    size = posterior.precision**2 * problem.copies / (1 - np.minimum(leverage, _MOST_LEVERAGE)) ** 2
    return inverse @ gram(problem.pulls(r), size) @ inverse
