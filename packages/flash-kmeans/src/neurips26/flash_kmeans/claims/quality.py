"""Claims about the result: the inertia that is reached, and labels that are the nearest."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np

from neurips26.flash_kmeans import datasets, pictures
from neurips26.flash_kmeans.assign import assign
from neurips26.flash_kmeans.choices import Choices
from neurips26.flash_kmeans.claims.used import DIGITS, PHOTOGRAPH, TOKENS
from neurips26.flash_kmeans.fit import kmeans
from neurips26.shared.claims import Claim, Criterion, Measurement, Series, measures
from neurips26.shared.context import Context
from neurips26.shared.threads import limit

QUALITY = {
    "quick": [("colours", 64), ("patches", 64)],
    "cpu": [("colours", 64), ("patches", 64), ("tokens", 128), ("digits", 64)],
}


def _quality_points(name: str) -> np.ndarray:
    if name == "colours":
        return np.ascontiguousarray(datasets.colours()[::16])
    if name == "patches":
        return datasets.patches(6, 3000)
    return np.ascontiguousarray(datasets.tokens()[::8]) if name == "tokens" else datasets.digits()[0]


@measures(
    Claim(
        id="same-quality",
        statement="The result is that of exact k-means: the inertia reached is that of scikit-learn",
        paper_value="exact: the mathematics of Lloyd's algorithm is unchanged",
        scope="scaled down",
        metric="inertia, ours / scikit-learn, geometric mean over data sets, each from its own k-means++",
        unit="1",
        direction="equal",
        criterion=Criterion("ratio", at_least=0.99, at_most=1.01),
        rerun_tolerance=1e-4,
    )
)
def same_quality(ctx: Context) -> Measurement:
    """Twenty starts a data set (ten in the quick tier); both run to convergence. The picture starts both from the same centroids:
    the curves coincide. The cpu tier lists the two most consequential of our choices beside: the trials a step of k-means++, and
    the shift that is compared with the tolerance."""
    from sklearn.cluster import KMeans

    sets = QUALITY[ctx.tier]
    seeds = ctx.seeds(10 if ctx.tier == "quick" else 20)
    values: dict[str, list[float]] = {"ours": [], "scikit-learn": []}
    cells = []

    def fit(seed: int) -> dict[str, dict[str, float]]:
        row: dict[str, dict[str, float]] = {"ours": {}, "scikit-learn": {}}
        with limit(1):
            for name, k in sets:
                x = _quality_points(name)
                row["ours"][name] = kmeans(x, k, seed=seed, max_iter=60).inertia
                row["scikit-learn"][name] = float(KMeans(k, n_init=1, max_iter=60, random_state=seed).fit(x).inertia_)
        return row

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in ctx.track(seeds, "quality against scikit-learn"):
            row = ctx.cell({"seed": seed}, partial(fit, seed))
            for method, by_set in row.items():
                values[method].append(float(np.exp(np.mean(np.log(list(by_set.values()))))))
                cells += [
                    {"factors": {"data": n}, "seed": seed, "method": method, "value": v} for n, v in by_set.items()
                ]
    if ctx.tier != "quick":
        cells += _sensitivity(ctx, seeds[:5])
    path = ctx.figure("inertia.png")
    pictures.inertia_curves(path, [(name, _quality_points(name), k) for name, k in sets], seeds[0])
    uses = {"colours": PHOTOGRAPH, "patches": PHOTOGRAPH, "tokens": TOKENS, "digits": DIGITS}
    return Measurement(
        ours=Series({"init": "k-means++", "max_iter": 60}, values["ours"]),
        baselines={"scikit-learn": Series({"init": "k-means++", "max_iter": 60, "n_init": 1}, values["scikit-learn"])},
        seeds=seeds,
        cells=cells,
        data=list({uses[name].name: uses[name] for name, _ in sets}.values()),
        figures=[path],
    )


def _sensitivity(ctx: Context, seeds: list[int]) -> list[dict[str, Any]]:
    """Inertia and iterations with one choice changed at a time."""
    changed = {"defaults": Choices(), "local_trials=1": Choices(local_trials=1), "stop=max": Choices(stop="max")}

    def fit(name: str, k: int, seed: int) -> dict[str, list[float]]:
        x = _quality_points(name)
        with limit(1):
            found = {c: kmeans(x, k, seed=seed, max_iter=60, choices=choices) for c, choices in changed.items()}
        return {c: [float(r.inertia), int(r.n_iter)] for c, r in found.items()}

    cells = []
    for name, k in (("colours", 64), ("digits", 64)):
        for seed in seeds:
            got = ctx.cell({"sensitivity": name, "seed": seed}, partial(fit, name, k, seed))
            for choice, pair in got.items():
                for what, value in zip(("inertia", "iterations"), pair):
                    factors = {"data": name, "choice": choice, "count": what}
                    cells.append({"factors": factors, "seed": seed, "method": "ours", "value": value})
    return cells


@measures(
    Claim(
        id="exact-labels",
        statement="The assignment is exact: each label is the nearest centroid",
        paper_value="exact (no approximation)",
        scope="scaled down",
        metric="labels that differ from a brute force in float64 and are not ties to within 1e-6",
        unit="labels",
        direction="equal",
        criterion=Criterion("bound", at_most=0.0, deterministic=True),
        rerun_tolerance=0.0,
    )
)
def exact_labels(ctx: Context) -> Measurement:
    """Centroids after a few iterations, where many points lie between two of them."""
    sets = [("colours", 273_280, 3, 64), ("patches", 12_000, 108, 256)]
    if ctx.tier != "quick":
        sets += [("tokens", 32_000, 256, 512), ("digits", 5_000, 784, 256)]
    wrong, cells = [], []
    for name, n, d, k in ctx.track(sets, "labels against brute force"):

        def compare(name: str = name, n: int = n, d: int = d, k: int = k) -> dict[str, int]:
            with limit(1):
                x = datasets.load(name, n, d)
                centroids = np.asarray(kmeans(x, k, init="random", seed=1, max_iter=4).centroids)
                return _against_brute_force(x, centroids, np.asarray(assign(x, centroids)))

        count = ctx.cell({"data": name, "n": n, "d": d, "k": k}, compare)
        wrong.append(count["wrong"])
        factors = {"data": name, "n": n, "d": d, "k": k}
        cells += [
            {"factors": {**factors, "count": what}, "seed": 1, "method": "ours", "value": v}
            for what, v in count.items()
        ]
    uses = [PHOTOGRAPH] if ctx.tier == "quick" else [PHOTOGRAPH, TOKENS, DIGITS]
    return Measurement(ours=Series({"precision": "float32"}, wrong), seeds=[1], cells=cells, data=uses)


def _against_brute_force(x: np.ndarray, c: np.ndarray, labels: np.ndarray) -> dict[str, int]:
    """Wrong labels and ties, in blocks of rows."""
    wide = c.astype(np.float64)
    norms = np.square(wide).sum(axis=1)
    wrong = ties = 0
    for start in range(0, len(x), 4096):
        block = x[start : start + 4096].astype(np.float64)
        squares = np.square(block).sum(axis=1)
        distance = norms - 2 * block @ wide.T + squares[:, None]
        best = distance.argmin(axis=1)
        gap = distance[np.arange(len(block)), labels[start : start + 4096]] - distance[np.arange(len(block)), best]
        differs = labels[start : start + 4096] != best
        tie = differs & (gap <= 1e-6 * (squares + norms.max()))
        ties += int(tie.sum())
        wrong += int((differs & ~tie).sum())
    return {"wrong": wrong, "ties": ties}
