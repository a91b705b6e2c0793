"""Command line: ``neurips26 knn-certificate <verb>``."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

__all__ = ["main"]

Mode = Literal["auto", "blocked", "folds", "loo"]


def _npz(path: Path, *names: str) -> list[np.ndarray]:
    if not path.is_file():
        raise ValueError(f"{path}: expected an .npz file, got none of that name")
    try:
        stored = np.load(path, allow_pickle=False)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path.name}: expected an .npz file, got something else") from error
    found = getattr(stored, "files", [])
    missing = [n for n in names if n not in found]
    if missing:
        raise ValueError(f"{path.name}: expected arrays {', '.join(names)}, got {', '.join(found) or 'none'}")
    return [stored[n] for n in names]


@dataclass
class Certify:
    """Certify a logistic head on frozen features: from an .npz file with arrays X (features) and y (labels), or made here from
    --data by a pretrained --model."""

    features: Annotated[Path | None, tyro.conf.Positional] = None
    """The training features."""
    model: str | None = None
    """A pretrained encoder: timm:NAME for images, hf:NAME or hf:FOLDER for images or sentences."""
    data: Path | None = None
    """For --model: a folder of images with one folder a class, or a CSV file with columns text and label."""
    weights: Path | None = None
    """A local file of weights for a timm model, in place of the published ones."""
    unlabeled: Path | None = None
    """Inputs that are not part of the training data: an .npz file with X, or images or a CSV file for --model."""
    mode: Mode = "auto"
    """Protocol."""
    frozen: bool = False
    """State that the features never saw these labels: needed, for on features trained with them no bound of a head holds."""
    C: float = 1.0
    """Inverse regularisation of the head."""
    delta: float = 0.05
    """Probability with which the bound may fail."""
    metric: Literal["cosine", "euclidean", "standardised", "whitened"] = "cosine"
    """Distance; the last two are Euclidean after scaling or decorrelating the features by the memory's spread."""
    seed: int = 0
    """Seed of the random splits."""
    out: Path | None = None
    """Write the certificate as JSON."""

    def __call__(self) -> int:
        from sklearn.linear_model import LogisticRegression

        from neurips26.knn_certificate import certify_features

        X, y, pool = self._read()
        c = certify_features(
            X,
            y,
            head=LogisticRegression(C=self.C, max_iter=1000),
            unlabeled=pool,
            mode=self.mode,
            representation="frozen" if self.frozen else None,
            delta=self.delta,
            metric=self.metric,
            seed=self.seed,
        )
        print(c.summary())
        if self.out:
            c.to_json(self.out)
            print(f"written to {self.out}")
        return 0

    def _read(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        if self.model is None:
            if self.features is None or self.data is not None:
                raise ValueError("features: expected an .npz file, or --model with --data")
            X, y = _npz(self.features, "X", "y")
            return X, y, _npz(self.unlabeled, "X")[0] if self.unlabeled else None
        if self.data is None or self.features is not None:
            raise ValueError(f"data: expected --data and no .npz file beside --model {self.model}")
        from neurips26.knn_certificate.frozen import embed, read_items

        items, labels = read_items(self.data)
        assert labels is not None
        X = embed(self.model, items, weights=self.weights)
        if self.unlabeled is None:
            return X, labels, None
        return X, labels, embed(self.model, read_items(self.unlabeled, labelled=False)[0], weights=self.weights)


@dataclass
class Verify:
    """Recompute a certificate's counts, limits and bound from its events."""

    certificate: Annotated[Path, tyro.conf.Positional]
    """A JSON certificate."""

    def __call__(self) -> int:
        from neurips26.knn_certificate import verify

        problems = verify(_certificate(self.certificate))
        print("\n".join(problems) if problems else f"{self.certificate}: agrees with its events")
        return 1 if problems else 0


@dataclass
class Report:
    """Write one self-contained page about a certificate: terms and limits, assumptions, notes, every class."""

    certificate: Annotated[Path, tyro.conf.Positional]
    """A JSON certificate."""
    out: Annotated[Path, tyro.conf.Positional]
    """The HTML file."""
    test_error: float | None = None
    """The test error where it is known, for the picture."""

    def __call__(self) -> int:
        from neurips26.knn_certificate.page import write_page

        write_page(_certificate(self.certificate), self.out, self.test_error)
        print(f"written to {self.out}")
        return 0


def _certificate(path: Path) -> Any:
    from neurips26.knn_certificate import Certificate

    if not path.is_file():
        raise ValueError(f"{path}: expected a JSON certificate, got no file of that name")
    try:
        return Certificate.from_json(path.read_text("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected a JSON certificate, got a file that is no text") from error


@dataclass
class Text:
    """Certify a logistic head on frozen sentence embeddings of Banking77 or CLINC150."""

    data: Annotated[Literal["banking77", "clinc150"], tyro.conf.Positional]
    """Data set."""
    n: int = 6_000
    """Training sentences; the others serve as unlabelled pool."""
    seed: int = 0
    """Seed."""

    def __call__(self) -> int:
        from sklearn.linear_model import LogisticRegression

        from neurips26.knn_certificate import certify_features, datasets
        from neurips26.shared import data

        if self.data == "banking77":
            sentences, y = datasets.banking77(data.require("knn-certificate", "banking77-train.csv"))
        else:
            sentences, y = datasets.clinc150(data.require("knn-certificate", "clinc150.json"))
        X = datasets.embed(sentences)
        first, rest = datasets.random_split(len(y), self.n, self.seed)
        head = LogisticRegression(C=30.0, max_iter=100, tol=1e-3)
        pool = X[rest]
        certificate = certify_features(
            X[first], y[first], head=head, unlabeled=pool, representation="frozen", seed=self.seed
        )
        print(certificate.summary())
        return 0


@dataclass
class Ablate:
    """Destroy the geometry of digits in one of several ways and print what is left."""

    intervention: Annotated[
        Literal["none", "labels", "cross-pair", "same-pair", "rainbow", "frozen"], tyro.conf.Positional
    ] = "cross-pair"
    """Which way."""
    strength: float = 1.0
    """Weight of the extra loss, or the fraction of labels drawn anew."""
    n: int = 375
    """Training points (a fifth is held back)."""
    seed: int = 0
    """Seed."""

    def __call__(self) -> int:
        from neurips26.knn_certificate import datasets
        from neurips26.knn_certificate.ablation import ablate_geometry

        d = datasets.digits()
        first, rest = datasets.random_split(len(d.y), self.n, self.seed)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            got = ablate_geometry(
                d.X[first],
                d.y[first],
                d.X[rest],
                d.y[rest],
                self.intervention,
                strength=self.strength,
                seed=self.seed,
                hidden=384,
                steps=600,
                batch=150,
            )
        for name, value in got.figures().items():
            print(f"{name:<18}{value:.4f}")
        for warning in said:
            print(f"note: {warning.message}")
        return 0


@dataclass
class Noise:
    """Add noise to the weights of a network trained on digits and print the accuracy of readouts and neighbours."""

    n: int = 1_000
    """Training points."""
    draws: int = 3
    """Noise draws a scale."""
    seed: int = 0
    """Seed."""

    def __call__(self) -> int:
        import torch

        from neurips26.knn_certificate import datasets
        from neurips26.knn_certificate.networks import MLP, build, train
        from neurips26.knn_certificate.weight_noise import CURVES, weight_noise

        d = datasets.digits()
        first, rest = datasets.random_split(len(d.y), self.n, self.seed)
        x, y = torch.from_numpy(d.X[first]).float(), torch.from_numpy(d.y[first])
        model = train(build(lambda: MLP(64, 10, 128), self.seed), x, y, steps=400, batch=128, seed=self.seed)
        scales = (0.0, 0.4, 0.8, 1.0, 1.5)
        rows = weight_noise(
            model, d.X[first], d.y[first], d.X[rest], d.y[rest], scales, draws=self.draws, seed=self.seed
        )
        print(f"{'relative noise':<28}" + "".join(f"{s:>8g}" for s in scales))
        for curve in CURVES:
            means = [
                np.mean([float(r["accuracy"]) for r in rows if r["curve"] == curve and r["scale"] == s]) for s in scales
            ]
            print(f"{curve:<28}" + "".join(f"{m:>8.3f}" for m in means))
        return 0


@dataclass
class Coverage:
    """Repeat the certificate on draws of known risk and count violations."""

    repeats: int = 100
    """Draws."""
    protocol: Literal[
        "unlabeled", "none", "double-deletion", "chosen-k", "folds", "trained", "loo", "loo-devroye-wagner", "misused"
    ] = "unlabeled"
    """How the bound is made; misused: from features that were trained on the labels, which must fail."""
    json: bool = False
    """Print JSON."""

    def __call__(self) -> int:
        from neurips26.knn_certificate.coverage import one_repeat
        from neurips26.shared.stats import clopper_pearson

        rows = [one_repeat(seed, self.protocol) for seed in range(self.repeats)]
        failed = sum(r["risk"] > r["bound"] for r in rows)
        rate, low, high = clopper_pearson(failed, len(rows))
        if self.json:
            print(json.dumps({"violations": failed, "repeats": len(rows), "rate": rate, "low": low, "high": high}))
        else:
            print(
                f"{failed} violations in {len(rows)} repeats at delta 0.05; 95% interval of the rate [{low:.4f}, {high:.4f}]"
            )
        return 0


def main(argv: list[str]) -> int:
    """Run one verb; returns the exit status."""
    verbs = {
        "certify": Certify,
        "verify": Verify,
        "report": Report,
        "text": Text,
        "ablate": Ablate,
        "noise": Noise,
        "coverage": Coverage,
    }
    return tyro.extras.subcommand_cli_from_dict(verbs, args=argv, prog="neurips26 knn-certificate")()
