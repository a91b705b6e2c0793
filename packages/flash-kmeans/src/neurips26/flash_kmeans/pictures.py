"""The pictures of the report."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from neurips26.flash_kmeans.fit import kmeans
from neurips26.shared.plots import BASELINE, OURS, figure

__all__ = ["inertia_curves", "quantised", "speed_map"]


def quantised(path: Path, image: np.ndarray, results: list[dict[str, Any]]) -> None:
    """A photograph and its reductions to a few colours."""
    with figure(path, 1, 1 + len(results), size=(2.9, 2.2)) as axes:
        axes[0].imshow(image)
        axes[0].set_title("original")
        for axis, result in zip(axes[1:], results):
            reduced = result["centroids"][result["labels"]].reshape(image.shape)
            error = float(np.square(reduced - image).mean())
            axis.imshow(np.clip(reduced, 0, 1))
            axis.set_title(f"{len(result['centroids'])} colours, {-10 * np.log10(error):.1f} dB")
        for axis in axes:
            axis.set_axis_off()


def inertia_curves(path: Path, problems: list[tuple[str, np.ndarray, int]], seed: int) -> None:
    """Inertia after each iteration of ours and of scikit-learn from the same centroids: the curves lie on each other."""
    from sklearn.cluster import KMeans

    with figure(path, 1, len(problems)) as axes, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for axis, (name, x, k) in zip(np.atleast_1d(axes), problems):
            init = x[np.random.default_rng(seed).choice(len(x), k, replace=False)]
            steps = (1, 2, 3, 5, 8, 12)
            ours = [kmeans(x, k, init=init, max_iter=s, tol=0).inertia for s in steps]
            theirs = [KMeans(k, init=init, n_init=1, max_iter=s, tol=0).fit(x).inertia_ for s in steps]
            axis.plot(steps, theirs, "-", color=BASELINE, lw=4, alpha=0.6, label="scikit-learn")
            axis.plot(steps, ours, "o-", color=OURS, ms=4, lw=1, label="ours")
            axis.set_title(f"{name}, K={k}")
            axis.set_xlabel("iterations")
        np.atleast_1d(axes)[0].set_ylabel("inertia")
        np.atleast_1d(axes)[0].legend()


def speed_map(path: Path, cells: list[dict[str, Any]]) -> None:
    """Speed-up over the fastest peer for each shape of the grid, over K and D, with N as the size of the mark."""
    table: dict[tuple, dict[str, list[float]]] = {}
    for cell in cells:
        factors = cell["factors"]
        key = (factors["data"], factors["n"], factors["d"], factors["k"])
        table.setdefault(key, {}).setdefault(cell["method"], []).append(cell["value"])
    with figure(path, 1, 1, size=(6.4, 3.6)) as axis:
        shapes = list(table)
        gain = []
        for key in shapes:
            medians = {m: float(np.median(v)) for m, v in table[key].items()}
            ours = medians.pop("ours")
            gain.append(min(medians.values()) / ours)
        d, k = [s[2] for s in shapes], [s[3] for s in shapes]
        sizes = [30 + 60 * np.log10(s[1] / 4000) for s in shapes]
        marks = axis.scatter(k, d, s=sizes, c=gain, cmap="viridis", vmin=1, vmax=max(3, *gain))
        for x, y, g in zip(k, d, gain):
            axis.annotate(f"{g:.2f}x", (x, y), textcoords="offset points", xytext=(8, 4), fontsize=7)
        axis.set(xscale="log", yscale="log", xlabel="clusters K", ylabel="features D")
        axis.set_title("times faster than the fastest peer (mark: N from 5,000 to 300,000)")
        axis.figure.colorbar(marks, ax=axis)
