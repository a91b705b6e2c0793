"""Speed of exact leave-one-out k-NN as ratios to peers in one process, and as growth.

``python packages/knn-certificate/benchmarks/speed.py`` (``--full``: also 20,000 points of 384 dimensions, k = 50, where one
float32 product of all pairs takes 2 n^2 d operations, and half of it would do; ``--largest``: 50,000 points of 512 dimensions
and nothing else, because the peak of memory is the process's).
"""

import resource
import sys
import time
from functools import partial

import numpy as np
import torch
from sklearn.neighbors import KNeighborsClassifier

from neurips26.knn_certificate.knn import KNNDecoder, neighbours, prepare, votes
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

    if "--largest" in sys.argv:
        full_size(bar, 50_000, 512, 90.0, 1.5)
        return failed > 0
    full = "--full" in sys.argv
    if full:  # first: the peak of memory is the process's
        full_size(bar, 20_000, 384, 16.0, 1.0)
    ratios(bar, 5_000, 20, repeats=3)
    if full:
        ratios(bar, 20_000, 50, repeats=1, warmup=0)
    grown = bench.growth(lambda n: partial(neighbours, points(n, 128), None, 10), [2_000, 4_000, 8_000], repeats=2)
    bar("t(2n)/t(n)", grown.seconds[2] / grown.seconds[1], 4.6)
    return failed > 0


def full_size(bar, n: int, d: int, seconds_allowed: float, memory_allowed: float) -> None:
    X = points(n, d)
    y = np.random.default_rng(1).integers(0, 50, len(X))
    started = time.process_time()
    votes(y, neighbours(X, None, 50), [1, 3, 5, 10, 20, 50])
    seconds = time.process_time() - started
    bar(f"n {n}, d {d}, k <= 50, votes of six k included", seconds, seconds_allowed, " CPU s")
    bar(
        "peak memory of the process", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, memory_allowed, " GiB"
    )
    if n > 20_000:
        return
    small = torch.from_numpy(X.astype(np.float32))
    started = time.process_time()
    for rows in small.split(512):
        rows @ small.T
    floor = time.process_time() - started
    print(f"     the products of all pairs alone take {floor:.3g} CPU s: {seconds / floor:.2f} times that", flush=True)


def ratios(bar, n: int, k: int, repeats: int, warmup: int = 1) -> None:
    X = points(n, 384)
    y = np.random.default_rng(1).integers(0, 50, n)
    for metric in ("cosine", "euclidean"):
        peer = KNeighborsClassifier(k + 1, algorithm="brute", metric=metric).fit(X, y)
        ours = KNNDecoder(k, metric).fit(X, y)
        got = bench.ratio(ours.loo_predict, partial(peer.predict, X), repeats=repeats, warmup=warmup)
        print(f"     n {n}, k {k}, {metric}: {got}")
        bar(f"leave-one-out / sklearn brute force, {metric}, n {n}", got.cpu, 0.5)
    try:
        import faiss
    except ImportError:
        return
    small = X.astype(np.float32)
    index = faiss.IndexFlatL2(384)
    index.add(small)
    faiss.omp_set_num_threads(1)
    got = bench.ratio(
        lambda: neighbours(X, None, k), lambda: index.search(small, k + 1), repeats=repeats, warmup=warmup
    )
    print(f"     n {n}, k {k}: {got}")
    bar(f"leave-one-out / faiss IndexFlat (float32, not re-ranked), n {n}", got.cpu, 1.3)


if __name__ == "__main__":
    sys.exit(main())
