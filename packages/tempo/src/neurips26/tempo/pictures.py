"""Figures of the record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import shifts

__all__ = ["animation", "curves", "gains", "latencies", "stability"]


def _axes(width: float = 7.0, height: float = 3.6, columns: int = 1) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def gains(table: dict, methods: Sequence[str], path: Path) -> Path:
    """Heat map of relative gains over the frozen policy, with the nominal column."""
    names = ("nominal", *shifts.SHIFTS)
    rows = [m for m in methods if m != "none"]
    frozen = {n: np.mean(table[n, "none"]["returns"]) for n in names}
    grid = np.array([[100 * (np.mean(table[n, m]["returns"]) / frozen[n] - 1) for n in names] for m in rows])
    figure, (ax,) = _axes(7, 0.45 * len(rows) + 1.2)
    top = max(5.0, float(np.abs(grid).max()))
    image = ax.imshow(grid, cmap="RdBu", vmin=-min(top, 40), vmax=min(top, 40), aspect="auto")
    ax.set_xticks(range(len(names)), [f"{n}\n{frozen[n]:.1f}" for n in names])
    ax.set_yticks(range(len(rows)), rows)
    for (r, c), value in np.ndenumerate(grid):
        ax.text(c, r, f"{value:+.1f}", ha="center", va="center", fontsize=8)
    figure.colorbar(image, label="gain over frozen, %")
    ax.set_title("below each shift: return of the frozen policy per 1000 ticks", fontsize=9)
    figure.savefig(path, dpi=130)
    return path


def curves(table: dict, path: Path, window: int = 25) -> Path:
    """Reward over time, averaged over robots, with a band of one standard error."""
    names = [n for n in shifts.SHIFTS if (n, "tempo") in table]
    figure, axes = _axes(11, 3, len(names))
    kernel = np.ones(window) / window
    for ax, name in zip(axes, names):
        for method in ("none", "naive", "tempo"):
            row = table[name, method]
            y = 1000 * np.convolve(row["curve"], kernel, "valid")
            band = 1000 * np.convolve(row["low"], kernel, "valid") / np.sqrt(len(row["returns"]))
            ax.plot(y, label={"none": "frozen"}.get(method, method))
            ax.fill_between(range(len(y)), y - band, y + band, alpha=0.2)
        ax.set_title(name)
        ax.set_xlabel("tick")
    axes[0].set_ylabel("reward per 1000 ticks")
    axes[0].legend()
    figure.savefig(path, dpi=130)
    return path


def stability(grid: dict[str, np.ndarray], rates: Sequence[float], path: Path) -> Path:
    """Mean loss against the frozen policy over step sizes."""
    figure, (ax,) = _axes()
    for method, loss in grid.items():
        ax.semilogx(rates, loss, "o-", label=method)
    ax.axhline(0, color="grey", lw=0.8)
    ax.set_xlabel("step size")
    ax.set_ylabel("return lost against frozen")
    ax.legend()
    figure.savefig(path, dpi=130)
    return path


def latencies(rows: Sequence[dict], path: Path) -> Path:
    """Histogram of tick times."""
    figure, (ax,) = _axes()
    for key, label in (("without", "tick without an update"), ("with", "tick with an update")):
        ax.hist(1e3 * np.concatenate([r[key] for r in rows]), bins=np.geomspace(0.05, 50, 60), alpha=0.6, label=label)
    ax.axvline(20, color="black", lw=0.8, label="deadline")
    ax.set_xscale("log")
    ax.set_xlabel("ms")
    ax.legend()
    figure.savefig(path, dpi=130)
    return path


def animation(ckpt: Any, shift: shifts.Shift, path: Path, ticks: int = 150, every: int = 5, seed: int = 0) -> Path:
    """Frozen (left) and adapted (right) robot side by side as a GIF; needs a working OpenGL (set MUJOCO_GL=egl or
    osmesa)."""
    import mujoco
    from PIL import Image

    from .evaluate import rollout

    films = []
    for method in ("none", "tempo"):
        frames: list[np.ndarray] = []
        renderer: list[mujoco.Renderer] = []

        def snap(episode: int, tick: int, world: Any, frames: list = frames, renderer: list = renderer) -> None:
            if not renderer:
                renderer.append(mujoco.Renderer(world.model, 180, 240))
            if tick % every == 0:
                option = mujoco.MjvOption()
                option.geomgroup[3] = 1
                renderer[0].update_scene(world.data[0], "track" if world.robot != "g1" else -1, option)
                frames.append(renderer[0].render())

        rollout(ckpt, method, shift, [seed], ticks=ticks, on_tick=snap)
        films.append(frames)
    n = min(map(len, films))
    pictures = [Image.fromarray(np.concatenate([films[0][i], films[1][i]], axis=1)).quantize(64) for i in range(n)]
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=20 * every, loop=0)
    return path
