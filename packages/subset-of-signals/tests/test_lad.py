"""Least absolute deviations: values known by hand, by brute force and from HiGHS; certificates; degenerate inputs."""

import importlib
import itertools

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linprog
from sklearn.exceptions import ConvergenceWarning

from neurips26.subset_of_signals import lad
from neurips26.subset_of_signals.lad import check_loss, objective


def highs(X, y, tau=0.5):
    """Coefficients and loss of the linear program by HiGHS."""
    n, d = X.shape
    cost = np.r_[np.zeros(2 * d), np.full(n, tau), np.full(n, 1 - tau)]
    done = linprog(cost, A_eq=np.c_[X, -X, np.eye(n), -np.eye(n)], b_eq=y, method="highs")
    return done.x[:d] - done.x[d : 2 * d], done.fun


def problem(seed, n, d, bad=1e6):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, X @ rng.normal(size=d) + np.where(rng.random(n) < 0.4, 1.0, bad) * rng.normal(size=n)


def test_median_of_three_points():
    fit = lad(np.ones((3, 1)), np.array([0.0, 0.0, 10.0]))
    assert fit.coef == pytest.approx([0.0], abs=1e-12)
    assert fit.objective == pytest.approx(10.0)
    assert fit.certificate.optimal and abs(fit.certificate.gap) < 1e-12


def test_even_number_of_points_reaches_the_median_s_objective():
    y = np.array([3.0, -1.0, 4.0, 1.0, 5.0, 9.0])
    fit = lad(np.ones((6, 1)), y)
    assert 3.0 <= fit.coef[0] <= 4.0
    assert fit.objective == pytest.approx(np.abs(y - np.median(y)).sum())


@pytest.mark.parametrize("tau", [0.25, 0.5, 0.9])
def test_one_column_is_the_sample_quantile(tau):
    y = np.random.default_rng(3).normal(size=101)
    fit = lad(np.ones((101, 1)), y, tau)
    best = min(check_loss(y - c, tau).sum() for c in y)
    assert check_loss(fit.residuals, tau).sum() == pytest.approx(best, rel=1e-13)


@pytest.mark.parametrize("seed", range(12))
def test_tiny_problems_against_every_vertex(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 13))
    X = np.column_stack([np.ones(n), rng.integers(-3, 4, n)]) + 1e-3 * (seed % 2) * rng.normal(size=(n, 2))
    y = rng.integers(-5, 6, n).astype(float)  # many ties
    vertices = [
        np.linalg.solve(X[list(rows)], y[list(rows)])
        for rows in itertools.combinations(range(n), 2)
        if abs(np.linalg.det(X[list(rows)])) > 1e-9
    ]
    best = min(np.abs(y - X @ b).sum() for b in vertices)
    fit = lad(X, y)
    assert fit.objective == pytest.approx(best, abs=1e-10)
    assert fit.certificate.optimal


@pytest.mark.parametrize("seed", range(50))
def test_objective_and_coefficients_of_highs(seed):
    rng = np.random.default_rng(seed)
    n, d, tau = int(rng.integers(20, 250)), int(rng.integers(1, 8)), float(rng.choice([0.5, 0.25, 0.9]))
    X, y = problem(seed, n, d, bad=float(rng.choice([1.0, 1e6])))
    fit = lad(X, y, tau)
    b, value = highs(X, y, tau)
    assert check_loss(fit.residuals, tau).sum() == pytest.approx(value, rel=1e-9)
    np.testing.assert_allclose(fit.coef, b, rtol=1e-6, atol=1e-6)


def test_certificate_proves_optimality():
    X, y = problem(1, 5000, 6)
    fit = lad(X, y)
    basis = fit.certificate.basis
    assert np.abs(fit.residuals[basis]).max() < 1e-6
    outside = np.setdiff1d(np.arange(5000), basis)
    pull = X[outside].T @ np.sign(fit.residuals[outside])
    multipliers = np.linalg.solve(X[basis].T, -pull)
    assert np.abs(multipliers).max() <= 1 + 1e-8
    np.testing.assert_allclose(multipliers, 2 * fit.certificate.dual, atol=1e-8)
    assert abs(fit.certificate.gap) < 1e-10


def test_heavy_noise_does_not_blur_the_vertex():
    """At noise of 1e9 a relative gap says nothing; the vertex is still exact."""
    X, y = problem(2, 3000, 3, bad=1e9)
    fit = lad(X, y)
    assert fit.certificate.optimal
    moved = [objective(X, y, fit.coef + step) for step in 1e-3 * np.vstack([np.eye(3), -np.eye(3)])]
    assert min(moved) > fit.objective


@pytest.mark.parametrize("tau", [0.5, 0.2])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("size", [60, 500])
def test_many_rows_by_a_sample_first(monkeypatch, tau, kind, size):
    """The same vertex whether or not a sample is solved first; a sample far too small leads astray and is found out."""
    X, y = problem(8, 3000, 3, bad=1e4)
    X = np.column_stack([X, np.ones(3000)])
    given = sparse.csr_matrix(X) if kind == "sparse" else X
    plain = lad(given, y, tau)
    module = importlib.import_module("neurips26.subset_of_signals.lad")
    monkeypatch.setattr(module, "_MANY", 100)
    monkeypatch.setattr(module, "_sample_size", lambda n, d: size)
    sampled = lad(given, y, tau)
    assert sampled.certificate.optimal and sampled.n_iter > plain.n_iter
    assert sampled.objective == pytest.approx(plain.objective, rel=1e-12)
    np.testing.assert_allclose(sampled.coef, plain.coef, rtol=1e-8)


def test_equivariance():
    X, y = problem(4, 800, 4, bad=50.0)
    base = lad(X, y).coef
    shift = np.array([1.0, -2.0, 0.5, 3.0])
    np.testing.assert_allclose(lad(X, y + X @ shift).coef, base + shift, atol=1e-8)
    for c in (1e12, 1e-12):
        np.testing.assert_allclose(lad(X, c * y).coef / c, base, rtol=1e-8, atol=1e-8)
    A = np.random.default_rng(0).normal(size=(4, 4))
    np.testing.assert_allclose(A @ lad(X @ A, y).coef, base, atol=1e-8)
    order = np.random.default_rng(1).permutation(800)
    np.testing.assert_allclose(lad(X[order], y[order]).coef, base, atol=1e-10)


def test_weights_are_repetitions_and_sparse_is_dense():
    X, y = problem(5, 400, 3, bad=20.0)
    w = np.random.default_rng(2).integers(0, 4, 400)
    np.testing.assert_allclose(
        lad(X, y, sample_weight=w).coef, lad(np.repeat(X, w, axis=0), np.repeat(y, w)).coef, atol=1e-9
    )
    thin = np.where(np.abs(X) > 0.7, X, 0.0)
    np.testing.assert_allclose(lad(sparse.csr_matrix(thin), y).coef, lad(thin, y).coef, atol=1e-9)


def test_rank_deficient_design_gives_the_shortest_optimum():
    X, y = problem(6, 300, 2, bad=10.0)
    doubled = np.hstack([X, X[:, :1]])
    with pytest.warns(ConvergenceWarning, match="rank 2 of 3"):
        fit = lad(doubled, y)
    plain = lad(X, y)
    assert fit.objective == pytest.approx(plain.objective, rel=1e-12)
    np.testing.assert_allclose(fit.coef, [plain.coef[0] / 2, plain.coef[1], plain.coef[0] / 2], atol=1e-9)


def test_exact_fit_duplicates_and_constant_response():
    X = np.random.default_rng(7).normal(size=(60, 3))
    b = np.array([1.0, 2.0, 3.0])
    assert lad(X, X @ b).objective < 1e-9
    np.testing.assert_allclose(lad(X, X @ b).coef, b, atol=1e-10)
    twice = lad(np.vstack([X, X]), np.r_[X @ b, X @ b + 1])
    assert twice.certificate.optimal and twice.objective == pytest.approx(60.0)
    np.testing.assert_allclose(lad(np.ones((9, 1)), np.full(9, 7.0)).coef, [7.0])
    np.testing.assert_allclose(lad(X, np.zeros(60)).coef, 0.0, atol=1e-12)


@pytest.mark.parametrize(
    ("X", "y", "tau", "message"),
    [
        ([[1.0], [np.nan]], [0.0, 1.0], 0.5, r"^X: expected finite numbers, got nan at index \(1, 0\)"),
        ([[1.0], [1.0]], [0.0, np.inf], 0.5, r"^y: expected finite numbers, got inf"),
        ([[1.0], [1.0]], [0.0, 1.0, 2.0], 0.5, r"^X: expected shape"),
        ([[1.0], [1.0]], [0.0, 1.0], 1.0, r"^tau: expected a finite number"),
        ([[0.0], [0.0]], [0.0, 1.0], 0.5, r"^X: expected at least one column that is not all zero"),
    ],
)
def test_one_clear_error(X, y, tau, message):
    with pytest.raises(ValueError, match=message):
        lad(np.array(X), np.array(y), tau)


def test_text_is_refused():
    with pytest.raises(TypeError, match=r"^y: expected an array of numbers"):
        lad(np.ones((2, 1)), np.array(["a", "b"]))
