"""One run of one condition, for one seed: what the claims and the tuning grids are made of."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from neurips26.knn_certificate import datasets
from neurips26.knn_certificate.ablation import Ablated, ablate_geometry
from neurips26.knn_certificate.baselines import pac_bayes_bound, spectral_bound
from neurips26.knn_certificate.blocked import certify_arrays, random_block
from neurips26.knn_certificate.certificate import terms_row
from neurips26.knn_certificate.heads import certify_features
from neurips26.knn_certificate.networks import MLP, SmallCNN, build, features_of, predict, train
from neurips26.knn_certificate.weight_noise import weight_noise
from neurips26.shared import backbones, seeding
from neurips26.shared.context import Context

#: Inverse regularisation of the logistic head on sentence embeddings, chosen on splits that no claim uses (grid "head").
HEAD_C = 30.0

#: Sentences to certify with, of 10,003 and 15,000.
TEXT_SIZES = {"Banking77": 8_000, "CLINC150": 12_000}

#: The sweep over interventions and their strengths.
SWEEP = {
    "clean": ("none", 1.0),
    "half the labels": ("labels", 0.5),
    "all labels": ("labels", 1.0),
    "cross-pairs": ("cross-pair", 1.0),
    "same-class pairs": ("same-pair", 1.0),
    "rainbow": ("rainbow", 10.0),
    "frozen random": ("frozen", 1.0),
}

#: Weight noise relative to each tensor.
NOISE_SCALES = (0.0, 0.3, 0.6, 1.0, 1.5)


@functools.cache
def digits_networks(seed: int, n: int) -> tuple[MLP, MLP]:
    """A network trained from scratch on ``n`` digits, and the same without its certification block."""
    data = datasets.digits()
    first, _ = datasets.random_split(len(data.y), n, seed)
    x, y = torch.from_numpy(data.X[first]).float(), torch.from_numpy(data.y[first])

    def fit(rows: np.ndarray) -> MLP:
        return train(build(lambda: MLP(64, 10, 128), seed), x[rows], y[rows], steps=500, batch=128, seed=seed)  # type: ignore[return-value]

    return fit(np.arange(n)), fit(random_block(n, 0.2, seed)[0])


def certified_digits(seed: int, n: int = 1_200) -> dict[str, float]:
    """The certificate of the network trained on all ``n``; the pool is the test inputs."""
    data = datasets.digits()
    first, rest = datasets.random_split(len(data.y), n, seed)
    kept, held = random_block(n, 0.2, seed)
    x, y = torch.from_numpy(data.X[first]).float(), torch.from_numpy(data.y[first])
    test = torch.from_numpy(data.X[rest]).float()
    whole, part = digits_networks(seed, n)
    c = certify_arrays(
        features_of(part, x[kept]),
        y[kept].numpy(),
        features_of(part, x[held]),
        y[held].numpy(),
        predict(part, x[held]),
        pool_predictions=(predict(whole, test), predict(part, test)),
    )
    return terms_row(c, float((predict(whole, test) != data.y[rest]).mean()))


def certified_text(name: str, ctx: Context, seed: int, C: float = HEAD_C) -> dict[str, float]:
    """The certificate of the head of four fifths of the sentences; the others are the pool, and the test afterwards.

    A certificate reads the pool's inputs alone, so its labels are free for the test error.
    """
    X, y = embedded(name, ctx)
    first, rest = datasets.random_split(len(y), TEXT_SIZES[name], seed)
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


def text_available(name: str, ctx: Context) -> bool:
    """Whether the sentences and their encoder are here."""
    file = {"Banking77": "banking77-train.csv", "CLINC150": "clinc150.json"}[name]
    return ctx.data(file) is not None and backbones.available("MiniLM")


def embedded(name: str, ctx: Context) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings and labels of a set of sentences."""
    if name == "Banking77":
        path = ctx.data("banking77-train.csv")
        assert path is not None
        sentences, y = datasets.banking77(path)
    else:
        path = ctx.data("clinc150.json")
        assert path is not None
        sentences, y = datasets.clinc150(path)
    return datasets.embed(sentences), y


def head_error(name: str, ctx: Context, seed: int, C: float) -> float:
    """Test error of a head of 3,000 sentences, on a part of the others."""
    X, y = embedded(name, ctx)
    first, rest = datasets.random_split(len(y), 3_000, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        head = LogisticRegression(C=C, max_iter=40, tol=1e-3).fit(X[first], y[first])
    return float((head.predict(X[rest[:2_000]]) != y[rest[:2_000]]).mean())


def one_choice(factors: dict[str, Any], seed: int) -> dict[str, float]:
    """Certificate and test error of a logistic head on pixels, at a size of the block and a metric."""
    data = datasets.digits()
    first, rest = datasets.random_split(len(data.y), 900, seed)
    head = LogisticRegression(max_iter=300)
    c = certify_features(
        data.X[first], data.y[first], head=head, unlabeled=data.X[rest], representation="frozen", seed=seed, **factors
    )
    return {
        "certificate": c.bound,
        "test error": float((head.fit(data.X[first], data.y[first]).predict(data.X[rest]) != data.y[rest]).mean()),
    }


def other_bounds(seed: int) -> dict[str, float]:
    """What norms and weight posteriors say of the network that is certified."""
    ours, model = certified_digits(seed), digits_networks(seed, 1_200)[0]
    data = datasets.digits()
    first, _ = datasets.random_split(len(data.y), 1_200, seed)
    x, y = torch.from_numpy(data.X[first]).float(), torch.from_numpy(data.y[first])
    return {
        "certificate": ours["certificate"],
        "hold-out": ours["hold-out"],
        "PAC-Bayes": pac_bayes_bound(model, build(lambda: MLP(64, 10, 128), seed), x, y, draws=10),
        "spectral margin": spectral_bound(model, x, y),
    }


def interventions(seed: int) -> dict[str, dict[str, float]]:
    """The three terms without and with a cause for each."""
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
            c = certify_features(
                x, t, head=LogisticRegression(C=C, max_iter=200), unlabeled=u, representation="frozen", seed=seed
            )
        assert c.stability is not None
        out[kind] = {
            "geometry": c.geometry.estimate, "disagreement": c.disagreement.estimate, "stability": c.stability.estimate,
            "certificate": c.bound,
        }  # fmt: skip
    return out


def sized(n: int, seed: int) -> float:
    """The certificate at ``n`` training points."""
    data = datasets.digits()
    first, rest = datasets.random_split(len(data.y), n, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return certify_features(
            data.X[first],
            data.y[first],
            head=LogisticRegression(max_iter=200),
            unlabeled=data.X[rest][:500],
            representation="frozen",
            seed=seed,
        ).bound


@functools.cache
def ablation(
    kind: str,
    strength: float,
    seed: int,
    kept: int = 240,
    hidden: int = 384,
    steps: int = 500,
    lr: float = 2e-3,
    standardised: bool = False,
) -> Ablated:
    """Trained on ``kept`` digits; the decoder is judged on a block of 700 others, for 60 would blur the ranking."""
    data = datasets.digits()
    first, rest = datasets.random_split(len(data.y), kept + 700, seed)
    X = data.X
    if standardised:
        spread = X[first].std(axis=0)
        X = (X - X[first].mean(axis=0)) / np.where(spread > 0, spread, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ablate_geometry(
            X[first],
            data.y[first],
            X[rest],
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


@functools.cache
def noisy_accuracies(seed: int, draws: int) -> list[dict[str, Any]]:
    """Readouts and neighbours under weight noise, of the network that is certified."""
    data = datasets.digits()
    first, rest = datasets.random_split(len(data.y), 1_200, seed)
    model = digits_networks(seed, 1_200)[0]
    return weight_noise(
        model, data.X[first], data.y[first], data.X[rest], data.y[rest], NOISE_SCALES, draws=draws, seed=seed
    )


@functools.cache
def cifar_images(path: Any) -> tuple[np.ndarray, np.ndarray]:
    """All 10,000 images and labels of the part of CIFAR-10."""
    parts = datasets.cifar_subset(path)
    return np.concatenate([p.X for p in parts]), np.concatenate([p.y for p in parts])


def certified_cifar(path: Any, seed: int, n: int = 7_000, steps: int = 400) -> dict[str, float]:
    """The certificate of a small convolutional network; pool and test are two other parts of the images."""
    X, y = cifar_images(path)
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
