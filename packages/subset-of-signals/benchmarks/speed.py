"""Speed of the solvers as ratios to peers in one process, and as growth over the number of sources.

``python packages/subset-of-signals/benchmarks/speed.py`` (``--full`` adds a million rows). Compiled peers join where they
are installed: ``uv run --with-requirements packages/subset-of-signals/benchmarks/peers.txt python …/speed.py``.
"""

import resource
import sys
import time
from functools import partial

import numpy as np
from sklearn.linear_model import QuantileRegressor

from neurips26.shared import bench
from neurips26.subset_of_signals import lad, npmle, simulate


def problem(n, d, seed=0):
    s = simulate.subset_of_signals(n, n // 10, d, noise="uniform-log", seed=seed)
    return s.X, s.y


def compiled_peers():
    """Quantile regression in Fortran and Cython, where it is installed."""
    found = {}
    try:
        from pinball import QuantileRegressor as Pinball
    except ImportError:
        pass
    else:
        found["pinball-qr (fn, Fortran)"] = lambda X, y: Pinball(0.5, method="fn", fit_intercept=False).fit(X, y)
    try:
        from pyqreg import QuantReg as Compiled
    except ImportError:
        pass
    else:
        found["pyqreg2 (Cython)"] = lambda X, y: Compiled(y, X).fit(0.5)
    return found


def main() -> int:
    failed = 0

    def bar(name: str, value: float, limit: float, unit: str = "") -> None:
        nonlocal failed
        ok = value <= limit
        failed += not ok
        print(f"{'ok  ' if ok else 'MISS'} {name}: {value:.3g}{unit} (bar {limit:g}{unit})", flush=True)

    if "--full" in sys.argv:
        X, y = problem(1_000_000, 20)
        started = time.process_time()
        fit = lad(X, y)
        bar("LAD n 1e6 d 20", time.process_time() - started, 60.0, " CPU s")
        bar("peak memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2.5, " GiB")
        print(f"     certified: {fit.certificate.optimal}, {fit.n_iter} iterations, {fit.n_pivots} pivots")
    X, y = problem(20_000, 10)
    peer = QuantileRegressor(alpha=0.0, quantile=0.5, fit_intercept=False, solver="highs")
    ours, theirs = lad(X, y), peer.fit(X, y)
    bar("objective above HiGHS, relative", ours.objective / np.abs(y - X @ theirs.coef_).sum() - 1, 1e-9)
    bar("largest difference of coefficients", float(np.abs(ours.coef - theirs.coef_).max()), 1e-6)
    got = bench.ratio(lambda: lad(X, y), lambda: peer.fit(X, y), repeats=1, warmup=0)
    print(f"     {got}")
    bar("LAD / sklearn QuantileRegressor(highs), n 20000 d 10", got.cpu, 0.1)
    try:
        from statsmodels.regression.quantile_regression import QuantReg
    except ImportError:
        pass
    else:
        got = bench.ratio(lambda: lad(X, y), lambda: QuantReg(y, X).fit(0.5), repeats=2)
        bar("LAD / statsmodels QuantReg (iterated weights, not exact)", got.cpu, 1.5)
    for name, fit in compiled_peers().items():
        got = bench.ratio(lambda: lad(X, y), lambda fit=fit: fit(X, y), repeats=3)
        bar(f"LAD / {name}", got.cpu, 1.5)
    grown = bench.growth(lambda n: partial(lad, *problem(n, 10)), [10_000, 40_000, 160_000], repeats=2)
    bar("LAD t(4n)/t(n)", grown.seconds[2] / grown.seconds[1], 5.0)
    X, y = problem(100_000, 10)
    started = time.process_time()
    fit = npmle(X, y)
    bar("NPMLE n 1e5 d 10", time.process_time() - started, 15.0, " CPU s")
    bar("passes over the sources, three starts", fit.n_iter, 60)
    if "--full" in sys.argv:
        started = time.process_time()
        fit = npmle(*problem(1_000_000, 10))
        print(f"     NPMLE n 1e6 d 10: {time.process_time() - started:.1f} CPU s, {fit.n_iter} passes")
        bar("peak memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 3.0, " GiB")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
