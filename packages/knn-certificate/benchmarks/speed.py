"""Speed of exact leave-one-out k-NN as ratios to peers in one process, and as growth.

``python packages/knn-certificate/benchmarks/speed.py`` (``--full``: 20,000 points, 384 dimensions).
"""

import resource
import sys
import time
from functools import partial

import numpy as np
from sklearn.neighbors import KNeighborsClassifier

from neurips26.knn_certificate.knn import neighbours, prepare, votes
from neurips26.shared import bench


def points(n, d, seed=0):
    return prepare(np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32), "cosine")


def main() -> int:
    failed = 0

    def bar(name: str, value: float, limit: float, unit: str = "") -> None:
        nonlocal failed
        ok = value <= limit
        failed += not ok
        print(f"{'ok  ' if ok else 'MISS'} {name}: {value:.3g}{unit} (bar {limit:g}{unit})", flush=True)

    n, k = 5_000, 20
    X = points(n, 384)
    y = np.random.default_rng(1).integers(0, 50, n)
    peer = KNeighborsClassifier(k + 1, algorithm="brute").fit(X, y)
    got = bench.ratio(lambda: votes(y, neighbours(X, None, k), [k]), lambda: peer.predict(X), repeats=3)
    print(f"     {got}")
    bar("leave-one-out / sklearn brute force", got.cpu, 0.5)
    try:
        import faiss
    except ImportError:
        pass
    else:
        small = X.astype(np.float32)
        index = faiss.IndexFlatL2(384)
        index.add(small)
        faiss.omp_set_num_threads(1)
        got = bench.ratio(lambda: neighbours(X, None, k), lambda: index.search(small, k + 1), repeats=3)
        bar("leave-one-out / faiss IndexFlat (float32, not re-ranked)", got.cpu, 1.3)
    grown = bench.growth(lambda n: partial(neighbours, points(n, 128), None, 10), [2_000, 4_000, 8_000], repeats=2)
    bar("t(2n)/t(n)", grown.seconds[2] / grown.seconds[1], 4.6)
    if "--full" in sys.argv:
        X = points(20_000, 384)
        started = time.process_time()
        neighbours(X, None, 50)
        bar("n 20000, d 384, k 50", time.process_time() - started, 16.0, " CPU s")
        bar("peak memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 1.0, " GiB")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
