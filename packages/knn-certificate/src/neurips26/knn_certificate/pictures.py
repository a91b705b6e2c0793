"""Pictures of certificates and experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neurips26.knn_certificate.diagnostics import project
from neurips26.shared.plots import COLOURS, figure

__all__ = ["ablation_plot", "coverage_plot", "noise_curves", "representation_plot", "stacked_terms", "terms_by_dataset"]

#: A legend beside the bars, which fill the axes.
_BESIDE: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}


def stacked_terms(certificates: Mapping[str, Any], path: str | Path, test_errors: Mapping[str, float]) -> None:
    """Bars of the three estimates, stacked, with bound, hold-out bound and test error as marks."""
    with figure(Path(path), size=(3.0 + 1.4 * len(certificates), 3.4)) as ax:
        for i, (name, c) in enumerate(certificates.items()):
            low = 0.0
            for j, term in enumerate(("geometry", "disagreement", "stability")):
                t = getattr(c, term)
                if t is not None:
                    ax.bar(i, t.estimate, bottom=low, color=COLOURS[j], width=0.6, label=term if i == 0 else None)
                    low += t.estimate
            ax.plot(i, c.bound, "k_", ms=22, mew=2, label="certificate" if i == 0 else None)
            if c.holdout_bound is not None:
                ax.plot(i, c.holdout_bound, "_", color="0.5", ms=22, mew=2, label="hold-out" if i == 0 else None)
            if name in test_errors:
                ax.plot(i, test_errors[name], "r*", ms=9, label="test error" if i == 0 else None)
        ax.set_xticks(range(len(certificates)), list(certificates))
        ax.set_ylabel("error rate")
        ax.legend(fontsize=7, **_BESIDE)


def terms_by_dataset(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """The same from recorded cells: one group a data set, means over seeds."""
    names = sorted({r["factors"]["data"] for r in rows})

    def mean(data: str, what: str) -> float:
        values = [r["value"] for r in rows if r["factors"]["data"] == data and r["method"] == what]
        return float(np.mean(values)) if values else float("nan")

    with figure(path, size=(3.0 + 1.5 * len(names), 3.4)) as ax:
        for i, data in enumerate(names):
            low = 0.0
            for j, term in enumerate(("geometry", "disagreement", "stability")):
                ax.bar(i, mean(data, term), bottom=low, color=COLOURS[j], width=0.6, label=term if i == 0 else None)
                low += mean(data, term)
            for mark, what, colour in (("_", "certificate", "k"), ("_", "hold-out", "w"), ("*", "test error", "r")):
                ax.plot(
                    i,
                    mean(data, what),
                    mark,
                    color=colour,
                    ms=18 if mark == "_" else 9,
                    mew=2.5 if mark == "_" else 1,
                    label=what if i == 0 else None,
                )
        ax.set_xticks(range(len(names)), names)
        ax.set_ylabel("error rate")
        ax.set_title("the certificate counts geometry\nor disagreement once", fontsize=8)
        ax.legend(fontsize=7, frameon=True, facecolor="0.85", **_BESIDE)


_INTERVENTIONS = {
    "clean": "plain training",
    "half the labels": "half of the labels random",
    "all labels": "all labels random",
    "cross-pairs": "pairs across classes pulled together",
    "same-class pairs": "pairs within classes (control)",
    "rainbow": "groups of one point a class (rainbow)",
    "frozen random": "trained on random labels, then frozen",
}


def ablation_plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Test error against the held-out decoder error (left) and against the in-sample one (right)."""
    kinds = sorted({r["intervention"] for r in rows})
    with figure(path, columns=2, size=(4.2, 3.4)) as axes:
        for ax, axis, title in zip(
            axes, ("held_out_error", "in_sample_error"), ("held-out decoder", "in-sample leave-one-out")
        ):
            for kind, colour in zip(kinds, COLOURS):
                mine = [r for r in rows if r["intervention"] == kind]
                whole = [r for r in mine if r["train_accuracy"] >= 0.99]
                partly = [r for r in mine if r["train_accuracy"] < 0.99]
                ax.plot(
                    [r[axis] for r in whole],
                    [r["test_error"] for r in whole],
                    "o",
                    ms=5,
                    color=colour,
                    label=_INTERVENTIONS.get(kind, kind),
                )
                ax.plot([r[axis] for r in partly], [r["test_error"] for r in partly], "x", ms=5, color=colour)
            ax.plot([0, 1], [0, 1], "k:", lw=0.8)
            ax.set(xlabel=f"1-NN error, {title}", ylabel="test error of the network")
        axes[0].legend(fontsize=6.5, title="cross: not memorised", title_fontsize=6.5, loc="upper left")


def representation_plot(panels: Mapping[str, tuple[np.ndarray, np.ndarray]], path: Path) -> None:
    """Two principal components of each representation, points coloured by class."""
    with figure(path, columns=len(panels), size=(3.2, 3.2)) as axes:
        for ax, (name, (features, labels)) in zip(np.ravel(axes), panels.items()):
            xy = project(features)
            ax.scatter(xy[:, 0], xy[:, 1], c=labels, cmap="tab10", s=9)
            ax.set(title=_INTERVENTIONS.get(name, name), xticks=[], yticks=[])


def noise_curves(cells: Sequence[dict[str, Any]], path: Path) -> None:
    """Mean accuracy of every curve and its range over seeds."""
    curves = sorted({c["method"] for c in cells}, key=lambda name: (name != "k-NN re-embedded", name))
    scales = sorted({c["factors"]["scale"] for c in cells})
    with figure(path, size=(5.0, 3.4)) as ax:
        for name in curves:
            table = [[c["value"] for c in cells if c["method"] == name and c["factors"]["scale"] == s] for s in scales]
            # The two on top coincide: the control is dashed.
            style = "s--" if name == "readout refitted" else "o-"
            ax.plot(scales, [np.mean(v) for v in table], style, ms=3, label=name)
            ax.fill_between(scales, [min(v) for v in table], [max(v) for v in table], alpha=0.12)
        ax.set(xlabel="noise relative to each weight tensor's spread", ylabel="test accuracy")
        ax.legend(fontsize=7)


_PROTOCOLS = {
    "unlabeled": "classifier of all data, checked on an unlabelled pool",
    "chosen-k": "the same, number of neighbours chosen",
    "trained": "the same, a network trained from scratch",
    "double-deletion": "classifier of all data, a second block deleted",
    "none": "classifier trained without the held-back block",
    "folds": "five cross-validated classifiers, on average",
    "loo": "leave-one-out, slack of Rogers & Wagner",
    "loo-devroye-wagner": "leave-one-out, slack of Devroye & Wagner",
    "loo-hoeffding": "leave-one-out, Hoeffding's slack (no proof)",
    "misused": "control: features trained on the labels",
}


def coverage_plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """How far the bound lies above the true risk in every repeat, a line a protocol; left of zero it is violated."""
    kinds = [name for name in _PROTOCOLS if any(r["protocol"] == name for r in rows)]
    rng = np.random.default_rng(0)
    with figure(path, size=(7.4, 1.0 + 0.32 * len(kinds))) as ax:
        for at, kind in enumerate(kinds):
            margin = np.array([r["bound"] - r["risk"] for r in rows if r["protocol"] == kind])
            colour = COLOURS[5] if kind in ("misused", "loo-hoeffding") else COLOURS[0]
            ax.plot(margin, at + rng.uniform(-0.3, 0.3, margin.size), ".", ms=2.5, color=colour, alpha=0.6)
        ax.axvline(0, color="k", lw=1)
        ax.set_yticks(range(len(kinds)), [_PROTOCOLS[kind] for kind in kinds])
        ax.invert_yaxis()
        ax.set_xlabel("certified bound minus true risk (below 0: violated)")
