"""Figures of the record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import shifts

__all__ = [
    "animation",
    "curves",
    "gains",
    "latencies",
    "overestimation",
    "ranking",
    "replayed",
    "settings",
    "skeleton",
    "stability",
]


def _axes(width: float = 7.0, height: float = 3.6, columns: int = 1) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def gains(tables: dict[int, dict], methods: Sequence[str], path: Path) -> Path:
    """Heat maps of relative gains over the frozen policy, one a severity, each with the nominal column."""
    names, rows = ("nominal", *shifts.SHIFTS), [m for m in methods if m != "none"]
    figure, axes = _axes(4.4 * len(tables) + 1.5, 0.45 * len(rows) + 1.4, len(tables))
    for ax, (severity, table) in zip(axes, tables.items(), strict=True):
        frozen = {n: np.mean(table[n, "none"]["returns"]) for n in names}
        grid = np.array([[100 * (np.mean(table[n, m]["returns"]) / frozen[n] - 1) for n in names] for m in rows])
        image = _heat(ax, grid, 40.0, "{:+.0f}")
        ax.set_xticks(range(len(names)), [f"{n}\n{frozen[n]:.1f}" for n in names], fontsize=8)
        ax.set_yticks(range(len(rows)), rows if ax is axes[0] else [])
        ax.set_title(f"severity {severity}", fontsize=9)
    figure.colorbar(image, ax=axes[-1], label="gain over frozen, %")
    figure.suptitle("below each condition: return of the frozen policy per 1000 ticks", fontsize=9)
    figure.savefig(path, dpi=110)
    return path


def _heat(ax: Any, grid: np.ndarray, top: float, form: str) -> Any:
    """A heat map from -top (red) to top (blue) with its numbers in it."""
    image = ax.imshow(grid, cmap="RdBu", vmin=-top, vmax=top, aspect="auto")
    for (r, c), value in np.ndenumerate(grid):
        red, green, blue, _ = image.cmap(image.norm(value))
        color = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
        ax.text(c, r, form.format(value), ha="center", va="center", fontsize=8, color=color)
    return image


def settings(surface: dict[float, list[tuple[float, float]]], rates: Sequence[float], path: Path) -> Path:
    """TEMPO over step sizes and weights of the entropy: gain under the shifts, and loss under the worst condition."""
    figure, axes = _axes(9, 3.2, 2)
    values = np.array(list(surface.values()))  # weights, step sizes, (gain, worst loss)
    for ax, title, grid in zip(axes, ("gain", "- worst loss"), (values[..., 0], -values[..., 1]), strict=True):
        image = _heat(ax, grid, max(0.5, float(np.abs(values).max())), "{:+.2f}")
        ax.set_xticks(range(len(rates)), [f"{r:g}" for r in rates])
        ax.set_yticks(range(len(surface)), [f"{h:g}" for h in surface])
        ax.set_xlabel("step size")
        ax.set_title(title, fontsize=9)
    axes[0].set_ylabel("lambda_H")
    figure.colorbar(image, ax=axes[-1], label="return per 1000 ticks against frozen")
    figure.savefig(path, dpi=130)
    return path


def replayed(shares: dict[str, np.ndarray], edges: np.ndarray, path: Path) -> Path:
    """Histogram of the values that each order of replay draws from its memory."""
    figure, (ax,) = _axes()
    for method, share in shares.items():
        ax.stairs(share, edges, label={"tempo": "hard first (TEMPO)"}.get(method, method))
    ax.set_xlabel("critic's value of a replayed observation")
    ax.set_ylabel("share of draws")
    ax.legend()
    figure.savefig(path, dpi=130)
    return path


def curves(table: dict, path: Path, ticks: int, episode: int) -> Path:
    """Reward over time (a point averages `ticks`), averaged over robots, with a band of one standard error; a line where
    an episode of `episode` ticks ends."""
    names = [n for n in shifts.SHIFTS if (n, "tempo") in table]
    figure, axes = _axes(11, 3, len(names))
    for ax, name in zip(axes, names):
        for method in ("none", "naive", "tempo"):
            row = table[name, method]
            y = 1000 * np.asarray(row["curve"])
            x = ticks * (np.arange(len(y)) + 0.5)
            band = 1000 * np.asarray(row["spread"]) / np.sqrt(len(row["returns"]))
            ax.plot(x, y, label={"none": "frozen"}.get(method, method))
            ax.fill_between(x, y - band, y + band, alpha=0.2)
        for end in range(episode, int(x[-1]), episode):
            ax.axvline(end, color="grey", lw=0.6, ls=":")
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


def ranking(found: dict[str, dict], path: Path) -> Path:
    """What the critic says of changed actors against what they earn, a panel a condition; the frozen actor is a star."""
    figure, axes = _axes(2.5 * len(found), 2.9, len(found))
    for ax, (name, row) in zip(axes, found.items(), strict=True):
        value, earned = np.mean(row["value"], 0), np.mean(row["returns"], 0)
        for kind, mark in (
            ("output", "o"),
            ("noise", "x"),
            ("up", "^"),
            ("down", "v"),
            ("random", "+"),
            ("frozen", "*"),
        ):
            chosen = [k for k, a in enumerate(row["actors"]) if a.startswith(kind)]
            ax.scatter(value[chosen], earned[chosen], marker=mark, label=kind, s=60 if kind == "frozen" else 25)
        ax.set_title(f"{name}: rank {np.mean(row['rank']):+.2f}", fontsize=9)
        ax.set_xlabel("critic's value")
    axes[0].set_ylabel("return per 1000 ticks")
    axes[0].legend(fontsize=7)
    figure.savefig(path, dpi=120)
    return path


def latencies(rows: Sequence[dict], path: Path) -> Path:
    """Histogram of tick times, from the quantiles (ms) of each row."""
    figure, (ax,) = _axes()
    for key, label in (("without", "tick without an update"), ("with", "tick with an update")):
        ax.hist(np.concatenate([r[key] for r in rows]), bins=np.geomspace(0.05, 50, 60), alpha=0.6, label=label)
    ax.axvline(20, color="black", lw=0.8, label="deadline")
    ax.set_xscale("log")
    ax.set_xlabel("CPU ms of a tick")
    ax.set_yticks([])
    ax.legend()
    figure.savefig(path, dpi=130)
    return path


def overestimation(table: dict, path: Path) -> Path:
    """What the critic promised against what followed, per shift and method; above the diagonal is over-estimation."""
    names = [n for n in ("nominal", *shifts.SHIFTS) if (n, "tempo") in table]
    figure, axes = _axes(2.6 * len(names), 2.9, len(names))
    methods = ("none", "naive", "tempo")
    pairs = {(n, m): np.asarray(table[n, m]["pairs"]).reshape(-1, 2) for n in names for m in methods}
    low = min(float(p.min()) for p in pairs.values() if len(p))
    top = max(float(p.max()) for p in pairs.values() if len(p))
    for ax, name in zip(axes, names, strict=True):
        for method in methods:
            q, real = pairs[name, method].T
            label = {"none": "frozen"}.get(method, method)
            ax.scatter(real, q, s=4, alpha=0.5, label=f"{label} {table[name, method]['gap']:+.2f}")
        ax.plot([low, top], [low, top], color="grey", lw=0.8)
        ax.set_title(name)
        ax.set_xlabel("realised discounted return")
        ax.legend(fontsize=7, title="mean Q - realised", title_fontsize=7)
    axes[0].set_ylabel("critic's Q")
    figure.savefig(path, dpi=120)
    return path


VIEW = np.array([[0.94, -0.34, 0.0], [0.12, 0.33, 0.94]])  # from the right, a little from behind and above


def skeleton(world: Any, size: tuple[int, int] = (240, 180), label: str = "") -> Any:
    """One robot drawn from its kinematics with Pillow alone (no OpenGL): links, feet, ground and the last meter walked."""
    from PIL import Image, ImageDraw

    model, data = world.model, world.data[0]
    root = data.xpos[1].copy()
    scale = size[0] / (1.5 if world.robot != "g1" else 2.6)
    middle = np.array([size[0] / 2, size[1] * 0.62])

    def at(point: np.ndarray) -> tuple[float, float]:
        flat = VIEW @ (point - [root[0], root[1], 0.25 if world.robot != "g1" else 0.7])
        x, y = middle + scale * flat * [1, -1]
        return float(x), float(y)

    picture = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(picture)
    rough = world.shift.terrain == "rough"
    for k in np.arange(-6, 7) * 0.25:  # a grid that is fixed to the ground shows the way
        for axis in (0, 1):
            line = []
            for s in np.linspace(-1.5, 1.5, 13 if rough else 2):
                p = np.zeros(3)
                p[axis], p[1 - axis] = (np.floor(root[axis] / 0.25) * 0.25 + k), root[1 - axis] + s
                if rough:
                    p[2] = ground_height(model, p[:2])
                line.append(at(p))
            draw.line(line, fill=(205, 205, 205))
    feet = set(world.task.feet_site.tolist())
    for body in range(2, model.nbody):
        parent = int(model.body_parentid[body])
        if parent > 0:
            draw.line([at(data.xpos[parent]), at(data.xpos[body])], fill=(60, 60, 60), width=3)
    for site in feet:
        end = data.site_xpos[site]
        draw.line([at(data.xpos[model.site_bodyid[site]]), at(end)], fill=(60, 60, 60), width=3)
        x, y = at(end)
        draw.ellipse([x - 3, y - 3, x + 3, y + 3], fill=(200, 70, 40))
    half = np.array([0.19, 0.06, 0.05]) if world.robot != "g1" else np.array([0.08, 0.1, 0.15])
    turn = data.xmat[1].reshape(3, 3)
    corners = {s: at(root + turn @ (half * s)) for s in [(a, b, c) for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)]}
    for a in corners:
        for b in corners:
            if sum(x != y for x, y in zip(a, b, strict=True)) == 1:
                draw.line([corners[a], corners[b]], fill=(40, 80, 160), width=2)
    draw.text((6, 4), label, fill="black")
    return picture


def ground_height(model: Any, xy: np.ndarray) -> float:
    """Height of the field under a point."""
    n, half, top = int(model.hfield_nrow[0]), model.hfield_size[0, 0], model.hfield_size[0, 2]
    c, r = np.clip(((xy + half) / (2 * half) * (n - 1)).astype(int), 0, n - 1)
    return float(model.hfield_data.reshape(n, n)[r, c] * top)


def animation(
    ckpt: Any,
    shift: shifts.Shift,
    path: Path,
    ticks: int = 250,
    every: int = 5,
    seed: int = 0,
    episodes: int = 4,
    **settings: Any,
) -> Path:
    """Frozen (left) and adapted (right) robot side by side in the same episode, from the same start and with the same
    commands and noise: a GIF, or an animated PNG where the name ends in .png.

    Both have run `episodes - 1` episodes under the shift before, from which the adapted one has learned.
    """
    from PIL import Image

    from .evaluate import rollout

    films = []
    for method, name in (("none", "frozen"), ("tempo", "adapted")):
        frames: list[Any] = []

        def snap(episode: int, tick: int, world: Any, frames: list = frames, name: str = name) -> None:
            if episode == episodes - 1 and tick % every == 0:
                frames.append(skeleton(world, label=f"{name}, episode {episodes}, {0.02 * (tick + 1):.1f} s"))

        extra = settings if method == "tempo" else {}
        rollout(ckpt, method, shift, [seed], ticks=ticks, episodes=episodes, on_tick=snap, **extra)
        films.append(frames)
    n = max(map(len, films))
    pictures = []
    for i in range(n):
        both = [f[min(i, len(f) - 1)] for f in films]  # a fallen robot stays where it lies
        wide = Image.new("RGB", (both[0].width * 2, both[0].height))
        for k, one in enumerate(both):
            wide.paste(one, (k * both[0].width, 0))
        pictures.append(wide.quantize(16))
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=20 * every, loop=0)
    return path
