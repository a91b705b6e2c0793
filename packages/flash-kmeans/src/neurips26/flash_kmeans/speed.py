"""The speed comparison on the CPU: one grid, written down before the first measurement, and the peers on equal terms.

Equal terms: the same points (float32), the same initial centroids, the same number of iterations, one thread, one process,
and the same result: centroids and the labels that belong to them. faiss is told not to subsample and pays for its labels, as
all do.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from neurips26.flash_kmeans import datasets
from neurips26.flash_kmeans.assign import inertia
from neurips26.flash_kmeans.fit import kmeans
from neurips26.flash_kmeans.update import update_centroids
from neurips26.shared.threads import limit

__all__ = [
    "GRID",
    "Cell",
    "bare_product",
    "least_in_turns",
    "methods",
    "scatter",
    "seconds",
    "time_cell",
    "time_fit",
]


@dataclass(frozen=True)
class Cell:
    """One problem of the grid: data set, shape, and iterations."""

    data: str
    n: int
    d: int
    k: int
    iterations: int = 6

    @property
    def factors(self) -> dict[str, Any]:
        """As the record writes it."""
        return asdict(self)


#: From colours to digits, from 2 to 20,000 points a cluster.
GRID = (
    Cell("colours", 273_280, 3, 16),
    Cell("colours", 273_280, 3, 64),
    Cell("colours", 273_280, 3, 256),
    Cell("mixture", 300_000, 8, 64),
    Cell("mixture", 100_000, 16, 256),
    Cell("mixture", 50_000, 32, 1024),
    Cell("mixture", 100_000, 64, 256),
    Cell("mixture", 20_000, 64, 4096),
    Cell("patches", 20_000, 108, 256),
    Cell("patches", 12_000, 108, 1024),
    Cell("patches", 20_000, 192, 512),
    Cell("tokens", 32_000, 256, 128),
    Cell("tokens", 32_000, 256, 1024),
    Cell("digits", 5_000, 784, 64),
    Cell("digits", 5_000, 784, 512),
    Cell("mixture", 20_000, 784, 128),
)


def methods() -> dict[str, Callable[[np.ndarray, np.ndarray, int], np.ndarray]]:
    """`f(x, initial centroids, iterations) -> labels` of ours and of every peer that is installed."""
    found: dict[str, Callable] = {"ours": _ours, "scikit-learn": _scikit_learn}
    try:
        import sklearnex.cluster  # noqa: F401

        found["scikit-learn-intelex"] = _intelex
    except ImportError:
        pass
    try:
        import faiss  # noqa: F401

        found["faiss-cpu"] = _faiss
    except ImportError:
        pass
    return found


def time_cell(cell: Cell, method: str, seed: int) -> float:
    """CPU seconds of one fit on one thread, from points drawn without replacement."""
    x = datasets.load(cell.data, cell.n, cell.d)
    init = x[np.random.default_rng([seed, cell.k]).choice(cell.n, cell.k, replace=False)]
    return time_fit(x, init, cell.iterations, method)[0]


def time_fit(
    x: np.ndarray, init: np.ndarray, iterations: int, method: str, repeats: int = 2
) -> tuple[float, np.ndarray]:
    """CPU seconds of one fit on one thread and its labels: the least of `repeats` (other work on the machine only adds)."""
    call = methods()[method]
    least, labels = np.inf, np.empty(0)
    with limit(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call(x[: 4 * len(init)], x[: len(init)].copy(), 1)  # compilation and thread pools are not part of the work
        for _ in range(repeats):
            start = time.process_time()
            labels = call(x, init, iterations)
            least = min(least, time.process_time() - start)
    return least, labels


def scatter(x: np.ndarray, labels: np.ndarray, k: int) -> float:
    """Sum of squared distances of the points to the mean of their label: what k-means minimises."""
    given = np.ascontiguousarray(labels, np.int32)
    return inertia(x, update_centroids(x, given, k), given)


def bare_product(cell: Cell, repeats: int = 1) -> float:
    """CPU seconds of what no exact method on a GEMM can avoid: the product of `2 N K D` operations and the minimum of each
    row, in tiles that stay in cache, once an iteration and once for the final labels. The better of two tile heights."""
    x = torch.from_numpy(datasets.load(cell.data, cell.n, cell.d))
    c = x[: cell.k].T.contiguous()
    best = np.inf
    with limit(1):
        for tile in (512, 2048):
            buffer = torch.empty(tile, cell.k)
            lowest = torch.empty(tile)

            def product(tile: int = tile, buffer: torch.Tensor = buffer, lowest: torch.Tensor = lowest) -> None:
                for start in range(0, cell.n, tile):
                    rows = x[start : start + tile]
                    scores = torch.mm(rows, c, out=buffer[: len(rows)])
                    torch.amin(scores, dim=1, out=lowest[: len(rows)])

            product()
            best = min(best, *(seconds(product) for _ in range(repeats)))
    return best * (cell.iterations + 1)


def seconds(call: Callable[[], Any]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def least_in_turns(calls: list[Callable[[], Any]], repeats: int = 3) -> list[float]:
    """CPU seconds of each call on one thread: one warm-up, then `repeats` rounds over all calls, of which the least counts."""
    with limit(1):
        for call in calls:
            call()
        return np.min([[seconds(call) for call in calls] for _ in range(repeats)], axis=0).tolist()


def _ours(x: np.ndarray, init: np.ndarray, iterations: int) -> np.ndarray:
    return kmeans(x, len(init), init=init, max_iter=iterations, tol=0, empty="keep").labels


def _scikit_learn(x: np.ndarray, init: np.ndarray, iterations: int) -> np.ndarray:
    from sklearn.cluster import KMeans

    return KMeans(len(init), init=init, n_init=1, max_iter=iterations, tol=0, algorithm="lloyd").fit(x).labels_


def _intelex(x: np.ndarray, init: np.ndarray, iterations: int) -> np.ndarray:
    from sklearnex.cluster import KMeans

    return KMeans(len(init), init=init, n_init=1, max_iter=iterations, tol=0, algorithm="lloyd").fit(x).labels_


def _faiss(x: np.ndarray, init: np.ndarray, iterations: int) -> np.ndarray:
    import faiss

    k, d = init.shape
    model = faiss.Kmeans(
        d, k, niter=iterations, max_points_per_centroid=10**9, min_points_per_centroid=1, verbose=False
    )
    model.train(x, init_centroids=init)
    return model.index.search(x, 1)[1][:, 0]
