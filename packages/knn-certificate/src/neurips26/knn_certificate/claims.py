"""The paper's claims and how each is tested.

The abstract gives the three terms and five figures, not the theorem. The bounds measured here are proved (see ``certify``)
but they are our arrangement of the terms; figures at the paper's own scale need a GPU.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from neurips26.knn_certificate import datasets, pictures
from neurips26.knn_certificate.ablation import Ablated, ablate_geometry
from neurips26.knn_certificate.baselines import pac_bayes_bound, spectral_bound
from neurips26.knn_certificate.certificate import terms_row
from neurips26.knn_certificate.certify import certify_arrays, certify_features, random_block
from neurips26.knn_certificate.coverage import one_repeat
from neurips26.knn_certificate.networks import MLP, SmallCNN, build, features_of, predict, train
from neurips26.knn_certificate.weight_noise import CURVES, weight_noise
from neurips26.shared import backbones, seeding
from neurips26.shared.claims import Claim, Criterion, DataUse, Measurement, Series, Tuning, measures, tunes
from neurips26.shared.context import Context

_EFFECTS = "neurips26.knn_certificate.effects"
_DIGITS = DataUse("digits (scikit-learn)", "from a dependency")
_GAP = "from scratch: 8.0 points above the test error (CIFAR-10, ResNet-18); frozen DINOv2: 1.4% certified on CIFAR-10"

#: Inverse regularisation of the logistic head on sentence embeddings, chosen on splits that no claim uses (grid "head").
_HEAD_C = 30.0


def _cell(factors: dict[str, Any], seed: int, method: str, value: float) -> dict[str, Any]:
    return {"factors": factors, "seed": seed, "method": method, "value": float(f"{value:.7g}")}


@measures(
    Claim(
        id="valid",
        statement="The bound is violated no more often than delta allows.",
        paper_value="certificates at 95% (abstract)",
        scope="scaled down",
        metric="share of repeated draws with true risk above the 95% bound, worst protocol",
        unit="1",
        direction="lower",
        criterion=Criterion("bound", at_most=0.05, effect=f"{_EFFECTS}:worst_violation_rate"),
    )
)
def valid(ctx: Context) -> Measurement:
    """Valid."""
    seeds = ctx.seeds(20 if ctx.tier == "quick" else 300)
    cells, shown = [], []
    for protocol in ("unlabeled", "none", "double-deletion"):
        for seed in ctx.track(seeds, f"coverage {protocol}"):
            got = ctx.cell(
                {"protocol": protocol, "seed": seed}, lambda p=protocol, s=seed: one_repeat(s, p, test=10_000)
            )
            cells.append(_cell({"protocol": protocol}, seed, "bound - risk", got["bound"] - got["risk"]))
            shown.append({"protocol": protocol, **got})
    holdout = float(np.mean([row["bound"] - row["holdout"] for row in shown]))
    ctx.note(f"the certificate is on average {holdout:.3f} above the hold-out bound of the same points")
    picture = ctx.figure("coverage.png")
    pictures.coverage_plot(shown, picture)
    data = [DataUse("Gaussian classes of known risk", "generated")]
    return Measurement(cells=cells, seeds=seeds, data=data, figures=[picture])


# Gap to the test error: one claim a data set.


@functools.cache
def _digits_networks(seed: int, n: int) -> tuple[MLP, MLP]:
    """A network trained from scratch on ``n`` digits, and the same without its certification block."""
    data = datasets.digits()
    first, _ = datasets.random_split(len(data.y), n, seed)
    x, y = torch.from_numpy(data.X[first]).float(), torch.from_numpy(data.y[first])

    def fit(rows: np.ndarray) -> MLP:
        return train(build(lambda: MLP(64, 10, 128), seed), x[rows], y[rows], steps=500, batch=128, seed=seed)  # type: ignore[return-value]

    return fit(np.arange(n)), fit(random_block(n, 0.2, seed)[0])


def _certified_digits(seed: int, n: int = 1_200) -> dict[str, float]:
    """The certificate of the network trained on all ``n``; the pool is the test inputs."""
    data = datasets.digits()
    first, rest = datasets.random_split(len(data.y), n, seed)
    kept, held = random_block(n, 0.2, seed)
    x, y = torch.from_numpy(data.X[first]).float(), torch.from_numpy(data.y[first])
    test = torch.from_numpy(data.X[rest]).float()
    whole, part = _digits_networks(seed, n)
    c = certify_arrays(
        features_of(part, x[kept]),
        y[kept].numpy(),
        features_of(part, x[held]),
        y[held].numpy(),
        predict(part, x[held]),
        pool_predictions=(predict(whole, test), predict(part, test)),
    )
    return terms_row(c, float((predict(whole, test) != data.y[rest]).mean()))


def _certified_text(name: str, ctx: Context, seed: int, C: float = _HEAD_C) -> dict[str, float]:
    """The certificate of the head of four fifths of the sentences; the others are the pool, and the test afterwards.

    A certificate reads the pool's inputs alone, so its labels are free for the test error.
    """
    X, y = _embedded(name, ctx)
    first, rest = datasets.random_split(len(y), _TEXT[name], seed)
    kept, held = (first[i] for i in random_block(first.size, 0.2, seed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole, part = (LogisticRegression(C=C, max_iter=40, tol=1e-3).fit(X[rows], y[rows]) for rows in (first, kept))
    answers = whole.predict(X[rest])
    c = certify_arrays(
        X[kept],
        y[kept],
        X[held],
        y[held],
        part.predict(X[held]),
        pool_predictions=(answers, part.predict(X[rest])),
    )
    return terms_row(c, float((answers != y[rest]).mean()))


#: Sentences to certify with, of 10,003 and 15,000.
_TEXT = {"Banking77": 8_000, "CLINC150": 12_000}


def _text_available(name: str, ctx: Context) -> bool:
    file = {"Banking77": "banking77-train.csv", "CLINC150": "clinc150.json"}[name]
    return ctx.data(file) is not None and backbones.available("MiniLM")


def _embedded(name: str, ctx: Context) -> tuple[np.ndarray, np.ndarray]:
    if name == "Banking77":
        path = ctx.data("banking77-train.csv")
        assert path is not None
        sentences, y = datasets.banking77(path)
    else:
        path = ctx.data("clinc150.json")
        assert path is not None
        sentences, y = datasets.clinc150(path)
    return datasets.embed(sentences), y


def _gap(
    ctx: Context, name: str, one: Callable[[int], dict[str, float]], seeds: list[int], data: DataUse
) -> Measurement:
    cells = []
    for seed in ctx.track(seeds, name):
        got = ctx.cell({"data": name, "seed": seed}, lambda seed=seed: one(seed))
        cells += [_cell({"data": name}, seed, what, v) for what, v in got.items()]
    picture = ctx.figure(f"terms-{re.sub('[^a-z0-9]+', '-', name.lower())}.png")
    pictures.terms_by_dataset(cells, picture)

    def series(what: str) -> Series:
        return Series({}, [c["value"] for c in cells if c["method"] == what])

    ctx.note(
        "means: "
        + ", ".join(
            f"{w} {np.mean(series(w).values):.3f}"
            for w in ("test error", "geometry", "disagreement", "joint", "stability", "certificate", "hold-out")
        )
    )
    return Measurement(
        ours=series("certificate"),
        baselines={"test error": series("test error"), "hold-out": series("hold-out")},
        compared_to="test error",
        seeds=seeds,
        cells=cells,
        data=[data],
        figures=[picture],
    )


@measures(
    Claim(
        id="gap-digits",
        statement="For a network trained from scratch the certificate lies above the test error by at most 10 points.",
        paper_value=_GAP,
        scope="scaled down",
        metric="certificate - test error, digits, MLP",
        unit="1",
        direction="lower",
        criterion=Criterion("difference", at_least=0.0, at_most=0.1),
    )
)
def gap_digits(ctx: Context) -> Measurement:
    """Gap digits."""
    return _gap(ctx, "digits", _certified_digits, ctx.seeds(5 if ctx.tier == "quick" else 8), _DIGITS)


@measures(
    Claim(
        id="gap-banking77",
        statement="With a frozen representation and 77 classes the certificate lies above the test error by at most 10 points.",
        paper_value=_GAP,
        scope="proxy",
        metric="certificate - test error, Banking77, frozen MiniLM, logistic head",
        unit="1",
        direction="lower",
        criterion=Criterion("difference", at_least=0.0, at_most=0.1),
    ),
    tiers=("cpu",),
)
def gap_banking77(ctx: Context) -> Measurement:
    """Gap banking77."""
    ctx.note("24 splits: the first eight left it undecided")
    return _gap_text(ctx, "Banking77", 24)


@measures(
    Claim(
        id="gap-clinc150",
        statement="With a frozen representation and 150 classes the certificate lies above the test error by at most 10 points.",
        paper_value="first non-vacuous certificates on CIFAR-100 (abstract); frozen DINOv2: 23.1% certified on ImageNet-1k",
        scope="proxy",
        metric="certificate - test error, CLINC150, frozen MiniLM, logistic head",
        unit="1",
        direction="lower",
        criterion=Criterion("difference", at_least=0.0, at_most=0.1),
    ),
    tiers=("cpu",),
)
def gap_clinc150(ctx: Context) -> Measurement:
    """Gap clinc150."""
    return _gap_text(ctx, "CLINC150", 8)


def _gap_text(ctx: Context, name: str, splits: int) -> Measurement:
    if not _text_available(name, ctx):
        raise FileNotFoundError(
            f"{name}: expected its file under NEURIPS26_DATA and the encoder's wheel (extra text); see `neurips26 data list`"
        )
    m = _gap(ctx, name, lambda seed: _certified_text(name, ctx, seed), ctx.seeds(splits), DataUse(name, "real"))
    m.tuned_by = "head"
    assert m.ours is not None
    m.ours.setting = {"C": _HEAD_C, "n": _TEXT[name]}
    return m


@tunes(
    id="head",
    statement="Inverse regularisation of the logistic head on embeddings: error on splits that no claim uses.",
)
def tune_head(ctx: Context) -> Tuning:
    """Tune head."""
    cells, means = [], {}
    for C in (3.0, 30.0, 300.0):
        errors = []
        for name in ("Banking77", "CLINC150"):
            for seed in ctx.seeds(1):
                got = ctx.cell(
                    {"C": C, "data": name, "seed": seed}, lambda C=C, n=name, s=seed: _head_error(n, ctx, s, C)
                )
                cells.append(_cell({"C": C, "data": name}, seed, "head", got))
                errors.append(got)
        means[C] = float(np.mean(errors))
    return Tuning(cells, {"ours": {"C": min(means, key=lambda c: means[c])}}, note=f"mean error: {means}")


def _head_error(name: str, ctx: Context, seed: int, C: float) -> float:
    X, y = _embedded(name, ctx)
    first, rest = datasets.random_split(len(y), 3_000, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        head = LogisticRegression(C=C, max_iter=40, tol=1e-3).fit(X[first], y[first])
    return float((head.predict(X[rest[:2_000]]) != y[rest[:2_000]]).mean())


@tunes(
    id="choices",
    statement="The two consequential choices, size of the block and metric: bound and test error on digits.",
)
def tune_choices(ctx: Context) -> Tuning:
    """Tune choices."""
    cells = []
    for block in (0.1, 0.2, 0.3, 0.5):
        for metric in ("cosine", "euclidean"):
            for seed in ctx.seeds(5):
                factors = {"block": block, "metric": metric}
                got = ctx.cell({**factors, "seed": seed}, lambda f=factors, s=seed: _one_choice(f, s))
                cells += [_cell(factors, seed, what, v) for what, v in got.items()]
    return Tuning(cells, {}, note="the defaults are 0.2 and cosine; nothing is chosen from this")


def _one_choice(factors: dict[str, Any], seed: int) -> dict[str, float]:
    data = datasets.digits()
    first, rest = datasets.random_split(len(data.y), 900, seed)
    head = LogisticRegression(max_iter=300)
    c = certify_features(data.X[first], data.y[first], head=head, unlabeled=data.X[rest], seed=seed, **factors)
    return {
        "certificate": c.bound,
        "test error": float((head.fit(data.X[first], data.y[first]).predict(data.X[rest]) != data.y[rest]).mean()),
    }


@measures(
    Claim(
        id="tighter-than-norms",
        statement="Bounds through norms or weight posteriors of the same network say next to nothing; this one does not.",
        paper_value="no parameter-space complexity, KL, norms or compression (abstract)",
        scope="scaled down",
        metric="certificate / PAC-Bayes bound of the perturbed network, digits, MLP",
        unit="1",
        direction="lower",
        criterion=Criterion("ratio", at_most=0.5),
    )
)
def tighter_than_norms(ctx: Context) -> Measurement:
    """Tighter than norms."""
    seeds = ctx.seeds(5)
    cells = []
    for seed in ctx.track(seeds, "other bounds"):
        got = ctx.cell({"seed": seed}, lambda seed=seed: _other_bounds(seed))
        cells += [_cell({}, seed, what, v) for what, v in got.items()]

    def series(what: str) -> Series:
        return Series({}, [c["value"] for c in cells if c["method"] == what])

    return Measurement(
        ours=series("certificate"),
        baselines={w: series(w) for w in ("PAC-Bayes", "spectral margin", "hold-out")},
        compared_to="PAC-Bayes",
        seeds=seeds,
        cells=cells,
        data=[_DIGITS],
        reason="hold-out is always tighter and is shown with it",
    )


def _other_bounds(seed: int) -> dict[str, float]:
    ours, model = _certified_digits(seed), _digits_networks(seed, 1_200)[0]
    data = datasets.digits()
    first, _ = datasets.random_split(len(data.y), 1_200, seed)
    x, y = torch.from_numpy(data.X[first]).float(), torch.from_numpy(data.y[first])
    return {
        "certificate": ours["certificate"],
        "hold-out": ours["hold-out"],
        "PAC-Bayes": pac_bayes_bound(model, build(lambda: MLP(64, 10, 128), seed), x, y, draws=10),
        "spectral margin": spectral_bound(model, x, y),
    }


@measures(
    Claim(
        id="terms-move",
        statement="Each term answers to its own cause: noisy features raise geometry, an over-regularised head raises "
        "disagreement, few and noisy labels raise instability.",
        paper_value="additive decomposition into local geometry, agreement and stability (abstract)",
        scope="scaled down",
        metric="smallest increase of the aimed-at term over the three interventions, digits",
        unit="1",
        direction="higher",
        criterion=Criterion("difference", at_least=0.03, effect=f"{_EFFECTS}:smallest_shift"),
    )
)
def terms_move(ctx: Context) -> Measurement:
    """Terms move."""
    seeds = ctx.seeds(5 if ctx.tier == "quick" else 10)
    cells = []
    for seed in ctx.track(seeds, "interventions"):
        got = ctx.cell({"seed": seed}, lambda seed=seed: _interventions(seed))
        for kind, terms in got.items():
            cells += [_cell({"intervention": kind}, seed, what, v) for what, v in terms.items()]
        clean = got["none"]
        for kind, term in (
            ("noisy features", "geometry"),
            ("over-regularised head", "disagreement"),
            ("few noisy labels", "stability"),
        ):
            cells.append(_cell({"intervention": kind}, seed, "target shift", got[kind][term] - clean[term]))
    cells = [c for c in cells if c["factors"]["intervention"] != "none"]
    return Measurement(cells=cells, seeds=seeds, data=[_DIGITS])


def _interventions(seed: int) -> dict[str, dict[str, float]]:
    data = datasets.digits()
    rng = seeding.rng(seed, "interventions")
    first, rest = datasets.random_split(len(data.y), 900, seed)
    X, y, pool = data.X[first], data.y[first], data.X[rest]
    labels = y[:200].copy()
    flipped = rng.permutation(200)[:60]
    labels[flipped] = rng.integers(0, 10, 60)
    cases = {
        "none": (X, y, pool, 1.0),
        "noisy features": (X + 0.6 * rng.normal(size=X.shape), y, pool + 0.6 * rng.normal(size=pool.shape), 1.0),
        "over-regularised head": (X, y, pool, 1e-4),
        "few noisy labels": (X[:200], labels, pool, 1.0),
    }
    out = {}
    for kind, (x, t, u, C) in cases.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            c = certify_features(x, t, head=LogisticRegression(C=C, max_iter=200), unlabeled=u, seed=seed)
        assert c.stability is not None
        out[kind] = {
            "geometry": c.geometry.estimate, "disagreement": c.disagreement.estimate, "stability": c.stability.estimate,
            "certificate": c.bound,
        }  # fmt: skip
    return out


@measures(
    Claim(
        id="falls-with-data",
        statement="The certificate falls as training data grow.",
        paper_value="none: the abstract gives no curve",
        scope="scaled down",
        metric="rank correlation of certificate and number of training points, digits",
        unit="1",
        direction="lower",
        criterion=Criterion("monotone", at_most=-0.8, effect=f"{_EFFECTS}:size_rank_correlation"),
    )
)
def falls_with_data(ctx: Context) -> Measurement:
    """Falls with data."""
    seeds = ctx.seeds(5 if ctx.tier == "quick" else 10)
    cells = []
    for seed in ctx.track(seeds, "sizes"):
        for n in (150, 300, 600, 1_200):
            bound = ctx.cell({"n": n, "seed": seed}, lambda n=n, seed=seed: _sized(n, seed))
            factors = {"condition": f"n {n:5d}"}
            cells += [_cell(factors, seed, "certificate", bound), _cell(factors, seed, "n", n)]
    return Measurement(cells=cells, seeds=seeds, data=[_DIGITS])


def _sized(n: int, seed: int) -> float:
    data = datasets.digits()
    first, rest = datasets.random_split(len(data.y), n, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return certify_features(
            data.X[first], data.y[first], head=LogisticRegression(max_iter=200), unlabeled=data.X[rest][:500], seed=seed
        ).bound


#: The sweep: name, intervention, strength.
SWEEP = (
    ("clean", "none", 1.0),
    ("half the labels", "labels", 0.5),
    ("all labels", "labels", 1.0),
    ("cross-pairs", "cross-pair", 1.0),
    ("same-class pairs", "same-pair", 1.0),
    ("rainbow", "rainbow", 3.0),
    ("frozen random", "frozen", 1.0),
)


def _sweep(
    ctx: Context, seeds: list[int], chosen: tuple[tuple[str, str, float], ...]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    cells, rows = [], []
    for seed in ctx.track(seeds, "ablation"):
        for name, kind, strength in chosen:
            got = ctx.cell(
                {"condition": name, "seed": seed}, lambda k=kind, s=strength, seed=seed: _ablated(k, s, seed)
            )
            rows.append({"intervention": name, **got})
            factors = {"condition": name, "train_accuracy": got["train_accuracy"]}
            names = {
                "test_error": "test error",
                "held_out_error": "held-out decoder",
                "in_sample_error": "in-sample decoder",
                "bound": "certificate",
            }
            cells += [_cell(factors, seed, names[k], got[k]) for k in names]
    return cells, rows


def _ablated(kind: str, strength: float, seed: int) -> dict[str, float]:
    return _ablation(kind, strength, seed).figures()


@functools.cache
def _ablation(
    kind: str, strength: float, seed: int, kept: int = 240, hidden: int = 384, steps: int = 500, lr: float = 2e-3
) -> Ablated:
    """Trained on ``kept`` digits; the decoder is judged on a block of 700 others, for 60 would blur the ranking."""
    data = datasets.digits()
    first, rest = datasets.random_split(len(data.y), kept + 700, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ablate_geometry(
            data.X[first],
            data.y[first],
            data.X[rest],
            data.y[rest],
            kind,
            strength=strength,
            seed=seed,
            hidden=hidden,
            steps=steps,
            batch=120,
            lr=lr,
            block=700 / (kept + 700),
        )


@measures(
    Claim(
        id="geometry-tracks-generalization",
        statement="Over interventions that leave memorisation intact, test error follows what is left of class geometry.",
        paper_value="destroying local class geometry removes generalization while memorisation stays (abstract)",
        scope="scaled down",
        metric="rank correlation of held-out 1-NN decoder error and test error, runs with train accuracy >= 0.99",
        unit="1",
        direction="higher",
        criterion=Criterion("monotone", at_least=0.8, effect=f"{_EFFECTS}:held_out_rank_correlation"),
    )
)
def geometry_tracks_generalization(ctx: Context) -> Measurement:
    """Geometry tracks generalization."""
    quick = ctx.tier == "quick"
    seeds, sweep = ctx.seeds(1 if quick else 5), SWEEP[:3:2] if quick else SWEEP
    cells, rows = _sweep(ctx, seeds, sweep)
    picture = ctx.figure("ablation.png")
    pictures.ablation_plot(rows, picture)
    shown = [picture]
    if not quick:
        shown.append(ctx.figure("representation.png"))
        nets = {name: _ablation(kind, strength, seeds[0]) for name, kind, strength in (SWEEP[0], SWEEP[3], SWEEP[5])}
        pictures.representation_plot({name: (a.memory, a.memory_labels) for name, a in nets.items()}, shown[1])
    table = {
        name: {
            what: round(float(np.mean([r[what] for r in rows if r["intervention"] == name])), 3)
            for what in ("train_accuracy", "in_sample_error", "held_out_error", "test_error", "bound")
        }
        for name, _, _ in sweep
    }
    ctx.note(f"means over seeds: {table}")
    return Measurement(
        cells=cells,
        seeds=seeds,
        data=[_DIGITS],
        figures=shown,
        reason="see the note: rainbow groups destroy in-sample neighbours and still generalise; "
        "the same-class control keeps both",
    )


@measures(
    Claim(
        id="destroyed-geometry-hurts",
        statement="A representation trained on random labels and frozen costs generalization even when a new head memorises "
        "the true labels.",
        paper_value="destroying local class geometry removes generalization while memorisation stays (abstract)",
        scope="scaled down",
        metric="test error with destroyed geometry / test error of plain training, digits",
        unit="1",
        direction="higher",
        criterion=Criterion("ratio", at_least=2.0),
    ),
    tiers=("cpu",),
)
def destroyed_geometry_hurts(ctx: Context) -> Measurement:
    """Destroyed geometry hurts."""
    seeds = ctx.seeds(10)
    cells, rows = _sweep(ctx, seeds, (SWEEP[0], SWEEP[6]))
    ours, plain = _errors(ctx, rows, "frozen random")
    return Measurement(
        ours=ours,
        baselines={"plain training": plain},
        seeds=seeds,
        cells=cells,
        data=[_DIGITS],
        reason="the backbone memorises the random labels and still a 1-NN decoder reads the true classes from it (its error is "
        "in the note): two layers on digits move their input too little for geometry to be lost. Narrower networks, more points "
        'and longer training do not change that (grid "random-labels" of the tune record). Removal of generalization is left to '
        "the scale of CIFAR-10",
    )


def _errors(ctx: Context, rows: list[dict[str, Any]], destroyed: str) -> tuple[Series, Series]:
    """Test errors of an intervention and of plain training; a note on what was memorised and what is left of geometry."""
    by = {name: [r for r in rows if r["intervention"] == name] for name in (destroyed, "clean")}
    memorised = min(r["train_accuracy"] for r in rows)
    left = {
        name: {w: round(float(np.mean([r[w] for r in mine])), 3) for w in ("in_sample_error", "held_out_error")}
        for name, mine in by.items()
    }
    ctx.note(f"smallest train accuracy {memorised:.3f}; 1-NN errors of the representation: {left}")
    ours, plain = (Series({}, [r["test_error"] for r in mine]) for mine in by.values())
    return ours, plain


@measures(
    Claim(
        id="cross-pairs-hurt",
        statement="Pulling points of different classes together in pairs costs generalization while memorisation stays.",
        paper_value="destroying local class geometry removes generalization while memorisation stays (abstract)",
        scope="scaled down",
        metric="test error with cross-class pairs of weight 1 / test error of plain training, digits",
        unit="1",
        direction="higher",
        criterion=Criterion("ratio", at_least=3.0),
    ),
    tiers=("cpu",),
)
def cross_pairs_hurt(ctx: Context) -> Measurement:
    """Cross pairs hurt."""
    seeds = ctx.seeds(5)
    cells, rows = _sweep(ctx, seeds, (SWEEP[0], SWEEP[3]))
    ours, plain = _errors(ctx, rows, "cross-pairs")
    return Measurement(
        ours=ours,
        baselines={"plain training": plain},
        seeds=seeds,
        cells=cells,
        data=[_DIGITS],
        reason="nearest neighbours in the sample are all foreign, yet new points are not paired and find their class: the "
        "held-out decoder error, not the in-sample one, says what is lost. 400 points and 2,000 steps in place of 240 and 500 "
        "gave about the same ratio on a tuning split",
    )


@tunes(
    id="random-labels",
    statement="How far memorising random labels moves a representation: held-out 1-NN error on the true labels.",
)
def tune_random_labels(ctx: Context) -> Tuning:
    """Tune random labels."""
    cells, table = [], {}
    for kept, hidden, steps, lr in (
        (240, 384, 500, 2e-3),
        (240, 96, 1_500, 1e-2),
        (600, 96, 2_500, 1e-2),
        (600, 64, 3_000, 1e-2),
    ):
        factors = {"points": kept, "width": hidden, "steps": steps, "step size": lr}
        for seed in ctx.seeds(2):
            got = ctx.cell(
                {**factors, "seed": seed},
                lambda a=(kept, hidden, steps, lr), s=seed: _ablation("frozen", 1.0, s, *a).figures(),
            )
            names = ("train_accuracy", "held_out_error", "test_error")
            cells += [_cell(factors, seed, what, got[what]) for what in names]
            table[str(factors)] = {what: round(got[what], 3) for what in names}
    return Tuning(cells, {}, note=f"the claim keeps the first setting; last seed: {table}")


_NOISE = (0.0, 0.3, 0.6, 1.0, 1.5)


def _noise_cells(ctx: Context) -> tuple[list[dict[str, Any]], list[int]]:
    seeds = ctx.seeds(5)
    cells = []
    ahead, strong = 0, 0
    for seed in ctx.track(seeds, "weight noise"):
        rows = ctx.cell({"seed": seed}, lambda seed=seed: _noise(seed, 1 if ctx.tier == "quick" else 5))
        at = {(r["curve"], r["scale"], r["draw"]): r["accuracy"] for r in rows}
        draws = sorted({r["draw"] for r in rows})
        pairs = [(at["k-NN re-embedded", s, d], at["readout", s, d]) for s in _NOISE if s >= 0.6 for d in draws]
        ahead, strong = ahead + sum(ours > theirs for ours, theirs in pairs), strong + len(pairs)
        for curve in CURVES:
            for scale in _NOISE:
                mean = float(np.mean([at[curve, scale, draw] for draw in draws]))
                cells.append(_cell({"scale": scale, "draws": len(draws)}, seed, curve, mean))
    ctx.note(f"re-embedded k-NN is ahead of the clean readout in {ahead} of {strong} draws of noise 0.6 and more")
    return cells, seeds


@functools.cache
def _noise(seed: int, draws: int) -> list[dict[str, Any]]:
    data = datasets.digits()
    first, rest = datasets.random_split(len(data.y), 1_200, seed)
    model = _digits_networks(seed, 1_200)[0]
    return weight_noise(model, data.X[first], data.y[first], data.X[rest], data.y[rest], _NOISE, draws=draws, seed=seed)


def _noise_series(cells: list[dict[str, Any]], curve: str) -> Series:
    """Mean accuracy over strong noise (0.6 and more), one value a seed."""
    seeds = sorted({c["seed"] for c in cells})
    strong = [c for c in cells if c["method"] == curve and c["factors"]["scale"] >= 0.6]
    return Series({}, [float(np.mean([c["value"] for c in strong if c["seed"] == s])) for s in seeds])


@measures(
    Claim(
        id="weight-noise",
        statement="Under weight noise neighbours in the representation degrade far less than the linear readout.",
        paper_value="representations far less sensitive to weight noise than linear readouts (abstract)",
        scope="scaled down",
        metric="accuracy of re-embedded k-NN - clean readout on the noisy backbone, noise >= 0.6, digits",
        unit="1",
        direction="higher",
        criterion=Criterion("difference", at_least=0.02),
    )
)
def weight_noise_claim(ctx: Context) -> Measurement:
    """Weight noise claim."""
    cells, seeds = _noise_cells(ctx)
    picture = ctx.figure("weight-noise.png")
    pictures.noise_curves(cells, picture)
    return Measurement(
        ours=_noise_series(cells, "k-NN re-embedded"),
        baselines={c: _noise_series(cells, c) for c in CURVES if c != "k-NN re-embedded"},
        compared_to="readout",
        seeds=seeds,
        cells=cells,
        data=[_DIGITS],
        figures=[picture],
    )


@measures(
    Claim(
        id="weight-noise-fair",
        statement="The same holds against a linear readout that, like the neighbours, is fitted on the noisy features.",
        paper_value="not made there: the control that a fair comparison needs",
        scope="scaled down",
        metric="accuracy of re-embedded k-NN - refitted readout, noise >= 0.6, digits",
        unit="1",
        direction="higher",
        criterion=Criterion("difference", at_least=0.02),
    )
)
def weight_noise_fair(ctx: Context) -> Measurement:
    """Weight noise fair."""
    cells, seeds = _noise_cells(ctx)
    return Measurement(
        ours=_noise_series(cells, "k-NN re-embedded"),
        baselines={"readout refitted": _noise_series(cells, "readout refitted")},
        seeds=seeds,
        cells=cells,
        data=[_DIGITS],
        reason="most of the advantage over the stale readout is that the memory is embedded again; "
        "with clean memory k-NN loses it",
    )


@measures(
    Claim(
        id="cifar-subset",
        statement="A convolutional network trained from scratch on few real images has a non-vacuous certificate.",
        paper_value=_GAP,
        scope="scaled down",
        metric="certificate, 10,000-image part of CIFAR-10, small CNN (chance: 0.9)",
        unit="1",
        direction="lower",
        criterion=Criterion("bound", at_most=0.9),
    ),
    tiers=("cpu",),
)
def cifar(ctx: Context) -> Measurement:
    """Cifar."""
    path = ctx.data("cifar10_subset.zip")
    if path is None:
        raise FileNotFoundError("cifar10_subset.zip: expected it under NEURIPS26_DATA; see `neurips26 data list`")
    m = _gap(
        ctx,
        "CIFAR-10 subset",
        lambda seed: _certified_cifar(path, seed),
        ctx.seeds(5),
        DataUse("CIFAR-10 subset", "real"),
    )
    m.reason = "chance is 0.9; 3,000 images and 100 steps in place of 7,000 and 400 gave a certificate of 0.96"
    return m


@functools.cache
def _cifar_images(path: Any) -> tuple[np.ndarray, np.ndarray]:
    parts = datasets.cifar_subset(path)
    return np.concatenate([p.X for p in parts]), np.concatenate([p.y for p in parts])


def _certified_cifar(path: Any, seed: int, n: int = 7_000, steps: int = 400) -> dict[str, float]:
    X, y = _cifar_images(path)
    first, rest = datasets.random_split(len(y), n, seed)
    kept, held = random_block(len(first), 0.2, seed)
    x, t = torch.from_numpy(X[first]), torch.from_numpy(y[first])
    test, pool = torch.from_numpy(X[rest[:1_500]]), torch.from_numpy(X[rest[1_500:3_000]])

    def fit(rows: np.ndarray) -> SmallCNN:
        return train(
            build(lambda: SmallCNN(10, 16), seed), x[rows], t[rows], steps=steps, batch=128, lr=3e-3, seed=seed
        )  # type: ignore[return-value]

    full, part = fit(np.arange(len(first))), fit(kept)
    c = certify_arrays(
        features_of(part, x[kept]),
        t[kept].numpy(),
        features_of(part, x[held]),
        t[held].numpy(),
        predict(part, x[held]),
        pool_predictions=(predict(full, pool), predict(part, pool)),
    )
    return terms_row(c, float((predict(full, test) != y[rest[:1_500]]).mean()))


@measures(
    Claim(
        id="cifar10-resnet18",
        statement="ResNet-18 trained from scratch on CIFAR-10 has a certificate 8 points above its test error.",
        paper_value="gap of 8.0 points (CIFAR-10, ResNet-18, from scratch)",
        scope="paper setting",
        metric="certificate - test error",
        unit="1",
        direction="lower",
        criterion=Criterion("difference", at_least=0.0, at_most=0.1),
        needs=("gpu",),
    ),
    tiers=("cpu", "gpu"),
)
def cifar10_resnet18(ctx: Context) -> Measurement:
    """Cifar10 resnet18."""
    from neurips26.knn_certificate.full_scale import certified_resnet18

    return _gap(ctx, "CIFAR-10", certified_resnet18, ctx.seeds(5), DataUse("CIFAR-10", "real"))


@measures(
    Claim(
        id="cifar10-dinov2",
        statement="Frozen DINOv2 features and a linear head certify about 1.4% error on CIFAR-10.",
        paper_value="1.4% certified (CIFAR-10, frozen DINOv2)",
        scope="paper setting",
        metric="certificate",
        unit="1",
        direction="lower",
        criterion=Criterion("bound", at_most=0.02),
        needs=("gpu",),
    ),
    tiers=("cpu", "gpu"),
)
def cifar10_dinov2(ctx: Context) -> Measurement:
    """Cifar10 dinov2."""
    from neurips26.knn_certificate.full_scale import certified_dinov2

    return _gap(ctx, "CIFAR-10, DINOv2", certified_dinov2, ctx.seeds(5), DataUse("CIFAR-10", "real"))
