"""One look for all pictures: a headless figure in the house's style, saved atomically."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neurips26.shared.runs import atomic_path

__all__ = ["BASELINE", "COLOURS", "OURS", "figure"]

#: Ours is always blue and the baseline compared with always orange (Okabe–Ito: readable without colour vision).
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#7F7F7F", "#000000")
OURS, BASELINE = COLOURS[0], COLOURS[1]

_STYLE = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": "medium",
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "savefig.dpi": 130,
}


@contextmanager
def figure(path: Path, rows: int = 1, columns: int = 1, size: tuple[float, float] = (3.4, 2.6)) -> Iterator[Any]:
    """Axes to draw on (one, or an array as ``matplotlib.pyplot.subplots`` gives); saved to ``path`` at the end.

    Args:
        path: a PNG, usually ``ctx.figure("name.png")``.
        rows, columns: grid of axes.
        size: width and height of one axes in inches.
    """
    import matplotlib
    from cycler import cycler
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**_STYLE, "axes.prop_cycle": cycler(color=list(COLOURS))}):
        fig = Figure(figsize=(size[0] * columns, size[1] * rows))
        FigureCanvasAgg(fig)
        yield fig.subplots(rows, columns)
        with atomic_path(path) as temporary:
            # No date and no version in the file: the same numbers give the same bytes.
            fig.savefig(temporary, format="png", metadata={"Software": None})
