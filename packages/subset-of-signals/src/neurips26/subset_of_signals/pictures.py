"""Pictures of the claims, from their cells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neurips26.shared.plots import figure

__all__ = ["collapse", "hubble_diagram", "law_bars", "mixture", "scaling"]


def _rms(cells: Sequence[dict[str, Any]], factor: str, method: str) -> tuple[np.ndarray, np.ndarray]:
    sizes = sorted({c["factors"][factor] for c in cells if c["method"] == method})
    values = [
        np.sqrt(np.mean([c["value"] ** 2 for c in cells if c["method"] == method and c["factors"][factor] == s]))
        for s in sizes
    ]
    return np.array(sizes, float), np.array(values)


def scaling(cells: Sequence[dict[str, Any]], factor: str, slope: float, path: Path) -> None:
    """RMS error against one size for every method, with the line of theory through LAD's middle point."""
    with figure(path, size=(5.2, 3.6)) as ax:
        # The points near the threshold come last, so that a method has one colour in all three pictures.
        for method in sorted({c["method"] for c in cells}, key=lambda name: ("below" in name, name)):
            x, y = _rms(cells, factor, method)
            style = "x:" if "below" in method else "k:" if method == "oracle" else "o-"
            ax.plot(x, y, style, ms=4, label=method, zorder=3 if method == "oracle" else 2)
        x, y = _rms(cells, factor, "lad")
        mid = len(x) // 2
        ax.plot(x, y[mid] * (x / x[mid]) ** slope, "k--", lw=1, label=f"slope {slope:g}")
        ax.set(xscale="log", yscale="log", xlabel={"m": "signals m", "n": "sources n", "d": "dimension d"}[factor])
        ax.set_ylabel("RMS error")
        ax.legend(fontsize=8)


def collapse(cells: Sequence[dict[str, Any]], crossings: Sequence[dict[str, Any]], path: Path) -> None:
    """Median error against ``m / sqrt(n d)`` for all sizes (left); the map of it with the measured threshold (right)."""
    with figure(path, columns=2, size=(4.4, 3.6)) as (left, right):
        sizes = sorted({(c["factors"]["n"], c["factors"]["d"]) for c in cells}, key=lambda s: s[0] * s[1])
        largest = np.log(sizes[-1][0] * sizes[-1][1])
        smallest = np.log(sizes[0][0] * sizes[0][1])
        points = []
        for n, d in sizes:
            mine = sorted(
                (c["factors"]["m"], c["value"]) for c in cells if c["factors"]["n"] == n and c["factors"]["d"] == d
            )
            shade = (np.log(n * d) - smallest) / max(largest - smallest, 1e-9)
            ms, errors = np.array(mine).T
            left.plot(
                ms / np.sqrt(n * d),
                errors,
                "o-",
                ms=3,
                lw=0.8,
                color=(0.1, 0.75 * (1 - shade) + 0.1, 0.4 + 0.5 * shade),
            )
            points += [(n * d, m, e) for m, e in mine]
        left.axhline(1, color="0.6", lw=0.8)
        left.axvline(1, color="0.6", lw=0.8)
        left.set(xscale="log", yscale="log", xlabel="m / sqrt(n d)", ylabel="median error of LAD")
        left.set_xticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"])
        left.set_xticks([], minor=True)
        left.set_title(
            f"{len(sizes)} sizes, n d from {sizes[0][0] * sizes[0][1]} (green) to {sizes[-1][0] * sizes[-1][1]}",
            fontsize=8,
        )
        nd, m, e = np.array(points).T
        shown = right.scatter(nd, m, c=np.log10(e), cmap="RdBu_r", vmin=-2, vmax=2, s=36, edgecolor="k", lw=0.3)
        line = np.array([nd.min(), nd.max()])
        right.plot(line, np.sqrt(line), "k--", lw=1, label="m = sqrt(n d)")
        at = [[c["value"] for c in crossings if c["factors"]["n"] == n and c["factors"]["d"] == d] for n, d in sizes]
        right.plot([n * d for n, d in sizes], [np.median(v) for v in at], "k_", ms=8, label="median error 1")
        right.set(xscale="log", yscale="log", xlabel="n d", ylabel="signals m")
        right.legend(fontsize=8)
        right.figure.colorbar(shown, ax=right, label="log10 median error")


def law_bars(cells: Sequence[dict[str, Any]], path: Path) -> None:
    """Geometric-mean error of every method in every condition."""
    conditions = sorted({c["factors"]["condition"] for c in cells})
    methods = sorted({c["method"] for c in cells})
    with figure(path, size=(8.4, 3.8)) as ax:
        width = 0.8 / len(methods)
        for i, method in enumerate(methods):
            values = [
                np.exp(
                    np.mean(
                        [np.log(c["value"]) for c in cells if c["method"] == method and c["factors"]["condition"] == k]
                    )
                )
                for k in conditions
            ]
            ax.bar(np.arange(len(conditions)) + i * width, values, width, label=method)
        names = [c.replace(", n", "\nn") for c in conditions]
        ax.set_xticks(np.arange(len(conditions)) + 0.4, names, fontsize=7)
        ax.set(yscale="log", ylabel="error (geometric mean)")
        ax.legend(fontsize=7, ncol=3)


def mixture(scales: np.ndarray, weights: np.ndarray, sigma: np.ndarray, path: Path) -> None:
    """The estimated law of the sources' scales beside the true one."""
    with figure(path, size=(5.2, 3.4)) as ax:
        ax.step(np.sort(sigma), np.arange(1, sigma.size + 1) / sigma.size, label="true")
        ax.step(scales, np.cumsum(weights), where="post", label="estimated from y alone")
        ax.set(xscale="log", xlabel="standard deviation of a source", ylabel="share of sources below")
        ax.legend(fontsize=8)


def hubble_diagram(
    x: np.ndarray,
    mu: np.ndarray,
    weights: np.ndarray,
    error: np.ndarray,
    fits: dict[str, tuple[float, float]],
    path: Path,
) -> None:
    """The diagram with the fits (left) and our weights against the published precisions (right)."""
    with figure(path, columns=2, size=(4.4, 3.6)) as (left, right):
        shown = left.scatter(x, mu, c=weights / weights.max(), s=14, cmap="viridis")
        line = np.array([x.min(), x.max()])
        for name, (slope, intercept) in fits.items():
            left.plot(line, intercept + slope * (line - x.mean()), lw=1.2, label=f"{name}: {slope:.3f}")
        left.set(xlabel="log10 z (1 + 0.775 z)", ylabel="distance modulus (mag)")
        left.legend(fontsize=8, title="slope (physics: 5)", title_fontsize=8)
        right.figure.colorbar(shown, ax=left, label="weight")
        right.scatter(error**-2.0, weights, s=14)
        right.set(xscale="log", yscale="log", xlabel="published precision (mag⁻²)", ylabel="estimated weight (mag⁻²)")
